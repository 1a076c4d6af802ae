/* tests/bench/baseline_assign.c - sequences to pipelines: the longest first, and random orders. */
#include "tests/bench/baseline.h"

#include "tests/bench/made.h"

#include <math.h>
#include <stdlib.h>

enum { ORDERS = 50 };

struct item {
    double cost_ms;
    uint64_t tokens;
    uint32_t index;
    uint32_t pinned; /* 1: only one pipeline takes it */
};

struct load {
    double sum_ms;
    double largest_ms;
};

static int
longest_first(const void *left, const void *right)
{
    const struct item *a = left, *b = right;

    if (a->cost_ms < b->cost_ms || a->cost_ms > b->cost_ms)
        return a->cost_ms > b->cost_ms ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

static struct item *
list_items(const struct cairn_assign_problem *problem)
{
    struct item *items = calloc((size_t)problem->sequence_count + 1, sizeof(*items));

    for (uint32_t i = 0; items && i < problem->sequence_count; i++) {
        double s = (double)problem->tokens[i];
        uint32_t takers = 0;

        for (uint32_t j = 0; j < problem->pipeline_count; j++)
            takers += problem->tokens[i] <= problem->pipelines[j].max_tokens;
        items[i] = (struct item){problem->square * s * s + problem->linear * s + problem->constant,
                                 problem->tokens[i], i, takers == 1};
    }
    if (items)
        qsort(items, problem->sequence_count, sizeof(*items), longest_first);
    return items;
}

/* Places items in their order, each where the slowest pipeline's time grows least; of equals the
 * least loaded one. The step's time, INFINITY where one has no place. */
static double
place_all(const struct cairn_assign_problem *problem, const struct item *items, struct load *loads,
          uint32_t *pipelines)
{
    double step_ms = 0;

    for (uint32_t i = 0; i < problem->pipeline_count; i++)
        loads[i] = (struct load){0, 0};
    for (uint32_t i = 0; i < problem->sequence_count; i++) {
        double least_ms = INFINITY, least_own_ms = INFINITY, largest_ms;
        uint32_t to = UINT32_MAX;

        for (uint32_t j = 0; j < problem->pipeline_count; j++) {
            const struct cairn_assign_pipeline *pipeline = &problem->pipelines[j];
            double own_ms, then_ms;

            if (items[i].tokens > pipeline->max_tokens)
                continue;
            largest_ms = fmax(loads[j].largest_ms, items[i].cost_ms);
            own_ms = (loads[j].sum_ms + items[i].cost_ms + (pipeline->stages - 1) * largest_ms) *
                     pipeline->time_scale;
            then_ms = fmax(step_ms, own_ms);
            if (then_ms < least_ms || (then_ms <= least_ms && own_ms < least_own_ms)) {
                least_ms = then_ms;
                least_own_ms = own_ms;
                to = j;
            }
        }
        if (to == UINT32_MAX)
            return INFINITY;
        loads[to].sum_ms += items[i].cost_ms;
        loads[to].largest_ms = fmax(loads[to].largest_ms, items[i].cost_ms);
        step_ms = least_ms;
        pipelines[items[i].index] = to;
    }
    return step_ms;
}

cairn_err
cairn_baseline_longest_first(const struct cairn_assign_problem *problem, uint32_t *pipelines,
                             double *step_ms)
{
    struct item *items = list_items(problem);
    struct load *loads = calloc((size_t)problem->pipeline_count + 1, sizeof(*loads));
    cairn_err err = items && loads ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        *step_ms = place_all(problem, items, loads, pipelines);
    free(items);
    free(loads);
    return err;
}

cairn_err
cairn_baseline_hydraulis(const struct cairn_assign_problem *problem, uint32_t *pipelines,
                         double *step_ms)
{
    struct item *items = list_items(problem);
    struct load *loads = calloc((size_t)problem->pipeline_count + 1, sizeof(*loads));
    cairn_err err = items && loads ? CAIRN_OK : CAIRN_NOMEM;
    uint64_t state = 1;

    *step_ms = INFINITY;
    for (uint32_t order = 0; !err && order < ORDERS; order++) {
        uint32_t pinned = 0;

        for (uint32_t i = problem->sequence_count; i > 1; i--) {
            uint32_t with = cairn_made_below(&state, i);
            struct item swapped = items[i - 1];

            items[i - 1] = items[with];
            items[with] = swapped;
        }
        for (uint32_t i = 0; i < problem->sequence_count; i++)
            if (items[i].pinned) {
                struct item swapped = items[pinned];

                items[pinned++] = items[i];
                items[i] = swapped;
            }
        *step_ms = fmin(*step_ms, place_all(problem, items, loads, pipelines));
    }
    free(items);
    free(loads);
    return err;
}
