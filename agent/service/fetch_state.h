/*
 * agent/service/fetch_state.h - what the files of fetching share: a fetcher, its containers and its
 * reads.
 *
 *   fetch.c          the life of a fetcher, and the manifests that it gathers first
 *   fetch_read.c     reads runs of blocks: from own memory, from another node, from a spilled file
 *   fetch_answer.c   answers other agents, takes their answers, asks again
 *   fetch_restore.c  the restore of a trainer
 *
 * Each file calls only those above it. The agent's fetch_table owns all fetchers, and a fetcher its
 * containers, reads and window.
 */
#ifndef CAIRN_AGENT_SERVICE_FETCH_STATE_H
#define CAIRN_AGENT_SERVICE_FETCH_STATE_H

#include "agent/core/core.h"
#include "agent/service/fetch.h"
#include "snapshot/arena.h"
#include "snapshot/manifest.h"
#include "snapshot/universal.h"

enum {
    ASK_BLOCKS = 0,
    ASK_MANIFEST = 1,
    ASK_PARITY = 2, /* of a drill: blocks of parity slot `total`; CAIRN_CORRUPT: they are damaged.
                     * The answer's `total` is UINT64_MAX: an agent of protocol 10 sends data. */
    PART_BYTES = 49152,
    IN_FLIGHT_MAX = 8,
    READS_MAX = 4096,            /* waiting, of one fetcher */
    RESTORE_WINDOW_BLOCKS = 256, /* of a restoring trainer */
    REPAIR_WINDOW_BLOCKS = 16    /* of a fetcher that finds everything in this node's memory */
};

struct container {
    struct cairn_manifest manifest;
    uint8_t *packed;
    size_t packed_len;
    size_t received;
    bool whole;
    uint64_t sent_ns;
};

struct batch {
    uint32_t left;
    uint64_t tag;
    cairn_err err;
    fetcher_done_fn *done;
    void *context;
};

/* One request of at most CAIRN_MESSAGE_BLOCKS_MAX blocks. */
struct read {
    struct read *next;
    struct batch *batch;
    uint64_t id;
    uint32_t container;
    uint32_t count;
    uint64_t first_block;
    uint8_t *target;
    uint64_t started_ns;
    uint64_t sent_ns; /* 0: not asked for */
    uint32_t asked;   /* the node whose answer is taken; UINT32_MAX: none */
};

struct fetcher {
    struct fetcher *next;
    struct cairn_agent *agent;
    struct cairn_generation_id generation;
    bool from_files;
    bool is_opening; /* of files: a worker has it, and the containers are unknown */
    bool is_ready;
    bool is_failed; /* `ready` was called with an error */
    bool ended;
    uint32_t users; /* workers' jobs, and callers that still use it: it is freed after the last */
    int dir_fd;
    struct cairn_universal universal;
    struct container *containers;
    uint32_t container_count;
    uint32_t *holders; /* [container_count] agents, as they were at the start; in memory only */
    fetcher_ready_fn *ready;
    void *context;
    uint64_t started_ns;
    struct read *reads; /* in order of asking */
    uint32_t read_count;
    uint32_t in_flight;
    /* a restoring trainer */
    struct session *session;
    uint64_t session_serial;
    uint32_t request;
    struct cairn_arena *window;
    uint32_t asked_container; /* it asks for its blocks in ascending order, up to here */
    uint64_t asked_block;
    bool compares; /* blocks with their checksums: nobody else does */
};

struct fetch_table {
    struct fetcher *fetchers;
    uint64_t next_id;
    uint64_t repair_ns; /* when a verify was asked for last */
};

/* ---- fetch.c ---- */

/* Around a call that may run a callback: the callback may end the fetcher. */
void fetcher_hold(struct fetcher *fetcher);
void fetcher_unhold(struct fetcher *fetcher);

/* Starts gathering, from the job's memory or from spilled files. */
cairn_err fetch_start_memory(struct fetcher *fetcher);
cairn_err fetch_start_files(struct fetcher *fetcher);

/* Calls `ready` if the last manifest is here. Returns true if it did; the fetcher may be gone. */
bool fetch_gathered(struct fetcher *fetcher);
void fetch_ask_manifest(struct fetcher *fetcher, uint32_t member);
cairn_err fetch_take_manifest(struct fetcher *fetcher, uint32_t index, const uint8_t *packed,
                              size_t len);

/* The agent that holds a member's part, as known when the fetcher started. */
uint32_t fetch_holder_of(const struct fetcher *fetcher, uint32_t member);

/* Finds a complete part of a generation in own memory. */
bool fetch_find_part(const struct cairn_agent *agent, struct cairn_generation_id generation,
                     uint32_t member, uint32_t *index, struct cairn_part_view *out);

/* Starts a verify of the job, unless one was started within the last five seconds. */
void fetch_ask_for_repair(struct cairn_agent *agent);

/* ---- fetch_read.c ---- */

/* Asks for the reads that are due, as far as the bounds allow. */
void fetch_pump(struct fetcher *fetcher);
struct read *fetch_find_read(struct fetcher *fetcher, uint64_t id);
void fetch_end_read(struct fetcher *fetcher, struct read *read, cairn_err err);

/* Reads from own memory. True: that ended the read, or a worker's job will. */
bool fetch_read_own(struct fetcher *fetcher, struct read *read);
void fetch_read_remote(struct fetcher *fetcher, struct read *read);

/* True if the blocks match the checksums in their manifest. */
bool fetch_blocks_good(const struct cairn_manifest *manifest, uint64_t first_block, uint32_t count,
                       const uint8_t *bytes);

#endif
