/*
 * tools/convert/engine/execute.c - see execute.h.
 *
 * The tiles are handed out in order under one lock, together with the moves that touch them: a
 * sweep over the sorted moves keeps those that reach into the tile at hand ("active").
 */
#include "tools/convert/engine/execute.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "tools/convert/engine/gather.h"
#include "base/array.h"

enum { PROGRESS_NS = 100000000, REPORT_BYTES = 700 };

/* Moves of a feed that reach into a tile. */
struct active {
    size_t *moves; /* [active_max of the run]: their indices */
    size_t count;
};

/* Where the sweep stands. */
struct sweep {
    size_t stretch;
    uint64_t at; /* in the stretch */
    struct active active[CAIRN_FEEDS];
    size_t next[CAIRN_FEEDS]; /* first move that was not yet active */
};

struct run {
    const struct cairn_execution *execution;
    size_t active_max[CAIRN_FEEDS];
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
    uint8_t *bytes;
    uint8_t *spare;
    struct cairn_gather *gather[CAIRN_FEEDS];
    struct active active[CAIRN_FEEDS];     /* copied under the lock */
    struct cairn_move *clips[CAIRN_FEEDS]; /* [CAIRN_CLIPS_PER_MOVE_MAX * active_max] */
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

cairn_err
cairn_feed_plan(struct cairn_feed *feed, const struct cairn_layout *from,
                const struct cairn_layout *to, struct cairn_complaint *complaint)
{
    char report[REPORT_BYTES] = "";
    cairn_err err = cairn_reshard_plan(from, to, NULL, &feed->moves, report, sizeof(report));

    if (err)
        return cairn_complain(complaint, err, "the plan fails: %s%s%s", report,
                              report[0] ? "; " : "", cairn_err_text(err));
    if (feed->moves.count > 1)
        qsort(feed->moves.moves, feed->moves.count, sizeof(*feed->moves.moves), compare_targets);
    return CAIRN_OK;
}

/* ---- the sweep ---- */

static bool
reaches(const struct cairn_move *move, const struct cairn_tile *tile)
{
    return move->target_container == tile->container && cairn_move_target_end(move) > tile->begin;
}

/* Finds the moves of a feed that reach into a tile, from those that reached into the one before. */
static void
sweep_moves(const struct cairn_moves *all, const struct cairn_tile *tile, size_t *next,
            struct active *active)
{
    const struct cairn_move *moves = all->moves;
    size_t kept = 0;

    for (size_t i = 0; i < active->count; i++)
        if (reaches(&moves[active->moves[i]], tile))
            active->moves[kept++] = active->moves[i];
    for (; *next < all->count && (moves[*next].target_container < tile->container ||
                                  (moves[*next].target_container == tile->container &&
                                   moves[*next].target_offset < tile->end));
         (*next)++)
        if (reaches(&moves[*next], tile))
            active->moves[kept++] = *next;
    active->count = kept;
}

/* Steps to the next tile; false at the end. */
static bool
sweep_next(const struct cairn_execution *execution, struct sweep *sweep, struct cairn_tile *tile)
{
    const struct cairn_stretch *stretch;

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
    for (int f = 0; f < CAIRN_FEEDS; f++)
        if (execution->feeds[f])
            sweep_moves(&execution->feeds[f]->moves, tile, &sweep->next[f], &sweep->active[f]);
    return true;
}

/* The most moves of a feed that touch one tile, and one more. An upper bound: moves of a container
 * are sorted by where they begin, and few end behind the tile in which the last one begins; so all
 * moves of a window that spans the longest reach are counted. */
static size_t
count_active(const struct cairn_feed *feed, uint64_t tile_bytes)
{
    const struct cairn_move *moves = feed->moves.moves;
    size_t most = 0, first = 0;

    for (size_t i = 0; i < feed->moves.count; i++) {
        uint64_t tile_begin = moves[i].target_offset / tile_bytes * tile_bytes;

        while (first < i && (moves[first].target_container != moves[i].target_container ||
                             cairn_move_target_end(&moves[first]) <= tile_begin))
            first++;
        if (i - first + 1 > most)
            most = i - first + 1;
    }
    return most + 1;
}

/* ---- one tile ---- */

static int
compare_clips(const void *left, const void *right)
{
    const struct cairn_move *a = left, *b = right;

    return CAIRN_COMPARE(a->tensor, b->tensor) ?: CAIRN_COMPARE(a->target_offset, b->target_offset);
}

/* Fills `bytes` with what feed `f` has of a tile, unless they are there already; *count of the
 * worker's clips say what. */
static cairn_err
run_feed(struct worker *worker, int f, const struct cairn_tile *tile, bool had, uint8_t *bytes,
         size_t *count, struct cairn_complaint *complaint)
{
    const struct cairn_feed *feed = worker->run->execution->feeds[f];
    struct cairn_move *clips = worker->clips[f];
    uint64_t covered = 0;
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < worker->active[f].count; i++)
        cairn_clip_move(&feed->moves.moves[worker->active[f].moves[i]], tile->begin, tile->end,
                        clips, count);
    for (size_t i = 0; i < *count; i++)
        covered += clips[i].run_bytes * clips[i].run_count;
    if (!had && covered < tile->end - tile->begin)
        memset(bytes, 0, (size_t)(tile->end - tile->begin));
    if (!had)
        err = cairn_gather_run(worker->gather[f], clips, *count, bytes, complaint);
    if (err)
        return err;
    if (*count > 1)
        qsort(clips, *count, sizeof(*clips), compare_clips);
    cairn_source_sums_add(feed->sums, clips, *count, bytes);
    return CAIRN_OK;
}

static cairn_err
run_tile(struct worker *worker, struct cairn_tile *tile, struct cairn_complaint *complaint)
{
    const struct cairn_execution *execution = worker->run->execution;
    size_t other_count = 0;
    cairn_err err = CAIRN_OK;

    tile->bytes = worker->bytes;
    tile->spare = worker->spare;
    tile->had = false;
    tile->clips = worker->clips[0];
    tile->clip_count = 0;
    if (execution->have)
        err = execution->have(execution->context, tile, &tile->had, complaint);
    if (!err)
        err = run_feed(worker, 0, tile, tile->had, tile->bytes, &tile->clip_count, complaint);
    if (!err && execution->feeds[1])
        err = run_feed(worker, 1, tile, false, tile->spare, &other_count, complaint);
    return err ? err : execution->take(execution->context, tile, complaint);
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
        cairn_err err;

        for (int f = 0; f < CAIRN_FEEDS; f++) {
            worker->active[f].count = run->sweep.active[f].count;
            if (worker->active[f].count > 0)
                memcpy(worker->active[f].moves, run->sweep.active[f].moves,
                       worker->active[f].count * sizeof(*worker->active[f].moves));
        }
        (void)pthread_mutex_unlock(&run->lock);
        err = run_tile(worker, &tile, &complaint);
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
    uint64_t bytes = sizeof(struct worker) + execution->tile_bytes + execution->spare_bytes +
                     64 * 1024; /* its stack, as far as it is used */

    for (int f = 0; f < CAIRN_FEEDS && execution->feeds[f]; f++)
        bytes += cairn_gather_bytes() +
                 count_active(execution->feeds[f], execution->tile_bytes) *
                     (sizeof(size_t) + CAIRN_CLIPS_PER_MOVE_MAX * sizeof(struct cairn_move));
    return bytes;
}

static void
worker_fini(struct worker *worker)
{
    for (int f = 0; f < CAIRN_FEEDS; f++) {
        cairn_gather_destroy(worker->gather[f]);
        free(worker->active[f].moves);
        free(worker->clips[f]);
    }
    free(worker->bytes);
    free(worker->spare);
}

static cairn_err
worker_init(struct worker *worker, struct run *run)
{
    const struct cairn_execution *execution = run->execution;
    cairn_err err = CAIRN_OK;

    worker->run = run;
    worker->bytes = malloc((size_t)execution->tile_bytes);
    worker->spare = malloc((size_t)execution->spare_bytes + 1);
    if (!worker->bytes || !worker->spare)
        return CAIRN_NOMEM;
    for (int f = 0; !err && f < CAIRN_FEEDS && execution->feeds[f]; f++) {
        err = cairn_gather_create(execution->feeds[f]->source, execution->feeds[f]->handles,
                                  &worker->gather[f]);
        worker->active[f].moves = malloc(run->active_max[f] * sizeof(size_t));
        worker->clips[f] =
            malloc(CAIRN_CLIPS_PER_MOVE_MAX * run->active_max[f] * sizeof(*worker->clips[f]));
        if (!worker->active[f].moves || !worker->clips[f])
            err = CAIRN_NOMEM;
    }
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

    if (!workers || !threads)
        err = CAIRN_NOMEM;
    for (int f = 0; !err && f < CAIRN_FEEDS && execution->feeds[f]; f++) {
        run.active_max[f] = count_active(execution->feeds[f], execution->tile_bytes);
        run.sweep.active[f].moves = malloc(run.active_max[f] * sizeof(size_t));
        err = run.sweep.active[f].moves ? CAIRN_OK : CAIRN_NOMEM;
    }
    if (execution->stretch_count > 0)
        run.sweep.at = execution->stretches[0].begin;
    for (uint32_t i = 0; !err && i < execution->thread_count; i++)
        err = worker_init(&workers[i], &run);
    if (!err) {
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
    for (int f = 0; f < CAIRN_FEEDS; f++)
        free(run.sweep.active[f].moves);
    return cairn_complain_failed(complaint, err, "the conversion stopped");
}
