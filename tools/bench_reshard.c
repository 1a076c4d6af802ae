/*
 * tools/bench_reshard.c - resharding in memory against memcpy of the same bytes, in one run.
 *
 *   case     model: a transformer's parameters (BF16, shared by the data-parallel replicas at
 *            capture, whole on each of them after) and two moments (F32, flat ranges) from
 *            tp x pp x dp to another one;
 *            rows: tp 8 to tp 1 of a matrix cut in rows; flat: flat ranges of 8 ranks to those of
 *            6; columns: the same matrix cut in columns, runs of that many bytes
 *   value    bytes put into the target per second
 *   floor    memcpy of as many bytes between the same two regions
 * Both are medians over the rounds, which alternate. Regions are larger than the caches.
 */
#include "tools/bench.h"
#include "tools/bench_measure.h"

#include "snapshot/reshard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTAINERS_MAX = 64, TENSOR_NAME_BYTES = 64, BYTES_DEFAULT = 256 << 20 };

struct result {
    uint64_t bytes;
    double plan_s;
    double reshard_s; /* medians */
    double memcpy_s;
    double cpu_s; /* of resharding, per round */
};

/* A layout whose containers lie one after the other in one region. */
struct side {
    struct cairn_layout *layout;
    uint64_t used[CONTAINERS_MAX];
    uint64_t base[CONTAINERS_MAX];
    uint64_t bytes;
    uint8_t *region;
};

struct parallel {
    uint32_t tp, pp, dp;
};

static void
must(cairn_err err)
{
    if (err) {
        (void)fprintf(stderr, "cairn bench: reshard: %s\n", cairn_err_text(err));
        exit(1);
    }
}

/* Runs all moves between the two regions, and memcpy of as many bytes, in turn. */
static void
run(const struct side *source, const struct side *target, uint32_t rounds, struct result *out)
{
    double reshard_s[CAIRN_BENCH_ROUNDS_MAX], memcpy_s[CAIRN_BENCH_ROUNDS_MAX];
    double cpu_s[CAIRN_BENCH_ROUNDS_MAX], begin = cairn_bench_now_s();
    uint64_t least = source->bytes < target->bytes ? source->bytes : target->bytes;
    struct cairn_moves moves = {0};

    must(cairn_reshard_plan(source->layout, target->layout, NULL, &moves, NULL, 0));
    out->plan_s = cairn_bench_now_s() - begin;
    out->bytes = moves.bytes;
    for (uint32_t round = 0; round < rounds; round++) {
        cpu_s[round] = cairn_bench_thread_cpu_s();
        begin = cairn_bench_now_s();
        for (size_t i = 0; i < moves.count; i++) {
            const struct cairn_move *move = &moves.moves[i];

            cairn_move_copy(move, source->region + source->base[move->source_container],
                            target->region + target->base[move->target_container]);
        }
        reshard_s[round] = cairn_bench_now_s() - begin;
        cpu_s[round] = cairn_bench_thread_cpu_s() - cpu_s[round];
        begin = cairn_bench_now_s();
        for (uint64_t left = moves.bytes; left > 0;) { /* the smaller region is gone over again */
            uint64_t part = left < least ? left : least;

            memcpy(target->region, source->region, part);
            left -= part;
        }
        memcpy_s[round] = cairn_bench_now_s() - begin;
    }
    out->reshard_s = cairn_bench_median(reshard_s, rounds);
    out->memcpy_s = cairn_bench_median(memcpy_s, rounds);
    out->cpu_s = cairn_bench_median(cpu_s, rounds);
    cairn_moves_fini(&moves);
}

static void
side_init(struct side *side)
{
    memset(side, 0, sizeof *side);
    must(cairn_layout_create(&side->layout));
}

/* Lays the containers out and touches their memory. */
static void
side_map(struct side *side)
{
    for (uint32_t c = 0; c < CONTAINERS_MAX; c++) {
        side->base[c] = side->bytes;
        side->bytes += (side->used[c] + 4095) / 4096 * 4096;
    }
    side->region = cairn_bench_map(side->bytes);
    if (!side->region)
        must(CAIRN_NOMEM);
}

static void
side_fini(struct side *side)
{
    cairn_layout_destroy(side->layout);
    cairn_bench_unmap(side->region, side->bytes);
}

static void
add(struct side *side, uint32_t container, const struct cairn_slice *slice, uint64_t begin,
    uint64_t end)
{
    uint64_t at = (side->used[container] + 63) / 64 * 64;

    must(cairn_layout_add(side->layout, container, slice, begin, end, at, NULL));
    side->used[container] = at + (end - begin) * cairn_dtype_bytes(slice->dtype);
}

/*
 * Adds one tensor under a parallelism; `whole` says that each data-parallel replica holds all of
 * its box.
 */
static void
add_tensor(struct side *side, struct parallel parallel, uint32_t stage, const char *name,
           enum cairn_dtype dtype, const uint64_t shape[2], uint32_t cut_dim, bool whole)
{
    for (uint32_t t = 0; t < parallel.tp; t++) {
        struct cairn_slice slice = {.name = name,
                                    .dtype = dtype,
                                    .kind = CAIRN_PARAM,
                                    .dims = 2,
                                    .shape = {shape[0], shape[1]},
                                    .extent = {shape[0], shape[1]}};
        uint64_t elements;

        slice.offset[cut_dim] = shape[cut_dim] * t / parallel.tp;
        slice.extent[cut_dim] = shape[cut_dim] * (t + 1) / parallel.tp - slice.offset[cut_dim];
        elements = slice.extent[0] * slice.extent[1];
        for (uint32_t d = 0; d < parallel.dp; d++)
            add(side, (stage * parallel.dp + d) * parallel.tp + t, &slice,
                whole ? 0 : elements * d / parallel.dp,
                whole ? elements : elements * (d + 1) / parallel.dp);
    }
}

static void
add_model(struct side *side, struct parallel parallel, uint32_t layers, uint64_t hidden,
          bool captured)
{
    const struct {
        const char *name;
        uint64_t shape[2];
        uint32_t cut_dim;
    } parts[] = {{"qkv", {3 * hidden, hidden}, 0},
                 {"proj", {hidden, hidden}, 1},
                 {"fc1", {4 * hidden, hidden}, 0},
                 {"fc2", {hidden, 4 * hidden}, 1}};

    for (uint32_t layer = 0; layer < layers; layer++) {
        for (uint32_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
            char name[TENSOR_NAME_BYTES];
            uint32_t stage = layer * parallel.pp / layers;

            (void)snprintf(name, sizeof name, "layers.%" PRIu32 ".%s", layer, parts[p].name);
            add_tensor(side, parallel, stage, name, CAIRN_BF16, parts[p].shape, parts[p].cut_dim,
                       !captured);
            for (uint32_t moment = 0; moment < 2; moment++) {
                (void)snprintf(name, sizeof name, "layers.%" PRIu32 ".%s.exp_avg%" PRIu32, layer,
                               parts[p].name, moment);
                add_tensor(side, parallel, stage, name, CAIRN_F32, parts[p].shape, parts[p].cut_dim,
                           false);
            }
        }
    }
}

/* What a case is part of. */
struct bench {
    struct cairn_bench_report *report;
    uint64_t bytes;
    uint32_t rounds;
};

/* Measures two filled sides; ends both. `bound`: what the ratio must reach, 0 nothing. */
static void
measure(const struct bench *bench, const char *name, double bound, struct side *source,
        struct side *target)
{
    struct cairn_bench_case value = {
        .unit = "GB/s", .threads = 1, .bound = bound, .command = "memcpy of the same bytes"};
    struct result result;

    side_map(source);
    side_map(target);
    run(source, target, bench->rounds, &result);
    value.value = (double)result.bytes / result.reshard_s / 1e9;
    value.floor = (double)result.bytes / result.memcpy_s / 1e9;
    value.bytes = result.bytes;
    value.cpu_seconds_per_gib = result.cpu_s / ((double)result.bytes / 1073741824.0);
    (void)snprintf(value.name, sizeof value.name, "%s", name);
    cairn_bench_add(bench->report, &value);
    side_fini(source);
    side_fini(target);
}

static void
measure_model(const struct bench *bench, const char *name, struct parallel from, struct parallel to,
              uint64_t hidden)
{
    uint64_t layer_bytes = 12 * hidden * hidden * 10;
    uint32_t layers = (uint32_t)(bench->bytes / layer_bytes);
    struct side source, target;

    layers = layers < 2 ? 2 : layers;
    side_init(&source);
    side_init(&target);
    add_model(&source, from, layers, hidden, true);
    add_model(&target, to, layers, hidden, false);
    measure(bench, name, 0.70, &source, &target);
}

/* One matrix, cut on each side along a dimension into boxes, or into flat ranges of the whole. */
static void
measure_matrix(const struct bench *bench, const char *name, double bound, const uint64_t shape[2],
               uint32_t cut_dim, struct parallel from, struct parallel to)
{
    struct side source, target;

    side_init(&source);
    side_init(&target);
    add_tensor(&source, from, 0, "w", CAIRN_BF16, shape, cut_dim, false);
    add_tensor(&target, to, 0, "w", CAIRN_BF16, shape, cut_dim, false);
    measure(bench, name, bound, &source, &target);
}

cairn_err
cairn_bench_reshard(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    static const uint64_t runs[] = {64, 256, 512, 1024, 4096, 16384};
    struct bench bench = {.report = report,
                          .bytes = options->bytes ? options->bytes : BYTES_DEFAULT,
                          .rounds = options->rounds ? options->rounds : 5};
    uint64_t whole[2] = {bench.bytes / 2 / 4096, 4096};

    report->stage = "reshard";
    measure_model(&bench, "model tp4 pp2 dp2 to tp2 pp1 dp3", (struct parallel){4, 2, 2},
                  (struct parallel){2, 1, 3}, 1024);
    measure_model(&bench, "model tp2 pp2 dp2 to tp4 pp1 dp2", (struct parallel){2, 2, 2},
                  (struct parallel){4, 1, 2}, 1024);
    measure_matrix(&bench, "rows tp8 to tp1", 0.70, whole, 0, (struct parallel){8, 1, 1},
                   (struct parallel){1, 1, 1});
    measure_matrix(&bench, "flat dp8 to dp6", 0.70, whole, 0, (struct parallel){1, 1, 8},
                   (struct parallel){1, 1, 6});
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        char name[CAIRN_BENCH_NAME_BYTES];

        (void)snprintf(name, sizeof name, "columns tp8 to tp1, runs of %" PRIu64 " bytes", runs[i]);
        whole[1] = runs[i] / 2 * 8;
        whole[0] = bench.bytes / 2 / whole[1];
        measure_matrix(&bench, name, 0, whole, 1, (struct parallel){8, 1, 1},
                       (struct parallel){1, 1, 1});
    }
    return CAIRN_OK;
}
