/* replan/fleet/schedule.c - the time of the 1F1B schedule. */
#include "replan/fleet/schedule.h"

#include <math.h>
#include <stdlib.h>

/* A forward takes a third of a stage's time per micro-batch, a backward two: as in simulate.h. */
#define FORWARD (1.0 / 3)

struct stage {
    double ms;         /* of one micro-batch, forward and backward */
    double free_at_ms; /* the end of its last operation so far */
    double forward_ms; /* the end of its last forward so far */
    uint32_t warm_up;  /* forwards before the first backward */
};

/* The forwards before the first backward of each stage. row[stage_count]: scratch, when the stage
 * before ended each. */
static void
warm_up(struct stage *stages, uint32_t stage_count, double *row)
{
    for (uint32_t i = 0; i < stage_count; i++)
        row[i] = 0;
    for (uint32_t j = 0; j < stage_count; j++)
        for (uint32_t i = 0; i < stages[j].warm_up; i++) {
            stages[j].free_at_ms = fmax(stages[j].free_at_ms, row[i]) + stages[j].ms * FORWARD;
            stages[j].forward_ms = stages[j].free_at_ms;
            row[i] = stages[j].free_at_ms;
        }
}

/*
 * Round i: stage j does forward i + warm_up, then backward i. The stage before did that forward one
 * round earlier, as it has one forward more to begin with; so forwards need nothing of their own
 * round, and backwards only that of the stage after.
 */
static void
run_round(struct stage *stages, uint32_t stage_count, uint32_t microbatches, uint32_t i)
{
    double after_ms;

    for (uint32_t j = stage_count; j-- > 0;) {
        struct stage *stage = &stages[j];

        if (i + stage->warm_up >= microbatches)
            continue;
        stage->free_at_ms =
            fmax(stage->free_at_ms, j > 0 ? stages[j - 1].forward_ms : 0) + stage->ms * FORWARD;
        stage->forward_ms = stage->free_at_ms;
    }
    after_ms = stages[stage_count - 1].forward_ms;
    for (uint32_t j = stage_count; j-- > 0;) {
        stages[j].free_at_ms = fmax(stages[j].free_at_ms, after_ms) + stages[j].ms * (1 - FORWARD);
        after_ms = stages[j].free_at_ms;
    }
}

static cairn_err
pipeline_ms(const struct cairn_plan *plan, const struct cairn_problem *problem, uint32_t pipeline,
            double *out)
{
    const struct cairn_plan_pipeline *in = &plan->pipelines[pipeline];
    uint32_t microbatches = in->microbatches < CAIRN_SCHEDULE_MICROBATCHES_MAX
                                ? in->microbatches
                                : CAIRN_SCHEDULE_MICROBATCHES_MAX;
    struct stage *stages = calloc((size_t)in->stage_count + 1, sizeof(*stages));
    double *row = calloc((size_t)in->stage_count + 1, sizeof(*row)), slowest_ms = 0;
    cairn_err err = stages && row ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t j = 0; !err && j < in->stage_count; j++) {
        uint32_t after = in->stage_count - 1 - j;

        stages[j].ms = cairn_plan_stage_ms(plan, problem, pipeline, j);
        stages[j].warm_up = after < microbatches ? after : microbatches;
        slowest_ms = fmax(slowest_ms, stages[j].ms);
    }
    if (!err)
        warm_up(stages, in->stage_count, row);
    for (uint32_t i = 0; !err && i < microbatches; i++)
        run_round(stages, in->stage_count, microbatches, i);
    if (!err) /* the first stage ends last: its backwards wait for all others */
        *out = stages[0].free_at_ms + (in->microbatches - microbatches) * slowest_ms;
    free(stages);
    free(row);
    return err;
}

cairn_err
cairn_plan_schedule_ms(const struct cairn_plan *plan, const struct cairn_problem *problem,
                       double *schedule_ms)
{
    double longest_ms = 0, own_ms;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < plan->pipeline_count; i++) {
        err = pipeline_ms(plan, problem, i, &own_ms);
        if (!err)
            longest_ms = fmax(longest_ms, own_ms);
    }
    if (!err)
        *schedule_ms = longest_ms;
    return err;
}
