/*
 * replan/fleet/group.h - groups of devices within nodes: those of the highest gain.
 *
 * Among devices of equal memory, the best plan may be taken to group each node's devices in order
 * of their rate: of its groups sorted by their slowest device, the first i have at least as many
 * devices as their sizes say, all of them at most as slow as the i-th group's slowest, so giving
 * the fastest devices to the first groups makes no group slower. What is left is the order of
 * sizes, which a table over prefixes settles.
 */
#ifndef CAIRN_REPLAN_FLEET_GROUP_H
#define CAIRN_REPLAN_FLEET_GROUP_H

#include "replan/fleet/problem.h"

#include <stdbool.h>

/* The live devices, node by node, the fastest first (ties: more memory, then lower id). */
struct cairn_fleet {
    const struct cairn_problem *problem; /* borrowed */
    uint32_t *order;                     /* [device_count] indices of devices */
    uint32_t device_count;
    uint32_t *node_first; /* [node_count + 1] places in order */
    uint32_t node_count;
    uint32_t *node_alike; /* [node_count] the first node whose devices have the same rates and
                           * memory */
    uint64_t *node_memory_bytes; /* [node_count] of the device with most memory */
    double rate_min;
    uint64_t memory_bytes_max;
    bool by_memory; /* those of a node with most memory come first instead */
};

CAIRN_MUST_CHECK cairn_err cairn_fleet_create(const struct cairn_problem *problem,
                                              struct cairn_fleet **out);

/* The same with the devices of each node in order of memory, the most first, then of rate: the
 * groups that hold most. For the search; bounds need the order of rates. */
CAIRN_MUST_CHECK cairn_err cairn_fleet_create_by_memory(const struct cairn_problem *problem,
                                                        struct cairn_fleet **out);

/* Whether devices of one node differ in memory: only then the two orders differ. */
bool cairn_fleet_mixes_memory(const struct cairn_fleet *fleet);

void cairn_fleet_destroy(struct cairn_fleet *fleet); /* NULL is allowed */

/* Consecutive devices of a fleet's order. */
struct cairn_group_place {
    uint32_t first;
    uint32_t size;
};

/* What a group gains; it is not formed at 0 or less. memory_bytes: of its smallest device. */
typedef double cairn_group_gain(const void *context, uint32_t size_index, double rate,
                                uint64_t memory_bytes);

/*
 * The highest total gain of groups of these sizes (a bit per index of problem->sizes), in *total.
 * places[device_count] and *place_count get such groups. With places NULL every device counts with
 * the memory of the largest of its node: *total then bounds the gain of the groups of a best plan.
 * CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_group_best(const struct cairn_fleet *fleet, uint32_t sizes,
                                            cairn_group_gain *gain, const void *context,
                                            double *total, struct cairn_group_place *places,
                                            uint32_t *place_count);

#endif
