/*
 * replan/trace/gaps.h - the gaps between the operations of one rank.
 *
 * A gap lasts from the last moment at which something is known to have begun or ended to the start
 * of an operation. An operation that another one starts inside of hides no gap.
 */
#ifndef CAIRN_REPLAN_TRACE_GAPS_H
#define CAIRN_REPLAN_TRACE_GAPS_H

#include <stdint.h>

enum { CAIRN_GAPS_PENDING = 16 };

/* All zero: nothing is known yet. */
struct cairn_gaps {
    uint64_t pending_end_ns[CAIRN_GAPS_PENDING]; /* of what was under way at the last begin */
    uint32_t pending_count;
    uint64_t point_ns; /* the last known begin or end; 0: none */
};

/* The gap before a start, in ns; what is still under way at it stays pending. */
double cairn_gaps_before(struct cairn_gaps *gaps, uint64_t start_ns);
/* Adds an operation that ends then. */
void cairn_gaps_add(struct cairn_gaps *gaps, uint64_t end_ns);

#endif
