/*
 * agent/service/spill_disk.h - the work of spilling that blocks on the disk: directories, COMMIT,
 * retention, removal.
 *
 * One thread of agent->spill->disk does it, job by job, so that a disk that hangs holds up nothing
 * else.
 */
#ifndef CAIRN_AGENT_SERVICE_SPILL_DISK_H
#define CAIRN_AGENT_SERVICE_SPILL_DISK_H

#include "agent/service/spill_state.h"
#include "base/worker.h"
#include "snapshot/spill.h"

enum spill_disk_work {
    SPILL_DISK_BEGIN,  /* makes the directory of a generation and clears it */
    SPILL_DISK_COMMIT, /* checks that the files are there, writes COMMIT, reads it back,
                          removes what `keep` does not keep */
    SPILL_DISK_REMOVE, /* removes what was written of a generation */
    SPILL_DISK_EMPTY,  /* makes the directory of an export, or finds it empty */
    SPILL_DISK_WIPE    /* removes what was written of an export */
};

struct spill_disk_job {
    struct cairn_job job;
    struct cairn_agent *agent;
    enum spill_disk_work work;
    uint64_t request;
    struct cairn_generation_id generation;
    char dir[SPILL_PATH_BYTES];   /* spill_dir, or of the export */
    struct cairn_spill_keep keep; /* last 0: no retention */
    bool made; /* EMPTY: the directory was not there before; WIPE: remove it too */
    struct cairn_universal plan; /* COMMIT, WIPE: owned */
    uint64_t bytes;              /* COMMIT: of all files */
    cairn_err err;
    char text[SPILL_TEXT_BYTES];
    void (*done)(struct spill_disk_job *job); /* in the loop; the job is freed after it */
};

/* Hands a copy of `job` to the disk thread; takes over job->plan. CAIRN_NOMEM; CAIRN_AGAIN: it
 * still has much to do. */
CAIRN_MUST_CHECK cairn_err spill_disk_submit(struct cairn_agent *agent, struct spill_disk_job *job);
/* Finds the newest checkpoint of the job below spill_dir that opens; step 0: none. Blocks: for the
 * start alone. */
struct cairn_generation_id spill_disk_newest(const char *spill_dir, uint64_t job_id);

#endif
