/*
 * tests/unit/snapshot/capturing.h - captures under test: sources on the host and on (fake) devices,
 * what the callbacks saw, and a check of every byte, checksum and report.
 */
#ifndef CAPTURING_H
#define CAPTURING_H

#include "snapshot/capture.h"

#include "base/crc.h"
#include "tests/support/cmocka.h"
#include "tests/support/kept_lines.h"
#include "tests/support/fakecuda_load.h"
#include "tests/support/random.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

static inline void
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

static inline void
on_done(void *context, cairn_err err)
{
    assert_ptr_equal(context, &seen);
    seen.result = err;
    atomic_fetch_add(&seen.done, 1);
}

static inline int
load_fake(void **state)
{
    void *library = load_fakecuda();

    if (!library)
        return 1;
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)(i * 31 + (i >> 11) + 1);
    return 0;
}

static inline uint8_t *
map(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(base != MAP_FAILED);
    return base;
}

static uint32_t helpers; /* of all jobs */

static inline int
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

static inline int
setup(void **state)
{
    return setup_threads(2);
}

static inline int
setup_without_threads(void **state)
{
    return setup_threads(-1);
}

static inline int
setup_with_helpers(void **state)
{
    helpers = 2;
    return setup_threads(-1);
}

static inline int
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

static inline void
prepare_devices(void)
{
    for (int d = 0; d < DEVICE_COUNT; d++)
        assert_int_equal(cairn_capture_prepare(capture, d, region, REGION_BYTES_MAX), CAIRN_OK);
}

/* Adds a run and its expected result. from: offset in the source of that device. */
static inline void
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

static inline struct cairn_capture_job
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

static inline void
start(uint64_t blocks)
{
    struct cairn_capture_job job = job_of(blocks);

    seen.next_block = 0;
    atomic_store(&seen.done, 0);
    assert_int_equal(cairn_capture_start(capture, &job), CAIRN_OK);
}

/* Captures the runs into a dirty region and checks every byte, checksum and report. */
static inline void
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

#endif
