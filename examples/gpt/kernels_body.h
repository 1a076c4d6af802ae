/*
 * examples/gpt/kernels_body.h - the vector code of kernels.c, included once per instruction set.
 *
 * The includer defines KERNEL(name), the name of this copy; KERNEL_TARGET, the function attribute
 * that selects the instruction set; KERNEL_WIDTH, the floats of its widest vector (4, 8 or 16); and
 * KERNEL_ROWS, how many rows of a product are kept in registers at once. None of them changes a
 * result: work on single elements does not know its neighbours, and sums are always over LANES = 16
 * lanes, held in LANES / KERNEL_WIDTH vectors, that meet in the fixed order of fold().
 */

#define VEC KERNEL(vec)
#define INTS KERNEL(ints)
#define PARTS (LANES / KERNEL_WIDTH)
#define INLINE static inline KERNEL_TARGET __attribute__((always_inline))

typedef float VEC __attribute__((vector_size(KERNEL_WIDTH * 4)));
typedef int32_t INTS __attribute__((vector_size(KERNEL_WIDTH * 4)));
typedef float KERNEL(loose) __attribute__((vector_size(KERNEL_WIDTH * 4), aligned(4), may_alias));

/* The first `count` lanes from memory (all of them where there are so many), the others 0. */
INLINE VEC
KERNEL(load)(const float *from, size_t count)
{
    VEC value = {0};

    if (count >= KERNEL_WIDTH)
        return *(const KERNEL(loose) *)from;
    memcpy(&value, from, count * sizeof *from);
    return value;
}

INLINE void
KERNEL(store)(float *to, VEC value, size_t count)
{
    if (count >= KERNEL_WIDTH)
        *(KERNEL(loose) *)to = value;
    else
        memcpy(to, &value, count * sizeof *to);
}

/* The first `count` lanes of value, the others 0. */
INLINE VEC
KERNEL(keep)(VEC value, size_t count)
{
    for (size_t i = count; i < KERNEL_WIDTH; i++)
        value[i] = 0.0f;
    return value;
}

/* The sum of the 16 lanes, in lane order. */
INLINE float
KERNEL(fold)(const VEC *parts)
{
    float sum = 0.0f;

    for (size_t part = 0; part < PARTS; part++) {
        for (size_t i = 0; i < KERNEL_WIDTH; i++)
            sum += parts[part][i];
    }
    return sum;
}

INLINE VEC
KERNEL(select)(INTS mask, VEC yes, VEC no)
{
    return (VEC)((mask & (INTS)yes) | (~mask & (INTS)no));
}

INLINE VEC
KERNEL(exp)(VEC x)
{
    /* 2^n * e^r with |r| <= ln 2 / 2; the constants and the polynomial are those of Cephes expf. */
    const VEC shift = (VEC){0} + 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    const VEC low = (VEC){0} - 87.0f;
    const VEC high = (VEC){0} + 88.0f;
    VEC t;
    VEC n;
    VEC r;
    VEC p;
    INTS exponent;

    x = KERNEL(select)(x < low, low, x);
    x = KERNEL(select)(x > high, high, x);
    t = x * 1.44269504088896341f + shift;
    n = t - shift;
    exponent = ((INTS)t - 0x4b400000 + 127) << 23;
    r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (VEC)exponent;
}

/*
 * panel[depth][16]: `width` columns of b, zeros behind them, side by side so that they stay cached
 */
static KERNEL_TARGET void
KERNEL(pack)(float *panel, const float *b, size_t b_row, size_t depth, size_t width)
{
    for (size_t t = 0; t < depth; t++, b += b_row, panel += LANES) {
        size_t j = 0;

        for (; j + KERNEL_WIDTH <= width; j += KERNEL_WIDTH)
            KERNEL(store)(panel + j, KERNEL(load)(b + j, KERNEL_WIDTH), KERNEL_WIDTH);
        for (; j < LANES; j++)
            panel[j] = j < width ? b[j] : 0.0f;
    }
}

/* One tile of the product, c[height][16]: `height` is a constant where this is inlined. */
INLINE void
KERNEL(tile)(size_t height, size_t depth, const float *a, size_t a_row, size_t a_column,
             const float *panel, float *c, size_t c_row, bool accumulate)
{
    VEC sum[KERNEL_ROWS][PARTS];

    KERNEL_UNROLL
    for (size_t i = 0; i < height; i++) {
        KERNEL_UNROLL
        for (size_t part = 0; part < PARTS; part++)
            sum[i][part] = accumulate
                               ? KERNEL(load)(c + i * c_row + part * KERNEL_WIDTH, KERNEL_WIDTH)
                               : (VEC){0};
    }
    for (size_t t = 0; t < depth; t++, panel += LANES, a += a_column) {
        KERNEL_UNROLL
        for (size_t i = 0; i < height; i++) {
            KERNEL_UNROLL
            for (size_t part = 0; part < PARTS; part++)
                sum[i][part] +=
                    KERNEL(load)(panel + part * KERNEL_WIDTH, KERNEL_WIDTH) * a[i * a_row];
        }
    }
    KERNEL_UNROLL
    for (size_t i = 0; i < height; i++) {
        KERNEL_UNROLL
        for (size_t part = 0; part < PARTS; part++)
            KERNEL(store)(c + i * c_row + part * KERNEL_WIDTH, sum[i][part], KERNEL_WIDTH);
    }
}

/* The last columns of c, fewer than 16: the same tile, on a copy. */
static KERNEL_TARGET void
KERNEL(edge)(size_t height, size_t depth, const float *a, size_t a_row, size_t a_column,
             const float *panel, float *c, size_t c_row, size_t width, bool accumulate)
{
    for (size_t i = 0; i < height; i++, a += a_row, c += c_row) {
        float row[LANES] = {0};

        memcpy(row, c, width * sizeof *row);
        KERNEL(tile)(1, depth, a, a_row, a_column, panel, row, LANES, accumulate);
        memcpy(c, row, width * sizeof *row);
    }
}

static KERNEL_TARGET void
KERNEL(matmul)(size_t rows, size_t columns, size_t depth, struct gpt_matrix a, const float *b,
               size_t b_row, float *c, size_t c_row, bool accumulate)
{
    _Alignas(64) float panel[DEPTH_BLOCK * LANES];

    for (size_t t = 0; t < depth || t == 0; t += DEPTH_BLOCK) {
        size_t depth_part = least(depth - t, DEPTH_BLOCK);
        bool add = accumulate || t > 0;

        for (size_t top = 0; top < rows; top += ROW_BLOCK) {
            size_t bottom = top + least(rows - top, ROW_BLOCK);

            for (size_t j = 0; j < columns; j += LANES) {
                size_t width = least(columns - j, LANES);
                const float *at = a.data + t * a.column;
                size_t i = top;

                KERNEL(pack)(panel, b + t * b_row + j, b_row, depth_part, width);
                if (width < LANES) {
                    KERNEL(edge)
                    (bottom - top, depth_part, at + top * a.row, a.row, a.column, panel,
                     c + top * c_row + j, c_row, width, add);
                    continue;
                }
                for (; i + KERNEL_ROWS <= bottom; i += KERNEL_ROWS)
                    KERNEL(tile)
                (KERNEL_ROWS, depth_part, at + i * a.row, a.row, a.column, panel, c + i * c_row + j,
                 c_row, add);
                for (; i < bottom; i++)
                    KERNEL(tile)
                (1, depth_part, at + i * a.row, a.row, a.column, panel, c + i * c_row + j, c_row,
                 add);
            }
        }
    }
}

static KERNEL_TARGET void
KERNEL(add)(float *target, const float *source, size_t count)
{
    size_t i = 0;

    for (; i + KERNEL_WIDTH <= count; i += KERNEL_WIDTH)
        KERNEL(store)
    (target + i, KERNEL(load)(target + i, KERNEL_WIDTH) + KERNEL(load)(source + i, KERNEL_WIDTH),
     KERNEL_WIDTH);
    for (; i < count; i++)
        target[i] += source[i];
}

static KERNEL_TARGET float
KERNEL(softmax)(float *row, size_t count)
{
    VEC sums[PARTS] = {{0}};
    float top = row[0];
    float sum;
    size_t part = 0;

    for (size_t i = 1; i < count; i++)
        top = row[i] > top ? row[i] : top;
    for (size_t i = 0; i < count; i += KERNEL_WIDTH, part = (part + 1) % PARTS) {
        VEC e = KERNEL(keep)(KERNEL(exp)(KERNEL(load)(row + i, count - i) - top), count - i);

        KERNEL(store)(row + i, e, count - i);
        sums[part] += e;
    }
    sum = KERNEL(fold)(sums);
    for (size_t i = 0; i < count; i += KERNEL_WIDTH)
        KERNEL(store)(row + i, KERNEL(load)(row + i, count - i) * (1.0f / sum), count - i);
    return top + (float)gpt_log((double)sum);
}

/*
 * gelu(x) = x s(2 u) with s the logistic function and u = sqrt(2 / pi) (x + 0.044715 x^3): the
 * usual form x (1 + tanh u) / 2, rewritten.
 */
INLINE VEC
KERNEL(gate)(VEC x)
{
    VEC u2 = x * 1.5957691216f * (x * x * 0.044715f + 1.0f);

    return 1.0f / (KERNEL(exp)(-u2) + 1.0f);
}

static KERNEL_TARGET void
KERNEL(gelu)(float *out, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i += KERNEL_WIDTH) {
        VEC x = KERNEL(load)(in + i, count - i);

        KERNEL(store)(out + i, x * KERNEL(gate)(x), count - i);
    }
}

static KERNEL_TARGET void
KERNEL(gelu_backward)(float *gradient, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i += KERNEL_WIDTH) {
        VEC x = KERNEL(load)(in + i, count - i);
        VEC s = KERNEL(gate)(x);
        VEC slope = (x * x * 0.134145f + 1.0f) * 1.5957691216f;

        slope = s + x * s * (1.0f - s) * slope;
        KERNEL(store)(gradient + i, KERNEL(load)(gradient + i, count - i) * slope, count - i);
    }
}

static KERNEL_TARGET void
KERNEL(norm)(float *out, float *stats, const float *in, const float *weight, const float *bias,
             size_t rows, size_t columns)
{
    for (size_t r = 0; r < rows; r++, in += columns, out += columns, stats += 2) {
        VEC sums[PARTS] = {{0}};
        VEC squares[PARTS] = {{0}};
        size_t part = 0;
        float mean;
        float rstd;

        for (size_t j = 0; j < columns; j += KERNEL_WIDTH, part = (part + 1) % PARTS)
            sums[part] += KERNEL(load)(in + j, columns - j);
        mean = KERNEL(fold)(sums) / (float)columns;
        part = 0;
        for (size_t j = 0; j < columns; j += KERNEL_WIDTH, part = (part + 1) % PARTS) {
            VEC away = KERNEL(keep)(KERNEL(load)(in + j, columns - j) - mean, columns - j);

            squares[part] += away * away;
        }
        rstd = 1.0f / sqrtf(KERNEL(fold)(squares) / (float)columns + 1e-5f);
        for (size_t j = 0; j < columns; j += KERNEL_WIDTH) {
            VEC x = (KERNEL(load)(in + j, columns - j) - mean) * rstd;

            x = x * KERNEL(load)(weight + j, columns - j) + KERNEL(load)(bias + j, columns - j);
            KERNEL(store)(out + j, x, columns - j);
        }
        stats[0] = mean;
        stats[1] = rstd;
    }
}

static KERNEL_TARGET void
KERNEL(norm_backward)(float *d_in, float *d_weight, float *d_bias, const float *gradient,
                      const float *in, const float *stats, const float *weight, size_t rows,
                      size_t columns)
{
    for (size_t r = 0; r < rows; r++, in += columns, d_in += columns, gradient += columns) {
        VEC sums[PARTS] = {{0}};
        VEC products[PARTS] = {{0}};
        float mean = stats[2 * r];
        float rstd = stats[2 * r + 1];
        float sum;
        float product;
        size_t part = 0;

        for (size_t j = 0; j < columns; j += KERNEL_WIDTH, part = (part + 1) % PARTS) {
            size_t left = columns - j;
            VEC x = (KERNEL(load)(in + j, left) - mean) * rstd;
            VEC g = KERNEL(load)(gradient + j, left);
            VEC w = g * KERNEL(load)(weight + j, left);

            sums[part] += w;
            products[part] += w * x; /* lanes past the end have g = 0 */
            KERNEL(store)(d_weight + j, KERNEL(load)(d_weight + j, left) + g * x, left);
            KERNEL(store)(d_bias + j, KERNEL(load)(d_bias + j, left) + g, left);
        }
        sum = KERNEL(fold)(sums) / (float)columns;
        product = KERNEL(fold)(products) / (float)columns;
        for (size_t j = 0; j < columns; j += KERNEL_WIDTH) {
            size_t left = columns - j;
            VEC x = (KERNEL(load)(in + j, left) - mean) * rstd;
            VEC w = KERNEL(load)(gradient + j, left) * KERNEL(load)(weight + j, left);

            w = (w - sum - x * product) * rstd;
            KERNEL(store)(d_in + j, KERNEL(load)(d_in + j, left) + w, left);
        }
    }
}

static const struct kernels KERNEL(set) = {
    KERNEL(matmul),        KERNEL(add),  KERNEL(softmax),       KERNEL(gelu),
    KERNEL(gelu_backward), KERNEL(norm), KERNEL(norm_backward),
};

#undef VEC
#undef INTS
#undef PARTS
#undef INLINE
