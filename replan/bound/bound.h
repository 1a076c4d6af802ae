/*
 * replan/bound/bound.h - a time that no plan for these devices beats. docs/PLANNER.md proves it.
 */
#ifndef CAIRN_REPLAN_BOUND_BOUND_H
#define CAIRN_REPLAN_BOUND_BOUND_H

#include "replan/fleet/group.h"
#include "replan/fleet/stop.h"

/* The bound, INFINITY where the devices hold no pipeline at all. `stop` ends the search for the
 * largest one: what it has then holds all the same, and is above 0. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_bound_step_ms(const struct cairn_fleet *fleet,
                                               const struct cairn_stop *stop, double *step_ms);

#endif
