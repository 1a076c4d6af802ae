/*
 * tools/bench_migrate.c - a live move: tensors go from one rank to another, through a snapshot that
 * two agents commit, while the job stands still.
 *
 * Each round the ranks train a step, which is captured and committed, and then move the tensors as
 * a trainer does that takes another placement (cairn/client.h): snapshot of this step, registration
 * of the next tensors, fill, all before anything of the present tensors goes. The next round moves
 * them back. What arrives is compared byte by byte. The value is the standstill of the slower rank.
 * The next tensors are mapped before it begins.
 *
 * The floor is what cannot be avoided: a copy of the captured bytes in one thread, and the moved
 * bytes over bare TCP, one after the other, measured around each round in the same run.
 */
#include "tools/bench.h"
#include "tools/bench_cluster.h"
#include "tools/bench_measure.h"
#include "transport/measure.h"

#include <string.h>

enum { NODES = 2, ROUNDS_DEFAULT = 5, COPY_BYTES = 256 << 20 };
static const uint64_t moved_default = UINT64_C(1) << 30;
static const uint64_t step_ns = 500000000;
static const double gib = 1073741824.0;

struct rounds {
    double standstill_s[CAIRN_BENCH_ROUNDS_MAX];
    double commit_s[CAIRN_BENCH_ROUNDS_MAX];
    double agents_cpu_s[CAIRN_BENCH_ROUNDS_MAX];
    double cpu_s[CAIRN_BENCH_ROUNDS_MAX];
    uint64_t remote_bytes; /* of the last one */
};

struct floors {
    double copy_s_per_gib[CAIRN_BENCH_ROUNDS_MAX + 1];
    double send_s_per_gib[CAIRN_BENCH_ROUNDS_MAX + 1];
    uint32_t count;
};

static cairn_err
measure_floor(struct floors *floors)
{
    const struct cairn_measure_options how = {
        .provider = "tcp", .round_bytes = COPY_BYTES, .rounds = 3};
    uint8_t *from = cairn_bench_map(COPY_BYTES), *to = cairn_bench_map(COPY_BYTES);
    struct cairn_measure transport;
    double seconds[3];
    cairn_err err = from && to ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t i = 0; !err && i < 3; i++) {
        double begin = cairn_bench_now_s();

        memcpy(to, from, COPY_BYTES);
        seconds[i] = cairn_bench_now_s() - begin;
    }
    if (from)
        cairn_bench_unmap(from, COPY_BYTES);
    if (to)
        cairn_bench_unmap(to, COPY_BYTES);
    if (!err)
        err = cairn_transport_measure(&how, &transport);
    if (err)
        return err;
    floors->copy_s_per_gib[floors->count] = cairn_bench_median(seconds, 3) / (COPY_BYTES / gib);
    floors->send_s_per_gib[floors->count++] = gib / transport.bare.bytes_per_s;
    return CAIRN_OK;
}

static cairn_err
run_round(struct cairn_bench_cluster *cluster, uint32_t round, uint64_t *step, struct rounds *out)
{
    struct cairn_bench_cpu cpu;
    double seconds;
    cairn_err err = cairn_bench_cluster_step(cluster, step, step_ns, &cpu, &seconds);

    if (!err)
        err = cairn_bench_cluster_move(cluster, ++*step, &cpu);
    if (err)
        return err;
    out->remote_bytes = 0;
    for (uint32_t i = 0; i < NODES; i++) {
        const struct cairn_bench_answer *answer = cairn_bench_cluster_answer(cluster, i);

        if (answer->seconds > out->standstill_s[round])
            out->standstill_s[round] = answer->seconds;
        out->remote_bytes += answer->restored.remote_bytes;
    }
    out->commit_s[round] = seconds;
    out->agents_cpu_s[round] = cpu.agents;
    out->cpu_s[round] = cpu.agents + cpu.trainers;
    return CAIRN_OK;
}

static void
fill_report(uint64_t moved_bytes, struct rounds *rounds, uint32_t count, struct floors *floors,
            struct cairn_bench_report *report)
{
    double copy = cairn_bench_median(floors->copy_s_per_gib, floors->count);
    double send = cairn_bench_median(floors->send_s_per_gib, floors->count);
    double moved = (double)moved_bytes / gib;
    struct cairn_bench_case value = {
        .name = "standstill, two agents",
        .unit = "s",
        .bound = 1.3,
        .at_most = true,
        .bytes = moved_bytes,
        .threads = NODES,
        .command = "a copy of the moved bytes + sending them over bare TCP, in this run"};

    value.value = cairn_bench_median(rounds->standstill_s, count);
    value.floor = moved * (copy + send);
    value.cpu_seconds_per_gib = cairn_bench_median(rounds->cpu_s, count) / moved;
    cairn_bench_add(report, &value);
    cairn_bench_note(report, "begin_to_commit_of_a_step_seconds",
                     cairn_bench_median(rounds->commit_s, count));
    cairn_bench_note(report, "agents_cpu_seconds_of_a_move",
                     cairn_bench_median(rounds->agents_cpu_s, count));
    cairn_bench_note(report, "moved_bytes", (double)moved_bytes);
    cairn_bench_note(report, "fetched_bytes", (double)rounds->remote_bytes);
    cairn_bench_note(report, "floor_copy_s_per_gib", copy);
    cairn_bench_note(report, "floor_send_s_per_gib", send);
}

cairn_err
cairn_bench_migrate(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    uint64_t moved_bytes = (options->bytes ? options->bytes : moved_default) >> 20 << 20;
    struct cairn_bench_cluster_options how = {
        .nodes = NODES,
        .parity = 0,
        .moves = true,
        .state_bytes = moved_bytes + moved_bytes / CAIRN_BENCH_MOVED_TENSORS,
    };
    uint32_t rounds = options->rounds ? options->rounds : ROUNDS_DEFAULT;
    struct cairn_bench_cluster *cluster = NULL;
    static struct rounds results;
    static struct floors floors;
    uint64_t step = 0;
    cairn_err err;

    report->stage = "migrate";
    memset(&results, 0, sizeof results);
    floors.count = 0;
    err = measure_floor(&floors);
    if (!err)
        err = cairn_bench_cluster_open(&how, &cluster);
    if (!err)
        err = cairn_bench_cluster_train(cluster);
    for (uint32_t round = 0; !err && round < rounds; round++) {
        err = run_round(cluster, round, &step, &results);
        if (!err)
            err = measure_floor(&floors);
    }
    cairn_bench_cluster_close(cluster);
    if (err)
        return err;
    fill_report(moved_bytes, &results, rounds, &floors, report);
    return CAIRN_OK;
}
