/*
 * replan/bound/few.h - a lower bound on the step time where memory allows few pipelines:
 * docs/PLANNER.md, (G).
 */
#ifndef CAIRN_REPLAN_BOUND_FEW_H
#define CAIRN_REPLAN_BOUND_FEW_H

#include "replan/fleet/group.h"
#include "replan/fleet/stop.h"

enum { CAIRN_BOUND_FEW_PIPELINES = 6 };

/*
 * Raises *bound_ms, which no plan beats, towards the time of a plan. Changes nothing where memory
 * allows more than CAIRN_BOUND_FEW_PIPELINES, or nodes have too many kinds of groups. `stop` ends
 * it, and so do `cuts_max` cuts: what it has then holds. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_bound_few(const struct cairn_fleet *fleet, double plan_ms,
                                           uint32_t cuts_max, const struct cairn_stop *stop,
                                           double *bound_ms);

#endif
