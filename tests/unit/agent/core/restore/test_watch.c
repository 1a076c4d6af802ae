/*
 * tests/unit/agent/core/restore/test_watch.c - when an agent starts a restore by itself: each
 * reason, whose turn it is, and the pauses between tries. Time goes in heartbeats of 100.
 */
#include "agent/core/restore/watch.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { AGENTS = 5, BEAT = 100, DEAD = 1000, CLAIM = 2000, REPAIR = 5000, LONG = 100000 };

static const bool spares[AGENTS] = {[4] = true};
static struct cairn_core_options options;
static struct membership membership;
static struct peers peers;
static struct watch watch;
static struct {
    bool has_trainers, wants_join;
} input;
static struct cairn_actions actions;
static uint64_t now_ns;
static struct restore_request request;
static const char *reason;

static struct env
an_env(void)
{
    return (struct env){.options = &options,
                        .membership = &membership,
                        .peers = &peers,
                        .now_ns = now_ns,
                        .actions = &actions};
}

/* All others are alive, apart from those in `dead`. */
static void
set_alive(uint32_t dead)
{
    for (uint32_t a = 0; a < AGENTS; a++) {
        peers.list[a].heard_ns = now_ns;
        peers.list[a].incarnation = 1;
        peers.list[a].dead_ns = dead >> a & 1 ? now_ns : 0;
    }
}

static void
start(uint32_t self, bool has_epoch)
{
    static const uint32_t agents[4] = {0, 1, 2, 3};

    options = (struct cairn_core_options){.self = self,
                                          .agent_count = AGENTS,
                                          .spares = spares,
                                          .incarnation = 1,
                                          .heartbeat_interval_ns = BEAT,
                                          .dead_after_ns = DEAD,
                                          .repair_after_ns = REPAIR,
                                          .claim_timeout_ns = CLAIM};
    now_ns = 1000000;
    memset(&watch, 0, sizeof watch);
    memset(&membership, 0, sizeof membership);
    assert_int_equal(peers_init(&peers, &options, now_ns), CAIRN_OK);
    membership.self_member = UINT32_MAX;
    membership.blank = !has_epoch;
    if (has_epoch) {
        membership.record.epoch = membership.promised = 0x10000;
        membership.self_member = self < 4 ? self : UINT32_MAX;
        assert_int_equal(cairn_roster_build(agents, NULL, 4, 1, 4, &membership.record.roster),
                         CAIRN_OK);
        membership.committed = (struct cairn_generation_id){.epoch = 0x10000, .run = 1, .step = 5};
    }
    set_alive(0);
    memset(&input, 0, sizeof input);
}

static int
done(void **unused)
{
    membership_fini(&membership);
    peers_fini(&peers);
    return 0;
}

/* Ticks until a restore is due, at most `limit`; returns how long it took, UINT64_MAX: never. */
static uint64_t
due_within(uint64_t limit)
{
    uint64_t start_ns = now_ns;

    for (; now_ns - start_ns <= limit; now_ns += BEAT) {
        struct env env = an_env();

        if (watch_due(&env, &watch, input.has_trainers, input.wants_join, &request, &reason)) {
            assert_int_equal(request.op.operation, CAIRN_OP_RESTORE);
            assert_true(request.by_itself);
            return now_ns - start_ns;
        }
    }
    return UINT64_MAX;
}

static void
no_reason(void **unused)
{
    start(1, true);
    assert_true(due_within(LONG) == UINT64_MAX);
}

static void
first_epoch(void **unused)
{
    start(0, false);
    assert_int_equal(due_within(LONG), BEAT);
    assert_string_equal(reason, "the first epoch");
    done(NULL);
    start(2, false); /* two go first */
    assert_int_equal(due_within(LONG), BEAT + 2 * CLAIM);
    done(NULL);
    start(2, false);
    set_alive(1);
    assert_int_equal(due_within(LONG), BEAT + CLAIM);
    done(NULL);
    start(4, false); /* a spare never */
    assert_true(due_within(LONG) == UINT64_MAX);
}

static void
blank(void **unused)
{
    start(3, true);
    membership.blank = true;
    membership.self_member = UINT32_MAX;
    assert_int_equal(due_within(LONG), 4 * BEAT);
    assert_string_equal(reason, "memory is lost");
    assert_false(request.joining);
    assert_int_equal(due_within(LONG), (4 + 4) * BEAT); /* pauses double, each agent's its own */
    assert_int_equal(due_within(LONG), (4 + 8) * BEAT);
    assert_int_equal(due_within(LONG), (4 + 16) * BEAT);
    for (int i = 0; i < 20; i++)
        (void)due_within(LONG);
    assert_int_equal(due_within(LONG), (4 + 3) * BEAT + 8 * CLAIM);
    done(NULL);
    start(4, true); /* a spare that held nothing */
    membership.blank = true;
    assert_true(due_within(LONG) == UINT64_MAX);
    membership.record.ready_roster = cairn_roster_hold(membership.record.roster);
    membership.record.holders = calloc(4, sizeof(uint32_t));
    assert_non_null(membership.record.holders);
    membership.record.holders[2] = 4;
    assert_int_equal(due_within(LONG), 5 * BEAT);
}

/* Trainers can change what an attempt has found, so the pauses before do not count. */
static void
trainers_wait(void **unused)
{
    for (uint32_t self = 0; self < 4; self++) {
        start(self, true);
        membership.blank = true;
        membership.self_member = UINT32_MAX;
        for (int i = 0; i < 8; i++)
            (void)due_within(LONG);
        input.has_trainers = true;
        assert_int_equal(due_within(LONG), self * BEAT);
        assert_string_equal(reason, "memory is lost, and trainers wait");
        assert_int_equal(due_within(LONG), (self + self + 1) * BEAT);
        done(NULL);
    }
    start(4, true); /* a spare that held nothing is not waited for */
    membership.blank = true;
    input.has_trainers = true;
    assert_true(due_within(LONG) == UINT64_MAX);
}

static void
fenced(void **unused)
{
    start(1, true);
    membership.promised = 0x20003; /* to agent 3, which is alive */
    assert_int_equal(due_within(LONG), 2 * CLAIM);
    assert_string_equal(reason, "an unfinished restore");
    done(NULL);
    start(0, true);
    membership.promised = 0x20003;
    set_alive(1 << 3);
    assert_int_equal(due_within(LONG), BEAT);
    done(NULL);
    start(3, true); /* its own: the claimant goes first */
    membership.promised = 0x20003;
    assert_int_equal(due_within(LONG), BEAT);
    done(NULL);
    start(3, true); /* a blank one leaves it to the claimant */
    membership.promised = 0x20000;
    membership.blank = true;
    assert_int_equal(due_within(LONG), 4 * CLAIM);
}

static void
lost(void **unused)
{
    start(1, true);
    set_alive(1 << 2);
    assert_int_equal(due_within(LONG), REPAIR + CLAIM); /* agent 0 goes first */
    assert_string_equal(reason, "a part is missing");
    done(NULL);
    start(1, true);
    set_alive(1 << 0);
    assert_int_equal(due_within(LONG), REPAIR);
    done(NULL);
    start(1, true);
    set_alive(1 << 2);
    assert_true(due_within(REPAIR - BEAT) == UINT64_MAX);
    set_alive(0); /* it comes back: all patience begins again */
    assert_true(due_within(BEAT) == UINT64_MAX);
    set_alive(1 << 2);
    assert_true(due_within(REPAIR) == UINT64_MAX);
    now_ns += DEAD; /* this agent stood still */
    assert_int_equal(due_within(LONG), REPAIR + CLAIM);
    done(NULL);
    start(1, true);
    set_alive(1 << 2);
    assert_true(due_within(REPAIR) == UINT64_MAX);
    watch_asked(&watch); /* agent 0's repair is under way: this one does not get in its way */
    assert_int_equal(due_within(LONG), REPAIR + CLAIM);
    done(NULL);
    start(1, true);
    options.repair_after_ns = 0; /* never by itself */
    set_alive(1 << 2);
    assert_true(due_within(LONG) == UINT64_MAX);
    done(NULL);
    start(1, true);
    membership.record.ready = membership.committed;
    membership.record.ready_from_files = true;
    membership.committed = (struct cairn_generation_id){0};
    set_alive(1 << 2);
    assert_true(due_within(LONG) == UINT64_MAX);
    done(NULL);
    start(4, true); /* no member */
    set_alive(1 << 2);
    assert_true(due_within(LONG) == UINT64_MAX);
}

static void
join(void **unused)
{
    start(0, true);
    input.wants_join = true;
    assert_int_equal(due_within(LONG), 0);
    assert_true(request.joining);
    assert_int_equal(due_within(LONG), BEAT);
    assert_int_equal(due_within(LONG), 2 * BEAT);
    input.wants_join = false;
    assert_true(due_within(BEAT) == UINT64_MAX);
    input.wants_join = true; /* another time */
    assert_int_equal(due_within(LONG), 0);
}

#define CASE(name) cmocka_unit_test_teardown(name, done)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(no_reason), CASE(first_epoch), CASE(blank), CASE(trainers_wait),
        CASE(fenced),    CASE(lost),        CASE(join),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
