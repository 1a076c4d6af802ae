/*
 * tools/bench_timing.c - what NCCL's profiler plugin costs the threads that call it.
 *
 *   case     counted: an operation whose enqueueing alone is recorded: five calls, one record;
 *            timed: an operation of CHANNELS channels whose kernels are timed too: 1 + 3 *
 *            CHANNELS calls more, three records
 *   value    ns per call
 *   floor    the same calls of functions that read the clock as often and copy each record to
 *            memory
 * Both are medians over the rounds, which alternate, each of BATCH operations: few, so that most
 * rounds pass without another process in between. What an operation costs on the mean follows from
 * the share of them that is timed by default, counted over PERIODS. The plugin is opened and called
 * as NCCL 2.28 does it (version 5 of the interface); the ring of records is emptied between the
 * rounds.
 */
#include "tools/bench.h"
#include "tools/bench_measure.h"

#include "base/ring.h"
#include "bindings/nccl/profiler_abi.h"
#include "cairn/timing.h"
#include "tools/common.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS_DEFAULT = CAIRN_BENCH_ROUNDS_MAX,
    BATCH = 200,
    CHANNELS = 8,
    PERIOD = 4096,
    PERIODS = 4,
    QUIET_SEQ = 1024
};

enum kind { COUNTED, TIMED, KINDS };

static const char *const names[KINDS] = {"counted", "timed"};

/* One that is called, ours or the floor's. */
struct callee {
    const struct nccl_profiler_v5 *table;
    void *context;
    int mask;
};

struct bench {
    struct callee plugin, floor;
    struct cairn_ring ring;
    void *memory;
    size_t memory_bytes;
};

struct figures {
    double ns[CAIRN_BENCH_ROUNDS_MAX]; /* per call */
    uint64_t calls, timed, operations;
};

static uint64_t
now_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* ---- the floor's functions ---- */

static struct cairn_timing_record floor_records[BATCH];
static uint64_t floor_written;

static void
floor_write(uint64_t enter_ns)
{
    struct cairn_timing_record record = {.enter_ns = enter_ns, .seq = floor_written};

    memcpy(&floor_records[floor_written++ % BATCH], &record, sizeof record);
    __asm__ volatile("" ::: "memory"); /* every record is written */
}

static int
floor_start(void *context, void **handle, void *descriptor)
{
    const struct nccl_descriptor_v5 *event = descriptor;

    *handle = NULL;
    if (event->head.type64 == NCCL_COLL) {
        floor_write(now_ns());
        *handle = *(int *)context & NCCL_KERNEL_CH ? context : NULL;
    } else if (event->head.type64 == NCCL_KERNEL_CH) {
        if (event->kernel_ch.channel == 0)
            floor_write(now_ns());
        *handle = context;
    } else if (event->head.type64 == NCCL_COLL_API) {
        *handle = context;
    }
    return 0;
}

static int
floor_stop(void *handle)
{
    (void)handle;
    return 0;
}

static int
floor_record(void *handle, int state, void *arguments)
{
    const union nccl_state *timer = arguments;

    (void)handle, (void)state;
    if (timer->device_ns % 16 == CHANNELS - 1)
        floor_write(now_ns());
    return 0;
}

static const struct nccl_profiler_v5 floor_table = {
    .name = "floor", .start = floor_start, .stop = floor_stop, .record = floor_record};

/* ---- NCCL ---- */

/* Calls as NCCL does for one operation; returns how many calls that were. */
static uint64_t
run_operation(struct callee *callee, uint64_t seq, bool timed)
{
    const struct nccl_profiler_v5 *table = callee->table;
    struct nccl_descriptor_v5 event = {.head.type64 = NCCL_GROUP_API};
    void *group_call, *call, *group, *task, *kernels[CHANNELS];
    uint64_t calls = 4;

    (void)table->start(callee->context, &group_call, &event);
    event.head.type64 = NCCL_COLL_API;
    event.coll_api.captured = false;
    (void)table->start(callee->context, &call, &event);
    if (call)
        calls += (uint64_t)(table->stop(call) == 0);
    event.head.type64 = NCCL_GROUP;
    (void)table->start(callee->context, &group, &event);
    event = (struct nccl_descriptor_v5){.head = {.type64 = NCCL_COLL, .parent = call, .rank = 1},
                                        .coll = {.seq = seq,
                                                 .func = "AllReduce",
                                                 .count = 1 << 20,
                                                 .datatype = "ncclBfloat16",
                                                 .channels = CHANNELS}};
    (void)table->start(callee->context, &task, &event);
    if (task)
        calls += (uint64_t)(table->stop(task) == 0);
    if (!timed)
        return calls;
    for (unsigned i = 0; i < CHANNELS; i++) {
        event = (struct nccl_descriptor_v5){
            .head = {.type64 = NCCL_KERNEL_CH, .parent = task},
            .kernel_ch = {.channel = (uint8_t)i, .device_ns = 16 * seq + 16}};
        (void)table->start(callee->context, &kernels[i], &event);
        calls++;
    }
    for (unsigned i = 0; i < CHANNELS; i++) {
        union nccl_state timer = {.device_ns = 16 * seq + 16 + i};

        if (!kernels[i])
            continue;
        (void)table->record(kernels[i], NCCL_STATE_KERNEL_CH_STOP, &timer);
        (void)table->stop(kernels[i]);
        calls += 2;
    }
    return calls;
}

/* ns of BATCH operations. The floor does the plugin's minimum. */
static double
run_batch(struct bench *bench, struct callee *callee, enum kind kind, struct figures *figures)
{
    uint64_t begin_ns, calls = 0, timed_count = 0;
    double ns;

    cairn_ring_set_wish(&bench->ring, kind == TIMED ? now_ns() + UINT64_C(30000000000) : 0);
    if (callee == &bench->plugin) /* checks the wish when an operation begins, and uses up its
                                   * allowance */
        for (uint64_t i = 0; i < 200; i++)
            (void)run_operation(callee, QUIET_SEQ + i, false);
    else
        callee->mask = kind == TIMED ? NCCL_KERNEL_CH : 0;
    begin_ns = now_ns();
    for (uint64_t i = 0; i < BATCH; i++) {
        bool timed = __atomic_load_n(&callee->mask, __ATOMIC_RELAXED) & NCCL_KERNEL_CH;

        calls += run_operation(callee, QUIET_SEQ + i, timed);
        timed_count += timed;
    }
    ns = (double)(now_ns() - begin_ns);
    figures->calls += calls;
    figures->timed += timed_count;
    figures->operations += BATCH;
    return ns / (double)calls;
}

/* ---- the ring ---- */

/* Takes all records out; false when some were dropped, which would have cost less. */
static bool
empty_ring(struct bench *bench)
{
    static struct cairn_timing_record records[1024];

    while (cairn_ring_read(&bench->ring, records, 1024)) {
    }
    return cairn_ring_dropped(&bench->ring) == 0;
}

static cairn_err
open_ring(struct bench *bench)
{
    DIR *folder = opendir("/proc/self/fd");
    const struct dirent *entry;
    cairn_err err = CAIRN_IO;

    while (folder && err && (entry = readdir(folder))) {
        char path[300], target[300];
        struct stat status;
        ssize_t length;
        int fd;

        (void)snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strncmp(target, "/memfd:cairn-timing", strlen("/memfd:cairn-timing")) != 0)
            continue;
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &status) != 0)
            continue;
        bench->memory_bytes = (size_t)status.st_size;
        bench->memory = mmap(NULL, bench->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void)close(fd);
        if (bench->memory != MAP_FAILED)
            err = cairn_ring_open(bench->memory, bench->memory_bytes, &bench->ring);
    }
    if (folder)
        (void)closedir(folder);
    return err;
}

static cairn_err
open_plugin(struct bench *bench, struct cairn_bench_report *report)
{
    char path[CAIRN_PLACED_PATH_BYTES];
    void *library = NULL;

    (void)unsetenv("CAIRN_NCCL_PROFILER_CHAIN");
    (void)unsetenv("CAIRN_NCCL_KERNEL_PERCENT"); /* the default is what is measured */
    if (cairn_find_library("libnccl-profiler-cairn.so", path))
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    bench->plugin.table = library ? dlsym(library, "ncclProfiler_v5") : NULL;
    if (!bench->plugin.table) {
        report->skipped = "libnccl-profiler-cairn.so is not installed beside this program";
        return CAIRN_OK;
    }
    (void)bench->plugin.table->init(&bench->plugin.context, 1, &bench->plugin.mask, NULL, 1, 2, 1,
                                    NULL);
    bench->floor = (struct callee){.table = &floor_table, .context = &bench->floor.mask};
    if (!bench->plugin.context || !(bench->plugin.mask & NCCL_COLL))
        return CAIRN_NOMEM;
    if (!(bench->plugin.mask & NCCL_KERNEL_CH)) {
        report->skipped = "kernels are not timed: /dev/shm has less than 64 MiB left";
        return CAIRN_OK;
    }
    return open_ring(bench);
}

/* ---- the report ---- */

static void
add_case(struct cairn_bench_report *report, enum kind kind, double value_ns, double floor_ns)
{
    struct cairn_bench_case value = {
        .value = value_ns,
        .floor = floor_ns,
        .unit = "ns/call",
        .command = "the same calls of functions that read the clock and copy the records",
        .bound = 3.5,
        .at_most = true,
        .bytes = (uint64_t)BATCH * sizeof(struct cairn_timing_record),
        .threads = 1};

    (void)snprintf(value.name, sizeof value.name, "%s", names[kind]);
    cairn_bench_add(report, &value);
}

/* The share of operations that are timed by default, over whole periods; false if records were
 * dropped. */
static bool
count_share(struct bench *bench, double *share)
{
    uint64_t timed_count = 0;

    cairn_ring_set_wish(&bench->ring, 0);
    for (uint64_t seq = 0; seq < (uint64_t)PERIODS * PERIOD; seq++) {
        bool timed = __atomic_load_n(&bench->plugin.mask, __ATOMIC_RELAXED) & NCCL_KERNEL_CH;

        (void)run_operation(&bench->plugin, seq, timed);
        timed_count += timed;
        if (seq % 1024 == 0 && !empty_ring(bench))
            return false;
    }
    *share = (double)timed_count / ((double)PERIODS * PERIOD);
    return empty_ring(bench);
}

static cairn_err
measure(struct bench *bench, uint32_t rounds, struct cairn_bench_report *report)
{
    static struct figures plugin[KINDS], bare[KINDS];
    double operation_ns[KINDS], share, mean_ns;

    for (uint32_t round = 0; round < rounds; round++)
        for (int kind = 0; kind < KINDS; kind++) {
            plugin[kind].ns[round] =
                run_batch(bench, &bench->plugin, (enum kind)kind, &plugin[kind]);
            if (!empty_ring(bench))
                return CAIRN_INTERNAL;
            bare[kind].ns[round] = run_batch(bench, &bench->floor, (enum kind)kind, &bare[kind]);
        }
    if (plugin[TIMED].timed < plugin[TIMED].operations * 9 / 10 ||
        plugin[COUNTED].timed > plugin[COUNTED].operations / 10)
        return CAIRN_INTERNAL; /* it has not done what was to be measured */
    for (int kind = 0; kind < KINDS; kind++) {
        double ns = cairn_bench_median(plugin[kind].ns, rounds);

        add_case(report, (enum kind)kind, ns, cairn_bench_median(bare[kind].ns, rounds));
        operation_ns[kind] = ns * (double)plugin[kind].calls / (double)plugin[kind].operations;
    }
    if (!count_share(bench, &share))
        return CAIRN_INTERNAL;
    mean_ns = operation_ns[COUNTED] + share * (operation_ns[TIMED] - operation_ns[COUNTED]);
    cairn_bench_note(report, "counted, ns per operation", operation_ns[COUNTED]);
    cairn_bench_note(report, "timed, ns per operation", operation_ns[TIMED]);
    cairn_bench_note(report, "share of operations timed", share);
    cairn_bench_note(report, "mean, ns per operation", mean_ns);
    cairn_bench_note(report, "CPU at 1,000 operations a second, %", mean_ns * 1000 / 1e9 * 100);
    return CAIRN_OK;
}

cairn_err
cairn_bench_timing(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    static struct bench bench; /* the plugin keeps the address of its mask */
    cairn_err err;

    report->stage = "timing";
    err = open_plugin(&bench, report);
    if (!err && !report->skipped)
        err = measure(&bench, options->rounds ? options->rounds : ROUNDS_DEFAULT, report);
    if (bench.memory && bench.memory != MAP_FAILED)
        (void)munmap(bench.memory, bench.memory_bytes);
    bench.memory = NULL;
    if (bench.plugin.context)
        (void)bench.plugin.table->finalize(bench.plugin.context);
    return err;
}
