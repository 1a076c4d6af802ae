/*
 * snapshot/capture.c - the capture thread.
 *
 * State of a capture:      idle --cairn_capture_start--> running --end_job--> idle
 *
 * Invariants:
 *   1. `watermark` never passes a byte whose source may still be read; it is stored with release
 *      after the reads (and after the device's copies were seen to have ended).
 *   2. `running` falls (with the lock held) after on_done has returned; nothing of the job is
 *      touched after that.
 *   3. The job's fields are written by start while idle and read by the thread while running.
 *
 * Lock: one mutex guards `running`, `result`, `stop`, the counters and the conditions. The
 * watermark and `cancelled` are atomics. Waiters are woken at the end of each span, when there are
 * any. A second mutex guards the devices between captures.
 */
#include "snapshot/capture.h"

#include "snapshot/walk.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct cairn_capture {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;          /* to the thread: a job, or stop */
    pthread_cond_t progress;      /* to waiters: watermark moved, or the capture ended */
    pthread_mutex_t devices_lock; /* walk.devices, between captures: order against prepare and
                                   * forget */
    bool running, stop, ever;
    cairn_err result;
    struct cairn_capture_stats stats;
    atomic_uint waiters;
    _Atomic uint64_t watermark;
    struct cairn_mem_options mem_options;
    char driver_path[256];
    uint32_t checksum_threads; /* wanted if there is a device */
    uint64_t start_ns;
    pthread_mutex_t next_lock; /* guards the next region, which is mapped between captures */
    uint8_t *next_region;
    uint64_t next_bytes, next_mapped_bytes;
    struct cairn_walk walk; /* its devices and job belong to the thread while running */
};

static uint64_t
now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- the thread ---- */

/* Moves the watermark and wakes who waits for it. */
static void
move_watermark(void *context, uint64_t bytes)
{
    struct cairn_capture *capture = context;

    atomic_store(&capture->watermark, bytes);
    /* Sequentially consistent with the waiter's increment: it sees the bytes, or we see it. */
    if (atomic_load(&capture->waiters) == 0)
        return;
    pthread_mutex_lock(&capture->lock);
    pthread_cond_broadcast(&capture->progress);
    pthread_mutex_unlock(&capture->lock);
}

static void
end_job(struct cairn_capture *capture, cairn_err result)
{
    uint64_t took_ns = now_ns() - capture->start_ns;

    if (capture->walk.job.on_done)
        capture->walk.job.on_done(capture->walk.job.context, result);
    pthread_mutex_lock(&capture->lock);
    if (result) {
        capture->stats.failed++;
    } else {
        capture->stats.captures++;
        capture->stats.captured_bytes += capture->walk.job.region_bytes;
        capture->stats.capture_ns += took_ns;
    }
    capture->result = result;
    capture->running = false;
    pthread_cond_broadcast(&capture->progress);
    pthread_mutex_unlock(&capture->lock);
}

/* Maps more of the next region. False: all of it is mapped. */
static bool
map_next(struct cairn_capture *capture)
{
    uint64_t at, left;

    pthread_mutex_lock(&capture->next_lock);
    at = capture->next_mapped_bytes;
    left = capture->next_bytes - at;
    if (left > 0)
        capture->next_mapped_bytes += cairn_walk_map(capture->next_region + at, left);
    pthread_mutex_unlock(&capture->next_lock);
    return left > 0;
}

static void *
capture_thread(void *argument)
{
    struct cairn_capture *capture = argument;

    (void)pthread_setname_np(pthread_self(), "cairn-capture");
    for (;;) {
        pthread_mutex_lock(&capture->lock);
        while (!capture->running && !capture->stop) {
            bool more;

            pthread_mutex_unlock(&capture->lock);
            more = map_next(capture);
            pthread_mutex_lock(&capture->lock);
            if (!more && !capture->running && !capture->stop)
                pthread_cond_wait(&capture->work, &capture->lock);
        }
        if (!capture->running) {
            pthread_mutex_unlock(&capture->lock);
            return NULL;
        }
        pthread_mutex_unlock(&capture->lock);
        end_job(capture, cairn_walk_run(&capture->walk));
    }
}

/* ---- the trainer's side ---- */

static cairn_err
start_thread(struct cairn_capture *capture)
{
    sigset_t all, old;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the trainer's handlers never run on our thread */
    failed = pthread_create(&capture->thread, NULL, capture_thread, capture);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return failed ? CAIRN_NOMEM : CAIRN_OK;
}

cairn_err
cairn_capture_create(const struct cairn_capture_options *options, struct cairn_capture **out)
{
    struct cairn_capture *capture = calloc(1, sizeof *capture);
    pthread_condattr_t attributes;
    cairn_err err;

    if (!capture)
        return CAIRN_NOMEM;
    if (options && options->driver_path) {
        if (strlen(options->driver_path) >= sizeof capture->driver_path) {
            free(capture);
            return CAIRN_INVAL;
        }
        memcpy(capture->driver_path, options->driver_path, strlen(options->driver_path) + 1);
        capture->mem_options.driver_path = capture->driver_path;
    }
    if (options) {
        capture->mem_options.log = options->log;
        capture->mem_options.log_context = options->log_context;
        capture->mem_options.never_pin = options->never_pin;
    }
    if (!options || options->checksum_threads == 0)
        capture->checksum_threads = cairn_checksum_threads_for_this_host();
    else if (options->checksum_threads > 0)
        capture->checksum_threads = (uint32_t)options->checksum_threads;
    atomic_init(&capture->walk.give_up_ns, UINT64_MAX);
    capture->walk.landed = move_watermark;
    capture->walk.landed_context = capture;
    pthread_mutex_init(&capture->lock, NULL);
    pthread_mutex_init(&capture->devices_lock, NULL);
    pthread_mutex_init(&capture->next_lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&capture->work, NULL);
    pthread_cond_init(&capture->progress, &attributes);
    pthread_condattr_destroy(&attributes);
    err =
        cairn_checksum_threads_create(cairn_walk_sum_part, &capture->walk, &capture->walk.threads);
    if (!err)
        err = start_thread(capture);
    if (err) {
        cairn_checksum_threads_destroy(capture->walk.threads);
        free(capture);
        return err;
    }
    *out = capture;
    return CAIRN_OK;
}

/*
 * Waits for copies of a hung device; false when that is given up. Each device unpins only when all
 * are at rest: the pin of one serves the others.
 */
static bool
rest_devices(struct cairn_capture *capture)
{
    for (uint32_t i = 0; i < capture->walk.device_count; i++) {
        const struct cairn_walk_device *device = &capture->walk.devices[i];

        /* One that failed is at rest all the same. */
        if (device->mem && cairn_walk_rest(&capture->walk, device, UINT64_MAX) == CAIRN_TIMEOUT)
            return false;
    }
    return true;
}

void
cairn_capture_destroy(struct cairn_capture *capture)
{
    if (!capture)
        return;
    cairn_capture_cancel(capture);
    pthread_mutex_lock(&capture->lock);
    capture->stop = true;
    pthread_cond_signal(&capture->work);
    pthread_mutex_unlock(&capture->lock);
    pthread_join(capture->thread, NULL);
    cairn_checksum_threads_destroy(capture->walk.threads);
    if (rest_devices(capture))
        for (uint32_t i = 0; i < capture->walk.device_count; i++)
            cairn_mem_close(capture->walk.devices[i].mem);
    pthread_cond_destroy(&capture->work);
    pthread_cond_destroy(&capture->progress);
    pthread_mutex_destroy(&capture->lock);
    pthread_mutex_destroy(&capture->devices_lock);
    pthread_mutex_destroy(&capture->next_lock);
    free(capture);
}

bool
cairn_capture_running(const struct cairn_capture *capture)
{
    struct cairn_capture *mutable = (struct cairn_capture *)(uintptr_t)capture; /* for the lock */
    bool running;

    pthread_mutex_lock(&mutable->lock);
    running = capture->running;
    pthread_mutex_unlock(&mutable->lock);
    return running;
}

/* The device of that ordinal; opens it if necessary. */
static cairn_err
open_device(struct cairn_capture *capture, int32_t index, struct cairn_walk_device **out)
{
    struct cairn_walk_device *device = cairn_walk_device_find(&capture->walk, index);
    struct cairn_mem *mem = NULL;
    cairn_err err;

    if (!device && capture->walk.device_count == CAIRN_WALK_DEVICES_MAX)
        return CAIRN_FULL;
    if (!device || !device->mem) {
        err = cairn_mem_open(index, &capture->mem_options, &mem);
        if (err)
            return err;
        device = device ? device : &capture->walk.devices[capture->walk.device_count++];
        *device = (struct cairn_walk_device){.index = index, .mem = mem};
        cairn_checksum_threads_start(capture->walk.threads, capture->checksum_threads);
    }
    *out = device;
    return CAIRN_OK;
}

cairn_err
cairn_capture_prepare(struct cairn_capture *capture, int32_t device, void *memory, uint64_t bytes)
{
    struct cairn_walk_device *opened = NULL;
    cairn_err err = CAIRN_DEVICE;

    if (device < 0)
        return CAIRN_OK;
    if (cairn_capture_running(capture))
        return CAIRN_AGAIN;
    pthread_mutex_lock(&capture->devices_lock);
    /* Twice: a device that failed since it was opened is opened again. */
    for (int attempt = 0; attempt < 2 && err == CAIRN_DEVICE; attempt++) {
        err = open_device(capture, device, &opened);
        if (err)
            break;
        err = cairn_mem_pin(opened->mem, memory, bytes);
        if (err == CAIRN_DEVICE) {
            cairn_mem_close(opened->mem);
            *opened = (struct cairn_walk_device){.index = device};
        }
    }
    pthread_mutex_unlock(&capture->devices_lock);
    return err;
}

void
cairn_capture_map_next(struct cairn_capture *capture, uint8_t *region, uint64_t bytes)
{
    pthread_mutex_lock(&capture->next_lock);
    if (capture->next_region != region || capture->next_bytes != bytes)
        capture->next_mapped_bytes = 0;
    capture->next_region = region;
    capture->next_bytes = bytes;
    pthread_mutex_unlock(&capture->next_lock);
    pthread_mutex_lock(&capture->lock);
    pthread_cond_signal(&capture->work);
    pthread_mutex_unlock(&capture->lock);
}

bool
cairn_capture_forget(struct cairn_capture *capture, void *memory)
{
    bool rests;

    cairn_capture_cancel(capture);
    cairn_capture_map_next(capture, NULL, 0);
    pthread_mutex_lock(&capture->devices_lock);
    rests = rest_devices(capture);
    for (uint32_t i = 0; rests && i < capture->walk.device_count; i++)
        if (capture->walk.devices[i].mem)
            cairn_mem_unpin(capture->walk.devices[i].mem, memory);
    pthread_mutex_unlock(&capture->devices_lock);
    return rests;
}

void
cairn_capture_give_up(struct cairn_capture *capture, uint64_t after_ns)
{
    if (capture)
        atomic_store(&capture->walk.give_up_ns, now_ns() + after_ns);
}

static cairn_err
check_job(struct cairn_capture *capture, const struct cairn_capture_job *job)
{
    uint64_t end = 0;

    if (!job->region || (uintptr_t)job->region % CAIRN_CAPTURE_ALIGN_BYTES ||
        job->region_bytes == 0 || job->region_bytes % CAIRN_BLOCK_BYTES ||
        (!job->runs && job->run_count > 0))
        return CAIRN_INVAL;
    for (uint32_t i = 0; i < job->run_count; i++) {
        const struct cairn_capture_run *run = &job->runs[i];

        if (run->offset < end || run->offset > job->region_bytes ||
            run->bytes > job->region_bytes - run->offset || (run->bytes > 0 && !run->source) ||
            (run->bytes > 0 && run->device >= 0 &&
             !cairn_walk_device_find(&capture->walk, run->device)))
            return CAIRN_INVAL;
        end = run->offset + run->bytes;
    }
    return CAIRN_OK;
}

cairn_err
cairn_capture_order(struct cairn_capture *capture, int32_t index, void *stream)
{
    struct cairn_walk_device *device;
    cairn_err err = CAIRN_DEVICE;

    if (pthread_mutex_trylock(&capture->devices_lock) != 0)
        return CAIRN_AGAIN; /* pinning takes long, and the trainer must not wait for it */
    device = cairn_walk_device_find(&capture->walk, index);
    if (!device)
        err = CAIRN_INVAL;
    else if (device->mem)
        err = cairn_mem_after(device->mem, stream);
    pthread_mutex_unlock(&capture->devices_lock);
    return err;
}

static bool
has_device_runs(const struct cairn_capture_job *job)
{
    for (uint32_t i = 0; i < job->run_count; i++)
        if (job->runs[i].device >= 0)
            return true;
    return false;
}

/* A device that failed and was closed cannot be read. */
static cairn_err
check_devices(struct cairn_capture *capture, const struct cairn_capture_job *job)
{
    for (uint32_t i = 0; i < job->run_count; i++)
        if (job->runs[i].device >= 0 && job->runs[i].bytes > 0 &&
            !cairn_walk_device_find(&capture->walk, job->runs[i].device)->mem)
            return CAIRN_DEVICE;
    return CAIRN_OK;
}

cairn_err
cairn_capture_start(struct cairn_capture *capture, const struct cairn_capture_job *job)
{
    cairn_err err;

    if (cairn_capture_running(capture))
        return CAIRN_AGAIN;
    err = check_job(capture, job);
    if (!err)
        err = check_devices(capture, job);
    if (err)
        return err;
    capture->walk.job = *job;
    if (has_device_runs(job))
        capture->walk.job.helpers = 0;
    cairn_checksum_threads_start(capture->walk.threads, capture->walk.job.helpers);
    pthread_mutex_lock(&capture->next_lock);
    capture->walk.mapped_bytes =
        capture->next_region == job->region ? capture->next_mapped_bytes : 0;
    pthread_mutex_unlock(&capture->next_lock);
    capture->start_ns = now_ns();
    atomic_store(&capture->walk.cancelled, false);
    atomic_store(&capture->watermark, 0);
    pthread_mutex_lock(&capture->lock);
    capture->ever = true;
    capture->running = true;
    capture->result = CAIRN_AGAIN;
    pthread_cond_signal(&capture->work);
    pthread_mutex_unlock(&capture->lock);
    return CAIRN_OK;
}

static struct timespec
deadline_of(uint64_t deadline_ns)
{
    /* Far enough for "for ever", near enough for a time_t of any width. */
    uint64_t limit = UINT64_C(1) << 60;
    uint64_t ns = deadline_ns < limit ? deadline_ns : limit;

    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

cairn_err
cairn_capture_wait(struct cairn_capture *capture, uint64_t until_bytes, uint64_t deadline_ns)
{
    struct timespec deadline = deadline_of(deadline_ns);
    bool reached = false, timed_out = false;
    cairn_err err = CAIRN_OK;

    if (!capture->ever)
        return CAIRN_AGAIN;
    /* `ever` and the job's size are the trainer's own writes: this thread made them in start. */
    if (until_bytes > capture->walk.job.region_bytes)
        until_bytes = capture->walk.job.region_bytes;
    if (cairn_capture_watermark(capture) >= until_bytes)
        return CAIRN_OK;
    atomic_fetch_add(&capture->waiters, 1);
    pthread_mutex_lock(&capture->lock);
    for (;;) {
        reached = atomic_load(&capture->watermark) >= until_bytes;
        if (reached || !capture->running || timed_out)
            break;
        timed_out = pthread_cond_timedwait(&capture->progress, &capture->lock, &deadline) != 0;
    }
    if (!reached)
        err = capture->running ? CAIRN_TIMEOUT : capture->result;
    pthread_mutex_unlock(&capture->lock);
    atomic_fetch_sub(&capture->waiters, 1);
    return err;
}

uint64_t
cairn_capture_watermark(const struct cairn_capture *capture)
{
    return atomic_load_explicit(&capture->watermark, memory_order_acquire);
}

cairn_err
cairn_capture_finish(struct cairn_capture *capture, uint64_t deadline_ns)
{
    struct timespec deadline = deadline_of(deadline_ns);
    bool timed_out = false;
    cairn_err err;

    pthread_mutex_lock(&capture->lock);
    while (capture->running && !timed_out)
        timed_out = pthread_cond_timedwait(&capture->progress, &capture->lock, &deadline) != 0;
    err = capture->running ? CAIRN_TIMEOUT : capture->result;
    if (!capture->ever)
        err = CAIRN_AGAIN;
    pthread_mutex_unlock(&capture->lock);
    return err;
}

void
cairn_capture_cancel(struct cairn_capture *capture)
{
    atomic_store(&capture->walk.cancelled, true);
    pthread_mutex_lock(&capture->lock);
    while (capture->running)
        pthread_cond_wait(&capture->progress, &capture->lock);
    pthread_mutex_unlock(&capture->lock);
}

void
cairn_capture_stats_read(const struct cairn_capture *capture, struct cairn_capture_stats *out)
{
    struct cairn_capture *mutable = (struct cairn_capture *)(uintptr_t)capture; /* for the lock */

    pthread_mutex_lock(&mutable->lock);
    *out = capture->stats;
    pthread_mutex_unlock(&mutable->lock);
}
