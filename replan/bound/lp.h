/*
 * replan/bound/lp.h - a linear program that grows by columns: maximize the objective subject to
 * rows of the form sum <= right-hand side, columns >= 0; and the rows' dual prices.
 *
 * The revised simplex method with a dense inverse of the basis, for some hundred rows (Dantzig and
 * Orchard-Hays 1954). Prices are as exact as sums of doubles. A proof that uses them must check
 * them itself.
 */
#ifndef CAIRN_REPLAN_BOUND_LP_H
#define CAIRN_REPLAN_BOUND_LP_H

#include "cairn/err.h"
#include "replan/fleet/stop.h"

#include <stdint.h>

struct cairn_lp; /* one thread at a time */

struct cairn_lp_entry {
    uint32_t row;
    double value;
};

/* Right-hand sides must be 0 or more, so that all columns at 0 are feasible. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_lp_create(const double *rhs, uint32_t row_count,
                                           struct cairn_lp **out);
void cairn_lp_destroy(struct cairn_lp *lp); /* NULL is allowed */

/* Adds a column. Its entries must be of different rows. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_lp_add(struct cairn_lp *lp, double objective,
                                        const struct cairn_lp_entry *entries, uint32_t entry_count);

/* Continues from the last solution, for at most steps_max pivots; `stop`, asked before each, ends
 * it early. Returns the objective: no less than before. */
double cairn_lp_solve(struct cairn_lp *lp, uint32_t steps_max, const struct cairn_stop *stop);

/* The dual price of a row. */
double cairn_lp_price(const struct cairn_lp *lp, uint32_t row);

#endif
