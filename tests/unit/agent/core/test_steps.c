/* tests/unit/agent/core/test_steps.c - when a run begins, and which of its steps are committed,
 * aborted, or waited for as the last. */
#include "few_cores.h"

static void
a_run_needs_all_ranks(void **unused)
{
    attach(0, 1, 5);
    attach(1, 1, 5);
    assert_int_equal(view_of(1).run, 0);
    attach(2, 1, 5);
    for (uint32_t a = 0; a < job.count; a++) {
        assert_true(view_of(a).run != 0);
        assert_int_equal(view_of(a).next_step, 1);
    }
}

static void
two_launches_make_no_run(void **unused)
{
    attach(0, 1, 5);
    attach(1, 1, 6);
    attach(2, 1, 5);
    assert_int_equal(view_of(0).run, 0);
    assert_true(view_of(2).refusal[0] != '\0');
    begin(2, 1); /* others may still have to register */
    assert_int_equal(job.nodes[2].skipped, CAIRN_SKIP_NOT_READY);
    begin(2, 2);
    assert_int_equal(job.nodes[2].skipped, CAIRN_SKIP_UNTILED);
    attach(1, 1, 5);
    assert_true(view_of(0).run != 0);
}

static void
every_step_is_committed(void **unused)
{
    attach_all(5);
    for (uint64_t step = 1; step <= 10; step++) {
        step_all(step);
        for (uint32_t a = 0; a < job.count; a++)
            assert_int_equal(job.nodes[a].committed.step, step);
    }
    assert_int_equal(view_of(1).ready.step, 10);
}

static void
a_step_that_one_has_passed_is_aborted(void **unused)
{
    uint64_t committed;

    attach_all(5);
    step_all(1);
    begin(0, 2);
    give(2, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, 2, false}});
    give(2, &(struct cairn_event){.type = CAIRN_EVENT_CANCEL, .as.step = {0, 2, false}});
    deliver_all();
    begin(1, 2);
    committed = job.nodes[0].committed.step;
    assert_int_equal(committed, 1);
    for (uint64_t step = 3; step < 8; step++)
        step_all(step);
    assert_int_equal(job.nodes[0].committed.step, 7);
}

/* Members that let steps pass make the leader choose later steps. No step comes after the last. */
static void
the_last_step_is_committed_whatever_the_margin(void **unused)
{
    attach_all(5);
    for (uint64_t step = 1; step <= 4; step += 3) {
        give(2, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, step, false}});
        give(2, &(struct cairn_event){.type = CAIRN_EVENT_CANCEL, .as.step = {0, step, false}});
        give(2, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, step + 1, false}});
        give(2, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, step + 2, false}});
        deliver_all();
        for (uint64_t other = step; other < step + 3; other++) {
            begin(0, other);
            begin(1, other);
        }
    }
    assert_int_equal(view_of(0).next_step, 8);
    for (uint32_t a = 0; a < job.count; a++)
        begin_last(a, 7);
    for (uint32_t a = 0; a < job.count; a++) {
        assert_int_equal(job.nodes[a].skipped, 0);
        assert_int_equal(job.nodes[a].granted.step, 7);
        copy(a);
    }
    for (uint32_t a = 0; a < job.count; a++)
        assert_int_equal(job.nodes[a].committed.step, 7);
}

/* It is not due, and some trainers end before all have registered. */
static void
a_last_step_waits_for_the_run(void **unused)
{
    attach(0, 1, 5);
    begin_last(0, 1);
    attach(1, 1, 5);
    begin_last(1, 1);
    assert_int_equal(job.nodes[0].granted.step, 0);
    attach(2, 1, 5);
    begin_last(2, 1);
    for (uint32_t a = 0; a < job.count; a++)
        copy(a);
    assert_int_equal(job.nodes[1].committed.step, 1);
}

/* Nor does a refusal end it: the ranks register one after the other. */
static void
a_last_step_waits_while_layouts_are_refused(void **unused)
{
    attach(0, 1, 5);
    attach(1, 1, 6);
    attach(2, 1, 5);
    assert_true(view_of(0).refusal[0] != '\0');
    for (uint32_t a = 0; a < job.count; a += 2) {
        begin_last(a, 1);
        assert_int_equal(job.nodes[a].skipped, 0);
    }
    attach(1, 1, 5);
    begin_last(1, 1);
    for (uint32_t a = 0; a < job.count; a++)
        copy(a);
    assert_int_equal(job.nodes[1].committed.step, 1);
}

/* What a rank has begun outlives that another rank of its node registers again. */
static void
a_last_step_outlives_another_registration(void **unused)
{
    const struct cairn_begun_step begun[] = {{.step = 1, .waiting = true, .last = true}};
    struct cairn_event ranks = {
        .type = CAIRN_EVENT_RANKS,
        .as.ranks = {
            .steps = begun, .ranks = 1, .world = job.count, .blocks = BLOCKS, .launch = 5}};

    attach_all(5);
    begin_last(1, 1);
    attach(0, 0, 0);
    attach(0, 1, 5);
    job.nodes[1].granted = (struct cairn_generation_id){0};
    give(1, &(struct cairn_event){.type = CAIRN_EVENT_RANKS});
    give(1, &ranks);
    deliver_all();
    assert_int_equal(job.nodes[1].granted.step, 1);
    begin_last(0, 1);
    begin_last(2, 1);
    job.nodes[1].granted.step = 1;
    for (uint32_t a = 0; a < job.count; a++)
        copy(a);
    assert_int_equal(job.nodes[2].committed.step, 1);
}

/* A member that holds its last step has let all steps before it pass, but not that one. */
static void
a_last_step_follows_one_that_is_passed(void **unused)
{
    attach_all(5);
    step_all(1);
    give(2, &(struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {0, 3, true}});
    for (uint32_t at = job.head; at != job.tail; at++) /* too late for the leader */
        job.queue[at % QUEUE_MAX].to = UINT32_MAX;
    begin(0, 2);
    begin(1, 2);
    begin_last(0, 3);
    begin_last(1, 3);
    for (uint32_t a = 0; a < job.count; a++) {
        assert_int_equal(job.nodes[a].granted.step, 3);
        copy(a);
    }
    assert_int_equal(job.nodes[0].committed.step, 3);
}

static void
steps_may_have_gaps(void **unused)
{
    attach_all(5);
    for (uint64_t step = 7; step < 100; step += 13)
        step_all(step);
    assert_int_equal(job.nodes[2].committed.step, 98);
}

static void
a_repeated_report_changes_nothing(void **unused)
{
    struct cairn_message report = {0};
    uint64_t next;

    attach_all(5);
    for (uint32_t a = 0; a < job.count; a++)
        begin(a, 1);
    give(1, &(struct cairn_event){.type = CAIRN_EVENT_CANCEL, .as.step = {0, 1, false}});
    for (uint32_t i = job.head; i != job.tail; i++)
        if (job.queue[i % QUEUE_MAX].message.kind == CAIRN_MSG_REPORT)
            report = job.queue[i % QUEUE_MAX].message;
    assert_int_equal(report.as.report.reason, CAIRN_ABORT_CANCELLED);
    deliver_all();
    assert_int_equal(cairn_core_tally(job.nodes[0].core).given_up.count, 1);
    next = view_of(0).next_step;
    give(0, &(struct cairn_event){.type = CAIRN_EVENT_MESSAGE, .as.message = {&report, true}});
    deliver_all();
    assert_int_equal(cairn_core_tally(job.nodes[0].core).given_up.count, 1);
    assert_int_equal(view_of(0).next_step, next);
}

/* A new run aborts what a repair rebuilds: member 1 lost its part before it was complete. */
static void
nobody_is_done_with_what_a_later_run_aborts(void **unused)
{
    attach_all(5);
    for (uint32_t a = 0; a < job.count; a++)
        begin(a, 1);
    copy(0);
    copy(2);
    hand_over(1);
    while (!holds_a_part(0) || !holds_a_part(2))
        deliver_one();
    assert_false(holds_a_part(1));
    stop(1);
    start(1);
    link_agents(0, 1);
    link_agents(1, 2);
    deliver_all();
    operate(0, CAIRN_OP_RESTORE);
    deliver_until(CAIRN_MSG_REBUILD); /* the holders keep the generation for the repair */
    attach(1, 1, 5);
    pass_seconds(30);
    assert_true(job.nodes[0].replied);
    assert_int_equal(job.nodes[0].reply, CAIRN_OK);
    assert_int_equal(view_of(1).ready.step, 1);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, three_agents, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_run_needs_all_ranks),
        TEST(two_launches_make_no_run),
        TEST(every_step_is_committed),
        TEST(a_step_that_one_has_passed_is_aborted),
        TEST(the_last_step_is_committed_whatever_the_margin),
        TEST(a_last_step_waits_for_the_run),
        TEST(a_last_step_waits_while_layouts_are_refused),
        TEST(a_last_step_outlives_another_registration),
        TEST(a_last_step_follows_one_that_is_passed),
        TEST(steps_may_have_gaps),
        TEST(a_repeated_report_changes_nothing),
        TEST(nobody_is_done_with_what_a_later_run_aborts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
