/*
 * replan/fleet/plan.h - a plan: the devices of each stage of each pipeline, its layers and its
 * micro-batches.
 *
 * A plan names devices by their ids and stands by itself; cairn_plan_check says whether it is one
 * for a problem. Stages of a pipeline and devices of a stage lie one after the other in the flat
 * arrays.
 */
#ifndef CAIRN_REPLAN_FLEET_PLAN_H
#define CAIRN_REPLAN_FLEET_PLAN_H

#include "base/json.h"
#include "replan/fleet/problem.h"

struct cairn_plan_pipeline {
    uint32_t microbatches;
    uint32_t first_stage; /* in cairn_plan.stages */
    uint32_t stage_count;
};

struct cairn_plan_stage {
    uint32_t first_device; /* in cairn_plan.devices */
    uint32_t device_count;
    uint32_t first_layer;
    uint32_t layer_count;
};

struct cairn_plan {
    struct cairn_plan_pipeline *pipelines;
    struct cairn_plan_stage *stages;
    uint64_t *devices; /* ids */
    uint32_t pipeline_count;
    uint32_t stage_count;
    uint32_t device_count;
};

/* An empty plan with room for that many of each; ended by cairn_plan_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_plan_create(uint32_t pipelines_max, uint32_t stages_max,
                                             uint32_t devices_max, struct cairn_plan **out);
void cairn_plan_destroy(struct cairn_plan *plan); /* NULL is allowed */

/*
 * CAIRN_OK where the plan is one for these devices: every layer of every pipeline exactly once and
 * in order, every micro-batch given out, groups of one node and of a size that tp_cost has, no
 * device twice, none dead or unknown, and everything fits in memory. Else CAIRN_INVAL with *fault:
 * what, where, and for memory by how many bytes. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_plan_check(const struct cairn_plan *plan,
                                            const struct cairn_problem *problem,
                                            struct cairn_fault *fault);

/* One micro-batch's time in a stage, forward and backward, vocabulary included. The devices must be
 * in the problem, and alive. */
double cairn_plan_stage_ms(const struct cairn_plan *plan, const struct cairn_problem *problem,
                           uint32_t pipeline, uint32_t stage);

/* The predicted time of one step, by the formula of docs/PLANNER.md. The devices must be alive. */
double cairn_plan_step_ms(const struct cairn_plan *plan, const struct cairn_problem *problem);

/*
 * Reads one plan, the answer of `cairn plan` or the "current" of a problem: its "pipelines"; what
 * else the answer carries is passed over. CAIRN_CORRUPT makes the reader fail
 * (cairn_json_reader_fail); CAIRN_NOMEM. On success the caller owns *out.
 */
CAIRN_MUST_CHECK cairn_err cairn_plan_read(struct cairn_json_reader *reader,
                                           struct cairn_plan **out);

/* The same for a whole file, with the place of what is wrong. */
CAIRN_MUST_CHECK cairn_err cairn_plan_read_text(const void *text, size_t text_bytes,
                                                struct cairn_plan **out, struct cairn_fault *fault);

/* Writes "pipelines" and "unused" into the object that is open. */
CAIRN_MUST_CHECK cairn_err cairn_plan_write(const struct cairn_plan *plan,
                                            const struct cairn_problem *problem,
                                            struct cairn_json_writer *writer);

/* Fills *fault with where a reader stopped (line and column) and why. */
void cairn_fault_from_reader(const struct cairn_json_reader *reader, struct cairn_fault *fault);

#endif
