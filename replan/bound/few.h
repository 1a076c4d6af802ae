/*
 * replan/bound/few.h - a lower bound on the step time where memory allows few pipelines:
 * docs/PLANNER.md, (G).
 */
#ifndef CAIRN_REPLAN_BOUND_FEW_H
#define CAIRN_REPLAN_BOUND_FEW_H

#include "replan/fleet/group.h"
#include "replan/fleet/stop.h"

enum { CAIRN_BOUND_FEW_PIPELINES = 6 };

struct cairn_few;

/*
 * CAIRN_NOT_FOUND: memory allows more than CAIRN_BOUND_FEW_PIPELINES, or nodes have too many kinds
 * of groups. CAIRN_NOMEM. Borrows the fleet; ended by cairn_few_destroy.
 */
CAIRN_MUST_CHECK cairn_err cairn_few_create(const struct cairn_fleet *fleet,
                                            struct cairn_few **out);
void cairn_few_destroy(struct cairn_few *few); /* NULL is allowed */

/*
 * Raises *bound_ms, which no plan beats, towards the time of a plan, which must not be slower than
 * that of the last call: each call goes on where the last one ended. `stop` ends it, and so do
 * `cuts_max` cuts: what it has then holds.
 */
void cairn_few_raise(struct cairn_few *few, double plan_ms, uint32_t cuts_max,
                     const struct cairn_stop *stop, double *bound_ms);

#endif
