/*
 * examples/gpt/plan.c - checks a plan and derives a rank's part of it.
 */
#include "plan.h"

#include <string.h>

#include "say.h"

void
gpt_plan_even(uint32_t total, uint32_t parts, uint32_t out[GPT_PARTS_MAX])
{
    for (uint32_t i = 0; i < parts && i < GPT_PARTS_MAX; i++)
        out[i] = total / parts + (i < total % parts ? 1 : 0);
}

void
gpt_plan_share(struct gpt_plan *plan, const uint32_t *micro_batches)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < plan->dp; i++) {
        plan->micro_batches[i] = micro_batches[i];
        if (i == plan->replica)
            plan->micro_begin = sum;
        sum += micro_batches[i];
    }
    plan->micro_count = plan->micro_batches[plan->replica];
    plan->micro_total = sum;
}

void
gpt_plan_layers(const struct gpt_plan *plan, uint32_t replica, uint32_t stage, uint32_t *begin,
                uint32_t *end)
{
    *begin = 0;
    for (uint32_t s = 0; s < stage; s++)
        *begin += plan->stage_layers[replica][s];
    *end = *begin + plan->stage_layers[replica][stage];
}

void
gpt_plan_place(struct gpt_plan *plan, const uint32_t (*stage_layers)[GPT_PARTS_MAX])
{
    memcpy(plan->stage_layers, stage_layers, sizeof plan->stage_layers);
    gpt_plan_layers(plan, plan->replica, plan->stage, &plan->layer_begin, &plan->layer_end);
}

static bool
check_layers(const uint32_t *stage_layers, uint32_t pp, uint32_t layers)
{
    uint64_t sum = 0;

    for (uint32_t s = 0; s < pp; s++) {
        if (stage_layers[s] < 1) {
            gpt_say("stage %u has no layer: every one of the %u stages needs one", s, pp);
            return false;
        }
        sum += stage_layers[s];
    }
    if (sum != layers)
        gpt_say("--stage-layers add up to %llu, and the model has %u layers (--layers)",
                (unsigned long long)sum, layers);
    return sum == layers;
}

cairn_err
gpt_plan_complete(struct gpt_plan *plan, uint32_t layers)
{
    uint32_t micro_batches[GPT_PARTS_MAX];

    if (plan->dp < 1 || plan->dp > GPT_PARTS_MAX || plan->pp < 1 || plan->pp > GPT_PARTS_MAX) {
        gpt_say("--dp %u and --pp %u must be 1 to %d each", plan->dp, plan->pp, GPT_PARTS_MAX);
        return CAIRN_INVAL;
    }
    plan->world = plan->dp * plan->pp;
    if (plan->rank >= plan->world) {
        gpt_say("--rank %u does not exist: --dp %u x --pp %u are %u ranks, numbered from 0",
                plan->rank, plan->dp, plan->pp, plan->world);
        return CAIRN_INVAL;
    }
    plan->replica = plan->rank / plan->pp;
    plan->stage = plan->rank % plan->pp;
    for (uint32_t r = 0; r < plan->dp; r++)
        if (!check_layers(plan->stage_layers[r], plan->pp, layers))
            return CAIRN_INVAL;
    gpt_plan_layers(plan, plan->replica, plan->stage, &plan->layer_begin, &plan->layer_end);
    for (uint32_t i = 0; i < plan->dp; i++) {
        if (plan->micro_batches[i] < 1 || plan->micro_batches[i] > 4096) {
            gpt_say("replica %u has %u micro-batches: 1 to 4096 are possible", i,
                    plan->micro_batches[i]);
            return CAIRN_INVAL;
        }
        micro_batches[i] = plan->micro_batches[i];
    }
    gpt_plan_share(plan, micro_batches);
    plan->micro_room = plan->micro_count;
    return CAIRN_OK;
}
