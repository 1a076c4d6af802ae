/*
 * replan/bound/parts.h - prices of groups in whole parts of a micro-batch, for the lower bound.
 *
 * Pipelines do whole micro-batches, so fractions of what groups could do by themselves are lost
 * unless they add up. Prices in whole parts show that: docs/PLANNER.md, (E).
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

/* True if some groups that can form are partial; otherwise (A) is as strong. */
bool cairn_parts_matter(const struct cairn_parts *parts);

/* How prices are found. */
enum { CAIRN_PARTS_MAX = 4 };
struct cairn_parts_way {
    uint32_t complete_parts; /* of a micro-batch, for complete groups; 1 to CAIRN_PARTS_MAX */
    uint32_t parts;          /* for partial groups; 1 to CAIRN_PARTS_MAX */
    double enough; /* η of (E), part of the layers, at most 1: groups that hold so much count as
                           * if they held all; with less, slow groups have a price. 0: a little more
                           * than the largest group holds */
};

/*
 * Finds prices so that no pipeline that keeps step_ms does more micro-batches than its groups'
 * prices sum to. False if that took too much work.
 */
bool cairn_parts_set_prices(struct cairn_parts *parts, double step_ms,
                            const struct cairn_parts_way *way);

/* The price of a group, for cairn_group_best with the parts as its context. */
double cairn_parts_price(const void *parts, uint32_t size_index, double rate,
                         uint64_t memory_bytes);

#endif
