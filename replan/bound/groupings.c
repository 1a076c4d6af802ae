/* replan/bound/groupings.c - groups of nodes with two amounts of memory. */
#include "replan/bound/groupings.h"

#include "replan/fleet/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS_MAX = 2000, STEPS_MAX = 100000, STATES_MAX = 4000 };

/* One more group of a node: from how many devices of each amount of memory are in groups, to how
 * many are then. States are numbered row by row. */
struct cairn_node_step {
    uint32_t from, to, kind, size; /* size: its index */
};

struct cairn_node_groups {
    uint32_t first_step, step_count; /* ascending in `from` */
    uint32_t state_count;
    uint32_t row;   /* states of a row: devices of less memory, and one more */
    uint32_t alike; /* nodes that this one stands for */
};

/* A node's devices by amount of memory, the fastest first. */
struct sorted {
    const struct cairn_device **devices[2];
    uint32_t counts[2];
    uint64_t bytes[2];
};

static cairn_err
kind_of(struct cairn_groupings *groupings, double layer_ms, uint64_t bytes, uint32_t *kind)
{
    uint32_t at = 0;

    while (at < groupings->kind_count &&
           (groupings->kinds[at].bytes != bytes || groupings->kinds[at].layer_ms < layer_ms ||
            groupings->kinds[at].layer_ms > layer_ms))
        at++;
    if (at == KINDS_MAX)
        return CAIRN_NOT_FOUND;
    if (at == groupings->kind_count)
        groupings->kinds[groupings->kind_count++] = (struct cairn_group_kind){layer_ms, bytes};
    *kind = at;
    return CAIRN_OK;
}

static void
sort_node(const struct cairn_fleet *fleet, uint32_t node, struct sorted *out)
{
    uint64_t most = fleet->node_memory_bytes[node], next = 0;

    out->counts[0] = out->counts[1] = 0;
    for (uint32_t i = fleet->node_first[node]; i < fleet->node_first[node + 1]; i++) {
        const struct cairn_device *device = &fleet->problem->devices[fleet->order[i]];
        uint32_t amount = device->memory_bytes < most;

        if (amount && device->memory_bytes > next)
            next = device->memory_bytes;
        out->devices[amount][out->counts[amount]++] = device;
    }
    out->bytes[0] = most;
    out->bytes[1] = next;
}

/* All groups that may come next, after `large` and `small` devices that have their places. */
static cairn_err
add_steps(struct cairn_groupings *groupings, const struct cairn_problem *problem,
          const struct sorted *sorted, uint32_t large, uint32_t small)
{
    uint32_t row = sorted->counts[1] + 1;

    for (uint32_t i = 0; i < problem->size_count; i++) {
        uint32_t size = problem->sizes[i].size;

        for (uint32_t of_small = 0; of_small <= size; of_small++) {
            uint32_t of_large = size - of_small, kind;
            double rate = 0;
            uint64_t bytes;
            cairn_err err;

            if (large + of_large > sorted->counts[0] || small + of_small > sorted->counts[1])
                continue;
            if (of_large > 0)
                rate = sorted->devices[0][large + of_large - 1]->rate;
            if (of_small > 0 && sorted->devices[1][small + of_small - 1]->rate > rate)
                rate = sorted->devices[1][small + of_small - 1]->rate;
            bytes = cairn_cost_group_bytes(problem, size, sorted->bytes[of_small > 0]);
            if (bytes == 0)
                continue;
            if (groupings->step_count == STEPS_MAX)
                return CAIRN_NOT_FOUND;
            err =
                kind_of(groupings, problem->layer_ms * problem->sizes[i].cost * rate, bytes, &kind);
            if (err)
                return err;
            groupings->steps[groupings->step_count++] = (struct cairn_node_step){
                large * row + small, (large + of_large) * row + small + of_small, kind, i};
        }
    }
    return CAIRN_OK;
}

static cairn_err
add_node(struct cairn_groupings *groupings, const struct cairn_problem *problem,
         const struct sorted *sorted)
{
    struct cairn_node_groups *node = &groupings->sorts[groupings->sort_count++];
    uint64_t states = ((uint64_t)sorted->counts[0] + 1) * ((uint64_t)sorted->counts[1] + 1);
    cairn_err err = states > STATES_MAX ? CAIRN_NOT_FOUND : CAIRN_OK;

    *node = (struct cairn_node_groups){groupings->step_count, 0, (uint32_t)states,
                                       sorted->counts[1] + 1, 1};
    for (uint32_t large = 0; !err && large <= sorted->counts[0]; large++)
        for (uint32_t small = 0; !err && small <= sorted->counts[1]; small++)
            err = add_steps(groupings, problem, sorted, large, small);
    node->step_count = groupings->step_count - node->first_step;
    return err;
}

cairn_err
cairn_groupings_create(const struct cairn_fleet *fleet, struct cairn_groupings **out)
{
    struct cairn_groupings *groupings = calloc(1, sizeof(*groupings));
    struct sorted sorted = {.counts = {0, 0}};
    cairn_err err = CAIRN_NOMEM;

    if (!groupings)
        goto done;
    for (uint32_t node = 0; node < fleet->node_count; node++) {
        uint32_t room = fleet->node_first[node + 1] - fleet->node_first[node] + 1;

        groupings->room = room > groupings->room ? room : groupings->room;
    }
    groupings->size_count = fleet->problem->size_count;
    groupings->kinds = calloc(KINDS_MAX, sizeof(*groupings->kinds));
    groupings->sorts = calloc((size_t)fleet->node_count + 1, sizeof(*groupings->sorts));
    groupings->steps = calloc(STEPS_MAX, sizeof(*groupings->steps));
    groupings->sort_of = calloc((size_t)fleet->node_count + 1, sizeof(*groupings->sort_of));
    groupings->chosen =
        calloc((size_t)fleet->node_count * groupings->room + 1, sizeof(*groupings->chosen));
    groupings->total = calloc(STATES_MAX, sizeof(*groupings->total));
    groupings->last = calloc(STATES_MAX, sizeof(*groupings->last));
    for (int i = 0; i < 2; i++)
        sorted.devices[i] = calloc((size_t)fleet->device_count + 1, sizeof(*sorted.devices[i]));
    if (!groupings->kinds || !groupings->sorts || !groupings->steps || !groupings->sort_of ||
        !groupings->chosen || !groupings->total || !groupings->last || !sorted.devices[0] ||
        !sorted.devices[1])
        goto done;
    err = CAIRN_OK;
    for (uint32_t node = 0; !err && node < fleet->node_count; node++) {
        if (fleet->node_alike[node] != node) {
            groupings->sort_of[node] = groupings->sort_of[fleet->node_alike[node]];
            groupings->sorts[groupings->sort_of[node]].alike++;
            continue;
        }
        groupings->sort_of[node] = groupings->sort_count;
        sort_node(fleet, node, &sorted);
        err = add_node(groupings, fleet->problem, &sorted);
    }
    if (err)
        goto done;
    *out = groupings;
    groupings = NULL;
done:
    cairn_groupings_destroy(groupings);
    free(sorted.devices[0]);
    free(sorted.devices[1]);
    return err;
}

void
cairn_groupings_destroy(struct cairn_groupings *groupings)
{
    if (!groupings)
        return;
    free(groupings->kinds);
    free(groupings->sorts);
    free(groupings->steps);
    free(groupings->sort_of);
    free(groupings->chosen);
    free(groupings->total);
    free(groupings->last);
    free(groupings);
}

double
cairn_groupings_best(struct cairn_groupings *groupings, const double *gain, const double *more,
                     uint32_t *used, uint32_t *formed)
{
    double all = 0;

    memset(used, 0, groupings->kind_count * sizeof(*used));
    memset(formed, 0, (size_t)groupings->sort_count * groupings->size_count * sizeof(*formed));
    for (uint32_t n = 0; n < groupings->sort_count; n++) {
        const struct cairn_node_groups *node = &groupings->sorts[n];
        const struct cairn_node_step *steps = &groupings->steps[node->first_step];
        const double *own_more = &more[n * groupings->size_count];
        double *total = groupings->total;
        uint32_t *chosen = &groupings->chosen[n * groupings->room];
        uint32_t best = 0;

        for (uint32_t i = 0; i < node->state_count; i++) {
            total[i] = i == 0 ? 0 : -INFINITY; /* not reached */
            groupings->last[i] = UINT32_MAX;
        }
        for (uint32_t i = 0; i < node->step_count; i++) {
            double with = total[steps[i].from] + gain[steps[i].kind] + own_more[steps[i].size];

            if (with > total[steps[i].to]) {
                total[steps[i].to] = with;
                groupings->last[steps[i].to] = i;
            }
        }
        for (uint32_t i = 1; i < node->state_count; i++)
            if (total[i] > total[best])
                best = i;
        all += total[best] * node->alike;
        for (uint32_t at = best; groupings->last[at] != UINT32_MAX;
             at = steps[groupings->last[at]].from) {
            used[steps[groupings->last[at]].kind] += node->alike;
            formed[n * groupings->size_count + steps[groupings->last[at]].size] += node->alike;
            *chosen++ = groupings->last[at];
        }
        *chosen = UINT32_MAX;
    }
    return all;
}

struct cairn_group_span
cairn_groupings_span(const struct cairn_groupings *groupings, uint32_t sort, uint32_t step)
{
    const struct cairn_node_groups *node = &groupings->sorts[sort];
    const struct cairn_node_step *own = &groupings->steps[node->first_step + step];

    return (struct cairn_group_span){{own->from / node->row, own->from % node->row},
                                     {own->to / node->row, own->to % node->row},
                                     own->kind,
                                     own->size};
}
