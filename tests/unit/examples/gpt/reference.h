/*
 * tests/unit/examples/gpt/reference.h - the loss of the model in double precision, written from its
 * definition with none of the product's code: what the gradients of examples/gpt are checked
 * against.
 */
#ifndef CAIRN_TESTS_UNIT_EXAMPLES_GPT_REFERENCE_H
#define CAIRN_TESTS_UNIT_EXAMPLES_GPT_REFERENCE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt/model.h"

struct reference {
    const struct gpt_shape *shape;
    const struct gpt_tensor *tensors;
    uint32_t tensor_count;
    const double *param;
};

static inline const double *
reference_tensor(const struct reference *r, int layer, const char *name)
{
    char full[GPT_NAME_BYTES];

    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "h.%d.%s", layer, name);
    for (uint32_t i = 0; i < r->tensor_count; i++) {
        if (strcmp(r->tensors[i].name, full) == 0)
            return r->param + r->tensors[i].begin;
    }
    abort();
}

static inline void
reference_norm(double *out, const double *in, const double *weight, const double *bias, size_t n)
{
    double mean = 0.0;
    double square = 0.0;

    for (size_t i = 0; i < n; i++)
        mean += in[i] / (double)n;
    for (size_t i = 0; i < n; i++)
        square += (in[i] - mean) * (in[i] - mean) / (double)n;
    for (size_t i = 0; i < n; i++)
        out[i] = (in[i] - mean) / sqrt(square + 1e-5) * weight[i] + bias[i];
}

static inline void
reference_linear(double *out, const double *in, const double *weight, const double *bias,
                 size_t depth, size_t columns)
{
    for (size_t j = 0; j < columns; j++)
        out[j] = bias ? bias[j] : 0.0;
    for (size_t i = 0; i < depth; i++) {
        for (size_t j = 0; j < columns; j++)
            out[j] += in[i] * weight[i * columns + j];
    }
}

static inline void
reference_attention(const struct gpt_shape *shape, const double *qkv, double *out)
{
    size_t d = shape->d_model;
    size_t width = d / shape->heads;

    for (size_t t = 0; t < shape->context; t++) {
        for (size_t h = 0; h < shape->heads; h++) {
            double weights[64];
            double sum = 0.0;

            for (size_t j = 0; j <= t; j++) {
                double dot = 0.0;

                for (size_t i = 0; i < width; i++)
                    dot += qkv[t * 3 * d + h * width + i] * qkv[j * 3 * d + d + h * width + i];
                weights[j] = exp(dot / sqrt((double)width));
                sum += weights[j];
            }
            for (size_t i = 0; i < width; i++) {
                double value = 0.0;

                for (size_t j = 0; j <= t; j++)
                    value += weights[j] / sum * qkv[j * 3 * d + 2 * d + h * width + i];
                out[t * d + h * width + i] = value;
            }
        }
    }
}

static inline void
reference_layer(const struct reference *r, int layer, double *x)
{
    size_t d = r->shape->d_model;
    size_t n = r->shape->context;
    double *norm = calloc(d, sizeof *norm);
    double *qkv = calloc(n * 3 * d, sizeof *qkv);
    double *mixed = calloc(n * d, sizeof *mixed);
    double *fc = calloc(4 * d, sizeof *fc);
    double *add = calloc(d, sizeof *add);

#define T(name) reference_tensor(r, layer, name)
    for (size_t t = 0; t < n; t++) {
        reference_norm(norm, x + t * d, T("ln_1.weight"), T("ln_1.bias"), d);
        reference_linear(qkv + t * 3 * d, norm, T("attn.qkv.weight"), T("attn.qkv.bias"), d, 3 * d);
    }
    reference_attention(r->shape, qkv, mixed);
    for (size_t t = 0; t < n; t++) {
        reference_linear(add, mixed + t * d, T("attn.proj.weight"), T("attn.proj.bias"), d, d);
        for (size_t i = 0; i < d; i++)
            x[t * d + i] += add[i];
        reference_norm(norm, x + t * d, T("ln_2.weight"), T("ln_2.bias"), d);
        reference_linear(fc, norm, T("mlp.fc.weight"), T("mlp.fc.bias"), d, 4 * d);
        for (size_t i = 0; i < 4 * d; i++)
            fc[i] *=
                0.5 * (1.0 + tanh(sqrt(2.0 / M_PI) * (fc[i] + 0.044715 * fc[i] * fc[i] * fc[i])));
        reference_linear(add, fc, T("mlp.proj.weight"), T("mlp.proj.bias"), 4 * d, d);
        for (size_t i = 0; i < d; i++)
            x[t * d + i] += add[i];
    }
#undef T
    free(norm);
    free(qkv);
    free(mixed);
    free(fc);
    free(add);
}

/* The mean cross-entropy of one micro-batch, tokens[sequences][context + 1]. */
static inline double
reference_loss(const struct reference *r, const uint8_t *tokens)
{
    size_t d = r->shape->d_model;
    size_t n = r->shape->context;
    double *x = calloc(n * d, sizeof *x);
    double *norm = calloc(d, sizeof *norm);
    double logits[GPT_VOCAB];
    double loss = 0.0;

    for (size_t s = 0; s < r->shape->sequences; s++, tokens += n + 1) {
        for (size_t t = 0; t < n; t++) {
            for (size_t i = 0; i < d; i++)
                x[t * d + i] = reference_tensor(r, -1, "wte.weight")[tokens[t] * d + i] +
                               reference_tensor(r, -1, "wpe.weight")[t * d + i];
        }
        for (uint32_t layer = 0; layer < r->shape->layers; layer++)
            reference_layer(r, (int)layer, x);
        for (size_t t = 0; t < n; t++) {
            double sum = 0.0;

            reference_norm(norm, x + t * d, reference_tensor(r, -1, "ln_f.weight"),
                           reference_tensor(r, -1, "ln_f.bias"), d);
            reference_linear(logits, norm, reference_tensor(r, -1, "lm_head.weight"), NULL, d,
                             GPT_VOCAB);
            for (size_t j = 0; j < GPT_VOCAB; j++)
                sum += exp(logits[j]);
            loss += (log(sum) - logits[tokens[t + 1]]) / (double)(n * r->shape->sequences);
        }
    }
    free(x);
    free(norm);
    return loss;
}

#endif
