/*
 * tools/bench_erasure.c - the code against bare ISA-L, on the same buffers in the same run.
 *
 *   case   encode: parity of whole stripes; fold: all parity rows from one source block after the
 *          other; fold_row: one row so, as a parity owner does; rebuild: m lost data shards of
 *          every stripe
 *   floor  ec_encode_data, with tables made before; for folds memset and ec_encode_data_update,
 *          which can only accumulate; for m = 1 xor_gen
 *   GB/s   10^9 bytes of source data per second, the median of all rounds
 *   ratio  of the two medians
 * Both must have written the same bytes. The data is larger than any cache and touched before;
 * rounds alternate, and so does who goes first.
 */
#include "tools/bench.h"
#include "tools/bench_floor.h"
#include "tools/bench_measure.h"

#include "base/crc.h"
#include "base/limits.h"
#include "erasure/code.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <isa-l/erasure_code.h>
#include <isa-l/raid.h>

enum bench_op { OP_ENCODE, OP_FOLD, OP_FOLD_ROW, OP_REBUILD };

struct result {
    size_t data_bytes;
    double ours_bytes_per_s;
    double bare_bytes_per_s;
    double ours_cpu_s; /* per round */
    bool same;
};

enum {
    TARGETS_MAX = CAIRN_SHARDS_MAX / 2,
    SOURCES_MAX = CAIRN_SHARDS_MAX,
    BYTES_DEFAULT = 512 << 20
};

static const char *const op_names[] = {"encode", "fold", "fold_row", "rebuild"};
static const struct {
    enum bench_op op;
    uint32_t k;
    uint32_t m;
    size_t strip_bytes;
} cases[] = {
    {OP_ENCODE, 4, 2, 1 << 20},  {OP_ENCODE, 4, 2, 65536},   {OP_ENCODE, 8, 2, 1 << 20},
    {OP_ENCODE, 8, 2, 65536},    {OP_ENCODE, 8, 3, 1 << 20}, {OP_ENCODE, 8, 3, 65536},
    {OP_ENCODE, 10, 4, 65536},   {OP_ENCODE, 8, 1, 65536},   {OP_FOLD, 4, 2, 65536},
    {OP_FOLD, 8, 2, 65536},      {OP_FOLD, 8, 3, 65536},     {OP_FOLD_ROW, 4, 2, 65536},
    {OP_FOLD_ROW, 8, 3, 65536},  {OP_REBUILD, 4, 2, 65536},  {OP_REBUILD, 8, 2, 65536},
    {OP_REBUILD, 8, 3, 1 << 20},
};
enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

/* One case being measured. */
struct work {
    const struct cairn_code *code;
    enum bench_op op;
    uint32_t k;
    uint32_t m;
    size_t strip_bytes;
    size_t stripe_count;
    uint8_t *data;   /* stripe_count * k strips */
    uint8_t *parity; /* stripe_count * m strips; for OP_REBUILD the targets */
    uint8_t *kept;   /* OP_REBUILD: stripe_count * m strips of parity to read */
    uint8_t tables[32 * SOURCES_MAX * TARGETS_MAX];
};

/* What is read and written for stripe s: k sources and m targets. */
static void
pick(const struct work *work, size_t s, uint8_t *source[], uint8_t *target[])
{
    for (uint32_t j = 0; j < work->k; j++)
        source[j] = work->data + (s * work->k + j) * work->strip_bytes;
    for (uint32_t r = 0; r < work->m; r++) {
        target[r] = work->parity + (s * work->m + r) * work->strip_bytes;
        if (work->op == OP_REBUILD) /* data shards 0 … m-1 are lost */
            source[r] = work->kept + (s * work->m + r) * work->strip_bytes;
    }
}

static void
run_ours(struct work *work)
{
    uint32_t k = work->k, m = work->m;
    uint64_t lost = ((uint64_t)1 << m) - 1, all = ((uint64_t)1 << (k + m)) - 1;

    for (size_t s = 0; s < work->stripe_count; s++) {
        uint8_t *shards[CAIRN_SHARDS_MAX], *source[CAIRN_SHARDS_MAX], *target[CAIRN_SHARDS_MAX];
        cairn_err err = CAIRN_OK;

        pick(work, s, source, target);
        switch (work->op) {
        case OP_ENCODE:
            memcpy(shards, source, k * sizeof *source);
            memcpy(shards + k, target, m * sizeof *target);
            cairn_code_encode(work->code, work->strip_bytes, shards);
            break;
        case OP_FOLD:
            for (uint32_t j = 0; j < k; j++)
                cairn_code_fold_rows(work->code, j, work->strip_bytes, source[j], target, j == 0);
            break;
        case OP_FOLD_ROW:
            for (uint32_t j = 0; j < k; j++)
                cairn_code_fold(work->code, m - 1, j, work->strip_bytes, source[j], target[m - 1],
                                j == 0);
            break;
        case OP_REBUILD:
            for (uint32_t i = 0; i < k; i++)
                shards[i] = i < m ? target[i] : source[i];
            memcpy(shards + k, source, m * sizeof *source);
            err = cairn_code_rebuild_some(work->code, work->strip_bytes, all & ~lost, lost, shards);
            break;
        }
        if (err) {
            (void)fprintf(stderr, "cairn bench: rebuild: %s\n", cairn_err_text(err));
            exit(1);
        }
    }
}

static void
run_bare(struct work *work)
{
    int len = (int)work->strip_bytes, k = (int)work->k, m = (int)work->m;

    for (size_t s = 0; s < work->stripe_count; s++) {
        uint8_t *source[CAIRN_SHARDS_MAX], *target[CAIRN_SHARDS_MAX];
        void *vectors[CAIRN_SHARDS_MAX];

        pick(work, s, source, target);
        if (work->op == OP_FOLD || work->op == OP_FOLD_ROW) {
            int first_row = work->op == OP_FOLD ? 0 : m - 1;

            for (int r = first_row; r < m; r++)
                memset(target[r], 0, work->strip_bytes);
            for (int j = 0; j < k; j++)
                ec_encode_data_update(len, k, m - first_row, j, work->tables + 32 * k * first_row,
                                      source[j], target + first_row);
        } else if (m == 1) {
            memcpy(vectors, source, work->k * sizeof *source);
            vectors[k] = target[0];
            (void)xor_gen(k + 1, len, vectors);
        } else {
            ec_encode_data(len, k, m, work->tables, source, target);
        }
    }
}

/*
 * The tables that bare ISA-L needs: of the generator, or of what gives the first m data shards from
 * parity and the rest (the sources in the order of pick()). They are found with our own rebuild of
 * unit vectors.
 */
static cairn_err
make_tables(struct work *work)
{
    uint32_t k = work->k, m = work->m;
    uint8_t matrix[SOURCES_MAX * TARGETS_MAX];
    cairn_err err;

    for (uint32_t r = 0; r < m; r++)
        for (uint32_t j = 0; j < k; j++) {
            uint8_t unit[CAIRN_SHARDS_MAX] = {0}, *shards[CAIRN_SHARDS_MAX];

            if (work->op != OP_REBUILD) {
                matrix[r * k + j] = cairn_code_coefficient(work->code, r, j);
                continue;
            }
            for (uint32_t i = 0; i < k + m; i++)
                shards[i] = &unit[i];
            unit[j < m ? k + j : j] = 1;
            err = cairn_code_rebuild(work->code, 1, ((uint64_t)1 << m) - 1, shards);
            if (err)
                return err;
            matrix[r * k + j] = unit[r];
        }
    ec_init_tables((int)k, (int)m, matrix, work->tables);
    return CAIRN_OK;
}

/* Measures the case `work` describes. */
static void
measure(struct work *work, uint32_t rounds, struct result *out)
{
    double speed[2][CAIRN_BENCH_ROUNDS_MAX], cpu[CAIRN_BENCH_ROUNDS_MAX];
    uint64_t crc[2] = {0, 1};
    size_t parity_bytes = work->stripe_count * work->m * work->strip_bytes;

    out->data_bytes = work->stripe_count * work->k * work->strip_bytes;
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t turn = 0; turn < 2; turn++) {
            uint32_t who = (turn + round) % 2;
            double before, cpu_before;

            if (round == 0) /* so that bytes left by the other one cannot pass for one's own */
                memset(work->parity, 0xee, parity_bytes);
            cpu_before = cairn_bench_thread_cpu_s();
            before = cairn_bench_now_s();
            if (who == 0)
                run_ours(work);
            else
                run_bare(work);
            speed[who][round] = (double)out->data_bytes / (cairn_bench_now_s() - before);
            if (who == 0)
                cpu[round] = cairn_bench_thread_cpu_s() - cpu_before;
            if (round == 0)
                crc[who] = cairn_crc64(0, work->parity, parity_bytes);
        }
    out->same = crc[0] == crc[1];
    out->ours_bytes_per_s = cairn_bench_median(speed[0], rounds);
    out->bare_bytes_per_s = cairn_bench_median(speed[1], rounds);
    out->ours_cpu_s = cairn_bench_median(cpu, rounds);
}

/* The buffers of all cases. */
struct buffers {
    uint64_t bytes;
    uint8_t *data;   /* bytes */
    uint8_t *parity; /* bytes: as many as data, which is enough for every m <= k */
    uint8_t *kept;   /* the same */
};

static cairn_err
buffers_open(uint64_t bytes, struct buffers *out)
{
    *out = (struct buffers){bytes, cairn_bench_map(bytes), cairn_bench_map(bytes),
                            cairn_bench_map(bytes)};
    return out->data && out->parity && out->kept ? CAIRN_OK : CAIRN_NOMEM;
}

static void
buffers_close(struct buffers *buffers)
{
    cairn_bench_unmap(buffers->data, buffers->bytes);
    cairn_bench_unmap(buffers->parity, buffers->bytes);
    cairn_bench_unmap(buffers->kept, buffers->bytes);
}

/* Measures one operation of a code k + m over all of the buffers. */
static cairn_err
measure_case(const struct buffers *buffers, enum bench_op op, uint32_t k, uint32_t m,
             size_t strip_bytes, uint32_t rounds, struct result *out)
{
    struct work work = {.op = op,
                        .k = k,
                        .m = m,
                        .strip_bytes = strip_bytes,
                        .stripe_count = buffers->bytes / (k * strip_bytes),
                        .data = buffers->data,
                        .parity = buffers->parity,
                        .kept = buffers->kept};
    struct cairn_code *code = NULL;
    cairn_err err;

    if (k > SOURCES_MAX || m > TARGETS_MAX || m > k || work.stripe_count == 0)
        return CAIRN_INVAL;
    err = cairn_code_create(k, m, &code);
    if (err)
        return err;
    work.code = code;
    err = make_tables(&work);
    if (!err)
        measure(&work, rounds, out);
    cairn_code_destroy(code);
    return err;
}

cairn_err
cairn_bench_erasure(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    uint32_t rounds = options->rounds ? options->rounds : 7;
    struct buffers buffers;
    cairn_err err = buffers_open(options->bytes ? options->bytes : BYTES_DEFAULT, &buffers);

    report->stage = "erasure";
    for (size_t c = 0; !err && c < CASE_COUNT; c++) {
        struct result result;
        struct cairn_bench_case value = {.unit = "GB/s", .threads = 1};

        err = measure_case(&buffers, cases[c].op, cases[c].k, cases[c].m, cases[c].strip_bytes,
                           rounds, &result);
        if (err)
            break;
        if (!result.same) {
            (void)fprintf(stderr, "cairn bench: ISA-L and our code wrote different bytes\n");
            err = CAIRN_CORRUPT;
            break;
        }
        value.value = result.ours_bytes_per_s / 1e9;
        value.floor = result.bare_bytes_per_s / 1e9;
        value.bytes = result.data_bytes;
        value.cpu_seconds_per_gib = result.ours_cpu_s / ((double)result.data_bytes / 1073741824.0);
        value.bound = cases[c].op == OP_ENCODE && cases[c].m >= 2 && cases[c].k <= 8 ? 0.90 : 0;
        value.command = cases[c].op == OP_FOLD || cases[c].op == OP_FOLD_ROW
                            ? "memset and ISA-L ec_encode_data_update on the same buffers"
                        : cases[c].m == 1 ? "ISA-L xor_gen on the same buffers"
                                          : "ISA-L ec_encode_data on the same buffers";
        (void)snprintf(value.name, sizeof value.name,
                       "%s %" PRIu32 "+%" PRIu32 " strips of %zu KiB", op_names[cases[c].op],
                       cases[c].k, cases[c].m, cases[c].strip_bytes / 1024);
        cairn_bench_add(report, &value);
    }
    buffers_close(&buffers);
    return err;
}

/* CPU seconds per GiB of source data. */
static cairn_err
measure_cost(enum bench_op op, uint32_t k, uint32_t m, uint64_t bytes, uint32_t rounds,
             double *cpu_s_per_gib)
{
    struct buffers buffers;
    struct result result = {0};
    cairn_err err = buffers_open(bytes, &buffers);

    if (!err)
        err = measure_case(&buffers, op, k, m, CAIRN_BLOCK_BYTES, rounds, &result);
    if (!err && !result.same)
        err = CAIRN_CORRUPT;
    if (!err)
        *cpu_s_per_gib = result.ours_cpu_s / ((double)result.data_bytes / 1073741824.0);
    buffers_close(&buffers);
    return err;
}

cairn_err
cairn_bench_fold_cost(uint32_t k, uint32_t m, uint64_t bytes, uint32_t rounds,
                      double *cpu_s_per_gib)
{
    return measure_cost(OP_FOLD_ROW, k, m, bytes, rounds, cpu_s_per_gib);
}

cairn_err
cairn_bench_decode_cost(uint32_t k, uint32_t m, uint32_t lost, uint64_t bytes, uint32_t rounds,
                        double *cpu_s_per_gib)
{
    double per_source_gib;
    cairn_err err;

    if (lost == 0 || lost > m)
        return CAIRN_INVAL;
    /* Decoding `lost` shards from k others costs as much as encoding with a code of k + lost. */
    err = measure_cost(OP_REBUILD, k, lost, bytes, rounds, &per_source_gib);
    if (!err)
        *cpu_s_per_gib = per_source_gib * k / lost;
    return err;
}
