/*
 * tools/convert/engine/execute.c - see execute.h.
 *
 * The tiles are handed out in order under one lock, together with the moves that touch them: a
 * sweep over the sorted moves keeps those that reach into the tile at hand ("active").
 */
#include "tools/convert/engine/execute.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "tools/convert/engine/gather.h"
#include "base/array.h"

enum { PROGRESS_NS = 100000000 };

/* Where the sweep stands. */
struct sweep {
    size_t stretch;
    uint64_t at;    /* in the stretch */
    size_t next;    /* first move that was not yet active */
    size_t *active; /* indices of moves */
    size_t active_count;
};

struct run {
    const struct cairn_execution *execution;
    size_t active_max;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ended; /* a worker ended */
    struct sweep sweep;
    uint64_t done_bytes;
    uint32_t working;
    cairn_err err;
    struct cairn_complaint complaint;
};

struct worker {
    struct run *run;
    struct cairn_gather *gather;
    uint8_t *bytes;
    uint8_t *spare;
    size_t *active;           /* [active_max], copied under the lock */
    struct cairn_move *clips; /* [CAIRN_CLIPS_PER_MOVE_MAX * active_max] */
};

cairn_err
cairn_execute_open(void *context, uint32_t container, int *fd, struct cairn_complaint *complaint)
{
    const struct cairn_checkpoint *checkpoint = context;
    const struct cairn_container *expected = &checkpoint->containers[container];
    struct cairn_file_mark found;
    cairn_err err;

    err = cairn_place_open_file(&checkpoint->place, expected->path, fd, complaint);
    if (err == CAIRN_NOT_FOUND)
        return cairn_complain(complaint, err, "%s/%s: disappeared after its metadata was read",
                              checkpoint->place.path, expected->path);
    if (err)
        return err;
    err = cairn_file_mark_take(*fd, &found);
    if (!err && cairn_file_mark_equal(&found, &expected->mark))
        return CAIRN_OK;
    (void)cairn_file_close(*fd); /* only looked at */
    *fd = -1;
    return err == CAIRN_IO
               ? cairn_complain(complaint, err, "%s/%s: cannot be examined", checkpoint->place.path,
                                expected->path)
               : cairn_checkpoint_complain_changed(checkpoint, expected->path, complaint);
}

cairn_err
cairn_execute_read(const struct cairn_checkpoint *checkpoint, struct cairn_handles *handles,
                   uint32_t container, uint64_t at, uint8_t *buffer, size_t bytes,
                   struct cairn_complaint *complaint)
{
    const struct cairn_container *source = &checkpoint->containers[container];
    size_t got = 0;
    cairn_err err;
    int fd = -1;

    if (!source->path) {
        memcpy(buffer, source->literal + at, bytes);
        return CAIRN_OK;
    }
    err = cairn_handles_acquire(handles, container, &fd, complaint);
    if (err)
        return err;
    err = cairn_file_read_at(fd, at, buffer, bytes, &got);
    cairn_handles_release(handles, container);
    if (!err && got < bytes)
        err = CAIRN_CORRUPT;
    return cairn_complain_failed(complaint, err, "%s: cannot be read at byte %" PRIu64 "",
                                 cairn_checkpoint_container_name(checkpoint, container), at);
}

cairn_err
cairn_execute_check_unchanged(const struct cairn_checkpoint *checkpoint)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t c = 0; !err && c < checkpoint->container_count; c++) {
        int fd = -1;

        if (!checkpoint->containers[c].path)
            continue;
        err = cairn_execute_open((void *)(uintptr_t)checkpoint, c, &fd, checkpoint->complaint);
        (void)cairn_file_close(fd); /* only looked at; -1 is allowed */
    }
    return err;
}

static int
compare_targets(const void *left, const void *right)
{
    const struct cairn_move *a = left, *b = right;
    int order = CAIRN_COMPARE(a->target_container, b->target_container);

    order = order ? order : CAIRN_COMPARE(a->target_offset, b->target_offset);
    return order ? order : CAIRN_COMPARE(a->tensor, b->tensor);
}

void
cairn_execute_sort(struct cairn_moves *moves)
{
    if (moves->count > 1)
        qsort(moves->moves, moves->count, sizeof(*moves->moves), compare_targets);
}

/* ---- the sweep ---- */

/* Steps to the next tile; false at the end. */
static bool
sweep_next(const struct cairn_execution *execution, struct sweep *sweep, struct cairn_tile *tile)
{
    const struct cairn_stretch *stretch;
    const struct cairn_move *moves = execution->moves;
    size_t kept = 0;

    while (sweep->stretch < execution->stretch_count &&
           sweep->at >= execution->stretches[sweep->stretch].end) {
        sweep->stretch++;
        if (sweep->stretch < execution->stretch_count)
            sweep->at = execution->stretches[sweep->stretch].begin;
    }
    if (sweep->stretch == execution->stretch_count)
        return false;
    stretch = &execution->stretches[sweep->stretch];
    tile->container = stretch->container;
    tile->begin = sweep->at;
    tile->end = (sweep->at / execution->tile_bytes + 1) * execution->tile_bytes;
    if (tile->end > stretch->end)
        tile->end = stretch->end;
    sweep->at = tile->end;
    for (size_t i = 0; i < sweep->active_count; i++) {
        const struct cairn_move *move = &moves[sweep->active[i]];

        if (move->target_container == tile->container && cairn_move_target_end(move) > tile->begin)
            sweep->active[kept++] = sweep->active[i];
    }
    while (sweep->next < execution->move_count &&
           (moves[sweep->next].target_container < tile->container ||
            (moves[sweep->next].target_container == tile->container &&
             moves[sweep->next].target_offset < tile->end))) {
        const struct cairn_move *move = &moves[sweep->next];

        if (move->target_container == tile->container && cairn_move_target_end(move) > tile->begin)
            sweep->active[kept++] = sweep->next;
        sweep->next++;
    }
    sweep->active_count = kept;
    return true;
}

static void
sweep_start(const struct cairn_execution *execution, struct sweep *sweep)
{
    sweep->stretch = 0;
    sweep->at = execution->stretch_count > 0 ? execution->stretches[0].begin : 0;
    sweep->next = 0;
    sweep->active_count = 0;
}

/* The most moves that touch one tile: of those that begin in one tile, and of earlier moves that
 * reach into it. Found without a list, by counting begins and ends per tile. */
static size_t
count_active(const struct cairn_execution *execution)
{
    size_t most = 0, first = 0;

    /* Moves of one container are sorted by where they begin. Those whose end lies behind the tile
     * in which the last one begins are few; an upper bound is enough, so all moves of a window that
     * spans the longest reach are counted. */
    for (size_t i = 0; i < execution->move_count; i++) {
        const struct cairn_move *move = &execution->moves[i];
        uint64_t tile_begin = move->target_offset / execution->tile_bytes * execution->tile_bytes;

        while (first < i && (execution->moves[first].target_container != move->target_container ||
                             cairn_move_target_end(&execution->moves[first]) <= tile_begin))
            first++;
        if (i - first + 1 > most)
            most = i - first + 1;
    }
    return most;
}

/* ---- one tile ---- */

static int
compare_clips(const void *left, const void *right)
{
    const struct cairn_move *a = left, *b = right;

    return CAIRN_COMPARE(a->tensor, b->tensor) ?: CAIRN_COMPARE(a->target_offset, b->target_offset);
}

static cairn_err
run_tile(struct worker *worker, struct cairn_tile *tile, size_t active_count,
         struct cairn_complaint *complaint)
{
    const struct cairn_execution *execution = worker->run->execution;
    uint64_t covered = 0, bytes = tile->end - tile->begin;
    bool have = false;
    cairn_err err = CAIRN_OK;
    size_t count = 0;

    for (size_t i = 0; i < active_count; i++)
        cairn_clip_move(&execution->moves[worker->active[i]], tile->begin, tile->end, worker->clips,
                        &count);
    for (size_t i = 0; i < count; i++)
        covered += worker->clips[i].run_bytes * worker->clips[i].run_count;
    tile->bytes = worker->bytes;
    tile->spare = worker->spare;
    if (execution->have)
        err = execution->have(execution->context, tile, &have, complaint);
    tile->had = have;
    if (!err && !have) {
        if (covered < bytes)
            memset(tile->bytes, 0, (size_t)bytes);
        err = cairn_gather_run(worker->gather, worker->clips, count, tile->bytes, complaint);
    }
    if (err)
        return err;
    if (count > 1)
        qsort(worker->clips, count, sizeof(*worker->clips), compare_clips);
    cairn_source_sums_add(execution->sums, worker->clips, count, tile->bytes);
    tile->clips = worker->clips;
    tile->clip_count = count;
    return execution->take(execution->context, tile, complaint);
}

/* ---- threads ---- */

static void *
work(void *argument)
{
    struct worker *worker = argument;
    struct run *run = worker->run;
    struct cairn_complaint complaint = {""};
    struct cairn_tile tile = {0};

    (void)pthread_mutex_lock(&run->lock);
    while (!run->err && sweep_next(run->execution, &run->sweep, &tile)) {
        size_t active_count = run->sweep.active_count;
        cairn_err err;

        memcpy(worker->active, run->sweep.active, active_count * sizeof(*worker->active));
        (void)pthread_mutex_unlock(&run->lock);
        err = run_tile(worker, &tile, active_count, &complaint);
        (void)pthread_mutex_lock(&run->lock);
        run->done_bytes += tile.end - tile.begin;
        if (err && !run->err) {
            run->err = err;
            run->complaint = complaint;
        }
    }
    run->working--;
    (void)pthread_cond_signal(&run->ended);
    (void)pthread_mutex_unlock(&run->lock);
    return NULL;
}

uint64_t
cairn_execute_thread_bytes(const struct cairn_execution *execution)
{
    uint64_t active = count_active(execution) + 1;

    return sizeof(struct worker) + execution->tile_bytes + execution->spare_bytes +
           cairn_gather_bytes() + active * sizeof(size_t) +
           active * CAIRN_CLIPS_PER_MOVE_MAX * sizeof(struct cairn_move) +
           64 * 1024; /* its stack, as far as it is used */
}

static void
worker_fini(struct worker *worker)
{
    cairn_gather_destroy(worker->gather);
    free(worker->bytes);
    free(worker->spare);
    free(worker->active);
    free(worker->clips);
}

static cairn_err
worker_init(struct worker *worker, struct run *run)
{
    const struct cairn_execution *execution = run->execution;
    cairn_err err;

    worker->run = run;
    err = cairn_gather_create(execution->source, execution->handles, &worker->gather);
    worker->bytes = malloc((size_t)execution->tile_bytes);
    worker->spare = malloc((size_t)execution->spare_bytes + 1);
    worker->active = malloc(run->active_max * sizeof(*worker->active));
    worker->clips = malloc(CAIRN_CLIPS_PER_MOVE_MAX * run->active_max * sizeof(*worker->clips));
    if (!worker->bytes || !worker->spare || !worker->active || !worker->clips)
        err = CAIRN_NOMEM;
    return err;
}

/* Waits for all workers, and shows progress meanwhile. The lock is held. */
static void
wait_for_workers(struct run *run)
{
    const struct cairn_execution *execution = run->execution;

    while (run->working > 0) {
        struct timespec until;

        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PROGRESS_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        (void)pthread_cond_timedwait(&run->ended, &run->lock, &until);
        if (execution->progress) {
            uint64_t done_bytes = run->done_bytes;

            (void)pthread_mutex_unlock(&run->lock);
            execution->progress(execution->context, done_bytes);
            (void)pthread_mutex_lock(&run->lock);
        }
    }
}

/* Starts as many workers as it can; one is enough. Returns how many run. */
static uint32_t
start_workers(struct run *run, struct worker *workers, pthread_t *threads)
{
    uint32_t count = run->execution->thread_count, started = 0;
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the main thread's */
    (void)pthread_mutex_lock(&run->lock);
    for (; started < count; started++) {
        if (pthread_create(&threads[started], NULL, work, &workers[started]) != 0)
            break;
        run->working++;
    }
    (void)pthread_mutex_unlock(&run->lock);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

cairn_err
cairn_execute(const struct cairn_execution *execution, struct cairn_complaint *complaint)
{
    struct run run = {.execution = execution,
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .ended = PTHREAD_COND_INITIALIZER};
    struct worker *workers = calloc(execution->thread_count, sizeof(*workers));
    pthread_t *threads = calloc(execution->thread_count, sizeof(*threads));
    uint32_t started = 0;
    cairn_err err = CAIRN_OK;

    run.active_max = count_active(execution) + 1;
    run.sweep.active = malloc(run.active_max * sizeof(*run.sweep.active));
    if (!workers || !threads || !run.sweep.active)
        err = CAIRN_NOMEM;
    for (uint32_t i = 0; !err && i < execution->thread_count; i++)
        err = worker_init(&workers[i], &run);
    if (!err) {
        sweep_start(execution, &run.sweep);
        started = start_workers(&run, workers, threads);
        if (started == 0)
            err = CAIRN_AGAIN;
    }
    (void)pthread_mutex_lock(&run.lock);
    wait_for_workers(&run);
    (void)pthread_mutex_unlock(&run.lock);
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    if (!err && run.err) {
        err = run.err;
        (void)cairn_complain(complaint, err, "%s", run.complaint.text);
    }
    for (uint32_t i = 0; workers && i < execution->thread_count; i++)
        worker_fini(&workers[i]);
    free(workers);
    free(threads);
    free(run.sweep.active);
    return cairn_complain_failed(complaint, err, "the conversion stopped");
}
