/* tests/bench/baseline_malleus.c - plans after Malleus's published procedure. */
#include "tests/bench/baseline.h"

#include "replan/fleet/cost.h"
#include "replan/fleet/divide.h"
#include "replan/fleet/group.h"

#include <math.h>
#include <stdlib.h>

enum { MANY_MICROBATCHES = 1000000, DROPPED_MAX = 8 };
#define STRAGGLES 1.2 /* times the fastest: below that a group counts as healthy */

struct tp_group {
    struct cairn_group group;
    struct cairn_group_place place; /* in the fleet's order */
};

struct attempt {
    const struct cairn_problem *problem;
    const struct cairn_fleet *fleet;
    struct cairn_divider *divider;
    struct tp_group *groups; /* the slowest first */
    uint32_t group_count;
    uint32_t *owner;  /* [group_count] */
    uint32_t *counts; /* [group_count] stages of each pipeline */
};

/* Speed; large groups where that is the same. */
static double
gain_speed(const void *context, uint32_t size_index, double rate, uint64_t memory_bytes)
{
    const struct cairn_problem *problem = context;

    return (1 + 1e-6 * problem->sizes[size_index].size) / (problem->sizes[size_index].cost * rate);
}

static int
slowest_first(const void *left, const void *right)
{
    const struct tp_group *a = left, *b = right;

    if (a->group.layer_ms < b->group.layer_ms || a->group.layer_ms > b->group.layer_ms)
        return a->group.layer_ms > b->group.layer_ms ? -1 : 1;
    return a->place.first < b->place.first ? -1 : 1;
}

/* The groups of all nodes. */
static cairn_err
form_groups(struct attempt *attempt)
{
    const struct cairn_problem *problem = attempt->problem;
    uint32_t all = (1u << problem->size_count) - 1;
    struct cairn_group_place *places = calloc((size_t)problem->device_count + 1, sizeof(*places));
    double total;
    cairn_err err = places ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        err = cairn_group_best(attempt->fleet, all, gain_speed, problem, &total, places,
                               &attempt->group_count);
    for (uint32_t i = 0; !err && i < attempt->group_count; i++) {
        double rate = 0;
        uint64_t memory_bytes = UINT64_MAX;

        for (uint32_t k = 0; k < places[i].size; k++) {
            const struct cairn_device *device =
                &problem->devices[attempt->fleet->order[places[i].first + k]];

            rate = fmax(rate, device->rate);
            memory_bytes =
                device->memory_bytes < memory_bytes ? device->memory_bytes : memory_bytes;
        }
        attempt->groups[i].place = places[i];
        attempt->groups[i].group = (struct cairn_group){
            problem->layer_ms * cairn_cost_of_size(problem, places[i].size) * rate,
            cairn_cost_group_bytes(problem, places[i].size, memory_bytes)};
    }
    free(places);
    if (!err)
        qsort(attempt->groups, attempt->group_count, sizeof(*attempt->groups), slowest_first);
    return err;
}

/* Deals groups from `first` on: each straggler to the pipeline with room that stays the fastest,
 * then the others in turn. */
static void
deal(const struct attempt *attempt, uint32_t first, uint32_t pipelines)
{
    uint32_t count = attempt->group_count - first;
    double fast = 1 / attempt->groups[attempt->group_count - 1].group.layer_ms;

    for (uint32_t i = 0; i < pipelines; i++)
        attempt->counts[i] = 0;
    for (uint32_t i = first; i < attempt->group_count; i++) {
        double most = -1;
        uint32_t to = 0;

        for (uint32_t j = 0; j < pipelines; j++) {
            uint32_t slots = count / pipelines + (j < count % pipelines);
            double speed = fast * (slots - attempt->counts[j]);

            if (attempt->counts[j] == slots)
                continue;
            for (uint32_t k = first; k < i; k++)
                if (attempt->owner[k] == j)
                    speed += 1 / attempt->groups[k].group.layer_ms;
            speed /= slots;
            if (speed > most) {
                most = speed;
                to = j;
            }
        }
        attempt->owner[i] = to;
        attempt->counts[to]++;
    }
}

/* Each micro-batch to the pipeline whose slowest stage would then have worked least. */
static void
give_microbatches(const struct cairn_problem *problem, const double *slowest_ms,
                  struct cairn_plan *plan)
{
    for (uint32_t given = plan->pipeline_count; given < problem->microbatches; given++) {
        uint32_t to = 0;

        for (uint32_t i = 1; i < plan->pipeline_count; i++)
            if ((plan->pipelines[i].microbatches + 1) * slowest_ms[i] <
                (plan->pipelines[to].microbatches + 1) * slowest_ms[to])
                to = i;
        plan->pipelines[to].microbatches++;
    }
}

/* One pipeline of the plan; false where its layers do not fit. */
static bool
add_pipeline(const struct attempt *attempt, uint32_t first, uint32_t pipeline, double *slowest_ms,
             struct cairn_plan *plan)
{
    struct cairn_group *groups = calloc((size_t)attempt->group_count + 1, sizeof(*groups));
    uint32_t *layers = calloc((size_t)attempt->group_count + 1, sizeof(*layers));
    uint32_t stages = 0, at = 0, next_layer = 0;
    bool fits = false;

    for (uint32_t i = first; groups && i < attempt->group_count; i++)
        if (attempt->owner[i] == pipeline)
            groups[stages++] = attempt->groups[i].group;
    if (groups && layers && stages > 0 && stages <= attempt->problem->layers)
        fits = cairn_divide_layers(attempt->divider, groups, stages, MANY_MICROBATCHES, layers) <
               INFINITY;
    if (fits)
        plan->pipelines[plan->pipeline_count++] =
            (struct cairn_plan_pipeline){1, plan->stage_count, stages};
    *slowest_ms = 0;
    for (uint32_t i = first; fits && i < attempt->group_count; i++) {
        const struct cairn_group_place *place = &attempt->groups[i].place;

        if (attempt->owner[i] != pipeline)
            continue;
        plan->stages[plan->stage_count++] =
            (struct cairn_plan_stage){plan->device_count, place->size, next_layer, layers[at]};
        for (uint32_t k = 0; k < place->size; k++)
            plan->devices[plan->device_count++] =
                attempt->problem->devices[attempt->fleet->order[place->first + k]].id;
        *slowest_ms =
            fmax(*slowest_ms,
                 groups[at].layer_ms *
                     (layers[at] + cairn_cost_vocabulary_layers(attempt->problem, at, stages)));
        next_layer += layers[at++];
    }
    free(groups);
    free(layers);
    return fits;
}

/* A plan of so many pipelines without the slowest `first` groups; *out NULL where it does not
 * fit. */
static cairn_err
plan_of(const struct attempt *attempt, uint32_t first, uint32_t pipelines, struct cairn_plan **out)
{
    double *slowest_ms = calloc(pipelines, sizeof(*slowest_ms));
    struct cairn_plan *plan = NULL;
    struct cairn_fault fault;
    bool fits = true;
    cairn_err err = slowest_ms ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        err = cairn_plan_create(pipelines, attempt->group_count, attempt->problem->device_count,
                                &plan);
    if (!err)
        deal(attempt, first, pipelines);
    for (uint32_t i = 0; !err && fits && i < pipelines; i++)
        fits = add_pipeline(attempt, first, i, &slowest_ms[i], plan);
    if (!err && fits) {
        give_microbatches(attempt->problem, slowest_ms, plan);
        fits = cairn_plan_check(plan, attempt->problem, &fault) == CAIRN_OK;
    }
    if (!fits) {
        cairn_plan_destroy(plan);
        plan = NULL;
    }
    free(slowest_ms);
    *out = plan;
    return err;
}

/* All numbers of pipelines, with the slowest groups suspended one after the other as long as they
 * straggle. */
static cairn_err
try_all(const struct attempt *attempt, struct cairn_plan **out)
{
    double best_ms = INFINITY;
    cairn_err err = CAIRN_OK;

    for (uint32_t first = 0; !err && first <= DROPPED_MAX && first < attempt->group_count;
         first++) {
        uint32_t count = attempt->group_count - first;

        for (uint32_t pipelines = 1; !err && pipelines <= count; pipelines++) {
            struct cairn_plan *plan = NULL;
            double step_ms;

            if (pipelines > attempt->problem->microbatches)
                break;
            err = plan_of(attempt, first, pipelines, &plan);
            step_ms = plan ? cairn_plan_step_ms(plan, attempt->problem) : INFINITY;
            if (step_ms < best_ms) {
                cairn_plan_destroy(*out);
                *out = plan;
                best_ms = step_ms;
            } else {
                cairn_plan_destroy(plan);
            }
        }
        if (attempt->groups[first].group.layer_ms <
            STRAGGLES * attempt->groups[attempt->group_count - 1].group.layer_ms)
            break;
    }
    return err;
}

cairn_err
cairn_baseline_malleus(const struct cairn_problem *problem, struct cairn_plan **out)
{
    struct attempt attempt = {.problem = problem};
    struct cairn_fleet *fleet = NULL;
    cairn_err err = cairn_fleet_create(problem, &fleet);

    *out = NULL;
    attempt.fleet = fleet;
    attempt.groups = calloc((size_t)problem->device_count + 1, sizeof(*attempt.groups));
    attempt.owner = calloc((size_t)problem->device_count + 1, sizeof(*attempt.owner));
    attempt.counts = calloc((size_t)problem->device_count + 1, sizeof(*attempt.counts));
    if (!err && (!attempt.groups || !attempt.owner || !attempt.counts))
        err = CAIRN_NOMEM;
    if (!err)
        err = cairn_divider_create(problem, &attempt.divider);
    if (!err)
        err = form_groups(&attempt);
    if (!err)
        err = try_all(&attempt, out);
    free(attempt.groups);
    free(attempt.owner);
    free(attempt.counts);
    cairn_divider_destroy(attempt.divider);
    cairn_fleet_destroy(fleet);
    return err;
}
