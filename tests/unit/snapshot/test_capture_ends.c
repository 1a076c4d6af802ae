/*
 * tests/unit/snapshot/test_capture_ends.c - waiting for a capture, in part and as a whole; captures
 * that are cancelled, and those that a device or its driver fails.
 */
#include "capturing.h"

#include <pthread.h>
#include <time.h>

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

int
main(void)
{
#define FRESH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define WITH_HELPERS(test) cmocka_unit_test_setup_teardown(test, setup_with_helpers, teardown)
    const struct CMUnitTest tests[] = {
        WITH_HELPERS(test_overwrite_behind_the_fence),
        WITH_HELPERS(test_cancel),
        WITH_HELPERS(test_destroy_cancels),
        FRESH(test_before_the_first),
        FRESH(test_one_at_a_time),
        FRESH(test_wait_for_a_part),
        FRESH(test_overwrite_behind_the_fence),
        FRESH(test_overwrite_device_behind_the_fence),
        FRESH(test_cancel),
        FRESH(test_cancel_device),
        FRESH(test_cancel_wakes_waiters),
        FRESH(test_destroy_cancels),
        FRESH(test_device_error),
        FRESH(test_devices_fail_together),
        FRESH(test_lost_event),
        FRESH(test_no_driver),
    };

    return cmocka_run_group_tests(tests, load_fake, NULL);
}
