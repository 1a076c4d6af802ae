/* agent/service/proposal_plan.c - proposals out of the planner's plans; see proposal_plan.h. */
#include "agent/service/proposal_plan.h"

#include "replan/fleet/plan.h"
#include "replan/search/migrate.h"

#include <math.h>
#include <string.h>

/* The replica whose first stage begins with this device; UINT32_MAX: none. */
static uint32_t
replica_of(const struct cairn_plan *current, uint64_t device)
{
    for (uint32_t i = 0; i < current->pipeline_count; i++)
        if (current->devices[current->stages[current->pipelines[i].first_stage].first_device] ==
            device)
            return i;
    return UINT32_MAX;
}

bool
proposal_place(const struct cairn_plan *current, const struct cairn_plan *plan, uint32_t stages,
               struct cairn_session_shares *out)
{
    *out = (struct cairn_session_shares){.count = current->pipeline_count, .stages = stages};
    if (plan->pipeline_count != current->pipeline_count || out->count > CAIRN_REPLICAS_MAX ||
        stages > CAIRN_STAGES_MAX / out->count)
        return false;
    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        const struct cairn_plan_pipeline *pipeline = &plan->pipelines[i];
        const struct cairn_plan_stage *first = &plan->stages[pipeline->first_stage];
        uint32_t replica = replica_of(current, plan->devices[first->first_device]);

        if (replica == UINT32_MAX || out->parts[replica] != 0 ||
            (stages && stages != pipeline->stage_count))
            return false;
        out->parts[replica] = pipeline->microbatches;
        for (uint32_t s = 0; s < stages; s++)
            out->layers[replica * stages + s] = first[s].layer_count;
    }
    return true;
}

/* Puts a rank among the slowest, which stay sorted by rank; the fastest one makes room. */
static void
list_slow(struct proposal_slow *slow, uint64_t rank, double rate)
{
    uint32_t listed = slow->count < PROPOSAL_SLOW_MAX ? slow->count : PROPOSAL_SLOW_MAX;
    uint32_t fastest = 0;

    slow->count++;
    if (listed == PROPOSAL_SLOW_MAX) {
        for (uint32_t i = 1; i < listed; i++)
            if (slow->rates[i] < slow->rates[fastest])
                fastest = i;
        if (rate <= slow->rates[fastest])
            return;
        listed--;
        for (uint32_t i = fastest; i < listed; i++) {
            slow->ranks[i] = slow->ranks[i + 1];
            slow->rates[i] = slow->rates[i + 1];
        }
    }
    slow->ranks[listed] = rank; /* devices are sorted by id */
    slow->rates[listed] = rate;
}

void
proposal_find_slow(const struct cairn_adviser *adviser, struct proposal_slow *out)
{
    const struct cairn_problem *problem = cairn_adviser_problem(adviser);
    const double *rates = cairn_adviser_settled(adviser);

    *out = (struct proposal_slow){0};
    for (uint32_t i = 0; i < problem->device_count; i++)
        if (rates[i] < 1 || rates[i] > 1)
            list_slow(out, problem->devices[i].id, rates[i]);
}

bool
proposal_make_home(const struct cairn_adviser *adviser, uint32_t stages, struct proposal *out)
{
    const struct cairn_problem *problem = cairn_adviser_problem(adviser);

    *out = (struct proposal){.is_home = true,
                             .action = CAIRN_REPLAN_NONE,
                             .current_ms = INFINITY,
                             .step_ms = cairn_plan_step_ms(problem->current, problem),
                             .bound_ms = INFINITY,
                             .cost_ms = INFINITY};
    proposal_find_slow(adviser, &out->slow);
    return proposal_place(problem->current, problem->current, stages, &out->placement);
}

bool
proposal_make(const struct cairn_adviser *adviser, const struct cairn_advice *advice,
              uint32_t stages, struct proposal *out)
{
    const struct cairn_problem *problem = cairn_adviser_problem(adviser);
    const struct cairn_plan *plan = cairn_adviser_plan(adviser, advice->action);
    bool can_act = advice->action == CAIRN_REPLAN_MICROBATCHES ||
                   (advice->action == CAIRN_REPLAN_LAYERS && stages > 0);

    *out = (struct proposal){.action = advice->action,
                             .current_ms = advice->current_ms,
                             .step_ms = advice->step_ms,
                             .bound_ms = cairn_adviser_bound_ms(adviser),
                             .cost_ms = advice->cost_ms,
                             .payback_steps = advice->payback_steps};
    proposal_find_slow(adviser, &out->slow);
    return can_act && plan && proposal_place(problem->current, plan, stages, &out->placement);
}

void
proposal_compare(const struct proposal *running, uint64_t layer_bytes, struct proposal *to)
{
    const struct cairn_session_shares *placement = &to->placement, *from = &running->placement;

    to->moved_layers = to->moved_bytes = 0;
    if (!running->is_home && !to->is_home && proposal_is_same_slow(&running->slow, &to->slow))
        to->payback_steps = cairn_migration_payback(to->cost_ms, running->step_ms - to->step_ms);
    if (from->count != placement->count || from->stages != placement->stages)
        return;
    for (uint32_t r = 0; r < from->count; r++) {
        uint64_t old_end = 0, new_end = 0;

        for (uint32_t s = 0; s < from->stages; s++) {
            uint64_t old_begin = old_end, new_begin = new_end, kept_begin, kept_end;

            old_end += from->layers[r * from->stages + s];
            new_end += placement->layers[r * from->stages + s];
            kept_begin = old_begin > new_begin ? old_begin : new_begin;
            kept_end = old_end < new_end ? old_end : new_end;
            to->moved_layers += new_end - new_begin;
            to->moved_layers -= kept_end > kept_begin ? kept_end - kept_begin : 0;
        }
    }
    to->moved_bytes = to->moved_layers * layer_bytes;
}
