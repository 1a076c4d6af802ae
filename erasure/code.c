/*
 * erasure/code.c - the code of code.h over ISA-L: the only file that includes its erasure and XOR
 * headers.
 *
 * ISA-L's requirements end here: lengths are an int; xor_gen wants at least three vectors, aligned
 * to 32 bytes, and stores past the cache; tables are 32 bytes per coefficient, and depend on the
 * library's version, so they are never stored or sent; data pointers are not const though only
 * read.
 */
#include "erasure/code.h"

#include <stdlib.h>
#include <string.h>

#include <isa-l/erasure_code.h>
#include <isa-l/raid.h>

#include "base/assert.h"

enum {
    TABLE_BYTES = 32,          /* per coefficient */
    CELLS_MAX = 32 * 32,       /* most coefficients of a k x m matrix with k + m <= 64 */
    XOR_ALIGN_BYTES = 32,      /* of every vector given to xor_gen */
    ROWS_PER_PASS = 6,         /* outputs that ISA-L computes in one pass over the data */
    SPAN_BYTES_MAX = 1 << 30,  /* a multiple of 64; twice it less one is INT_MAX */
    SPAN_BYTES_MIN = 1024,     /* shorter runs cost more in calls than they save */
    CACHED_BYTES = 256 * 1024, /* of source data that later passes find in cache */
    /*
     * Fetching ahead: ISA-L walks all sources at once and leaves fetching to the processor, which
     * follows so many streams badly. Where its AVX-512 kernels compute faster than memory delivers
     * (AMD Zen 5), asking for lines 512 bytes ahead, in steps of 256 bytes, encoded cold data 1.04
     * to 1.7 times as fast, and warm data within 4 % of as fast. Its AVX2 kernels (AMD Zen 3) are
     * bound by their own work, and such steps cost them up to a quarter. Fewer sources than four
     * do not need it, and more than twelve at equal distances fall into the same sets of a
     * first-level cache.
     */
    STEP_BYTES = 256,
    AHEAD_BYTES = 512,
    LINE_BYTES = 64,
    AHEAD_COLUMNS_MIN = 4,
    AHEAD_COLUMNS_MAX = 12
};

_Static_assert(CAIRN_SHARDS_MAX / 2 * (CAIRN_SHARDS_MAX / 2) == CELLS_MAX, "cells of a matrix");

struct cairn_code {
    uint32_t k;
    uint32_t m;
    uint8_t *coefficients; /* G, row by row: m x k */
    uint8_t *tables;       /* of G: m x k x TABLE_BYTES */
};

cairn_err
cairn_code_create(uint32_t data_count, uint32_t parity_count, struct cairn_code **out)
{
    struct cairn_code *code = NULL;
    size_t cells;
    cairn_err err = CAIRN_NOMEM;

    if (data_count < 1 || data_count > CAIRN_SHARDS_MAX ||
        parity_count > CAIRN_SHARDS_MAX - data_count)
        return CAIRN_INVAL;
    cells = (size_t)data_count * parity_count;
    code = calloc(1, sizeof *code);
    if (!code)
        goto done;
    code->k = data_count;
    code->m = parity_count;
    code->coefficients = malloc(cells + 1); /* + 1: with m = 0 there are none */
    code->tables = malloc(cells * TABLE_BYTES + 1);
    if (!code->coefficients || !code->tables)
        goto done;
    /*
     * Entry (r, j) of Cauchy is c(r, j) = 1 / ((k + r) ^ j). Ours is c(r, j) c(0, 0) / (c(0, j)
     * c(r, 0)): scaling rows and columns keeps every minor non-zero.
     */
    for (uint32_t r = 0; r < parity_count; r++)
        for (uint32_t j = 0; j < data_count; j++) {
            uint8_t up = gf_mul((uint8_t)(data_count ^ j), (uint8_t)(data_count + r));
            uint8_t down = gf_mul((uint8_t)((data_count + r) ^ j), (uint8_t)data_count);

            code->coefficients[r * data_count + j] = gf_mul(up, gf_inv(down));
        }
    if (cells > 0)
        ec_init_tables((int)data_count, (int)parity_count, code->coefficients, code->tables);
    *out = code;
    code = NULL;
    err = CAIRN_OK;
done:
    cairn_code_destroy(code);
    return err;
}

void
cairn_code_destroy(struct cairn_code *code)
{
    if (!code)
        return;
    free(code->coefficients);
    free(code->tables);
    free(code);
}

uint8_t
cairn_code_coefficient(const struct cairn_code *code, uint32_t parity_row, uint32_t data_index)
{
    CAIRN_ASSERT(parity_row < code->m);
    CAIRN_ASSERT(data_index < code->k);
    return code->coefficients[(size_t)parity_row * code->k + data_index];
}

/* Whether ISA-L's kernels here are those that wait for memory. */
static bool
kernels_wait_for_memory(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx512f") != 0;
#else
    return false;
#endif
}

/* Whether sources are fetched ahead: see STEP_BYTES. */
static bool
fetches_ahead(uint32_t columns, uint32_t rows)
{
    return rows <= ROWS_PER_PASS && columns >= AHEAD_COLUMNS_MIN && columns <= AHEAD_COLUMNS_MAX &&
           kernels_wait_for_memory();
}

/*
 * The bytes per call of ISA-L. With several passes, short spans keep the sources in cache between
 * them.
 */
static size_t
span_bytes(uint32_t columns, uint32_t rows)
{
    size_t span = CACHED_BYTES / columns & ~(size_t)63;

    if (fetches_ahead(columns, rows))
        return STEP_BYTES;
    if (rows <= ROWS_PER_PASS)
        return SPAN_BYTES_MAX;
    return span > SPAN_BYTES_MIN ? span : SPAN_BYTES_MIN;
}

static bool
all_ones(const uint8_t *coefficients, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (coefficients[i] != 1)
            return false;
    return true;
}

static bool
aligned(uint32_t columns, uint8_t *const source[], const uint8_t *target)
{
    uintptr_t bits = (uintptr_t)target;

    for (uint32_t j = 0; j < columns; j++)
        bits |= (uintptr_t)source[j];
    return bits % XOR_ALIGN_BYTES == 0;
}

/* target = XOR of two or more aligned sources. */
static void
combine(uint32_t columns, size_t bytes, uint8_t *const source[], uint8_t *target)
{
    void *vectors[CAIRN_SHARDS_MAX + 1];

    for (size_t at = 0; at < bytes; at += SPAN_BYTES_MAX) {
        size_t span = bytes - at < SPAN_BYTES_MAX ? bytes - at : SPAN_BYTES_MAX;
        int failed;

        for (uint32_t j = 0; j < columns; j++)
            vectors[j] = source[j] + at;
        vectors[columns] = target + at;
        failed = xor_gen((int)columns + 1, (int)span, vectors);
        CAIRN_ASSERT(!failed);
    }
}

/*
 * target[r] = sum over j of coefficients[r][j] * source[j]; no source is NULL; `tables` belong to
 * the coefficients.
 */
static void
multiply(uint32_t columns, uint32_t rows, const uint8_t *coefficients, const uint8_t *tables,
         size_t bytes, uint8_t *const source[], uint8_t *const target[])
{
    uint8_t *in[CAIRN_SHARDS_MAX], *out[CAIRN_SHARDS_MAX];
    bool ahead = fetches_ahead(columns, rows);
    size_t span_max;

    if (bytes == 0)
        return;
    if (columns == 0 || (columns == 1 && all_ones(coefficients, rows))) {
        for (uint32_t r = 0; r < rows; r++)
            if (columns == 0)
                memset(target[r], 0, bytes);
            else
                memcpy(target[r], source[0], bytes);
        return;
    }
    if (rows == 1 && columns > 1 && all_ones(coefficients, columns) &&
        aligned(columns, source, target[0])) {
        combine(columns, bytes, source, target[0]);
        return;
    }
    span_max = span_bytes(columns, rows);
    for (size_t at = 0, span; at < bytes; at += span) {
        size_t left = bytes - at;

        span = left < 2 * span_max ? left : span_max; /* no short rest: that is scalar code */
        for (uint32_t j = 0; j < columns; j++) {
            in[j] = source[j] + at;
            if (ahead && left >= AHEAD_BYTES + STEP_BYTES)
                for (size_t line = 0; line < STEP_BYTES; line += LINE_BYTES)
                    __builtin_prefetch(in[j] + AHEAD_BYTES + line, 0, 3);
        }
        for (uint32_t r = 0; r < rows; r++)
            out[r] = target[r] + at;
        ec_encode_data((int)span, (int)columns, (int)rows, (uint8_t *)(uintptr_t)tables, in, out);
    }
}

void
cairn_code_encode(const struct cairn_code *code, size_t shard_bytes, uint8_t *const shards[])
{
    uint8_t *source[CAIRN_SHARDS_MAX];
    uint8_t coefficients[CELLS_MAX], tables[CELLS_MAX * TABLE_BYTES];
    uint32_t present[CAIRN_SHARDS_MAX], columns = 0;

    if (code->m == 0)
        return;
    for (uint32_t j = 0; j < code->k; j++)
        if (shards[j]) {
            present[columns] = j;
            source[columns++] = shards[j];
        }
    if (columns == code->k) {
        multiply(code->k, code->m, code->coefficients, code->tables, shard_bytes, shards,
                 shards + code->k);
        return;
    }
    for (uint32_t r = 0; r < code->m; r++)
        for (uint32_t c = 0; c < columns; c++) {
            size_t from = (size_t)r * code->k + present[c], to = (size_t)r * columns + c;

            coefficients[to] = code->coefficients[from];
            memcpy(tables + to * TABLE_BYTES, code->tables + from * TABLE_BYTES, TABLE_BYTES);
        }
    multiply(columns, code->m, coefficients, tables, shard_bytes, source, shards + code->k);
}

void
cairn_code_fold_rows(const struct cairn_code *code, uint32_t data_index, size_t bytes,
                     const uint8_t *source, uint8_t *const parity[], bool first)
{
    uint8_t coefficients[CAIRN_SHARDS_MAX], tables[CAIRN_SHARDS_MAX * TABLE_BYTES];
    uint8_t *in = (uint8_t *)(uintptr_t)source; /* only read */
    uint8_t *target[CAIRN_SHARDS_MAX], *out[CAIRN_SHARDS_MAX];
    uint32_t rows = 0;
    size_t span_max;

    CAIRN_ASSERT(data_index < code->k);
    for (uint32_t r = 0; r < code->m; r++) {
        size_t from = (size_t)r * code->k + data_index;

        if (!parity[r])
            continue;
        target[rows] = parity[r];
        coefficients[rows] = code->coefficients[from];
        memcpy(tables + rows * TABLE_BYTES, code->tables + from * TABLE_BYTES, TABLE_BYTES);
        rows++;
    }
    if (rows == 0)
        return;
    if (first) {
        multiply(1, rows, coefficients, tables, bytes, &in, target);
        return;
    }
    span_max = span_bytes(1, rows);
    for (size_t at = 0; at < bytes; at += span_max) {
        size_t span = bytes - at < span_max ? bytes - at : span_max;

        for (uint32_t r = 0; r < rows; r++)
            out[r] = target[r] + at;
        ec_encode_data_update((int)span, 1, (int)rows, 0, tables, in + at, out);
    }
}

void
cairn_code_fold(const struct cairn_code *code, uint32_t parity_row, uint32_t data_index,
                size_t bytes, const uint8_t *source, uint8_t *parity, bool first)
{
    uint8_t *rows[CAIRN_SHARDS_MAX] = {NULL};

    CAIRN_ASSERT(parity_row < code->m);
    rows[parity_row] = parity;
    cairn_code_fold_rows(code, data_index, bytes, source, rows, first);
}

/* The sources of a rebuild, and what follows from the choice alone. */
struct decode {
    uint32_t missing[CAIRN_SHARDS_MAX]; /* data that is not a source: e of them */
    uint32_t rows[CAIRN_SHARDS_MAX];    /* parity rows that are: e of them too */
    uint32_t missing_count;
    /* Of G[rows][missing]: gives the missing data from those rows less the data that is present. */
    uint8_t inverse[CELLS_MAX];
};

static void
prepare(const struct cairn_code *code, uint64_t sources, struct decode *decode)
{
    uint8_t square[CELLS_MAX];
    uint32_t row_count = 0, e;
    int singular;

    decode->missing_count = 0;
    for (uint32_t j = 0; j < code->k; j++)
        if (!(sources >> j & 1))
            decode->missing[decode->missing_count++] = j;
    for (uint32_t r = 0; r < code->m; r++)
        if (sources >> (code->k + r) & 1)
            decode->rows[row_count++] = r;
    e = decode->missing_count;
    CAIRN_ASSERT(row_count == e); /* k sources: one parity for each data shard that is not one */
    if (e == 0)
        return;
    for (uint32_t i = 0; i < e; i++)
        for (uint32_t j = 0; j < e; j++)
            square[i * e + j] = cairn_code_coefficient(code, decode->rows[i], decode->missing[j]);
    singular = gf_invert_matrix(square, decode->inverse, (int)e);
    CAIRN_ASSERT(!singular); /* every square part of a Cauchy matrix inverts */
}

/*
 * Writes shard `wanted` as a combination of the present sources (shard indexes, columns of them).
 * Lost data and lost parity are one formula: with u = the part of wanted's generator row on the
 * missing data and T = u * inverse, parity source i counts T[i] times, and data source s as often
 * as in the row itself plus sum of T[i] * G[rows[i]][s].
 */
static void
combination(const struct cairn_code *code, const struct decode *decode, uint32_t wanted,
            uint32_t columns, const uint32_t *present, uint8_t *out)
{
    uint32_t e = decode->missing_count;
    uint8_t through[CAIRN_SHARDS_MAX] = {0};
    uint8_t by_row[CAIRN_SHARDS_MAX] = {0}; /* `through` by parity row */

    for (uint32_t j = 0; j < e; j++) {
        uint8_t u = wanted < code->k
                        ? wanted == decode->missing[j]
                        : cairn_code_coefficient(code, wanted - code->k, decode->missing[j]);

        for (uint32_t i = 0; i < e; i++)
            through[i] ^= gf_mul(u, decode->inverse[j * e + i]);
    }
    for (uint32_t i = 0; i < e; i++)
        by_row[decode->rows[i]] = through[i];
    for (uint32_t c = 0; c < columns; c++) {
        uint32_t s = present[c];

        if (s >= code->k) {
            out[c] = by_row[s - code->k];
            continue;
        }
        out[c] = wanted < code->k ? 0 : cairn_code_coefficient(code, wanted - code->k, s);
        for (uint32_t i = 0; i < e; i++)
            out[c] ^= gf_mul(through[i], cairn_code_coefficient(code, decode->rows[i], s));
    }
}

cairn_err
cairn_code_rebuild_some(const struct cairn_code *code, size_t shard_bytes, uint64_t sources,
                        uint64_t wanted, uint8_t *const shards[])
{
    uint32_t n = code->k + code->m, columns = 0, rows = 0;
    uint32_t present[CAIRN_SHARDS_MAX];
    uint8_t *source[CAIRN_SHARDS_MAX], *target[CAIRN_SHARDS_MAX];
    uint8_t coefficients[CELLS_MAX], tables[CELLS_MAX * TABLE_BYTES];
    struct decode decode;

    if (n < 64 && (sources | wanted) >> n)
        return CAIRN_INVAL;
    if ((sources & wanted) || __builtin_popcountll(sources) > (int)code->k)
        return CAIRN_INVAL;
    if (__builtin_popcountll(sources) < (int)code->k)
        return CAIRN_LOST;
    for (uint32_t i = 0; i < n; i++)
        if ((wanted >> i & 1) && !shards[i])
            return CAIRN_INVAL;
    if (wanted == 0)
        return CAIRN_OK;
    for (uint32_t i = 0; i < n; i++)
        if ((sources >> i & 1) && shards[i]) {
            present[columns] = i;
            source[columns++] = shards[i];
        }
    prepare(code, sources, &decode);
    for (uint32_t i = 0; i < n; i++)
        if (wanted >> i & 1) {
            combination(code, &decode, i, columns, present, coefficients + rows * columns);
            target[rows++] = shards[i];
        }
    if (columns > 0)
        ec_init_tables((int)columns, (int)rows, coefficients, tables);
    multiply(columns, rows, coefficients, tables, shard_bytes, source, target);
    return CAIRN_OK;
}

cairn_err
cairn_code_rebuild(const struct cairn_code *code, size_t shard_bytes, uint64_t lost,
                   uint8_t *const shards[])
{
    uint32_t n = code->k + code->m, kept = 0;
    uint64_t sources = 0;

    if (n < 64 && lost >> n)
        return CAIRN_INVAL;
    for (uint32_t i = 0; i < n && kept < code->k; i++)
        if (!(lost >> i & 1)) {
            sources |= (uint64_t)1 << i;
            kept++;
        }
    return cairn_code_rebuild_some(code, shard_bytes, sources, lost, shards);
}
