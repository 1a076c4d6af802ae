/* examples/gpt/holders.c - runs of layers that two ranks hold both. */
#include "holders.h"

uint32_t
gpt_pieces(const struct gpt_plan *plan, const struct gpt_stage *stage, uint32_t replica,
           struct gpt_piece out[GPT_PARTS_MAX])
{
    uint32_t count = 0;

    for (uint32_t s = 0; s < plan->pp; s++) {
        struct gpt_piece piece = {.stage = s};
        uint32_t begin, end;

        gpt_plan_layers(plan, replica, s, &begin, &end);
        begin = begin > stage->layer_begin ? begin : stage->layer_begin;
        end = end < stage->layer_end ? end : stage->layer_end;
        if (begin >= end)
            continue;
        piece.begin = gpt_stage_layer_at(stage, begin);
        piece.count = gpt_stage_layer_at(stage, end) - piece.begin;
        piece.head = end == stage->shape.layers;
        out[count++] = piece;
    }
    return count;
}
