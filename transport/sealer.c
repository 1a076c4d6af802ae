/* transport/sealer.c - see sealer.h. */
#include "transport/sealer.h"

#include "base/assert.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

/* Numbers of threads for cairn_seal_run. */
enum { LOOP, HELPER };

struct cairn_sealer {
    pthread_t thread;
    pthread_mutex_t lock; /* of all that follows, and of the jobs' states */
    pthread_cond_t added; /* for the thread */
    pthread_cond_t ended; /* for the loop */
    TAILQ_HEAD(jobs, cairn_sealer_job) waiting;
    bool sleeps; /* the thread waits for `added` */
    bool wanted; /* the loop waits for `ended` */
    bool stops;
};

/* Seals the next waiting block; the lock is held. False: none waits. */
static bool
next_seal(struct cairn_sealer *sealer, uint32_t thread)
{
    struct cairn_sealer_job *job = TAILQ_FIRST(&sealer->waiting);

    if (!job)
        return false;
    TAILQ_REMOVE(&sealer->waiting, job, place);
    job->state = CAIRN_SEALER_RUNNING;
    pthread_mutex_unlock(&sealer->lock);
    job->err = cairn_seal_run(&job->block, thread);
    pthread_mutex_lock(&sealer->lock);
    job->state = CAIRN_SEALER_DONE;
    return true;
}

static void *
work(void *context)
{
    struct cairn_sealer *sealer = context;
    struct sched_param none = {0};

    /* Waking it must not take the processor from the loop or a peer: on two busy cores that costs
     * more than the thread brings. */
    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
    pthread_mutex_lock(&sealer->lock);
    while (!sealer->stops) {
        if (next_seal(sealer, HELPER)) {
            if (sealer->wanted)
                pthread_cond_signal(&sealer->ended);
            continue;
        }
        sealer->sleeps = true;
        pthread_cond_wait(&sealer->added, &sealer->lock);
        sealer->sleeps = false;
    }
    pthread_mutex_unlock(&sealer->lock);
    return NULL;
}

cairn_err
cairn_sealer_create(struct cairn_sealer **out)
{
    struct cairn_sealer *sealer = calloc(1, sizeof *sealer);
    sigset_t all, old;
    int failed;

    if (!sealer)
        return CAIRN_NOMEM;
    TAILQ_INIT(&sealer->waiting);
    pthread_mutex_init(&sealer->lock, NULL); /* cannot fail with default attributes */
    pthread_cond_init(&sealer->added, NULL);
    pthread_cond_init(&sealer->ended, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    failed = pthread_create(&sealer->thread, NULL, work, sealer);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) {
        free(sealer);
        return CAIRN_AGAIN;
    }
    pthread_setname_np(sealer->thread, "cairn-sealer");
    *out = sealer;
    return CAIRN_OK;
}

void
cairn_sealer_destroy(struct cairn_sealer *sealer)
{
    if (!sealer)
        return;
    CAIRN_ASSERT(TAILQ_EMPTY(&sealer->waiting));
    pthread_mutex_lock(&sealer->lock);
    sealer->stops = true;
    pthread_cond_signal(&sealer->added);
    pthread_mutex_unlock(&sealer->lock);
    pthread_join(sealer->thread, NULL);
    pthread_cond_destroy(&sealer->added);
    pthread_cond_destroy(&sealer->ended);
    pthread_mutex_destroy(&sealer->lock);
    free(sealer);
}

void
cairn_sealer_add(struct cairn_sealer *sealer, struct cairn_sealer_job *job)
{
    CAIRN_ASSERT(job->state == CAIRN_SEALER_IDLE);
    job->state = CAIRN_SEALER_WAITING;
    if (!sealer)
        return;
    pthread_mutex_lock(&sealer->lock);
    TAILQ_INSERT_TAIL(&sealer->waiting, job, place);
    if (sealer->sleeps)
        pthread_cond_signal(&sealer->added);
    pthread_mutex_unlock(&sealer->lock);
}

/* Takes the job from the thread. While the thread runs it, the loop seals later blocks. True: the
 * block is sealed. */
static bool
job_take(struct cairn_sealer *sealer, struct cairn_sealer_job *job)
{
    bool sealed = false;

    if (sealer) {
        pthread_mutex_lock(&sealer->lock);
        if (job->state == CAIRN_SEALER_WAITING)
            TAILQ_REMOVE(&sealer->waiting, job, place);
        while (job->state == CAIRN_SEALER_RUNNING && next_seal(sealer, LOOP))
            continue;
        sealer->wanted = true;
        while (job->state == CAIRN_SEALER_RUNNING)
            pthread_cond_wait(&sealer->ended, &sealer->lock);
        sealer->wanted = false;
        sealed = job->state == CAIRN_SEALER_DONE;
        pthread_mutex_unlock(&sealer->lock);
    }
    job->state = CAIRN_SEALER_IDLE;
    return sealed;
}

cairn_err
cairn_sealer_finish(struct cairn_sealer *sealer, struct cairn_sealer_job *job)
{
    return job_take(sealer, job) ? job->err : cairn_seal_run(&job->block, LOOP);
}

bool
cairn_sealer_has_done(struct cairn_sealer *sealer, const struct cairn_sealer_job *job)
{
    bool done = false;

    if (sealer) {
        pthread_mutex_lock(&sealer->lock);
        done = job->state == CAIRN_SEALER_DONE;
        pthread_mutex_unlock(&sealer->lock);
    }
    return done;
}

void
cairn_sealer_drop(struct cairn_sealer *sealer, struct cairn_sealer_job *job)
{
    (void)job_take(sealer, job);
}
