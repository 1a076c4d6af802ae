/* snapshot/checksum_threads.c - a counter of items, and threads that take from it. */
#include "snapshot/checksum_threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

enum { CORES_PER_THREAD = 4 };

struct cairn_checksum_threads {
    cairn_checksum_item_fn *do_item;
    void *context;
    pthread_mutex_t lock;
    pthread_cond_t work;  /* to the threads: items, or stop */
    pthread_cond_t rest;  /* to the owner: nothing is being done */
    uint64_t next, until; /* items [next, until) are allowed and not begun */
    uint32_t busy;        /* items that are being done */
    bool stop;
    uint32_t count;
    pthread_t threads[CAIRN_CHECKSUM_THREADS_MAX];
};

/* Does the next item; the lock is held, and left while the item is done. */
static bool
do_next(struct cairn_checksum_threads *threads)
{
    uint64_t item = threads->next;

    if (item == threads->until)
        return false;
    threads->next++;
    threads->busy++;
    pthread_mutex_unlock(&threads->lock);
    threads->do_item(threads->context, item);
    pthread_mutex_lock(&threads->lock);
    if (--threads->busy == 0)
        pthread_cond_signal(&threads->rest);
    return true;
}

static void *
checksum_thread(void *argument)
{
    struct cairn_checksum_threads *threads = argument;

    (void)pthread_setname_np(pthread_self(), "cairn-checksum");
    pthread_mutex_lock(&threads->lock);
    while (!threads->stop)
        if (!do_next(threads))
            pthread_cond_wait(&threads->work, &threads->lock);
    pthread_mutex_unlock(&threads->lock);
    return NULL;
}

cairn_err
cairn_checksum_threads_create(cairn_checksum_item_fn *do_item, void *context,
                              struct cairn_checksum_threads **out)
{
    struct cairn_checksum_threads *threads = calloc(1, sizeof *threads);

    if (!threads)
        return CAIRN_NOMEM;
    threads->do_item = do_item;
    threads->context = context;
    pthread_mutex_init(&threads->lock, NULL);
    pthread_cond_init(&threads->work, NULL);
    pthread_cond_init(&threads->rest, NULL);
    *out = threads;
    return CAIRN_OK;
}

uint32_t
cairn_checksum_threads_for_this_host(void)
{
    cpu_set_t cores;
    uint32_t count;

    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        return 0;
    count = (uint32_t)CPU_COUNT(&cores) / CORES_PER_THREAD;
    return count < CAIRN_CHECKSUM_THREADS_MAX ? count : CAIRN_CHECKSUM_THREADS_MAX;
}

void
cairn_checksum_threads_start(struct cairn_checksum_threads *threads, uint32_t wanted)
{
    sigset_t all, old;

    if (wanted > CAIRN_CHECKSUM_THREADS_MAX)
        wanted = CAIRN_CHECKSUM_THREADS_MAX;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the trainer's handlers never run on our threads */
    while (threads->count < wanted &&
           pthread_create(&threads->threads[threads->count], NULL, checksum_thread, threads) == 0)
        threads->count++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void
cairn_checksum_threads_allow(struct cairn_checksum_threads *threads, uint64_t until, bool wake)
{
    pthread_mutex_lock(&threads->lock);
    threads->until = until;
    if (wake && threads->count > 0)
        pthread_cond_broadcast(&threads->work);
    pthread_mutex_unlock(&threads->lock);
}

bool
cairn_checksum_threads_help(struct cairn_checksum_threads *threads)
{
    bool did;

    pthread_mutex_lock(&threads->lock);
    did = do_next(threads);
    pthread_mutex_unlock(&threads->lock);
    return did;
}

void
cairn_checksum_threads_end(struct cairn_checksum_threads *threads)
{
    pthread_mutex_lock(&threads->lock);
    threads->until = threads->next;
    while (threads->busy > 0)
        pthread_cond_wait(&threads->rest, &threads->lock);
    threads->next = threads->until = 0;
    pthread_mutex_unlock(&threads->lock);
}

void
cairn_checksum_threads_destroy(struct cairn_checksum_threads *threads)
{
    if (!threads)
        return;
    pthread_mutex_lock(&threads->lock);
    threads->stop = true;
    pthread_cond_broadcast(&threads->work);
    pthread_mutex_unlock(&threads->lock);
    for (uint32_t i = 0; i < threads->count; i++)
        pthread_join(threads->threads[i], NULL);
    pthread_cond_destroy(&threads->work);
    pthread_cond_destroy(&threads->rest);
    pthread_mutex_destroy(&threads->lock);
    free(threads);
}
