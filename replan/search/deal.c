/* replan/search/deal.c - which pipeline each group is dealt to at first. */
#include "replan/search/deal.h"

#include "replan/fleet/cost.h"

#include <stdbool.h>
#include <stdlib.h>

/* Pipelines by what they were dealt: a heap, the one with least on top, of equals the first. */
struct dealt {
    double had;
    uint32_t pipeline;
};

static bool
has_less(const struct dealt *left, const struct dealt *right)
{
    return left->had < right->had || (left->had <= right->had && left->pipeline < right->pipeline);
}

/* Gives to the pipeline on top, and lets it sink. */
static uint32_t
deal_one(struct dealt *heap, uint32_t count, double more)
{
    uint32_t to = heap[0].pipeline, at = 0;

    heap[0].had += more;
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        struct dealt sinking = heap[at];

        if (child + 1 < count && has_less(&heap[child + 1], &heap[child]))
            child++;
        if (!has_less(&heap[child], &sinking))
            break;
        heap[at] = heap[child];
        heap[child] = sinking;
    }
    return to;
}

/* Deals as many units to each pipeline: the slowest first, each to the pipeline whose places have
 * lost least speed so far. pipeline_of[unit_count]. CAIRN_NOMEM. */
static cairn_err
deal_evenly(const struct cairn_unit *units, uint32_t unit_count, uint32_t count,
            uint32_t *pipeline_of)
{
    struct dealt *heap = calloc(count, sizeof(*heap)); /* had: what a place has lost on average */
    uint32_t *left = calloc(count, sizeof(*left));
    double fastest = 1 / units[0].group.layer_ms;
    uint32_t heap_count = 0;
    cairn_err err = heap && left ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t i = 0; !err && i < count; i++) {
        left[i] = unit_count / count + (i < unit_count % count);
        heap[heap_count++] = (struct dealt){0, i};
    }
    for (uint32_t unit = unit_count; !err && unit-- > 0;) {
        uint32_t to = heap[0].pipeline;
        uint32_t places = unit_count / count + (to < unit_count % count);

        pipeline_of[unit] = to;
        if (--left[to] == 0) { /* full: the last of the heap takes its place, and sinks */
            heap[0] = heap[--heap_count];
            (void)deal_one(heap, heap_count, 0);
        } else {
            (void)deal_one(heap, heap_count, (fastest - 1 / units[unit].group.layer_ms) / places);
        }
    }
    free(heap);
    free(left);
    return err;
}

/* Groups that hold the model alone are pipelines by themselves; of the others, in order of speed,
 * as few together as hold it. What is left at the end goes to the last. */
static void
deal_apart(const struct cairn_problem *problem, const struct cairn_unit *units, uint32_t unit_count,
           uint32_t count, uint32_t *pipeline_of)
{
    uint32_t next = 0, stages = 0, last = count - 1;
    uint64_t least_bytes = UINT64_MAX;

    for (uint32_t unit = 0; unit < unit_count; unit++)
        if (cairn_cost_layers_max(problem, units[unit].group.bytes, 1) >= problem->layers)
            pipeline_of[unit] = next < count ? next++ : last;
    for (uint32_t unit = 0; unit < unit_count; unit++) {
        uint64_t bytes = units[unit].group.bytes;

        if (cairn_cost_layers_max(problem, bytes, 1) >= problem->layers)
            continue;
        pipeline_of[unit] = next < count ? next : last;
        least_bytes = bytes < least_bytes ? bytes : least_bytes;
        stages++;
        /* As if all had the memory of the least, and as many micro-batches in flight as there are
         * stages. */
        if ((uint64_t)stages * cairn_cost_layers_max(problem, least_bytes, stages) <
            problem->layers)
            continue;
        next += next < count;
        stages = 0;
        least_bytes = UINT64_MAX;
    }
}

static int
by_memory(const void *left, const void *right)
{
    const struct cairn_unit *a = *(const struct cairn_unit *const *)left;
    const struct cairn_unit *b = *(const struct cairn_unit *const *)right;

    if (a->group.bytes != b->group.bytes)
        return a->group.bytes > b->group.bytes ? -1 : 1;
    return a < b ? -1 : a > b; /* the faster first */
}

/* Deals the first units in turn, back and forth; the others to nobody. CAIRN_NOMEM. */
static cairn_err
deal_in_turn(const struct cairn_unit *units, uint32_t unit_count, uint32_t dealt, uint32_t count,
             bool memory, uint32_t *pipeline_of)
{
    const struct cairn_unit **order = calloc((size_t)unit_count + 1, sizeof(*order));

    if (!order)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < unit_count; i++)
        order[i] = &units[i];
    if (memory)
        qsort(order, unit_count, sizeof(*order), by_memory);
    for (uint32_t i = 0; i < unit_count; i++) {
        uint32_t to = i % (2 * count);

        pipeline_of[order[i] - units] = i >= dealt ? count : to < count ? to : 2 * count - 1 - to;
    }
    free(order);
    return CAIRN_OK;
}

cairn_err
cairn_deal_units(const struct cairn_problem *problem, const struct cairn_unit *units,
                 uint32_t unit_count, uint32_t dealt, uint32_t pipeline_count, enum cairn_deal deal,
                 uint32_t *pipeline_of)
{
    struct dealt *heap;

    if (deal == CAIRN_DEAL_APART) {
        deal_apart(problem, units, unit_count, pipeline_count, pipeline_of);
        return CAIRN_OK;
    }
    if (deal == CAIRN_DEAL_TURN || deal == CAIRN_DEAL_TURN_MEMORY)
        return deal_in_turn(units, unit_count, dealt, pipeline_count,
                            deal == CAIRN_DEAL_TURN_MEMORY, pipeline_of);
    if (deal == CAIRN_DEAL_EVEN)
        return deal_evenly(units, unit_count, pipeline_count, pipeline_of);
    heap = calloc(pipeline_count, sizeof(*heap));
    if (!heap)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < pipeline_count; i++)
        heap[i].pipeline = i;
    for (uint32_t unit = 0; unit < unit_count; unit++) {
        const struct cairn_group *group = &units[unit].group;

        pipeline_of[unit] =
            deal == CAIRN_DEAL_ALIKE
                ? (uint32_t)((uint64_t)unit * pipeline_count / unit_count)
                : deal_one(heap, pipeline_count,
                           deal == CAIRN_DEAL_SPEED ? 1 / group->layer_ms : (double)group->bytes);
    }
    free(heap);
    return CAIRN_OK;
}
