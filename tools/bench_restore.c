/*
 * tools/bench_restore.c - restore of as many lost nodes as the code bears, and of one: agents are
 * killed with their memory, and blank agents take their place.
 *
 * The value is CPU seconds per GiB of rebuilt bytes (data and parity) over all agents, from the
 * request to its answer. The floor is decoding those bytes and moving what decoding needs, each
 * alone in the same run: a stripe with `lost` lost chunks is decoded where one of its k sources
 * lies, so k - 1 chunks are read from others and `lost` are written to others. It is measured
 * before each round and after the last, since the speed of a virtual machine's memory changes
 * within a run. The state that trainers then get back is compared byte by byte.
 */
#include "tools/bench.h"
#include "tools/bench_cluster.h"
#include "tools/bench_floor.h"
#include "tools/bench_measure.h"

#include <inttypes.h>
#include <stdio.h>

enum { STATE_DEFAULT = 128 << 20, ROUNDS_DEFAULT = 5 };
static const uint64_t step_ns = 500000000; /* a trainer that fences at once skips steps that are not
                                            * granted yet */
static const double gib = 1073741824.0;

struct rounds {
    double cpu_s_per_gib[CAIRN_BENCH_ROUNDS_MAX];
    double seconds[CAIRN_BENCH_ROUNDS_MAX];
    double bytes_per_s[CAIRN_BENCH_ROUNDS_MAX];
    double fill_s[CAIRN_BENCH_ROUNDS_MAX]; /* of the slowest trainer's restore */
    uint64_t rebuilt_bytes;
};

struct floors {
    double decode[CAIRN_BENCH_ROUNDS_MAX + 1];
    double check[CAIRN_BENCH_ROUNDS_MAX + 1];
    double move[CAIRN_BENCH_ROUNDS_MAX + 1]; /* sender and receiver */
    uint32_t count;
};

/* A case: so many of the nodes are lost. */
struct loss {
    const struct cairn_bench_cluster_options *how;
    uint32_t count;
    struct rounds rounds;
    struct floors floors;
};

/* Nodes 1, 4, 7 … are lost; node 0 stays, because it is asked for the restore. */
static uint64_t
lost_nodes(const struct loss *loss)
{
    const struct cairn_bench_cluster_options *how = loss->how;
    uint64_t lost = 0;

    for (uint32_t i = 0, node = 1; i < loss->count; i++, node = (node + 3) % how->nodes) {
        while (node == 0 || ((lost >> node) & 1))
            node = (node + 1) % how->nodes;
        lost |= UINT64_C(1) << node;
    }
    return lost;
}

/* Trains to one committed generation, loses nodes, restores, checks. */
static cairn_err
run_round(struct loss *loss, uint32_t round)
{
    const struct cairn_bench_cluster_options *how = loss->how;
    struct rounds *out = &loss->rounds;
    struct cairn_bench_cluster *cluster = NULL;
    struct cairn_bench_cpu cpu;
    uint64_t step = 0;
    double seconds = 0;
    cairn_err err = cairn_bench_cluster_open(how, &cluster);

    if (!err)
        err = cairn_bench_cluster_train(cluster);
    for (uint32_t i = 0; !err && i < 2; i++) /* into both slots */
        err = cairn_bench_cluster_step(cluster, &step, step_ns, &cpu, &seconds);
    if (!err)
        err = cairn_bench_cluster_lose(cluster, lost_nodes(loss));
    if (!err)
        err = cairn_bench_cluster_restore(cluster, &cpu, &seconds, &out->rebuilt_bytes);
    if (!err && out->rebuilt_bytes == 0) {
        (void)fprintf(stderr, "cairn bench: the restore rebuilt nothing\n");
        err = CAIRN_CORRUPT;
    }
    if (!err) {
        out->cpu_s_per_gib[round] = cpu.agents / ((double)out->rebuilt_bytes / gib);
        out->seconds[round] = seconds;
        out->bytes_per_s[round] = (double)out->rebuilt_bytes / seconds;
        err = cairn_bench_cluster_train(cluster);
    }
    if (!err)
        err = cairn_bench_cluster_check(cluster, step);
    for (uint32_t i = 0; !err && i < how->nodes; i++) {
        double fill = cairn_bench_cluster_answer(cluster, i)->seconds;

        if (i == 0 || fill > out->fill_s[round])
            out->fill_s[round] = fill;
    }
    cairn_bench_cluster_close(cluster);
    return err;
}

static cairn_err
measure_floor(struct loss *loss)
{
    struct floors *floors = &loss->floors;
    struct cairn_bench_floor floor;
    cairn_err err = cairn_bench_floor_measure(loss->how->nodes - loss->how->parity,
                                              loss->how->parity, loss->count, 3, &floor);

    if (err)
        return err;
    floors->decode[floors->count] = floor.decode;
    floors->check[floors->count] = floor.check;
    floors->move[floors->count] = floor.transport_sender + floor.transport_receiver;
    floors->count++;
    return CAIRN_OK;
}

/* The case, and where all that the code bears are lost its further figures. */
static void
fill_report(struct loss *loss, uint32_t count, struct cairn_bench_report *report)
{
    const struct cairn_bench_cluster_options *how = loss->how;
    struct rounds *rounds = &loss->rounds;
    struct floors *floors = &loss->floors;
    uint32_t k = how->nodes - how->parity;
    double decode = cairn_bench_median(floors->decode, floors->count);
    double check = cairn_bench_median(floors->check, floors->count);
    double move = cairn_bench_median(floors->move, floors->count);
    double moved = (double)(k - 1 + loss->count) / loss->count; /* per rebuilt byte */
    double gb_per_s = cairn_bench_median(rounds->bytes_per_s, count) / 1e9;
    struct cairn_bench_case value = {
        .unit = "CPU s/GiB",
        .bound = 1.5,
        .at_most = true,
        .bytes = rounds->rebuilt_bytes,
        .threads = how->nodes,
        .command =
            "decode + send and receive what it reads and writes, each stage alone in this run"};

    value.value = cairn_bench_median(rounds->cpu_s_per_gib, count);
    value.cpu_seconds_per_gib = value.value;
    value.floor = decode + moved * move;
    (void)snprintf(value.name, sizeof value.name,
                   "%" PRIu32 " of %" PRIu32 " nodes, %" PRIu32 "+%" PRIu32, loss->count,
                   how->nodes, k, how->parity);
    cairn_bench_add(report, &value);
    if (loss->count < how->parity) {
        cairn_bench_note(report, "one_lost_rebuilt_gb_per_s", gb_per_s);
        return;
    }
    cairn_bench_note(report, "request_to_answer_seconds",
                     cairn_bench_median(rounds->seconds, count));
    cairn_bench_note(report, "rebuilt_gb_per_s", gb_per_s);
    cairn_bench_note(report, "trainers_restore_seconds", cairn_bench_median(rounds->fill_s, count));
    cairn_bench_note(report, "moved_bytes_per_rebuilt_byte", moved);
    cairn_bench_note(report, "floor_decode_s_per_gib", decode);
    cairn_bench_note(report, "floor_transport_s_per_gib", move);
    cairn_bench_note(report, "floor_check_s_per_gib", check);
    cairn_bench_note(report, "ratio_with_one_check_of_each_moved_byte",
                     value.value / (value.floor + moved * check));
}

static cairn_err
measure_loss(struct loss *loss, uint32_t rounds, struct cairn_bench_report *report)
{
    cairn_err err = measure_floor(loss);

    for (uint32_t round = 0; !err && round < rounds; round++) {
        err = run_round(loss, round);
        if (!err)
            err = measure_floor(loss);
    }
    if (!err)
        fill_report(loss, rounds, report);
    return err;
}

cairn_err
cairn_bench_restore(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    struct cairn_bench_cluster_options how = {
        .nodes = options->nodes ? options->nodes : CAIRN_BENCH_NODES,
        .parity = options->parity ? options->parity : CAIRN_BENCH_PARITY,
        .state_bytes = (options->bytes ? options->bytes : STATE_DEFAULT) >> 20 << 20,
        .keep = options->keep};
    uint32_t rounds = options->rounds ? options->rounds : ROUNDS_DEFAULT;
    struct loss all = {.how = &how, .count = how.parity}, one = {.how = &how, .count = 1};
    cairn_err err;

    report->stage = "restore";
    if (how.parity >= how.nodes || how.parity > how.nodes - how.parity)
        return CAIRN_INVAL;
    err = measure_loss(&all, rounds, report);
    if (!err && how.parity > 1)
        err = measure_loss(&one, rounds, report);
    return err;
}
