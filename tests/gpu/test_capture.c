/*
 * tests/gpu/test_capture.c - the cuda backend and the capture engine on a real device.
 *
 *   test_capture [driver]        default: libcuda.so.1
 *
 * Exits with 77 and the reason where no device answers. With the fake driver's path as argument it
 * runs anywhere, which checks the test itself. Prints what the device's copies reach.
 */
#include "base/crc.h"
#include "snapshot/arena.h"
#include "snapshot/capture.h"
#include "snapshot/mem.h"
#include "tests/support/cmocka.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK = CAIRN_BLOCK_BYTES, BLOCKS = 2048, BYTES = BLOCKS * BLOCK, SKIPPED = 77 };

static const char *driver_path = "libcuda.so.1";
static int (*cu_init)(unsigned flags);
static int (*cu_device_get)(int *device, int ordinal);
static int (*cu_retain)(void **context, int device);
static int (*cu_release)(int device);
static int (*cu_push)(void *context);
static int (*cu_pop)(void **context);
static int (*cu_alloc)(uint64_t *region, size_t bytes);
static int (*cu_free)(uint64_t region);
static int (*cu_memset)(uint64_t region, uint8_t value, size_t bytes, void *stream);
static int (*cu_stream_synchronize)(void *stream);

static void *context;
static uint64_t tensor;
static struct cairn_arena *arena;
static uint8_t *pattern;
static uint64_t crcs[BLOCKS];
static char last_line[512];

static void
keep_line(void *unused, enum cairn_log_level level, const char *line)
{
    snprintf(last_line, sizeof last_line, "%s", line);
}

static void
keep_crcs(void *unused, uint64_t first_block, uint32_t count, const uint64_t *values)
{
    memcpy(crcs + first_block, values, count * sizeof values[0]);
}

static uint64_t
now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Loads the driver; the reason why it cannot be used, or NULL. */
static const char *
load_driver(void)
{
    static const struct {
        const char *symbol;
        void *function;
    } wanted[] = {{"cuInit", &cu_init},
                  {"cuDeviceGet", &cu_device_get},
                  {"cuDevicePrimaryCtxRetain", &cu_retain},
                  {"cuDevicePrimaryCtxRelease_v2", &cu_release},
                  {"cuCtxPushCurrent_v2", &cu_push},
                  {"cuCtxPopCurrent_v2", &cu_pop},
                  {"cuMemAlloc_v2", &cu_alloc},
                  {"cuMemFree_v2", &cu_free},
                  {"cuMemsetD8Async", &cu_memset},
                  {"cuStreamSynchronize", &cu_stream_synchronize}};
    void *library = dlopen(driver_path, RTLD_NOW | RTLD_NODELETE);
    int device;

    if (!library)
        return dlerror();
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *found = dlsym(library, wanted[i].symbol);

        if (!found)
            return wanted[i].symbol;
        memcpy(wanted[i].function, &found, sizeof found);
    }
    if (cu_init(0))
        return "cuInit failed";
    return cu_device_get(&device, 0) ? "there is no device 0" : NULL;
}

static int
setup(void **state)
{
    char report[CAIRN_ARENA_REPORT_BYTES];
    int device;

    pattern = malloc(BYTES);
    if (!pattern || cu_device_get(&device, 0) || cu_retain(&context, device) || cu_push(context) ||
        cu_alloc(&tensor, BYTES))
        return 1;
    for (size_t i = 0; i < BYTES / 8; i++)
        ((uint64_t *)(void *)pattern)[i] = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return cairn_arena_create("gpu-test", BYTES, NULL, &arena, report, sizeof report);
}

static int
teardown(void **state)
{
    void *popped;

    cairn_arena_destroy(arena);
    free(pattern);
    return cu_free(tensor) || cu_pop(&popped) || popped != context || cu_release(0);
}

static struct cairn_mem *
open_mem(void)
{
    struct cairn_mem_options options = {.driver_path = driver_path, .log = keep_line};
    struct cairn_mem *mem = NULL;

    if (cairn_mem_open(0, &options, &mem))
        fail_msg("%s", last_line);
    return mem;
}

static void
put_pattern(void)
{
    struct cairn_mem *mem = open_mem();
    uint64_t begin = now_ns();

    assert_int_equal(cairn_mem_put(mem, tensor, pattern, BYTES, UINT64_MAX), CAIRN_OK);
    printf("bench=gpu op=put_pageable gb_s=%.2f\n", (double)BYTES / (double)(now_ns() - begin));
    cairn_mem_close(mem);
}

static struct cairn_capture *
open_capture(void)
{
    struct cairn_capture_options options = {.driver_path = driver_path, .log = keep_line};
    struct cairn_capture *capture = NULL;

    assert_int_equal(cairn_capture_create(&options, &capture), CAIRN_OK);
    if (cairn_capture_prepare(capture, 0, cairn_arena_base(arena), BYTES))
        fail_msg("%s", last_line);
    return capture;
}

static void
run(struct cairn_capture *capture, const struct cairn_capture_run *runs, uint32_t count)
{
    struct cairn_capture_job job = {.runs = runs,
                                    .run_count = count,
                                    .region = cairn_arena_base(arena),
                                    .region_bytes = BYTES,
                                    .on_blocks = keep_crcs};

    if (cairn_capture_order(capture, 0, NULL) || cairn_capture_start(capture, &job))
        fail_msg("%s", last_line);
    assert_int_equal(cairn_capture_finish(capture, now_ns() + UINT64_C(60000000000)), CAIRN_OK);
}

static void
check_crcs(void)
{
    for (size_t i = 0; i < BLOCKS; i++)
        assert_int_equal(crcs[i], cairn_crc64(0, cairn_arena_base(arena) + i * BLOCK, BLOCK));
}

static void
test_capture_is_bit_exact(void **state)
{
    struct cairn_capture *capture = open_capture();
    struct cairn_capture_run whole = {
        .source = (const void *)(uintptr_t)tensor, .bytes = BYTES, .device = 0};

    put_pattern();
    for (int i = 0; i < 3; i++) {
        uint64_t begin = now_ns();

        memset(cairn_arena_base(arena), 0, BYTES);
        begin = now_ns();
        run(capture, &whole, 1);
        printf("bench=gpu op=capture bytes=%d gb_s=%.2f\n", BYTES,
               (double)BYTES / (double)(now_ns() - begin));
        assert_memory_equal(cairn_arena_base(arena), pattern, BYTES);
        check_crcs();
    }
    cairn_capture_destroy(capture);
}

/* Many small tensors, with gaps, every third one on the host. */
static void
test_small_tensors(void **state)
{
    enum { COUNT = 20000, EACH = 5000, STRIDE = 5056 };
    struct cairn_capture *capture = open_capture();
    struct cairn_capture_run *runs = calloc(COUNT, sizeof runs[0]);
    uint8_t *expected = calloc(1, BYTES);

    assert_non_null(runs);
    assert_non_null(expected);
    put_pattern();
    for (uint64_t i = 0; i < COUNT; i++) {
        bool on_host = i % 3 == 0;

        runs[i] = (struct cairn_capture_run){
            .source = on_host ? (const void *)(pattern + i * EACH)
                              : (const void *)(uintptr_t)(tensor + i * EACH),
            .bytes = EACH,
            .offset = i * STRIDE,
            .device = on_host ? -1 : 0};
        memcpy(expected + i * STRIDE, pattern + i * EACH, EACH);
    }
    memset(cairn_arena_base(arena), 0xee, BYTES);
    run(capture, runs, COUNT);
    assert_memory_equal(cairn_arena_base(arena), expected, BYTES);
    check_crcs();
    free(runs);
    free(expected);
    cairn_capture_destroy(capture);
}

/* What the default stream was given before the capture is in it; what comes after is not. */
static void
test_ordered_after_the_stream(void **state)
{
    struct cairn_capture *capture = open_capture();
    struct cairn_capture_run whole = {
        .source = (const void *)(uintptr_t)tensor, .bytes = BYTES, .device = 0};

    for (uint8_t value = 1; value < 10; value++) {
        for (int i = 0; i < 20; i++)
            assert_int_equal(cu_memset(tensor, (uint8_t)(100 + i), BYTES, NULL), 0);
        assert_int_equal(cu_memset(tensor, value, BYTES, NULL), 0);
        run(capture, &whole, 1);
        assert_int_equal(cu_memset(tensor, 77, BYTES, NULL), 0);
        for (size_t i = 0; i < BYTES; i += 509)
            assert_int_equal(cairn_arena_base(arena)[i], value);
    }
    assert_int_equal(cu_stream_synchronize(NULL), 0);
    cairn_capture_destroy(capture);
}

static void
test_cancel(void **state)
{
    struct cairn_capture *capture = open_capture();
    struct cairn_capture_run whole = {
        .source = (const void *)(uintptr_t)tensor, .bytes = BYTES, .device = 0};
    struct cairn_capture_job job = {
        .runs = &whole, .run_count = 1, .region = cairn_arena_base(arena), .region_bytes = BYTES};

    for (int i = 0; i < 20; i++) {
        uint64_t begin;

        assert_int_equal(cairn_capture_start(capture, &job), CAIRN_OK);
        begin = now_ns();
        cairn_capture_cancel(capture);
        assert_true(now_ns() - begin < 1000000000);
        memset(cairn_arena_base(arena), 0x31, BYTES); /* nobody writes here any more */
        for (size_t at = 0; at < BYTES; at += 64)
            assert_int_equal(cairn_arena_base(arena)[at], 0x31);
    }
    cairn_capture_destroy(capture);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_capture_is_bit_exact, setup, teardown),
        cmocka_unit_test_setup_teardown(test_small_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ordered_after_the_stream, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel, setup, teardown)};
    const char *reason;

    driver_path = argc > 1 ? argv[1] : driver_path;
    reason = load_driver();
    if (reason) {
        printf("skipped: no CUDA device (%s)\n", reason);
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
