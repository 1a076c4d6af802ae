/*
 * examples/gpt/holders.h - which ranks of another replica hold the same tensors as this one.
 *
 * Replicas may divide the layers differently. What a rank shares with a rank of another replica is
 * one run of layers, and so one run of floats in the stage's arrays: a piece. The embeddings belong
 * to the first layer, the last norm and the head to the last one.
 */
#ifndef GPT_HOLDERS_H
#define GPT_HOLDERS_H

#include "model.h"
#include "plan.h"

struct gpt_piece {
    uint32_t stage; /* of the other replica */
    size_t begin;   /* floats of this stage */
    size_t count;
    bool head; /* the last layer is in it */
};

/* What this rank shares with each stage of another replica, in the order of the layers; returns how
 * many there are. */
uint32_t gpt_pieces(const struct gpt_plan *plan, const struct gpt_stage *stage, uint32_t replica,
                    struct gpt_piece out[GPT_PARTS_MAX]);

#endif
