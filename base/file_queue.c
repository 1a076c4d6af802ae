/*
 * base/file_queue.c - requests in a circle, oldest first, over one of three engines.
 *
 * Requests are numbered by their place in the circle. With threads, `lock` guards their states:
 * request i is made by thread i, which sleeps while it is not BEGUN.
 */
#include "base/file_queue.h"

#include "base/assert.h"
#include "base/file.h"
#include "base/file_ring.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum state { STATE_IDLE, STATE_BEGUN, STATE_ENDED };

struct request {
    struct cairn_file_queue *queue; /* set before its thread starts */
    enum state state;
    bool is_write;
    int fd;
    uint64_t at;
    uint8_t *bytes;
    size_t bytes_len;
    ssize_t result; /* bytes, or negative */
};

struct cairn_file_queue {
    enum cairn_file_engine engine;
    struct request requests[CAIRN_FILE_QUEUE_DEPTH];
    uint32_t oldest, count;
    struct cairn_file_ring *ring;

    pthread_t threads[CAIRN_FILE_QUEUE_DEPTH];
    uint32_t thread_count;
    pthread_mutex_t lock; /* of the states and of `ends` */
    pthread_cond_t begun, ended;
    bool ends;
};

static struct {
    pthread_once_t once;
    enum cairn_file_engine engine;
    char why[128];
} best = {.once = PTHREAD_ONCE_INIT};

const char *
cairn_file_engine_name(enum cairn_file_engine engine)
{
    static const char *const names[] = {"best", "io_uring", "threads", "calls"};

    return names[engine];
}

static void
find_best(void)
{
    struct cairn_file_ring *ring =
        cairn_file_ring_open(CAIRN_FILE_QUEUE_DEPTH, best.why, sizeof best.why);

    best.engine = ring ? CAIRN_FILE_ENGINE_RING : CAIRN_FILE_ENGINE_THREADS;
    cairn_file_ring_close(ring);
}

enum cairn_file_engine
cairn_file_engine_best(char *why, size_t why_bytes)
{
    pthread_once(&best.once, find_best);
    snprintf(why, why_bytes, "%s", best.why);
    return best.engine;
}

/* ---- threads ---- */

static void *
make_requests(void *context)
{
    struct request *request = context;
    struct cairn_file_queue *queue = request->queue;

    pthread_mutex_lock(&queue->lock);
    for (;;) {
        ssize_t result;

        while (request->state != STATE_BEGUN && !queue->ends)
            pthread_cond_wait(&queue->begun, &queue->lock);
        if (request->state != STATE_BEGUN)
            break;
        pthread_mutex_unlock(&queue->lock);
        do
            result =
                request->is_write
                    ? pwrite(request->fd, request->bytes, request->bytes_len, (off_t)request->at)
                    : pread(request->fd, request->bytes, request->bytes_len, (off_t)request->at);
        while (result < 0 && errno == EINTR);
        pthread_mutex_lock(&queue->lock);
        request->result = result;
        request->state = STATE_ENDED;
        pthread_cond_broadcast(&queue->ended);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

static void
end_threads(struct cairn_file_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    queue->ends = true;
    pthread_cond_broadcast(&queue->begun);
    pthread_mutex_unlock(&queue->lock);
    for (uint32_t i = 0; i < queue->thread_count; i++)
        pthread_join(queue->threads[i], NULL);
    queue->thread_count = 0;
    queue->ends = false;
}

/* Signals belong to other threads. */
static bool
start_threads(struct cairn_file_queue *queue)
{
    sigset_t all, before;
    int failed = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!failed && queue->thread_count < CAIRN_FILE_QUEUE_DEPTH) {
        failed = pthread_create(&queue->threads[queue->thread_count], NULL, make_requests,
                                &queue->requests[queue->thread_count]);
        queue->thread_count += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        end_threads(queue);
    return !failed;
}

/* ---- the queue ---- */

cairn_err
cairn_file_queue_open(enum cairn_file_engine engine, struct cairn_file_queue **out)
{
    struct cairn_file_queue *queue = calloc(1, sizeof *queue);
    char why[sizeof best.why];

    if (!queue)
        return CAIRN_NOMEM;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->begun, NULL);
    pthread_cond_init(&queue->ended, NULL);
    for (uint32_t i = 0; i < CAIRN_FILE_QUEUE_DEPTH; i++)
        queue->requests[i].queue = queue;
    if (engine == CAIRN_FILE_ENGINE_BEST)
        engine = cairn_file_engine_best(why, sizeof why);
    if (!cairn_file_is_os())
        engine = CAIRN_FILE_ENGINE_CALLS;
    if (engine == CAIRN_FILE_ENGINE_RING) {
        queue->ring = cairn_file_ring_open(CAIRN_FILE_QUEUE_DEPTH, why, sizeof why);
        engine = queue->ring ? engine : CAIRN_FILE_ENGINE_THREADS;
    }
    if (engine == CAIRN_FILE_ENGINE_THREADS && !start_threads(queue))
        engine = CAIRN_FILE_ENGINE_CALLS;
    queue->engine = engine;
    *out = queue;
    return CAIRN_OK;
}

enum cairn_file_engine
cairn_file_queue_engine(const struct cairn_file_queue *queue)
{
    return queue->engine;
}

uint32_t
cairn_file_queue_count(const struct cairn_file_queue *queue)
{
    return queue->count;
}

static void
push(struct cairn_file_queue *queue, bool is_write, int fd, uint64_t at, uint8_t *bytes,
     size_t bytes_len)
{
    uint32_t number = (queue->oldest + queue->count) % CAIRN_FILE_QUEUE_DEPTH;
    struct request *request = &queue->requests[number];

    CAIRN_ASSERT(queue->count < CAIRN_FILE_QUEUE_DEPTH);
    CAIRN_ASSERT(bytes_len > 0 && bytes_len <= CAIRN_FILE_QUEUE_BYTES_MAX);
    queue->count++;
    pthread_mutex_lock(&queue->lock);
    request->is_write = is_write;
    request->fd = fd;
    request->at = at;
    request->bytes = bytes;
    request->bytes_len = bytes_len;
    request->result = -1;
    request->state = STATE_BEGUN;
    pthread_cond_broadcast(&queue->begun);
    pthread_mutex_unlock(&queue->lock);
    if (queue->engine == CAIRN_FILE_ENGINE_RING)
        cairn_file_ring_begin(queue->ring, number, is_write, fd, at, bytes, bytes_len);
    else if (queue->engine == CAIRN_FILE_ENGINE_CALLS)
        request->state = STATE_ENDED; /* with nothing done: pop makes the call */
}

void
cairn_file_queue_write(struct cairn_file_queue *queue, int fd, uint64_t at, const void *bytes,
                       size_t bytes_len)
{
    push(queue, true, fd, at, (uint8_t *)bytes, bytes_len);
}

void
cairn_file_queue_read(struct cairn_file_queue *queue, int fd, uint64_t at, void *bytes,
                      size_t bytes_len)
{
    push(queue, false, fd, at, bytes, bytes_len);
}

/* Waits until the oldest request has ended, and takes it out. */
static struct request *
take_oldest(struct cairn_file_queue *queue)
{
    struct request *request = &queue->requests[queue->oldest];

    CAIRN_ASSERT(queue->count > 0);
    while (queue->engine == CAIRN_FILE_ENGINE_RING && request->state != STATE_ENDED) {
        ssize_t result;
        uint32_t number = cairn_file_ring_wait(queue->ring, &result);

        queue->requests[number].result = result;
        queue->requests[number].state = STATE_ENDED;
    }
    pthread_mutex_lock(&queue->lock);
    while (request->state != STATE_ENDED)
        pthread_cond_wait(&queue->ended, &queue->lock);
    request->state = STATE_IDLE;
    pthread_mutex_unlock(&queue->lock);
    queue->oldest = (queue->oldest + 1) % CAIRN_FILE_QUEUE_DEPTH;
    queue->count--;
    return request;
}

cairn_err
cairn_file_queue_pop(struct cairn_file_queue *queue, size_t *got)
{
    const struct request *request = take_oldest(queue);
    cairn_err err;

    *got = request->bytes_len;
    if (request->result == (ssize_t)request->bytes_len)
        return CAIRN_OK;
    if (!request->is_write)
        return cairn_file_read_at(request->fd, request->at, request->bytes, request->bytes_len,
                                  got);
    err = cairn_file_write_at(request->fd, request->at, request->bytes, request->bytes_len);
    if (err)
        *got = 0;
    return err;
}

void
cairn_file_queue_drop(struct cairn_file_queue *queue)
{
    while (queue->count > 0)
        (void)take_oldest(queue);
}

void
cairn_file_queue_close(struct cairn_file_queue *queue)
{
    if (!queue)
        return;
    cairn_file_queue_drop(queue);
    end_threads(queue);
    cairn_file_ring_close(queue->ring);
    pthread_cond_destroy(&queue->ended);
    pthread_cond_destroy(&queue->begun);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}
