/*
 * replan/bound/parts.h - what groups are worth in whole parts of a micro-batch, for the lower
 * bound.
 *
 * Pipelines do whole micro-batches, so fractions of what groups could do by themselves are lost
 * unless they add up. With prices that are whole parts of a micro-batch that can be counted:
 * docs/PLANNER.md, (E).
 */
#ifndef CAIRN_REPLAN_BOUND_PARTS_H
#define CAIRN_REPLAN_BOUND_PARTS_H

#include "replan/fleet/group.h"

#include <stdbool.h>

struct cairn_parts; /* prices for one fleet; one thread at a time */

/* The fleet is borrowed. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_parts_create(const struct cairn_fleet *fleet,
                                              struct cairn_parts **out);
void cairn_parts_destroy(struct cairn_parts *parts); /* NULL is allowed */

/* Whether some groups that can form may need others to hold the model: else (A) says as much. */
bool cairn_parts_matter(const struct cairn_parts *parts);

/* How prices are found. */
enum { CAIRN_PARTS_MAX = 4 };
struct cairn_parts_way {
    uint32_t owner_parts; /* of a micro-batch, for groups that hold the model alone; 1 to
                           * CAIRN_PARTS_MAX */
    uint32_t parts;       /* for those that do not; 1 to CAIRN_PARTS_MAX */
    double enough;        /* of the layers, at most 1: who holds that much counts as if he held all;
                           * slow groups count for helping those that hold less, and the less the
                           * more layers these lack. 0: a little more than the largest holds */
};

/*
 * Finds prices so that no pipeline that keeps step_ms does more micro-batches than its groups'
 * prices sum to. False where none were found with little work.
 */
bool cairn_parts_set_prices(struct cairn_parts *parts, double step_ms,
                            const struct cairn_parts_way *way);

/* The price of a group, for cairn_group_best with the parts as its context. */
double cairn_parts_worth(const void *parts, uint32_t size_index, double rate,
                         uint64_t memory_bytes);

#endif
