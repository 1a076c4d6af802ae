/* replan/fleet/plan.c - the memory of a plan. */
#include "replan/fleet/plan.h"

#include <stdlib.h>

cairn_err
cairn_plan_create(uint32_t pipelines_max, uint32_t stages_max, uint32_t devices_max,
                  struct cairn_plan **out)
{
    struct cairn_plan *plan = calloc(1, sizeof(*plan));

    if (!plan)
        return CAIRN_NOMEM;
    plan->pipelines = calloc((size_t)pipelines_max + 1, sizeof(*plan->pipelines));
    plan->stages = calloc((size_t)stages_max + 1, sizeof(*plan->stages));
    plan->devices = calloc((size_t)devices_max + 1, sizeof(*plan->devices));
    if (!plan->pipelines || !plan->stages || !plan->devices) {
        cairn_plan_destroy(plan);
        return CAIRN_NOMEM;
    }
    *out = plan;
    return CAIRN_OK;
}

void
cairn_plan_destroy(struct cairn_plan *plan)
{
    if (!plan)
        return;
    free(plan->pipelines);
    free(plan->stages);
    free(plan->devices);
    free(plan);
}
