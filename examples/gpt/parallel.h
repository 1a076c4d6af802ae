/*
 * examples/gpt/parallel.h - one step's gradients over all stages and replicas.
 *
 * All forwards of the replica's micro-batches run first, then all backwards (the schedule of
 * GPipe), in the global order. The gradient of every micro-batch is kept by itself until the sums
 * of the earlier micro-batches arrive: the total is always ((g0 + g1) + g2) + … over the
 * micro-batches of the step, for any division among replicas. Squares for the norm are summed over
 * the tensors in their global order, from stage to stage. So loss, gradients and norm have the same
 * bits in every plan.
 */
#ifndef GPT_PARALLEL_H
#define GPT_PARALLEL_H

#include "data.h"
#include "device.h"
#include "model.h"
#include "net.h"
#include "plan.h"

struct gpt_parallel {
    const struct gpt_plan *plan;
    const struct gpt_data *data;
    struct gpt_stage *stage;
    struct gpt_net *net;
    struct gpt_device *device;
    uint64_t seed;
    uint8_t *tokens; /* [micro_room][sequences * (context + 1)] */
    float *stream;
    float *grads; /* [micro_room][float_count + 1]: the last float is the micro-batch's loss */
    float *total; /* [float_count + 1] */
    float *piece; /* room for a message */
};

/* The result of a step, the same on all ranks. */
struct gpt_total {
    float loss;        /* mean over all micro-batches */
    double norm;       /* of the gradient of that loss, over all tensors of the model */
    float mean_factor; /* the total times this is the gradient of the loss */
    uint64_t vote;     /* in: of this rank; out: of all ranks, joined (cairn_placement_agree) */
};

/*
 * Makes room for the steps of a plan. What is given is borrowed until gpt_parallel_fini, which
 * accepts a zeroed struct. CAIRN_NOMEM, said.
 */
CAIRN_MUST_CHECK cairn_err gpt_parallel_init(const struct gpt_plan *plan,
                                             const struct gpt_data *data, struct gpt_stage *stage,
                                             struct gpt_net *net, struct gpt_device *device,
                                             uint64_t seed, struct gpt_parallel *out);
void gpt_parallel_fini(struct gpt_parallel *parallel);

/* Computes the gradients of this rank's micro-batches of `step` (counted from 1) with the present
 * parameters. Errors as gpt_net_receive. */
CAIRN_MUST_CHECK cairn_err gpt_parallel_gradient(struct gpt_parallel *parallel, uint64_t step);

/*
 * Sums them: on success parallel->total holds the sum over all micro-batches, the same bits on all
 * replicas of the stage. The votes ride on the sums. Errors as gpt_net_receive.
 */
CAIRN_MUST_CHECK cairn_err gpt_parallel_sum(struct gpt_parallel *parallel, uint64_t step,
                                            struct gpt_total *out);

/*
 * Tells the neighbours the step to start after, and checks theirs: CAIRN_INTERNAL if they differ.
 */
CAIRN_MUST_CHECK cairn_err gpt_parallel_agree(struct gpt_parallel *parallel, uint64_t step);

/* Joins the votes of all ranks, by themselves. */
CAIRN_MUST_CHECK cairn_err gpt_parallel_vote(struct gpt_parallel *parallel, uint64_t step,
                                             uint64_t *vote);

#endif
