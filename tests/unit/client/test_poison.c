/* tests/unit/client/test_poison.c - what a client tells its agent of states that are not finite,
 * and of steps that the trainer rejects. */
#include "tests/support/client_model.h"

enum { ELEMENTS = 50000, PARTS = 3, MASK = 1, NUMBERS = 2, BF16_ONE = 0x3f80, BF16_NAN = 0x7fc0 };

/* A parameter, a mask with infinities from the start, and integers that would be NaN as floats. */
struct job {
    struct fake_agent *agent;
    struct cairn_client *client;
    uint16_t weight[ELEMENTS];
    uint32_t mask[ELEMENTS];
    uint32_t numbers[ELEMENTS];
    struct cairn_slice slices[PARTS];
    uint64_t step;
};

static struct cairn_slice
slice_of(const char *name, enum cairn_dtype dtype, void *address)
{
    return (struct cairn_slice){CAIRN_SLICE_INIT,     .name = name,       .dtype = dtype,
                                .kind = CAIRN_PARAM,  .dims = 1,          .shape = {ELEMENTS},
                                .extent = {ELEMENTS}, .replica_count = 1, .address = address,
                                .device = -1};
}

static int
set_up(void **state)
{
    struct job *job = calloc(1, sizeof *job);

    if (!job)
        return -1;
    (void)reset(state);
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        job->weight[i] = BF16_ONE;
        job->mask[i] = i % 2 ? 0xff800000 : 0;
        job->numbers[i] = UINT32_MAX;
    }
    job->slices[0] = slice_of("weight", CAIRN_BF16, job->weight);
    job->slices[MASK] = slice_of("mask", CAIRN_F32, job->mask);
    job->slices[NUMBERS] = slice_of("numbers", CAIRN_I32, job->numbers);
    job->agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    job->agent->welcome_flags = CAIRN_WELCOME_POISON;
    job->agent->poison_answer = CAIRN_REASON_POISONED;
    *state = job;
    return 0;
}

static int
tear_down(void **state)
{
    struct job *job = *state;
    int damaged = job->agent->damaged;

    cairn_client_close(job->client);
    fake_agent_stop(job->agent);
    fake_agent_destroy(job->agent);
    free(job);
    return damaged;
}

static void
open_job(struct job *job)
{
    fake_agent_start(job->agent);
    job->client = open_client(job->agent);
    assert_int_equal(cairn_client_register(job->client, job->slices, PARTS), CAIRN_OK);
}

/* Takes the next step, and its snapshot. */
static void
take_step(struct job *job)
{
    begin_soon(job->client, ++job->step);
}

/* The next step is copied, and held. */
static void
hold_step(struct job *job)
{
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};
    uint64_t before, until_ms = fake_now_ms() + 60000;

    assert_int_equal(cairn_client_stats_read(job->client, &stats), CAIRN_OK);
    before = stats.snapshots_captured;
    assert_int_equal(cairn_snapshot_begin_held(job->client, ++job->step), CAIRN_OK);
    while (stats.snapshots_captured == before) {
        assert_true(fake_now_ms() < until_ms);
        assert_int_equal(cairn_client_stats_read(job->client, &stats), CAIRN_OK);
    }
    assert_int_equal(cairn_snapshot_fence(job->client, CAIRN_FENCE_ALL), CAIRN_OK);
}

static void
expect(struct job *job, int dones, int poisons)
{
    if (poisons)
        assert_true(fake_reaches(&job->agent->poisons, poisons));
    if (dones)
        assert_true(fake_reaches(&job->agent->dones, dones));
    (void)cairn_snapshot_fence(job->client, CAIRN_FENCE_ALL);
    assert_int_equal(job->agent->dones, dones);
    assert_int_equal(job->agent->poisons, poisons);
    assert_int_equal(job->agent->cancels, 0);
}

/* A client logs after it has sent: waits for the line. */
static bool
lines_reach(const char *part, int count)
{
    uint64_t until_ms = fake_now_ms() + 60000;

    while (count_lines(part) < count && fake_now_ms() < until_ms)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    return count_lines(part) == count;
}

/* What was finite and is not is told by name; what never was, and integers, are not. */
static void
nan_is_told(void **state)
{
    struct job *job = *state;
    const struct cairn_session_poison *poison = &job->agent->poison;

    open_job(job);
    take_step(job);
    expect(job, 1, 0);
    job->weight[ELEMENTS - 1] = BF16_NAN;
    take_step(job);
    expect(job, 1, 1);
    assert_string_equal(poison->name, "weight");
    assert_int_equal(poison->tensors, 1);
    assert_int_equal(poison->generation.step, 2);
    assert_false(poison->is_rejected);
    take_step(job); /* it stays as it is, and is logged once */
    expect(job, 1, 2);
    assert_true(lines_reach("is poisoned", 1));
    job->weight[ELEMENTS - 1] = BF16_ONE;
    take_step(job);
    expect(job, 2, 2);
    job->weight[0] = BF16_NAN;
    take_step(job);
    expect(job, 2, 3);
    assert_true(lines_reach("is poisoned", 2));
    assert_false(cairn_client_stop_wanted(job->client));
}

/* A trainer that saves when it means to has every generation kept but those that it rejects. */
static void
a_trainer_may_keep_it(void **state)
{
    struct job *job = *state;
    struct cairn_client_options options = options_for(job->agent->path);

    options.keeps_poisoned = 1;
    fake_agent_start(job->agent);
    assert_int_equal(cairn_client_open(&options, &job->client), CAIRN_OK);
    assert_int_equal(cairn_client_register(job->client, job->slices, PARTS), CAIRN_OK);
    take_step(job);
    expect(job, 1, 0);
    job->weight[0] = BF16_NAN;
    take_step(job);
    expect(job, 2, 0);
    assert_int_equal(cairn_snapshot_reject(job->client, job->step + 1, "spike"), CAIRN_OK);
    take_step(job);
    expect(job, 2, 1);
}

/* What is known of a tensor stays when the tensors are registered again; a new one is learned. */
static void
what_is_known_is_kept_by_name(void **state)
{
    struct job *job = *state;
    struct cairn_slice slice;

    open_job(job);
    take_step(job);
    expect(job, 1, 0);
    slice = job->slices[0];
    job->slices[0] = job->slices[MASK];
    job->slices[MASK] = slice;
    job->slices[NUMBERS] = slice_of("new", CAIRN_F32, job->numbers);
    assert_int_equal(cairn_client_register(job->client, job->slices, PARTS), CAIRN_OK);
    take_step(job);
    expect(job, 2, 0);
    job->weight[7] = BF16_NAN;
    assert_int_equal(cairn_client_register(job->client, job->slices, PARTS), CAIRN_OK);
    take_step(job);
    expect(job, 2, 1);
    assert_string_equal(job->agent->poison.name, "weight");
}

/* A snapshot that is given up teaches nothing: its NaN was not there from the start. */
static void
only_good_snapshots_teach(void **state)
{
    struct job *job = *state;

    open_job(job);
    job->weight[7] = BF16_NAN;
    hold_step(job);
    assert_int_equal(cairn_snapshot_confirm(job->client, false), CAIRN_OK);
    assert_true(fake_reaches(&job->agent->cancels, 1));
    job->agent->cancels = 0;
    job->weight[7] = BF16_ONE;
    take_step(job);
    expect(job, 1, 0);
    job->weight[7] = BF16_NAN;
    take_step(job);
    expect(job, 1, 1);
}

/* A step is rejected before its snapshot begins, while the grant is awaited, and while it is held,
 * even once confirmed; after DONE it is too late. */
static void
steps_are_rejected(void **state)
{
    struct job *job = *state;
    const struct cairn_session_poison *poison = &job->agent->poison;

    open_job(job);
    assert_int_equal(cairn_snapshot_reject(job->client, 0, "x"), CAIRN_INVAL);
    assert_int_equal(cairn_snapshot_reject(job->client, 1, "loss\nspike"), CAIRN_OK);
    take_step(job);
    expect(job, 0, 1);
    assert_true(poison->is_rejected);
    assert_int_equal(poison->tensors, 0);
    assert_string_equal(poison->reason, "loss?spike");
    assert_int_equal(poison->generation.step, 1);

    job->agent->hold_grants = 1;
    take_step(job);
    assert_int_equal(cairn_snapshot_reject(job->client, 2, NULL), CAIRN_OK);
    job->agent->hold_grants = 0;
    expect(job, 0, 2);
    assert_string_equal(poison->reason, "no reason given");

    hold_step(job);
    assert_int_equal(cairn_snapshot_reject(job->client, 3, "late"), CAIRN_OK);
    expect(job, 0, 3); /* nobody has to confirm it */
    assert_int_equal(cairn_snapshot_confirm(job->client, true), CAIRN_NOT_FOUND);

    take_step(job); /* the rejection was of one step */
    expect(job, 1, 3);
    assert_int_equal(cairn_snapshot_reject(job->client, 4, "too late"), CAIRN_STALE);
    assert_int_equal(cairn_snapshot_reject(job->client, 3, "too late"), CAIRN_STALE);
    take_step(job);
    expect(job, 2, 3);
}

/* The last step is not committed, and who waits for it learns that at once. */
static void
a_poisoned_last_step_is_not_waited_for(void **state)
{
    struct job *job = *state;
    uint64_t begun_ms;

    open_job(job);
    assert_int_equal(cairn_snapshot_reject(job->client, 9, "bad end"), CAIRN_OK);
    assert_int_equal(cairn_snapshot_begin_last(job->client, 9), CAIRN_OK);
    assert_true(fake_reaches(&job->agent->poisons, 1));
    (void)cairn_snapshot_fence(job->client, CAIRN_FENCE_ALL);
    begun_ms = fake_now_ms();
    assert_int_equal(cairn_snapshot_await_commit(job->client, 60000), CAIRN_CORRUPT);
    assert_true(fake_now_ms() - begun_ms < 30000);
}

/* The agent asks to stop; a good step takes that back. */
static void
the_trainer_is_asked_to_stop(void **state)
{
    struct job *job = *state;
    uint64_t until_ms = fake_now_ms() + 60000;

    job->agent->poison_answer = CAIRN_REASON_STOP;
    open_job(job);
    take_step(job);
    expect(job, 1, 0);
    assert_false(cairn_client_stop_wanted(job->client));
    job->weight[9] = BF16_NAN;
    take_step(job);
    expect(job, 1, 1);
    while (!cairn_client_stop_wanted(job->client))
        assert_true(fake_now_ms() < until_ms);
    job->weight[9] = BF16_ONE;
    take_step(job);
    expect(job, 2, 1);
    while (cairn_client_stop_wanted(job->client))
        assert_true(fake_now_ms() < until_ms);
    assert_false(cairn_client_stop_wanted(NULL));
}

/* The agent keeps the generation all the same (on_poison: allow): POISON ends it as DONE does. */
static void
an_agent_may_keep_it(void **state)
{
    struct job *job = *state;

    job->agent->poison_answer = 0;
    open_job(job);
    take_step(job);
    expect(job, 1, 0);
    job->weight[9] = BF16_NAN;
    take_step(job);
    expect(job, 1, 1);
    assert_false(cairn_client_stop_wanted(job->client));
    take_step(job);
    expect(job, 1, 2);
}

/* An agent that does not understand POISON is not told why, and commits nothing. */
static void
an_older_agent_hears_cancel(void **state)
{
    struct job *job = *state;

    job->agent->welcome_flags = 0;
    open_job(job);
    take_step(job);
    expect(job, 1, 0);
    job->weight[9] = BF16_NAN;
    take_step(job);
    assert_true(fake_reaches(&job->agent->cancels, 1));
    assert_int_equal(job->agent->dones, 1);
    assert_int_equal(job->agent->poisons, 0);
    assert_true(lines_reach("tensor \"weight\" holds", 1));
}

static uint32_t
unwatched(struct job *job)
{
    uint32_t tensors;

    pthread_mutex_lock(&job->agent->coverage_lock);
    tensors = job->agent->unwatched.tensors;
    pthread_mutex_unlock(&job->agent->coverage_lock);
    return tensors;
}

/* The agent learns of parameters that never were finite, also after tensors changed and after it
 * was away. */
static void
what_never_was_finite_is_told(void **state)
{
    struct job *job = *state;
    uint64_t until_ms = fake_now_ms() + 60000;

    open_job(job);
    take_step(job);
    expect(job, 1, 0);
    while (unwatched(job) != 1)
        assert_true(fake_now_ms() < until_ms);
    assert_string_equal(job->agent->unwatched.name, "mask");
    assert_int_equal(cairn_client_register(job->client, job->slices, 1), CAIRN_OK);
    while (unwatched(job) != 0)
        assert_true(fake_now_ms() < until_ms);
    job->slices[MASK].kind = CAIRN_BUFFER; /* nobody need be told of those */
    assert_int_equal(cairn_client_register(job->client, job->slices, PARTS), CAIRN_OK);
    take_step(job);
    expect(job, 2, 0);
    assert_int_equal(unwatched(job), 0);
}

/* A generation of what the job holds now, in the stand-in's memory. */
static void
store(struct job *job, uint8_t *container)
{
    struct cairn_manifest_entry entries[PARTS];
    struct cairn_manifest_rank owner = {.rank = 1, .world = 4};
    struct cairn_manifest manifest = {.job_id = 5,
                                      .generation = {1, 40},
                                      .container_count = 1,
                                      .rank_count = 1,
                                      .entry_count = PARTS,
                                      .ranks = &owner,
                                      .entries = entries};
    uint64_t crcs[64];
    uint8_t *packed;
    size_t packed_bytes;

    assert_int_equal(cairn_capture_plan(job->slices, PARTS, entries, &owner.region_bytes, NULL),
                     CAIRN_OK);
    manifest.container_bytes = owner.region_bytes;
    manifest.block_count = owner.region_bytes / CAIRN_BLOCK_BYTES;
    assert_true(manifest.block_count <= 64);
    for (uint32_t i = 0; i < PARTS; i++) {
        memcpy(container + entries[i].offset_bytes, entries[i].slice.address,
               cairn_capture_bytes(&entries[i]));
        entries[i].rank = 1;
    }
    for (uint64_t b = 0; b < manifest.block_count; b++)
        crcs[b] = cairn_crc64(0, container + b * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES);
    manifest.block_crcs = crcs;
    assert_int_equal(cairn_manifest_pack(&manifest, &packed, &packed_bytes), CAIRN_OK);
    job->agent->generation = (struct cairn_generation_id){.epoch = 1, .step = 40};
    job->agent->container_count = 1;
    job->agent->manifests[0] = (struct cairn_session_bytes){packed, packed_bytes};
    job->agent->containers[0] = container;
    job->agent->container_bytes[0] = manifest.container_bytes;
}

/* What was restored is known: a state that is bad in the first snapshot after it is told, and what
 * was not finite in the generation is not. */
static void
what_is_restored_is_known(void **state)
{
    static uint8_t container[64 * CAIRN_BLOCK_BYTES];
    struct job *job = *state;
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};

    store(job, container);
    memset(job->weight, 0xff, sizeof job->weight);
    memset(job->mask, 0, sizeof job->mask);
    open_job(job);
    assert_int_equal(cairn_client_restore(job->client, &restored), CAIRN_OK);
    assert_int_equal(job->weight[0], BF16_ONE);
    job->step = restored.generation.step;
    job->weight[ELEMENTS / 2] = BF16_NAN;
    take_step(job);
    expect(job, 0, 1);
    assert_string_equal(job->agent->poison.name, "weight");
    assert_int_equal(job->agent->poison.tensors, 1);
    job->weight[ELEMENTS / 2] = BF16_ONE;
    take_step(job);
    expect(job, 1, 1);
    free((void *)(uintptr_t)job->agent->manifests[0].bytes);
}

int
main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {CASE(nan_is_told),
                                       CASE(a_trainer_may_keep_it),
                                       CASE(what_is_known_is_kept_by_name),
                                       CASE(only_good_snapshots_teach),
                                       CASE(steps_are_rejected),
                                       CASE(a_poisoned_last_step_is_not_waited_for),
                                       CASE(the_trainer_is_asked_to_stop),
                                       CASE(an_agent_may_keep_it),
                                       CASE(an_older_agent_hears_cancel),
                                       CASE(what_never_was_finite_is_told),
                                       CASE(what_is_restored_is_known)};
#undef CASE

    return cmocka_run_group_tests(tests, NULL, NULL);
}
