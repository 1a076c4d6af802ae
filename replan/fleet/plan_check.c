/* replan/fleet/plan_check.c - checks a plan against a problem, and predicts its time. */
#include "replan/fleet/plan.h"

#include "replan/fleet/cost.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static cairn_err wrong(struct cairn_fault *fault, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static cairn_err
wrong(struct cairn_fault *fault, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(fault->text, sizeof(fault->text), format, args);
    va_end(args);
    return CAIRN_INVAL;
}

/* One group: known devices, alive, each used once, of one node; it fits. */
static cairn_err
check_stage(const struct cairn_plan *plan, const struct cairn_problem *problem, uint32_t pipeline,
            uint32_t stage, bool *used, struct cairn_fault *fault)
{
    const struct cairn_plan_pipeline *in = &plan->pipelines[pipeline];
    const struct cairn_plan_stage *group = &plan->stages[in->first_stage + stage];
    uint64_t memory_bytes = UINT64_MAX, held_bytes, node = 0;

    if (cairn_cost_of_size(problem, group->device_count) == 0)
        return wrong(
            fault,
            "pipeline %u, stage %u: a group of %u devices, a size that tp_cost does not have",
            pipeline, stage, group->device_count);
    for (uint32_t i = 0; i < group->device_count; i++) {
        uint64_t id = plan->devices[group->first_device + i];
        uint32_t at = cairn_problem_device_find(problem, id);

        if (at == problem->device_count)
            return wrong(fault, "pipeline %u, stage %u: the problem has no device %" PRIu64,
                         pipeline, stage, id);
        if (problem->devices[at].rate <= 0)
            return wrong(fault, "pipeline %u, stage %u: device %" PRIu64 " is dead", pipeline,
                         stage, id);
        if (used[at])
            return wrong(fault, "pipeline %u, stage %u: device %" PRIu64 " is used twice", pipeline,
                         stage, id);
        used[at] = true;
        if (i > 0 && problem->devices[at].node != node)
            return wrong(fault,
                         "pipeline %u, stage %u: device %" PRIu64
                         " is of another node than its group",
                         pipeline, stage, id);
        node = problem->devices[at].node;
        if (problem->devices[at].memory_bytes < memory_bytes)
            memory_bytes = problem->devices[at].memory_bytes;
    }
    held_bytes =
        cairn_cost_device_bytes(problem, group->device_count, group->layer_count,
                                cairn_cost_in_flight(stage, in->stage_count, in->microbatches));
    if (held_bytes > memory_bytes)
        return wrong(fault,
                     "pipeline %u, stage %u does not fit: %" PRIu64 " bytes per device, %" PRIu64
                     " too many",
                     pipeline, stage, held_bytes, held_bytes - memory_bytes);
    return CAIRN_OK;
}

static cairn_err
check_pipeline(const struct cairn_plan *plan, const struct cairn_problem *problem,
               uint32_t pipeline, bool *used, struct cairn_fault *fault)
{
    const struct cairn_plan_pipeline *in = &plan->pipelines[pipeline];
    uint32_t next_layer = 0;

    if (in->stage_count == 0 || in->microbatches == 0)
        return wrong(fault, "pipeline %u has no %s", pipeline,
                     in->stage_count ? "micro-batch" : "stage");
    for (uint32_t j = 0; j < in->stage_count; j++) {
        const struct cairn_plan_stage *stage = &plan->stages[in->first_stage + j];
        cairn_err err;

        if (stage->layer_count == 0 || stage->first_layer != next_layer)
            return wrong(fault,
                         "pipeline %u, stage %u: its layers do not follow the previous stage's",
                         pipeline, j);
        next_layer += stage->layer_count;
        err = check_stage(plan, problem, pipeline, j, used, fault);
        if (err)
            return err;
    }
    if (next_layer != problem->layers)
        return wrong(fault, "pipeline %u has %u layers, the model %u", pipeline, next_layer,
                     problem->layers);
    return CAIRN_OK;
}

cairn_err
cairn_plan_check(const struct cairn_plan *plan, const struct cairn_problem *problem,
                 struct cairn_fault *fault)
{
    bool *used = calloc((size_t)problem->device_count + 1, sizeof(*used));
    uint64_t microbatches = 0;
    cairn_err err = CAIRN_OK;

    if (!used)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; !err && i < plan->pipeline_count; i++) {
        err = check_pipeline(plan, problem, i, used, fault);
        microbatches += plan->pipelines[i].microbatches;
    }
    if (!err && microbatches != problem->microbatches)
        err = wrong(fault, "the pipelines have %" PRIu64 " micro-batches, the problem %u",
                    microbatches, problem->microbatches);
    free(used);
    return err;
}

/* A group's time per layer: its size's cost at the rate of its slowest device. */
static double
stage_layer_ms(const struct cairn_plan *plan, const struct cairn_problem *problem,
               const struct cairn_plan_stage *stage)
{
    double rate = 0;

    for (uint32_t i = 0; i < stage->device_count; i++) {
        uint64_t id = plan->devices[stage->first_device + i];
        double own = problem->devices[cairn_problem_device_find(problem, id)].rate;

        if (own > rate)
            rate = own;
    }
    return problem->layer_ms * cairn_cost_of_size(problem, stage->device_count) * rate;
}

double
cairn_plan_stage_ms(const struct cairn_plan *plan, const struct cairn_problem *problem,
                    uint32_t pipeline, uint32_t stage)
{
    const struct cairn_plan_pipeline *in = &plan->pipelines[pipeline];
    const struct cairn_plan_stage *at = &plan->stages[in->first_stage + stage];

    return (at->layer_count + cairn_cost_vocabulary_layers(problem, stage, in->stage_count)) *
           stage_layer_ms(plan, problem, at);
}

double
cairn_plan_step_ms(const struct cairn_plan *plan, const struct cairn_problem *problem)
{
    double step_ms = 0;

    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        double longest_ms = 0, sum_ms = 0, pipeline_ms;

        for (uint32_t j = 0; j < plan->pipelines[i].stage_count; j++) {
            double stage_ms = cairn_plan_stage_ms(plan, problem, i, j);

            sum_ms += stage_ms;
            if (stage_ms > longest_ms)
                longest_ms = stage_ms;
        }
        pipeline_ms = (plan->pipelines[i].microbatches - 1) * longest_ms + sum_ms;
        if (pipeline_ms > step_ms)
            step_ms = pipeline_ms;
    }
    return step_ms;
}
