/*
 * agent/service/drill_plan.h - which lines a drill decodes next, and from which members. Pure.
 */
#ifndef CAIRN_AGENT_SERVICE_DRILL_PLAN_H
#define CAIRN_AGENT_SERVICE_DRILL_PLAN_H

#include "erasure/stripe.h"

/* Where a drill is; all zero is the start. */
struct drill_place {
    uint32_t stripe;
    uint64_t line;
};

/* Lines of one stripe, and the positions whose data in it must be decoded. */
struct drill_lines {
    uint32_t stripe;
    uint32_t count;
    uint64_t first;
    uint64_t wanted; /* as a set */
};

/* Data blocks of the lost positions (a set). */
uint64_t drill_total_blocks(const struct cairn_stripes *stripes, uint64_t lost);

/* The lines at or after *place, at most lines_max, in which a lost position has data. Moves *place
 * to them. False: no more. */
bool drill_next(const struct cairn_stripes *stripes, uint64_t lost, uint32_t lines_max,
                struct drill_place *place, struct drill_lines *out);

/* Blocks that a position really has of some lines: the rest are zeros. */
uint32_t drill_blocks(const struct cairn_stripes *stripes, const struct drill_lines *lines,
                      uint32_t position);

/* k positions to decode from, the own one among them if it can be: what lies here need not be sent.
 * None of `without` is taken. False: fewer than k are left. */
bool drill_sources(const struct cairn_geometry *geometry, uint64_t without, uint32_t own,
                   uint64_t *out);

#endif
