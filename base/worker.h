/*
 * base/worker.h - a fixed pool of threads for work too long for the loop: coding, checksums, disk.
 *
 * A job is this struct inside a struct of its owner. Between submit and done the job belongs to the
 * pool, and run may touch only the job and what it points to. Jobs start in the order of submit;
 * with several threads they may end in another. Nothing is allocated after cairn_workers_create.
 */
#ifndef CAIRN_BASE_WORKER_H
#define CAIRN_BASE_WORKER_H

#include "base/loop.h"

struct cairn_job {
    void (*run)(struct cairn_job *job); /* in a worker */
    void (*done)(
        struct cairn_job *job); /* in the loop's thread, once, after run; may free the job */
    struct cairn_job *next;     /* the pool's own */
};

struct cairn_workers;

enum { CAIRN_WORKERS_MAX = 256 };

/*
 * Starts thread_count (1 … CAIRN_WORKERS_MAX) workers that hand jobs back to `loop`, which is
 * borrowed until cairn_workers_stop. At most jobs_max (> 0) jobs are between submit and done. The
 * workers block all signals. CAIRN_INVAL, CAIRN_NOMEM, CAIRN_IO, CAIRN_FULL when the loop has no
 * room for another source, CAIRN_AGAIN when the system has no thread left. Thread: loop.
 */
CAIRN_MUST_CHECK cairn_err cairn_workers_start(struct cairn_loop *loop, uint32_t thread_count,
                                               uint32_t jobs_max, struct cairn_workers **out);

/* Ends the pool: runs every submitted job and calls its done first. Jobs submitted by those done
 * callbacks get CAIRN_AGAIN. Blocks until the jobs have ended. NULL is allowed. Thread: loop. */
void cairn_workers_stop(struct cairn_workers *workers);

/* Hands a job over. CAIRN_AGAIN if jobs_max are pending or the pool is stopping: the caller keeps
 * the job. Never waits for a job. Thread: loop. */
CAIRN_MUST_CHECK cairn_err cairn_workers_submit(struct cairn_workers *workers,
                                                struct cairn_job *job);

/* Jobs between submit and done. Thread: loop. */
uint32_t cairn_workers_busy(const struct cairn_workers *workers);

#endif
