/*
 * agent/service/spill_run.h - writes the files of one generation, all or those of one writer, in
 * the universal form.
 *
 *   GATHER  the manifests of all containers (fetch.h)
 *   PLAN    layouts, files, moves: computed alike by every agent            (disk thread)
 *   OPEN    the next own file: header, space reserved                       (disk thread)
 *   FILL    buffer by buffer: blocks are fetched, checked, copied; the file's own thread writes
 *   FINISH  the file is synced and has its name; its checksums are kept; OPEN again, or WRITTEN
 *
 * Nothing waits for a disk in the loop, and no disk reads or writes the generation's memory: blocks
 * are copied first. A run that makes no progress is given up after SPILL_PATIENCE_NS, or after
 * SPILL_HURRY_NS if its generation takes the slot that the next one needs. So a disk that hangs
 * holds up commits no longer than that.
 * Memory: the window of spill_fill.h and the two buffers of snapshot/spill.h, beside the plan.
 * Thread: loop.
 */
#ifndef CAIRN_AGENT_SERVICE_SPILL_RUN_H
#define CAIRN_AGENT_SERVICE_SPILL_RUN_H

#include "agent/service/fetch.h"
#include "snapshot/universal.h"

#define SPILL_PATIENCE_NS (30 * CAIRN_NS_PER_S)
#define SPILL_HURRY_NS (10 * CAIRN_NS_PER_S)

enum { SPILL_TEXT_BYTES = 512, SPILL_ERRNO_BYTES = 80, SPILL_ALL_FILES = UINT32_MAX };

struct spill_run;

/* Called once, from the loop, when all own files have their names (CAIRN_OK) or it failed. It may
 * end the run. */
typedef void spill_run_done_fn(void *context, cairn_err err, const char *text);

struct spill_run_options {
    struct cairn_generation_id generation;
    bool from_files;       /* it is read from its directory below spill_dir */
    const char *dir;       /* that the files go to; exists */
    uint32_t writer_count; /* writers are the containers 0 … writer_count - 1 */
    uint32_t own_writer;   /* whose files are written here; SPILL_ALL_FILES */
    /* Not NULL: own_file of this checkpoint is written again, alone. CAIRN_STALE if it would differ
     * from before. Borrowed until the disk thread was stopped. */
    const struct cairn_universal *again;
    uint32_t own_file;
    struct cairn_workers *disk; /* for what may block; outlives the run */
    spill_run_done_fn *done;
    void *context;
};

/* Writes " (errno 28: No space left on device)" for a text that names the path; "" for code 0. */
const char *spill_errno_text(int code, char text[SPILL_ERRNO_BYTES]);

/* Starts a run; strings are copied. CAIRN_NOT_FOUND: the generation is not there; CAIRN_NOMEM. The
 * caller ends *out. */
CAIRN_MUST_CHECK cairn_err spill_run_start(struct cairn_agent *agent,
                                           const struct spill_run_options *options,
                                           struct spill_run **out);

/* Ends it at any time: files that have not their name yet are removed, `done` is not called any
 * more. NULL is allowed. */
void spill_run_end(struct spill_run *run);

/* Fails the run if it has made no progress for this time. */
void spill_run_tick(struct spill_run *run, uint64_t patience_ns);

/* The plan, with the checksums of the written own files; NULL before it is made. */
struct cairn_universal *spill_run_plan(struct spill_run *run);
/* Data bytes that were written, and that will be (0 before the plan). */
void spill_run_progress(const struct spill_run *run, uint64_t *written_bytes,
                        uint64_t *total_bytes);

#endif
