/*
 * tests/unit/agent/core/epoch/test_peers.c - who is alive: jobs of a few and of thousands of
 * agents, whose beats arrive in the interval in which they are sent, with deaths, restarts, pauses
 * and wrong rumors.
 */
#include "agent/core/epoch/peers.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { INTERVAL = 100, DEAD_AFTER = 1000, BEAT_BYTES = RUMORS_PER_BEAT * 21 };

struct agent {
    struct cairn_core_options options;
    struct peers peers;
    struct cairn_actions actions;
    bool runs;
    bool paused;
    uint32_t connects, disconnects, beats;
};

struct job {
    uint32_t count;
    uint64_t now_ns;
    struct agent *agents;
};

static struct env
env_of(struct job *job, uint32_t a)
{
    struct agent *agent = &job->agents[a];

    return (struct env){.options = &agent->options,
                        .peers = &agent->peers,
                        .now_ns = job->now_ns,
                        .actions = &agent->actions};
}

static void
start(struct job *job, uint32_t a, uint64_t incarnation)
{
    struct agent *agent = &job->agents[a];

    peers_fini(&agent->peers);
    agent->options = (struct cairn_core_options){.self = a,
                                                 .agent_count = job->count,
                                                 .incarnation = incarnation,
                                                 .heartbeat_interval_ns = INTERVAL,
                                                 .dead_after_ns = DEAD_AFTER};
    assert_int_equal(peers_init(&agent->peers, &agent->options, job->now_ns), CAIRN_OK);
    agent->runs = true;
}

/* A session on both sides. */
static void
join(struct job *job, uint32_t a, uint32_t b)
{
    struct env env = env_of(job, a);

    peers_up(&env, &job->agents[a].peers, b, job->agents[b].options.incarnation);
    env = env_of(job, b);
    peers_up(&env, &job->agents[b].peers, a, job->agents[a].options.incarnation);
}

static void
kill_agent(struct job *job, uint32_t a)
{
    job->agents[a].runs = false;
    for (uint32_t b = 0; b < job->count; b++)
        if (b != a && job->agents[b].peers.up)
            peers_down(&job->agents[b].peers, a);
}

static void
carry_out(struct job *job, uint32_t a)
{
    struct agent *agent = &job->agents[a];

    for (size_t i = 0; i < agent->actions.count; i++) {
        const struct cairn_action *action = &agent->actions.list[i];
        struct agent *to;

        agent->connects += action->type == CAIRN_ACTION_CONNECT;
        agent->disconnects += action->type == CAIRN_ACTION_DISCONNECT;
        if (action->type == CAIRN_ACTION_CONNECT && job->agents[action->as.peer.agent].runs)
            join(job, a, action->as.peer.agent);
        if (action->type != CAIRN_ACTION_SEND)
            continue;
        assert_int_equal(action->as.send.message.bytes_len, BEAT_BYTES);
        agent->beats++;
        to = &job->agents[action->as.send.message.to];
        if (to->runs && !to->paused) {
            struct env env = env_of(job, action->as.send.message.to);

            (void)peers_awake(&env, &to->peers);
            peers_heartbeat(&env, &to->peers, &action->as.send.message);
        }
    }
    cairn_actions_clear(&agent->actions);
}

static void
pass(struct job *job, uint32_t intervals)
{
    while (intervals-- > 0) {
        job->now_ns += INTERVAL;
        for (uint32_t a = 0; a < job->count; a++) {
            struct env env = env_of(job, a);

            if (!job->agents[a].runs || job->agents[a].paused)
                continue;
            (void)peers_awake(&env, &job->agents[a].peers);
            peers_tick(&env, &job->agents[a].peers);
            carry_out(job, a);
        }
    }
}

static struct job *
new_job(uint32_t count)
{
    struct job *job = calloc(1, sizeof *job);

    assert_non_null(job);
    job->count = count;
    job->now_ns = INTERVAL;
    job->agents = calloc(count, sizeof *job->agents);
    assert_non_null(job->agents);
    for (uint32_t a = 0; a < count; a++)
        start(job, a, 1);
    return job;
}

static void
end_job(struct job *job)
{
    for (uint32_t a = 0; a < job->count; a++) {
        peers_fini(&job->agents[a].peers);
        cairn_actions_fini(&job->agents[a].actions);
    }
    free(job->agents);
    free(job);
}

static bool
alive(struct job *job, uint32_t observer, uint32_t agent)
{
    struct env env = env_of(job, observer);

    return peers_alive(&env, agent);
}

/* How many of the running agents take `agent` for alive. */
static uint32_t
believers(struct job *job, uint32_t agent)
{
    uint32_t total = 0;

    for (uint32_t a = 0; a < job->count; a++)
        total += job->agents[a].runs && a != agent && alive(job, a, agent);
    return total;
}

/* Only the first tick asks for sessions with the fingers. */
static void
fingers(void **unused)
{
    struct job *job = new_job(10);

    pass(job, 1);
    assert_int_equal(job->agents[0].connects, 4); /* 1, 2, 4, 8 */
    for (uint32_t a = 0; a < 10; a++)
        assert_int_equal(cairn_bitset_has(job->agents[3].peers.watched, a),
                         a == 2 || a == 1 || a == 9 || a == 5);
    pass(job, 1);
    assert_int_equal(job->agents[0].connects, 4);
    assert_true(job->agents[3].beats >= 4);
    end_job(job);
}

static void
a_small_job_agrees(void **unused)
{
    for (uint32_t n = 2; n <= 12; n++) {
        struct job *job = new_job(n);

        pass(job, 4);
        for (uint32_t a = 0; a < n; a++)
            assert_int_equal(believers(job, a), n - 1);
        kill_agent(job, 1);
        pass(job, 8);
        assert_int_equal(believers(job, 1), n - 1);
        pass(job, 4);
        assert_int_equal(believers(job, 1), 0);
        start(job, 1, 2);
        pass(job, 4);
        assert_int_equal(believers(job, 1), n - 1);
        for (uint32_t a = 0; a < n; a++) {
            struct env env = env_of(job, a);

            assert_int_equal(peers_met(&env, 1), 2);
        }
        end_job(job);
    }
}

static void
silence_is_given_up(void **unused)
{
    struct job *job = new_job(4);
    struct env env;

    pass(job, 4);
    kill_agent(job, 2);
    pass(job, 13);
    env = env_of(job, 0);
    assert_false(peers_maybe_alive(&env, 2));
    assert_false(peers_given_up(&env, 2));
    pass(job, 20);
    env = env_of(job, 0);
    assert_true(peers_given_up(&env, 2));
    assert_false(peers_given_up(&env, 3));
    assert_true(peers_given_up(&env, 99));
    assert_false(peers_alive(&env, 99));
    end_job(job);
}

/* One that never started is nobody's finger that answers. */
static void
an_agent_that_never_starts_is_dead(void **unused)
{
    struct job *job = new_job(6);

    job->agents[4].runs = false;
    pass(job, 15);
    for (uint32_t a = 0; a < 4; a++) {
        struct env env = env_of(job, a);

        assert_true(peers_maybe_alive(&env, 4));
    }
    assert_int_equal(believers(job, 4), 0);
    pass(job, 9);
    for (uint32_t a = 0; a < 4; a++) {
        struct env env = env_of(job, a);

        assert_false(peers_maybe_alive(&env, 4));
    }
    pass(job, 20);
    assert_int_equal(believers(job, 4), 0);
    end_job(job);
}

/* The next live agents take the places of dead fingers, and see when the last one dies, too. */
static void
dead_fingers_are_replaced(void **unused)
{
    struct job *job = new_job(20);

    pass(job, 4);
    for (uint32_t distance = 1; distance < 20; distance *= 2)
        kill_agent(job, (3 + distance) % 20);
    pass(job, 20);
    assert_int_equal(believers(job, 3), 14);
    kill_agent(job, 3);
    pass(job, 20);
    assert_int_equal(believers(job, 3), 0);
    end_job(job);
}

static struct cairn_message
beat(uint32_t from, uint64_t counter, const uint8_t *bytes)
{
    return (struct cairn_message){.kind = CAIRN_MSG_HEARTBEAT,
                                  .from = from,
                                  .as.heartbeat = {.incarnation = 1, .counter = counter},
                                  .bytes = bytes,
                                  .bytes_len = BEAT_BYTES};
}

static void
rumor(struct job *job, uint32_t to, uint32_t from, uint32_t agent, uint64_t incarnation,
      uint64_t counter, bool dead)
{
    uint8_t bytes[BEAT_BYTES];
    struct cairn_message message = beat(from, 1, bytes);
    struct env env = env_of(job, to);
    struct cairn_writer writer;

    memset(bytes, 0xff, sizeof bytes);
    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_write_u32(&writer, agent);
    cairn_write_u64(&writer, incarnation);
    cairn_write_u64(&writer, counter);
    cairn_write_u8(&writer, dead);
    peers_heartbeat(&env, &job->agents[to].peers, &message);
}

static void
newer_news_win(void **unused)
{
    struct job *job = new_job(10);

    rumor(job, 0, 1, 6, 2, 50, false);
    assert_true(alive(job, 0, 6));
    rumor(job, 0, 1, 6, 2, 49, true);
    assert_true(alive(job, 0, 6));
    rumor(job, 0, 1, 6, 1, 99, true);
    assert_true(alive(job, 0, 6));
    rumor(job, 0, 1, 6, 2, 50, true);
    assert_false(alive(job, 0, 6));
    rumor(job, 0, 1, 6, 2, 50, false);
    assert_false(alive(job, 0, 6));
    rumor(job, 0, 1, 6, 2, 51, false);
    assert_true(alive(job, 0, 6));
    rumor(job, 0, 1, 6, 3, 1, true);
    assert_false(alive(job, 0, 6));
    rumor(job, 0, 1, 99, 3, 1, true); /* nobody */
    end_job(job);
}

/* Who is called dead counts beyond what the rumor says, and all believe it again. */
static void
a_wrong_rumor_is_denied(void **unused)
{
    struct job *job = new_job(40);
    uint64_t counter;

    pass(job, 40);
    counter = job->agents[7].peers.counter;
    rumor(job, 20, 21, 7, 1, counter + 100, true);
    assert_false(alive(job, 20, 7));
    pass(job, 8);
    assert_int_equal(believers(job, 7), 39);
    assert_true(job->agents[7].peers.counter > counter + 100);
    end_job(job);
}

static void
an_own_pause_is_nobodys_silence(void **unused)
{
    struct job *job = new_job(4);
    struct env env;

    pass(job, 4);
    job->agents[2].paused = true;
    pass(job, 30);
    assert_int_equal(believers(job, 2), 0);
    job->agents[2].paused = false;
    env = env_of(job, 2);
    assert_int_equal(peers_awake(&env, &job->agents[2].peers), 3000 - INTERVAL / 2);
    for (uint32_t a = 0; a < 4; a++)
        assert_true(alive(job, 2, a));
    pass(job, 2);
    for (uint32_t a = 0; a < 4; a++)
        assert_true(alive(job, 2, a));
    assert_int_equal(believers(job, 2), 3);
    env = env_of(job, 2);
    assert_int_equal(peers_awake(&env, &job->agents[2].peers), 0);
    end_job(job);
}

/* A silent agent whose session has not ended loses it. */
static void
a_dead_session_ends(void **unused)
{
    struct job *job = new_job(3);

    pass(job, 4);
    job->agents[2].paused = true;
    pass(job, 9);
    assert_int_equal(job->agents[0].disconnects, 0);
    pass(job, 3);
    assert_true(job->agents[0].disconnects > 0);
    end_job(job);
}

static void
a_session_counts_as_hearing(void **unused)
{
    struct job *job = new_job(3);
    struct env env = env_of(job, 0);

    job->agents[1].runs = job->agents[2].runs = false;
    peers_up(&env, &job->agents[0].peers, 2, 7);
    assert_true(alive(job, 0, 2));
    assert_false(alive(job, 0, 1));
    assert_int_equal(peers_met(&env, 2), 7);
    assert_int_equal(peers_met(&env, 0), 1);
    peers_meet(&job->agents[0].peers, 1, 9);
    assert_int_equal(peers_met(&env, 1), 9);
    pass(job, 30);
    assert_false(alive(job, 0, 2));
    end_job(job);
}

/* News of a few deaths reach everyone in a large job, and no beat grows. */
static void
a_large_job(void **unused)
{
    uint32_t n = 1000, dead[] = {5, 6, 7, 500, 999}, took = 0;
    struct job *job = new_job(n);

    pass(job, 35);
    for (uint32_t a = 0; a < n; a += 37)
        assert_int_equal(believers(job, a), n - 1);
    for (uint32_t i = 0; i < 5; i++)
        kill_agent(job, dead[i]);
    for (bool all = false; !all && took < 60; took++) {
        pass(job, 1);
        all = true;
        for (uint32_t i = 0; i < 5; i++)
            all &= believers(job, dead[i]) == 0;
    }
    print_message("agents=%u dead=5 known_after_intervals=%u\n", n, took);
    assert_true(took < 25);
    for (uint32_t a = 1; a < n; a += 37)
        assert_int_equal(believers(job, a), n - 1 - 5);
    assert_true(sizeof(struct peer) <= 32);
    end_job(job);
}

static void
malformed_beats_change_nothing(void **unused)
{
    static const uint8_t bytes[BEAT_BYTES + 1];
    struct job *job = new_job(3);
    struct cairn_message message = beat(1, 1, bytes);
    struct env env = env_of(job, 0);

    message.bytes_len--;
    peers_heartbeat(&env, &job->agents[0].peers, &message);
    message.bytes_len += 2;
    peers_heartbeat(&env, &job->agents[0].peers, &message);
    assert_false(alive(job, 0, 1));
    message.bytes_len = BEAT_BYTES;
    message.from = 3;
    peers_heartbeat(&env, &job->agents[0].peers, &message);
    end_job(job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fingers),
        cmocka_unit_test(a_small_job_agrees),
        cmocka_unit_test(silence_is_given_up),
        cmocka_unit_test(an_agent_that_never_starts_is_dead),
        cmocka_unit_test(dead_fingers_are_replaced),
        cmocka_unit_test(newer_news_win),
        cmocka_unit_test(a_wrong_rumor_is_denied),
        cmocka_unit_test(an_own_pause_is_nobodys_silence),
        cmocka_unit_test(a_dead_session_ends),
        cmocka_unit_test(a_session_counts_as_hearing),
        cmocka_unit_test(a_large_job),
        cmocka_unit_test(malformed_beats_change_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
