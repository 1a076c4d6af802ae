/*
 * replan/bound/lp.h - a linear program that grows by columns: the most that some activities gain,
 * each of them using up, or giving, some of what is limited; and what each limited thing is then
 * worth (its price).
 *
 * The revised simplex method with the whole inverse of the basis, for some hundred limits. What it
 * says is as exact as its sums of doubles: a proof with its prices holds for these numbers, exact
 * or not.
 */
#ifndef CAIRN_REPLAN_BOUND_LP_H
#define CAIRN_REPLAN_BOUND_LP_H

#include "cairn/err.h"
#include "replan/fleet/stop.h"

#include <stdint.h>

struct cairn_lp; /* one thread at a time */

struct cairn_lp_entry {
    uint32_t limit;
    double uses; /* below 0: gives */
};

/* No limit is below 0, and all activities may be nothing. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_lp_create(const double *limits, uint32_t limit_count,
                                           struct cairn_lp **out);
void cairn_lp_destroy(struct cairn_lp *lp); /* NULL is allowed */

/* An activity. Its entries are of different limits. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_lp_add(struct cairn_lp *lp, double gain,
                                        const struct cairn_lp_entry *entries, uint32_t entry_count);

/* Goes on from where the last solution was; at most so many steps, and `stop`, which is asked
 * before each, ends it early. What all activities gain then: no less than before. */
double cairn_lp_solve(struct cairn_lp *lp, uint32_t steps_max, const struct cairn_stop *stop);

/* What one more of a limited thing would be worth. */
double cairn_lp_price(const struct cairn_lp *lp, uint32_t limit);

#endif
