/*
 * examples/gpt/attention.h - causal multi-head attention over the rows of a micro-batch.
 */
#ifndef GPT_ATTENTION_H
#define GPT_ATTENTION_H

#include <stddef.h>

#include "model.h"

/* Floats of the scratch memory that both passes need. */
size_t gpt_attention_scratch_floats(const struct gpt_shape *shape);

/* Floats of the weights kept between the passes: [sequences][heads][context][context]. */
size_t gpt_attention_weight_floats(const struct gpt_shape *shape);

/*
 * out[tokens][d_model] = softmax(q k^T / sqrt(head width), no later token) v for each sequence and
 * head; qkv[tokens][3][d_model]. weights receives the softmax. What lies above the diagonal is 0.
 */
void gpt_attention(const struct gpt_shape *shape, const float *qkv, float *weights, float *out,
                   float *scratch);

/* Given the gradient of `out`, writes that of qkv. */
void gpt_attention_backward(const struct gpt_shape *shape, const float *qkv, const float *weights,
                            const float *gradient, float *d_qkv, float *scratch);

#endif
