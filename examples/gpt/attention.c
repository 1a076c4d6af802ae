/*
 * examples/gpt/attention.c - causal multi-head attention, forward and backward.
 *
 * Each (sequence, head) is copied out of the rows of qkv into dense matrices, so that the products
 * run over contiguous memory. Products are done in bands of rows, and a band that ends at row e
 * only touches the columns below e: half of the square above the diagonal is never computed. Within
 * a band the entries above the diagonal are set to 0 and add nothing.
 */
#include "attention.h"

#include <math.h>
#include <string.h>

#include "kernels.h"

enum { BAND = 32 };

struct head {
    size_t context;
    size_t width;
    size_t row; /* stride of a token in qkv */
    float scale;
};

static struct head
head_of(const struct gpt_shape *shape)
{
    struct head head = {
        .context = shape->context,
        .width = shape->d_model / shape->heads,
        .row = 3 * (size_t)shape->d_model,
    };

    head.scale = 1.0f / sqrtf((float)head.width);
    return head;
}

static size_t
band_end(const struct head *head, size_t begin)
{
    return begin + BAND < head->context ? begin + BAND : head->context;
}

/* dense[context][width] = the rows at `source`, `stride` apart */
static void
gather(const struct head *head, float *dense, const float *source, size_t stride)
{
    for (size_t t = 0; t < head->context; t++)
        memcpy(dense + t * head->width, source + t * stride, head->width * sizeof *dense);
}

static void
scatter(const struct head *head, float *target, size_t stride, const float *dense)
{
    for (size_t t = 0; t < head->context; t++)
        memcpy(target + t * stride, dense + t * head->width, head->width * sizeof *dense);
}

size_t
gpt_attention_scratch_floats(const struct gpt_shape *shape)
{
    size_t width = shape->d_model / shape->heads;

    return 9 * (size_t)shape->context * width + (size_t)BAND * shape->context;
}

size_t
gpt_attention_weight_floats(const struct gpt_shape *shape)
{
    return (size_t)shape->sequences * shape->heads * shape->context * shape->context;
}

static void
head_forward(const struct head *head, const float *qkv, size_t d_model, float *weights, float *out,
             float *scratch)
{
    size_t n = head->context;
    size_t w = head->width;
    float *k = scratch;
    float *k_turned = k + n * w;
    float *v = k_turned + n * w;
    float *result = v + n * w;

    gather(head, k, qkv + d_model, head->row);
    gpt_transpose(k_turned, k, n, w);
    gather(head, v, qkv + 2 * d_model, head->row);
    memset(weights, 0, n * n * sizeof *weights);
    for (size_t begin = 0; begin < n; begin = band_end(head, begin)) {
        size_t end = band_end(head, begin);
        struct gpt_matrix queries = {qkv + begin * head->row, head->row, 1};
        struct gpt_matrix band = {weights + begin * n, n, 1};

        gpt_matmul(end - begin, end, w, queries, k_turned, n, weights + begin * n, n, false);
        for (size_t t = begin; t < end; t++) {
            float *row = weights + t * n;

            for (size_t j = 0; j <= t; j++)
                row[j] *= head->scale;
            (void)gpt_softmax(row, t + 1);
            memset(row + t + 1, 0, (n - t - 1) * sizeof *row);
        }
        gpt_matmul(end - begin, w, end, band, v, w, result + begin * w, w, false);
    }
    scatter(head, out, d_model, result);
}

/*
 * With P the weights and g the gradient of out: dv = P^T g; dP = g v^T; dS = P (dP - sum_j dP P);
 * dq = dS k scale; dk = dS^T q scale.
 */
static void
head_backward(const struct head *head, const float *qkv, size_t d_model, const float *weights,
              const float *gradient, float *d_qkv, float *scratch)
{
    size_t n = head->context;
    size_t w = head->width;
    float *k = scratch;
    float *q = k + n * w;
    float *v = q + n * w;
    float *v_turned = v + n * w;
    float *g = v_turned + n * w;
    float *dq = g + n * w;
    float *dk = dq + n * w;
    float *dv = dk + n * w;
    float *d_band = dv + n * w;

    gather(head, q, qkv, head->row);
    gather(head, k, qkv + d_model, head->row);
    gather(head, v, qkv + 2 * d_model, head->row);
    gather(head, g, gradient, d_model);
    gpt_transpose(v_turned, v, n, w);
    memset(dk, 0, n * w * sizeof *dk);
    memset(dv, 0, n * w * sizeof *dv);
    for (size_t begin = 0; begin < n; begin = band_end(head, begin)) {
        size_t end = band_end(head, begin);
        struct gpt_matrix weights_turned = {weights + begin * n, 1, n};
        struct gpt_matrix rows = {g + begin * w, w, 1};
        struct gpt_matrix band = {d_band, n, 1};
        struct gpt_matrix band_turned = {d_band, 1, n};

        gpt_matmul(end, w, end - begin, weights_turned, g + begin * w, w, dv, w, true);
        gpt_matmul(end - begin, end, w, rows, v_turned, n, d_band, n, false);
        for (size_t t = begin; t < end; t++) {
            const float *p = weights + t * n;
            float *d = d_band + (t - begin) * n;
            float sum = 0.0f;

            for (size_t j = 0; j <= t; j++)
                sum += d[j] * p[j];
            for (size_t j = 0; j < end; j++)
                d[j] = j <= t ? p[j] * (d[j] - sum) * head->scale : 0.0f;
        }
        gpt_matmul(end - begin, w, end, band, k, w, dq + begin * w, w, false);
        gpt_matmul(end, w, end - begin, band_turned, q + begin * w, w, dk, w, true);
    }
    scatter(head, d_qkv, head->row, dq);
    scatter(head, d_qkv + d_model, head->row, dk);
    scatter(head, d_qkv + 2 * d_model, head->row, dv);
}

void
gpt_attention(const struct gpt_shape *shape, const float *qkv, float *weights, float *out,
              float *scratch)
{
    struct head head = head_of(shape);

    for (size_t s = 0; s < shape->sequences; s++) {
        for (size_t h = 0; h < shape->heads; h++) {
            size_t token = s * head.context;

            head_forward(&head, qkv + token * head.row + h * head.width, shape->d_model,
                         weights + (s * shape->heads + h) * head.context * head.context,
                         out + token * shape->d_model + h * head.width, scratch);
        }
    }
}

void
gpt_attention_backward(const struct gpt_shape *shape, const float *qkv, const float *weights,
                       const float *gradient, float *d_qkv, float *scratch)
{
    struct head head = head_of(shape);

    for (size_t s = 0; s < shape->sequences; s++) {
        for (size_t h = 0; h < shape->heads; h++) {
            size_t token = s * head.context;

            head_backward(&head, qkv + token * head.row + h * head.width, shape->d_model,
                          weights + (s * shape->heads + h) * head.context * head.context,
                          gradient + token * shape->d_model + h * head.width,
                          d_qkv + token * head.row + h * head.width, scratch);
        }
    }
}
