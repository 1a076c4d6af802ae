/*
 * tools/bench_migrate.c - a live move: tensors go from one rank to another, through a snapshot that
 * two agents commit, while the job stands still.
 *
 * Each round the ranks train until each slot holds a step, which is committed. Then they move the
 * tensors as a trainer does that takes another placement (cairn/client.h): snapshot of this step,
 * registration of the next tensors, fill, all before anything of the present tensors goes. The next
 * round moves them back. What arrives is compared byte by byte. The value is the standstill of the
 * slower rank. The next tensors are mapped before it begins.
 *
 * The floor is what cannot be avoided: a copy of the captured bytes, by as many threads as a
 * capture has while the job stands still, and the moved bytes over bare TCP, one after the other,
 * measured around each round in the same run.
 */
#include "tools/bench.h"
#include "tools/bench_cluster.h"
#include "tools/bench_measure.h"
#include "transport/measure.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { NODES = 2, SLOTS = 2, ROUNDS_DEFAULT = 5, COPY_BYTES = 256 << 20, COPY_THREADS_MAX = 4 };
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
    double one_thread_s_per_gib[CAIRN_BENCH_ROUNDS_MAX + 1]; /* of copying */
    double copy_s_per_gib[CAIRN_BENCH_ROUNDS_MAX + 1];
    double send_s_per_gib[CAIRN_BENCH_ROUNDS_MAX + 1];
    uint32_t count;
};

/* A thread's part of a copy. */
struct lane {
    pthread_t thread;
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
};

static void *
run_lane(void *context)
{
    struct lane *lane = context;

    memcpy(lane->to, lane->from, lane->bytes);
    return NULL;
}

/* Seconds of a copy of COPY_BYTES; the median of three. */
static double
time_copy(uint8_t *to, const uint8_t *from, uint32_t threads)
{
    struct lane lanes[COPY_THREADS_MAX];
    size_t each = COPY_BYTES / threads;
    double seconds[3];

    for (uint32_t i = 0; i < 3; i++) {
        double begin = cairn_bench_now_s();
        uint32_t started = 1;

        for (uint32_t t = 0; t < threads; t++)
            lanes[t] = (struct lane){.to = to + t * each, .from = from + t * each, .bytes = each};
        while (started < threads &&
               pthread_create(&lanes[started].thread, NULL, run_lane, &lanes[started]) == 0)
            started++;
        for (uint32_t t = 0; t < threads; t++) {
            if (t == 0 || t >= started)
                run_lane(&lanes[t]);
        }
        for (uint32_t t = 1; t < started; t++)
            (void)pthread_join(lanes[t].thread, NULL);
        seconds[i] = cairn_bench_now_s() - begin;
    }
    return cairn_bench_median(seconds, 3);
}

static uint32_t
count_copy_threads(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    return cores < 1 ? 1 : cores > COPY_THREADS_MAX ? COPY_THREADS_MAX : (uint32_t)cores;
}

static cairn_err
measure_floor(struct floors *floors)
{
    const struct cairn_measure_options how = {
        .provider = "tcp", .round_bytes = COPY_BYTES, .rounds = 3};
    uint8_t *from = cairn_bench_map(COPY_BYTES), *to = cairn_bench_map(COPY_BYTES);
    struct cairn_measure transport;
    double one_s = 0, all_s = 0;
    cairn_err err = from && to ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        one_s = time_copy(to, from, 1);
    if (!err)
        all_s = time_copy(to, from, count_copy_threads());
    if (from)
        cairn_bench_unmap(from, COPY_BYTES);
    if (to)
        cairn_bench_unmap(to, COPY_BYTES);
    if (!err)
        err = cairn_transport_measure(&how, &transport);
    if (err)
        return err;
    floors->one_thread_s_per_gib[floors->count] = one_s / (COPY_BYTES / gib);
    floors->copy_s_per_gib[floors->count] = (one_s < all_s ? one_s : all_s) / (COPY_BYTES / gib);
    floors->send_s_per_gib[floors->count++] = gib / transport.bare.bytes_per_s;
    return CAIRN_OK;
}

static cairn_err
run_round(struct cairn_bench_cluster *cluster, uint32_t round, uint64_t *step, struct rounds *out)
{
    struct cairn_bench_cpu cpu;
    double seconds = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < SLOTS; i++)
        err = cairn_bench_cluster_step(cluster, step, step_ns, &cpu, &seconds);
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
    cairn_bench_note(report, "copy_in_one_thread_s_per_gib",
                     cairn_bench_median(floors->one_thread_s_per_gib, floors->count));
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
