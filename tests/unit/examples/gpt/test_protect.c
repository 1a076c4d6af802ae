/*
 * tests/unit/examples/gpt/test_protect.c - that the trainer uses the public API rightly, and goes
 * on from a restored generation as if nothing had happened, in any division of the job.
 *
 * The client here is a stand-in with the laziest capture that the API allows: it copies nothing
 * before a fence forces it to. It keeps what was there when the snapshot began, and a trainer that
 * touches a tensor before its fence is ended with status 99. One generation is stored, as a file
 * per tensor; a second run restores it.
 */
#include "job.h"

#include <dirent.h>

#include "cairn/client.h"

enum { STORED_STEP = 8, SLICES_MAX = 512, STATUS_TOUCHED = 99, STATUS_MISUSED = 98 };

static char store[64]; /* the folder of the stored generation */
static uint64_t claimed_step = STORED_STEP;
static cairn_err restore_error;
static bool fence_is_refused;

struct cairn_client {
    struct cairn_slice slices[SLICES_MAX];
    char names[SLICES_MAX][CAIRN_NAME_BYTES_MAX]; /* copied, as by the library */
    uint8_t *before[SLICES_MAX]; /* the bytes when the snapshot began; NULL: captured */
    uint32_t count;
    uint64_t step;
    uint64_t begun;
    uint32_t next; /* the slice whose fence is due: in the order of registration */
};

static size_t
slice_bytes(const struct cairn_slice *slice)
{
    size_t bytes = slice->dtype == CAIRN_F32 ? 4 : 1;

    for (uint32_t i = 0; i < slice->dims; i++)
        bytes *= slice->extent[i];
    return bytes;
}

static void
misused(const char *what)
{
    fprintf(stderr, "the API is misused: %s\n", what);
    _exit(STATUS_MISUSED);
}

cairn_err
cairn_client_open(const struct cairn_client_options *options, struct cairn_client **out)
{
    struct cairn_client *client = calloc(1, sizeof *client);

    if (!client || options->rank >= options->world || options->struct_bytes != sizeof *options ||
        options->reserved)
        misused("open");
    *out = client;
    return CAIRN_OK;
}

void
cairn_client_close(struct cairn_client *client)
{
    for (uint32_t i = 0; client && i < client->count; i++)
        free(client->before[i]);
    free(client);
}

cairn_err
cairn_client_register(struct cairn_client *client, const struct cairn_slice *slices, uint32_t count)
{
    if (count > SLICES_MAX || client->count)
        misused("register");
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_slice *slice = &slices[i];

        client->slices[i] = *slice;
        client->slices[i].name = strncpy(client->names[i], slice->name, CAIRN_NAME_BYTES_MAX - 1);
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(slices[j].name, slice->name) == 0)
                misused("two slices of one name");
        }
        if (slice->struct_bytes != sizeof *slice || slice->reserved ||
            slice->replica_index >= slice->replica_count || slice->device != -1 ||
            strlen(slice->name) >= CAIRN_NAME_BYTES_MAX)
            misused("a slice");
        for (uint32_t d = 0; d < slice->dims; d++) {
            if (slice->offset[d] != 0 || slice->extent[d] != slice->shape[d])
                misused("a slice is its whole tensor here");
        }
    }
    client->count = count;
    return CAIRN_OK;
}

static void
store_slice(const struct cairn_slice *slice)
{
    char path[400];
    FILE *file;

    if (slice->replica_index != 0) /* all replicas hold the same */
        return;
    snprintf(path, sizeof path, "%s/%s", store, slice->name);
    file = fopen(path, "wb");
    if (!file || fwrite(slice->address, 1, slice_bytes(slice), file) != slice_bytes(slice) ||
        fclose(file) != 0)
        misused("the store");
}

static void
capture(struct cairn_client *client, uint32_t i)
{
    const struct cairn_slice *slice = &client->slices[i];

    if (!client->before[i])
        return;
    if (memcmp(client->before[i], slice->address, slice_bytes(slice)) != 0) {
        fprintf(stderr, "%s was touched before its fence\n", slice->name);
        _exit(STATUS_TOUCHED);
    }
    if (client->step == STORED_STEP)
        store_slice(slice);
    free(client->before[i]);
    client->before[i] = NULL;
}

cairn_err
cairn_snapshot_begin(struct cairn_client *client, uint64_t step)
{
    if (step <= client->step)
        misused("steps must grow");
    for (uint32_t i = 0; i < client->count; i++) {
        if (client->before[i])
            misused("a snapshot begins before the last is fenced");
        client->before[i] = malloc(slice_bytes(&client->slices[i]));
        if (!client->before[i])
            misused("memory");
        memcpy(client->before[i], client->slices[i].address, slice_bytes(&client->slices[i]));
    }
    client->step = step;
    client->begun++;
    client->next = 0;
    return CAIRN_OK;
}

cairn_err
cairn_snapshot_fence(struct cairn_client *client, uint32_t slice_index)
{
    if (slice_index == CAIRN_FENCE_ALL) {
        for (uint32_t i = 0; i < client->count; i++)
            capture(client, i);
    } else {
        if (client->begun && slice_index != client->next++)
            misused("fences come in another order than the slices");
        capture(client, slice_index);
    }
    return fence_is_refused ? CAIRN_TIMEOUT : CAIRN_OK;
}

cairn_err
cairn_client_restore(struct cairn_client *client, struct cairn_restored *out)
{
    uint64_t bytes = 0;

    if (out->struct_bytes != sizeof *out || out->reserved)
        misused("restore");
    if (restore_error)
        return restore_error;
    for (uint32_t i = 0; i < client->count; i++) {
        const struct cairn_slice *slice = &client->slices[i];
        char path[400];
        FILE *file;

        snprintf(path, sizeof path, "%s/%s", store, slice->name);
        file = fopen(path, "rb");
        if (!file)
            return CAIRN_NOT_FOUND;
        if (fread(slice->address, 1, slice_bytes(slice), file) != slice_bytes(slice) ||
            fgetc(file) != EOF)
            misused("the stored shape is another");
        fclose(file);
        bytes += slice_bytes(slice);
    }
    client->step = claimed_step;
    *out = (struct cairn_restored){CAIRN_RESTORED_INIT, .generation = {3, claimed_step},
                                   .bytes = bytes, .local_bytes = bytes};
    return CAIRN_OK;
}

cairn_err
cairn_client_stats_read(const struct cairn_client *client, struct cairn_client_stats *out)
{
    if (out->struct_bytes != sizeof *out)
        misused("the counters");
    *out = (struct cairn_client_stats){CAIRN_CLIENT_STATS_INIT, .snapshots_begun = client->begun,
                                       .attached = 1};
    return CAIRN_OK;
}

static int
set_up(void **state)
{
    claimed_step = STORED_STEP;
    restore_error = CAIRN_OK;
    fence_is_refused = false;
    snprintf(store, sizeof store, "/tmp/gpt-store-XXXXXX");
    return mkdtemp(store) ? 0 : -1;
}

static int
tear_down(void **state)
{
    DIR *dir = opendir(store);
    char path[400];

    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir)) {
        snprintf(path, sizeof path, "%s/%s", store, entry->d_name);
        unlink(path);
    }
    closedir(dir);
    return rmdir(store);
}

static void
assert_same(const struct result *a, const struct result *b)
{
    assert_string_equal(a->loss_sha256, b->loss_sha256);
    assert_string_equal(a->state_sha256, b->state_sha256);
}

static void
test_a_restored_run_ends_like_one_that_never_stopped(void **state)
{
    struct result whole;
    struct result resumed;

    run_job(6, "--steps 14 --dp 2 --pp 3", &whole);
    run_job(6, "--steps 14 --dp 2 --pp 3 --resume", &resumed);
    assert_same(&whole, &resumed);
    run_job(6, "--steps 14 --dp 3 --pp 2 --resume --stage-layers 1,5", &resumed);
    assert_same(&whole, &resumed);
    run_job(6, "--steps 14 --dp 2 --pp 3 --resume --stage-layers 4,1,1/1,1,4", &resumed);
    assert_same(&whole, &resumed);
    run_job(1, "--steps 14 --resume", &resumed);
    assert_same(&whole, &resumed);
}

/* The test above would not see a restore that is not used: spoil one weight, and it does. */
static void
test_what_was_restored_matters(void **state)
{
    char path[128];
    struct result whole;
    struct result resumed;
    FILE *file;

    run_job(1, "--steps 10", &whole);
    snprintf(path, sizeof path, "%s/exp_avg.h.2.mlp.fc.weight", store);
    file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 402, SEEK_SET), 0);
    assert_int_equal(fputc(0x11, file), 0x11); /* the mantissa of one element */
    assert_int_equal(fclose(file), 0);
    run_job(1, "--steps 10 --resume", &resumed);
    assert_string_not_equal(whole.state_sha256, resumed.state_sha256);
}

static void
test_no_generation_is_a_fresh_start(void **state)
{
    struct result fresh;
    struct result again;

    run_job(2, "--steps 5 --pp 2 --resume", &fresh);
    run_job(1, "--steps 5", &again);
    assert_same(&fresh, &again);
}

static void
test_training_goes_on_when_fences_give_up(void **state)
{
    struct result calm;
    struct result refused;

    run_job(1, "--steps 5", &calm);
    fence_is_refused = true;
    run_job(1, "--steps 5", &refused);
    assert_same(&calm, &refused);
}

static int
status_of_resume(const char *arguments)
{
    char line[512];
    struct job job;
    int status;

    job_init(&job, 1);
    snprintf(line, sizeof line, "%s --resume %s", small_model, arguments);
    start_all(&job, line);
    wait_all(&job);
    status = job.status[0];
    job_fini(&job);
    return status;
}

static void
test_statuses_of_restores(void **state)
{
    static const struct {
        cairn_err err;
        int status;
    } cases[] = {
        {CAIRN_PEER, 75}, {CAIRN_TIMEOUT, 75}, {CAIRN_AGAIN, 75},   {CAIRN_INVAL, 65},
        {CAIRN_LOST, 1},  {CAIRN_STALE, 1},    {CAIRN_CORRUPT, 65}, {CAIRN_DENIED, 77},
    };
    struct result whole;

    run_job(1, "--steps 10", &whole);
    assert_int_equal(status_of_resume("--steps 10"), 0);
    assert_int_equal(status_of_resume("--steps 10 --seed 2"), 78);
    assert_int_equal(status_of_resume("--steps 10 --lr 0.001"), 78);
    claimed_step = STORED_STEP + 1; /* a generation under a wrong name */
    assert_int_equal(status_of_resume("--steps 10"), 65);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        restore_error = cases[i].err;
        assert_int_equal(status_of_resume("--steps 10"), cases[i].status);
    }
}

/* Rank 1 finds nothing and rank 0 does: neither may go on. */
static void
test_ranks_that_restored_different_steps_do_not_train(void **state)
{
    struct job job;
    struct result whole;
    char line[512];

    run_job(1, "--steps 10", &whole);
    job_init(&job, 2);
    snprintf(line, sizeof line, "%s --resume --steps 10 --pp 2", small_model);
    start_rank(&job, 0, line);
    restore_error = CAIRN_NOT_FOUND;
    start_rank(&job, 1, line);
    wait_all(&job);
    assert_true(job.status[0] == 1 || job.status[0] == 75);
    assert_true(job.status[1] == 1 || job.status[1] == 75);
    assert_true(job.status[0] == 1 || job.status[1] == 1);
    job_fini(&job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_restored_run_ends_like_one_that_never_stopped,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_was_restored_matters, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_no_generation_is_a_fresh_start, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_training_goes_on_when_fences_give_up, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_statuses_of_restores, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_ranks_that_restored_different_steps_do_not_train,
                                        set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
