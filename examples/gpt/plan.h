/*
 * examples/gpt/plan.h - who does what: the division of the model and of the batch over the ranks.
 *
 * rank = replica * pp + stage. Stage s of replica r holds stage_layers[r][s] layers, in order, and
 * replica r computes micro_batches[r] micro-batches, consecutive in the step's global order.
 * Neither needs to be even, and replicas may be divided differently. A plan is a plain value.
 */
#ifndef GPT_PLAN_H
#define GPT_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "cairn/err.h"

enum { GPT_PARTS_MAX = 64 /* stages, and replicas */ };

struct gpt_plan {
    uint32_t rank;
    uint32_t dp;
    uint32_t pp;
    uint32_t stage_layers[GPT_PARTS_MAX][GPT_PARTS_MAX];
    uint32_t micro_batches[GPT_PARTS_MAX];
    /* what follows is derived by gpt_plan_complete */
    uint32_t world;
    uint32_t replica;
    uint32_t stage;
    uint32_t layer_begin;
    uint32_t layer_end;
    uint32_t micro_begin; /* of the replica, in the global order */
    uint32_t micro_count;
    uint32_t micro_total; /* of all replicas */
    uint32_t micro_room;  /* micro-batches that this rank has memory for */
};

/*
 * Checks a plan for a model of `layers` layers and fills its derived part. CAIRN_INVAL, said, when
 * a part is empty, too large, or the layers do not add up.
 */
CAIRN_MUST_CHECK cairn_err gpt_plan_complete(struct gpt_plan *plan, uint32_t layers);

/* Takes other shares with the same total and updates the fields that depend on them. The rank must
 * have room for its own share. */
void gpt_plan_share(struct gpt_plan *plan, const uint32_t *micro_batches);

/* Takes other layers per stage, of the same sums: fills what follows from them. */
void gpt_plan_place(struct gpt_plan *plan, const uint32_t (*stage_layers)[GPT_PARTS_MAX]);

/* The layers [*begin, *end) of a stage of a replica. */
void gpt_plan_layers(const struct gpt_plan *plan, uint32_t replica, uint32_t stage, uint32_t *begin,
                     uint32_t *end);

/* Divides `total` into `parts` as evenly as can be, the larger parts first. */
void gpt_plan_even(uint32_t total, uint32_t parts, uint32_t out[GPT_PARTS_MAX]);

static inline bool
gpt_plan_is_last_stage(const struct gpt_plan *plan)
{
    return plan->stage + 1 == plan->pp;
}

static inline bool
gpt_plan_is_last_replica(const struct gpt_plan *plan)
{
    return plan->replica + 1 == plan->dp;
}

#endif
