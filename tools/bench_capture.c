/*
 * tools/bench_capture.c - copy and checksum against the best plain copy of the same bytes.
 *
 *   case         kernel: cairn_copy_crc block by block; engine: a whole capture through its thread,
 *                one run; small: the same made of 4 KiB tensors with gaps; look_TYPE: an engine
 *                that looks for values of this type that are not finite, in CPU time beside an
 *                engine that does not
 *   floor        the plain copy with the best median: libc's memcpy in pieces of 64 KiB, 1 MiB or
 *                all at once, streaming stores in pieces of 64 KiB or all at once
 *   ratio        of the two medians
 *   details      GB/s of each kernel, as measured to choose one
 * The source is anonymous memory (with transparent huge pages where the kernel gives them), the
 * destination a pre-faulted arena; both are larger than any cache. Floors and ours alternate.
 */
#include "tools/bench.h"
#include "tools/bench_floor.h"
#include "tools/bench_measure.h"

#include "base/crc.h"
#include "base/limits.h"
#include "snapshot/arena.h"
#include "snapshot/capture.h"
#include "snapshot/copy.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum {
    THREADS_MAX = 2,
    SMALL_BYTES = 4096,
    SMALL_STRIDE = 4096 + 64,
    FINITE = 0x3f,
    BYTES_DEFAULT = 512 << 20 /* per thread */
};

enum method {
    MEMCPY_64K,
    MEMCPY_1M,
    MEMCPY_ALL,
    STREAM_64K,
    STREAM_ALL,
    FLOORS,
    KERNEL = FLOORS,
    ENGINE,
    LOOK_BF16,
    LOOK_F32,
    LOOK_F64,
    LOOK_F8,
    SMALL,
    METHODS
};

static const char *const method_names[METHODS] = {
    "memcpy_64k", "memcpy_1m", "memcpy_all", "stream_64k", "stream_all", "kernel",
    "engine",     "look_bf16", "look_f32",   "look_f64",   "look_f8",    "small"};

static const enum cairn_dtype looked_at[METHODS] = {[LOOK_BF16] = CAIRN_BF16,
                                                    [LOOK_F32] = CAIRN_F32,
                                                    [LOOK_F64] = CAIRN_F64,
                                                    [LOOK_F8] = CAIRN_F8_E4M3};

static bool
looks(enum method method)
{
    return method >= LOOK_BF16 && method <= LOOK_F8;
}

/* What one thread works on. */
struct lane {
    uint8_t *source;
    struct cairn_arena *arena;
    struct cairn_capture *capture;
    struct cairn_capture_run *small;
    uint32_t small_count;
    uint64_t bytes;
    enum method method;
    uint64_t crc;
    pthread_barrier_t *barrier;
};

static void
copy_pieces(const struct lane *lane, uint64_t piece_bytes)
{
    for (uint64_t at = 0; at < lane->bytes; at += piece_bytes)
        memcpy(cairn_arena_base(lane->arena) + at, lane->source + at,
               lane->bytes - at < piece_bytes ? lane->bytes - at : piece_bytes);
}

#ifdef __x86_64__
__attribute__((target("avx512f"))) static void
stream_piece_avx512(uint8_t *dest, const uint8_t *source, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += 256) {
        __m512i a = _mm512_loadu_si512(source + at);
        __m512i b = _mm512_loadu_si512(source + at + 64);
        __m512i c = _mm512_loadu_si512(source + at + 128);
        __m512i d = _mm512_loadu_si512(source + at + 192);

        _mm512_stream_si512((void *)(dest + at), a);
        _mm512_stream_si512((void *)(dest + at + 64), b);
        _mm512_stream_si512((void *)(dest + at + 128), c);
        _mm512_stream_si512((void *)(dest + at + 192), d);
    }
    _mm_sfence();
}

__attribute__((target("avx2"))) static void
stream_piece_avx2(uint8_t *dest, const uint8_t *source, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += 128) {
        __m256i a = _mm256_loadu_si256((const void *)(source + at));
        __m256i b = _mm256_loadu_si256((const void *)(source + at + 32));
        __m256i c = _mm256_loadu_si256((const void *)(source + at + 64));
        __m256i d = _mm256_loadu_si256((const void *)(source + at + 96));

        _mm256_stream_si256((void *)(dest + at), a);
        _mm256_stream_si256((void *)(dest + at + 32), b);
        _mm256_stream_si256((void *)(dest + at + 64), c);
        _mm256_stream_si256((void *)(dest + at + 96), d);
    }
    _mm_sfence();
}

static void
stream_pieces(const struct lane *lane, uint64_t piece_bytes)
{
    void (*stream)(uint8_t *, const uint8_t *, uint64_t) = NULL;

    if (__builtin_cpu_supports("avx512f"))
        stream = stream_piece_avx512;
    else if (__builtin_cpu_supports("avx2"))
        stream = stream_piece_avx2;
    if (!stream) {
        copy_pieces(lane, piece_bytes);
        return;
    }
    for (uint64_t at = 0; at < lane->bytes; at += piece_bytes)
        stream(cairn_arena_base(lane->arena) + at, lane->source + at,
               lane->bytes - at < piece_bytes ? lane->bytes - at : piece_bytes);
}
#else
static void
stream_pieces(const struct lane *lane, uint64_t piece_bytes)
{
    copy_pieces(lane, piece_bytes);
}
#endif

static void
fold_crcs(void *context, uint64_t first_block, uint32_t count, const uint64_t *crcs)
{
    (void)first_block;
    for (uint32_t i = 0; i < count; i++)
        ((struct lane *)context)->crc ^= crcs[i];
}

static void
run_engine(struct lane *lane, const struct cairn_capture_run *runs, uint32_t run_count)
{
    atomic_bool failing = false;
    struct cairn_capture_job job = {.runs = runs,
                                    .run_count = run_count,
                                    .region = cairn_arena_base(lane->arena),
                                    .region_bytes = lane->bytes,
                                    .on_blocks = fold_crcs,
                                    .context = lane,
                                    .failing = run_count == 1 ? &failing : NULL};

    if (cairn_capture_start(lane->capture, &job) ||
        cairn_capture_finish(lane->capture, UINT64_MAX)) {
        (void)fprintf(stderr, "cairn bench: the capture failed\n");
        exit(1);
    }
    if (failing)
        (void)fprintf(stderr, "cairn bench: finite values were taken for others\n");
}

static void
run_once(struct lane *lane)
{
    struct cairn_capture_run whole = {.source = lane->source, .bytes = lane->bytes, .device = -1};

    lane->crc = 0;
    switch (lane->method) {
    case MEMCPY_64K:
        copy_pieces(lane, CAIRN_BLOCK_BYTES);
        break;
    case MEMCPY_1M:
        copy_pieces(lane, 1 << 20);
        break;
    case MEMCPY_ALL:
        copy_pieces(lane, lane->bytes);
        break;
    case STREAM_64K:
        stream_pieces(lane, CAIRN_BLOCK_BYTES);
        break;
    case STREAM_ALL:
        stream_pieces(lane, lane->bytes);
        break;
    case KERNEL:
        for (uint64_t at = 0; at < lane->bytes; at += CAIRN_BLOCK_BYTES)
            lane->crc ^= cairn_copy_crc(0, cairn_arena_base(lane->arena) + at, lane->source + at,
                                        CAIRN_BLOCK_BYTES, NULL);
        break;
    case LOOK_BF16:
    case LOOK_F32:
    case LOOK_F64:
    case LOOK_F8:
        whole.type = cairn_finite_of(looked_at[lane->method]);
        run_engine(lane, &whole, 1);
        break;
    case ENGINE:
        run_engine(lane, &whole, 1);
        break;
    case SMALL:
        run_engine(lane, lane->small, lane->small_count);
        break;
    case METHODS:
        break;
    }
}

static void *
run_lane(void *argument)
{
    struct lane *lane = argument;

    pthread_barrier_wait(lane->barrier);
    run_once(lane);
    pthread_barrier_wait(lane->barrier);
    return NULL;
}

/* Seconds that `threads` lanes take side by side. */
static double
time_method(struct lane *lanes, uint32_t threads, enum method method)
{
    pthread_t ids[THREADS_MAX];
    pthread_barrier_t barrier;
    double begin;

    pthread_barrier_init(&barrier, NULL, threads + 1);
    for (uint32_t t = 0; t < threads; t++) {
        lanes[t].method = method;
        lanes[t].barrier = &barrier;
        if (pthread_create(&ids[t], NULL, run_lane, &lanes[t])) {
            (void)fprintf(stderr, "cairn bench: no thread can be started\n");
            exit(1);
        }
    }
    pthread_barrier_wait(&barrier);
    begin = cairn_bench_now_s();
    pthread_barrier_wait(&barrier);
    begin = cairn_bench_now_s() - begin;
    for (uint32_t t = 0; t < threads; t++)
        pthread_join(ids[t], NULL);
    pthread_barrier_destroy(&barrier);
    return begin;
}

static cairn_err
open_lane(struct lane *lane, uint64_t bytes)
{
    char report[CAIRN_ARENA_REPORT_BYTES] = "";
    cairn_err err;

    lane->bytes = bytes;
    lane->source = cairn_bench_map(bytes);
    if (!lane->source)
        return CAIRN_NOMEM;
    for (uint64_t at = 0; at < bytes; at++)
        lane->source[at] &= FINITE; /* as a value of any type */
    err = cairn_arena_create("bench", bytes, NULL, &lane->arena, report, sizeof report);
    if (err) {
        (void)fprintf(stderr, "cairn bench: %s\n", report);
        return err;
    }
    lane->small_count = (uint32_t)(bytes / SMALL_STRIDE);
    lane->small = calloc(lane->small_count, sizeof lane->small[0]);
    if (!lane->small)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < lane->small_count; i++)
        lane->small[i] =
            (struct cairn_capture_run){.source = lane->source + (uint64_t)i * SMALL_BYTES,
                                       .bytes = SMALL_BYTES,
                                       .offset = (uint64_t)i * SMALL_STRIDE,
                                       .device = -1};
    return cairn_capture_create(NULL, &lane->capture);
}

static void
close_lane(struct lane *lane)
{
    cairn_capture_destroy(lane->capture);
    cairn_arena_destroy(lane->arena);
    free(lane->small);
    cairn_bench_unmap(lane->source, lane->bytes);
}

/* Compares the checksums of the last KERNEL or ENGINE round with plain checksums. */
static bool
lane_is_right(const struct lane *lane)
{
    uint64_t crc = 0;

    for (uint64_t at = 0; at < lane->bytes; at += CAIRN_BLOCK_BYTES)
        crc ^= cairn_crc64(0, lane->source + at, CAIRN_BLOCK_BYTES);
    return crc == lane->crc &&
           memcmp(cairn_arena_base(lane->arena), lane->source, lane->bytes) == 0;
}

/* What the floors are, for people. */
static const char *const floor_commands[FLOORS] = {
    "memcpy in pieces of 64 KiB", "memcpy in pieces of 1 MiB", "memcpy of all at once",
    "streaming stores in pieces of 64 KiB", "streaming stores of all at once"};

static void
add_case(struct cairn_bench_report *report, enum method method, uint32_t threads, uint64_t bytes,
         double seconds, double floor_seconds, const char *command, double cpu_s)
{
    struct cairn_bench_case value = {.value = (double)bytes / seconds / 1e9,
                                     .floor = (double)bytes / floor_seconds / 1e9,
                                     .unit = "GB/s",
                                     .command = command,
                                     .bound = method == SMALL ? 0 : 0.80,
                                     .bytes = bytes,
                                     .threads = threads,
                                     .cpu_seconds_per_gib = cpu_s / ((double)bytes / 1073741824.0)};

    (void)snprintf(value.name, sizeof value.name, "%s %" PRIu32 " thread%s", method_names[method],
                   threads, threads == 1 ? "" : "s");
    cairn_bench_add(report, &value);
}

/* The cost of an engine with a look beside one without, in medians. */
static void
add_look(struct cairn_bench_report *report, enum method method, uint32_t threads, uint64_t bytes,
         double cpu_s, double without_cpu_s)
{
    double gib = (double)bytes / 1073741824.0;
    struct cairn_bench_case value = {.value = cpu_s / gib,
                                     .floor = without_cpu_s / gib,
                                     .unit = "CPU s/GiB",
                                     .command = "the engine without a look",
                                     .bound = 1.03,
                                     .at_most = true,
                                     .bytes = bytes,
                                     .threads = threads,
                                     .cpu_seconds_per_gib = cpu_s / gib};

    (void)snprintf(value.name, sizeof value.name, "%s %" PRIu32 " thread%s", method_names[method],
                   threads, threads == 1 ? "" : "s");
    cairn_bench_add(report, &value);
}

static cairn_err
measure(struct lane *lanes, uint32_t threads, uint32_t rounds, struct cairn_bench_report *report)
{
    static double seconds[METHODS][CAIRN_BENCH_ROUNDS_MAX], cpu[METHODS][CAIRN_BENCH_ROUNDS_MAX];
    double median[METHODS], cpu_median[METHODS];
    uint64_t bytes = lanes[0].bytes * threads;
    int floor = 0;

    for (uint32_t round = 0; round < rounds; round++)
        for (int m = 0; m < METHODS; m++) {
            double begin = cairn_bench_cpu_s();

            seconds[m][round] = time_method(lanes, threads, (enum method)m);
            cpu[m][round] = cairn_bench_cpu_s() - begin;
            for (uint32_t t = 0; round == 0 && m >= KERNEL && m < SMALL && t < threads; t++)
                if (!lane_is_right(&lanes[t]))
                    return CAIRN_CORRUPT;
        }
    for (int m = 0; m < METHODS; m++) {
        median[m] = cairn_bench_median(seconds[m], rounds);
        cpu_median[m] = cairn_bench_median(cpu[m], rounds);
        if (m < FLOORS && median[m] < median[floor])
            floor = m;
    }
    for (int m = FLOORS; m < METHODS; m++)
        if (looks((enum method)m))
            add_look(report, (enum method)m, threads, bytes, cpu_median[m], cpu_median[ENGINE]);
        else
            add_case(report, (enum method)m, threads, bytes, median[m], median[floor],
                     floor_commands[floor], cpu_median[m]);
    return CAIRN_OK;
}

cairn_err
cairn_bench_capture(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    uint64_t bytes =
        (options->bytes ? options->bytes : BYTES_DEFAULT) / CAIRN_BLOCK_BYTES * CAIRN_BLOCK_BYTES;
    uint32_t rounds = options->rounds ? options->rounds : 15;
    double bytes_per_s[CAIRN_COPY_KERNELS_MAX];
    cairn_err err;

    report->stage = "capture";
    err = cairn_copy_choose(bytes_per_s);
    for (size_t i = 0; !err && cairn_copy_kernels()[i].name; i++)
        cairn_bench_note(report, cairn_copy_kernels()[i].name, bytes_per_s[i] / 1e9);
    for (uint32_t threads = 1; !err && threads <= THREADS_MAX; threads++) {
        struct lane lanes[THREADS_MAX] = {{0}};

        for (uint32_t t = 0; !err && t < threads; t++)
            err = open_lane(&lanes[t], bytes);
        if (!err)
            err = measure(lanes, threads, rounds, report);
        for (uint32_t t = 0; t < threads; t++)
            close_lane(&lanes[t]);
    }
    return err;
}

cairn_err
cairn_bench_capture_cost(uint64_t bytes, uint32_t rounds, double *cpu_s_per_gib)
{
    double cpu[CAIRN_BENCH_ROUNDS_MAX];
    struct lane lane = {0};
    cairn_err err = open_lane(&lane, bytes);

    for (uint32_t round = 0; !err && round <= rounds; round++) {
        double begin = cairn_bench_cpu_s();

        (void)time_method(&lane, 1, ENGINE);
        if (round > 0) /* the first one warms up */
            cpu[round - 1] = cairn_bench_cpu_s() - begin;
        else if (!lane_is_right(&lane))
            err = CAIRN_CORRUPT;
    }
    if (!err)
        *cpu_s_per_gib = cairn_bench_median(cpu, rounds) / ((double)bytes / 1073741824.0);
    close_lane(&lane);
    return err;
}
