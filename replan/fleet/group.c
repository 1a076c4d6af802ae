/* replan/fleet/group.c - groups of devices within nodes. */
#include "replan/fleet/group.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

bool
cairn_fleet_mixes_memory(const struct cairn_fleet *fleet)
{
    const struct cairn_device *devices = fleet->problem->devices;

    for (uint32_t i = 1; i < fleet->device_count; i++) {
        const struct cairn_device *one = &devices[fleet->order[i - 1]];
        const struct cairn_device *other = &devices[fleet->order[i]];

        if (one->node == other->node && one->memory_bytes != other->memory_bytes)
            return true;
    }
    return false;
}

void
cairn_fleet_destroy(struct cairn_fleet *fleet)
{
    if (!fleet)
        return;
    free(fleet->order);
    free(fleet->node_first);
    free(fleet->node_alike);
    free(fleet->node_memory_bytes);
    free(fleet);
}

struct placed {
    const struct cairn_device *device;
    uint32_t index;
};

static int
by_node_and_rate(const void *left, const void *right)
{
    const struct cairn_device *a = ((const struct placed *)left)->device;
    const struct cairn_device *b = ((const struct placed *)right)->device;

    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    if (a->rate < b->rate || a->rate > b->rate)
        return a->rate < b->rate ? -1 : 1;
    if (a->memory_bytes != b->memory_bytes)
        return a->memory_bytes > b->memory_bytes ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static int
by_node_and_memory(const void *left, const void *right)
{
    const struct cairn_device *a = ((const struct placed *)left)->device;
    const struct cairn_device *b = ((const struct placed *)right)->device;

    if (a->node == b->node && a->memory_bytes != b->memory_bytes)
        return a->memory_bytes > b->memory_bytes ? -1 : 1;
    return by_node_and_rate(left, right);
}

static void
fill(struct cairn_fleet *fleet, const struct placed *placed)
{
    for (uint32_t i = 0; i < fleet->device_count; i++) {
        const struct cairn_device *device = placed[i].device;

        fleet->order[i] = placed[i].index;
        if (i == 0 || device->node != placed[i - 1].device->node)
            fleet->node_first[fleet->node_count++] = i;
        if (device->memory_bytes > fleet->node_memory_bytes[fleet->node_count - 1])
            fleet->node_memory_bytes[fleet->node_count - 1] = device->memory_bytes;
        if (device->memory_bytes > fleet->memory_bytes_max)
            fleet->memory_bytes_max = device->memory_bytes;
        if (i == 0 || device->rate < fleet->rate_min)
            fleet->rate_min = device->rate;
    }
    fleet->node_first[fleet->node_count] = fleet->device_count;
}

static bool
same_devices(const struct cairn_fleet *fleet, uint32_t left, uint32_t right)
{
    uint32_t count = fleet->node_first[left + 1] - fleet->node_first[left];

    if (fleet->node_first[right + 1] - fleet->node_first[right] != count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_device *devices = fleet->problem->devices;
        const struct cairn_device *a = &devices[fleet->order[fleet->node_first[left] + i]];
        const struct cairn_device *b = &devices[fleet->order[fleet->node_first[right] + i]];

        if (a->rate < b->rate || a->rate > b->rate || a->memory_bytes != b->memory_bytes)
            return false;
    }
    return true;
}

static uint64_t
name_of(const struct cairn_fleet *fleet, uint32_t node)
{
    uint64_t name = UINT64_C(14695981039346656037);

    for (uint32_t i = fleet->node_first[node]; i < fleet->node_first[node + 1]; i++) {
        const struct cairn_device *device = &fleet->problem->devices[fleet->order[i]];
        uint64_t rate_bits;

        memcpy(&rate_bits, &device->rate, sizeof(rate_bits));
        name = (name ^ rate_bits) * UINT64_C(1099511628211);
        name = (name ^ name >> 29 ^ device->memory_bytes) * UINT64_C(1099511628211);
    }
    return name ^ name >> 32;
}

/* Most nodes of a large cluster are alike: what is found for one holds for all. */
static cairn_err
find_alike(struct cairn_fleet *fleet)
{
    uint64_t room = 2;
    uint32_t *table; /* of nodes + 1, by their names; 0: free */

    while (room < (uint64_t)fleet->node_count * 2)
        room *= 2;
    table = calloc(room, sizeof(*table));
    if (!table)
        return CAIRN_NOMEM;
    for (uint32_t node = 0; node < fleet->node_count; node++) {
        uint64_t at = name_of(fleet, node) & (room - 1);

        while (table[at] != 0 && !same_devices(fleet, table[at] - 1, node))
            at = (at + 1) & (room - 1);
        if (table[at] == 0)
            table[at] = node + 1;
        fleet->node_alike[node] = table[at] - 1;
    }
    free(table);
    return CAIRN_OK;
}

static cairn_err
create(const struct cairn_problem *problem, bool by_memory, struct cairn_fleet **out)
{
    size_t room = (size_t)problem->device_count + 1;
    struct cairn_fleet *fleet = calloc(1, sizeof(*fleet));
    struct placed *placed = calloc(room, sizeof(*placed));
    cairn_err err = CAIRN_NOMEM;

    if (!fleet || !placed)
        goto done;
    fleet->problem = problem;
    fleet->by_memory = by_memory;
    fleet->order = calloc(room, sizeof(*fleet->order));
    fleet->node_first = calloc(room, sizeof(*fleet->node_first));
    fleet->node_alike = calloc(room, sizeof(*fleet->node_alike));
    fleet->node_memory_bytes = calloc(room, sizeof(*fleet->node_memory_bytes));
    if (!fleet->order || !fleet->node_first || !fleet->node_alike || !fleet->node_memory_bytes)
        goto done;
    for (uint32_t i = 0; i < problem->device_count; i++)
        if (problem->devices[i].rate > 0)
            placed[fleet->device_count++] = (struct placed){&problem->devices[i], i};
    qsort(placed, fleet->device_count, sizeof(*placed),
          by_memory ? by_node_and_memory : by_node_and_rate);
    fill(fleet, placed);
    err = find_alike(fleet);
    if (err)
        goto done;
    *out = fleet;
    fleet = NULL;
done:
    cairn_fleet_destroy(fleet);
    free(placed);
    return err;
}

cairn_err
cairn_fleet_create(const struct cairn_problem *problem, struct cairn_fleet **out)
{
    return create(problem, false, out);
}

cairn_err
cairn_fleet_create_by_memory(const struct cairn_problem *problem, struct cairn_fleet **out)
{
    return create(problem, true, out);
}

/* The best of a prefix of a node's devices; size 0: its last device is in no group. */
struct prefix {
    double total;
    uint32_t size;
};

/* What a node's devices gain, and the groups they form. */
struct found {
    double total;
    uint32_t first_place;
    uint32_t place_count;
};

static uint64_t
least_memory(const struct cairn_fleet *fleet, uint32_t first, uint32_t size)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = first; i < first + size; i++) {
        uint64_t own = fleet->problem->devices[fleet->order[i]].memory_bytes;

        least = own < least ? own : least;
    }
    return least;
}

/* Fills best[0 … devices of the node]. */
static void
fill_prefixes(const struct cairn_fleet *fleet, uint32_t node, uint32_t sizes,
              cairn_group_gain *gain, const void *context, bool own_memory, struct prefix *best)
{
    const struct cairn_problem *problem = fleet->problem;
    uint32_t first = fleet->node_first[node], count = fleet->node_first[node + 1] - first;

    best[0] = (struct prefix){0};
    for (uint32_t end = 1; end <= count; end++) {
        double rate = problem->devices[fleet->order[first + end - 1]].rate;

        best[end] = (struct prefix){best[end - 1].total, 0};
        for (uint32_t i = 0; i < problem->size_count; i++) {
            uint32_t size = problem->sizes[i].size;
            uint64_t memory_bytes;
            double total;

            if (size > end || !(sizes >> i & 1))
                continue;
            memory_bytes = own_memory ? least_memory(fleet, first + end - size, size)
                                      : fleet->node_memory_bytes[node];
            total = best[end - size].total + gain(context, i, rate, memory_bytes);
            if (total > best[end].total)
                best[end] = (struct prefix){total, size};
        }
    }
}

cairn_err
cairn_group_best(const struct cairn_fleet *fleet, uint32_t sizes, cairn_group_gain *gain,
                 const void *context, double *total, struct cairn_group_place *places,
                 uint32_t *place_count)
{
    struct prefix *best = calloc((size_t)fleet->device_count + 1, sizeof(*best));
    struct found *found = calloc((size_t)fleet->node_count + 1, sizeof(*found));
    uint32_t placed = 0;

    if (!best || !found) {
        free(best);
        free(found);
        return CAIRN_NOMEM;
    }
    *total = 0;
    for (uint32_t node = 0; node < fleet->node_count; node++) {
        uint32_t first = fleet->node_first[node], end = fleet->node_first[node + 1] - first;
        struct found *own = &found[fleet->node_alike[node]];

        if (fleet->node_alike[node] == node) {
            fill_prefixes(fleet, node, sizes, gain, context, places != NULL, best);
            own->total = best[end].total;
            own->first_place = placed;
            while (places && end > 0) {
                if (best[end].size > 0)
                    places[placed++] =
                        (struct cairn_group_place){first + end - best[end].size, best[end].size};
                end -= best[end].size > 0 ? best[end].size : 1;
            }
            own->place_count = placed - own->first_place;
        } else if (places) {
            uint32_t away = first - fleet->node_first[fleet->node_alike[node]];

            for (uint32_t i = 0; i < own->place_count; i++, placed++) {
                places[placed] = places[own->first_place + i];
                places[placed].first += away;
            }
        }
        *total += own->total;
    }
    if (places)
        *place_count = placed;
    free(best);
    free(found);
    return CAIRN_OK;
}
