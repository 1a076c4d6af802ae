/* replan/search/migrate.c - what a plan moves, given what runs now. */
#include "replan/search/migrate.h"

#include "replan/fleet/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SETTLED_STAGES_MAX = 2048 };

/* What a device holds: layers [first, end), of each the part [position, position + 1) / size. */
struct held_layers {
    uint32_t first_layer;
    uint32_t layer_end;
    uint32_t position;
    uint32_t size; /* 0: nothing */
};

/* What every device of the problem holds under a plan, [device_count + 1] by index; devices that
 * the problem lacks share the last place, which nobody reads. */
static struct held_layers *
held_under(const struct cairn_problem *problem, const struct cairn_plan *plan)
{
    struct held_layers *held = calloc((size_t)problem->device_count + 1, sizeof(*held));

    for (uint32_t i = 0; held && i < plan->stage_count; i++) {
        const struct cairn_plan_stage *stage = &plan->stages[i];

        for (uint32_t p = 0; p < stage->device_count; p++)
            held[cairn_problem_device_find(problem, plan->devices[stage->first_device + p])] =
                (struct held_layers){stage->first_layer, stage->first_layer + stage->layer_count, p,
                                     stage->device_count};
    }
    return held;
}

/* How many layers' state both hold. */
static double
shared_layers(const struct held_layers *left, const struct held_layers *right)
{
    uint32_t first =
        left->first_layer > right->first_layer ? left->first_layer : right->first_layer;
    uint32_t end = left->layer_end < right->layer_end ? left->layer_end : right->layer_end;
    double low, high;

    if (left->size == 0 || right->size == 0 || end <= first)
        return 0;
    low = fmax((double)left->position / left->size, (double)right->position / right->size);
    high = fmin((left->position + 1.0) / left->size, (right->position + 1.0) / right->size);
    return high > low ? (high - low) * (end - first) : 0;
}

/* A problem's file may say sizes and times whose sums are more than the type holds. */
static uint64_t
whole(double value)
{
    return value < 0x1p64 ? (uint64_t)value : UINT64_MAX;
}

uint64_t
cairn_migration_payback(double cost_ms, double gain_ms)
{
    return cost_ms > 0 && gain_ms > 0 && gain_ms < INFINITY ? whole(ceil(cost_ms / gain_ms)) : 0;
}

cairn_err
cairn_migration_of(const struct cairn_problem *problem, const struct cairn_plan *from,
                   const struct cairn_plan *plan, struct cairn_migration *out)
{
    struct held_layers *was = held_under(problem, from), *now = held_under(problem, plan);
    double moved = 0, most = 0;

    for (uint32_t i = 0; was && now && i < problem->device_count; i++) {
        double more;

        if (now[i].size == 0)
            continue;
        more = (double)(now[i].layer_end - now[i].first_layer) / now[i].size -
               shared_layers(&was[i], &now[i]);
        more *= (double)problem->layer_bytes;
        if (more < 0.5) /* of a byte: what rounding leaves */
            continue;
        moved += more;
        most = fmax(most, more);
    }
    free(was);
    free(now);
    if (!was || !now)
        return CAIRN_NOMEM;
    out->moved_bytes = whole(moved + 0.5);
    out->migrate_ms = problem->inter_gbps > 0 ? most * 8 / (problem->inter_gbps * 1e6)
                      : moved > 0             ? NAN
                                              : 0;
    return CAIRN_OK;
}

struct cairn_stage_kind
cairn_stage_kind_of(const struct cairn_problem *problem, const struct cairn_plan *plan,
                    const struct cairn_plan_stage *stage)
{
    struct cairn_stage_kind kind = {0, UINT64_MAX};

    for (uint32_t i = 0; i < stage->device_count; i++) {
        uint32_t at = cairn_problem_device_find(problem, plan->devices[stage->first_device + i]);
        const struct cairn_device *device = &problem->devices[at];

        kind.rate = fmax(kind.rate, device->rate);
        if (device->memory_bytes < kind.memory_bytes)
            kind.memory_bytes = device->memory_bytes;
    }
    return kind;
}

/* How many layers of a stage the devices of a group hold, each device's counted; their parts are
 * settled afterwards. */
static uint64_t
group_holds(const struct held_layers *group, uint32_t count, const struct cairn_plan_stage *stage)
{
    uint32_t stage_end = stage->first_layer + stage->layer_count;
    uint64_t held = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t first =
            group[i].first_layer > stage->first_layer ? group[i].first_layer : stage->first_layer;
        uint32_t end = group[i].layer_end < stage_end ? group[i].layer_end : stage_end;

        held += group[i].size > 0 && end > first ? end - first : 0;
    }
    return held;
}

/* Orders a group's devices: each part goes to the device that holds most bytes. */
static void
settle_parts(const struct cairn_problem *problem, struct cairn_plan *plan,
             const struct held_layers *was, const struct cairn_plan_stage *stage)
{
    uint64_t *devices = plan->devices + stage->first_device;

    for (uint32_t p = 0; p < stage->device_count; p++) {
        struct held_layers part = {stage->first_layer, stage->first_layer + stage->layer_count, p,
                                   stage->device_count};
        uint32_t best = p;
        double best_held = -1;
        uint64_t moved;

        for (uint32_t i = p; i < stage->device_count; i++) {
            double held =
                shared_layers(&was[cairn_problem_device_find(problem, devices[i])], &part);

            if (held > best_held) {
                best_held = held;
                best = i;
            }
        }
        moved = devices[p];
        devices[p] = devices[best];
        devices[best] = moved;
    }
}

cairn_err
cairn_migration_settle(const struct cairn_problem *problem, const struct cairn_plan *from,
                       struct cairn_plan *plan)
{
    struct held_layers *was = held_under(problem, from);
    struct cairn_stage_kind *kinds = calloc((size_t)plan->stage_count + 1, sizeof(*kinds));
    /* by the place in plan->devices */
    struct held_layers *held = calloc((size_t)plan->device_count + 1, sizeof(*held));
    uint32_t count = plan->stage_count <= SETTLED_STAGES_MAX ? plan->stage_count : 0;

    if (!was || !kinds || !held) {
        free(was);
        free(kinds);
        free(held);
        return CAIRN_NOMEM;
    }
    for (uint32_t i = 0; i < plan->device_count; i++)
        held[i] = was[cairn_problem_device_find(problem, plan->devices[i])];
    for (uint32_t i = 0; i < plan->stage_count; i++)
        kinds[i] = cairn_stage_kind_of(problem, plan, &plan->stages[i]);
    for (uint32_t i = 0; i < count; i++) { /* stage i takes the best group of those not taken yet */
        struct cairn_plan_stage *stage = &plan->stages[i];
        uint64_t best_held = group_holds(held + stage->first_device, stage->device_count, stage);
        uint32_t best = i, first_device;

        for (uint32_t j = i + 1; j < count; j++) {
            const struct cairn_plan_stage *group = &plan->stages[j];
            uint64_t group_held;

            if (group->device_count != stage->device_count || kinds[j].rate > kinds[i].rate ||
                kinds[j].rate < kinds[i].rate || kinds[j].memory_bytes != kinds[i].memory_bytes)
                continue;
            group_held = group_holds(held + group->first_device, group->device_count, stage);
            if (group_held > best_held) {
                best_held = group_held;
                best = j;
            }
        }
        first_device = stage->first_device;
        stage->first_device = plan->stages[best].first_device;
        plan->stages[best].first_device = first_device;
    }
    for (uint32_t i = 0; i < plan->stage_count; i++)
        settle_parts(problem, plan, was, &plan->stages[i]);
    free(was);
    free(kinds);
    free(held);
    return CAIRN_OK;
}

/* A copy of a plan, whose layers and micro-batches are still those of the original. */
static cairn_err
copy(const struct cairn_plan *from, struct cairn_plan **out)
{
    cairn_err err =
        cairn_plan_create(from->pipeline_count, from->stage_count, from->device_count, out);

    if (err)
        return err;
    memcpy((*out)->pipelines, from->pipelines, from->pipeline_count * sizeof(*from->pipelines));
    memcpy((*out)->stages, from->stages, from->stage_count * sizeof(*from->stages));
    memcpy((*out)->devices, from->devices, from->device_count * sizeof(*from->devices));
    (*out)->pipeline_count = from->pipeline_count;
    (*out)->stage_count = from->stage_count;
    (*out)->device_count = from->device_count;
    return CAIRN_OK;
}

/* The groups of a plan; false where one is none any more. */
static bool
groups_of(const struct cairn_problem *problem, const struct cairn_plan *plan,
          struct cairn_group *groups)
{
    for (uint32_t i = 0; i < plan->stage_count; i++) {
        const struct cairn_plan_stage *stage = &plan->stages[i];
        double cost = cairn_cost_of_size(problem, stage->device_count);
        struct cairn_stage_kind kind;

        for (uint32_t j = 0; j < stage->device_count; j++) {
            uint32_t at =
                cairn_problem_device_find(problem, plan->devices[stage->first_device + j]);

            if (at == problem->device_count || problem->devices[at].rate <= 0)
                return false;
        }
        if (cost <= 0)
            return false;
        kind = cairn_stage_kind_of(problem, plan, stage);
        groups[i] = (struct cairn_group){
            problem->layer_ms * cost * kind.rate,
            cairn_cost_group_bytes(problem, stage->device_count, kind.memory_bytes)};
    }
    return true;
}

cairn_err
cairn_migration_redivide(const struct cairn_problem *problem, const struct cairn_plan *from,
                         struct cairn_plan **out, double *step_ms)
{
    struct cairn_group *groups = calloc((size_t)from->stage_count + 1, sizeof(*groups));
    uint32_t *layers = calloc((size_t)from->stage_count + 1, sizeof(*layers));
    uint32_t *stage_counts = calloc((size_t)from->pipeline_count + 1, sizeof(*stage_counts));
    uint32_t *microbatches = calloc((size_t)from->pipeline_count + 1, sizeof(*microbatches));
    struct cairn_divider *divider = NULL;
    struct cairn_plan *plan = NULL;
    struct cairn_fault fault;
    cairn_err err = groups && layers && stage_counts && microbatches ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        err = copy(from, &plan);
    if (!err)
        err = cairn_divider_create(problem, &divider);
    *step_ms = INFINITY;
    if (!err && groups_of(problem, from, groups)) {
        for (uint32_t i = 0; i < from->pipeline_count; i++)
            stage_counts[i] = from->pipelines[i].stage_count;
        *step_ms =
            cairn_divide(divider, groups, stage_counts, from->pipeline_count, microbatches, layers);
    }
    for (uint32_t i = 0, at = 0; !err && *step_ms < INFINITY && i < plan->pipeline_count; i++) {
        uint32_t next_layer = 0;

        plan->pipelines[i].microbatches = microbatches[i];
        for (uint32_t j = 0; j < plan->pipelines[i].stage_count; j++, at++) {
            plan->stages[at].first_layer = next_layer;
            plan->stages[at].layer_count = layers[at];
            next_layer += layers[at];
        }
    }
    /* `from` comes from outside: only what is a plan by all rules is one. */
    if (!err && (*step_ms == INFINITY || cairn_plan_check(plan, problem, &fault))) {
        cairn_plan_destroy(plan);
        plan = NULL;
    }
    free(groups);
    free(layers);
    free(stage_counts);
    free(microbatches);
    cairn_divider_destroy(divider);
    if (err)
        cairn_plan_destroy(plan);
    else
        *out = plan;
    return err;
}

/* What a pipeline of given stages takes: first_ms with one micro-batch, slowest_ms more for each
 * other. */
struct pace {
    double first_ms;
    double slowest_ms;
};

static struct pace
pace_of(const struct cairn_problem *problem, const struct cairn_plan *plan, uint32_t pipeline)
{
    struct pace pace = {0};

    for (uint32_t j = 0; j < plan->pipelines[pipeline].stage_count; j++) {
        double stage_ms = cairn_plan_stage_ms(plan, problem, pipeline, j);

        pace.first_ms += stage_ms;
        pace.slowest_ms = fmax(pace.slowest_ms, stage_ms);
    }
    return pace;
}

/* Gives out micro-batches, at least one to each pipeline, in the least time that holds them all. It
 * is found by halving, since there may be a million of them; `paces` has one for each pipeline. */
static void
shift(const struct pace *paces, uint32_t total, struct cairn_plan *plan)
{
    double low_ms = 0, high_ms = 0;
    uint64_t given = 0;

    for (uint32_t i = 0; i < plan->pipeline_count; i++)
        high_ms = fmax(high_ms, paces[i].first_ms + total * paces[i].slowest_ms);
    for (uint32_t step = 0; step < 100; step++) {
        double middle_ms = low_ms + (high_ms - low_ms) / 2, count = 0;

        for (uint32_t i = 0; i < plan->pipeline_count; i++)
            count += 1 + floor(fmax(0, middle_ms - paces[i].first_ms) / paces[i].slowest_ms);
        if (count >= total)
            high_ms = middle_ms;
        else
            low_ms = middle_ms;
    }
    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        plan->pipelines[i].microbatches = (uint32_t)fmin(
            total, 1 + floor(fmax(0, high_ms - paces[i].first_ms) / paces[i].slowest_ms));
        given += plan->pipelines[i].microbatches;
    }
    /* those that end at the same time may be too many */
    for (uint32_t i = plan->pipeline_count; i-- > 0;) {
        uint64_t spare = plan->pipelines[i].microbatches - 1;
        uint64_t less = given - total < spare ? given - total : spare;

        plan->pipelines[i].microbatches -= (uint32_t)less;
        given -= less;
    }
}

cairn_err
cairn_migration_shift(const struct cairn_problem *problem, const struct cairn_plan *from,
                      struct cairn_plan **out, double *step_ms)
{
    struct cairn_group *groups = calloc((size_t)from->stage_count + 1, sizeof(*groups));
    struct pace *paces = calloc((size_t)from->pipeline_count + 1, sizeof(*paces));
    struct cairn_plan *plan = NULL;
    struct cairn_fault fault;
    cairn_err err = groups && paces ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        err = copy(from, &plan);
    *step_ms = INFINITY;
    /* `from` comes from outside: only what is a plan by all rules is one. */
    if (!err && from->pipeline_count > 0 && from->pipeline_count <= problem->microbatches &&
        groups_of(problem, from, groups)) {
        bool all_work = true; /* a stage without layers is none, as the check says */

        for (uint32_t i = 0; i < plan->pipeline_count; i++) {
            paces[i] = pace_of(problem, plan, i);
            all_work = all_work && paces[i].slowest_ms > 0;
        }
        if (all_work)
            shift(paces, problem->microbatches, plan);
        err = cairn_plan_check(plan, problem, &fault);
        if (!err)
            *step_ms = cairn_plan_step_ms(plan, problem);
        if (err == CAIRN_INVAL)
            err = CAIRN_OK;
    }
    if (err || *step_ms == INFINITY) {
        cairn_plan_destroy(plan);
        plan = NULL;
    }
    free(groups);
    free(paces);
    if (!err)
        *out = plan;
    return err;
}
