/*
 * tools/bench_detect.c - the cost of detection for the agents of a running job.
 *
 *   case     reduce: the timing records of a node's 8 ranks, out of their rings, to packed reports;
 *            ns per record
 *            analyse: the reports of 256 ranks, step by step, through the whole analysis; ns per
 *            report, which is a rank's step
 *   floor    reduce: reading the same records out of the rings; analyse: unpacking the same reports
 * Both are CPU time of one thread, medians over the rounds, which alternate. A step has OPERATIONS
 * collectives, half of them of the whole job and half of the node.
 */
#include "tools/bench.h"
#include "tools/bench_measure.h"

#include "base/ring.h"
#include "replan/live/live.h"
#include "replan/live/reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS_DEFAULT = 11,
    NODE_RANKS = 8,
    WORLD = 256,
    OPERATIONS = 8,    /* of a step */
    REDUCE_STEPS = 64, /* of a round */
    ANALYSE_STEPS = 16,
    RECORDS = 2 * OPERATIONS * REDUCE_STEPS, /* of a ring */
    BATCH = 128,
    STEP_BYTES_MAX = WORLD * 1024,
    LEARN_STEPS = 40 /* before the analysis is measured */
};

struct bench {
    struct cairn_ring rings[NODE_RANKS];
    void *memory[NODE_RANKS];
    struct cairn_reduce *reduces[WORLD];
    struct cairn_ledger ledger;
    struct cairn_live *live;
    uint8_t *packed; /* [STEP_BYTES_MAX] the reports of a step */
    size_t packed_bytes;
    uint64_t reports, packed_total;
    uint64_t now_ns;
    uint32_t step;
    struct cairn_report report;
};

static void
pack(void *context, const struct cairn_report *report)
{
    struct bench *bench = context;
    struct cairn_writer writer;

    if (STEP_BYTES_MAX - bench->packed_bytes < CAIRN_REPORT_BYTES_MAX)
        bench->packed_bytes = 0; /* the reduction's reports are only counted */
    cairn_writer_init(&writer, bench->packed + bench->packed_bytes,
                      STEP_BYTES_MAX - bench->packed_bytes);
    cairn_report_pack(report, &writer);
    bench->packed_bytes += writer.used_bytes;
    bench->packed_total += writer.used_bytes;
    bench->reports++;
}

/* Both records of an operation of a step that all ranks are in alike, but for some microseconds. */
static void
fill_record(const struct bench *bench, uint32_t rank, uint32_t operation, bool ended,
            struct cairn_timing_record *out)
{
    bool whole = operation % 2 == 0;
    uint64_t base_ns = bench->now_ns + operation * UINT64_C(2000000);

    *out = (struct cairn_timing_record){.comm = whole ? 1 : 2 + rank / NODE_RANKS,
                                        .seq = (uint64_t)bench->step * OPERATIONS + operation,
                                        .bytes = 1 << 20,
                                        .enter_ns = base_ns + 1000000 +
                                                    (rank * 7919u + bench->step * 104729u) % 20000u,
                                        .end_ns = ended ? base_ns + 1200000 : 0,
                                        .rank = rank,
                                        .peer = CAIRN_PEER_NONE,
                                        .step = bench->step,
                                        .ranks = whole ? WORLD : NODE_RANKS,
                                        .op = CAIRN_ALL_REDUCE};
}

static cairn_err
open_bench(struct bench *bench)
{
    struct cairn_live_options options = {.ledger = &bench->ledger, .first_run = 1};
    size_t bytes = cairn_ring_bytes(RECORDS);
    cairn_err err;

    cairn_ledger_init(&bench->ledger);
    bench->now_ns = UINT64_C(1000000000);
    bench->packed = malloc(STEP_BYTES_MAX);
    err = bench->packed ? cairn_live_create(&options, &bench->live) : CAIRN_NOMEM;
    for (uint32_t rank = 0; !err && rank < WORLD; rank++) {
        struct cairn_reduce_options reduce = {
            .rank = rank, .world = WORLD, .attachment = 1, .emit = pack, .context = bench};

        err = cairn_reduce_create(&reduce, &bench->reduces[rank]);
    }
    for (uint32_t i = 0; !err && i < NODE_RANKS; i++) {
        bench->memory[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!bench->memory[i])
            return CAIRN_NOMEM;
        err = cairn_ring_format(bench->memory[i], bytes, RECORDS);
        if (!err)
            err = cairn_ring_open(bench->memory[i], bytes, &bench->rings[i]);
    }
    return err;
}

static void
close_bench(struct bench *bench)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        cairn_reduce_destroy(bench->reduces[rank]);
    for (uint32_t i = 0; i < NODE_RANKS; i++)
        free(bench->memory[i]);
    cairn_live_destroy(bench->live);
    free(bench->packed);
}

/* ---- reduction ---- */

/* Fills the rings with some steps, and reads them; ns of CPU time per record. Negative: it
 * failed. */
static double
read_rings(struct bench *bench, bool reduces)
{
    struct cairn_timing_record record, records[BATCH];
    uint64_t total = 0;
    double begin_s;

    for (uint32_t step = 0; step < REDUCE_STEPS; step++) {
        bench->step++;
        for (uint32_t rank = 0; rank < NODE_RANKS; rank++)
            for (uint32_t i = 0; i < 2 * OPERATIONS; i++) {
                fill_record(bench, rank, i / 2, i % 2, &record);
                if (!cairn_ring_write(&bench->rings[rank], &record))
                    return -1;
            }
        bench->now_ns += OPERATIONS * UINT64_C(2000000);
    }
    begin_s = cairn_bench_thread_cpu_s();
    for (uint32_t rank = 0; rank < NODE_RANKS; rank++) {
        uint32_t count;

        while ((count = cairn_ring_read(&bench->rings[rank], records, BATCH)) > 0) {
            total += count;
            for (uint32_t i = 0; reduces && i < count; i++)
                if (cairn_reduce_take(bench->reduces[rank], &records[i], bench->now_ns) != CAIRN_OK)
                    return -1;
        }
    }
    return (cairn_bench_thread_cpu_s() - begin_s) * 1e9 / (double)total;
}

/* ---- analysis ---- */

/* Has all ranks take a step; their reports are in bench->packed. */
static cairn_err
take_step(struct bench *bench)
{
    struct cairn_timing_record record;
    cairn_err err = CAIRN_OK;

    bench->packed_bytes = 0;
    bench->step++;
    for (uint32_t rank = 0; rank < WORLD; rank++)
        for (uint32_t i = 0; !err && i < 2 * OPERATIONS; i++) {
            fill_record(bench, rank, i / 2, i % 2, &record);
            err = cairn_reduce_take(bench->reduces[rank], &record,
                                    bench->now_ns + OPERATIONS * UINT64_C(2000000));
        }
    bench->now_ns += OPERATIONS * UINT64_C(2000000);
    return err;
}

/* Unpacks the reports of a step, and has them analysed; adds CPU seconds and reports. */
static cairn_err
use_step(struct bench *bench, bool analyses, double *seconds, uint64_t *reports)
{
    double begin_s = cairn_bench_thread_cpu_s();
    struct cairn_reader reader;
    cairn_err err = CAIRN_OK;

    cairn_reader_init(&reader, bench->packed, bench->packed_bytes);
    while (!err && cairn_reader_left(&reader) > 0) {
        cairn_report_unpack(&reader, &bench->report);
        err = reader.failed ? CAIRN_CORRUPT : CAIRN_OK;
        if (!err && analyses)
            err = cairn_live_take(bench->live, bench->report.rank / NODE_RANKS, &bench->report,
                                  bench->now_ns, bench->now_ns);
        ++*reports;
    }
    if (!err && analyses)
        err = cairn_live_check(bench->live, bench->now_ns, bench->now_ns);
    *seconds += cairn_bench_thread_cpu_s() - begin_s;
    return err;
}

/* ns of CPU time per report, analysed and unpacked alone. */
static cairn_err
analyse_steps(struct bench *bench, uint32_t steps, double *value_ns, double *floor_ns)
{
    double value_s = 0, floor_s = 0;
    uint64_t value_reports = 0, floor_reports = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < steps; i++) {
        err = take_step(bench);
        if (!err)
            err = use_step(bench, false, &floor_s, &floor_reports);
        if (!err)
            err = use_step(bench, true, &value_s, &value_reports);
    }
    *value_ns = value_reports ? value_s * 1e9 / (double)value_reports : 0;
    *floor_ns = floor_reports ? floor_s * 1e9 / (double)floor_reports : 0;
    return err;
}

/* ---- the report ---- */

static void
add_case(struct cairn_bench_report *report, const char *name, const char *unit, const char *command,
         double value, double floor, uint64_t bytes)
{
    struct cairn_bench_case result = {.value = value,
                                      .floor = floor,
                                      .unit = unit,
                                      .command = command,
                                      .at_most = true,
                                      .bytes = bytes,
                                      .threads = 1};

    (void)snprintf(result.name, sizeof result.name, "%s", name);
    cairn_bench_add(report, &result);
}

static cairn_err
measure(struct bench *bench, uint32_t rounds, struct cairn_bench_report *report)
{
    double reduce_ns[CAIRN_BENCH_ROUNDS_MAX], read_ns[CAIRN_BENCH_ROUNDS_MAX];
    double analyse_ns[CAIRN_BENCH_ROUNDS_MAX], unpack_ns[CAIRN_BENCH_ROUNDS_MAX];
    struct cairn_live_view view;
    cairn_err err;

    err = analyse_steps(bench, LEARN_STEPS, &analyse_ns[0], &unpack_ns[0]);
    for (uint32_t round = 0; !err && round < rounds; round++)
        err = analyse_steps(bench, ANALYSE_STEPS, &analyse_ns[round], &unpack_ns[round]);
    if (err)
        return err;
    cairn_live_look(bench->live, bench->now_ns, &view);
    if (!view.is_calibrated || view.comms_used != 1 + WORLD / NODE_RANKS || bench->ledger.count > 0)
        return CAIRN_INTERNAL; /* it has not done what was to be measured */
    bench->reports = bench->packed_total = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        reduce_ns[round] = read_rings(bench, true);
        read_ns[round] = read_rings(bench, false);
        if (reduce_ns[round] < 0 || read_ns[round] < 0)
            return CAIRN_INTERNAL;
    }
    add_case(report, "reduce", "ns/record", "reading the same records out of the rings",
             cairn_bench_median(reduce_ns, rounds), cairn_bench_median(read_ns, rounds),
             (uint64_t)NODE_RANKS * RECORDS * sizeof(struct cairn_timing_record));
    add_case(report, "analyse", "ns/report", "unpacking the same reports",
             cairn_bench_median(analyse_ns, rounds), cairn_bench_median(unpack_ns, rounds),
             (uint64_t)bench->packed_bytes);
    cairn_bench_note(report, "bytes of a report",
                     (double)bench->packed_total / (double)bench->reports);
    cairn_bench_note(report, "bytes of the records of a rank's step",
                     2.0 * OPERATIONS * (double)sizeof(struct cairn_timing_record));
    return CAIRN_OK;
}

cairn_err
cairn_bench_detect(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    struct bench *bench = calloc(1, sizeof *bench);
    cairn_err err;

    report->stage = "detect";
    if (!bench)
        return CAIRN_NOMEM;
    err = open_bench(bench);
    if (!err)
        err = measure(bench, options->rounds ? options->rounds : ROUNDS_DEFAULT, report);
    close_bench(bench);
    free(bench);
    return err;
}
