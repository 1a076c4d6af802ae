/*
 * tools/bench_device.c - capture from a CUDA device, against the device's own peak, and what it
 * costs a step.
 *
 *   copy arena, ring     a capture through its thread until all is read, which is what a trainer
 *                        waits for, GB/s: into the arena pinned as a whole, or through the small
 *                        ring that is taken where pinning is refused
 *   copy small           the same of 64 KiB tensors, into the pinned arena
 *   floor                one cuMemcpyDtoHAsync of as many bytes into memory that the driver
 *                        allocated pinned
 *   step arena, ring     ms of a step that a capture runs beside; floor: the same step without a
 *                        capture
 *   step driver          the same beside the floor's copy, which is what a bus and a memory that
 *                        two share cost; floor: as above
 *   step idle            ms of a step without a capture while the arena is pinned; floor: before it
 *                        was pinned
 *
 * A step is memory being set on the device, again and again, for twice as long as the floor's copy
 * takes, so that the copy fits. It ends when the copy and the device's work have ended. Rounds of
 * all kinds alternate. Without a device the report says why there is none.
 */
#include "tools/bench.h"
#include "tools/bench_measure.h"

#include "base/limits.h"
#include "snapshot/arena.h"
#include "snapshot/capture.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BYTES_DEFAULT = 1 << 30,
    SCRATCH_BYTES = 64 << 20,
    TENSOR_BYTES = 64 << 10, /* of the small ones */
    ROUNDS_DEFAULT = 9,
    CALIBRATE_SETS = 64,
    SETS_MAX = 100000
};

/* X(field, symbol, arguments) */
#define DRIVER_LIST(X)                                                                             \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                                       \
    X(retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                            \
    X(release, "cuDevicePrimaryCtxRelease_v2", (int device))                                       \
    X(push, "cuCtxPushCurrent_v2", (void *context))                                                \
    X(pop, "cuCtxPopCurrent_v2", (void **context))                                                 \
    X(alloc, "cuMemAlloc_v2", (uint64_t * region, size_t bytes))                                   \
    X(free, "cuMemFree_v2", (uint64_t region))                                                     \
    X(host_alloc, "cuMemHostAlloc", (void **host, size_t bytes, unsigned flags))                   \
    X(host_free, "cuMemFreeHost", (void *host))                                                    \
    X(set, "cuMemsetD8Async", (uint64_t region, uint8_t value, size_t bytes, void *stream))        \
    X(copy_out, "cuMemcpyDtoHAsync_v2", (void *host, uint64_t region, size_t bytes, void *stream)) \
    X(stream_create, "cuStreamCreateWithPriority", (void **stream, unsigned flags, int priority))  \
    X(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                        \
    X(finish, "cuStreamSynchronize", (void *stream))

/* What runs beside a step: a capture by one of the paths, the floor's copy, or nothing. */
enum path { ARENA, RING, SMALL, PATHS, DRIVER = PATHS, NOTHING, BESIDE };

enum { NON_BLOCKING = 1 };

static const char *const path_names[BESIDE] = {"arena", "ring", "small", "driver"};

struct bench {
    void *library;
#define FIELD(field, symbol, arguments) int(*field) arguments;
    DRIVER_LIST(FIELD)
#undef FIELD
    int device;
    bool retained, pushed;
    uint64_t bytes;
    uint64_t tensor, scratch; /* on the device; 0: none */
    void *pinned, *stream;    /* of the floor's copy */
    struct cairn_arena *arenas[2];
    struct cairn_capture *captures[2]; /* ARENA, RING */
    struct cairn_capture_run whole;
    struct cairn_capture_run *small;
    uint32_t small_count;
    uint32_t sets; /* of a step */
};

static char reason[256]; /* why there is nothing to measure; lives as long as the report */

static void
say(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    if (level <= CAIRN_LOG_WARN)
        (void)fprintf(stderr, "cairn bench: %s\n", line);
}

/* Finds the driver and its first device; false, with the reason, without one. */
static bool
find_device(struct bench *bench)
{
    int code;

    bench->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NODELETE);
    if (!bench->library) {
        (void)snprintf(reason, sizeof reason, "no CUDA driver (%s)", dlerror());
        return false;
    }
#define LOAD(field, symbol, arguments)                                                             \
    *(void **)(void *)&bench->field = dlsym(bench->library, symbol);                               \
    if (!bench->field) {                                                                           \
        (void)snprintf(reason, sizeof reason, "the CUDA driver is too old: it lacks %s", symbol);  \
        return false;                                                                              \
    }
    DRIVER_LIST(LOAD)
#undef LOAD
    code = bench->init(0);
    if (!code)
        code = bench->device_get(&bench->device, 0);
    if (code)
        (void)snprintf(reason, sizeof reason, "no CUDA device (the driver says %d)", code);
    return code == 0;
}

static cairn_err
failed(const char *call, int code)
{
    (void)fprintf(stderr, "cairn bench: %s failed code=%d\n", call, code);
    return code == 2 ? CAIRN_NOMEM : CAIRN_DEVICE;
}

static cairn_err
open_device(struct bench *bench)
{
    void *context;
    int code = bench->retain(&context, bench->device);

    bench->retained = code == 0;
    if (!code)
        code = bench->push(context);
    if (code)
        return failed("cuDevicePrimaryCtxRetain", code);
    bench->pushed = true;
    code = bench->alloc(&bench->tensor, bench->bytes);
    if (!code)
        code = bench->alloc(&bench->scratch, SCRATCH_BYTES);
    if (!code)
        code = bench->host_alloc(&bench->pinned, bench->bytes, 1);
    if (!code)
        code = bench->stream_create(&bench->stream, NON_BLOCKING, 0);
    if (!code)
        code = bench->set(bench->tensor, 0x3c, bench->bytes, NULL);
    if (!code)
        code = bench->finish(NULL);
    return code ? failed("cuMemAlloc", code) : CAIRN_OK;
}

static cairn_err
open_memory(struct bench *bench)
{
    char report[CAIRN_ARENA_REPORT_BYTES] = "";

    for (int i = 0; i < 2; i++) {
        struct cairn_capture_options options = {.log = i == ARENA ? say : NULL,
                                                .never_pin = i == RING};
        cairn_err err = cairn_arena_create("bench", bench->bytes, NULL, &bench->arenas[i], report,
                                           sizeof report);

        if (err) {
            (void)fprintf(stderr, "cairn bench: %s\n", report);
            return err;
        }
        err = cairn_capture_create(&options, &bench->captures[i]);
        if (err)
            return err;
    }
    bench->whole = (struct cairn_capture_run){.source = (const void *)(uintptr_t)bench->tensor,
                                              .bytes = bench->bytes};
    bench->small_count = (uint32_t)(bench->bytes / TENSOR_BYTES);
    bench->small = calloc(bench->small_count, sizeof bench->small[0]);
    if (!bench->small)
        return CAIRN_NOMEM;
    /* in another order than they lie in: no run joins two */
    for (uint32_t i = 0; i < bench->small_count; i++)
        bench->small[i] = (struct cairn_capture_run){
            .source =
                (const void *)(uintptr_t)(bench->tensor +
                                          (uint64_t)(bench->small_count - 1 - i) * TENSOR_BYTES),
            .bytes = TENSOR_BYTES,
            .offset = (uint64_t)i * TENSOR_BYTES};
    return CAIRN_OK;
}

static void
close_all(struct bench *bench)
{
    void *popped;

    for (int i = 0; i < 2; i++) {
        cairn_capture_destroy(bench->captures[i]);
        cairn_arena_destroy(bench->arenas[i]);
    }
    free(bench->small);
    if (bench->stream)
        (void)bench->stream_destroy(bench->stream);
    if (bench->pinned)
        (void)bench->host_free(bench->pinned);
    if (bench->scratch)
        (void)bench->free(bench->scratch);
    if (bench->tensor)
        (void)bench->free(bench->tensor);
    if (bench->pushed)
        (void)bench->pop(&popped);
    if (bench->retained)
        (void)bench->release(bench->device);
}

/* ---- what is measured ---- */

static struct cairn_capture *
capture_of(const struct bench *bench, enum path path)
{
    return bench->captures[path == RING ? RING : ARENA];
}

static cairn_err
start_capture(const struct bench *bench, enum path path)
{
    struct cairn_capture_job job = {
        .runs = path == SMALL ? bench->small : &bench->whole,
        .run_count = path == SMALL ? bench->small_count : 1,
        .region = cairn_arena_base(bench->arenas[path == RING ? RING : ARENA]),
        .region_bytes = bench->bytes};
    cairn_err err = cairn_capture_order(capture_of(bench, path), 0, NULL);

    return err ? err : cairn_capture_start(capture_of(bench, path), &job);
}

static cairn_err
time_capture(const struct bench *bench, enum path path, double *seconds, double *whole_s)
{
    double begin = cairn_bench_now_s();
    cairn_err err = start_capture(bench, path);

    if (!err)
        err = cairn_capture_wait(capture_of(bench, path), UINT64_MAX, UINT64_MAX);
    *seconds = cairn_bench_now_s() - begin;
    if (!err) /* its checksums */
        err = cairn_capture_finish(capture_of(bench, path), UINT64_MAX);
    *whole_s = cairn_bench_now_s() - begin;
    return err;
}

static cairn_err
time_floor(const struct bench *bench, double *seconds)
{
    double begin = cairn_bench_now_s();
    int code = bench->copy_out(bench->pinned, bench->tensor, bench->bytes, NULL);

    if (!code)
        code = bench->finish(NULL);
    *seconds = cairn_bench_now_s() - begin;
    return code ? failed("cuMemcpyDtoHAsync", code) : CAIRN_OK;
}

/* A step of the trainer: a snapshot begins, forward and backward, the fence, the update. */
static cairn_err
time_step(const struct bench *bench, enum path path, double *seconds)
{
    double begin = cairn_bench_now_s();
    cairn_err err = path < PATHS ? start_capture(bench, path) : CAIRN_OK;
    int code = 0;

    if (path == DRIVER)
        code = bench->copy_out(bench->pinned, bench->tensor, bench->bytes, bench->stream);

    for (uint32_t i = 0; i < bench->sets && !code && !err; i++)
        code = bench->set(bench->scratch, (uint8_t)i, SCRATCH_BYTES, NULL);
    if (!err && path < PATHS)
        err = cairn_capture_wait(capture_of(bench, path), UINT64_MAX, UINT64_MAX);
    if (!code && path == DRIVER)
        code = bench->finish(bench->stream);
    if (!code)
        code = bench->finish(NULL);
    *seconds = cairn_bench_now_s() - begin;
    if (!err && path < PATHS) /* checksums go on behind the update */
        err = cairn_capture_finish(capture_of(bench, path), UINT64_MAX);
    return err ? err : code ? failed("cuMemsetD8Async", code) : CAIRN_OK;
}

/* So many sets that a step takes twice as long as the floor's copy. */
static cairn_err
calibrate(struct bench *bench)
{
    double copy_s = 0, sets_s = 0, sets;
    cairn_err err = time_floor(bench, &copy_s); /* the first one warms up */

    if (!err)
        err = time_floor(bench, &copy_s);
    bench->sets = CALIBRATE_SETS;
    for (int i = 0; i < 2 && !err; i++)
        err = time_step(bench, NOTHING, &sets_s);
    sets = 2 * copy_s / (sets_s / CALIBRATE_SETS);
    bench->sets = sets < 1 ? 1 : sets > SETS_MAX ? SETS_MAX : (uint32_t)sets;
    return err;
}

static cairn_err
check_bytes(const struct bench *bench, enum path path)
{
    const uint8_t *base = cairn_arena_base(bench->arenas[path == RING ? RING : ARENA]);

    for (uint64_t i = 0; i < bench->bytes; i += 61)
        if (base[i] != 0x3c)
            return CAIRN_CORRUPT;
    return CAIRN_OK;
}

/* ---- the report ---- */

static void
add_copy(struct cairn_bench_report *report, const struct bench *bench, enum path path,
         double seconds, double floor_s)
{
    struct cairn_bench_case value = {.value = (double)bench->bytes / seconds / 1e9,
                                     .floor = (double)bench->bytes / floor_s / 1e9,
                                     .unit = "GB/s",
                                     .command = "one copy by the driver into memory that it pinned",
                                     .bound = path == ARENA ? 0.90 : 0,
                                     .bytes = bench->bytes,
                                     .threads = 1};

    (void)snprintf(value.name, sizeof value.name, "copy %s", path_names[path]);
    cairn_bench_add(report, &value);
}

static void
add_step(struct cairn_bench_report *report, const struct bench *bench, const char *name,
         double seconds, double floor_s, double bound)
{
    struct cairn_bench_case value = {.value = seconds * 1e3,
                                     .floor = floor_s * 1e3,
                                     .unit = "ms",
                                     .command = "the same step without a capture",
                                     .bound = bound,
                                     .at_most = true,
                                     .bytes = bench->bytes,
                                     .threads = 1};

    (void)snprintf(value.name, sizeof value.name, "step %s", name);
    cairn_bench_add(report, &value);
}

static cairn_err
measure(struct bench *bench, uint32_t rounds, struct cairn_bench_report *report)
{
    static double copies[PATHS][CAIRN_BENCH_ROUNDS_MAX], floors[CAIRN_BENCH_ROUNDS_MAX];
    static double steps[BESIDE][CAIRN_BENCH_ROUNDS_MAX];
    static double before[CAIRN_BENCH_ROUNDS_MAX], whole[CAIRN_BENCH_ROUNDS_MAX];
    double floor_s, alone_s, pin_s, unused_s;
    cairn_err err = calibrate(bench);

    for (uint32_t round = 0; round < rounds && !err; round++)
        err = time_step(bench, NOTHING, &before[round]);
    pin_s = cairn_bench_now_s();
    for (int i = 0; i < 2 && !err; i++) {
        err = cairn_capture_prepare(bench->captures[i], 0, cairn_arena_base(bench->arenas[i]),
                                    bench->bytes);
        if (i == ARENA)
            pin_s = cairn_bench_now_s() - pin_s;
    }
    for (uint32_t round = 0; round < rounds && !err; round++) {
        err = time_floor(bench, &floors[round]);
        for (int path = 0; path < PATHS && !err; path++)
            err = time_capture(bench, (enum path)path, &copies[path][round],
                               path == ARENA ? &whole[round] : &unused_s);
        for (int path = 0; path < PATHS && !err && round == 0; path++)
            err = check_bytes(bench, (enum path)path);
        for (int path = 0; path < BESIDE && !err; path++)
            err = time_step(bench, (enum path)path, &steps[path][round]);
    }
    if (err)
        return err;
    floor_s = cairn_bench_median(floors, rounds);
    alone_s = cairn_bench_median(steps[NOTHING], rounds);
    for (int path = 0; path < PATHS; path++)
        add_copy(report, bench, (enum path)path, cairn_bench_median(copies[path], rounds), floor_s);
    for (int path = 0; path <= DRIVER; path++)
        add_step(report, bench, path_names[path], cairn_bench_median(steps[path], rounds), alone_s,
                 path == ARENA ? 1.01 : 0);
    add_step(report, bench, "idle", alone_s, cairn_bench_median(before, rounds), 1.01);
    cairn_bench_note(report, "arena with checksums, GB/s",
                     (double)bench->bytes / cairn_bench_median(whole, rounds) / 1e9);
    cairn_bench_note(report, "pinning the arena, s per GiB",
                     pin_s / ((double)bench->bytes / 1073741824.0));
    return CAIRN_OK;
}

cairn_err
cairn_bench_device(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    struct bench bench = {.bytes = (options->bytes ? options->bytes : BYTES_DEFAULT) /
                                   CAIRN_BLOCK_BYTES * CAIRN_BLOCK_BYTES};
    cairn_err err;

    report->stage = "device";
    if (!find_device(&bench)) {
        report->skipped = reason;
        return CAIRN_OK;
    }
    err = open_device(&bench);
    if (!err)
        err = open_memory(&bench);
    if (!err)
        err = measure(&bench, options->rounds ? options->rounds : ROUNDS_DEFAULT, report);
    close_all(&bench);
    return err;
}
