/*
 * tests/unit/snapshot/test_capture.c - what a capture promises: the bytes, their checksums, the
 * watermark, waiting, cancelling; from host memory and from (fake) devices, and both mixed.
 */
#include "snapshot/capture.h"

#include "base/crc.h"
#include "tests/support/cmocka.h"
#include "tests/support/kept_lines.h"
#include "tests/support/fakecuda_load.h"
#include "tests/support/random.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* headers older than Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

enum {
    BLOCK = CAIRN_BLOCK_BYTES,
    BLOCKS_MAX = 320,
    REGION_BYTES_MAX = BLOCKS_MAX * BLOCK,
    RUNS_MAX = 20000,
    DEVICE_COUNT = 2
};

static uint8_t *region;   /* where captures go */
static uint8_t *expected; /* what must be there */
static uint8_t *host;     /* sources on the host */
static uint64_t devices[DEVICE_COUNT];
static uint8_t pattern[REGION_BYTES_MAX + DEVICE_COUNT]; /* another start for each source */
static struct cairn_capture *capture;
static struct cairn_capture_run runs[RUNS_MAX];
static uint32_t run_count;
static atomic_bool *job_failing; /* of the next capture */

/* What the callbacks saw; written by the capture thread, read when the capture has ended. */
static struct {
    uint64_t crcs[BLOCKS_MAX];
    uint64_t next_block;
    bool wrong_order, too_many, region_wrong;
    _Atomic unsigned done;
    cairn_err result;
    uint64_t pause_us;        /* per on_blocks */
    _Atomic uint64_t hold_at; /* on_blocks of this block or a later one waits; 0: none does */
    bool check_region;        /* the reported blocks must lie complete in the region */
} seen;

static void
on_blocks(void *context, uint64_t first_block, uint32_t count, const uint64_t *crcs)
{
    sigset_t blocked;

    assert_ptr_equal(context, &seen);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &blocked), 0);
    seen.wrong_order |= first_block != seen.next_block || !sigismember(&blocked, SIGTERM);
    seen.too_many |= count == 0 || count > CAIRN_MESSAGE_BLOCKS_MAX;
    for (uint32_t i = 0; i < count; i++)
        seen.crcs[first_block + i] = crcs[i];
    if (seen.check_region)
        seen.region_wrong |= memcmp(region + first_block * BLOCK, expected + first_block * BLOCK,
                                    (size_t)count * BLOCK) != 0;
    seen.next_block = first_block + count;
    if (seen.pause_us)
        usleep((useconds_t)seen.pause_us);
    for (uint64_t at = atomic_load(&seen.hold_at); at && first_block >= at;
         at = atomic_load(&seen.hold_at))
        usleep(100);
}

static void
on_done(void *context, cairn_err err)
{
    assert_ptr_equal(context, &seen);
    seen.result = err;
    atomic_fetch_add(&seen.done, 1);
}

static int
load_fake(void **state)
{
    void *library = load_fakecuda();

    if (!library)
        return 1;
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)(i * 31 + (i >> 11) + 1);
    return 0;
}

static uint8_t *
map(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(base != MAP_FAILED);
    return base;
}

static uint32_t helpers; /* of all jobs */

static int
setup_threads(int checksum_threads)
{
    struct cairn_capture_options options = {
        .driver_path = fake_path, .log = keep_line, .checksum_threads = checksum_threads};

    fake_reset();
    lines[0] = '\0';
    run_count = 0;
    memset(&seen, 0, sizeof seen);
    region = map(REGION_BYTES_MAX);
    expected = map(REGION_BYTES_MAX);
    host = map(REGION_BYTES_MAX);
    memcpy(host, pattern, REGION_BYTES_MAX);
    for (int d = 0; d < DEVICE_COUNT; d++) {
        if (fake_alloc(d, &devices[d], REGION_BYTES_MAX))
            return 1;
        memcpy(fake_view(devices[d]), pattern + d + 1, REGION_BYTES_MAX);
    }
    return cairn_capture_create(&options, &capture);
}

static int
setup(void **state)
{
    return setup_threads(2);
}

static int
setup_without_threads(void **state)
{
    return setup_threads(-1);
}

static int
setup_with_helpers(void **state)
{
    helpers = 2;
    return setup_threads(-1);
}

static int
teardown(void **state)
{
    struct fakecuda_state live;

    helpers = 0;
    cairn_capture_destroy(capture);
    for (int d = 0; d < DEVICE_COUNT; d++)
        fake_free(devices[d]);
    munmap(region, REGION_BYTES_MAX);
    munmap(expected, REGION_BYTES_MAX);
    munmap(host, REGION_BYTES_MAX);
    fake_state(&live);
    return live.contexts || live.streams || live.events || live.registered || live.host_allocated ||
           live.device_allocated || live.misuses || fake_depth();
}

static void
prepare_devices(void)
{
    for (int d = 0; d < DEVICE_COUNT; d++)
        assert_int_equal(cairn_capture_prepare(capture, d, region, REGION_BYTES_MAX), CAIRN_OK);
}

/* Adds a run and its expected result. from: offset in the source of that device. */
static void
add_run(int32_t device, uint64_t from, uint64_t bytes, uint64_t offset)
{
    const uint8_t *bytes_of = device < 0 ? host + from : fake_view(devices[device]) + from;
    uint64_t base = device < 0 ? (uint64_t)(uintptr_t)host : devices[device];

    runs[run_count++] = (struct cairn_capture_run){.source = (const void *)(uintptr_t)(base + from),
                                                   .bytes = bytes,
                                                   .offset = offset,
                                                   .device = device};
    memcpy(expected + offset, bytes_of, bytes);
}

static struct cairn_capture_job
job_of(uint64_t blocks)
{
    return (struct cairn_capture_job){.runs = runs,
                                      .run_count = run_count,
                                      .region = region,
                                      .region_bytes = blocks * BLOCK,
                                      .helpers = helpers,
                                      .on_blocks = on_blocks,
                                      .on_done = on_done,
                                      .context = &seen,
                                      .failing = job_failing};
}

static void
start(uint64_t blocks)
{
    struct cairn_capture_job job = job_of(blocks);

    seen.next_block = 0;
    atomic_store(&seen.done, 0);
    assert_int_equal(cairn_capture_start(capture, &job), CAIRN_OK);
}

/* Captures the runs into a dirty region and checks every byte, checksum and report. */
static void
capture_and_check(uint64_t blocks)
{
    uint64_t dirty_bytes = blocks < BLOCKS_MAX ? (blocks + 1) * BLOCK : blocks * BLOCK;

    memset(region, 0xdb, dirty_bytes);
    seen.check_region = true;
    start(blocks);
    assert_int_equal(cairn_capture_wait(capture, UINT64_MAX, UINT64_MAX), CAIRN_OK);
    assert_int_equal(cairn_capture_watermark(capture), blocks * BLOCK);
    assert_int_equal(cairn_capture_finish(capture, UINT64_MAX), CAIRN_OK);
    assert_int_equal(atomic_load(&seen.done), 1);
    assert_int_equal(seen.result, CAIRN_OK);
    assert_int_equal(seen.next_block, blocks);
    assert_false(seen.wrong_order);
    assert_false(seen.too_many);
    assert_false(seen.region_wrong);
    assert_memory_equal(region, expected, blocks * BLOCK);
    for (uint64_t i = blocks * BLOCK; i < dirty_bytes; i++)
        assert_int_equal(region[i], 0xdb);
    for (uint64_t i = 0; i < blocks; i++)
        assert_int_equal(seen.crcs[i], cairn_crc64(0, expected + i * BLOCK, BLOCK));
}

/* Makes one element of a run NaN, in its source and in what is expected. */
static void
spoil(uint32_t run, uint64_t element, const void *bytes, size_t bytes_len)
{
    uint64_t at = element * bytes_len;
    int32_t device = runs[run].device;
    uint8_t *source =
        device < 0 ? (uint8_t *)(uintptr_t)runs[run].source
                   : fake_view(devices[device]) + ((uintptr_t)runs[run].source - devices[device]);

    memcpy(source + at, bytes, bytes_len);
    memcpy(expected + runs[run].offset + at, bytes, bytes_len);
}

/* Which runs hold values that are not finite is reported, on host and devices, for large runs and
 * of small ones that share a block, and of no others. */
static void
test_failing_runs(void **state)
{
    static const uint32_t nan = 0x7fc00000, inf = 0xff800000;
    static const struct {
        int32_t device;
        uint64_t bytes;
    } shapes[] = {{-1, 3 * BLOCK}, {0, 300}, {-1, 300}, {1, 5 * BLOCK},
                  {0, 90 * BLOCK}, {-1, 40}, {1, 4096}};
    enum { SHAPES = sizeof shapes / sizeof shapes[0] };
    atomic_bool failing[SHAPES];
    uint64_t at, blocks;

    prepare_devices();
    for (uint32_t bad = 0; bad <= SHAPES; bad++) {
        run_count = 0;
        memset(expected, 0, REGION_BYTES_MAX);
        memset(host, 0, REGION_BYTES_MAX);
        for (int d = 0; d < DEVICE_COUNT; d++)
            memset(fake_view(devices[d]), 0, REGION_BYTES_MAX);
        at = 0;
        for (uint32_t i = 0; i < SHAPES; i++) {
            add_run(shapes[i].device, at, shapes[i].bytes, at);
            runs[i].type = i == 2 ? NULL : cairn_finite_of(CAIRN_F32);
            at = (at + shapes[i].bytes + 63) / 64 * 64;
            atomic_init(&failing[i], false);
        }
        blocks = at / BLOCK + 1;
        if (bad < SHAPES) {
            spoil(bad, 0, &nan, sizeof nan);
            spoil(bad, shapes[bad].bytes / sizeof inf - 1, &inf, sizeof inf);
        }
        job_failing = failing;
        capture_and_check(blocks);
        job_failing = NULL;
        for (uint32_t i = 0; i < SHAPES; i++)
            assert_int_equal(atomic_load(&failing[i]), i == bad && i != 2);
    }
}

static void
test_one_run(void **state)
{
    for (uint64_t blocks = 1; blocks < 40; blocks += 3) {
        run_count = 0;
        memset(expected, 0, blocks * BLOCK);
        add_run(-1, blocks * 3, blocks * BLOCK, 0);
        capture_and_check(blocks);
    }
}

static void
test_no_runs(void **state)
{
    capture_and_check(20);
}

/* Random runs and gaps; device_kinds sources: the host, then the devices. */
static void
add_random_runs(uint64_t *seed, uint64_t blocks, uint64_t bytes_max, int device_kinds)
{
    uint64_t at = 0, end = blocks * BLOCK;

    run_count = 0;
    memset(expected, 0, end);
    while (run_count < RUNS_MAX) {
        uint64_t bytes = xorshift(seed) % bytes_max;
        uint64_t from = xorshift(seed) % (REGION_BYTES_MAX - bytes_max);

        if (xorshift(seed) % 3 == 0)
            at += xorshift(seed) % (bytes_max / 4 + 1) / 64 * 64;
        if (at + bytes > end)
            break;
        add_run((int32_t)(xorshift(seed) % (uint64_t)device_kinds) - 1, from, bytes, at);
        at = (at + bytes + 63) / 64 * 64;
    }
}

static void
test_random_runs(void **state)
{
    static const uint64_t sizes[] = {300, 5000, 70000, 900000};
    uint64_t seed = 7;

    for (int round = 0; round < 40; round++) {
        uint64_t blocks = 1 + xorshift(&seed) % 64;

        add_random_runs(&seed, blocks, sizes[round % 4], 1);
        capture_and_check(blocks);
    }
    assert_string_equal(lines, "");
}

static void
test_random_device_runs(void **state)
{
    static const uint64_t sizes[] = {300, 5000, 70000, 3000000};
    struct fakecuda_state live;
    uint64_t seed = 11;

    prepare_devices();
    for (int round = 0; round < 32; round++) {
        uint64_t blocks = 1 + xorshift(&seed) % (round % 4 == 3 ? BLOCKS_MAX : 48);

        add_random_runs(&seed, blocks, sizes[round % 4], 1 + DEVICE_COUNT);
        if (round % 8 == 0)
            fake_speed(0, 200);
        else
            fake_speed(0, 0);
        capture_and_check(blocks);
    }
    fake_state(&live);
    assert_int_equal(live.pageable_copies, 0);
    assert_string_equal(lines, "");
}

/* Tensors of two allocations that lie side by side on the device and in the region: the driver
 * refuses a copy that goes over the end of an allocation. */
static void
test_neighbours_on_a_device(void **state)
{
    enum { EACH = 3 };
    uint64_t tensors[2];

    prepare_devices();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fake_alloc(0, &tensors[i], EACH * BLOCK), 0);
        memset(fake_view(tensors[i]), i + 1, EACH * BLOCK);
        memset(expected + (size_t)i * EACH * BLOCK, i + 1, EACH * BLOCK);
        runs[run_count++] =
            (struct cairn_capture_run){.source = (const void *)(uintptr_t)tensors[i],
                                       .bytes = EACH * BLOCK,
                                       .offset = (uint64_t)i * EACH * BLOCK};
    }
    assert_int_equal(tensors[1], tensors[0] + EACH * BLOCK);
    capture_and_check(2 * EACH);
    for (int i = 0; i < 2; i++)
        assert_int_equal(fake_free(tensors[i]), 0);
}

/* Large device tensors travel in few large copies. */
static void
test_device_copies_are_large(void **state)
{
    struct fakecuda_state live;

    prepare_devices();
    add_run(0, 0, REGION_BYTES_MAX, 0);
    capture_and_check(BLOCKS_MAX);
    fake_state(&live);
    assert_int_equal(live.async_copies, BLOCKS_MAX / 64); /* 4 MiB each */
    assert_int_equal(live.copied_bytes, REGION_BYTES_MAX);
}

static void
test_device_without_pinning(void **state)
{
    fake_fail("cuMemHostRegister_v2", 1, 2);
    assert_int_equal(cairn_capture_prepare(capture, 0, region, REGION_BYTES_MAX), CAIRN_OK);
    add_run(0, 5, 100 * BLOCK + 77, 64);
    capture_and_check(128);
    assert_non_null(strstr(lines, "cannot be pinned"));
}

/* Nothing of CUDA is touched where no tensor is on a device. */
static void
test_host_makes_no_context(void **state)
{
    struct fakecuda_state live;

    assert_int_equal(cairn_capture_prepare(capture, -1, region, REGION_BYTES_MAX), CAIRN_OK);
    add_run(-1, 0, 10 * BLOCK, 0);
    capture_and_check(10);
    cairn_capture_forget(capture, region);
    fake_state(&live);
    assert_int_equal(live.context_creations, 0);
}

static void
test_wrong_jobs(void **state)
{
    struct cairn_capture_job job;

    add_run(-1, 0, 1000, 64);
    add_run(-1, 0, 1000, 1088);
#define REFUSED(change)                                                                            \
    do {                                                                                           \
        struct cairn_capture_run first = runs[0], second = runs[1];                                \
        job = job_of(2);                                                                           \
        change;                                                                                    \
        assert_int_equal(cairn_capture_start(capture, &job), CAIRN_INVAL);                         \
        runs[0] = first;                                                                           \
        runs[1] = second;                                                                          \
    } while (0)
    REFUSED(job.region = NULL);
    REFUSED(job.region += 8);
    REFUSED(job.region_bytes = 0);
    REFUSED(job.region_bytes = BLOCK + 1);
    REFUSED(job.runs = NULL);
    REFUSED(runs[1].offset = 1063);
    REFUSED(runs[1].offset = 2 * BLOCK - 999);
    REFUSED(runs[1].offset = UINT64_MAX);
    REFUSED(runs[1].bytes = UINT64_MAX);
    REFUSED(runs[0].source = NULL);
    REFUSED(runs[1].device = 0); /* not prepared */
    assert_int_equal(atomic_load(&seen.done), 0);
    assert_false(cairn_capture_running(capture));
    capture_and_check(2);
}

static void
test_before_the_first(void **state)
{
    assert_int_equal(cairn_capture_wait(capture, 1, 0), CAIRN_AGAIN);
    assert_int_equal(cairn_capture_finish(capture, 0), CAIRN_AGAIN);
    assert_int_equal(cairn_capture_watermark(capture), 0);
    cairn_capture_cancel(capture);
    cairn_capture_destroy(NULL);
}

static uint64_t
now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void
test_one_at_a_time(void **state)
{
    struct cairn_capture_job job;

    add_run(-1, 0, 64 * BLOCK, 0);
    atomic_store(&seen.hold_at, 16);
    start(64);
    job = job_of(64);
    assert_int_equal(cairn_capture_start(capture, &job), CAIRN_AGAIN);
    assert_int_equal(cairn_capture_prepare(capture, 0, region, BLOCK), CAIRN_AGAIN);
    assert_true(cairn_capture_running(capture));
    assert_int_equal(cairn_capture_finish(capture, now_ns()), CAIRN_TIMEOUT);
    assert_int_equal(cairn_capture_wait(capture, 64 * BLOCK, now_ns() + 1000000), CAIRN_TIMEOUT);
    atomic_store(&seen.hold_at, 0);
    assert_int_equal(cairn_capture_wait(capture, 64 * BLOCK, UINT64_MAX), CAIRN_OK);
    assert_int_equal(cairn_capture_finish(capture, UINT64_MAX), CAIRN_OK);
}

/* A wait for the first bytes does not wait for the last. */
static void
test_wait_for_a_part(void **state)
{
    add_run(-1, 0, 256 * BLOCK, 0);
    atomic_store(&seen.hold_at, 128);
    start(256);
    for (uint64_t part = 1; part <= 8; part++) {
        assert_int_equal(cairn_capture_wait(capture, part * 32 * BLOCK - 5, UINT64_MAX), CAIRN_OK);
        assert_true(cairn_capture_watermark(capture) >= part * 32 * BLOCK - 5);
        if (part == 1)
            assert_true(cairn_capture_watermark(capture) < 256 * BLOCK);
        if (part == 2)
            atomic_store(&seen.hold_at, 0);
    }
    assert_int_equal(cairn_capture_finish(capture, UINT64_MAX), CAIRN_OK);
}

/*
 * The trainer's life: capture, and each tensor is overwritten the moment its fence returns. The
 * captured bytes are those of the step, and no data race is found (run it under ThreadSanitizer).
 */
static void
overwrite_behind_the_fence(bool with_device)
{
    enum { TENSORS = 64, TENSOR_BYTES = 3 * BLOCK + 1000, STEPS = 12 };
    uint64_t stride = (TENSOR_BYTES + 63) / 64 * 64;
    uint64_t blocks = (TENSORS * stride + BLOCK - 1) / BLOCK;

    if (with_device)
        prepare_devices();
    for (uint8_t step = 1; step <= STEPS; step++) {
        run_count = 0;
        for (uint64_t t = 0; t < TENSORS; t++) {
            if (step == 1)
                memset(host + t * TENSOR_BYTES, 1, TENSOR_BYTES);
            add_run(with_device && t % 3 == 0 ? 1 : -1, t * TENSOR_BYTES, TENSOR_BYTES, t * stride);
        }
        start(blocks);
        for (uint64_t t = 0; t < TENSORS; t++) {
            uint8_t *tensor = with_device && t % 3 == 0 ? fake_view(devices[1]) : host;

            assert_int_equal(cairn_capture_wait(capture, t * stride + TENSOR_BYTES, UINT64_MAX),
                             CAIRN_OK);
            memset(tensor + t * TENSOR_BYTES, step + 1, TENSOR_BYTES); /* the update */
        }
        assert_int_equal(cairn_capture_finish(capture, UINT64_MAX), CAIRN_OK);
        assert_memory_equal(region, expected, blocks * BLOCK);
    }
}

static void
test_overwrite_behind_the_fence(void **state)
{
    overwrite_behind_the_fence(false);
}

static void
test_overwrite_device_behind_the_fence(void **state)
{
    overwrite_behind_the_fence(true);
}

/* After cancel nobody reads the sources: they may be unmapped. */
static void
test_cancel(void **state)
{
    uint64_t seed = 5;

    for (int round = 0; round < 60; round++) {
        size_t bytes = 200 * BLOCK;
        uint8_t *source = map(bytes);
        cairn_err err, waited;

        run_count = 0;
        memset(source, round, bytes);
        runs[run_count++] =
            (struct cairn_capture_run){.source = source, .bytes = bytes, .device = -1};
        start(200);
        usleep((useconds_t)(xorshift(&seed) % 1500));
        cairn_capture_cancel(capture);
        assert_int_equal(munmap(source, bytes), 0);
        assert_false(cairn_capture_running(capture));
        assert_int_equal(atomic_load(&seen.done), 1);
        err = cairn_capture_finish(capture, 0);
        assert_int_equal(err, seen.result);
        assert_true(err == CAIRN_OK || err == CAIRN_AGAIN);
        waited = cairn_capture_wait(capture, 200 * BLOCK, 0);
        /* Between the last copy and its report, cancel finds everything copied and nothing
         * complete. */
        assert_true(waited == err || (waited == CAIRN_OK && err == CAIRN_AGAIN));
        assert_int_equal(seen.next_block == 200, err == CAIRN_OK);
    }
}

/* After cancel the device's copies have ended: the region may be unmapped, the tensors freed. */
static void
test_cancel_device(void **state)
{
    uint64_t seed = 6;
    unsigned cancelled = 0;

    fake_speed(0, 500);
    for (int round = 0; round < 20; round++) {
        uint64_t tensor;

        assert_int_equal(fake_alloc(0, &tensor, REGION_BYTES_MAX), 0);
        if (round % 2)
            fake_fail("cuMemHostRegister_v2", 1, 2);
        assert_int_equal(cairn_capture_prepare(capture, 0, region, REGION_BYTES_MAX), CAIRN_OK);
        run_count = 0;
        runs[run_count++] = (struct cairn_capture_run){.source = (const void *)(uintptr_t)tensor,
                                                       .bytes = REGION_BYTES_MAX};
        start(BLOCKS_MAX);
        usleep((useconds_t)(xorshift(&seed) % 4000));
        cairn_capture_cancel(capture);
        assert_int_equal(fake_free(tensor), 0);
        cancelled += seen.result == CAIRN_AGAIN;
        cairn_capture_forget(capture, region);
        assert_int_equal(munmap(region, REGION_BYTES_MAX), 0);
        region = map(REGION_BYTES_MAX);
    }
    assert_true(cancelled > 0);
}

/* Cancel during a fence's wait, as a second thread would see it: the waiter gets CAIRN_AGAIN. */
static void *
wait_for_all(void *result)
{
    *(cairn_err *)result = cairn_capture_wait(capture, 64 * BLOCK, UINT64_MAX);
    return NULL;
}

static void
test_cancel_wakes_waiters(void **state)
{
    cairn_err result = CAIRN_OK;
    pthread_t waiter;

    add_run(-1, 0, 64 * BLOCK, 0);
    seen.pause_us = 300000;
    start(64);
    assert_int_equal(pthread_create(&waiter, NULL, wait_for_all, &result), 0);
    usleep(5000);
    cairn_capture_cancel(capture);
    assert_int_equal(pthread_join(waiter, NULL), 0);
    assert_int_equal(result, CAIRN_AGAIN);
}

static void
test_destroy_cancels(void **state)
{
    add_run(-1, 0, 64 * BLOCK, 0);
    seen.pause_us = 300000;
    start(64);
    cairn_capture_destroy(capture);
    capture = NULL;
    assert_int_equal(atomic_load(&seen.done), 1);
    assert_int_equal(seen.result, CAIRN_AGAIN);
}

/* A device error ends the capture, with one line of log; the device works again when prepared
 * again. */
static void
test_device_error(void **state)
{
    static const char *const symbols[] = {"cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuEventQuery"};

    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        struct cairn_capture_job job;
        struct fakecuda_state live;

        fake_reset();
        fake_speed(0, 1000);
        lines[0] = '\0';
        run_count = 0;
        assert_int_equal(cairn_capture_prepare(capture, 0, region, REGION_BYTES_MAX), CAIRN_OK);
        add_run(0, 0, REGION_BYTES_MAX, 0);
        fake_fail(symbols[i], 3, 999);
        start(BLOCKS_MAX);
        assert_int_equal(cairn_capture_wait(capture, UINT64_MAX, UINT64_MAX), CAIRN_DEVICE);
        assert_int_equal(cairn_capture_finish(capture, UINT64_MAX), CAIRN_DEVICE);
        assert_int_equal(seen.result, CAIRN_DEVICE);
        fake_state(&live);
        assert_int_equal(live.streams, 0); /* closed, which waited for what was in flight */
        assert_non_null(strstr(lines, "code=999"));
        assert_ptr_equal(strchr(lines, '\n'), lines + strlen(lines) - 1);
        job = job_of(BLOCKS_MAX);
        assert_int_equal(cairn_capture_start(capture, &job), CAIRN_DEVICE);
        assert_int_equal(cairn_capture_prepare(capture, 0, region, REGION_BYTES_MAX), CAIRN_OK);
        capture_and_check(BLOCKS_MAX);
        cairn_capture_forget(capture, region);
    }
    /* An error before the start: prepare mends it. */
    assert_int_equal(cairn_capture_prepare(capture, 0, region, REGION_BYTES_MAX), CAIRN_OK);
    fake_fail("cuStreamWaitEvent", 1, 999);
    assert_int_equal(cairn_capture_order(capture, 0, NULL), CAIRN_DEVICE);
    assert_int_equal(cairn_capture_order(capture, 0, NULL), CAIRN_DEVICE);
    assert_int_equal(cairn_capture_prepare(capture, 0, region, REGION_BYTES_MAX), CAIRN_OK);
    assert_int_equal(cairn_capture_order(capture, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_capture_order(capture, 1, NULL), CAIRN_INVAL);
    capture_and_check(BLOCKS_MAX);
}

/*
 * Two devices fail at once, and the copies of the second still run through memory that the first
 * has pinned: it is not let go of before they have ended. None of them ends before both are in
 * flight and the first has failed, or the calls that fail would be others.
 */
static void
test_devices_fail_together(void **state)
{
    struct fakecuda_state live;

    prepare_devices();
    add_run(0, 0, 64 * BLOCK, 0);
    add_run(1, 0, 192 * BLOCK, 64 * BLOCK);
    fake_speed(0, 20000);
    fake_hold(1);
    fake_fail("cuEventQuery", 8, 999); /* that of device 0, with one batch here and three there in
                                        * flight, */
    fake_fail("cuEventQuery", 9, 999); /* and the first of device 1 after it */
    start(256);
    do
        fake_state(&live);
    while (usleep(100) == 0 && live.failed_calls == 0);
    fake_hold(0);
    assert_int_equal(cairn_capture_finish(capture, UINT64_MAX), CAIRN_DEVICE);
    fake_state(&live);
    assert_int_equal(live.misuses, 0);
    assert_int_equal(live.streams, 0);
    assert_int_equal(live.registered, 0);
    fake_speed(0, 0);
    prepare_devices();
    capture_and_check(256);
}

/*
 * A capture holds what its stream was given before the order, whenever it starts, and nothing that
 * came after; a stream that is captured into a graph is left alone, by all threads.
 */
static void
test_order(void **state)
{
    uint64_t tensor = devices[0];
    void *context = NULL, *popped;
    int (*push)(void *) = NULL, (*pop)(void **) = NULL, (*retain)(void **, int) = NULL;
    int (*release)(int) = NULL, (*query)(void *) = NULL;
    void *library = dlopen(fake_path, RTLD_NOW);

    load(library, "cuCtxPushCurrent_v2", &push);
    load(library, "cuCtxPopCurrent_v2", &pop);
    load(library, "cuDevicePrimaryCtxRetain", &retain);
    load(library, "cuDevicePrimaryCtxRelease_v2", &release);
    load(library, "cuStreamQuery", &query);
    assert_int_equal(cairn_capture_prepare(capture, 0, region, REGION_BYTES_MAX), CAIRN_OK);
    assert_int_equal(retain(&context, 0), 0);
    assert_int_equal(push(context), 0);
    runs[run_count++] =
        (struct cairn_capture_run){.source = (const void *)(uintptr_t)tensor, .bytes = 8 * BLOCK};
    assert_int_equal(fake_fill(NULL, tensor, 0x11, 8 * BLOCK, 20000), 0);
    assert_int_equal(cairn_capture_order(capture, 0, NULL), CAIRN_OK);
    /* not waited for */
    assert_int_equal(fake_fill(NULL, tensor + 8 * BLOCK, 0x22, BLOCK, 1000000), 0);
    memset(expected, 0x11, 8 * BLOCK);
    capture_and_check(8);
    assert_int_equal(query(NULL), 600); /* not ready */
    assert_int_equal(fake_capture(NULL, 1), 0);
    assert_int_equal(cairn_capture_order(capture, 0, NULL), CAIRN_AGAIN);
    capture_and_check(8);
    cairn_capture_forget(capture, region);
    assert_int_equal(cairn_capture_prepare(capture, 0, region, REGION_BYTES_MAX), CAIRN_OK);
    assert_int_equal(fake_capture(NULL, 0), 0);
    assert_int_equal(cairn_capture_order(capture, 0, NULL), CAIRN_OK);
    assert_string_equal(lines, "");
    assert_int_equal(pop(&popped), 0);
    assert_int_equal(release(0), 0);
}

static _Atomic uint64_t slow_blocks;

static void
report_slowly(void *context, uint64_t first_block, uint32_t count, const uint64_t *crcs)
{
    (void)context, (void)crcs;
    usleep(15000);
    atomic_store(&slow_blocks, first_block + count);
}

/* What waits for a device's copies does not wait for their checksums and reports. */
static void
test_reports_do_not_hold_copies(void **state)
{
    enum { MANY = 1024 };
    uint8_t *large = map((size_t)MANY * BLOCK);
    struct cairn_capture_run run = {.bytes = (uint64_t)MANY * BLOCK};
    struct cairn_capture_job job = {.runs = &run,
                                    .run_count = 1,
                                    .region = large,
                                    .region_bytes = run.bytes,
                                    .on_blocks = report_slowly};
    uint64_t tensor;

    assert_int_equal(fake_alloc(0, &tensor, run.bytes), 0);
    run.source = (const void *)(uintptr_t)tensor;
    assert_int_equal(cairn_capture_prepare(capture, 0, large, run.bytes), CAIRN_OK);
    assert_int_equal(cairn_capture_start(capture, &job), CAIRN_OK);
    assert_int_equal(cairn_capture_wait(capture, UINT64_MAX, UINT64_MAX), CAIRN_OK);
    assert_true(atomic_load(&slow_blocks) < MANY * 3 / 4);
    assert_int_equal(cairn_capture_finish(capture, UINT64_MAX), CAIRN_OK);
    assert_int_equal(atomic_load(&slow_blocks), MANY);
    cairn_capture_forget(capture, large);
    assert_int_equal(fake_free(tensor), 0);
    munmap(large, run.bytes);
}

static void
test_lost_event(void **state)
{
    prepare_devices();
    add_run(0, 0, 300 * BLOCK, 0);
    fake_lose_event(2);
    capture_and_check(300);
}

static void
test_no_driver(void **state)
{
    struct cairn_capture_options options = {.driver_path = "/nowhere/libcuda.so.1",
                                            .log = keep_line};
    struct cairn_capture *other = NULL;

    assert_int_equal(cairn_capture_create(&options, &other), CAIRN_OK);
    assert_int_equal(cairn_capture_prepare(other, 0, region, BLOCK), CAIRN_DEVICE);
    assert_non_null(strstr(lines, "/nowhere/libcuda.so.1"));
    cairn_capture_destroy(other);
}

static void
test_stats(void **state)
{
    struct cairn_capture_stats stats;

    add_run(-1, 0, 7 * BLOCK, 0);
    capture_and_check(7);
    capture_and_check(9);
    seen.pause_us = 300000;
    start(40);
    cairn_capture_cancel(capture);
    cairn_capture_stats_read(capture, &stats);
    assert_int_equal(stats.captures, 2);
    assert_int_equal(stats.captured_bytes, 16 * BLOCK);
    assert_int_equal(stats.failed, 1);
    assert_true(stats.capture_ns > 0);
}

/* Waits until this process has mapped the page at an address; false: it does not within 10 s. */
static bool
is_mapped_soon(const uint8_t *address)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    uint64_t entry = 0, at = (uintptr_t)address / (uint64_t)sysconf(_SC_PAGESIZE) * sizeof entry;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    for (int i = 0; i < 10000 && entry >> 63 == 0; i++) {
        assert_int_equal(pread(fd, &entry, sizeof entry, (off_t)at), sizeof entry);
        (void)nanosleep(&pause, NULL);
    }
    close(fd);
    return entry >> 63;
}

enum region { REGION_IN_USE, REGION_IS_NEW, REGION_IS_NEXT };

/* Faults of this process while a capture goes into a mapping that it has not touched, of pages that
 * exist. */
static long
faults_of_a_capture(uint64_t blocks, enum region kind)
{
    struct cairn_capture_job job = job_of(blocks);
    uint8_t *touched;
    struct rusage before, after;
    int fd = memfd_create("region", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)(blocks * BLOCK + 4096)), 0);
    touched = mmap(NULL, blocks * BLOCK + 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(touched != MAP_FAILED);
    memset(touched, 0xdb, blocks * BLOCK + 4096);
    job.region = mmap(NULL, blocks * BLOCK + 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(job.region != MAP_FAILED);
    job.region += 64; /* regions begin anywhere in a page */
    job.region_is_new = kind == REGION_IS_NEW;
    seen.next_block = 0;
    if (kind == REGION_IS_NEXT) {
        cairn_capture_map_next(capture, job.region, blocks * BLOCK);
        assert_true(is_mapped_soon(job.region + blocks * BLOCK - 1));
    }
    assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
    assert_int_equal(cairn_capture_start(capture, &job), CAIRN_OK);
    assert_int_equal(cairn_capture_finish(capture, UINT64_MAX), CAIRN_OK);
    assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
    assert_memory_equal(job.region, expected, blocks * BLOCK);
    for (uint64_t i = 0; i < 64; i++)
        assert_int_equal(touched[i], 0xdb);
    assert_int_equal(touched[blocks * BLOCK + 64], 0xdb);
    assert_true(cairn_capture_forget(capture, job.region));
    munmap(job.region - 64, blocks * BLOCK + 4096);
    munmap(touched, blocks * BLOCK + 4096);
    close(fd);
    return after.ru_minflt - before.ru_minflt;
}

static void
test_new_region_is_mapped_ahead(void **state)
{
    enum { BLOCKS = 128 };
    long pages = BLOCKS * BLOCK / sysconf(_SC_PAGESIZE), one_by_one, ahead, next;

#ifdef __SANITIZE_THREAD__
    print_message("skip: the sanitizer's own memory takes page faults too\n");
    skip();
#endif
    add_run(-1, 0, BLOCKS * BLOCK - 100, 0);
    /* and the sources are mapped now */
    assert_int_equal(faults_of_a_capture(BLOCKS, REGION_IN_USE) > 0, true);
    one_by_one = faults_of_a_capture(BLOCKS, REGION_IN_USE);
    ahead = faults_of_a_capture(BLOCKS, REGION_IS_NEW);
    if (one_by_one < pages / 2 || madvise(region, BLOCK, MADV_POPULATE_READ) != 0) {
        print_message("skip: this kernel maps pages in groups by itself, or not on request\n");
        skip();
    }
    next = faults_of_a_capture(BLOCKS, REGION_IS_NEXT);
    assert_true(ahead < one_by_one / 4);
    assert_true(next < one_by_one / 4);
}

int
main(void)
{
#define FRESH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define WITH_HELPERS(test) cmocka_unit_test_setup_teardown(test, setup_with_helpers, teardown)
    const struct CMUnitTest tests[] = {
        FRESH(test_failing_runs),
        cmocka_unit_test_setup_teardown(test_failing_runs, setup_without_threads, teardown),
        WITH_HELPERS(test_failing_runs),
        WITH_HELPERS(test_one_run),
        WITH_HELPERS(test_no_runs),
        WITH_HELPERS(test_random_runs),
        WITH_HELPERS(test_random_device_runs),
        WITH_HELPERS(test_overwrite_behind_the_fence),
        WITH_HELPERS(test_cancel),
        WITH_HELPERS(test_destroy_cancels),
        FRESH(test_one_run),
        FRESH(test_no_runs),
        FRESH(test_random_runs),
        FRESH(test_random_device_runs),
        cmocka_unit_test_setup_teardown(test_random_device_runs, setup_without_threads, teardown),
        FRESH(test_neighbours_on_a_device),
        FRESH(test_device_copies_are_large),
        FRESH(test_device_without_pinning),
        FRESH(test_host_makes_no_context),
        FRESH(test_wrong_jobs),
        FRESH(test_before_the_first),
        FRESH(test_one_at_a_time),
        FRESH(test_wait_for_a_part),
        FRESH(test_overwrite_behind_the_fence),
        FRESH(test_overwrite_device_behind_the_fence),
        FRESH(test_cancel),
        FRESH(test_cancel_device),
        FRESH(test_cancel_wakes_waiters),
        FRESH(test_destroy_cancels),
        FRESH(test_order),
        FRESH(test_device_error),
        FRESH(test_devices_fail_together),
        FRESH(test_reports_do_not_hold_copies),
        FRESH(test_lost_event),
        FRESH(test_no_driver),
        FRESH(test_stats),
        FRESH(test_new_region_is_mapped_ahead)};

    return cmocka_run_group_tests(tests, load_fake, NULL);
}
