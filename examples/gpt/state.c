/* examples/gpt/state.c - the memory of what a rank trains. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

#include "say.h"

cairn_err
gpt_state_init(const struct gpt_shape *shape, const struct gpt_plan *plan, struct gpt_state *out)
{
    struct gpt_state state = {0};
    cairn_err err;

    err = gpt_stage_init(shape, plan->layer_begin, plan->layer_end, plan->micro_room, &state.stage);
    if (!err) {
        state.exp_avg = calloc(state.stage.float_count, sizeof(float));
        state.exp_avg_sq = calloc(state.stage.float_count, sizeof(float));
        if (!state.exp_avg || !state.exp_avg_sq)
            err = CAIRN_NOMEM;
    }
    if (err) {
        gpt_say("no memory for the model and %u micro-batches of %u x %u bytes: make --d-model, "
                "--layers, --micro-batch-size or --context smaller",
                plan->micro_room, shape->sequences, shape->context);
        gpt_state_fini(&state);
        return err;
    }
    *out = state;
    return CAIRN_OK;
}

void
gpt_state_fini(struct gpt_state *state)
{
    gpt_stage_fini(&state->stage);
    free(state->exp_avg);
    free(state->exp_avg_sq);
    *state = (struct gpt_state){0};
}

static bool
has_tensor(const struct gpt_stage *stage, const char *name)
{
    for (uint32_t i = 0; i < stage->tensor_count; i++)
        if (strcmp(stage->tensors[i].name, name) == 0)
            return true;
    return false;
}

uint64_t
gpt_state_new_bytes(const struct gpt_state *state, const struct gpt_state *before)
{
    uint64_t floats = 0;

    for (uint32_t i = 0; i < state->stage.tensor_count; i++)
        if (!has_tensor(&before->stage, state->stage.tensors[i].name))
            floats += state->stage.tensors[i].count;
    return 3 * floats * sizeof(float); /* the parameter and two moments */
}
