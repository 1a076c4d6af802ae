/*
 * base/worker.c - the pool of threads.
 *
 * `lock` guards the two lists and `stopping`; it is taken last and held for a few instructions.
 * Finished jobs wait in a list of their own, not in the loop's queue of posts, so that handing one
 * back cannot fail. The eventfd is written when that list stops being empty; if that write fails,
 * `lost` has the loop check the list in its next turn.
 */
#include "base/worker.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct list {
    struct cairn_job *first, **last; /* last: where the next one is linked in */
};

struct cairn_workers {
    struct cairn_loop *loop;
    int done_fd;
    struct cairn_loop_source lost_source;
    atomic_bool lost; /* a wake-up */
    bool watched;
    bool delivering; /* done callbacks are being called */
    uint32_t jobs_max;
    uint32_t busy;         /* the loop's own */
    uint32_t thread_count; /* started */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a job is waiting, or stopping */
    struct list waiting;
    struct list finished;
    bool stopping;
    pthread_t threads[];
};

static void
list_init(struct list *list)
{
    list->first = NULL;
    list->last = &list->first;
}

static void
list_append(struct list *list, struct cairn_job *job)
{
    job->next = NULL;
    *list->last = job;
    list->last = &job->next;
}

static struct cairn_job *
list_take(struct list *list)
{
    struct cairn_job *job = list->first;

    list->first = job->next;
    if (!list->first)
        list->last = &list->first;
    return job;
}

static void *
work(void *context)
{
    struct cairn_workers *workers = context;

    pthread_mutex_lock(&workers->lock);
    for (;;) {
        struct cairn_job *job;
        uint64_t one = 1;
        bool first;

        while (!workers->waiting.first && !workers->stopping)
            pthread_cond_wait(&workers->changed, &workers->lock);
        if (!workers->waiting.first)
            break;
        job = list_take(&workers->waiting);
        pthread_mutex_unlock(&workers->lock);
        job->run(job);
        pthread_mutex_lock(&workers->lock);
        first = !workers->finished.first;
        list_append(&workers->finished, job);
        if (first && write(workers->done_fd, &one, sizeof one) != sizeof one)
            atomic_store_explicit(&workers->lost, true, memory_order_release);
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

/* Calls done for every finished job. */
static void
deliver(struct cairn_workers *workers)
{
    struct cairn_job *job;

    pthread_mutex_lock(&workers->lock);
    job = workers->finished.first;
    list_init(&workers->finished);
    pthread_mutex_unlock(&workers->lock);
    workers->delivering = true;
    while (job) {
        struct cairn_job *next = job->next; /* done may free the job */

        workers->busy--;
        job->done(job);
        job = next;
    }
    workers->delivering = false;
}

static void
on_finished(void *context, int fd, uint32_t ready)
{
    uint64_t value;
    ssize_t got = read(fd, &value, sizeof value);

    (void)got;
    (void)ready;
    deliver(context);
}

static bool
has_lost(void *context)
{
    struct cairn_workers *workers = context;

    return atomic_load_explicit(&workers->lost, memory_order_acquire);
}

static void
on_lost(void *context)
{
    struct cairn_workers *workers = context;

    atomic_store_explicit(&workers->lost, false, memory_order_relaxed);
    deliver(workers);
}

/* Starts one worker with all signals blocked except those for its own faults. */
static cairn_err
start_thread(struct cairn_workers *workers)
{
    sigset_t blocked, old;
    int rc;

    sigfillset(&blocked);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    sigdelset(&blocked, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &blocked, &old);
    rc = pthread_create(&workers->threads[workers->thread_count], NULL, work, workers);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        errno = rc;
        CAIRN_LOG_AT(ERROR, "worker: cannot start thread=%u: %m", workers->thread_count);
        return CAIRN_AGAIN;
    }
    pthread_setname_np(workers->threads[workers->thread_count], "cairn-worker");
    workers->thread_count++;
    return CAIRN_OK;
}

cairn_err
cairn_workers_start(struct cairn_loop *loop, uint32_t thread_count, uint32_t jobs_max,
                    struct cairn_workers **out)
{
    struct cairn_workers *workers;
    cairn_err err;

    if (thread_count == 0 || thread_count > CAIRN_WORKERS_MAX || jobs_max == 0)
        return CAIRN_INVAL;
    workers = calloc(1, sizeof *workers + thread_count * sizeof workers->threads[0]);
    if (!workers)
        return CAIRN_NOMEM;
    workers->loop = loop;
    workers->jobs_max = jobs_max;
    list_init(&workers->waiting);
    list_init(&workers->finished);
    pthread_mutex_init(&workers->lock, NULL); /* cannot fail with default attributes */
    pthread_cond_init(&workers->changed, NULL);
    workers->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (workers->done_fd < 0) {
        CAIRN_LOG_AT(ERROR, "worker: cannot open an eventfd: %m");
        err = CAIRN_IO;
        goto done;
    }
    err = cairn_loop_fd_add(loop, workers->done_fd, CAIRN_LOOP_READ, on_finished, workers);
    if (err)
        goto done;
    workers->watched = true;
    workers->lost_source =
        (struct cairn_loop_source){.pending = has_lost, .poll = on_lost, .context = workers};
    err = cairn_loop_source_add(loop, &workers->lost_source);
    if (err)
        goto done;
    for (uint32_t i = 0; i < thread_count; i++) {
        err = start_thread(workers);
        if (err)
            goto done;
    }
    *out = workers;
    workers = NULL;
done:
    cairn_workers_stop(workers);
    return err;
}

void
cairn_workers_stop(struct cairn_workers *workers)
{
    if (!workers)
        return;
    CAIRN_ASSERT(!workers->delivering); /* a done callback must not end its own pool */
    pthread_mutex_lock(&workers->lock);
    workers->stopping = true;
    pthread_cond_broadcast(&workers->changed);
    pthread_mutex_unlock(&workers->lock);
    for (uint32_t i = 0; i < workers->thread_count; i++)
        pthread_join(workers->threads[i], NULL);
    deliver(workers);
    CAIRN_ASSERT(workers->busy == 0);
    cairn_loop_source_remove(workers->loop, &workers->lost_source);
    if (workers->watched)
        cairn_loop_fd_remove(workers->loop, workers->done_fd);
    if (workers->done_fd >= 0)
        close(workers->done_fd);
    pthread_cond_destroy(&workers->changed);
    pthread_mutex_destroy(&workers->lock);
    free(workers);
}

cairn_err
cairn_workers_submit(struct cairn_workers *workers, struct cairn_job *job)
{
    cairn_err err = CAIRN_AGAIN;

    CAIRN_ASSERT(job->run && job->done);
    if (workers->busy == workers->jobs_max)
        return CAIRN_AGAIN;
    pthread_mutex_lock(&workers->lock);
    if (!workers->stopping) {
        list_append(&workers->waiting, job);
        pthread_cond_signal(&workers->changed);
        err = CAIRN_OK;
    }
    pthread_mutex_unlock(&workers->lock);
    if (!err)
        workers->busy++;
    return err;
}

uint32_t
cairn_workers_busy(const struct cairn_workers *workers)
{
    return workers->busy;
}
