/*
 * examples/gpt/model.h - one pipeline stage of a byte-level GPT: its tensors, forward, backward.
 *
 * The model: token + position embedding; per layer x += attention(norm(x)), x += mlp(norm(x)) with
 * causal multi-head attention and a GELU between two matrices of 4 times the width; a last norm; an
 * untied head; mean cross-entropy over all tokens of a micro-batch. Bytes are the tokens.
 *
 * A stage holds the layers [layer_begin, layer_end) of the global numbering; the stage that begins
 * at layer 0 holds the embeddings, the one that ends at the last layer holds the last norm and the
 * head. The arithmetic of a layer does not depend on the stage it is in, so a model gives the same
 * bits in every division into stages.
 *
 * Parameters lie side by side in one array in the order of the tensor table; gradients and
 * optimizer moments use the same layout. Matrices are [in][out], row-major.
 */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/err.h"

enum { GPT_VOCAB = 256, GPT_NAME_BYTES = 64, GPT_DIMS = 2 };

struct gpt_shape {
    uint32_t layers;  /* of the whole model */
    uint32_t d_model; /* a multiple of heads */
    uint32_t heads;
    uint32_t context;   /* tokens of a sequence */
    uint32_t sequences; /* of a micro-batch */
};

struct gpt_tensor {
    char name[GPT_NAME_BYTES]; /* such as "h.3.attn.qkv.weight", the same in every division */
    uint32_t dims;
    uint64_t extent[GPT_DIMS];
    size_t begin; /* first element in the stage's arrays */
    size_t count;
    bool matrix; /* weight decay applies */
};

struct gpt_slot; /* the activations of one micro-batch, kept from forward to backward */

struct gpt_stage {
    struct gpt_shape shape;
    uint32_t layer_begin;
    uint32_t layer_end;
    uint32_t tensor_count;
    struct gpt_tensor *tensors;
    size_t float_count; /* of all tensors */
    float *param;       /* [float_count] */
    uint32_t slot_count;
    struct gpt_slot *slots;
    float *scratch;
};

/*
 * Lists the tensors of the layers [layer_begin, layer_end), of the whole model for 0 and
 * shape->layers. On success *out is the caller's, to be ended with free. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err gpt_tensor_list(const struct gpt_shape *shape, uint32_t layer_begin,
                                           uint32_t layer_end, struct gpt_tensor **out,
                                           uint32_t *count_out);

/*
 * Creates a stage with zero parameters and room for slot_count micro-batches. CAIRN_NOMEM. Ended by
 * gpt_stage_fini, which accepts a zeroed struct.
 */
CAIRN_MUST_CHECK cairn_err gpt_stage_init(const struct gpt_shape *shape, uint32_t layer_begin,
                                          uint32_t layer_end, uint32_t slot_count,
                                          struct gpt_stage *out);
void gpt_stage_fini(struct gpt_stage *stage);

/* Where a layer of the stage begins in its arrays, with what belongs to it: the embeddings to the
 * first layer of the model, the head to the last. float_count for layer_end. */
size_t gpt_stage_layer_at(const struct gpt_stage *stage, uint32_t layer);

/* Sets the parameters from the seed and the tensors' names: the same in every division. */
void gpt_stage_randomize(struct gpt_stage *stage, uint64_t seed);

/* Floats of the residual stream of one micro-batch, which is what stages hand to each other. */
size_t gpt_stream_floats(const struct gpt_shape *shape);

/*
 * Forward pass of one micro-batch. tokens[sequences][context + 1]: token t is the input and token
 * t + 1 the target; the first stage reads the inputs, the last the targets. `stream`, of
 * gpt_stream_floats(), holds the stage's input (ignored by the first stage) and then its output
 * (the last stage leaves the last norm's there). Returns the mean loss on the last stage, else 0.
 */
float gpt_stage_forward(struct gpt_stage *stage, uint32_t slot, const uint8_t *tokens,
                        float *stream);

/*
 * Backward pass of the micro-batch whose forward pass used `slot`. `stream` holds the gradient of
 * the stage's output (ignored by the last stage) and then that of its input. Adds the parameters'
 * gradients to grad[float_count].
 */
void gpt_stage_backward(struct gpt_stage *stage, uint32_t slot, const uint8_t *tokens,
                        float *stream, float *grad);

/*
 * The last stage's probabilities of the next token, [sequences * context][GPT_VOCAB], of the
 * forward pass in `slot`; NULL on other stages. Borrowed until the next pass in that slot.
 */
const float *gpt_stage_probabilities(const struct gpt_stage *stage, uint32_t slot);

#endif
