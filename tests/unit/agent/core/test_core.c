/* tests/unit/agent/core/test_core.c - the way of a job through its first epoch, restarts, a restore
 * and a fresh epoch; agents outside of the epoch, and sessions that may end. */
#include "few_cores.h"

static void
the_first_epoch_has_all_agents(void **unused)
{
    for (uint32_t a = 0; a < job.count; a++) {
        struct cairn_core_view view = view_of(a);

        assert_true(view.active != 0);
        assert_int_equal(view.active, view_of(0).active);
        assert_int_equal(view.self_member, a);
        assert_false(view.blank || view.fenced);
        assert_int_equal(view.roster->member_count, 3);
    }
}

static void
a_member_that_restarts_is_done_still(void **unused)
{
    attach_all(5);
    step_all(1);
    stop(0); /* the leader */
    start(0);
    job.nodes[0].committed = (struct cairn_generation_id){0};
    pass_seconds(3);
    assert_int_equal(job.nodes[0].committed.step, 1);
    attach_all(6);
    step_all(1);
    assert_int_equal(job.nodes[1].skipped, CAIRN_SKIP_STALE);
    step_all(2);
    assert_int_equal(job.nodes[1].committed.step, 2);
}

static void
a_blank_member_is_admitted_by_a_repair(void **unused)
{
    struct cairn_generation_id before;

    attach_all(5);
    step_all(1);
    before = view_of(0).ready;
    stop(1);
    lose_memory(1);
    start(1);
    assert_true(view_of(1).blank);
    pass_seconds(30);
    assert_false(view_of(1).blank);
    assert_int_equal(view_of(1).self_member, 1);
    for (uint32_t a = 0; a < job.count; a++)
        assert_int_equal(cairn_generation_id_compare(view_of(a).ready, before), 0);
    attach(1, 1, 5);
    step_all(2);
    step_all(3);
    assert_int_equal(job.nodes[0].committed.step, 3);
}

static void
a_restore_rebuilds_a_lost_part(void **unused)
{
    struct cairn_generation_id before;

    attach_all(5);
    step_all(1);
    step_all(2);
    before = view_of(0).ready;
    stop(2);
    lose_memory(2);
    operate(0, CAIRN_OP_RESTORE);
    pass_seconds(60);
    assert_true(job.nodes[0].replied);
    assert_int_equal(job.nodes[0].reply, CAIRN_OK);
    assert_int_equal(cairn_generation_id_compare(view_of(1).ready, before), 0);
    assert_int_equal(view_of(0).roster->member_count, 2);
    for (uint32_t m = 0; m < 3; m++)
        assert_true(cairn_core_holder(job.nodes[0].core, before, m) < 2);
}

/* How many answers agent 1 gives to a question of the leader's audit. */
static uint32_t
count_answers(struct cairn_message_audit question)
{
    struct cairn_message message = {.kind = CAIRN_MSG_AUDIT,
                                    .from = 0,
                                    .to = 1,
                                    .epoch = view_of(0).active,
                                    .as.audit = question};
    uint32_t count = 0;

    give(1, &(struct cairn_event){.type = CAIRN_EVENT_MESSAGE, .as.message = {&message, true}});
    for (uint32_t i = job.head; i != job.tail; i++)
        count += job.queue[i % QUEUE_MAX].message.kind == CAIRN_MSG_AUDIT;
    deliver_all();
    return count;
}

static void
only_the_trainers_that_are_meant_answer(void **unused)
{
    struct cairn_message_audit question = {.agent = 1, .run = 7, .question = 1};

    attach_all(5);
    step_all(1);
    question.incarnation = job.nodes[1].incarnation;
    question.registration = 1; /* before they attached */
    assert_int_equal(count_answers(question), 0);
    question.registration = 2;
    question.incarnation--;
    assert_int_equal(count_answers(question), 0);
    step_all(2); /* the run goes on */
    assert_int_equal(job.nodes[1].committed.step, 2);
    question.incarnation++;
    assert_int_equal(count_answers(question), 1);
    begin(1, 3); /* it captures for no other run now */
    assert_int_equal(job.nodes[1].skipped, CAIRN_SKIP_NOT_READY);
}

static void
a_fresh_epoch_begins_with_nothing(void **unused)
{
    attach_all(5);
    step_all(4);
    operate(1, CAIRN_OP_FRESH);
    pass_seconds(20);
    assert_int_equal(job.nodes[1].reply, CAIRN_OK);
    assert_int_equal(view_of(2).ready.step, 0);
    attach_all(6);
    step_all(1);
    assert_int_equal(job.nodes[2].committed.step, 1);
}

/* R9: two coordinators cannot reach each other, and have asked all others before either claims. An
 * agent that has promised one of the claims refuses the other, though its number is higher: the
 * first epoch may have begun, and its members may have committed since. */
static void
a_promise_voids_what_was_asked_before(void **unused)
{
    attach_all(5);
    step_all(1);
    unlink_agents(0, 1);
    operate(0, CAIRN_OP_FRESH);
    operate(1, CAIRN_OP_FRESH);
    for (uint32_t s = 0; s < 60; s++) {
        job.now_ns += second_ns;
        for (uint32_t a = 0; a < job.count; a++)
            give(a, &(struct cairn_event){.type = CAIRN_EVENT_TICK});
        while (job.head != job.tail) {
            uint64_t first = view_of(0).active, second = view_of(1).active;

            assert_true(first == second || first >> 16 != second >> 16);
            deliver_one();
        }
    }
    assert_true(job.nodes[0].replied && job.nodes[1].replied);
    assert_true(view_of(0).active >> 16 > 1);
}

/* Heartbeats, the group and the leader need sessions, on both sides; a coordinator needs all. */
static void
a_session_without_use_may_end(void **unused)
{
    uint32_t needed = 0;

    for (uint32_t a = 0; a < job.count; a++)
        for (uint32_t b = 0; b < job.count; b++) {
            if (a == b)
                continue;
            assert_int_equal(cairn_core_needs_session(job.nodes[a].core, b),
                             cairn_core_needs_session(job.nodes[b].core, a));
            needed += cairn_core_needs_session(job.nodes[a].core, b);
        }
    assert_true(cairn_core_needs_session(job.nodes[5].core, 0)); /* leads */
    assert_true(cairn_core_needs_session(job.nodes[5].core, 6)); /* gets the heartbeats */
    assert_true(needed > 0 && needed < job.count * (job.count - 1));
    give(5, &(struct cairn_event){.type = CAIRN_EVENT_OPERATOR,
                                  .as.op = {.operation = CAIRN_OP_DRY_RUN, .request = 1}});
    for (uint32_t b = 0; b < job.count; b++)
        assert_true(b == 5 || cairn_core_needs_session(job.nodes[5].core, b));
}

/* The leader tells agents outside the epoch what is committed: each commit, and when they meet. A
 * trainer there gets what the others get. */
static void
an_agent_outside_knows_what_is_committed(void **unused)
{
    const uint32_t spare = 3;

    attach_all(5);
    for (uint64_t step = 1; step <= 3; step++) {
        step_all(step);
        assert_int_equal(view_of(spare).ready.step, step);
    }
    assert_int_equal(view_of(spare).self_member, UINT32_MAX);
    assert_int_equal(cairn_core_holder(job.nodes[spare].core, view_of(spare).ready, 2), 2);
    stop(spare);
    start(spare);
    assert_int_equal(view_of(spare).ready.step, 0);
    pass_seconds(2);
    assert_int_equal(view_of(spare).ready.step, 3);
}

/* Only the leader's word counts. */
static void
an_agent_outside_believes_the_leader_alone(void **unused)
{
    const uint32_t spare = 3;
    struct cairn_message decision = {.kind = CAIRN_MSG_DECISION,
                                     .from = 1,
                                     .to = spare,
                                     .epoch = view_of(spare).active,
                                     .as.decision.decision = {.serial = UINT64_MAX}};
    struct cairn_event event = {.type = CAIRN_EVENT_MESSAGE, .as.message = {&decision, true}};

    attach_all(5);
    step_all(1);
    decision.as.decision.decision.committed = view_of(spare).ready;
    decision.as.decision.decision.committed.step = 9;
    if (!job.linked[1][spare])
        link_agents(1, spare);
    deliver_all();
    give(spare, &event);
    assert_int_equal(view_of(spare).ready.step, 1);
    decision.from = 0;
    decision.epoch--;
    give(spare, &event);
    assert_int_equal(view_of(spare).ready.step, 1);
    decision.epoch++;
    give(spare, &event);
    assert_int_equal(view_of(spare).ready.step, 9);
}

/* A report about another agent comes from one that has it below. */
static void
nobody_reports_for_agents_elsewhere(void **unused)
{
    struct cairn_message report = {.kind = CAIRN_MSG_REPORT,
                                   .to = 1,
                                   .epoch = view_of(1).active,
                                   .as.report = {.agent = 2, .incarnation = 1, .registration = 1}};
    struct cairn_event event = {.type = CAIRN_EVENT_MESSAGE, .as.message = {&report, true}};

    for (report.from = 0; report.from < job.count; report.from++) {
        uint64_t dropped = view_of(1).dropped_messages;

        give(1, &event);
        assert_int_equal(view_of(1).dropped_messages, dropped + 1);
    }
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, three_agents, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_first_epoch_has_all_agents),
        TEST(a_member_that_restarts_is_done_still),
        TEST(a_blank_member_is_admitted_by_a_repair),
        TEST(a_restore_rebuilds_a_lost_part),
        TEST(only_the_trainers_that_are_meant_answer),
        TEST(a_fresh_epoch_begins_with_nothing),
        TEST(nobody_reports_for_agents_elsewhere),
        TEST(a_promise_voids_what_was_asked_before),
        cmocka_unit_test_setup_teardown(an_agent_outside_knows_what_is_committed,
                                        three_agents_and_a_spare, teardown),
        cmocka_unit_test_setup_teardown(an_agent_outside_believes_the_leader_alone,
                                        three_agents_and_a_spare, teardown),
        cmocka_unit_test_setup_teardown(a_session_without_use_may_end, eight_agents, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
