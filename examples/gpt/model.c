/*
 * examples/gpt/model.c - the forward and the backward pass of one stage.
 *
 * Forward keeps in the micro-batch's slot what backward needs, about 18 d_model floats per token
 * and layer and the attention weights. Each backward helper undoes one line of the forward pass;
 * the gradient of the residual stream walks down in `stream`.
 */
#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "kernels.h"

enum {
    LN1_WEIGHT,
    LN1_BIAS,
    QKV_WEIGHT,
    QKV_BIAS,
    ATTENTION_WEIGHT,
    ATTENTION_BIAS,
    LN2_WEIGHT,
    LN2_BIAS,
    FC_WEIGHT,
    FC_BIAS,
    MLP_WEIGHT,
    MLP_BIAS,
    PER_LAYER
};
enum { WTE, WPE, OF_EMBEDDING };
enum { LNF_WEIGHT, LNF_BIAS, HEAD_WEIGHT };

/* The activations of one layer; T is sequences * context. */
struct layer {
    float *in;        /* [T][d] the stream before the layer */
    float *ln1;       /* [T][d] */
    float *ln1_stats; /* [T][2] */
    float *qkv;       /* [T][3d] */
    float *weights;   /* attention's softmax */
    float *mixed;     /* [T][d] what attention gives */
    float *middle;    /* [T][d] the stream between attention and mlp */
    float *ln2;       /* [T][d] */
    float *ln2_stats; /* [T][2] */
    float *fc;        /* [T][4d] before the GELU */
    float *gelu;      /* [T][4d] */
};

struct gpt_slot {
    float *floats; /* all that follows lies in here */
    struct layer *layers;
    float *last;          /* [T][d] the stream after the last layer (last stage) */
    float *lnf;           /* [T][d] (last stage) */
    float *lnf_stats;     /* [T][2] (last stage) */
    float *probabilities; /* [T][vocab] (last stage) */
};

static bool
is_first(const struct gpt_stage *stage)
{
    return stage->layer_begin == 0;
}

static bool
is_last(const struct gpt_stage *stage)
{
    return stage->layer_end == stage->shape.layers;
}

static size_t
token_count(const struct gpt_shape *shape)
{
    return (size_t)shape->sequences * shape->context;
}

size_t
gpt_stream_floats(const struct gpt_shape *shape)
{
    return token_count(shape) * shape->d_model;
}

/*
 * The begin of a tensor of a layer (counted from the stage's first), of the embedding, of the head.
 */
static size_t
of_layer(const struct gpt_stage *stage, uint32_t layer, int which)
{
    uint32_t base = (is_first(stage) ? (uint32_t)OF_EMBEDDING : 0) + layer * PER_LAYER;

    return stage->tensors[base + (uint32_t)which].begin;
}

static size_t
of_embedding(const struct gpt_stage *stage, int which)
{
    return stage->tensors[which].begin;
}

static size_t
of_head(const struct gpt_stage *stage, int which)
{
    return of_layer(stage, stage->layer_end - stage->layer_begin, which);
}

/* Lays the slot's arrays out from `at` (NULL: counts only). Returns the floats used. */
static size_t
slot_lay_out(const struct gpt_stage *stage, struct gpt_slot *slot, float *at)
{
    size_t tokens = token_count(&stage->shape);
    size_t d = stage->shape.d_model;
    size_t used = 0;

#define TAKE(pointer, floats)                                                                      \
    do {                                                                                           \
        if (at)                                                                                    \
            (pointer) = at + used;                                                                 \
        used += ((floats) + 15) / 16 * 16;                                                         \
    } while (0)
    for (uint32_t i = 0; i < stage->layer_end - stage->layer_begin; i++) {
        struct layer *layer = &slot->layers[i];

        TAKE(layer->in, tokens * d);
        TAKE(layer->ln1, tokens * d);
        TAKE(layer->ln1_stats, tokens * 2);
        TAKE(layer->qkv, tokens * 3 * d);
        TAKE(layer->weights, gpt_attention_weight_floats(&stage->shape));
        TAKE(layer->mixed, tokens * d);
        TAKE(layer->middle, tokens * d);
        TAKE(layer->ln2, tokens * d);
        TAKE(layer->ln2_stats, tokens * 2);
        TAKE(layer->fc, tokens * 4 * d);
        TAKE(layer->gelu, tokens * 4 * d);
    }
    if (is_last(stage)) {
        TAKE(slot->last, tokens * d);
        TAKE(slot->lnf, tokens * d);
        TAKE(slot->lnf_stats, tokens * 2);
        TAKE(slot->probabilities, tokens * GPT_VOCAB);
    }
#undef TAKE
    return used;
}

/* Scratch: a transposed matrix (d x vocab or d x 4d), two gradients [T][4d], attention's own. */
static size_t
scratch_matrix_floats(const struct gpt_shape *shape)
{
    size_t columns = 4 * (size_t)shape->d_model;

    return shape->d_model * (columns > GPT_VOCAB ? columns : GPT_VOCAB);
}

static size_t
scratch_gradient_floats(const struct gpt_shape *shape)
{
    return token_count(shape) * 4 * shape->d_model;
}

/* Zeroed floats on a cache line of their own. */
static float *
floats_create(size_t count)
{
    size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
    float *floats = aligned_alloc(64, bytes ? bytes : 64);

    if (floats)
        memset(floats, 0, bytes);
    return floats;
}

cairn_err
gpt_stage_init(const struct gpt_shape *shape, uint32_t layer_begin, uint32_t layer_end,
               uint32_t slot_count, struct gpt_stage *out)
{
    struct gpt_stage stage = {.shape = *shape, .layer_begin = layer_begin, .layer_end = layer_end};
    cairn_err err;

    err = gpt_tensor_list(shape, layer_begin, layer_end, &stage.tensors, &stage.tensor_count);
    if (err)
        goto done;
    for (uint32_t i = 0; i < stage.tensor_count; i++)
        stage.float_count += stage.tensors[i].count;
    err = CAIRN_NOMEM;
    stage.param = floats_create(stage.float_count);
    stage.scratch =
        floats_create(scratch_matrix_floats(shape) + 2 * scratch_gradient_floats(shape) +
                      gpt_attention_scratch_floats(shape));
    stage.slots = calloc(slot_count, sizeof *stage.slots);
    if (!stage.param || !stage.scratch || !stage.slots)
        goto done;
    stage.slot_count = slot_count;
    for (uint32_t i = 0; i < slot_count; i++) {
        struct gpt_slot *slot = &stage.slots[i];

        slot->layers = calloc(layer_end - layer_begin, sizeof *slot->layers);
        if (!slot->layers)
            goto done;
        slot->floats = floats_create(slot_lay_out(&stage, slot, NULL));
        if (!slot->floats)
            goto done;
        (void)slot_lay_out(&stage, slot, slot->floats);
    }
    err = CAIRN_OK;
    *out = stage;
done:
    if (err)
        gpt_stage_fini(&stage);
    return err;
}

void
gpt_stage_fini(struct gpt_stage *stage)
{
    for (uint32_t i = 0; i < stage->slot_count; i++) {
        free(stage->slots[i].layers);
        free(stage->slots[i].floats);
    }
    free(stage->slots);
    free(stage->scratch);
    free(stage->param);
    free(stage->tensors);
    *stage = (struct gpt_stage){0};
}

/* out[tokens][columns] (+)= in[tokens][depth] * weight + bias */
static void
linear(float *out, const float *in, const float *weight, const float *bias, size_t tokens,
       size_t depth, size_t columns, bool accumulate)
{
    gpt_matmul(tokens, columns, depth, (struct gpt_matrix){in, depth, 1}, weight, columns, out,
               columns, accumulate);
    if (!bias)
        return;
    for (size_t t = 0; t < tokens; t++)
        gpt_add(out + t * columns, bias, columns);
}

/* Given the gradient of linear's output: adds to d_weight and d_bias, writes d_in. */
static void
linear_backward(const struct gpt_stage *stage, float *d_in, float *d_weight, float *d_bias,
                const float *gradient, const float *in, const float *weight, size_t depth,
                size_t columns)
{
    size_t tokens = token_count(&stage->shape);
    float *turned = stage->scratch;

    gpt_matmul(depth, columns, tokens, (struct gpt_matrix){in, 1, depth}, gradient, columns,
               d_weight, columns, true);
    if (d_bias)
        gpt_column_sum(d_bias, gradient, tokens, columns);
    gpt_transpose(turned, weight, depth, columns);
    gpt_matmul(tokens, depth, columns, (struct gpt_matrix){gradient, columns, 1}, turned, depth,
               d_in, depth, false);
}

static void
layer_forward(const struct gpt_stage *stage, uint32_t index, struct layer *layer, float *stream)
{
    const float *param = stage->param;
    size_t tokens = token_count(&stage->shape);
    size_t d = stage->shape.d_model;
    float *own = stage->scratch + scratch_matrix_floats(&stage->shape) +
                 2 * scratch_gradient_floats(&stage->shape);

#define P(which) (param + of_layer(stage, index, which))
    memcpy(layer->in, stream, tokens * d * sizeof *stream);
    gpt_norm(layer->ln1, layer->ln1_stats, stream, P(LN1_WEIGHT), P(LN1_BIAS), tokens, d);
    linear(layer->qkv, layer->ln1, P(QKV_WEIGHT), P(QKV_BIAS), tokens, d, 3 * d, false);
    gpt_attention(&stage->shape, layer->qkv, layer->weights, layer->mixed, own);
    linear(stream, layer->mixed, P(ATTENTION_WEIGHT), P(ATTENTION_BIAS), tokens, d, d, true);
    memcpy(layer->middle, stream, tokens * d * sizeof *stream);
    gpt_norm(layer->ln2, layer->ln2_stats, stream, P(LN2_WEIGHT), P(LN2_BIAS), tokens, d);
    linear(layer->fc, layer->ln2, P(FC_WEIGHT), P(FC_BIAS), tokens, d, 4 * d, false);
    gpt_gelu(layer->gelu, layer->fc, tokens * 4 * d);
    linear(stream, layer->gelu, P(MLP_WEIGHT), P(MLP_BIAS), tokens, 4 * d, d, true);
#undef P
}

static void
layer_backward(const struct gpt_stage *stage, uint32_t index, const struct layer *layer,
               float *stream, float *grad)
{
    const float *param = stage->param;
    size_t d = stage->shape.d_model;
    size_t tokens = token_count(&stage->shape);
    float *wide = stage->scratch + scratch_matrix_floats(&stage->shape);
    float *narrow = wide + scratch_gradient_floats(&stage->shape);
    float *own = narrow + scratch_gradient_floats(&stage->shape);

#define P(which) (param + of_layer(stage, index, which))
#define G(which) (grad + of_layer(stage, index, which))
    linear_backward(stage, wide, G(MLP_WEIGHT), G(MLP_BIAS), stream, layer->gelu, P(MLP_WEIGHT),
                    4 * d, d);
    gpt_gelu_backward(wide, layer->fc, tokens * 4 * d);
    linear_backward(stage, narrow, G(FC_WEIGHT), G(FC_BIAS), wide, layer->ln2, P(FC_WEIGHT), d,
                    4 * d);
    gpt_norm_backward(stream, G(LN2_WEIGHT), G(LN2_BIAS), narrow, layer->middle, layer->ln2_stats,
                      P(LN2_WEIGHT), tokens, d);
    linear_backward(stage, narrow, G(ATTENTION_WEIGHT), G(ATTENTION_BIAS), stream, layer->mixed,
                    P(ATTENTION_WEIGHT), d, d);
    gpt_attention_backward(&stage->shape, layer->qkv, layer->weights, narrow, wide, own);
    linear_backward(stage, narrow, G(QKV_WEIGHT), G(QKV_BIAS), wide, layer->ln1, P(QKV_WEIGHT), d,
                    3 * d);
    gpt_norm_backward(stream, G(LN1_WEIGHT), G(LN1_BIAS), narrow, layer->in, layer->ln1_stats,
                      P(LN1_WEIGHT), tokens, d);
#undef P
#undef G
}

static void
embed(const struct gpt_stage *stage, const uint8_t *tokens, float *stream)
{
    const float *wte = stage->param + of_embedding(stage, WTE);
    const float *wpe = stage->param + of_embedding(stage, WPE);
    size_t d = stage->shape.d_model;
    size_t context = stage->shape.context;

    for (size_t s = 0; s < stage->shape.sequences; s++) {
        for (size_t t = 0; t < context; t++, stream += d) {
            memcpy(stream, wte + tokens[s * (context + 1) + t] * d, d * sizeof *stream);
            gpt_add(stream, wpe + t * d, d);
        }
    }
}

static void
embed_backward(const struct gpt_stage *stage, const uint8_t *tokens, const float *stream,
               float *grad)
{
    float *d_wte = grad + of_embedding(stage, WTE);
    float *d_wpe = grad + of_embedding(stage, WPE);
    size_t d = stage->shape.d_model;
    size_t context = stage->shape.context;

    for (size_t s = 0; s < stage->shape.sequences; s++) {
        for (size_t t = 0; t < context; t++, stream += d) {
            gpt_add(d_wte + tokens[s * (context + 1) + t] * d, stream, d);
            gpt_add(d_wpe + t * d, stream, d);
        }
    }
}

static float
head_forward(const struct gpt_stage *stage, struct gpt_slot *slot, const uint8_t *tokens,
             float *stream)
{
    const float *param = stage->param;
    size_t count = token_count(&stage->shape);
    size_t d = stage->shape.d_model;
    size_t context = stage->shape.context;
    double loss = 0.0;

    memcpy(slot->last, stream, count * d * sizeof *stream);
    gpt_norm(slot->lnf, slot->lnf_stats, stream, param + of_head(stage, LNF_WEIGHT),
             param + of_head(stage, LNF_BIAS), count, d);
    memcpy(stream, slot->lnf, count * d * sizeof *stream);
    linear(slot->probabilities, slot->lnf, param + of_head(stage, HEAD_WEIGHT), NULL, count, d,
           GPT_VOCAB, false);
    for (size_t t = 0; t < count; t++) {
        float *row = slot->probabilities + t * GPT_VOCAB;
        float target = row[tokens[t / context * (context + 1) + t % context + 1]];

        loss += (double)gpt_softmax(row, GPT_VOCAB) - (double)target;
    }
    return (float)(loss / (double)count);
}

/* The gradient of the mean cross-entropy by the logits is (probability - target) / tokens. */
static void
head_backward(const struct gpt_stage *stage, const struct gpt_slot *slot, const uint8_t *tokens,
              float *stream, float *grad)
{
    const float *param = stage->param;
    size_t count = token_count(&stage->shape);
    size_t d = stage->shape.d_model;
    size_t context = stage->shape.context;
    float *d_logits = slot->probabilities; /* not needed again */
    float *d_norm = stage->scratch + scratch_matrix_floats(&stage->shape);
    float share = 1.0f / (float)count;

    for (size_t t = 0; t < count; t++) {
        float *row = d_logits + t * GPT_VOCAB;

        row[tokens[t / context * (context + 1) + t % context + 1]] -= 1.0f;
        for (size_t j = 0; j < GPT_VOCAB; j++)
            row[j] *= share;
    }
    linear_backward(stage, d_norm, grad + of_head(stage, HEAD_WEIGHT), NULL, d_logits, slot->lnf,
                    param + of_head(stage, HEAD_WEIGHT), d, GPT_VOCAB);
    memset(stream, 0, count * d * sizeof *stream);
    gpt_norm_backward(stream, grad + of_head(stage, LNF_WEIGHT), grad + of_head(stage, LNF_BIAS),
                      d_norm, slot->last, slot->lnf_stats, param + of_head(stage, LNF_WEIGHT),
                      count, d);
}

float
gpt_stage_forward(struct gpt_stage *stage, uint32_t slot_index, const uint8_t *tokens,
                  float *stream)
{
    struct gpt_slot *slot = &stage->slots[slot_index];

    if (is_first(stage))
        embed(stage, tokens, stream);
    for (uint32_t i = 0; i < stage->layer_end - stage->layer_begin; i++)
        layer_forward(stage, i, &slot->layers[i], stream);
    return is_last(stage) ? head_forward(stage, slot, tokens, stream) : 0.0f;
}

void
gpt_stage_backward(struct gpt_stage *stage, uint32_t slot_index, const uint8_t *tokens,
                   float *stream, float *grad)
{
    struct gpt_slot *slot = &stage->slots[slot_index];

    if (is_last(stage))
        head_backward(stage, slot, tokens, stream, grad);
    for (uint32_t i = stage->layer_end - stage->layer_begin; i-- > 0;)
        layer_backward(stage, i, &slot->layers[i], stream, grad);
    if (is_first(stage))
        embed_backward(stage, tokens, stream, grad);
}

const float *
gpt_stage_probabilities(const struct gpt_stage *stage, uint32_t slot_index)
{
    return stage->slots[slot_index].probabilities;
}
