/* tests/unit/agent/core/restore/test_claim.c - who may be asked to promise the next epoch, who
 * refuses, and with which record it begins. */
#include "coordinating.h"

static void
the_first_epoch(void **unused)
{
    start_new();
    begin(0, CAIRN_OP_RESTORE, true);
    assert_int_equal(run(0), 0);
    assert_epoch(0x10000, (struct cairn_generation_id){0}, false);
    assert_int_equal(agents[0].membership.record.roster->member_count, 4);
    done(NULL);
    start_new(); /* two have not started: they may hold what the others have forgotten */
    kill_agent(2);
    kill_agent(4);
    begin(0, CAIRN_OP_RESTORE, true);
    assert_in_range(run(0), 2900, 10000);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(agents[0].membership.promised, 0);
    begin(0, CAIRN_OP_FRESH, false); /* an operator gives that up */
    assert_in_range(run(0), 2900, 20000);
    assert_epoch(0x10000, (struct cairn_generation_id){0}, true);
    assert_int_equal(agents[0].membership.record.roster->member_count, 3);
    done(NULL);
    start_new(); /* again, but silent agents may be in an epoch that the others forgot */
    kill_agent(2);
    kill_agent(4);
    agents[0].options.incarnation = 7 * (uint64_t)CAIRN_INCARNATION_STEP;
    begin(0, CAIRN_OP_FRESH, false);
    (void)run(0);
    assert_epoch(0x70000, (struct cairn_generation_id){0}, true);
    done(NULL);
    start_new(); /* no majority */
    kill_agent(2);
    kill_agent(3);
    kill_agent(4);
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(claims_sent, 0);
}

/* An agent that forgot its promises may promise only if enough others remember and have met it. */
static void
forgotten_promises(void **unused)
{
    start(false);
    for (uint32_t a = 3; a < AGENTS; a++)
        agents[a].membership.knows = false;
    agents[4].options.incarnation = 9; /* unknown to all others */
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_epoch(0x20000, g1, false);
    for (uint32_t a = 0; a < 4; a++)
        assert_true(agents[a].peers.list[4].incarnation == 9);
    for (uint32_t a = 0; a < AGENTS; a++)
        assert_true(agents[a].membership.knows);
    done(NULL);
    start(false); /* two remember, two forgot, one is silent: nobody can tell */
    for (uint32_t a = 3; a < AGENTS; a++)
        agents[a].membership.knows = false;
    kill_agent(2);
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(claims_sent, 0);
    assert_non_null(strstr(outcome_of(0)->text, "only 2 of the job's 5 agents can promise"));
}

static void
promise_elsewhere_1(void)
{
    agents[1].membership.promised = 0x90003;
}

/* An agent that forgot its promises coordinates its own repair, and one of those that remember
 * refuses: it may have promised, with what the coordinator forgot, another epoch. So the
 * coordinator's own promise proves nothing, and it is missing from the next majority. */
static void
a_promise_alone_proves_nothing(void **unused)
{
    start(false);
    agents[4].membership.knows = false;
    hook_kind = CAIRN_MSG_CLAIM;
    hook = promise_elsewhere_1;
    begin(4, CAIRN_OP_RESTORE, true);
    (void)run(4);
    assert_int_equal(outcome_of(4)->err, CAIRN_AGAIN);
    assert_int_equal(agents[4].membership.promised, 0x20004);
    assert_false(agents[4].membership.knows);
    kill_agent(1);
    kill_agent(2);
    claims_sent = 0;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(claims_sent, 0);
    assert_non_null(strstr(outcome_of(0)->text, "only 2 of the job's 5 agents can promise"));
}

/* R9: what was completed after the last inventories makes the agents refuse; an operator's restore
 * tries again and finds it, one by itself ends. */
static void
a_commit_overtakes(void **unused)
{
    start(true);
    hook_kind = CAIRN_MSG_CLAIM;
    hook = commit_g2;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_true(cairn_generation_is(agents[0].membership.record.ready, g2));
    done(NULL);
    start(true);
    hook_kind = CAIRN_MSG_CLAIM;
    hook = commit_g2;
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(agents[0].membership.record.epoch, 0x10000);
}

/* Two coordinators: both end, and all agents are in one epoch. */
static void
two_coordinators(void **unused)
{
    start(true);
    begin(0, CAIRN_OP_RESTORE, false);
    begin(1, CAIRN_OP_RESTORE, false);
    (void)run(0);
    (void)run(1);
    assert_true(outcome_of(0)->err == CAIRN_OK || outcome_of(1)->err == CAIRN_OK);
    assert_epoch(agents[2].membership.record.epoch, g1, true);
}

/* Agent 4 is asked for a restore, stands still while agent 0 forms an epoch, and goes on. */
static void
restore_late(bool by_itself)
{
    struct env env;

    start(true);
    begin(4, CAIRN_OP_RESTORE, false);
    agents[4].wedged = true;
    begin(0, CAIRN_OP_RESTORE, by_itself);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_epoch(0x20000, g1, !by_itself);
    agents[4].wedged = false;
    env = env_of(0);
    membership_send_activate(&env, 4);
    collect(0, &env);
    (void)run(4);
    assert_true(replied);
}

/* The request is older than trainers that began with another restore: it ends, and they go on. A
 * repair has started none: the restore tries again. */
static void
an_old_request(void **unused)
{
    restore_late(false);
    assert_int_equal(outcome_of(4)->err, CAIRN_AGAIN);
    assert_int_equal(outcome_of(4)->request, 77);
    assert_epoch(0x20000, g1, true);
    done(unused);
    restore_late(true);
    assert_int_equal(outcome_of(4)->err, CAIRN_OK);
    assert_epoch(0x30004, g1, true);
}

static void
fleet(void **unused)
{
    static const uint8_t text[] = "nodes: 5";
    const struct restore_request request = {
        .op = {
            .operation = CAIRN_OP_FLEET, .request = 77, .fleet = text, .fleet_len = sizeof text}};

    start(true);
    begin_request(2, &request);
    (void)run(2);
    assert_true(replied);
    assert_epoch(0x20002, g1, false);
    for (uint32_t a = 0; a < AGENTS; a++)
        assert_string_equal((const char *)agents[a].membership.record.fleet, "nodes: 5");
    begin(0, CAIRN_OP_RESTORE, false); /* it stays */
    (void)run(0);
    assert_string_equal((const char *)agents[1].membership.record.fleet, "nodes: 5");
}

static void
join(void **unused)
{
    const struct restore_request request = {
        .op = {.operation = CAIRN_OP_RESTORE}, .by_itself = true, .joining = true};

    start(true); /* the spare has trainers */
    begin_request(0, &request);
    assert_int_equal(run(0), 0);
    assert_epoch(0x20000, g1, false);
    assert_int_equal(agents[0].membership.record.roster->member_count, 5);
    assert_int_equal(agents[4].membership.self_member, 4);
    begin_request(0, &request); /* nobody is late any more */
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(agents[0].membership.record.epoch, 0x20000);
}

/* An inventory that names an absurd epoch is not believed. */
static void
absurd(void **unused)
{
    start(true);
    agents[3].membership.promised = UINT64_MAX;
    begin(0, CAIRN_OP_RESTORE, false);
    assert_true(run(0) <= 10000);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_int_equal(agents[0].membership.record.epoch, 0x20000);
}

#define CASE(name) cmocka_unit_test_teardown(name, done)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_first_epoch),
        CASE(forgotten_promises),
        CASE(a_promise_alone_proves_nothing),
        CASE(a_commit_overtakes),
        CASE(two_coordinators),
        CASE(an_old_request),
        CASE(fleet),
        CASE(join),
        CASE(absurd),
    };

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
