/*
 * tools/bench_protect.c - protect end to end: real agents and trainers on loopback, begin to
 * commit.
 *
 * The value is CPU seconds per GiB of state over all agents and trainers. The floor is the sum of
 * the stages' CPU seconds per GiB, each measured alone in the same run, before and after. With
 * k + m members every byte of state is captured once and folded into m rows, and (k + m - 1) / k
 * bytes are sent, received and checked: the state once, and the rows that encoders forward.
 * With `protection: authenticate` the floor is what the same costs without, in turns with it.
 */
#include "tools/bench.h"
#include "tools/bench_cluster.h"
#include "tools/bench_floor.h"
#include "tools/bench_measure.h"

#include <inttypes.h>
#include <stdio.h>

enum { STATE_DEFAULT = 128 << 20, ROUNDS_DEFAULT = 7 };
static const uint64_t step_ns = 500000000; /* a trainer's step, without the fence */
static const double gib = 1073741824.0;

/* What the rounds gave. */
struct rounds {
    uint32_t count;
    double agents_cpu_s[CAIRN_BENCH_ROUNDS_MAX];
    double trainers_cpu_s[CAIRN_BENCH_ROUNDS_MAX];
    double cpu_s[CAIRN_BENCH_ROUNDS_MAX];
    double seconds[CAIRN_BENCH_ROUNDS_MAX];
};

static double
both(double a, double b)
{
    return (a + b) / 2;
}

/* The floor before and after, averaged: the machine may have changed its pace in between. */
static struct cairn_bench_floor
middle(const struct cairn_bench_floor *a, const struct cairn_bench_floor *b)
{
    return (struct cairn_bench_floor){
        .capture = both(a->capture, b->capture),
        .transport_sender = both(a->transport_sender, b->transport_sender),
        .transport_receiver = both(a->transport_receiver, b->transport_receiver),
        .fold = both(a->fold, b->fold),
        .check = both(a->check, b->check),
        .transport_bytes_per_s = both(a->transport_bytes_per_s, b->transport_bytes_per_s),
        .bare_tcp = both(a->bare_tcp, b->bare_tcp)};
}

/* A cluster, and the generation that it committed last. */
struct side {
    struct cairn_bench_cluster *cluster;
    uint64_t step;
    struct rounds rounds;
};

static cairn_err
side_step(struct side *side, bool counts)
{
    struct rounds *rounds = &side->rounds;
    struct cairn_bench_cpu cpu;
    double seconds;
    cairn_err err = cairn_bench_cluster_step(side->cluster, &side->step, step_ns, &cpu, &seconds);

    if (err || !counts)
        return err;
    rounds->agents_cpu_s[rounds->count] = cpu.agents;
    rounds->trainers_cpu_s[rounds->count] = cpu.trainers;
    rounds->cpu_s[rounds->count] = cpu.agents + cpu.trainers;
    rounds->seconds[rounds->count++] = seconds;
    return CAIRN_OK;
}

/* Starts agents and trainers, which warm up. */
static cairn_err
side_open(struct side *side, const struct cairn_bench_cluster_options *how)
{
    cairn_err err = cairn_bench_cluster_open(how, &side->cluster);

    if (!err)
        err = cairn_bench_cluster_train(side->cluster);
    return err ? err : side_step(side, false);
}

/* Of all agents the one with the most; the worst fences of all trainers. */
static void
note_nodes(const struct cairn_bench_cluster *cluster,
           const struct cairn_bench_cluster_options *options, struct cairn_bench_report *report)
{
    uint64_t most_bytes = 0, p50_ns = 0, p99_ns = 0;
    double allowed = 2 * (1 + (double)options->parity / (options->nodes - options->parity)) *
                         (double)options->state_bytes +
                     128 * 1048576.0;

    for (uint32_t i = 0; i < options->nodes; i++) {
        const struct cairn_client_stats *stats = &cairn_bench_cluster_answer(cluster, i)->stats;
        uint64_t bytes = cairn_bench_cluster_agent_bytes(cluster, i);

        most_bytes = bytes > most_bytes ? bytes : most_bytes;
        p50_ns = stats->fence_ns_p50 > p50_ns ? stats->fence_ns_p50 : p50_ns;
        p99_ns = stats->fence_ns_p99 > p99_ns ? stats->fence_ns_p99 : p99_ns;
    }
    cairn_bench_note(report, "agent_resident_bytes_max", (double)most_bytes);
    cairn_bench_note(report, "agent_allowed_bytes", allowed);
    cairn_bench_note(report, "agent_resident_over_allowed", (double)most_bytes / allowed);
    cairn_bench_note(report, "step_ms_without_fence", (double)step_ns / 1e6);
    cairn_bench_note(report, "fence_p50_us", (double)p50_ns / 1e3);
    cairn_bench_note(report, "fence_p99_us", (double)p99_ns / 1e3);
}

static void
note_floor(const struct cairn_bench_floor *floor, struct cairn_bench_report *report)
{
    cairn_bench_note(report, "floor_capture_s_per_gib", floor->capture);
    cairn_bench_note(report, "floor_transport_sender_s_per_gib", floor->transport_sender);
    cairn_bench_note(report, "floor_transport_receiver_s_per_gib", floor->transport_receiver);
    cairn_bench_note(report, "floor_fold_row_s_per_gib", floor->fold);
    cairn_bench_note(report, "floor_check_s_per_gib", floor->check);
    cairn_bench_note(report, "bare_tcp_s_per_gib", floor->bare_tcp);
}

/* What a round cost, per GiB of state. */
static double
cost(struct rounds *rounds, uint64_t bytes)
{
    return cairn_bench_median(rounds->cpu_s, rounds->count) / ((double)bytes / gib);
}

/* The same agents with tags on the state between them. */
static void
add_authenticated(const struct cairn_bench_cluster_options *options, struct rounds *rounds,
                  double without, struct cairn_bench_report *report)
{
    uint64_t bytes = options->nodes * options->state_bytes;
    struct cairn_bench_case value = {.name = "the same, authenticated",
                                     .unit = "CPU s/GiB",
                                     .bound = 1.25,
                                     .at_most = true,
                                     .bytes = bytes,
                                     .threads = options->nodes,
                                     .command = "the same without protection",
                                     .floor = without};

    value.value = value.cpu_seconds_per_gib = cost(rounds, bytes);
    cairn_bench_add(report, &value);
}

static void
fill_report(const struct cairn_bench_cluster_options *options, struct rounds *rounds,
            const struct cairn_bench_floor *floor, struct cairn_bench_report *report)
{
    uint64_t bytes = options->nodes * options->state_bytes;
    double data = options->nodes - options->parity, sent = (options->nodes - 1) / data;
    double seconds = cairn_bench_median(rounds->seconds, rounds->count);
    struct cairn_bench_case value = {
        .unit = "CPU s/GiB",
        .bound = 1.25,
        .at_most = true,
        .bytes = bytes,
        .threads = options->nodes,
        .command = "capture + (k + m - 1) / k * (send + receive + check) + m * fold, each stage "
                   "alone in this run"};

    value.value = value.cpu_seconds_per_gib = cost(rounds, bytes);
    value.floor = floor->capture +
                  sent * (floor->transport_sender + floor->transport_receiver + floor->check) +
                  options->parity * floor->fold;
    (void)snprintf(value.name, sizeof value.name, "%" PRIu32 " agents, %" PRIu32 "+%" PRIu32,
                   options->nodes, options->nodes - options->parity, options->parity);
    cairn_bench_add(report, &value);
    cairn_bench_note(report, "agents_s_per_gib",
                     cairn_bench_median(rounds->agents_cpu_s, rounds->count) /
                         ((double)bytes / gib));
    cairn_bench_note(report, "trainers_s_per_gib",
                     cairn_bench_median(rounds->trainers_cpu_s, rounds->count) /
                         ((double)bytes / gib));
    cairn_bench_note(report, "begin_to_commit_seconds", seconds);
    cairn_bench_note(report, "state_gb_per_s", (double)bytes / seconds / 1e9);
    note_floor(floor, report);
}

cairn_err
cairn_bench_protect(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    struct cairn_bench_cluster_options how = {
        .nodes = options->nodes ? options->nodes : CAIRN_BENCH_NODES,
        .parity = options->parity ? options->parity : CAIRN_BENCH_PARITY,
        .state_bytes = (options->bytes ? options->bytes : STATE_DEFAULT) >> 20 << 20,
        .keep = options->keep};
    uint32_t k = how.nodes - how.parity;
    uint32_t count = options->rounds ? options->rounds : ROUNDS_DEFAULT;
    struct cairn_bench_floor before, after, floor;
    static struct side clear, authenticated;
    cairn_err err;

    report->stage = "protect";
    if (how.parity >= how.nodes || how.parity > k)
        return CAIRN_INVAL;
    err = cairn_bench_floor_measure(k, how.parity, 0, 3, &before);
    if (!err)
        err = side_open(&clear, &how);
    how.authenticate = true;
    if (!err)
        err = side_open(&authenticated, &how);
    for (uint32_t i = 0; i < count && !err; i++) {
        err = side_step(&clear, true);
        if (!err)
            err = side_step(&authenticated, true);
    }
    if (!err)
        note_nodes(clear.cluster, &how, report);
    cairn_bench_cluster_close(clear.cluster);
    cairn_bench_cluster_close(authenticated.cluster);
    if (!err)
        err = cairn_bench_floor_measure(k, how.parity, 0, 3, &after);
    if (err)
        return err;
    floor = middle(&before, &after);
    fill_report(&how, &clear.rounds, &floor, report);
    add_authenticated(&how, &authenticated.rounds, report->cases[0].value, report);
    return CAIRN_OK;
}
