/*
 * tests/unit/client/test_fence.c - what a fence waits for, shown with an engine that obeys the
 * test.
 *
 * The capture engine is replaced by one of the same interface that copies nothing by itself: the
 * test moves its watermark, ends it, makes it fail or hang. So every order of events is made, not
 * hoped for.
 */
#include "cairn/client.h"

#include "tests/support/cmocka.h"
#include "tests/support/fake_agent.h"

#include "snapshot/capture.h"

enum { SLICE_BYTES = 2 * CAIRN_BLOCK_BYTES, SLICES = 3, MARGIN_MS = 2000 };

/* ---- the engine ---- */

struct cairn_capture {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct cairn_capture_job job;
    uint64_t watermark;
    bool running, ever, hangs, hold_start, start_held;
    cairn_err start_err, result;
    int cancels, waiting;
    uint64_t reported_blocks;
};

static struct cairn_capture engine = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                      .changed = PTHREAD_COND_INITIALIZER};

static bool
engine_wait(uint64_t deadline_ns)
{
    struct timespec soon;

    if ((uint64_t)fake_now_ms() * 1000000 >= deadline_ns)
        return false;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 1000000;
    if (soon.tv_nsec >= 1000000000) {
        soon.tv_nsec -= 1000000000;
        soon.tv_sec++;
    }
    pthread_cond_timedwait(&engine.changed, &engine.lock, &soon);
    return true;
}

cairn_err
cairn_capture_create(const struct cairn_capture_options *options, struct cairn_capture **out)
{
    *out = &engine;
    return CAIRN_OK;
}

void
cairn_capture_destroy(struct cairn_capture *capture)
{
}

cairn_err
cairn_capture_prepare(struct cairn_capture *capture, int32_t device, void *memory, uint64_t bytes)
{
    (void)capture, (void)device, (void)memory, (void)bytes;
    return CAIRN_OK;
}

void
cairn_capture_map_next(struct cairn_capture *capture, uint8_t *region, uint64_t bytes)
{
}

bool
cairn_capture_forget(struct cairn_capture *capture, void *memory)
{
    cairn_capture_cancel(capture);
    return true;
}

void
cairn_capture_give_up(struct cairn_capture *capture, uint64_t after_ns)
{
    (void)capture, (void)after_ns;
}

cairn_err
cairn_capture_order(struct cairn_capture *capture, int32_t device, void *stream)
{
    (void)capture, (void)device, (void)stream;
    return CAIRN_OK;
}

cairn_err
cairn_capture_start(struct cairn_capture *capture, const struct cairn_capture_job *job)
{
    cairn_err err;

    pthread_mutex_lock(&capture->lock);
    while (capture->hold_start) {
        capture->start_held = true;
        pthread_cond_broadcast(&capture->changed);
        (void)engine_wait(UINT64_MAX);
    }
    err = capture->start_err;
    if (!err) {
        capture->job = *job;
        capture->watermark = 0;
        capture->reported_blocks = 0;
        capture->running = true;
        capture->ever = true;
        capture->result = CAIRN_AGAIN;
        pthread_cond_broadcast(&capture->changed);
    }
    pthread_mutex_unlock(&capture->lock);
    return err;
}

cairn_err
cairn_capture_wait(struct cairn_capture *capture, uint64_t until_bytes, uint64_t deadline_ns)
{
    bool in_time = true;
    cairn_err err;

    pthread_mutex_lock(&capture->lock);
    capture->waiting++;
    pthread_cond_broadcast(&capture->changed);
    while (capture->watermark < until_bytes && capture->running && in_time)
        in_time = engine_wait(deadline_ns);
    capture->waiting--;
    err = capture->watermark >= until_bytes ? CAIRN_OK
          : capture->running                ? CAIRN_TIMEOUT
                                            : capture->result;
    pthread_mutex_unlock(&capture->lock);
    return err;
}

uint64_t
cairn_capture_watermark(const struct cairn_capture *capture)
{
    return capture->watermark;
}

cairn_err
cairn_capture_finish(struct cairn_capture *capture, uint64_t deadline_ns)
{
    bool in_time = true, running;

    pthread_mutex_lock(&capture->lock);
    while (capture->running && in_time)
        in_time = engine_wait(deadline_ns);
    running = capture->running;
    pthread_mutex_unlock(&capture->lock);
    return running ? CAIRN_TIMEOUT : CAIRN_OK;
}

/* Calls back without the lock, as the real one does, then is idle. */
static void
engine_end(cairn_err result)
{
    struct cairn_capture_job job;

    pthread_mutex_lock(&engine.lock);
    if (!engine.running) {
        pthread_mutex_unlock(&engine.lock);
        return;
    }
    job = engine.job;
    engine.result = result;
    pthread_mutex_unlock(&engine.lock);
    job.on_done(job.context, result);
    pthread_mutex_lock(&engine.lock);
    engine.running = false;
    pthread_cond_broadcast(&engine.changed);
    pthread_mutex_unlock(&engine.lock);
}

void
cairn_capture_cancel(struct cairn_capture *capture)
{
    pthread_mutex_lock(&capture->lock);
    capture->cancels++;
    pthread_cond_broadcast(&capture->changed);
    while (capture->hangs)
        (void)engine_wait(UINT64_MAX);
    pthread_mutex_unlock(&capture->lock);
    engine_end(CAIRN_AGAIN);
}

/* The sources are read up to here, and the whole blocks before it are complete. */
static void
engine_copies(uint64_t bytes)
{
    uint64_t blocks = bytes / CAIRN_BLOCK_BYTES, crc = 1;

    pthread_mutex_lock(&engine.lock);
    engine.watermark = bytes;
    pthread_cond_broadcast(&engine.changed);
    pthread_mutex_unlock(&engine.lock);
    for (; engine.reported_blocks < blocks; engine.reported_blocks++)
        engine.job.on_blocks(engine.job.context, engine.reported_blocks, 1, &crc);
}

static void
engine_until(const bool *flag, const int *count)
{
    uint64_t until_ms = fake_now_ms() + 60000;
    bool there;

    do {
        assert_true(fake_now_ms() < until_ms);
        pthread_mutex_lock(&engine.lock);
        there = (flag && *flag) || (count && *count);
        if (!there)
            (void)engine_wait(UINT64_MAX);
        pthread_mutex_unlock(&engine.lock);
    } while (!there);
}

/* ---- the trainer ---- */

struct trainer {
    struct fake_agent *agent;
    struct cairn_client *client;
    uint8_t *bytes;
};

static void
setup(struct trainer *trainer, uint32_t fence_timeout_ms)
{
    struct cairn_client_options options = {CAIRN_CLIENT_OPTIONS_INIT, .rank = 0, .world = 1,
                                           .fence_timeout_ms = fence_timeout_ms};
    struct cairn_slice slices[SLICES];
    char names[SLICES][16];

    engine.running = engine.ever = engine.hangs = engine.hold_start = engine.start_held = false;
    engine.watermark = UINT64_MAX; /* as if left by a capture before */
    engine.start_err = CAIRN_OK;
    engine.cancels = 0;
    trainer->agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    fake_agent_start(trainer->agent);
    trainer->bytes = calloc(SLICES, SLICE_BYTES);
    assert_non_null(trainer->bytes);
    for (int i = 0; i < SLICES; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        slices[i] = (struct cairn_slice){CAIRN_SLICE_INIT,
                                         .name = names[i],
                                         .dtype = CAIRN_U8,
                                         .kind = CAIRN_BUFFER,
                                         .dims = 1,
                                         .shape = {SLICE_BYTES},
                                         .extent = {SLICE_BYTES},
                                         .address = trainer->bytes + i * SLICE_BYTES,
                                         .device = -1};
    }
    options.agent_socket = trainer->agent->path;
    assert_int_equal(cairn_client_open(&options, &trainer->client), CAIRN_OK);
    assert_int_equal(cairn_client_register(trainer->client, slices, SLICES), CAIRN_OK);
}

static void
teardown(struct trainer *trainer)
{
    cairn_client_close(trainer->client);
    fake_agent_stop(trainer->agent);
    assert_int_equal(trainer->agent->damaged, 0);
    fake_agent_destroy(trainer->agent);
    free(trainer->bytes);
}

static struct cairn_client_stats
stats_of(const struct trainer *trainer)
{
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};

    assert_int_equal(cairn_client_stats_read(trainer->client, &stats), CAIRN_OK);
    return stats;
}

/* A fence on another thread, so that the test can see that it waits. */
struct fencing {
    pthread_t thread;
    struct cairn_client *client;
    uint32_t slice;
    cairn_err result;
    atomic_int returned;
};

static void *
fence_thread(void *argument)
{
    struct fencing *fencing = argument;

    fencing->result = cairn_snapshot_fence(fencing->client, fencing->slice);
    fencing->returned = 1;
    return NULL;
}

static void
fence_start(struct fencing *fencing, struct trainer *trainer, uint32_t slice)
{
    memset(fencing, 0, sizeof *fencing);
    fencing->client = trainer->client;
    fencing->slice = slice;
    assert_int_equal(pthread_create(&fencing->thread, NULL, fence_thread, fencing), 0);
}

static cairn_err
fence_end(struct fencing *fencing)
{
    pthread_join(fencing->thread, NULL);
    return fencing->result;
}

static void
begin_running(struct trainer *trainer, uint64_t step)
{
    assert_int_equal(cairn_snapshot_begin(trainer->client, step), CAIRN_OK);
    engine_until(&engine.running, NULL);
}

/* ---- the tests ---- */

/* A slice that is copied may be overwritten while the others are not: its fence returns, theirs
 * wait. The fence of all waits for the copy's end. */
static void
test_slice_by_slice(void **state)
{
    struct fencing fencing;
    struct trainer trainer;

    setup(&trainer, 10000);
    assert_int_equal(cairn_snapshot_captured(trainer.client), CAIRN_FENCE_ALL);
    begin_running(&trainer, 1);
    for (uint32_t i = 0; i < SLICES; i++) {
        engine_copies(i * SLICE_BYTES + SLICE_BYTES - 1); /* all but a byte */
        fence_start(&fencing, &trainer, i);
        engine_until(NULL, &engine.waiting);
        assert_int_equal(fencing.returned, 0);
        assert_int_equal(cairn_snapshot_captured(trainer.client), i);
        engine_copies((i + 1) * SLICE_BYTES);
        assert_int_equal(cairn_snapshot_captured(trainer.client),
                         i == SLICES - 1 ? CAIRN_FENCE_ALL : i + 1);
        assert_int_equal(fence_end(&fencing), CAIRN_OK);
        for (uint32_t j = 0; j <= i; j++) /* without waiting */
            assert_int_equal(cairn_snapshot_fence(trainer.client, j), CAIRN_OK);
    }
    assert_int_equal(trainer.agent->dones, 0); /* not ended: their fences have */
    assert_int_equal(cairn_snapshot_begin(trainer.client, 2), CAIRN_AGAIN);
    fence_start(&fencing, &trainer, CAIRN_FENCE_ALL);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    assert_int_equal(fencing.returned, 0);
    engine_end(CAIRN_OK);
    assert_int_equal(fence_end(&fencing), CAIRN_OK);
    assert_true(fake_reaches(&trainer.agent->dones, 1));
    assert_int_equal(stats_of(&trainer).snapshots_captured, 1);
    teardown(&trainer);
}

/* Between the grant and the engine's start the watermark is the last capture's: it must not count.
 */
static void
test_old_watermark(void **state)
{
    struct fencing fencing;
    struct trainer trainer;

    setup(&trainer, 10000);
    engine.hold_start = true;
    assert_int_equal(cairn_snapshot_begin(trainer.client, 1), CAIRN_OK);
    engine_until(&engine.start_held, NULL);
    fence_start(&fencing, &trainer, 0);
    assert_int_equal(cairn_snapshot_captured(trainer.client), 0);
    nanosleep(&(struct timespec){0, 20000000}, NULL); /* time to go wrong in */
    assert_int_equal(fencing.returned, 0);
    pthread_mutex_lock(&engine.lock);
    engine.hold_start = false;
    pthread_cond_broadcast(&engine.changed);
    pthread_mutex_unlock(&engine.lock);
    engine_until(NULL, &engine.waiting);
    assert_int_equal(fencing.returned, 0);
    engine_copies(SLICES * SLICE_BYTES);
    assert_int_equal(fence_end(&fencing), CAIRN_OK);
    engine_end(CAIRN_OK);
    assert_true(fake_reaches(&trainer.agent->dones, 1));
    assert_int_equal(cairn_snapshot_begin(trainer.client, 2), CAIRN_OK);
    assert_int_not_equal(cairn_snapshot_captured(trainer.client), CAIRN_FENCE_ALL);
    engine_until(&engine.running, NULL);
    engine_end(CAIRN_DEVICE); /* read no further: all may be overwritten, and the fence says why */
    assert_true(fake_reaches(&trainer.agent->cancels, 1));
    assert_int_equal(cairn_snapshot_captured(trainer.client), CAIRN_FENCE_ALL);
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_DEVICE);
    teardown(&trainer);
}

/* The fence gives up in time, tells the agent, and the next snapshot works. */
static void
test_timeout(void **state)
{
    uint64_t start_ms;
    struct trainer trainer;

    setup(&trainer, MARGIN_MS);
    begin_running(&trainer, 1);
    engine_copies(CAIRN_BLOCK_BYTES);
    start_ms = fake_now_ms();
    assert_int_equal(cairn_snapshot_fence(trainer.client, 1), CAIRN_TIMEOUT);
    assert_true(fake_now_ms() - start_ms < 2 * MARGIN_MS); /* it is waited for once */
    assert_true(fake_now_ms() - start_ms >= MARGIN_MS / 2);
    assert_true(engine.cancels > 0);
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_TIMEOUT);
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
    assert_true(fake_reaches(&trainer.agent->cancels, 1));
    assert_int_equal(trainer.agent->cancel_reason, CAIRN_REASON_TIMEOUT);
    assert_int_equal(trainer.agent->dones, 0);
    begin_running(&trainer, 2);
    engine_copies(SLICES * SLICE_BYTES);
    engine_end(CAIRN_OK);
    assert_true(fake_reaches(&trainer.agent->dones, 1));
    assert_int_equal(stats_of(&trainer).snapshots_failed, 1);
    assert_int_equal(stats_of(&trainer).snapshots_captured, 1);
    teardown(&trainer);
}

/* Even a copy that cannot be stopped holds the trainer no longer than it may. */
static void
test_hanging_device(void **state)
{
    uint64_t start_ms;
    struct trainer trainer;

    setup(&trainer, MARGIN_MS);
    begin_running(&trainer, 1);
    engine.hangs = true;
    start_ms = fake_now_ms();
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_TIMEOUT);
    assert_true(fake_now_ms() - start_ms < 2 * MARGIN_MS); /* it is waited for once */
    for (uint64_t step = 2; step < 10; step++) {           /* training goes on, without snapshots */
        assert_int_equal(cairn_snapshot_begin(trainer.client, step), CAIRN_AGAIN);
        assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
    }
    assert_int_equal(trainer.agent->cancels,
                     0); /* the slot may still be written: not said before it ends */
    pthread_mutex_lock(&engine.lock);
    engine.hangs = false;
    pthread_cond_broadcast(&engine.changed);
    pthread_mutex_unlock(&engine.lock);
    assert_true(fake_reaches(&trainer.agent->cancels, 1));
    assert_int_equal(trainer.agent->dones, 0);
    assert_int_equal(stats_of(&trainer).snapshots_failed, 1);
    teardown(&trainer);
}

static void
test_copy_fails(void **state)
{
    struct fencing fencing;
    struct trainer trainer;

    setup(&trainer, 10000);
    begin_running(&trainer, 1);
    fence_start(&fencing, &trainer, 2);
    engine_until(NULL, &engine.waiting);
    engine_end(CAIRN_DEVICE);
    assert_int_equal(fence_end(&fencing), CAIRN_DEVICE);
    assert_true(fake_reaches(&trainer.agent->cancels, 1));
    assert_int_equal(trainer.agent->cancel_reason, CAIRN_REASON_DEVICE);
    engine.start_err = CAIRN_DEVICE; /* and the next cannot even start */
    assert_int_equal(cairn_snapshot_begin(trainer.client, 2), CAIRN_OK);
    assert_true(fake_reaches(&trainer.agent->cancels, 2));
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_DEVICE);
    engine.start_err = CAIRN_OK;
    begin_running(&trainer, 3);
    engine_copies(SLICES * SLICE_BYTES);
    engine_end(CAIRN_OK);
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
    assert_true(fake_reaches(&trainer.agent->dones, 1));
    assert_int_equal(stats_of(&trainer).snapshots_failed, 2);
    teardown(&trainer);
}

/* An engine that says it is done without having reported every block is not believed. */
static void
test_incomplete(void **state)
{
    struct trainer trainer;

    setup(&trainer, 10000);
    begin_running(&trainer, 1);
    engine_copies(SLICES * SLICE_BYTES - 1);
    engine_end(CAIRN_OK);
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_INTERNAL);
    assert_true(fake_reaches(&trainer.agent->cancels, 1));
    assert_int_equal(trainer.agent->dones, 0);
    teardown(&trainer);
}

/* The agent gives the generation up, or dies, while a fence waits: the copy is stopped, the fence
 * returns. */
static void
test_given_up_while_waiting(void **state)
{
    struct fencing fencing;
    struct trainer trainer;

    setup(&trainer, 10000);
    trainer.agent->drop_at_grant = 1;
    assert_int_equal(cairn_snapshot_begin(trainer.client, 1), CAIRN_OK);
    assert_true(fake_reaches(&trainer.agent->cancels, 1)); /* once the copy had ended */
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_AGAIN);
    assert_true(engine.cancels > 0);
    trainer.agent->drop_at_grant = 0;
    begin_running(&trainer, 2);
    fence_start(&fencing, &trainer, 1);
    engine_until(NULL, &engine.waiting);
    fake_agent_stop(trainer.agent);
    assert_int_equal(fence_end(&fencing), CAIRN_AGAIN);
    fake_agent_start(trainer.agent);
    teardown(&trainer);
}

/* A held snapshot is known as good when the trainer confirms it, whether the copy has ended by then
 * or not, and never otherwise. */
static void
test_held(void **state)
{
    struct trainer trainer;

    setup(&trainer, 10000);
    assert_int_equal(cairn_snapshot_confirm(trainer.client, true), CAIRN_NOT_FOUND);
    for (uint64_t step = 1; step <= 5; step++) {
        assert_int_equal(step < 5 ? cairn_snapshot_begin_held(trainer.client, step)
                                  : cairn_snapshot_begin_last(trainer.client, step),
                         CAIRN_OK);
        engine_until(&engine.running, NULL);
        assert_int_equal(trainer.agent->lasts, step == 5);
        if (step == 1) /* in the middle of the copy */
            assert_int_equal(cairn_snapshot_confirm(trainer.client, true), CAIRN_OK);
        else if (step == 2)
            assert_int_equal(cairn_snapshot_confirm(trainer.client, false), CAIRN_OK);
        if (step != 2) { /* the refused one is cancelled by the client */
            engine_copies(SLICES * SLICE_BYTES);
            engine_end(CAIRN_OK);
        }
        assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL),
                         step == 2 ? CAIRN_INVAL : CAIRN_OK);
        if (step == 3 || step == 5) { /* after the fence; 4 is left without a word */
            nanosleep(&(struct timespec){0, 20000000}, NULL); /* time to go wrong in */
            assert_int_equal(trainer.agent->dones, step == 3 ? 1 : 2);
            assert_int_equal(cairn_snapshot_confirm(trainer.client, step == 3), CAIRN_OK);
            assert_int_equal(cairn_snapshot_confirm(trainer.client, true), CAIRN_NOT_FOUND);
        }
        if (step != 4)
            assert_true(fake_reaches(step == 2 || step == 5 ? &trainer.agent->cancels
                                                            : &trainer.agent->dones,
                                     step == 1 || step == 2 ? 1
                                     : step == 3            ? 2
                                                            : 3));
    }
    assert_int_equal(stats_of(&trainer).snapshots_captured, 2);
    assert_int_equal(stats_of(&trainer).snapshots_failed, 3);
    teardown(&trainer);
}

/* The last step is awaited until it is committed, cannot be any more, or the time is over. */
static void
test_last(void **state)
{
    struct trainer trainer;

    setup(&trainer, 10000);
    begin_running(&trainer, 1);
    engine_copies(SLICES * SLICE_BYTES);
    engine_end(CAIRN_OK);
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
    assert_int_equal(cairn_snapshot_await_commit(trainer.client, MARGIN_MS), CAIRN_NOT_FOUND);
    for (uint64_t step = 2; step <= 4; step++) {
        trainer.agent->commits = step == 2;
        assert_int_equal(cairn_snapshot_begin_last(trainer.client, step), CAIRN_OK);
        engine_until(&engine.running, NULL);
        engine_copies(SLICES * SLICE_BYTES);
        engine_end(CAIRN_OK);
        assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
        assert_int_equal(cairn_snapshot_confirm(trainer.client, step != 4), CAIRN_OK);
        assert_int_equal(cairn_snapshot_await_commit(trainer.client, step == 3 ? 20 : 60000),
                         step == 2   ? CAIRN_OK
                         : step == 3 ? CAIRN_TIMEOUT /* the agent says nothing */
                                     : CAIRN_AGAIN); /* refused: nothing to wait for */
    }
    teardown(&trainer);
}

static void *
end_thread(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    engine_end(CAIRN_OK);
    return NULL;
}

/* On a busy machine the engine's thread may end a copy long after its last byte: a fence of all
 * waits for that, so that the next step, here the last, can begin. */
static void
test_begin_after_a_fence_of_all(void **state)
{
    struct trainer trainer;
    pthread_t thread;

    setup(&trainer, 10000);
    assert_int_equal(cairn_snapshot_begin_held(trainer.client, 1), CAIRN_OK);
    engine_until(&engine.running, NULL);
    engine_copies(SLICES * SLICE_BYTES);
    assert_int_equal(cairn_snapshot_fence(trainer.client, SLICES - 1), CAIRN_OK);
    assert_int_equal(pthread_create(&thread, NULL, end_thread, NULL), 0);
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
    assert_int_equal(stats_of(&trainer).snapshots_captured, 1);
    assert_int_equal(cairn_snapshot_confirm(trainer.client, true), CAIRN_OK);
    assert_int_equal(cairn_snapshot_begin_last(trainer.client, 2), CAIRN_OK);
    pthread_join(thread, NULL);
    assert_true(fake_reaches(&trainer.agent->lasts, 1));
    engine_until(&engine.running, NULL);
    engine_copies(SLICES * SLICE_BYTES);
    engine_end(CAIRN_OK);
    assert_int_equal(cairn_snapshot_confirm(trainer.client, true), CAIRN_OK);
    assert_true(fake_reaches(&trainer.agent->dones, 2));
    teardown(&trainer);
}

/* Two slices of one memory: it is read twice, and may be overwritten after the second time alone,
 * in any order of asking. */
static void
test_slices_that_share_memory(void **state)
{
    struct cairn_slice slices[SLICES];
    struct fencing fencing;
    struct trainer trainer;

    setup(&trainer, 10000);
    for (int i = 0; i < SLICES; i++)
        slices[i] = (struct cairn_slice){
            CAIRN_SLICE_INIT,
            .name = i == 0   ? "whole"
                    : i == 1 ? "apart"
                             : "its second half",
            .dtype = CAIRN_U8,
            .kind = CAIRN_BUFFER,
            .dims = 1,
            .shape = {SLICE_BYTES},
            .extent = {SLICE_BYTES},
            .address = trainer.bytes + (i == 1 ? 2 * SLICE_BYTES : i * SLICE_BYTES / 4),
            .device = -1};
    assert_int_equal(cairn_client_register(trainer.client, slices, SLICES), CAIRN_OK);
    begin_running(&trainer, 1);
    engine_copies(2 * SLICE_BYTES);
    /* read for the last time */
    assert_int_equal(cairn_snapshot_fence(trainer.client, 1), CAIRN_OK);
    assert_int_equal(cairn_snapshot_captured(trainer.client), 0);
    fence_start(&fencing, &trainer, 0);
    engine_until(NULL, &engine.waiting);
    assert_int_equal(fencing.returned, 0);
    engine_copies(3 * SLICE_BYTES);
    assert_int_equal(fence_end(&fencing), CAIRN_OK);
    assert_int_equal(cairn_snapshot_captured(trainer.client), CAIRN_FENCE_ALL);
    engine_end(CAIRN_OK);
    assert_int_equal(cairn_snapshot_fence(trainer.client, CAIRN_FENCE_ALL), CAIRN_OK);
    teardown(&trainer);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_that_share_memory),
        cmocka_unit_test(test_slice_by_slice),
        cmocka_unit_test(test_old_watermark),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_hanging_device),
        cmocka_unit_test(test_copy_fails),
        cmocka_unit_test(test_incomplete),
        cmocka_unit_test(test_given_up_while_waiting),
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_last),
        cmocka_unit_test(test_begin_after_a_fence_of_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
