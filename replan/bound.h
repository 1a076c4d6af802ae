/*
 * replan/bound.h - a time that no plan for these devices beats. docs/PLANNER.md proves it.
 */
#ifndef CAIRN_REPLAN_BOUND_H
#define CAIRN_REPLAN_BOUND_H

#include "replan/group.h"

/* The bound, INFINITY where the devices hold no pipeline at all. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_bound_step_ms(const struct cairn_fleet *fleet, double *step_ms);

#endif
