/*
 * replan/bound/raise.h - a lower bound on the step time, raised by prices on groups:
 * docs/PLANNER.md, (F).
 */
#ifndef CAIRN_REPLAN_BOUND_RAISE_H
#define CAIRN_REPLAN_BOUND_RAISE_H

#include "replan/fleet/group.h"
#include "replan/fleet/stop.h"

/* Raises *bound_ms, which no plan beats, towards the time of a plan. `stop` ends it: what it has
 * then holds. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_bound_raise(const struct cairn_fleet *fleet, double plan_ms,
                                             const struct cairn_stop *stop, double *bound_ms);

#endif
