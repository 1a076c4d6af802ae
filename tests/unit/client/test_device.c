/*
 * tests/unit/client/test_device.c - tensors on devices through the calls of client.h: captured,
 * fenced, overwritten and restored, against the fake driver; what a step's streams order, and what
 * a driver that fails at any call leaves of training.
 */
#include "cairn/client.h"

#include "tests/support/client_lines.h"
#include "tests/support/cmocka.h"
#include "tests/support/fake_agent.h"
#include "tests/support/fakecuda_load.h"

#include "base/crc.h"

#include <dlfcn.h>
#include <spawn.h>

enum { SMALL = 64, SMALL_BYTES = 5000, LARGE_BYTES = 256 << 10, SLICES = SMALL + 4 };
enum { NOT_READY = 600 }; /* of the driver */

static int (*cu_init)(unsigned);
static int (*cu_retain)(void **, int);
static int (*cu_release)(int);
static int (*cu_push)(void *);
static int (*cu_pop)(void **);
static int (*cu_stream_create)(void **, unsigned, int);
static int (*cu_stream_destroy)(void *);
static int (*cu_stream_query)(void *);
static int (*cu_stream_finish)(void *);

static int
lines_with(const char *text)
{
    return count_in(lines.warnings, text);
}

/* Loads the fake driver, which from then on is what the name libcuda.so.1 stands for. */
static int
load_fake(void **state)
{
    void *library = load_fakecuda();

    if (!library || dlopen("libcuda.so.1", RTLD_NOW) != library) {
        fprintf(stderr, "%s is not what libcuda.so.1 stands for\n", fake_path);
        return 1;
    }
    load(library, "cuInit", &cu_init);
    load(library, "cuDevicePrimaryCtxRetain", &cu_retain);
    load(library, "cuDevicePrimaryCtxRelease_v2", &cu_release);
    load(library, "cuCtxPushCurrent_v2", &cu_push);
    load(library, "cuCtxPopCurrent_v2", &cu_pop);
    load(library, "cuStreamCreateWithPriority", &cu_stream_create);
    load(library, "cuStreamDestroy_v2", &cu_stream_destroy);
    load(library, "cuStreamQuery", &cu_stream_query);
    load(library, "cuStreamSynchronize", &cu_stream_finish);
    return 0;
}

/* ---- a trainer with tensors on the host and on two devices ---- */

struct trainer {
    struct fake_agent *agent;
    struct cairn_client *client;
    void *contexts[2];
    void *streams[2]; /* on which it computes: not the defaults */
    uint64_t small;   /* on device 0: SMALL tensors */
    uint64_t large[2];
    uint8_t *host;
    struct cairn_slice slices[SLICES];
    char names[SLICES][16];
    uint32_t count;
};

static void
add(struct trainer *trainer, int32_t device, uint64_t address, uint64_t bytes)
{
    uint32_t i = trainer->count++;

    snprintf(trainer->names[i], sizeof trainer->names[i], "t%u", i);
    trainer->slices[i] = (struct cairn_slice){CAIRN_SLICE_INIT,
                                              .name = trainer->names[i],
                                              .dtype = CAIRN_U8,
                                              .kind = CAIRN_PARAM,
                                              .dims = 1,
                                              .shape = {bytes},
                                              .extent = {bytes},
                                              .replica_count = 1,
                                              .address = (void *)(uintptr_t)address,
                                              .device = device};
}

/* The CPU's view of a slice. */
static uint8_t *
bytes_of(const struct cairn_slice *slice)
{
    return slice->device < 0 ? slice->address : fake_view((uint64_t)(uintptr_t)slice->address);
}

static void
fill_all(struct trainer *trainer, uint32_t seed)
{
    for (uint32_t i = 0; i < trainer->count; i++)
        for (uint64_t b = 0; b < trainer->slices[i].extent[0]; b++)
            bytes_of(&trainer->slices[i])[b] = (uint8_t)(seed + 31 * i + b + (b >> 8));
}

static void
start(struct trainer *trainer)
{
    memset(trainer, 0, sizeof *trainer);
    fake_reset();
    forget_lines();
    assert_int_equal(cu_init(0), 0);
    for (int d = 0; d < 2; d++) {
        assert_int_equal(cu_retain(&trainer->contexts[d], d), 0);
        assert_int_equal(cu_push(trainer->contexts[d]), 0);
        assert_int_equal(cu_stream_create(&trainer->streams[d], 1, 0), 0);
        assert_int_equal(fake_alloc(d, &trainer->large[d], LARGE_BYTES), 0);
    }
    assert_int_equal(fake_alloc(0, &trainer->small, SMALL * SMALL_BYTES), 0);
    trainer->host = malloc(LARGE_BYTES);
    assert_non_null(trainer->host);
    for (int d = 0; d < 2; d++)
        add(trainer, d, trainer->large[d], LARGE_BYTES);
    add(trainer, -1, (uintptr_t)trainer->host, LARGE_BYTES);
    for (uint64_t i = 0; i < SMALL; i++)
        add(trainer, 0, trainer->small + i * SMALL_BYTES, SMALL_BYTES);
    fill_all(trainer, 1);
    trainer->agent = fake_agent_create(4 * CAIRN_BLOCK_BYTES);
}

static uint32_t restore_timeout_ms; /* 0: the client's own */

static cairn_err
attach(struct trainer *trainer, uint32_t fence_timeout_ms)
{
    struct cairn_client_options options = {CAIRN_CLIENT_OPTIONS_INIT,
                                           .agent_socket = trainer->agent->path,
                                           .world = 1,
                                           .fence_timeout_ms = fence_timeout_ms,
                                           .connect_timeout_ms = 5000,
                                           .restore_timeout_ms = restore_timeout_ms,
                                           .log = note_line};

    fake_agent_start(trainer->agent);
    assert_int_equal(cairn_client_open(&options, &trainer->client), CAIRN_OK);
    for (int d = 0; d < 2; d++)
        assert_int_equal(cairn_client_set_stream(trainer->client, d, trainer->streams[d]),
                         CAIRN_OK);
    return cairn_client_register(trainer->client, trainer->slices, trainer->count);
}

static void
detach(struct trainer *trainer)
{
    cairn_client_close(trainer->client);
    fake_agent_stop(trainer->agent);
    assert_int_equal(trainer->agent->damaged, 0);
}

/* Nothing of the driver may live on but the trainer's own, which ends here. */
static void
end(struct trainer *trainer)
{
    struct fakecuda_state live;
    void *popped;

    fake_agent_destroy(trainer->agent);
    for (int d = 1; d >= 0; d--) {
        assert_int_equal(cu_stream_destroy(trainer->streams[d]), 0);
        assert_int_equal(fake_free(trainer->large[d]), 0);
        assert_int_equal(cu_pop(&popped), 0);
        assert_ptr_equal(popped, trainer->contexts[d]);
    }
    assert_int_equal(fake_free(trainer->small), 0);
    for (int d = 0; d < 2; d++)
        assert_int_equal(cu_release(d), 0);
    free(trainer->host);
    fake_state(&live);
    assert_int_equal(live.misuses, 0);
    assert_int_equal(live.contexts + live.streams + live.events + live.registered +
                         live.host_allocated + live.device_allocated,
                     0);
    assert_int_equal(fake_depth(), 0);
}

/* The slot of the newest capture that ended well holds, with the right checksums, what `expected`
 * says of each slice. */
static void
check_slot(struct trainer *trainer, const uint8_t *const *expected)
{
    struct cairn_manifest_entry entries[SLICES];
    const uint8_t *region = trainer->agent->slots[trainer->agent->done_slot];
    uint64_t region_bytes;

    assert_int_equal(
        cairn_capture_plan(trainer->slices, trainer->count, entries, &region_bytes, NULL),
        CAIRN_OK);
    for (uint32_t i = 0; i < trainer->count; i++)
        if (memcmp(region + entries[i].offset_bytes, expected[i], trainer->slices[i].extent[0]) !=
            0)
            fail_msg("slice %u is not what it was", i);
    for (uint64_t b = 0; b < region_bytes / CAIRN_BLOCK_BYTES; b++)
        assert_int_equal(trainer->agent->crcs[0][b],
                         cairn_crc64(0, region + b * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES));
}

static const uint8_t **
copy_of_all(const struct trainer *trainer)
{
    static uint8_t *memory;
    static const uint8_t *copies[SLICES];
    uint8_t *at;

    free(memory);
    at = memory = malloc(3 * LARGE_BYTES + SMALL * SMALL_BYTES);
    assert_non_null(memory);
    for (uint32_t i = 0; i < trainer->count; i++) {
        memcpy(at, bytes_of(&trainer->slices[i]), trainer->slices[i].extent[0]);
        copies[i] = at;
        at += trainer->slices[i].extent[0];
    }
    return copies;
}

static void
begin_copying(struct trainer *trainer, uint64_t step)
{
    int begins = trainer->agent->begins;

    assert_int_equal(cairn_snapshot_begin(trainer->client, step), CAIRN_OK);
    assert_true(fake_reaches(&trainer->agent->begins, begins + 1));
}

/* Waits until a device has been given something to copy: a fence before that gives the snapshot
 * up. */
static void
await_copies(void)
{
    struct fakecuda_state seen;

    do
        fake_state(&seen);
    while (usleep(100) == 0 && seen.async_copies + seen.pageable_copies == 0);
}

/* ---- the tests ---- */

/* Both devices and the host in one snapshot, dozens of small tensors among them; what follows a
 * fence is not in it. With the memory pinned, and through the ring where that is refused. */
static void
test_captured_and_overwritten(void **state)
{
    struct fakecuda_state seen;
    struct trainer trainer;

    for (int pinned = 0; pinned < 2; pinned++) {
        start(&trainer);
        for (uint64_t nth = 1; !pinned && nth <= 2 * FAKE_SLOTS; nth++)
            fake_fail("cuMemHostRegister_v2", nth, 2);
        assert_int_equal(attach(&trainer, 10000), CAIRN_OK);
        fake_speed(0, 100); /* everything arrives late */
        for (uint64_t step = 1; step <= 4; step++) {
            const uint8_t **before = copy_of_all(&trainer);

            begin_copying(&trainer, step);
            while (cairn_snapshot_captured(trainer.client) == 0)
                nanosleep(&(struct timespec){0, 100000}, NULL);
            for (uint32_t i = 0; step % 2 && i < trainer.count; i++) { /* tensor by tensor */
                assert_int_equal(cairn_snapshot_fence(trainer.client, i), CAIRN_OK);
                memset(bytes_of(&trainer.slices[i]), 0xdd, trainer.slices[i].extent[0]);
            }
            assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
            fill_all(&trainer, 10 * (uint32_t)step);
            assert_true(fake_reaches(&trainer.agent->dones, (int)step));
            check_slot(&trainer, before);
        }
        fake_state(&seen);
        assert_int_equal(seen.pageable_copies, 0);
        assert_true(seen.async_copies > 0);
        detach(&trainer);
        assert_int_equal(lines.warning_count,
                         pinned ? 0 : 2); /* each device says once that it cannot pin */
        end(&trainer);
    }
}

/* A snapshot is the state after the work that each device's own stream had been given at begin,
 * however late the grant comes; what the stream is given after that is not waited for. */
static void
test_ordered_after_the_streams(void **state)
{
    struct trainer trainer;
    uint64_t start_ms;

    start(&trainer);
    assert_int_equal(attach(&trainer, 10000), CAIRN_OK);
    for (uint64_t step = 1; step <= 3; step++) {
        uint64_t spare;

        assert_int_equal(fake_alloc(0, &spare, 4096), 0);
        for (int d = 0; d < 2; d++)
            assert_int_equal(fake_fill(trainer.streams[d], trainer.large[d], (uint8_t)(40 + step),
                                       LARGE_BYTES, 60000),
                             0);
        trainer.agent->hold_grants = 1;
        begin_copying(&trainer, step);
        start_ms = fake_now_ms();
        assert_int_equal(fake_fill(trainer.streams[0], spare, 1, 4096, 1500000), 0);
        trainer.agent->hold_grants = 0;
        assert_true(fake_reaches(&trainer.agent->dones, (int)step));
        assert_true(fake_now_ms() - start_ms < 1500);
        assert_int_equal(cu_stream_query(trainer.streams[0]), NOT_READY);
        assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
        for (int d = 0; d < 2; d++)
            assert_int_equal(bytes_of(&trainer.slices[d])[7], 40 + (int)step);
        check_slot(&trainer, copy_of_all(&trainer));
        assert_int_equal(cu_stream_finish(trainer.streams[0]), 0);
        assert_int_equal(fake_free(spare), 0);
    }
    detach(&trainer);
    assert_string_equal(lines.warnings, "");
    end(&trainer);
}

/* A device that does nothing any more: no fence says that its tensors may be overwritten, and none
 * waits for longer than it may; snapshots go on when the device does. */
static void
test_silent_device(void **state)
{
    struct trainer trainer;
    uint64_t start_ms;

    start(&trainer);
    assert_int_equal(attach(&trainer, 400), CAIRN_OK);
    fake_hold(1);
    begin_copying(&trainer, 1);
    await_copies();
    assert_int_equal(cairn_snapshot_captured(trainer.client), 0);
    start_ms = fake_now_ms();
    assert_int_equal(cairn_snapshot_fence(trainer.client, 0), CAIRN_TIMEOUT);
    assert_true(fake_now_ms() - start_ms < 3000);
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_TIMEOUT);
    /* it is still being read */
    assert_int_equal(cairn_snapshot_begin(trainer.client, 2), CAIRN_AGAIN);
    fake_hold(0);
    assert_true(fake_reaches(&trainer.agent->cancels, 1));
    assert_int_equal(trainer.agent->dones, 0);
    while (cairn_snapshot_begin(trainer.client, 3) != CAIRN_OK)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_true(fake_reaches(&trainer.agent->dones, 1));
    check_slot(&trainer, copy_of_all(&trainer));
    detach(&trainer);
    end(&trainer);
}

static const char hanging[] = "close-while-a-device-hangs";
static const char failing[] = "close-while-a-device-hangs-and-fails";

static const char restoring[] = "restore-while-a-device-hangs";

/* What the processes below do. */
static int
close_while_a_device_hangs(bool fails)
{
    struct trainer trainer;

    alarm(60); /* rather than to hang */
    start(&trainer);
    if (attach(&trainer, 400) != CAIRN_OK)
        return 2;
    fake_hold(1);
    begin_copying(&trainer, 1);
    await_copies();
    if (fails)
        fake_fail("cuEventQuery", 1, 1);
    cairn_client_close(trainer.client);
    fake_agent_stop(trainer.agent);
    fake_agent_destroy(trainer.agent);
    _exit(0); /* what the driver has is its own */
}

/* A process whose device hangs for ever can end: the client is closed all the same. A fork would
 * not do: threads of the driver that earlier tests left may hold a lock at that moment. */
static void
closes(const char *how)
{
    char *const command[] = {"/proc/self/exe", (char *)(uintptr_t)how, NULL};
    int status;
    pid_t child;

    assert_int_equal(posix_spawn(&child, command[0], NULL, NULL, command, environ), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void
test_closed_while_a_device_hangs(void **state)
{
    closes(hanging);
}

/* So it can where the driver reports an error while the copies hang, as of a tensor that was freed
 * behind a collective that waits. */
static void
test_closed_while_a_failed_device_hangs(void **state)
{
    closes(failing);
}

/* While the trainer captures a CUDA graph no snapshot begins, and no thread of ours disturbs it:
 * not when it pins either, as an agent that comes back has it do. */
static void
test_graph_capture(void **state)
{
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};
    struct trainer trainer;

    start(&trainer);
    assert_int_equal(attach(&trainer, 10000), CAIRN_OK);
    fake_speed(0, 2000);
    begin_copying(&trainer, 1); /* copied while the capture begins */
    assert_int_equal(fake_capture(trainer.streams[0], 1), 0);
    assert_true(fake_reaches(&trainer.agent->dones, 1));
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
    assert_int_equal(cairn_snapshot_begin(trainer.client, 2), CAIRN_AGAIN);
    assert_int_equal(cairn_client_register(trainer.client, trainer.slices, trainer.count),
                     CAIRN_OK);
    assert_int_equal(fake_capture(trainer.streams[0], 0), 0);
    begin_copying(&trainer, 3);
    assert_true(fake_reaches(&trainer.agent->dones, 2));
    assert_int_equal(cairn_client_stats_read(trainer.client, &stats), CAIRN_OK);
    assert_int_equal(stats.snapshots_captured, 2);
    assert_int_equal(stats.snapshots_skipped, 1);
    detach(&trainer);
    assert_string_equal(lines.warnings, "");
    end(&trainer);
}

/* The n-th call of each entry point fails: registration or a snapshot fails, which is logged in at
 * most one line of cause and one of effect; the steps go on; nothing is left behind, and no torn
 * snapshot. */
static void
test_every_driver_error(void **state)
{
    static const char *const symbols[] = {"cuInit",
                                          "cuDeviceGet",
                                          "cuDevicePrimaryCtxRetain",
                                          "cuCtxPushCurrent_v2",
                                          "cuEventCreate",
                                          "cuMemcpyDtoHAsync_v2",
                                          "cuMemcpyBatchAsync",
                                          "cuStreamCreateWithPriority",
                                          "cuStreamWaitEvent",
                                          "cuEventRecord",
                                          "cuEventQuery",
                                          "cuStreamIsCapturing",
                                          "cuMemHostAlloc"};
    static const uint64_t turns[] = {1, 3};
    struct trainer trainer;

    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        for (size_t n = 0; n < sizeof turns / sizeof *turns; n++) {
            const uint8_t **before;
            cairn_err registered;

            start(&trainer);
            if (strcmp(symbols[i], "cuMemHostAlloc") == 0)
                fake_fail("cuMemHostRegister_v2", 1, 2);
            fake_fail(symbols[i], turns[n], 999);
            before = copy_of_all(&trainer);
            registered = attach(&trainer, 5000);
            for (uint64_t step = 1; step <= 4; step++) {
                cairn_err begun = cairn_snapshot_begin(trainer.client, step);

                assert_true(begun == CAIRN_OK || begun == CAIRN_AGAIN);
                while (begun == CAIRN_OK && cairn_snapshot_captured(trainer.client) == 0)
                    /* a fence before the grant gives it up */
                    nanosleep(&(struct timespec){0, 100000}, NULL);
                (void)cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL);
            }
            assert_true(registered == CAIRN_OK || registered == CAIRN_DEVICE ||
                        registered == CAIRN_NOMEM);
            /* on a slow machine */
            assert_true(lines.warning_count - lines_with("device answers again, and") <= 2);
            if (turns[n] == 1)
                assert_int_equal(lines_with("cuda: "), 1);
            assert_true(lines_with("code=999") <= 1);
            detach(&trainer); /* the agent has heard of all that was copied, and hears no more */
            if (trainer.agent->dones)
                check_slot(&trainer, before);
            end(&trainer);
        }
}

/* A device that failed is opened again by itself: two lines when it fails, one when it works
 * again. */
static void
test_failed_device_comes_back(void **state)
{
    uint64_t until_ms = fake_now_ms() + 60000;
    struct trainer trainer;
    uint64_t step = 1;

    start(&trainer);
    assert_int_equal(attach(&trainer, 5000), CAIRN_OK);
    fake_fail_async(2, 700);
    begin_copying(&trainer, step);
    assert_true(fake_reaches(&trainer.agent->cancels, 1));
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_DEVICE);
    for (; step < 20; step++)
        assert_int_equal(cairn_snapshot_begin(trainer.client, step), CAIRN_AGAIN);
    assert_int_equal(lines_with("code=700"), 1);
    assert_int_equal(lines_with("snapshots stop"), 1);
    assert_int_equal(lines.warning_count, 2);
    fake_reset(); /* what a process cannot do for its own context: only the trying again is shown */
    while (cairn_snapshot_begin(trainer.client, ++step) != CAIRN_OK) {
        assert_true(fake_now_ms() < until_ms);
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    assert_true(fake_reaches(&trainer.agent->dones, 1));
    check_slot(&trainer, copy_of_all(&trainer));
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
    detach(&trainer);
    assert_int_equal(lines_with("answers again"), 2); /* in the line of the failure too */
    assert_int_equal(lines.warning_count, 3);
    end(&trainer);
}

/* Tensors that are registered while a device fails are refused with its reason, which was logged
 * before. */
static void
test_registered_while_a_device_fails(void **state)
{
    struct trainer trainer;

    start(&trainer);
    assert_int_equal(attach(&trainer, 5000), CAIRN_OK);
    fake_fail_async(2, 700);
    begin_copying(&trainer, 1);
    assert_true(fake_reaches(&trainer.agent->cancels, 1));
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_DEVICE);
    assert_int_equal(lines_with("code=700"), 1);
    assert_int_equal(cairn_client_register(trainer.client, trainer.slices, trainer.count),
                     CAIRN_DEVICE);
    assert_int_equal(lines_with("code=700"), 2);
    fake_reset();
    assert_int_equal(cairn_client_register(trainer.client, trainer.slices, trainer.count),
                     CAIRN_OK);
    begin_copying(&trainer, 2);
    assert_true(fake_reaches(&trainer.agent->dones, 1));
    check_slot(&trainer, copy_of_all(&trainer));
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
    detach(&trainer);
    end(&trainer);
}

/* ---- restore ---- */

enum { ROWS = 600, COLUMNS = 1024, SOURCES = 2 };

static struct cairn_slice
rows(uint64_t from, uint64_t count, void *address, int32_t device)
{
    return (struct cairn_slice){
        CAIRN_SLICE_INIT,   .name = "matrix",         .dtype = CAIRN_U8, .kind = CAIRN_PARAM,
        .dims = 2,          .shape = {ROWS, COLUMNS}, .offset = {from},  .extent = {count, COLUMNS},
        .replica_count = 1, .address = address,       .device = device};
}

/* Packs rows [from, from + count) of a matrix as container `index` of what the agent holds. */
static void
store(struct fake_agent *agent, uint32_t index, uint8_t *matrix, uint64_t from, uint64_t count)
{
    struct cairn_slice slice = rows(from, count, matrix + from * COLUMNS, -1);
    struct cairn_manifest_entry entry;
    struct cairn_manifest_rank owner = {.rank = index, .world = SOURCES};
    struct cairn_manifest manifest = {.job_id = 5,
                                      .generation = {2, 40},
                                      .container = index,
                                      .container_count = SOURCES,
                                      .rank_count = 1,
                                      .entry_count = 1};
    static uint64_t crcs[SOURCES][64];
    uint8_t *container, *packed;
    size_t packed_bytes;

    assert_int_equal(cairn_capture_plan(&slice, 1, &entry, &owner.region_bytes, NULL), CAIRN_OK);
    container = calloc(1, owner.region_bytes);
    assert_non_null(container);
    memcpy(container + entry.offset_bytes, slice.address, count * COLUMNS);
    entry.rank = index;
    manifest.container_bytes = owner.region_bytes;
    manifest.block_count = owner.region_bytes / CAIRN_BLOCK_BYTES;
    assert_true(manifest.block_count <= 64);
    for (uint64_t b = 0; b < manifest.block_count; b++)
        crcs[index][b] = cairn_crc64(0, container + b * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES);
    manifest.ranks = &owner;
    manifest.entries = &entry;
    manifest.block_crcs = crcs[index];
    assert_int_equal(cairn_manifest_pack(&manifest, &packed, &packed_bytes), CAIRN_OK);
    agent->manifests[index] = (struct cairn_session_bytes){packed, packed_bytes};
    agent->containers[index] = container;
    agent->container_bytes[index] = owner.region_bytes;
}

/*
 * What two ranks captured comes into one rank with three parts on two devices. The streams have
 * still to initialise the targets when the restore is asked for: what is restored comes after that.
 * Every driver call of the restore may fail: then it reports that, and another try brings
 * everything.
 */
static void
test_restored_into_other_ranks(void **state)
{
    static const char *const symbols[] = {"none",          "cuMemcpyHtoDAsync_v2", "cuEventRecord",
                                          "cuEventCreate", "cuStreamWaitEvent",    "cuEventQuery"};
    uint8_t *matrix = malloc(ROWS * COLUMNS);
    struct trainer trainer;

    assert_non_null(matrix);
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        matrix[i] = (uint8_t)(i * 13 + (i >> 10));
    for (size_t f = 0; f < sizeof symbols / sizeof *symbols; f++) {
        struct cairn_restored restored = {CAIRN_RESTORED_INIT};
        cairn_err err;

        start(&trainer);
        trainer.count = 0;
        trainer.slices[trainer.count++] = rows(0, 250, (void *)(uintptr_t)trainer.large[0], 0);
        trainer.slices[trainer.count++] = rows(250, 250, (void *)(uintptr_t)trainer.large[1], 1);
        trainer.slices[trainer.count++] = rows(500, 100, (void *)(uintptr_t)trainer.small, 0);
        store(trainer.agent, 0, matrix, 0, 310);
        store(trainer.agent, 1, matrix, 310, ROWS - 310);
        trainer.agent->generation = (struct cairn_generation_id){.epoch = 2, .step = 40};
        trainer.agent->container_count = SOURCES;
        trainer.agent->own_container = 0;
        trainer.agent->own_slot = 1;
        memcpy(trainer.agent->slots[1], trainer.agent->containers[0],
               trainer.agent->container_bytes[0]);
        assert_int_equal(attach(&trainer, 5000), CAIRN_OK);
        for (int d = 0; d < 2; d++)
            assert_int_equal(
                fake_fill(trainer.streams[d], trainer.large[d], 0x99, LARGE_BYTES, 80000), 0);
        fake_fail(symbols[f], 1, 999);
        err = cairn_client_restore(trainer.client, &restored);
        if (f > 0) {
            assert_int_equal(err, CAIRN_DEVICE);
            assert_int_equal(lines_with("code=999"), 1);
            err = cairn_client_restore(trainer.client, &restored);
        }
        assert_int_equal(err, CAIRN_OK);
        assert_int_equal(restored.bytes, ROWS * COLUMNS);
        assert_memory_equal(fake_view(trainer.large[0]), matrix, 250 * COLUMNS);
        assert_memory_equal(fake_view(trainer.large[1]), matrix + 250 * COLUMNS, 250 * COLUMNS);
        assert_memory_equal(fake_view(trainer.small), matrix + 500 * COLUMNS, 100 * COLUMNS);
        detach(&trainer);
        for (int i = 0; i < SOURCES; i++) {
            free((void *)(uintptr_t)trainer.agent->manifests[i].bytes);
            free((void *)(uintptr_t)trainer.agent->containers[i]);
        }
        end(&trainer);
    }
    free(matrix);
}

/* Of memory that a device is writing: nothing orders the two but that it changes. */
__attribute__((no_sanitize("thread"))) static uint8_t
peek(uint64_t address)
{
    return *(volatile uint8_t *)fake_view(address);
}

/* What the process below does. */
static int
restore_while_a_device_hangs(void)
{
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    uint8_t *matrix = malloc(ROWS * COLUMNS);
    struct trainer trainer;
    cairn_err err;

    alarm(60); /* rather than to hang */
    if (!matrix)
        return 2;
    memset(matrix, 7, ROWS * COLUMNS);
    start(&trainer);
    trainer.count = 0;
    trainer.slices[trainer.count++] = rows(0, 250, (void *)(uintptr_t)trainer.large[0], 0);
    store(trainer.agent, 0, matrix, 0, 310);
    store(trainer.agent, 1, matrix, 310, ROWS - 310);
    trainer.agent->generation = (struct cairn_generation_id){.epoch = 2, .step = 40};
    trainer.agent->container_count = SOURCES;
    restore_timeout_ms = 500;
    if (attach(&trainer, 400) != CAIRN_OK)
        return 3;
    fake_hold(1);
    if (cairn_client_restore(trainer.client, &restored) != CAIRN_TIMEOUT)
        return 4;
    /* The next one does not even ask while copies of this one may come. */
    if (cairn_client_restore(trainer.client, &restored) != CAIRN_TIMEOUT ||
        atomic_load(&trainer.agent->restores) != 1)
        return 5;
    fake_hold(0); /* what it may still read is there */
    while (peek(trainer.large[0]) != 7)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    memset(matrix, 9, ROWS * COLUMNS);
    store(trainer.agent, 0, matrix, 0, 310);
    store(trainer.agent, 1, matrix, 310, ROWS - 310);
    do
        err = cairn_client_restore(trainer.client, &restored);
    while (err == CAIRN_TIMEOUT); /* a slow machine */
    if (err != CAIRN_OK || memcmp(fake_view(trainer.large[0]), matrix, 250 * COLUMNS) != 0)
        return 6;
    cairn_client_close(trainer.client);
    fake_agent_stop(trainer.agent);
    fake_agent_destroy(trainer.agent);
    _exit(0);
}

/* A restore returns when its time is over, although a device hangs; the next one waits for what it
 * left. */
static void
test_restored_while_a_device_hangs(void **state)
{
    closes(restoring);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_captured_and_overwritten),
        cmocka_unit_test(test_ordered_after_the_streams),
        cmocka_unit_test(test_silent_device),
        cmocka_unit_test(test_closed_while_a_device_hangs),
        cmocka_unit_test(test_closed_while_a_failed_device_hangs),
        cmocka_unit_test(test_graph_capture),
        cmocka_unit_test(test_every_driver_error),
        cmocka_unit_test(test_failed_device_comes_back),
        cmocka_unit_test(test_registered_while_a_device_fails),
        cmocka_unit_test(test_restored_into_other_ranks),
        cmocka_unit_test(test_restored_while_a_device_hangs),
    };

    if (argc == 2 && (strcmp(argv[1], hanging) == 0 || strcmp(argv[1], failing) == 0))
        return load_fake(NULL) == 0 ? close_while_a_device_hangs(strcmp(argv[1], failing) == 0) : 1;
    if (argc == 2 && strcmp(argv[1], restoring) == 0)
        return load_fake(NULL) == 0 ? restore_while_a_device_hangs() : 1;
    return cmocka_run_group_tests(tests, load_fake, NULL);
}
