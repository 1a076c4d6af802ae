/*
 * tests/bench/baseline.h - what others would do with the same devices, and the same sequences.
 *
 * Each is written here from its published description without copying code; where the
 * description leaves something open, the choice that makes it faster is taken. All are judged by
 * the formulas of docs/PLANNER.md.
 */
#ifndef CAIRN_TESTS_BENCH_BASELINE_H
#define CAIRN_TESTS_BENCH_BASELINE_H

#include "replan/assign/assign.h"
#include "replan/fleet/plan.h"

/* A baseline's plan: *out owned by the caller, NULL where it has none that fits. CAIRN_NOMEM. */
typedef cairn_err cairn_baseline(const struct cairn_problem *problem, struct cairn_plan **out);

/* Groups of one size, pipelines of equal stages, layers and micro-batches, as Megatron-LM has them:
 * the fastest of all such plans, groups in the order of the devices, groups with a dead device left
 * out. */
cairn_baseline cairn_baseline_uniform;

/* The same groups, stages and layers; micro-batches moved away from slow pipelines (FALCON's
 * S2). */
cairn_baseline cairn_baseline_shift;

/* The uniform plan of those nodes that have no device slower than 1.1 and none dead. */
cairn_baseline cairn_baseline_drop;

/*
 * Malleus (arXiv 2410.13333): per node powers of two of devices, split so that slow devices are
 * apart and the sum of the groups' speed is largest; pipelines that differ by one stage at most;
 * slow groups in front, slowest first, dealt to the pipelines where they hurt least; layers for the
 * least slowest stage, micro-batches for the least m times it. Its search over placements is
 * replaced by dealing the slowest group first.
 */
cairn_baseline cairn_baseline_malleus;

/*
 * A simple heuristic that looks at memory. For each size, order of devices within nodes (rate or
 * memory), number of pipelines and number of stages: the first groups, fastest or largest first,
 * are dealt in turn, back and forth; stages stand slowest or smallest first; each stage gets its
 * layers one by one where that takes least and fits; micro-batches go to the pipeline that would
 * end first. The fastest of all these plans.
 */
cairn_baseline cairn_baseline_greedy;

/* The time of an assignment of sequences; INFINITY where there is none. pipelines[sequence_count]:
 * scratch. CAIRN_NOMEM. */
typedef cairn_err cairn_baseline_assign(const struct cairn_assign_problem *problem,
                                        uint32_t *pipelines, double *step_ms);

/* The longest first, each where the slowest pipeline's time grows least. */
cairn_baseline_assign cairn_baseline_longest_first;

/* Hydraulis (arXiv 2412.07894): the same in 50 random orders, the best of them, sequences that one
 * pipeline alone takes first. */
cairn_baseline_assign cairn_baseline_hydraulis;

#endif
