/*
 * examples/gpt/state.h - what a rank trains: its stage, and the optimizer's two moments, laid out
 * like stage.param.
 */
#ifndef GPT_STATE_H
#define GPT_STATE_H

#include "model.h"
#include "plan.h"

struct gpt_state {
    struct gpt_stage stage;
    float *exp_avg;
    float *exp_avg_sq;
};

/* Room for the plan's layers of this rank, all zero. CAIRN_NOMEM, said. Ended by gpt_state_fini,
 * which accepts a zeroed struct. */
CAIRN_MUST_CHECK cairn_err gpt_state_init(const struct gpt_shape *shape,
                                          const struct gpt_plan *plan, struct gpt_state *out);
void gpt_state_fini(struct gpt_state *state);

/* Bytes of parameters and moments whose tensors `before` does not have. */
uint64_t gpt_state_new_bytes(const struct gpt_state *state, const struct gpt_state *before);

#endif
