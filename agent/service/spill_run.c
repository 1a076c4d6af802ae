/*
 * agent/service/spill_run.c - see spill_run.h.
 *
 * All progress is made in `advance`, which the run's timer calls. Callbacks of fetchers, files and
 * jobs only note what they found and start the timer, so nothing nests, and nothing ends inside its
 * own caller. While `busy`, a job of the disk thread owns everything below `plan` in struct
 * spill_run; an ended run is freed when that job is back.
 */
#include "agent/service/spill_run.h"

#include "agent/process/agent_state.h"
#include "agent/process/step.h"
#include "agent/service/spill_fill.h"
#include "base/file.h"
#include "base/log.h"
#include "base/worker.h"
#include "snapshot/layout.h"
#include "snapshot/spill.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum run_state {
    RUN_GATHER = 0,
    RUN_PLAN,
    RUN_OPEN,
    RUN_FILL,  /* a buffer is wanted */
    RUN_FETCH, /* a pass of the buffer is being fetched */
    RUN_FINISH,
    RUN_WRITTEN,
    RUN_FAILED
};

struct run_job {
    struct cairn_job job;
    struct spill_run *run;
};

struct spill_run {
    struct cairn_agent *agent;
    struct spill_run_options options;
    char dir[CAIRN_CONFIG_PATH_BYTES_MAX + 64];
    enum run_state state;
    struct fetcher *fetcher;
    struct cairn_timer timer;
    struct run_job job;
    bool busy;    /* the job is under way */
    bool waiting; /* for that, a fetch or the file: nothing to do before it answers */
    bool ended;
    bool said;    /* done was called */
    bool counted; /* the plan is made, and stays */
    uint64_t progress_ns;
    uint64_t written_bytes;
    uint64_t total_bytes;
    int watched_fd; /* event of the file, -1 none */

    /* what a job may make or change */
    struct cairn_universal plan;
    bool planned; /* by the job; `counted` says it to the loop */
    struct cairn_moves moves;
    int dir_fd;
    uint32_t file;
    struct cairn_spill *spill;
    struct fill *fill;
    cairn_err err;
    char text[SPILL_TEXT_BYTES];
};

static void advance(void *context);

static void
poke(struct spill_run *run)
{
    run->waiting = false;
    run->progress_ns = agent_now_ns(run->agent);
    cairn_timer_start(run->agent->loop, &run->timer, 0);
}

static void __attribute__((format(printf, 3, 4)))
set_error(struct spill_run *run, cairn_err err, const char *format, ...)
{
    va_list list;

    run->err = err;
    va_start(list, format);
    vsnprintf(run->text, sizeof run->text, format, list);
    va_end(list);
}

const char *
spill_errno_text(int code, char text[SPILL_ERRNO_BYTES])
{
    text[0] = '\0';
    if (code)
        snprintf(text, SPILL_ERRNO_BYTES, " (errno %d: %s)", code, strerror(code));
    return text;
}

/* ---- jobs of the disk thread ---- */

static uint32_t
read_cost(void *context, uint32_t source_container, uint32_t target_container)
{
    const struct cairn_universal *plan = context;

    return plan->files[target_container].writer == source_container ? 1 : 2;
}

static bool
is_own(const struct spill_run *run, uint32_t file)
{
    if (run->options.again)
        return file == run->options.own_file;
    return run->options.own_writer == SPILL_ALL_FILES ||
           run->plan.files[file].writer == run->options.own_writer;
}

static cairn_err
build_source(struct spill_run *run, struct cairn_layout *source)
{
    for (uint32_t c = 0; c < fetcher_container_count(run->fetcher); c++) {
        const char *why = "out of memory";
        cairn_err err =
            cairn_manifest_add_to_layout(fetcher_manifest(run->fetcher, c), source, &why);

        if (err) {
            set_error(run, err, "the manifest of part %u does not fit the others: %s", c, why);
            return err;
        }
    }
    return CAIRN_OK;
}

/* The own files as a layout, a tensor a piece: moves to other writers' files need not be planned
 * here. */
static cairn_err
build_target(const struct spill_run *run, const struct cairn_layout *all, struct cairn_layout *own)
{
    cairn_err err = CAIRN_OK;

    for (size_t p = 0; !err && p < cairn_layout_piece_count(all); p++) {
        const struct cairn_piece *piece = cairn_layout_piece(all, p);
        const struct cairn_tensor *tensor = cairn_layout_tensor(all, piece->tensor);
        struct cairn_slice whole = {.name = tensor->name,
                                    .dtype = tensor->dtype,
                                    .kind = tensor->kind,
                                    .dims = tensor->dims};

        memcpy(whole.shape, tensor->shape, sizeof whole.shape);
        memcpy(whole.extent, tensor->shape, sizeof whole.extent);
        if (is_own(run, piece->container))
            err = cairn_layout_add(own, piece->container, &whole, 0, 0, piece->offset_bytes, NULL);
    }
    return err;
}

static void
plan_run(struct cairn_job *job)
{
    struct spill_run *run = ((struct run_job *)job)->run;
    const struct spill_run_options *options = &run->options;
    struct cairn_reshard_options reshard = {.cost = read_cost, .cost_context = &run->plan};
    struct cairn_layout *source = NULL, *all = NULL, *own = NULL;
    uint32_t *writers = calloc(options->writer_count, sizeof *writers);
    char report[SPILL_TEXT_BYTES / 2] = "", why[SPILL_ERRNO_BYTES];
    bool not_there = false;
    cairn_err err = writers ? cairn_layout_create(&source) : CAIRN_NOMEM;

    (void)cairn_file_errno_take();
    for (uint32_t w = 0; writers && w < options->writer_count; w++)
        writers[w] = w;
    if (!err)
        err = build_source(run, source);
    if (!err)
        err = cairn_universal_plan(source, writers, options->writer_count, run->agent->config.job,
                                   run->agent->job_id, options->generation, &run->plan);
    if (!err) {
        run->planned = true;
        err = cairn_universal_layout(&run->plan, &all);
    }
    if (!err)
        err = cairn_layout_create(&own);
    if (!err)
        err = build_target(run, all, own);
    if (!err)
        err = cairn_reshard_plan(source, own, &reshard, &run->moves, report, sizeof report);
    if (!err) {
        err = cairn_file_open(AT_FDCWD, run->dir, CAIRN_FILE_DIRECTORY, &run->dir_fd);
        not_there = err == CAIRN_NOT_FOUND;
    }
    if (not_there)
        set_error(
            run, CAIRN_CONFIG,
            "%s is not there on node %u: spill_dir must be one directory that all nodes share; "
            "mount the same file system on each of them",
            run->dir, run->agent->config.node);
    else if (err && !run->err)
        set_error(run, err, "the files cannot be planned or %s opened: %s%s%s%s", run->dir,
                  cairn_err_text(err), spill_errno_text(cairn_file_errno_take(), why),
                  report[0] ? ": " : "", report);
    cairn_layout_destroy(source);
    cairn_layout_destroy(all);
    cairn_layout_destroy(own);
    free(writers);
}

/* CAIRN_STALE: the file to write again has changed. */
static cairn_err
compare_file(const struct spill_run *run, const uint8_t *header, size_t header_bytes)
{
    const struct cairn_universal *again = run->options.again;
    uint8_t *expected = NULL;
    size_t expected_bytes = 0;
    cairn_err err;

    if (run->file >= again->file_count ||
        strcmp(run->plan.files[run->file].name, again->files[run->file].name) != 0 ||
        run->plan.files[run->file].data_bytes != again->files[run->file].data_bytes)
        return CAIRN_STALE;
    err = cairn_universal_header_pack(again, run->file, &expected, &expected_bytes);
    if (!err && (expected_bytes != header_bytes || memcmp(expected, header, header_bytes) != 0))
        err = CAIRN_STALE;
    free(expected);
    return err;
}

static void
open_run(struct cairn_job *job)
{
    struct spill_run *run = ((struct run_job *)job)->run;
    const struct cairn_universal_file *file = &run->plan.files[run->file];
    uint8_t *header = NULL;
    size_t header_bytes = 0;
    char why[SPILL_ERRNO_BYTES];
    cairn_err err = cairn_universal_header_pack(&run->plan, run->file, &header, &header_bytes);

    (void)cairn_file_errno_take();
    if (!err && run->options.again)
        err = compare_file(run, header, header_bytes);
    if (!err)
        err = fill_create(&run->moves, run->file, &run->fill);
    if (!err)
        err = cairn_spill_open(run->dir_fd, file->name, header, header_bytes, file->data_bytes,
                               &run->spill);
    free(header);
    spill_errno_text(cairn_file_errno_take(), why);
    if (err == CAIRN_FULL)
        set_error(run, err,
                  "no space is left for %s/%s of %" PRIu64
                  " bytes%s; free some, or lower spill_keep",
                  run->dir, file->name, header_bytes + file->data_bytes, why);
    else if (err)
        set_error(run, err, "%s/%s cannot be made: %s%s", run->dir, file->name, cairn_err_text(err),
                  why);
}

static void
run_free(struct spill_run *run)
{
    cairn_spill_close(run->spill);
    fill_destroy(run->fill);
    cairn_moves_fini(&run->moves);
    cairn_universal_fini(&run->plan);
    (void)cairn_file_close(run->dir_fd);
    fetcher_end(run->fetcher);
    free(run);
}

static void
job_done(struct cairn_job *job)
{
    struct spill_run *run = ((struct run_job *)job)->run;

    run->busy = false;
    if (run->ended)
        run_free(run);
    else
        poke(run);
}

static void
submit(struct spill_run *run, void (*work)(struct cairn_job *job))
{
    run->job.job = (struct cairn_job){.run = work, .done = job_done};
    run->job.run = run;
    run->busy = run->waiting = true;
    if (cairn_workers_submit(run->options.disk, &run->job.job) == CAIRN_OK)
        return;
    run->busy = run->waiting = false;
    set_error(run, CAIRN_AGAIN, "earlier work on the disk of %s still waits; look at that disk",
              run->dir);
}

/* ---- callbacks ---- */

static void
on_ready(void *context, cairn_err err, const char *text)
{
    struct spill_run *run = context;

    if (err)
        set_error(run, err, "%s", text);
    else
        run->state = RUN_PLAN;
    poke(run);
}

static void
on_fetched(void *context, uint64_t tag, cairn_err err)
{
    struct spill_run *run = context;

    (void)tag;
    if (err)
        set_error(run, err, "blocks of the generation cannot be read: %s", cairn_err_text(err));
    poke(run);
}

static void
on_file(void *context, int fd, uint32_t ready)
{
    struct spill_run *run = context;

    (void)ready;
    if (cairn_loop_fd_set(run->agent->loop, fd, 0) == CAIRN_OK)
        poke(run);
}

/* ---- one file ---- */

static void
unwatch(struct spill_run *run)
{
    cairn_loop_fd_remove(run->agent->loop, run->watched_fd);
    run->watched_fd = -1;
}

/* Has the file's thread wake the run. */
static void
wait_for_file(struct spill_run *run)
{
    cairn_err err = cairn_loop_fd_set(run->agent->loop, run->watched_fd, CAIRN_LOOP_READ);

    if (err)
        set_error(run, err, "the writer of a file cannot be waited for: %s", cairn_err_text(err));
    else
        run->waiting = true;
}

static void
file_failed(struct spill_run *run, cairn_err err)
{
    char why[SPILL_ERRNO_BYTES];

    set_error(run, err, "%s/%s cannot be written: %s%s", run->dir, run->plan.files[run->file].name,
              cairn_err_text(err),
              spill_errno_text(run->spill ? cairn_spill_os_error(run->spill) : 0, why));
}

/* Continues the passes of a buffer until one must wait. */
static void
fill_passes(struct spill_run *run)
{
    struct fetcher_run runs[FILL_WINDOW_BLOCKS];
    cairn_err err;
    uint32_t count;

    if (fill_next(run->fill, runs, &count)) {
        run->state = RUN_FETCH;
        if (count == 0) {
            poke(run);
            return;
        }
        run->waiting = true;
        err = fetcher_read(run->fetcher, runs, count, 0, on_fetched, run);
        if (err)
            set_error(run, err, "blocks of the generation cannot be asked for: %s",
                      cairn_err_text(err));
        return;
    }
    if (!fill_check(run->fill)) {
        set_error(run, CAIRN_INTERNAL, "the plan of %s leaves bytes out",
                  run->plan.files[run->file].name);
        return;
    }
    err = cairn_spill_commit(run->spill);
    if (err) {
        file_failed(run, err);
        return;
    }
    run->state = RUN_FILL;
    poke(run); /* through the loop: others have their turn between two buffers */
}

static void
fill_buffer(struct spill_run *run)
{
    uint8_t *buffer;
    uint64_t offset;
    size_t bytes;
    cairn_err err = cairn_spill_acquire(run->spill, &buffer, &offset, &bytes);

    if (err == CAIRN_AGAIN) {
        wait_for_file(run);
    } else if (err == CAIRN_NOT_FOUND) {
        run->state = RUN_FINISH;
        poke(run);
    } else if (err) {
        file_failed(run, err);
    } else {
        run->written_bytes += bytes;
        fill_begin(run->fill, buffer, offset, bytes);
        fill_passes(run);
    }
}

static void
finish_file(struct spill_run *run)
{
    uint64_t *block_crcs = NULL, block_count = 0;
    cairn_err err = cairn_spill_finish(run->spill, &block_crcs, &block_count);

    if (err == CAIRN_AGAIN) {
        wait_for_file(run);
        return;
    }
    if (!err) {
        err = cairn_universal_crcs_set(&run->plan, run->file, block_crcs, block_count);
        if (err)
            free(block_crcs);
    }
    if (err) {
        file_failed(run, err);
        return;
    }
    unwatch(run);
    cairn_spill_close(run->spill);
    run->spill = NULL;
    fill_destroy(run->fill);
    run->fill = NULL;
    run->file++;
    run->state = RUN_OPEN;
    poke(run);
}

/* ---- the run ---- */

static void
count_own(struct spill_run *run)
{
    run->counted = true;
    for (uint32_t f = 0; f < run->plan.file_count; f++)
        if (is_own(run, f))
            run->total_bytes += run->plan.files[f].data_bytes;
}

/* Opens the next own file, or begins to fill the one that was opened. */
static void
open_file(struct spill_run *run)
{
    cairn_err err;

    if (run->spill) {
        err =
            cairn_loop_fd_add(run->agent->loop, cairn_spill_event_fd(run->spill), 0, on_file, run);
        if (err) {
            file_failed(run, err);
            return;
        }
        run->watched_fd = cairn_spill_event_fd(run->spill);
        run->state = RUN_FILL;
        poke(run);
        return;
    }
    while (run->file < run->plan.file_count && !is_own(run, run->file))
        run->file++;
    if (run->file < run->plan.file_count) {
        submit(run, open_run);
        return;
    }
    run->state = RUN_WRITTEN;
}

static void
take_step(struct spill_run *run)
{
    switch (run->state) {
    case RUN_PLAN:
        if (!run->planned) {
            submit(run, plan_run);
            break;
        }
        count_own(run);
        run->state = RUN_OPEN;
        poke(run);
        break;
    case RUN_OPEN:
        open_file(run);
        break;
    case RUN_FILL:
        fill_buffer(run);
        break;
    case RUN_FETCH:
        fill_copy(run->fill);
        fill_passes(run);
        break;
    case RUN_FINISH:
        finish_file(run);
        break;
    case RUN_GATHER:
    case RUN_WRITTEN:
    case RUN_FAILED:
        break;
    }
}

static void
advance(void *context)
{
    struct spill_run *run = context;

    if (run->busy || run->said)
        return;
    if (!run->err && !run->waiting)
        take_step(run);
    if (run->err && !run->busy) {
        run->state = RUN_FAILED;
        unwatch(run);
    }
    if (run->state != RUN_WRITTEN && run->state != RUN_FAILED)
        return;
    run->said = true;
    run->options.done(run->options.context, run->err, run->text); /* may end the run */
}

cairn_err
spill_run_start(struct cairn_agent *agent, const struct spill_run_options *options,
                struct spill_run **out)
{
    struct spill_run *run = calloc(1, sizeof *run);
    cairn_err err;

    if (!run)
        return CAIRN_NOMEM;
    run->agent = agent;
    run->options = *options;
    run->dir_fd = run->watched_fd = -1;
    run->progress_ns = agent_now_ns(agent);
    snprintf(run->dir, sizeof run->dir, "%s", options->dir);
    run->options.dir = run->dir;
    cairn_timer_init(&run->timer, advance, run);
    err = fetcher_start(agent, options->generation, options->from_files, on_ready, run,
                        &run->fetcher);
    if (err) {
        cairn_timer_stop(agent->loop, &run->timer);
        run_free(run);
        return err;
    }
    *out = run;
    return CAIRN_OK;
}

void
spill_run_end(struct spill_run *run)
{
    if (!run || run->ended)
        return;
    run->ended = true;
    cairn_timer_stop(run->agent->loop, &run->timer);
    unwatch(run);
    if (!run->busy)
        run_free(run);
}

void
spill_run_tick(struct spill_run *run, uint64_t patience_ns)
{
    if (run->said || agent_now_ns(run->agent) - run->progress_ns < patience_ns)
        return;
    run->said = true;
    run->state = RUN_FAILED;
    unwatch(run);
    cairn_timer_stop(run->agent->loop, &run->timer);
    run->options.done(run->options.context, CAIRN_TIMEOUT,
                      "no byte could be written or read for a while: a node or the disk does not "
                      "answer; look at the spill directory's disk and at `cairn status`");
}

struct cairn_universal *
spill_run_plan(struct spill_run *run)
{
    return run->counted ? &run->plan : NULL;
}

void
spill_run_progress(const struct spill_run *run, uint64_t *written_bytes, uint64_t *total_bytes)
{
    *written_bytes = run->written_bytes;
    *total_bytes = run->total_bytes;
}
