/*
 * examples/gpt/run.c - a run: start, restore, the steps, the end.
 *
 * One step: forward and backward (while the last snapshot is still being captured), then for each
 * tensor a fence and its update, then the progress, then the next snapshot begins.
 */
#include "run.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "data.h"
#include "final.h"
#include "net.h"
#include "options.h"
#include "parallel.h"
#include "protect.h"
#include "report.h"
#include "say.h"
#include "state.h"

enum { FILL_TIMEOUT_MS = 5000 /* of a rank, for layers to come; then it votes against them */ };

struct run {
    struct gpt_options options;
    struct gpt_data data;
    struct gpt_state state;
    struct gpt_net *net;
    struct gpt_device device;
    struct gpt_parallel parallel;
    struct gpt_progress progress;
    struct gpt_protect *protect;
    struct gpt_report report;
};

static uint64_t
now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* The exit status for an error, as examples/gpt/README.md lists them. */
static int
status_of(cairn_err err)
{
    switch (err) {
    case CAIRN_OK:
        return 0;
    case CAIRN_INVAL:
        return 64;
    case CAIRN_CORRUPT:
        return 65;
    case CAIRN_IO:
        return 74;
    case CAIRN_PEER:
    case CAIRN_TIMEOUT:
    case CAIRN_AGAIN:
        return 75;
    case CAIRN_DENIED:
        return 77;
    case CAIRN_CONFIG:
        return 78;
    default:
        return 1;
    }
}

static cairn_err
start_model(struct run *run)
{
    const struct gpt_options *options = &run->options;
    cairn_err err;

    err = gpt_state_init(&options->shape, &options->plan, &run->state);
    if (err)
        return err;
    gpt_stage_randomize(&run->state.stage, options->seed);
    return gpt_progress_init(options->steps, options->seed,
                             gpt_options_fingerprint(options, run->data.fingerprint, false),
                             &run->progress);
}

/*
 * Waits of a fence stay below those of the peers, so that a hung agent does not look like a dead
 * rank.
 */
static cairn_err
start_protection(struct run *run)
{
    const struct gpt_options *options = &run->options;
    uint32_t fence_timeout_ms = options->peer_timeout_s * 500;
    const struct gpt_protect_options protect_options = {
        .agent_socket = options->agent_socket,
        .job = options->job,
        .local_ranks = options->local_ranks,
        .fence_timeout_ms = fence_timeout_ms < 30000 ? fence_timeout_ms : 30000,
        .restore_timeout_ms = options->restore_timeout_s * 1000,
    };

    return gpt_protect_open(&protect_options, &options->plan, &run->state, &run->progress,
                            &run->protect);
}

static cairn_err
start(struct run *run)
{
    const struct gpt_options *options = &run->options;
    struct gpt_net_options net_options;
    cairn_err err;

    err = gpt_report_open(options->events, options->plan.rank, &run->report);
    if (err)
        return err;
    err = gpt_data_init(options->text, options->shape.context, &run->data);
    if (err)
        return err;
    gpt_report_started(&run->report, options, run->data.path);
    err = gpt_device_init(&options->device, &options->plan, &run->device);
    if (err)
        return err;
    /* a timed rank may be offered more micro-batches, so it reserves room before it votes */
    if (run->device.timing)
        run->options.plan.micro_room = options->plan.micro_total - options->plan.dp + 1;
    err = start_model(run);
    if (err)
        return err;
    net_options = (struct gpt_net_options){
        .peers = options->peers,
        .timeout_ms = options->peer_timeout_s * 1000,
        .job = gpt_options_fingerprint(options, run->data.fingerprint, true),
    };
    err = gpt_net_open(&net_options, &options->plan, &run->net);
    if (err)
        return err;
    err = gpt_parallel_init(&options->plan, &run->data, &run->state.stage, run->net, &run->device,
                            options->seed, &run->parallel);
    if (err)
        return err;
    return start_protection(run);
}

static cairn_err
restore(struct run *run)
{
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    uint64_t begin_ns = now_ns();
    double seconds;
    cairn_err err;

    err = gpt_protect_restore(run->protect, &restored);
    if (err == CAIRN_NOT_FOUND) {
        gpt_say("there is no generation to restore: this is a fresh start");
        gpt_report_fresh(&run->report);
        return CAIRN_OK;
    }
    if (err == CAIRN_INVAL)
        return CAIRN_CORRUPT; /* our arguments are right: the generation is of another model */
    if (err)
        return err;
    seconds = (double)(now_ns() - begin_ns) * 1e-9;
    gpt_say("restored step %llu: %llu bytes, %llu of them from this node, in %.3f s",
            (unsigned long long)restored.generation.step, (unsigned long long)restored.bytes,
            (unsigned long long)restored.local_bytes, seconds);
    gpt_report_restored(&run->report, &restored, seconds);
    return gpt_progress_check(&run->progress, restored.generation.step, run->options.seed,
                              gpt_options_fingerprint(&run->options, run->data.fingerprint, false));
}

/*
 * The other ranks may restore much longer than a step takes; their death is noticed all the same.
 */
static cairn_err
agree(struct run *run)
{
    cairn_err err;

    gpt_net_set_timeout(run->net,
                        (run->options.restore_timeout_s + run->options.peer_timeout_s) * 1000);
    err = gpt_parallel_agree(&run->parallel, gpt_progress_step(&run->progress));
    gpt_net_set_timeout(run->net, 0);
    return err;
}

static void
update(struct run *run, uint64_t step, const struct gpt_total *total)
{
    const struct gpt_adamw *adamw = &run->options.adamw;
    struct gpt_adamw_step now = gpt_adamw_prepare(adamw, step);
    float scale = total->mean_factor;

    if (total->norm > (double)run->options.clip)
        scale *= (float)((double)run->options.clip / total->norm);
    for (uint32_t i = 0; i < run->state.stage.tensor_count; i++) {
        const struct gpt_tensor *tensor = &run->state.stage.tensors[i];

        gpt_protect_fence_tensor(run->protect, i);
        gpt_adamw_update(adamw, &now, run->state.stage.param + tensor->begin,
                         run->state.exp_avg + tensor->begin, run->state.exp_avg_sq + tensor->begin,
                         run->parallel.total + tensor->begin, scale, tensor->matrix, tensor->count);
    }
    gpt_protect_fence_all(run->protect); /* what is left: the progress */
    gpt_progress_note(&run->progress, step, total->loss);
}

/* --emulate-death */
static void
pass_point(const struct run *run, const char *point)
{
    if (run->options.emulate_death && strcmp(run->options.emulate_death, point) == 0)
        (void)raise(SIGKILL);
}

/* Trains by another state from now on; frees the one before. */
static void
adopt(struct run *run, const struct gpt_plan *next, struct gpt_state *state,
      struct gpt_parallel *parallel)
{
    gpt_parallel_fini(&run->parallel);
    gpt_state_fini(&run->state);
    run->options.plan = *next;
    run->state = *state;
    run->parallel = *parallel;
    run->parallel.plan = &run->options.plan;
    run->parallel.stage = &run->state.stage;
    *state = (struct gpt_state){0};
    *parallel = (struct gpt_parallel){0};
}

/*
 * Moves layers before the next step, as cairn/client.h says: the state of `step` is committed, and
 * the state of the next plan is filled from it beside the present one. All ranks vote whether they
 * have done so, and only then the present one goes.
 */
static cairn_err
move(struct run *run, uint64_t step, struct gpt_plan *next)
{
    struct gpt_move_report report = {.step = step};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    struct gpt_state state = {0};
    struct gpt_parallel parallel = {0};
    uint64_t begin_ns = now_ns(), vote;
    bool is_begun;
    cairn_err err;

    pass_point(run, "enter");
    is_begun = gpt_protect_commit(run->protect, step);
    err = gpt_state_init(&run->options.shape, next, &state);
    if (!err)
        err = gpt_parallel_init(next, &run->data, &state.stage, run->net, &run->device,
                                run->options.seed, &parallel);
    if (!err && is_begun)
        err = gpt_protect_fill(run->protect, step, next, &state, &run->progress, FILL_TIMEOUT_MS,
                               &restored);
    if (err || !is_begun)
        gpt_say("step %llu: the layers that should move here did not come: %s",
                (unsigned long long)step, err ? cairn_err_text(err) : "no snapshot could be begun");
    report.fill_ns = now_ns() - begin_ns;
    report.floor_bytes = gpt_state_new_bytes(&state, &run->state);
    pass_point(run, "fill");
    vote = gpt_protect_vote(run->protect, &run->options.plan);
    gpt_net_set_timeout(run->net, FILL_TIMEOUT_MS + run->options.peer_timeout_s * 1000);
    err = gpt_parallel_vote(&run->parallel, step, &vote);
    gpt_net_set_timeout(run->net, 0);
    if (err)
        goto done;
    pass_point(run, "vote");
    report.is_adopted =
        gpt_protect_take(run->protect, vote, &run->options.plan, next) == CAIRN_PLACEMENT_TAKEN;
    if (report.is_adopted) {
        adopt(run, next, &state, &parallel);
        pass_point(run, "adopt");
    } else {
        err = gpt_protect_register(run->protect, &run->options.plan, &run->state, &run->progress);
    }
    report.standstill_ns = now_ns() - begin_ns;
    report.bytes = restored.bytes;
    report.remote_bytes = restored.remote_bytes;
    report.plan = &run->options.plan;
    gpt_report_move(&run->report, &report);
done:
    gpt_parallel_fini(&parallel);
    gpt_state_fini(&state);
    return err;
}

/* The end of a step: what all ranks do about the placement, and the snapshot. */
static cairn_err
place(struct run *run, uint64_t step, uint64_t agreed, bool *snapshot)
{
    enum cairn_placement_change change = CAIRN_PLACEMENT_SAME;
    struct gpt_plan *plan = &run->options.plan;
    struct gpt_plan next;

    if (run->device.timing)
        change = gpt_protect_take(run->protect, agreed, plan, &next);
    if (change == CAIRN_PLACEMENT_ENTER)
        return move(run, step, &next);
    *snapshot = gpt_protect_begin(run->protect, step);
    if (change == CAIRN_PLACEMENT_TAKEN) {
        *plan = next;
        gpt_report_shares(&run->report, step, plan);
    }
    return CAIRN_OK;
}

static cairn_err
train_step(struct run *run, uint64_t step)
{
    const struct gpt_options *options = &run->options;
    uint64_t begin_ns = now_ns();
    struct gpt_step_report report = {.step = step};
    struct gpt_total total;
    cairn_err err;

    err = gpt_parallel_gradient(&run->parallel, step);
    if (err)
        return err;
    /* as late as possible, so that an offer that has come by now counts in this step */
    total.vote = run->device.timing ? gpt_protect_vote(run->protect, &options->plan) : 0;
    err = gpt_parallel_sum(&run->parallel, step, &total);
    if (err)
        return err;
    if (!isfinite(total.loss) || !isfinite(total.norm)) {
        gpt_say("step %llu: the loss or the gradient is not finite (loss %g, norm %g); nothing was "
                "updated; try a smaller --lr",
                (unsigned long long)step, (double)total.loss, total.norm);
        return CAIRN_INTERNAL;
    }
    update(run, step, &total);
    err = place(run, step, total.vote, &report.snapshot);
    if (err)
        return err;
    report.loss = gpt_plan_is_last_stage(&options->plan) ? &total.loss : NULL;
    report.norm = (float)total.norm;
    report.fence_ns = gpt_protect_fence_ns(run->protect);
    report.step_ns = now_ns() - begin_ns;
    gpt_report_step(&run->report, &report);
    if (options->plan.rank == 0 && options->log_every &&
        (step % options->log_every == 0 || step == 1 || step == options->steps))
        gpt_say("step %llu of %llu  loss %.4f  norm %.3f  %.1f ms, with %.3f ms waiting for cairn",
                (unsigned long long)step, (unsigned long long)options->steps, (double)total.loss,
                total.norm, (double)report.step_ns * 1e-6, (double)report.fence_ns * 1e-6);
    return CAIRN_OK;
}

static cairn_err
conclude(struct run *run)
{
    const struct gpt_options *options = &run->options;
    char loss_sha256[GPT_SHA256_TEXT];
    char state_sha256[GPT_SHA256_TEXT] = "";
    struct gpt_done_report done = {.steps = options->steps};
    cairn_err err;

    gpt_protect_fence_all(run->protect); /* the last snapshot counts too */
    err = gpt_final(run->net, &options->plan, &run->state.stage, run->state.exp_avg,
                    run->state.exp_avg_sq, options->final_dir, state_sha256);
    if (err)
        return err;
    gpt_progress_digest(&run->progress, loss_sha256);
    done.loss_first = gpt_progress_loss(&run->progress, 1);
    done.loss_last = gpt_progress_loss(&run->progress, options->steps);
    done.loss_sha256 = loss_sha256;
    done.state_sha256 = options->plan.rank == 0 ? state_sha256 : NULL;
    done.stats = gpt_protect_stats(run->protect);
    err = gpt_net_finish(run->net);
    if (err)
        return err;
    gpt_report_done(&run->report, &done);
    if (options->plan.rank == 0)
        gpt_say("done: loss %.4f to %.4f over %llu steps, loss_sha256 %s, state_sha256 %s",
                (double)done.loss_first, (double)done.loss_last, (unsigned long long)options->steps,
                loss_sha256, state_sha256);
    return CAIRN_OK;
}

static cairn_err
train(struct run *run)
{
    cairn_err err;

    err = start(run);
    if (!err && run->options.resume)
        err = restore(run);
    if (!err)
        err = agree(run);
    if (err)
        return err;
    for (uint64_t step = gpt_progress_step(&run->progress) + 1; step <= run->options.steps;
         step++) {
        err = train_step(run, step);
        if (err)
            return err;
    }
    return conclude(run);
}

int
gpt_run(int argc, char **argv)
{
    struct run run = {.report.fd = -1};
    cairn_err report_err;
    cairn_err err;

    (void)signal(SIGPIPE, SIG_IGN); /* a closed stderr must not end a training run */
    err = gpt_options_parse(argc, argv, &run.options);
    if (err)
        return status_of(err);
    if (run.options.help) {
        gpt_options_help();
        return 0;
    }
    err = train(&run);
    gpt_protect_close(run.protect);
    gpt_parallel_fini(&run.parallel);
    gpt_device_fini(&run.device);
    gpt_net_close(run.net);
    gpt_progress_fini(&run.progress);
    gpt_state_fini(&run.state);
    gpt_data_fini(&run.data);
    report_err = gpt_report_close(&run.report);
    return status_of(err ? err : report_err);
}
