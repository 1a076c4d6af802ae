/* agent/service/proposal_plan.c - proposals from the planner's plans; see proposal_plan.h. */
#include "agent/service/proposal_plan.h"

#include "replan/fleet/plan.h"
#include "replan/search/migrate.h"

#include <math.h>
#include <stdlib.h>
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

static void
set_alternatives(const struct cairn_adviser *adviser, struct proposal *out)
{
    const struct cairn_offers *offers = cairn_adviser_offers(adviser);

    for (uint32_t i = 0; i < CAIRN_REPLAN_COUNT; i++)
        out->alternatives[i] =
            offers ? offers->offers[i] : (struct cairn_offer){INFINITY, INFINITY};
}

/* The plan of a placement, by the devices of the current one; NULL: it has other replicas, or
 * memory ran out. */
static struct cairn_plan *
plan_of(const struct cairn_plan *current, const struct cairn_session_shares *placement)
{
    struct cairn_plan *plan = NULL;

    if (placement->count != current->pipeline_count ||
        cairn_plan_create(current->pipeline_count, current->stage_count, current->device_count,
                          &plan) != CAIRN_OK)
        return NULL;
    plan->pipeline_count = current->pipeline_count;
    plan->stage_count = current->stage_count;
    plan->device_count = current->device_count;
    memcpy(plan->devices, current->devices, current->device_count * sizeof *plan->devices);
    memcpy(plan->stages, current->stages, current->stage_count * sizeof *plan->stages);
    for (uint32_t r = 0; r < placement->count; r++) {
        struct cairn_plan_pipeline *pipeline = &plan->pipelines[r];
        uint32_t layer = 0;

        *pipeline = current->pipelines[r];
        pipeline->microbatches = placement->parts[r];
        if (pipeline->stage_count != placement->stages)
            continue; /* the layers stay */
        for (uint32_t s = 0; s < placement->stages; s++) {
            struct cairn_plan_stage *stage = &plan->stages[pipeline->first_stage + s];

            stage->first_layer = layer;
            stage->layer_count = placement->layers[r * placement->stages + s];
            layer += stage->layer_count;
        }
    }
    return plan;
}

double
proposal_step_ms(const struct cairn_adviser *adviser, const struct cairn_session_shares *placement)
{
    const double *settled = cairn_adviser_settled(adviser);
    struct cairn_problem problem = *cairn_adviser_problem(adviser);
    struct cairn_plan *plan = plan_of(problem.current, placement);
    const struct cairn_device *devices = problem.devices;
    double step_ms = INFINITY;
    bool are_alive = true;

    problem.devices = malloc((problem.device_count + 1) * sizeof *problem.devices);
    for (uint32_t i = 0; problem.devices && i < problem.device_count; i++) {
        problem.devices[i] = devices[i];
        problem.devices[i].rate *= settled[i];
        are_alive &= problem.devices[i].rate > 0;
    }
    if (plan && problem.devices && are_alive)
        step_ms = cairn_plan_step_ms(plan, &problem);
    free(problem.devices);
    cairn_plan_destroy(plan);
    return step_ms;
}

bool
proposal_make_home(const struct cairn_adviser *adviser, uint32_t stages, struct proposal *out)
{
    const struct cairn_problem *problem = cairn_adviser_problem(adviser);

    *out = (struct proposal){.is_home = true,
                             .action = CAIRN_REPLAN_NONE,
                             .current_ms = INFINITY,
                             .step_ms = cairn_plan_step_ms(problem->current, problem),
                             .running_ms = INFINITY,
                             .bound_ms = INFINITY,
                             .cost_ms = INFINITY};
    set_alternatives(adviser, out);
    proposal_find_slow(adviser, &out->slow);
    return proposal_place(problem->current, problem->current, stages, &out->placement);
}

/* What an action leads to. False: nothing that the trainers can do. */
static bool
make_of(const struct cairn_adviser *adviser, enum cairn_replan_action action, uint32_t stages,
        struct proposal *out)
{
    const struct cairn_problem *problem = cairn_adviser_problem(adviser);
    const struct cairn_offers *offers = cairn_adviser_offers(adviser);
    bool can_act =
        action == CAIRN_REPLAN_MICROBATCHES || (action == CAIRN_REPLAN_LAYERS && stages > 0);

    if (!can_act || !offers || !offers->plans[action])
        return false;
    *out = (struct proposal){.action = action,
                             .current_ms = offers->current_ms,
                             .step_ms = offers->offers[action].step_ms,
                             .running_ms = INFINITY,
                             .bound_ms = offers->bound_ms,
                             .cost_ms = offers->offers[action].cost_ms};
    out->payback_steps = cairn_migration_payback(out->cost_ms, offers->current_ms - out->step_ms);
    set_alternatives(adviser, out);
    proposal_find_slow(adviser, &out->slow);
    return proposal_place(problem->current, offers->plans[action], stages, &out->placement);
}

bool
proposal_make_best(const struct cairn_adviser *adviser, const struct proposal *running,
                   uint32_t stages, struct proposal *out)
{
    static const double nearly = 1.02; /* as the decider does: the cheaper one is as good */
    struct proposal shares, layers;
    bool has_shares = make_of(adviser, CAIRN_REPLAN_MICROBATCHES, stages, &shares);
    bool has_layers = make_of(adviser, CAIRN_REPLAN_LAYERS, stages, &layers);
    double running_ms = proposal_step_ms(adviser, &running->placement);

    if (!has_shares && !has_layers)
        return false;
    *out =
        has_layers && (!has_shares || layers.step_ms * nearly < shares.step_ms) ? layers : shares;
    return out->step_ms <= running_ms * (1 - PROPOSAL_LEAST_GAIN);
}

bool
proposal_make(const struct cairn_adviser *adviser, const struct cairn_advice *advice,
              uint32_t stages, struct proposal *out)
{
    return make_of(adviser, advice->action, stages, out);
}

/* Counts the layers that get to another stage. */
static uint64_t
count_moved(const struct cairn_session_shares *from, const struct cairn_session_shares *to)
{
    uint64_t moved = 0;

    if (from->count != to->count || from->stages != to->stages)
        return 0;
    for (uint32_t r = 0; r < from->count; r++) {
        uint64_t old_end = 0, new_end = 0;

        for (uint32_t s = 0; s < from->stages; s++) {
            uint64_t old_begin = old_end, new_begin = new_end, kept_begin, kept_end;

            old_end += from->layers[r * from->stages + s];
            new_end += to->layers[r * from->stages + s];
            kept_begin = old_begin > new_begin ? old_begin : new_begin;
            kept_end = old_end < new_end ? old_end : new_end;
            moved += new_end - new_begin;
            moved -= kept_end > kept_begin ? kept_end - kept_begin : 0;
        }
    }
    return moved;
}

/* ---- the state of nodes ---- */

struct device_bytes {
    uint64_t id, node, bytes;
};

/* What each device of the current plan has in a placement. False: no memory. The caller frees
 * *out. */
static bool
find_device_bytes(const struct cairn_adviser *adviser, const struct cairn_session_shares *placement,
                  struct device_bytes **out)
{
    const struct cairn_problem *problem = cairn_adviser_problem(adviser);
    struct cairn_plan *plan = plan_of(problem->current, placement);
    struct device_bytes *list = calloc(problem->current->device_count + 1u, sizeof *list);

    for (uint32_t i = 0; plan && list && i < plan->stage_count; i++) {
        const struct cairn_plan_stage *stage = &plan->stages[i];

        for (uint32_t k = 0; k < stage->device_count; k++) {
            struct device_bytes *device = &list[stage->first_device + k];

            device->id = plan->devices[stage->first_device + k];
            device->node = problem->devices[cairn_problem_device_find(problem, device->id)].node;
            device->bytes = stage->layer_count * problem->layer_bytes / stage->device_count;
        }
    }
    if (!plan) {
        free(list);
        list = NULL;
    }
    cairn_plan_destroy(plan);
    *out = list;
    return list != NULL;
}

static int
compare_nodes(const void *left, const void *right)
{
    const struct device_bytes *a = left, *b = right;

    return (a->node > b->node) - (a->node < b->node);
}

uint64_t
proposal_largest_node_bytes(const struct cairn_adviser *adviser,
                            const struct cairn_session_shares *placement)
{
    uint32_t count = cairn_adviser_problem(adviser)->current->device_count;
    uint64_t largest = 0, sum = 0;
    struct device_bytes *list;

    if (!find_device_bytes(adviser, placement, &list))
        return UINT64_MAX;
    qsort(list, count, sizeof *list, compare_nodes);
    for (uint32_t i = 0; i < count; i++) {
        sum = i && list[i].node == list[i - 1].node ? sum + list[i].bytes : list[i].bytes;
        largest = sum > largest ? sum : largest;
    }
    free(list);
    return largest;
}

uint64_t
proposal_ranks_bytes(const struct cairn_adviser *adviser,
                     const struct cairn_session_shares *placement, const uint32_t *ranks,
                     uint32_t count)
{
    uint32_t devices = cairn_adviser_problem(adviser)->current->device_count;
    struct device_bytes *list;
    uint64_t sum = 0;

    if (!find_device_bytes(adviser, placement, &list))
        return UINT64_MAX;
    for (uint32_t i = 0; i < devices; i++)
        for (uint32_t k = 0; k < count; k++)
            sum += list[i].id == ranks[k] ? list[i].bytes : 0;
    free(list);
    return sum;
}

void
proposal_compare(const struct cairn_adviser *adviser, const struct proposal *running,
                 struct proposal *to)
{
    to->moved_layers = count_moved(&running->placement, &to->placement);
    to->moved_bytes = to->moved_layers * cairn_adviser_problem(adviser)->layer_bytes;
    to->running_ms = proposal_step_ms(adviser, &running->placement);
    if (to->moved_layers == 0 && !to->is_home)
        to->cost_ms = 0;
    if (to->running_ms < INFINITY && to->cost_ms < INFINITY)
        to->payback_steps = cairn_migration_payback(to->cost_ms, to->running_ms - to->step_ms);
}
