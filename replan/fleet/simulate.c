/* replan/fleet/simulate.c - a plan's step replayed operation by operation. */
#include "replan/fleet/simulate.h"

#include "replan/fleet/cost.h"

#include <stdlib.h>

enum { OPERATIONS_MAX = 50000000 };

/* Where a stage is in its schedule. */
struct stage {
    double ms; /* forward and backward of one micro-batch */
    double free_at_ms;
    uint32_t warm_up; /* forwards before the first backward */
    uint32_t forwards;
    uint32_t backwards;
};

struct replay {
    uint32_t stage_count;
    uint32_t microbatches;
    struct stage *stages;
    double *forward_ms; /* [stage][micro-batch] when it ended */
    double *backward_ms;
};

static bool
next_is_forward(const struct replay *replay, const struct stage *stage)
{
    if (stage->forwards == replay->microbatches)
        return false;
    return stage->forwards < stage->warm_up || stage->forwards - stage->backwards <= stage->warm_up;
}

/* When what the next operation of a stage needs is there; false where that is not known yet. */
static bool
ready_at(const struct replay *replay, uint32_t j, bool forward, double *at_ms)
{
    const struct stage *stage = &replay->stages[j];
    size_t row = (size_t)j * replay->microbatches;

    if (forward) {
        if (j > 0 && replay->stages[j - 1].forwards <= stage->forwards)
            return false;
        *at_ms = j > 0 ? replay->forward_ms[row - replay->microbatches + stage->forwards] : 0;
        return true;
    }
    if (j + 1 == replay->stage_count) {
        if (stage->forwards <= stage->backwards)
            return false;
        *at_ms = replay->forward_ms[row + stage->backwards];
        return true;
    }
    if (replay->stages[j + 1].backwards <= stage->backwards)
        return false;
    *at_ms = replay->backward_ms[row + replay->microbatches + stage->backwards];
    return true;
}

/* Runs a stage as far as it can go; true where it did something. */
static bool
run_stage(struct replay *replay, uint32_t j, struct cairn_simulated_stage *out)
{
    struct stage *stage = &replay->stages[j];
    size_t row = (size_t)j * replay->microbatches;
    bool moved = false;

    while (stage->backwards < replay->microbatches) {
        bool forward = next_is_forward(replay, stage);
        double at_ms, ms = forward ? stage->ms / 3 : stage->ms * 2 / 3;

        if (!ready_at(replay, j, forward, &at_ms))
            break;
        if (at_ms < stage->free_at_ms)
            at_ms = stage->free_at_ms;
        stage->free_at_ms = at_ms + ms;
        out->busy_ms += ms;
        if (forward)
            replay->forward_ms[row + stage->forwards++] = at_ms + ms;
        else
            replay->backward_ms[row + stage->backwards++] = at_ms + ms;
        if (stage->forwards - stage->backwards > out->in_flight)
            out->in_flight = stage->forwards - stage->backwards;
        moved = true;
    }
    return moved;
}

static cairn_err
replay_pipeline(const struct cairn_plan *plan, const struct cairn_problem *problem,
                uint32_t pipeline, struct cairn_simulated *out)
{
    const struct cairn_plan_pipeline *in = &plan->pipelines[pipeline];
    size_t operations = (size_t)in->stage_count * in->microbatches;
    struct replay replay = {.stage_count = in->stage_count, .microbatches = in->microbatches};
    cairn_err err = CAIRN_NOMEM;

    if (operations > OPERATIONS_MAX)
        return CAIRN_INVAL;
    replay.stages = calloc(in->stage_count, sizeof(*replay.stages));
    replay.forward_ms = calloc(operations, sizeof(*replay.forward_ms));
    replay.backward_ms = calloc(operations, sizeof(*replay.backward_ms));
    if (!replay.stages || !replay.forward_ms || !replay.backward_ms)
        goto done;
    for (uint32_t j = 0; j < in->stage_count; j++) {
        uint32_t after = in->stage_count - 1 - j;

        replay.stages[j].ms = cairn_plan_stage_ms(plan, problem, pipeline, j);
        replay.stages[j].warm_up = after < in->microbatches ? after : in->microbatches;
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t j = 0; j < in->stage_count; j++)
            moved = run_stage(&replay, j, &out->stages[in->first_stage + j]) || moved;
        for (uint32_t j = in->stage_count; j-- > 0;)
            moved = run_stage(&replay, j, &out->stages[in->first_stage + j]) || moved;
    }
    err = CAIRN_OK;
    for (uint32_t j = 0; j < in->stage_count; j++) {
        const struct cairn_plan_stage *group = &plan->stages[in->first_stage + j];
        struct cairn_simulated_stage *stage = &out->stages[in->first_stage + j];

        if (replay.stages[j].backwards < in->microbatches)
            err = CAIRN_INTERNAL; /* a schedule that stops half-way */
        if (replay.stages[j].free_at_ms > out->pipeline_ms[pipeline])
            out->pipeline_ms[pipeline] = replay.stages[j].free_at_ms;
        stage->device_bytes = cairn_cost_device_bytes(problem, group->device_count,
                                                      group->layer_count, stage->in_flight);
    }
done:
    free(replay.stages);
    free(replay.forward_ms);
    free(replay.backward_ms);
    return err;
}

cairn_err
cairn_simulate(const struct cairn_plan *plan, const struct cairn_problem *problem,
               struct cairn_simulated *out)
{
    struct cairn_simulated simulated = {0};
    cairn_err err = CAIRN_NOMEM;

    simulated.pipeline_ms =
        calloc((size_t)plan->pipeline_count + 1, sizeof(*simulated.pipeline_ms));
    simulated.stages = calloc((size_t)plan->stage_count + 1, sizeof(*simulated.stages));
    if (simulated.pipeline_ms && simulated.stages)
        err = CAIRN_OK;
    for (uint32_t i = 0; !err && i < plan->pipeline_count; i++) {
        err = replay_pipeline(plan, problem, i, &simulated);
        if (simulated.pipeline_ms[i] > simulated.step_ms)
            simulated.step_ms = simulated.pipeline_ms[i];
    }
    if (err)
        cairn_simulated_fini(&simulated);
    else
        *out = simulated;
    return err;
}

void
cairn_simulated_fini(struct cairn_simulated *simulated)
{
    free(simulated->pipeline_ms);
    free(simulated->stages);
    *simulated = (struct cairn_simulated){0};
}
