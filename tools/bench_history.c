/*
 * tools/bench_history.c - the CPU time of a node's history and of the trace of its last steps.
 *
 *   case   commit: an event of a commit enters the book, and its range is packed for the store;
 *          operation: a timed operation enters the recording of its rank; merge: the histories of
 *          NODES nodes, each full, become one
 *   floor  copying as many packed bytes once
 * There is no promise: ratios show how much more than a copy they cost.
 */
#include "tools/bench.h"
#include "tools/bench_measure.h"

#include "agent/history/book.h"
#include "agent/history/merge.h"
#include "replan/live/recording.h"

#include <stdio.h>
#include <string.h>

enum {
    ROUNDS_DEFAULT = 9,
    COMMITS = 100000,
    OPERATIONS = 1000000,
    OPERATIONS_PER_STEP = 500,
    NODES = 64,
    RECORDING_BYTES = 4 << 20
};

static uint8_t packed[HISTORY_PACKED_BYTES_MAX], copied[HISTORY_PACKED_BYTES_MAX];

/* Commits as of a job that loses a node every 100 steps, so that old events must go, too. */
static struct history_event
event_of(uint64_t number)
{
    struct history_event event =
        history_event_of(number % 100 == 99 ? HISTORY_DEATH : HISTORY_COMMIT);
    struct cairn_generation_id at = {.epoch = 1 + number / 100, .run = 1, .step = number};

    event.wall_ns = event.until_wall_ns = number * 1000000;
    event.at = event.generation = at;
    event.last_step = event.kind == HISTORY_COMMIT ? number : 0;
    event.count = event.kind == HISTORY_COMMIT;
    event.node = event.kind == HISTORY_DEATH ? 1 : HISTORY_NONE;
    event.subject = number;
    return event;
}

/* CPU seconds, and the bytes that were packed. */
static cairn_err
run_commits(struct history_book *book, double *cpu_s, uint64_t *bytes)
{
    double begin = cairn_bench_thread_cpu_s();

    *bytes = 0;
    for (uint64_t i = 1; i <= COMMITS; i++) {
        struct history_event event = event_of(i);
        uint64_t number = history_book_add(book, &event);
        const struct history_event *kept = history_book_find(book, number);

        if (!kept)
            return CAIRN_NOMEM;
        *bytes += history_event_pack(kept, packed);
        history_book_stored(book);
    }
    *cpu_s = cairn_bench_thread_cpu_s() - begin;
    return CAIRN_OK;
}

static cairn_err
run_operations(double *cpu_s)
{
    struct cairn_recording *recording;
    cairn_err err = cairn_recording_create(RECORDING_BYTES, &recording);
    double begin = cairn_bench_thread_cpu_s();

    if (err)
        return err;
    for (uint64_t i = 0; i < OPERATIONS; i++)
        cairn_recording_take(
            recording, (uint32_t)(1 + i / OPERATIONS_PER_STEP),
            &(struct cairn_recorded_op){
                .seq = i, .bytes = 1 << 20, .start_ns = i * 1000, .end_ns = i * 1000 + 500});
    *cpu_s = cairn_bench_thread_cpu_s() - begin;
    cairn_recording_destroy(recording);
    return CAIRN_OK;
}

static cairn_err
run_merge(const struct history_book *book, double *cpu_s)
{
    struct history_list lists[NODES];
    struct history_merge merge = {0};
    double begin = cairn_bench_thread_cpu_s();
    cairn_err err;

    for (uint32_t i = 0; i < NODES; i++)
        lists[i] = (struct history_list){i, book->events, book->count};
    err = history_merge(lists, NODES, &merge);
    *cpu_s = cairn_bench_thread_cpu_s() - begin;
    history_merge_fini(&merge);
    return err;
}

static double
copy_s(uint64_t bytes)
{
    double begin = cairn_bench_thread_cpu_s();

    for (uint64_t at = 0; at < bytes; at += HISTORY_FIXED_BYTES) {
        memcpy(copied, packed, HISTORY_FIXED_BYTES);
        __asm__ volatile("" ::: "memory"); /* each of them is made */
    }
    return cairn_bench_thread_cpu_s() - begin;
}

static void
add(struct cairn_bench_report *report, const char *name, double *cpu_s, double *floor_s,
    uint32_t rounds, double count, uint64_t bytes)
{
    struct cairn_bench_case value = {.unit = "us",
                                     .command = "copying as many packed bytes",
                                     .bytes = bytes,
                                     .threads = 1,
                                     .at_most = true};

    value.value = cairn_bench_median(cpu_s, rounds) / count * 1e6;
    value.floor = cairn_bench_median(floor_s, rounds) / count * 1e6;
    value.cpu_seconds_per_gib = value.value * count / 1e6 / ((double)bytes / 1073741824.0);
    (void)snprintf(value.name, sizeof value.name, "%s", name);
    cairn_bench_add(report, &value);
}

cairn_err
cairn_bench_history(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    static double cpu_s[3][CAIRN_BENCH_ROUNDS_MAX], floor_s[3][CAIRN_BENCH_ROUNDS_MAX];
    uint32_t rounds = options->rounds ? options->rounds : ROUNDS_DEFAULT;
    uint64_t bytes[3] = {0, (uint64_t)OPERATIONS * CAIRN_RECORDED_OP_BYTES, 0};
    cairn_err err = CAIRN_OK;

    report->stage = "history";
    for (uint32_t round = 0; !err && round < rounds; round++) {
        struct history_book book;

        history_book_init(&book);
        err = run_commits(&book, &cpu_s[0][round], &bytes[0]);
        if (!err)
            err = run_operations(&cpu_s[1][round]);
        if (!err)
            err = run_merge(&book, &cpu_s[2][round]);
        bytes[2] = (uint64_t)NODES * book.bytes;
        history_book_fini(&book);
        for (int i = 0; i < 3; i++)
            floor_s[i][round] = copy_s(bytes[i]);
    }
    if (err)
        return err;
    add(report, "commit", cpu_s[0], floor_s[0], rounds, COMMITS, bytes[0]);
    add(report, "operation", cpu_s[1], floor_s[1], rounds, OPERATIONS, bytes[1]);
    add(report, "merge 64 nodes", cpu_s[2], floor_s[2], rounds, 1, bytes[2]);
    return CAIRN_OK;
}
