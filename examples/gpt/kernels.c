/*
 * examples/gpt/kernels.c - chooses among the copies of kernels_body.h, and the scalar kernels.
 *
 * A product is computed in blocks: 256 of its depth, 128 of its rows, 16 of its columns. The 16
 * columns of b are packed side by side; a tile of rows x 16 sums stays in registers while the depth
 * is walked. Blocking the depth does not change a result: the next block goes on from the sums that
 * the last one stored.
 */
#include "kernels.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#define KERNEL_UNROLL _Pragma("unroll")
#else /* gcc with -std=c11 fuses nothing; it does not know the pragma */
#define KERNEL_UNROLL _Pragma("GCC unroll 8")
#endif

enum { LANES = 16, DEPTH_BLOCK = 256, ROW_BLOCK = 128 };

#define KERNEL_INLINE __attribute__((always_inline))

struct kernels {
    void (*matmul)(size_t rows, size_t columns, size_t depth, struct gpt_matrix a, const float *b,
                   size_t b_row, float *c, size_t c_row, bool accumulate);
    void (*add)(float *target, const float *source, size_t count);
    float (*softmax)(float *row, size_t count);
    void (*gelu)(float *out, const float *in, size_t count);
    void (*gelu_backward)(float *gradient, const float *in, size_t count);
    void (*norm)(float *out, float *stats, const float *in, const float *weight, const float *bias,
                 size_t rows, size_t columns);
    void (*norm_backward)(float *d_in, float *d_weight, float *d_bias, const float *gradient,
                          const float *in, const float *stats, const float *weight, size_t rows,
                          size_t columns);
};

static inline size_t
least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* |gpt_log(x) - log(x)| < 1e-15 |log(x)| + 1e-16: the series of atanh, on a mantissa near 1 */
double
gpt_log(double x)
{
    int exponent = 0;
    double mantissa = frexp(x, &exponent); /* exact */
    double s;
    double s2;
    double sum = 0.0;

    if (mantissa < 0.70710678118654752) {
        mantissa *= 2.0;
        exponent--;
    }
    s = (mantissa - 1.0) / (mantissa + 1.0);
    s2 = s * s;
    for (int term = 21; term >= 1; term -= 2)
        sum = sum * s2 + 1.0 / (double)term;
    return (double)exponent * 0.69314718055994531 + 2.0 * s * sum;
}

#define KERNEL(name) plain_##name
#define KERNEL_TARGET
#define KERNEL_WIDTH 4
#define KERNEL_ROWS 2
#include "kernels_body.h"
#undef KERNEL
#undef KERNEL_TARGET
#undef KERNEL_WIDTH
#undef KERNEL_ROWS

#ifdef __x86_64__
#define KERNEL(name) avx2_##name
#define KERNEL_TARGET __attribute__((target("avx2")))
#define KERNEL_WIDTH 8
#define KERNEL_ROWS 4
#include "kernels_body.h"
#undef KERNEL
#undef KERNEL_TARGET
#undef KERNEL_WIDTH
#undef KERNEL_ROWS

#define KERNEL(name) avx512_##name
#define KERNEL_TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw")))
#define KERNEL_WIDTH 16
#define KERNEL_ROWS 8
#include "kernels_body.h"
#undef KERNEL
#undef KERNEL_TARGET
#undef KERNEL_WIDTH
#undef KERNEL_ROWS
#endif

static const struct kernels *chosen;

int
gpt_kernels_limit(int level)
{
    int best = 0;

#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        best = 1;
    if (best == 1 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        best = 2;
    if (level < best)
        best = level;
    chosen = best == 2 ? &avx512_set : best == 1 ? &avx2_set : &plain_set;
#else
    (void)level;
    chosen = &plain_set;
#endif
    return best;
}

static const struct kernels *
kernels(void)
{
    if (!chosen)
        gpt_kernels_limit(2);
    return chosen;
}

void
gpt_matmul(size_t rows, size_t columns, size_t depth, struct gpt_matrix a, const float *b,
           size_t b_row, float *c, size_t c_row, bool accumulate)
{
    kernels()->matmul(rows, columns, depth, a, b, b_row, c, c_row, accumulate);
}

void
gpt_add(float *target, const float *source, size_t count)
{
    kernels()->add(target, source, count);
}

double
gpt_square_sum(const float *values, size_t count)
{
    double lanes[8] = {0};
    double sum = 0.0;

    for (size_t i = 0; i < count; i++)
        lanes[i % 8] += (double)values[i] * (double)values[i];
    for (size_t i = 0; i < 8; i++)
        sum += lanes[i];
    return sum;
}

void
gpt_column_sum(float *sums, const float *values, size_t rows, size_t columns)
{
    for (size_t r = 0; r < rows; r++)
        gpt_add(sums, values + r * columns, columns);
}

float
gpt_softmax(float *row, size_t count)
{
    return kernels()->softmax(row, count);
}

void
gpt_gelu(float *out, const float *in, size_t count)
{
    kernels()->gelu(out, in, count);
}

void
gpt_gelu_backward(float *gradient, const float *in, size_t count)
{
    kernels()->gelu_backward(gradient, in, count);
}

void
gpt_norm(float *out, float *stats, const float *in, const float *weight, const float *bias,
         size_t rows, size_t columns)
{
    kernels()->norm(out, stats, in, weight, bias, rows, columns);
}

void
gpt_norm_backward(float *d_in, float *d_weight, float *d_bias, const float *gradient,
                  const float *in, const float *stats, const float *weight, size_t rows,
                  size_t columns)
{
    kernels()->norm_backward(d_in, d_weight, d_bias, gradient, in, stats, weight, rows, columns);
}

void
gpt_transpose(float *target, const float *source, size_t rows, size_t columns)
{
    enum { TILE = 16 };

    for (size_t top = 0; top < rows; top += TILE) {
        for (size_t left = 0; left < columns; left += TILE) {
            for (size_t i = top; i < least(top + TILE, rows); i++) {
                for (size_t j = left; j < least(left + TILE, columns); j++)
                    target[j * rows + i] = source[i * columns + j];
            }
        }
    }
}
