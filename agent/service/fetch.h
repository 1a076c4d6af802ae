/*
 * agent/service/fetch.h - reads a generation from any place: own memory, other nodes' memory,
 * spilled files.
 *
 * A fetcher first gathers the manifests of all containers of one generation: those of its own group
 * from the seals of its part, the others from other agents. Then it reads runs of blocks into the
 * caller's memory. Restoring trainers, spill and export use it.
 *
 * Invariants:
 *  1. Every block is compared with the checksum in its manifest once it lies at its target: by its
 *     trainer, else here before it is handed out. Blocks that a trainer asks for again were
 *     damaged, and are compared here from then on. A damaged block starts a verify of the job, and
 *     is read again until the deadline.
 *  2. A fetcher may be ended inside its own callback: a caller that still uses it holds it.
 *
 * Thread: loop.
 */
#ifndef CAIRN_AGENT_SERVICE_FETCH_H
#define CAIRN_AGENT_SERVICE_FETCH_H

#include "cairn/err.h"
#include "snapshot/generation.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_agent;
struct cairn_manifest;
struct cairn_service_message;
struct cairn_session_frame;
struct fetcher;
struct session;

/* ---- the service ---- */
CAIRN_MUST_CHECK cairn_err fetch_open(struct cairn_agent *agent);
void fetch_close(struct cairn_agent *agent);
void fetch_tick(struct cairn_agent *agent);

/* A trainer's RESTORE, FETCH or RESTORED. False: malformed. */
bool fetch_frame(struct cairn_agent *agent, struct session *session,
                 struct cairn_session_frame *frame);
/* The session gets no more answers: its restore, if pending, ends. */
void fetch_forget(struct cairn_agent *agent, struct session *session);

/* A FETCH or FETCHED of another agent. */
void fetch_message(struct cairn_agent *agent, const struct cairn_service_message *message,
                   const uint8_t *payload, size_t payload_len);

/* Where the blocks of the answer to a FETCH go; NULL: this agent does not wait for them. */
uint8_t *fetch_place(struct cairn_agent *agent, uint32_t from, uint64_t request,
                     size_t payload_len);

/* ---- fetchers ---- */

typedef void fetcher_ready_fn(void *context, cairn_err err, const char *text);
typedef void fetcher_done_fn(void *context, uint64_t tag, cairn_err err);

/* A run of blocks wanted at `target` (count * CAIRN_BLOCK_BYTES long, valid until done is called or
 * the fetcher ends). */
struct fetcher_run {
    uint32_t container;
    uint32_t count;
    uint64_t first_block;
    uint8_t *target;
};

/*
 * Starts on a generation: in memory (the core's ready one, or one that an own complete part keeps
 * pinned), or in the files of its directory below spill_dir. `ready` is called once, from the loop,
 * maybe at once. CAIRN_NOT_FOUND: in none of these; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err fetcher_start(struct cairn_agent *agent,
                                         struct cairn_generation_id generation, bool from_files,
                                         fetcher_ready_fn *ready, void *context,
                                         struct fetcher **out);
/* Ends it; callbacks that are due are not called any more. NULL is allowed. */
void fetcher_end(struct fetcher *fetcher);

/* After ready(CAIRN_OK): the containers, and their manifests (unpacked, borrowed). */
uint32_t fetcher_container_count(const struct fetcher *fetcher);
const struct cairn_manifest *fetcher_manifest(const struct fetcher *fetcher, uint32_t container);

/* Reads runs[count] (copied); `done` is called once, with `tag`, maybe at once. CAIRN_INVAL: blocks
 * that do not exist. */
CAIRN_MUST_CHECK cairn_err fetcher_read(struct fetcher *fetcher, const struct fetcher_run *runs,
                                        uint32_t count, uint64_t tag, fetcher_done_fn *done,
                                        void *context);

#endif
