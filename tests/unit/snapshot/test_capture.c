/*
 * tests/unit/snapshot/test_capture.c - what a capture holds: the bytes, their checksums and which
 * values are not finite; from host memory and from (fake) devices, and both mixed.
 */
#include "capturing.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>

#ifndef MADV_POPULATE_READ /* headers older than Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

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
        FRESH(test_order),
        FRESH(test_reports_do_not_hold_copies),
        FRESH(test_stats),
        FRESH(test_new_region_is_mapped_ahead),
    };

    return cmocka_run_group_tests(tests, load_fake, NULL);
}
