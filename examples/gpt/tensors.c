/*
 * examples/gpt/tensors.c - the table of a stage's tensors, and their first values.
 *
 * Order, which is also that of the update and of the capture:
 *   wte.weight [vocab][d], wpe.weight [context][d]                            (first stage)
 *   h.L.ln_1.weight, .bias [d]; h.L.attn.qkv.weight [d][3d], .bias; h.L.attn.proj.weight [d][d],
 *   .bias; h.L.ln_2.weight, .bias; h.L.mlp.fc.weight [d][4d], .bias; h.L.mlp.proj.weight [4d][d],
 *   .bias                                                                     (each layer)
 *   ln_f.weight, ln_f.bias [d], lm_head.weight [d][vocab]                     (last stage)
 */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

enum { PER_LAYER = 12, OF_EMBEDDING = 2, OF_HEAD = 3 };

struct table {
    struct gpt_tensor *tensors;
    uint32_t count;
    size_t floats;
};

static void
put(struct table *table, const char *prefix, const char *name, uint64_t rows, uint64_t columns)
{
    struct gpt_tensor *tensor = &table->tensors[table->count++];

    (void)snprintf(tensor->name, sizeof tensor->name, "%s%s", prefix, name);
    tensor->matrix = rows != 0;
    tensor->dims = tensor->matrix ? 2 : 1;
    tensor->extent[0] = tensor->matrix ? rows : columns;
    tensor->extent[1] = tensor->matrix ? columns : 0;
    tensor->begin = table->floats;
    tensor->count = (tensor->matrix ? rows : 1) * columns;
    table->floats += tensor->count;
}

cairn_err
gpt_tensor_list(const struct gpt_shape *shape, uint32_t layer_begin, uint32_t layer_end,
                struct gpt_tensor **out, uint32_t *count_out)
{
    uint64_t d = shape->d_model;
    struct table table = {0};
    char prefix[24];

    table.tensors = calloc((size_t)(layer_end - layer_begin) * PER_LAYER + OF_EMBEDDING + OF_HEAD,
                           sizeof *table.tensors);
    if (!table.tensors)
        return CAIRN_NOMEM;
    if (layer_begin == 0) {
        put(&table, "", "wte.weight", GPT_VOCAB, d);
        put(&table, "", "wpe.weight", shape->context, d);
    }
    for (uint32_t layer = layer_begin; layer < layer_end; layer++) {
        (void)snprintf(prefix, sizeof prefix, "h.%u.", layer);
        put(&table, prefix, "ln_1.weight", 0, d);
        put(&table, prefix, "ln_1.bias", 0, d);
        put(&table, prefix, "attn.qkv.weight", d, 3 * d);
        put(&table, prefix, "attn.qkv.bias", 0, 3 * d);
        put(&table, prefix, "attn.proj.weight", d, d);
        put(&table, prefix, "attn.proj.bias", 0, d);
        put(&table, prefix, "ln_2.weight", 0, d);
        put(&table, prefix, "ln_2.bias", 0, d);
        put(&table, prefix, "mlp.fc.weight", d, 4 * d);
        put(&table, prefix, "mlp.fc.bias", 0, 4 * d);
        put(&table, prefix, "mlp.proj.weight", 4 * d, d);
        put(&table, prefix, "mlp.proj.bias", 0, d);
    }
    if (layer_end == shape->layers) {
        put(&table, "", "ln_f.weight", 0, d);
        put(&table, "", "ln_f.bias", 0, d);
        put(&table, "", "lm_head.weight", d, GPT_VOCAB);
    }
    *out = table.tensors;
    *count_out = table.count;
    return CAIRN_OK;
}

size_t
gpt_stage_layer_at(const struct gpt_stage *stage, uint32_t layer)
{
    uint32_t before = stage->layer_begin == 0 ? OF_EMBEDDING : 0;

    if (layer == stage->layer_begin)
        return 0;
    if (layer == stage->layer_end)
        return stage->float_count;
    return stage->tensors[before + (layer - stage->layer_begin) * PER_LAYER].begin;
}

/*
 * A value of mean 0 and variance 1: the sum of 12 numbers below 1, less 6. Integer arithmetic and
 * one exact conversion, so the same on every machine.
 */
static float
normal(uint64_t key)
{
    int64_t sum = 0;

    for (uint64_t i = 0; i < 3; i++) {
        uint64_t word = gpt_random(key, i);

        for (int part = 0; part < 4; part++)
            sum += (int64_t)(word >> (16 * part) & 0xffff);
    }
    return (float)(sum * 2 + 12 - 12 * 65536) / 131072.0f;
}

static bool
ends_with(const char *name, const char *end)
{
    size_t name_len = strlen(name);
    size_t end_len = strlen(end);

    return name_len >= end_len && strcmp(name + name_len - end_len, end) == 0;
}

void
gpt_stage_randomize(struct gpt_stage *stage, uint64_t seed)
{
    /* The matrices that write into the residual stream start smaller: 2 of them per layer. */
    float into_stream = 1.0f / sqrtf(2.0f * (float)stage->shape.layers);

    for (uint32_t i = 0; i < stage->tensor_count; i++) {
        const struct gpt_tensor *tensor = &stage->tensors[i];
        float *param = stage->param + tensor->begin;
        float scale = ends_with(tensor->name, "proj.weight") ? 0.02f * into_stream : 0.02f;
        float constant = ends_with(tensor->name, ".bias") ? 0.0f : 1.0f;
        uint64_t key = seed;

        for (const char *c = tensor->name; *c; c++)
            key = gpt_random(key, (uint8_t)*c);
        for (size_t j = 0; j < tensor->count; j++)
            param[j] = tensor->matrix ? scale * normal(gpt_random(key, j)) : constant;
    }
}
