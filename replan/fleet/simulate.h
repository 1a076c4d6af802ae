/*
 * replan/fleet/simulate.h - a plan's step replayed operation by operation, without the formula.
 *
 * Each stage runs its operations in the order of the 1F1B schedule: as many forwards as there are
 * stages after it (the micro-batches, if fewer), then a forward and a backward in turn, then the
 * backwards that are left. An operation begins when its stage is free and what it needs is there: a
 * forward the same forward of the stage before, a backward the same backward of the stage after, or
 * in the last stage its own forward. A forward takes a third of a stage's time per micro-batch, a
 * backward two; sending takes none.
 */
#ifndef CAIRN_REPLAN_FLEET_SIMULATE_H
#define CAIRN_REPLAN_FLEET_SIMULATE_H

#include "replan/fleet/plan.h"

struct cairn_simulated_stage {
    double busy_ms;
    uint32_t in_flight;    /* most micro-batches whose activations it held at once */
    uint64_t device_bytes; /* that one device then holds */
};

struct cairn_simulated {
    double step_ms;
    double *pipeline_ms;                  /* [plan->pipeline_count] */
    struct cairn_simulated_stage *stages; /* [plan->stage_count] */
};

/*
 * Replays a plan that cairn_plan_check has passed. The caller ends *out with cairn_simulated_fini.
 * CAIRN_INVAL where a pipeline has more than 50,000,000 operations; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_simulate(const struct cairn_plan *plan,
                                          const struct cairn_problem *problem,
                                          struct cairn_simulated *out);
void cairn_simulated_fini(struct cairn_simulated *simulated);

#endif
