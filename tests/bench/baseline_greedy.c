/* tests/bench/baseline_greedy.c - plans of groups dealt in turn, layers by speed and memory. */
#include "tests/bench/baseline.h"

#include "replan/fleet/cost.h"

#include <math.h>
#include <stdlib.h>

struct stage {
    uint32_t first; /* in the order of devices */
    double layer_ms;
    uint64_t bytes;
};

struct greedy {
    const struct cairn_problem *problem;
    uint32_t *order; /* [device_count] live devices, node by node */
    uint32_t device_count;
    struct stage *groups; /* [device_count] */
    uint32_t group_count;
    struct stage *stages; /* [device_count] pipeline after pipeline */
    uint32_t *layers;     /* [device_count] */
    uint32_t *microbatches;
    double *slowest_ms;
    double *sum_ms;
    double best_ms;
    struct cairn_plan *best;
};

static const struct cairn_problem *sorted_problem; /* qsort has no context */

static int
by_rate(const void *left, const void *right)
{
    const struct cairn_device *a = &sorted_problem->devices[*(const uint32_t *)left];
    const struct cairn_device *b = &sorted_problem->devices[*(const uint32_t *)right];

    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    if (a->rate < b->rate || a->rate > b->rate)
        return a->rate < b->rate ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static int
by_memory(const void *left, const void *right)
{
    const struct cairn_device *a = &sorted_problem->devices[*(const uint32_t *)left];
    const struct cairn_device *b = &sorted_problem->devices[*(const uint32_t *)right];

    if (a->node == b->node && a->memory_bytes != b->memory_bytes)
        return a->memory_bytes > b->memory_bytes ? -1 : 1;
    return by_rate(left, right);
}

static int
fastest_first(const void *left, const void *right)
{
    const struct stage *a = left, *b = right;

    if (a->layer_ms < b->layer_ms || a->layer_ms > b->layer_ms)
        return a->layer_ms < b->layer_ms ? -1 : 1;
    return a->first < b->first ? -1 : a->first > b->first;
}

static int
largest_first(const void *left, const void *right)
{
    const struct stage *a = left, *b = right;

    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return fastest_first(left, right);
}

static void
form_groups(struct greedy *greedy, const struct cairn_group_size *size)
{
    const struct cairn_problem *problem = greedy->problem;

    greedy->group_count = 0;
    for (uint32_t i = 0; i + size->size <= greedy->device_count;) {
        struct stage group = {i, 0, UINT64_MAX};
        uint64_t node = problem->devices[greedy->order[i]].node;
        uint32_t count = 0;

        for (; count < size->size; count++) {
            const struct cairn_device *device = &problem->devices[greedy->order[i + count]];

            if (device->node != node)
                break;
            group.layer_ms = fmax(group.layer_ms, problem->layer_ms * size->cost * device->rate);
            group.bytes = device->memory_bytes < group.bytes ? device->memory_bytes : group.bytes;
        }
        group.bytes = cairn_cost_group_bytes(problem, size->size, group.bytes);
        if (count == size->size)
            greedy->groups[greedy->group_count++] = group;
        i += count;
    }
}

/* Layers of one pipeline, one by one; false where they do not fit. */
static bool
give_layers(const struct greedy *greedy, const struct stage *stages, uint32_t count,
            uint32_t microbatches, uint32_t *layers)
{
    const struct cairn_problem *problem = greedy->problem;

    for (uint32_t j = 0; j < count; j++) {
        layers[j] = 1;
        if (cairn_cost_layers_max(problem, stages[j].bytes,
                                  cairn_cost_in_flight(j, count, microbatches)) < 1)
            return false;
    }
    for (uint32_t given = count; given < problem->layers; given++) {
        double least_ms = INFINITY;
        uint32_t to = 0;

        for (uint32_t j = 0; j < count; j++) {
            double ms = stages[j].layer_ms *
                        (layers[j] + 1 + cairn_cost_vocabulary_layers(problem, j, count));

            if (ms < least_ms &&
                cairn_cost_layers_max(problem, stages[j].bytes,
                                      cairn_cost_in_flight(j, count, microbatches)) > layers[j]) {
                least_ms = ms;
                to = j;
            }
        }
        if (least_ms == INFINITY)
            return false;
        layers[to]++;
    }
    return true;
}

static cairn_err
take(struct greedy *greedy, uint32_t size, uint32_t pipelines, uint32_t count, double step_ms)
{
    struct cairn_plan *plan = NULL;
    struct cairn_fault fault;
    cairn_err err =
        cairn_plan_create(pipelines, pipelines * count, pipelines * count * size, &plan);

    for (uint32_t i = 0; !err && i < pipelines; i++) {
        uint32_t next_layer = 0;

        plan->pipelines[plan->pipeline_count++] =
            (struct cairn_plan_pipeline){greedy->microbatches[i], i * count, count};
        for (uint32_t j = i * count; j < (i + 1) * count; j++) {
            plan->stages[plan->stage_count++] =
                (struct cairn_plan_stage){plan->device_count, size, next_layer, greedy->layers[j]};
            next_layer += greedy->layers[j];
            for (uint32_t k = 0; k < size; k++)
                plan->devices[plan->device_count++] =
                    greedy->problem->devices[greedy->order[greedy->stages[j].first + k]].id;
        }
    }
    if (!err && cairn_plan_check(plan, greedy->problem, &fault)) {
        cairn_plan_destroy(plan);
        return CAIRN_OK;
    }
    if (err)
        return err;
    cairn_plan_destroy(greedy->best);
    greedy->best = plan;
    greedy->best_ms = step_ms;
    return CAIRN_OK;
}

/* Deals the first groups to so many pipelines of so many stages. */
static cairn_err
try_deal(struct greedy *greedy, uint32_t size, uint32_t pipelines, uint32_t count,
         int (*stage_order)(const void *, const void *))
{
    const struct cairn_problem *problem = greedy->problem;
    double step_ms = 0;

    for (uint32_t i = 0; i < pipelines; i++) {
        struct stage *own = &greedy->stages[i * count];

        for (uint32_t j = 0; j < count; j++)
            own[j] = greedy->groups[j * pipelines + (j % 2 ? pipelines - 1 - i : i)];
        qsort(own, count, sizeof(*own), stage_order);
        for (uint32_t j = 0; j < count / 2; j++) { /* the slowest, or the smallest, in front */
            struct stage other = own[j];

            own[j] = own[count - 1 - j];
            own[count - 1 - j] = other;
        }
        if (!give_layers(greedy, own, count, problem->microbatches / pipelines + 1,
                         &greedy->layers[i * count]))
            return CAIRN_OK;
        greedy->slowest_ms[i] = greedy->sum_ms[i] = 0;
        for (uint32_t j = 0; j < count; j++) {
            double ms = own[j].layer_ms * (greedy->layers[i * count + j] +
                                           cairn_cost_vocabulary_layers(problem, j, count));

            greedy->slowest_ms[i] = fmax(greedy->slowest_ms[i], ms);
            greedy->sum_ms[i] += ms;
        }
        greedy->microbatches[i] = 1;
    }
    for (uint32_t given = pipelines; given < problem->microbatches; given++) {
        uint32_t to = 0;

        for (uint32_t i = 1; i < pipelines; i++)
            if (greedy->microbatches[i] * greedy->slowest_ms[i] + greedy->sum_ms[i] <
                greedy->microbatches[to] * greedy->slowest_ms[to] + greedy->sum_ms[to])
                to = i;
        greedy->microbatches[to]++;
    }
    for (uint32_t i = 0; i < pipelines; i++)
        step_ms = fmax(step_ms,
                       (greedy->microbatches[i] - 1) * greedy->slowest_ms[i] + greedy->sum_ms[i]);
    return step_ms < greedy->best_ms ? take(greedy, size, pipelines, count, step_ms) : CAIRN_OK;
}

static cairn_err
try_groups(struct greedy *greedy, uint32_t size)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t pipelines = 1; pipelines <= greedy->group_count; pipelines++) {
        if (pipelines > greedy->problem->microbatches)
            break;
        for (uint32_t count = 1;
             !err && count * pipelines <= greedy->group_count && count <= greedy->problem->layers;
             count++) {
            err = try_deal(greedy, size, pipelines, count, fastest_first);
            if (!err)
                err = try_deal(greedy, size, pipelines, count, largest_first);
        }
    }
    return err;
}

cairn_err
cairn_baseline_greedy(const struct cairn_problem *problem, struct cairn_plan **out)
{
    size_t room = (size_t)problem->device_count + 1;
    struct greedy greedy = {.problem = problem, .best_ms = INFINITY};
    cairn_err err = CAIRN_OK;

    greedy.order = calloc(room, sizeof(*greedy.order));
    greedy.groups = calloc(room, sizeof(*greedy.groups));
    greedy.stages = calloc(room, sizeof(*greedy.stages));
    greedy.layers = calloc(room, sizeof(*greedy.layers));
    greedy.microbatches = calloc(room, sizeof(*greedy.microbatches));
    greedy.slowest_ms = calloc(room, sizeof(*greedy.slowest_ms));
    greedy.sum_ms = calloc(room, sizeof(*greedy.sum_ms));
    if (!greedy.order || !greedy.groups || !greedy.stages || !greedy.layers ||
        !greedy.microbatches || !greedy.slowest_ms || !greedy.sum_ms)
        err = CAIRN_NOMEM;
    for (uint32_t i = 0; !err && i < problem->device_count; i++)
        if (problem->devices[i].rate > 0 &&
            problem->devices[i].memory_bytes >= problem->reserved_bytes)
            greedy.order[greedy.device_count++] = i;
    sorted_problem = problem;
    for (int memory = 0; !err && memory < 2; memory++) {
        qsort(greedy.order, greedy.device_count, sizeof(*greedy.order),
              memory ? by_memory : by_rate);
        for (uint32_t i = 0; !err && i < problem->size_count; i++) {
            form_groups(&greedy, &problem->sizes[i]);
            qsort(greedy.groups, greedy.group_count, sizeof(*greedy.groups), fastest_first);
            err = try_groups(&greedy, problem->sizes[i].size);
            qsort(greedy.groups, greedy.group_count, sizeof(*greedy.groups), largest_first);
            if (!err)
                err = try_groups(&greedy, problem->sizes[i].size);
        }
    }
    free(greedy.order);
    free(greedy.groups);
    free(greedy.stages);
    free(greedy.layers);
    free(greedy.microbatches);
    free(greedy.slowest_ms);
    free(greedy.sum_ms);
    if (err)
        cairn_plan_destroy(greedy.best);
    else
        *out = greedy.best;
    return err;
}
