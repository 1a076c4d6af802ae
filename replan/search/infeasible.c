/* replan/search/infeasible.c - why no plan fits. */
#include "replan/search/infeasible.h"

#include "replan/fleet/cost.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int
downwards(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return a > b ? -1 : a < b;
}

/* Whether one pipeline of groups of one size holds all layers when every device has more_bytes
 * more: the devices of a node with most memory are grouped with each other, and of the groups the
 * largest stand last, where a layer has the fewest activations. groups[device_count] is working
 * memory. */
static bool
fits(const struct cairn_fleet *fleet, uint32_t size, uint64_t more_bytes, uint64_t *memory,
     uint64_t *groups)
{
    const struct cairn_problem *problem = fleet->problem;
    uint32_t group_count = 0;
    uint64_t layers = 0;

    for (uint32_t node = 0; node < fleet->node_count; node++) {
        uint32_t first = fleet->node_first[node], count = fleet->node_first[node + 1] - first;

        for (uint32_t i = 0; i < count; i++)
            memory[i] = problem->devices[fleet->order[first + i]].memory_bytes + more_bytes;
        qsort(memory, count, sizeof(*memory), downwards);
        for (uint32_t i = size; i <= count; i += size)
            groups[group_count++] = cairn_cost_group_bytes(problem, size, memory[i - 1]);
    }
    qsort(groups, group_count, sizeof(*groups), downwards);
    for (uint32_t i = 0; i < group_count && i < problem->layers && layers < problem->layers; i++)
        layers += cairn_cost_layers_max(problem, groups[i],
                                        cairn_cost_in_flight(0, i + 1, problem->microbatches));
    return layers >= problem->layers;
}

/* The least memory more per device with which groups of some size fit. */
static uint64_t
least_more_bytes(const struct cairn_fleet *fleet, uint64_t *memory, uint64_t *groups,
                 uint32_t *size)
{
    const struct cairn_problem *problem = fleet->problem;
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < problem->size_count; i++) {
        uint64_t low = 0, high = 1;

        while (high < CAIRN_PROBLEM_BYTES_MAX &&
               !fits(fleet, problem->sizes[i].size, high - 1, memory, groups))
            high *= 2;
        if (high >= CAIRN_PROBLEM_BYTES_MAX)
            continue;
        for (high--; low < high;) {
            uint64_t middle = low + (high - low) / 2;

            if (fits(fleet, problem->sizes[i].size, middle, memory, groups))
                high = middle;
            else
                low = middle + 1;
        }
        if (low < least) {
            least = low;
            *size = problem->sizes[i].size;
        }
    }
    return least;
}

cairn_err
cairn_infeasible_why(const struct cairn_fleet *fleet, struct cairn_infeasible *out)
{
    const struct cairn_problem *problem = fleet->problem;
    uint32_t most = 0, size = 0;
    uint64_t *memory, *groups;

    for (uint32_t node = 0; node < fleet->node_count; node++)
        if (fleet->node_first[node + 1] - fleet->node_first[node] > most)
            most = fleet->node_first[node + 1] - fleet->node_first[node];
    *out = (struct cairn_infeasible){.constraint = "devices"};
    if (fleet->device_count == 0) {
        (void)snprintf(out->would_fit, sizeof(out->would_fit),
                       "%s: at least %u in one node must be alive",
                       problem->device_count ? "all devices are dead" : "there are no devices",
                       problem->sizes[0].size);
        return CAIRN_OK;
    }
    if (most < problem->sizes[0].size) {
        out->constraint = "groups";
        (void)snprintf(
            out->would_fit, sizeof(out->would_fit),
            "no node has more than %u live devices: a size of at most %u in tp_cost, or %u of "
            "them in one node",
            most, most, problem->sizes[0].size);
        return CAIRN_OK;
    }
    memory = calloc(fleet->device_count, sizeof(*memory));
    groups = calloc(fleet->device_count, sizeof(*groups));
    if (memory && groups) {
        out->constraint = "memory";
        out->short_by_bytes = least_more_bytes(fleet, memory, groups, &size);
        (void)snprintf(out->would_fit, sizeof(out->would_fit),
                       "%" PRIu64
                       " bytes more on every device, or reserved_bytes lower by as much: then one "
                       "pipeline of groups of %u fits",
                       out->short_by_bytes, size);
        if (out->short_by_bytes == 0)
            (void)snprintf(out->would_fit, sizeof(out->would_fit),
                           "one pipeline of groups of %u should fit, and was not found: that is "
                           "the planner's fault, so report it with "
                           "the problem's file",
                           size);
        if (out->short_by_bytes == UINT64_MAX)
            (void)snprintf(out->would_fit, sizeof(out->would_fit),
                           "no memory that devices have would do; use fewer or smaller layers");
    }
    free(memory);
    free(groups);
    return memory && groups ? CAIRN_OK : CAIRN_NOMEM;
}
