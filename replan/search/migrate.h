/*
 * replan/search/migrate.h - what a plan moves, given what runs now.
 *
 * A device of a group of t, the p-th of them, holds the p-th of t equal parts of each of its
 * layers' state. What it does not hold yet has to come to it.
 */
#ifndef CAIRN_REPLAN_SEARCH_MIGRATE_H
#define CAIRN_REPLAN_SEARCH_MIGRATE_H

#include "replan/fleet/divide.h"
#include "replan/fleet/plan.h"

/* What matters of a stage's group for time and memory, beside its size. */
struct cairn_stage_kind {
    double rate;           /* of its slowest device */
    uint64_t memory_bytes; /* of its smallest */
};
struct cairn_stage_kind cairn_stage_kind_of(const struct cairn_problem *problem,
                                            const struct cairn_plan *plan,
                                            const struct cairn_plan_stage *stage);

struct cairn_migration {
    uint64_t moved_bytes; /* into all devices together */
    double migrate_ms;    /* into the one that gets most, all of it from other nodes */
};

/* What `plan` moves when `from` runs now. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_migration_of(const struct cairn_problem *problem,
                                              const struct cairn_plan *from,
                                              const struct cairn_plan *plan,
                                              struct cairn_migration *out);

/* After how many steps, each shorter by gain_ms, what stood still for cost_ms is paid for; 0 where
 * nothing is gained, or it costs nothing. */
uint64_t cairn_migration_payback(double cost_ms, double gain_ms);

/*
 * Exchanges groups of the plan that are the same as far as time and memory go, each stage taking
 * the one that holds most of its layers already, and orders the devices of each so that they keep
 * their parts. Time and memory stay as they are. Plans of more than 2048 stages keep their groups.
 * CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_migration_settle(const struct cairn_problem *problem,
                                                  const struct cairn_plan *from,
                                                  struct cairn_plan *plan);

/*
 * The plan with the stages of `from` as they are, its micro-batches given out again: nothing moves.
 * *out NULL as below, and where a pipeline of `from` does not fit. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_migration_shift(const struct cairn_problem *problem,
                                                 const struct cairn_plan *from,
                                                 struct cairn_plan **out, double *step_ms);

/*
 * The plan with the groups, pipelines and order of `from`, its layers and micro-batches divided
 * again; *out NULL where `from` names a device that is dead or unknown, or does not fit.
 * CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_migration_redivide(const struct cairn_problem *problem,
                                                    const struct cairn_plan *from,
                                                    struct cairn_plan **out, double *step_ms);

#endif
