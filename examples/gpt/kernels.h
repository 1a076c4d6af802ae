/*
 * examples/gpt/kernels.h - the arithmetic that takes the time, in fp32.
 *
 * Every kernel gives the same bits on every x86-64 machine, at any vector width: each output
 * element is summed in one fixed order (matmul: depth ascending; row sums: 16 lanes by index modulo
 * 16, folded in lane order), no multiplication is fused with an addition, and exp and log are our
 * own polynomials of plain additions and multiplications instead of the C library's, which differ
 * from one processor to the next. The widest instruction set of the machine is chosen once, at the
 * first call.
 *
 * Thread: any, no kernel keeps state or allocates. Buffers must not overlap unless said otherwise.
 */
#ifndef GPT_KERNELS_H
#define GPT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

/* One operand of a matrix product: element (i, j) is at data[i * row + j * column]. */
struct gpt_matrix {
    const float *data;
    size_t row;
    size_t column;
};

/*
 * c[i][j] (+)= sum over t of a(i, t) * b[t][j], for i < rows, j < columns, t < depth.
 * b and c are row-major with row strides b_row and c_row; a may have any strides (a transpose
 * costs nothing). With `accumulate` the sum starts from what c holds, else from 0.
 */
void gpt_matmul(size_t rows, size_t columns, size_t depth, struct gpt_matrix a, const float *b,
                size_t b_row, float *c, size_t c_row, bool accumulate);

/* target[count] += source[count]. */
void gpt_add(float *target, const float *source, size_t count);

/* The sum of the squares of values[count], added up in double. */
double gpt_square_sum(const float *values, size_t count);

/* sums[columns] += the sum of values[rows][columns] over the rows, row by row. */
void gpt_column_sum(float *sums, const float *values, size_t rows, size_t columns);

/* Turns row[count] into exp(row - max) / sum. Returns max + log(sum), the row's log-sum-exp. */
float gpt_softmax(float *row, size_t count);

/* out[count] = gelu(in[count]), the form with tanh. */
void gpt_gelu(float *out, const float *in, size_t count);

/* gradient[count] *= gelu'(in[count]). */
void gpt_gelu_backward(float *gradient, const float *in, size_t count);

/*
 * Layer norm of each row of in[rows][columns] into out, with weight[columns] and bias[columns].
 * stats[rows][2] receives each row's mean and 1 / standard deviation, which the backward pass
 * needs.
 */
void gpt_norm(float *out, float *stats, const float *in, const float *weight, const float *bias,
              size_t rows, size_t columns);

/*
 * The backward pass of gpt_norm: given `gradient` of its output, adds to d_in, d_weight and d_bias.
 */
void gpt_norm_backward(float *d_in, float *d_weight, float *d_bias, const float *gradient,
                       const float *in, const float *stats, const float *weight, size_t rows,
                       size_t columns);

/* target[columns][rows] = the transpose of source[rows][columns]. */
void gpt_transpose(float *target, const float *source, size_t rows, size_t columns);

/* Natural logarithm of x > 0, within 2 units in the last place of a float. */
double gpt_log(double x);

/*
 * Chooses the instruction set: 0 the plain one, 1 AVX2, 2 AVX-512; more than the machine has is cut
 * to what it has. Returns what was chosen. For tests; not while kernels run in other threads.
 */
int gpt_kernels_limit(int level);

#endif
