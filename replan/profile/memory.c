/* replan/profile/memory.c - the devices of a plan that ran as samples of memory. */
#include "replan/profile/memory.h"

#include "replan/fleet/cost.h"
#include "replan/fleet/plan.h"

#include <math.h>
#include <stdlib.h>

/* The samples of the plan's measured devices, samples[device_count]; *outside: of those in no
 * stage. */
static uint32_t
list_samples(const struct cairn_plan *plan, const uint64_t *memory_bytes, uint32_t rank_count,
             struct cairn_memory_sample *samples, uint32_t *outside)
{
    uint32_t count = 0, measured = 0;

    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        const struct cairn_plan_pipeline *pipeline = &plan->pipelines[i];

        for (uint32_t j = 0; j < pipeline->stage_count; j++) {
            const struct cairn_plan_stage *stage = &plan->stages[pipeline->first_stage + j];
            uint32_t in_flight =
                cairn_cost_in_flight(j, pipeline->stage_count, pipeline->microbatches);

            for (uint32_t k = 0; k < stage->device_count; k++) {
                uint64_t id = plan->devices[stage->first_device + k];

                if (id < rank_count && memory_bytes[id] > 0)
                    samples[count++] = (struct cairn_memory_sample){
                        stage->layer_count, in_flight, stage->device_count, memory_bytes[id]};
            }
        }
    }
    for (uint32_t rank = 0; rank < rank_count; rank++)
        measured += memory_bytes[rank] > 0;
    *outside = measured - count;
    return count;
}

/* How far what the problem says is off what was measured, where that is most. */
static double
worst(const struct cairn_problem *problem, const struct cairn_memory_sample *samples,
      uint32_t count)
{
    double off_worst = 0;

    for (uint32_t i = 0; i < count; i++) {
        double off = (double)cairn_cost_device_bytes(problem, samples[i].group_size,
                                                     samples[i].layers, samples[i].in_flight) /
                         (double)samples[i].device_bytes -
                     1;

        if (fabs(off) > fabs(off_worst))
            off_worst = off;
    }
    return off_worst;
}

cairn_err
cairn_profile_memory(struct cairn_problem *problem, const uint64_t *memory_bytes,
                     uint32_t rank_count, struct cairn_profiled_memory *out)
{
    const uint64_t layer = problem->layer_bytes, activation = problem->activation_bytes,
                   reserved = problem->reserved_bytes;
    struct cairn_memory_sample *samples =
        calloc((size_t)problem->current->device_count + 1, sizeof *samples);
    struct cairn_profiled_memory profiled = {.devices = 0};
    struct cairn_fault fault;
    cairn_err err = CAIRN_OK;

    if (!samples)
        return CAIRN_NOMEM;
    profiled.devices =
        list_samples(problem->current, memory_bytes, rank_count, samples, &profiled.outside);
    if (profiled.devices > 0)
        err = cairn_fit_memory(samples, profiled.devices, problem, &profiled.told, &profiled.fit,
                               &fault);
    if (!err && profiled.told.layer && problem->layer_bytes == 0) {
        problem->layer_bytes = layer;
        problem->activation_bytes = activation;
        problem->reserved_bytes = reserved;
        profiled.told = (struct cairn_memory_told){false, false, false};
        profiled.contradicts = true;
    }
    if (!err) {
        profiled.off_worst = worst(problem, samples, profiled.devices);
        *out = profiled;
    }
    free(samples);
    return err;
}
