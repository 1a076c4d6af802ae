/*
 * agent/service/spill.h - writes generations to durable storage: to spill_dir as configured, or to
 * a directory that an operator names (an export).
 *
 * Thread: loop; never blocks on the disk.
 */
#ifndef CAIRN_AGENT_SERVICE_SPILL_H
#define CAIRN_AGENT_SERVICE_SPILL_H

#include "cairn/err.h"
#include "snapshot/generation.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_agent;
struct cairn_service_message;

/* ---- the service ---- */
CAIRN_MUST_CHECK cairn_err spill_open(struct cairn_agent *agent);
void spill_close(struct cairn_agent *agent);
void spill_tick(struct cairn_agent *agent);

/* Since when the disk of spill_dir does not answer (0: it does), and how many spills were given up
 * because of that. */
void spill_stuck_read(const struct cairn_agent *agent, uint64_t *stuck_ms, uint64_t *given_up);

/* Since when spills that this agent led have failed (0: the last one did not), and why the newest
 * did. */
void spill_failure_read(const struct cairn_agent *agent, uint64_t *failed_ms, const char **why);

/* The job committed a generation: begins a spill if one is due. */
void spill_committed(struct cairn_agent *agent, struct cairn_generation_id generation);

/* Begins a spill of the ready generation now, if there is one. */
void spill_ask(struct cairn_agent *agent);

/* A SERVICE message of another agent; messages of other services are ignored. */
void spill_message(struct cairn_agent *agent, const struct cairn_service_message *message);

/* ---- exports ---- */

/* What an export came to. */
struct spill_export_result {
    cairn_err err;
    struct cairn_generation_id generation;
    uint64_t files; /* data files written, 0 on failure */
    uint64_t bytes; /* in them, headers included */
    uint64_t took_ns;
    char text[512]; /* on failure: what happened and what to do */
};

/* Called once per started export, from the loop, never from inside spill_export. */
typedef void spill_export_done_fn(void *context, uint64_t request,
                                  const struct spill_export_result *result);

/*
 * Writes the whole ready generation (from the job's memory, or from the files it was spilled to),
 * or the one in the files of `spilled` if its step is not 0, into the directory `dir` as one
 * universal checkpoint, its COMMIT last; this agent writes all of it. `dir` is an absolute path
 * that does not exist (then it is made) or is empty. `done` is called with `request` when it is
 * over; on failure the written files are removed. CAIRN_INVAL: not an absolute path;
 * CAIRN_NOT_FOUND: no generation is ready; CAIRN_AGAIN: another export or a restore of the job
 * runs; CAIRN_NOMEM; then `done` is not called and text (text_bytes long) has the reason and what
 * to do. Thread: loop; never blocks on the disk.
 */
CAIRN_MUST_CHECK cairn_err spill_export(struct cairn_agent *agent, const char *dir,
                                        struct cairn_generation_id spilled, uint64_t request,
                                        spill_export_done_fn *done, void *context, char *text,
                                        size_t text_bytes);

/* Cancels the export of this request: it ends, its files are removed, `done` is not called. */
void spill_export_forget(struct cairn_agent *agent, uint64_t request);

#endif
