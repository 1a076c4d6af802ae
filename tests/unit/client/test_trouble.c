/* tests/unit/client/test_trouble.c - agents that die, hang, lie, and processes that fork. */
#include "tests/support/client_model.h"

#include <sys/resource.h>

enum { FENCE_TIMEOUT_MS = 20000 };

static void
test_agent_dies_and_comes_back(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client *client;
    struct model model;

    client = attach_model(agent, &model, TENSORS);
    for (int round = 1; round <= 3; round++) {
        agent->close_at_grant = 1; /* dies with a capture running */
        begin_soon(client, (uint64_t)round * 10);
        fake_reaches(&agent->begins, 2 * round - 1);
        (void)cairn_snapshot_fence(client, CAIRN_FENCE_ALL); /* with any result, it returns */
        fake_agent_stop(agent);
        wait_attached(client, 0);
        for (uint64_t step = 0; step < 5; step++) {
            assert_int_equal(cairn_snapshot_begin(client, 100 + step), CAIRN_AGAIN);
            assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
        }
        agent->close_at_grant = 0;
        agent->epoch = round + 1;
        fake_agent_start(agent);
        wait_attached(client, 1);
        assert_int_equal(agent->hello_epoch, round);
        begin_soon(client, (uint64_t)round * 10 + 1);
        assert_true(fake_reaches(&agent->dones, round));
        assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
        check_region(agent, &model, agent->last_slot);
    }
    assert_int_equal(count_lines("unprotected"), 3);
    assert_int_equal(count_lines("attached again"), 3);
    assert_int_equal(agent->damaged, 0);
    end_all(client, agent, &model);
}

/* kill -9 at any moment of a snapshot, and SIGSTOP: no call takes longer than it may. */
static void
test_agent_killed(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client_options options = options_for(agent->path);
    struct cairn_client *client = NULL;
    struct model model;

    model_init(&model);
    fake_agent_fork(agent);
    options.fence_timeout_ms = FENCE_TIMEOUT_MS;
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_OK);
    for (long pause = 0; pause < 6; pause++) {
        begin_soon(client, (uint64_t)pause + 1);
        nanosleep(&(struct timespec){0, pause * 300000}, NULL);
        fake_agent_kill(agent, SIGKILL);
        (void)cairn_snapshot_fence(client, CAIRN_FENCE_ALL);
        wait_attached(client, 0);
        if (agent->begins == 0 && agent->registers == 0)
            fail();
        /* A new one. The fork is of a process with threads: it calls nothing that they could hold.
         */
        fake_agent_fork(agent);
        wait_attached(client, 1);
    }
    begin_soon(client, 50);
    assert_true(fake_reaches(&agent->dones, 1));
    (void)cairn_snapshot_fence(client, CAIRN_FENCE_ALL);
    fake_agent_kill(agent, SIGSTOP);
    for (uint64_t step = 60; step < 70; step++) {
        uint64_t start_ms;

        begin_soon(client, step); /* the copy of the one before may be a few instructions from its
                                   * end */
        start_ms = fake_now_ms();
        assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_AGAIN);
        assert_true(fake_now_ms() - start_ms < FENCE_TIMEOUT_MS / 2);
    }
    fake_agent_kill(agent, SIGCONT);
    agent->dones = 0;
    for (uint64_t step = 70; agent->dones == 0;
         step++) { /* it has ten cancelled snapshots to read first */
        assert_true(step < 100000);
        if (cairn_snapshot_begin(client, step) == CAIRN_OK)
            nanosleep(&(struct timespec){0, 5000000}, NULL);
        (void)cairn_snapshot_fence(client, CAIRN_FENCE_ALL);
    }
    assert_int_equal(agent->damaged, 0);
    cairn_client_close(client);
    fake_agent_kill(agent, SIGKILL);
    fake_agent_destroy(agent);
    model_fini(&model);
}

/* An agent that takes the connection and never answers. */
static void
test_agent_silent(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client_options options = options_for(agent->path);
    struct cairn_client *client = NULL;
    uint64_t start_ms = fake_now_ms();
    struct model model;

    model_init(&model);
    agent->hold_welcome = 1;
    agent->hold_registered = 1;
    fake_agent_start(agent);
    options.connect_timeout_ms = SHORT_MS;
    assert_int_equal(cairn_client_open(&options, &client), CAIRN_OK);
    assert_true(fake_now_ms() - start_ms >= SHORT_MS);
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_OK);
    agent->hold_welcome = 0;
    wait_attached(client, 1);
    start_ms = fake_now_ms();
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_OK);
    assert_true(fake_now_ms() - start_ms >= SHORT_MS);
    /* it is not any longer wait */
    assert_true(fake_now_ms() - start_ms < options.fence_timeout_ms);
    assert_int_equal(count_lines("in the background"), 1);
    assert_int_equal(cairn_snapshot_begin(client, 1), CAIRN_AGAIN);
    agent->hold_registered = 0;
    begin_soon(client, 2);
    assert_true(fake_reaches(&agent->dones, 1));
    check_region(agent, &model, agent->last_slot);
    end_all(client, agent, &model);
}

/* The agent may send any bytes: the trainer lives, and attaches again when they are right. */
static void
test_hostile_agent(void **state)
{
    static const uint8_t frames[][24] = {
        {255, 255, 255, 255, 67, 0, 1, 0}, {0, 0, 0, 0, 67, 0, 1, 0},
        {0, 0, 0, 0, 67, 0, 9, 0},         {0, 0, 0, 0, 66, 0, 1, 2},
        {0, 0, 0, 0, 64, 0, 1, 0},         {4, 0, 0, 0, 73, 0, 1, 0, 1, 0, 0, 0},
        {8, 0, 0, 0, 1, 0, 1, 0},          {2, 0, 0, 0, 69, 0, 1, 0, 1, 2},
        {0, 0, 0, 0, 71, 0, 1, 0},         {'G', 'E', 'T', ' ', '/', ' ', 'H', 'T', 'T', 'P'},
    };

    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
        struct cairn_client_options options = options_for(agent->path);
        struct cairn_client *client = NULL;
        cairn_err err;

        agent->raw = frames[i];
        agent->raw_bytes = sizeof frames[i];
        fake_agent_start(agent);
        err = cairn_client_open(&options, &client);
        assert_true(err == CAIRN_OK || ((i == 2 || i == 9) && err == CAIRN_VERSION));
        assert_true(fake_reaches(&agent->connections, err ? 1 : 2)); /* it let go and tried again */
        if (!err) {
            fake_agent_stop(agent);
            agent->raw = NULL;
            fake_agent_start(agent);
            wait_attached(client, 1);
        }
        end_all(client, agent, NULL);
    }
}

/* An agent that is at odds with us for good is asked ever more rarely, and so is not said ever
 * again at once. */
static void
test_damage_is_asked_again_rarely(void **state)
{
    static const uint8_t nonsense[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client *client;
    uint64_t start_ms;

    fake_agent_start(agent);
    client = open_client(agent);
    start_ms = fake_now_ms();
    agent->raw = nonsense;
    agent->raw_bytes = sizeof nonsense;
    agent->stop = 1; /* the connection ends, and all later connections are damaged at once */
    pthread_join(agent->thread, NULL);
    agent->connections = 0;
    fake_agent_start(agent);
    assert_true(fake_reaches(&agent->connections, 6));
    assert_true(fake_now_ms() - start_ms >= 50 + 100 + 200 + 400 + 800);
    end_all(client, agent, NULL);
}

/* A trainer that has as many descriptors as it may is told so, not that the agent is damaged; and
 * is protected when it has fewer. */
static void
test_no_descriptors_left(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    uint64_t until_ms = fake_now_ms() + 60000;
    struct cairn_client *client;
    struct rlimit limit, low;
    struct model model;
    int next;

    model_init(&model);
    fake_agent_fork(agent); /* it has descriptors of its own */
    client = open_client(agent);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    next = dup(0);
    assert_true(next > 0);
    close(next);
    low = (struct rlimit){(rlim_t)next, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_OK);
    while (count_lines("descriptors (ulimit -n)") == 0) {
        assert_true(fake_now_ms() < until_ms);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(count_lines("damaged"), 0);
    begin_soon(client, 1);
    assert_true(fake_reaches(&agent->dones, 1));
    assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
    cairn_client_close(client);
    fake_agent_kill(agent, SIGKILL);
    fake_agent_destroy(agent);
    model_fini(&model);
}

/* A data loader's worker: the child's calls do nothing, and the parent's snapshots go on. */
static void
test_forked_child(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client *client;
    struct model model;
    int status;
    pid_t child;

    client = attach_model(agent, &model, TENSORS);
    assert_int_equal(cairn_snapshot_begin(client, 1), CAIRN_OK);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};
        struct cairn_restored restored = {CAIRN_RESTORED_INIT};
        bool quiet = cairn_snapshot_begin(client, 2) == CAIRN_INVAL &&
                     cairn_snapshot_fence(client, CAIRN_FENCE_ALL) == CAIRN_INVAL &&
                     cairn_client_register(client, model.slices, 1) == CAIRN_INVAL &&
                     cairn_client_restore(client, &restored) == CAIRN_INVAL &&
                     cairn_client_set_stream(client, 0, NULL) == CAIRN_INVAL &&
                     cairn_client_stats_read(client, &stats) == CAIRN_INVAL;

        cairn_client_close(client);
        _exit(quiet && stats.attached == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(fake_reaches(&agent->dones, 1));
    assert_int_equal(cairn_snapshot_fence(client, CAIRN_FENCE_ALL), CAIRN_OK);
    check_region(agent, &model, agent->last_slot);
    assert_int_equal(cairn_snapshot_begin(client, 3), CAIRN_OK);
    assert_true(fake_reaches(&agent->dones, 2));
    end_all(client, agent, &model);
}

/* Why nothing is protected is logged once, and again after registering again: what is refused then
 * may be another tensor. */
static void
test_refusal_is_said(void **state)
{
    struct fake_agent *agent = fake_agent_create(CAIRN_BLOCK_BYTES);
    struct cairn_client *client;
    struct model model;
    uint64_t step = 0;

    model_init(&model);
    fake_agent_start(agent);
    client = open_client(agent);
    agent->skip_reason = CAIRN_REASON_OTHER;
    for (int round = 1; round <= 2; round++) {
        assert_int_equal(cairn_client_register(client, model.slices, TENSORS), CAIRN_OK);
        for (int i = 0; i < 5; i++)
            begin_soon(client, ++step); /* after the answer to the one before */
        assert_int_equal(count_lines("not protected: as told"), round);
    }
    end_all(client, agent, &model);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_agent_dies_and_comes_back, reset),
        cmocka_unit_test_setup(test_agent_killed, reset),
        cmocka_unit_test_setup(test_agent_silent, reset),
        cmocka_unit_test_setup(test_hostile_agent, reset),
        cmocka_unit_test_setup(test_damage_is_asked_again_rarely, reset),
        cmocka_unit_test_setup(test_no_descriptors_left, reset),
        cmocka_unit_test_setup(test_refusal_is_said, reset),
        cmocka_unit_test_setup(test_forked_child, reset),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
