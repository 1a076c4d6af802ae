/*
 * replan/fleet/schedule.h - the time of the 1F1B schedule, exactly and without replaying it.
 *
 * The formula (m - 1) max c + sum c counts what the slowest stage waits at the beginning as waiting
 * alone. Its forwards fill part of that time, where there are few micro-batches. The recurrence
 * here has that: docs/PLANNER.md states it.
 */
#ifndef CAIRN_REPLAN_FLEET_SCHEDULE_H
#define CAIRN_REPLAN_FLEET_SCHEDULE_H

#include "replan/fleet/plan.h"

/* Of more micro-batches in a pipeline each is counted with its slowest stage's time, which is never
 * too little. */
enum { CAIRN_SCHEDULE_MICROBATCHES_MAX = 256 };

/*
 * The time of one step under 1F1B, in milliseconds: never more than cairn_plan_step_ms. For a plan
 * that cairn_plan_check has passed. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_plan_schedule_ms(const struct cairn_plan *plan,
                                                  const struct cairn_problem *problem,
                                                  double *schedule_ms);

#endif
