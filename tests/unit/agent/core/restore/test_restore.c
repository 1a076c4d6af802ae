/* tests/unit/agent/core/restore/test_restore.c - which generation a restore brings back and where
 * its parts go, while agents die, hang, lose memory and prove damage. */
#include "coordinating.h"

static void
an_operator_restores(void **unused)
{
    start(true);
    begin(1, CAIRN_OP_RESTORE, false);
    assert_int_equal(run(1), 0); /* nothing is waited for */
    assert_true(replied);
    assert_int_equal(outcome_of(1)->err, CAIRN_OK);
    assert_int_equal(outcome_of(1)->request, 77);
    assert_int_equal(outcome_of(1)->epoch, 0x20001);
    assert_int_equal(outcome_of(1)->lost_members, 0);
    assert_int_equal(rebuilds_sent, 0);
    assert_string_equal(outcome_of(1)->text, "epoch 1 step 10: chosen as the newest; all 4 "
                                             "members' parts are in memory\n");
    assert_epoch(0x20001, g1, true);
    for (uint32_t m = 0; m < 4; m++)
        assert_int_equal(agents[0].membership.record.holders[m], m);
}

/* The newest is in memory. Its files are older than the epoch, and so are those of later
 * generations. */
static void
an_operator_goes_back_to_files(void **unused)
{
    const struct cairn_generation_id files = {.epoch = 0x10000, .step = 4};
    struct restore_request request = {.op = {.operation = CAIRN_OP_RESTORE,
                                             .request = 77,
                                             .wanted = {.epoch = 1, .step = 4},
                                             .wanted_spilled = files}};

    start(true);
    begin_request(1, &request);
    (void)run(1);
    assert_true(replied);
    assert_int_equal(outcome_of(1)->err, CAIRN_OK);
    assert_int_equal(rebuilds_sent, 0);
    assert_epoch(0x20001, files, true);
    for (uint32_t a = 0; a < AGENTS; a++)
        assert_true(agents[a].membership.record.ready_from_files);
    request.op.wanted = (struct cairn_generation_id){.epoch = 1, .step = 5};
    request.op.wanted_spilled = (struct cairn_generation_id){0};
    begin_request(2, &request); /* nobody has that: nothing changes */
    (void)run(2);
    assert_int_equal(outcome_of(2)->err, CAIRN_LOST);
    assert_epoch(0x20001, files, true);
}

static void
a_dead_member_is_replaced(void **unused)
{
    start(true);
    kill_agent(2);
    begin(0, CAIRN_OP_RESTORE, false);
    assert_true(run(0) <= 10000); /* it may be alive for three times dead_after */
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_int_equal(outcome_of(0)->lost_members, 1);
    assert_int_equal(outcome_of(0)->rebuilt_blocks, 7);
    assert_non_null(strstr(outcome_of(0)->text, "no answer from agents 2\n"));
    assert_epoch(0x20000, g1, true);
    assert_int_equal(agents[0].membership.record.holders[2], 4); /* the spare */
    assert_int_equal(agents[0].membership.record.roster->members[2].agent, 4);
    assert_int_equal(agents[0].membership.record.seen[2].incarnation, 0);
}

/* By itself: the same members, the dead one too, and trainers go on. */
static void
a_repair_keeps_everything(void **unused)
{
    start(true);
    kill_agent(2);
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_false(replied);
    assert_epoch(0x20000, g1, false);
    assert_int_equal(agents[0].membership.record.holders[2], 4);
    assert_int_equal(agents[0].membership.record.roster->members[2].agent, 2);
    revive(2); /* it still has its part and learns the epoch */
    deliver_all();
    assert_epoch(0x20000, g1, false);
    begin(2, CAIRN_OP_RESTORE, true);
    assert_int_equal(run(2), 0);
    assert_int_equal(outcome_of(2)->lost_members, 0);
    assert_int_equal(agents[0].membership.record.holders[2], 2); /* its own agent again */
}

/* A blank agent repairs itself: the part comes back to it. */
static void
a_blank_agent_comes_back(void **unused)
{
    start(false);
    forget_parts(3);
    agents[3].membership.blank = true;
    agents[3].membership.self_member = UINT32_MAX;
    begin(3, CAIRN_OP_RESTORE, true);
    assert_int_equal(run(3), 0); /* everyone answers */
    assert_epoch(0x20003, g1, false);
    assert_int_equal(agents[3].membership.self_member, 3);
    assert_int_equal(agents[0].membership.record.holders[3], 3);
}

/* A wedged agent delays a restore by one deadline, and is named. */
static void
wedged(void **unused)
{
    start(true);
    agents[3].wedged = true;
    begin(0, CAIRN_OP_RESTORE, false);
    assert_true(run(0) <= 10000);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_non_null(strstr(outcome_of(0)->text, "no answer from agents 3\n"));
    assert_epoch(0x20000, g1, true);
    assert_int_equal(agents[0].membership.record.holders[3], 4);
}

static void
wedge_3(void)
{
    agents[3].wedged = true;
}

/* The same in the middle: at the claim, and at the comparison. */
static void
wedged_later(void **unused)
{
    static const enum cairn_message_kind kinds[3] = {CAIRN_MSG_CLAIM, CAIRN_MSG_REBUILT,
                                                     CAIRN_MSG_INVENTORY};

    for (uint32_t i = 0; i < 3; i++) {
        start(true);
        if (i == 1)
            forget_parts(2);
        hook_kind = kinds[i];
        hook = wedge_3;
        begin(0, CAIRN_OP_RESTORE, false);
        assert_true(run(0) <= 35000);
        assert_int_equal(outcome_of(0)->err, CAIRN_OK);
        assert_int_equal(agents[0].membership.record.holders[3], 4);
        assert_int_equal(agents[0].membership.record.seen[3].incarnation, 0);
        if (i < 2)
            done(NULL);
    }
}

static void
kill_3(void)
{
    kill_agent(3);
}

static void
deaths_on_the_way(void **unused)
{
    static const enum cairn_message_kind kinds[] = {CAIRN_MSG_ASK,     CAIRN_MSG_INVENTORY,
                                                    CAIRN_MSG_REBUILD, CAIRN_MSG_REBUILT,
                                                    CAIRN_MSG_CLAIM,   CAIRN_MSG_PROMISE};

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        start(false);
        forget_parts(4);
        hook_kind = kinds[i];
        hook = kill_3;
        begin(0, CAIRN_OP_RESTORE, false);
        assert_true(run(0) <= 30000);
        assert_null(hook);
        assert_int_equal(outcome_of(0)->err, CAIRN_OK);
        assert_true(cairn_generation_is(agents[0].membership.record.ready, g1));
        assert_int_equal(agents[0].membership.record.seen[3].incarnation, 0);
        done(NULL);
    }
    start(true);
}

/* By itself nothing goes back while somebody is silent who may know more. */
static void
no_way_back(void **unused)
{
    start(true); /* g2 is committed; 0 has lost it, 1 and 2 are silent */
    commit_g2();
    forget_parts(0);
    hold(0, g1, 0);
    hold(4, g1, 1);
    agents[0].membership.blank = true;
    kill_agent(1);
    kill_agent(2);
    begin(3, CAIRN_OP_RESTORE, true);
    (void)run(3);
    assert_int_equal(outcome_of(3)->err, CAIRN_AGAIN);
    assert_int_equal(claims_sent, 0);
    begin(3, CAIRN_OP_RESTORE, false); /* an operator may */
    (void)run(3);
    assert_int_equal(outcome_of(3)->err, CAIRN_OK);
    assert_epoch(0x20003, g1, true);
}

/* Members that forgot everything prove nothing: the silent members may know of a commit. */
static void
no_witness(void **unused)
{
    start(true);
    for (uint32_t a = 0; a < 2; a++) {
        forget_parts(a);
        hold(4, g1, a); /* k parts on a spare, from before the commit of g2 */
        agents[a].membership.blank = true;
        agents[a].membership.committed = (struct cairn_generation_id){0};
    }
    kill_agent(2);
    kill_agent(3);
    agents[4].membership.committed = (struct cairn_generation_id){0};
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_int_equal(claims_sent, 0);
}

/* An operator began with nothing: no repair brings back what older epochs held. */
static void
what_was_given_up_stays_so(void **unused)
{
    static const struct cairn_generation_id old = {.epoch = 0xffff, .run = 1, .step = 90};

    start(true);
    for (uint32_t a = 0; a < 4; a++) {
        forget_parts(a);
        hold(a, old, a);
        agents[a].membership.committed = (struct cairn_generation_id){0};
    }
    begin(1, CAIRN_OP_RESTORE, true);
    (void)run(1);
    assert_epoch(0x20001, (struct cairn_generation_id){0}, false);
    begin(1, CAIRN_OP_RESTORE, false); /* an operator can, for as long as it is held */
    (void)run(1);
    assert_epoch(0x30001, old, true);
}

static void
lose_memory_of_4(void)
{
    forget_parts(4);
    agents[4].parts.version = 50;
}

/* A target forgets its part before the claim: the record never names it. */
static void
the_target_fails(void **unused)
{
    start(true);
    kill_agent(2);
    hook_kind = CAIRN_MSG_REBUILT;
    hook = lose_memory_of_4;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_int_equal(agents[0].membership.record.holders[2], 4);
    assert_non_null(parts_find(&agents[4].parts, g1, 2));
}

/* An operator starts an agent that is taken for dead, and restores at once. */
static void
a_newcomer(void **unused)
{
    start(true);
    kill_agent(3);
    for (uint32_t a = 0; a < 3; a++)
        agents[a].peers.list[3].dead_ns = 1;
    begin(0, CAIRN_OP_RESTORE, false);
    deliver_all();
    assert_false(restore_is_idle(&agents[0].restore));
    revive(3);
    assert_int_equal(run(0), 0);
    assert_int_equal(outcome_of(0)->lost_members, 0);
    assert_epoch(0x20000, g1, true);
}

/* A generation that was in flight when a member died does not delay. */
static void
in_flight(void **unused)
{
    start(true);
    hold(0, g2, 0);
    kill_agent(3);
    begin(0, CAIRN_OP_RESTORE, true);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_epoch(0x20000, g1, false);
}

static void
damaged_beyond_repair(void **unused)
{
    start(true);
    for (uint32_t a = 0; a < 3; a++)
        hold(a, g2, a);
    agents[3].breaks = true;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_non_null(strstr(outcome_of(0)->text, "step 20: not restorable: damaged beyond repair"));
    assert_epoch(0x20000, g1, true);
}

static void
complete_late(void)
{
    agents[3].breaks = false;
    hold(3, g2, 3);
}

static void
complete_after_the_next_list(void)
{
    hook_kind = CAIRN_MSG_INVENTORY;
    hook = complete_late;
}

/* A generation that was damaged beyond repair is not, once another part of it is complete: one that
 * an earlier plan has rebuilt may end late, and then the generation may be committed. */
static void
a_part_that_is_completed_late_counts(void **unused)
{
    start(true);
    for (uint32_t a = 0; a < 3; a++)
        hold(a, g2, a);
    agents[3].breaks = true;
    hook_kind = CAIRN_MSG_REBUILD;
    hook = complete_after_the_next_list;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_epoch(0x20000, g2, true);
}

static void
no_memory_at_the_target(void **unused)
{
    start(true);
    forget_parts(2);
    agents[2].no_memory = true;
    begin(0, CAIRN_OP_RESTORE, false);
    assert_int_equal(run(0), 0);
    assert_int_equal(agents[0].membership.record.holders[2], 4);
    done(NULL);
    start(true);
    forget_parts(2);
    agents[2].stuck = true;
    begin(0, CAIRN_OP_RESTORE, false);
    assert_in_range(run(0), 19000, 21000); /* one deadline */
    assert_int_equal(agents[0].membership.record.holders[2], 4);
}

static void
damage_part_0(void)
{
    static const struct cairn_bad_block bad = {.area = CAIRN_AREA_DATA, .block = 3};
    struct part *part = &agents[0].parts.list[0];

    part->checked.bad = malloc(sizeof bad);
    assert_non_null(part->checked.bad);
    *part->checked.bad = bad;
    part->checked.bad_count = 1;
}

static void
find_part_2(void)
{
    hold(2, g1, 2);
}

/* Part 2 is lost, and something happens when the first message of a kind arrives. */
static void
restore_part_2(enum cairn_message_kind kind, void (*before)(void))
{
    start(true);
    forget_parts(2);
    hook_kind = kind;
    hook = before;
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_epoch(0x20000, g1, true);
}

static void
fail_at_2(void)
{
    agents[2].no_memory = true;
}

/* The repair compares what it reads, so holders need not. After a failure, or if it turns out that
 * other parts are lost or damaged, they compare all. */
static void
what_a_repair_reads_is_left_out(void **unused)
{
    static const struct {
        enum cairn_message_kind kind;
        void (*before)(void);
    } cases[] = {{CAIRN_MSG_REBUILD, fail_at_2},
                 {CAIRN_MSG_INVENTORY, find_part_2},
                 {CAIRN_MSG_INVENTORY, damage_part_0}};

    restore_part_2(CAIRN_MSG_ASK, NULL);
    assert_int_equal(compared, 1);
    assert_int_equal(left_out[0], 1u << 2);
    done(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        restore_part_2(cases[i].kind, cases[i].before);
        assert_int_equal(compared, 2);
        assert_int_equal(left_out[0], 1u << 2);
        assert_int_equal(left_out[1], 0);
        free(agents[0].parts.list[0].checked.bad);
        done(NULL);
    }
    restore_part_2(CAIRN_MSG_ASK, damage_part_0); /* known before anything is compared */
    assert_int_equal(compared, 1);
    assert_int_equal(left_out[0], 0);
    free(agents[0].parts.list[0].checked.bad);
}

static void
too_much_is_lost(void **unused)
{
    start(true);
    for (uint32_t a = 0; a < 3; a++)
        forget_parts(a);
    begin(0, CAIRN_OP_RESTORE, false);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_LOST);
    assert_non_null(strstr(outcome_of(0)->text, "group 0 has lost 3 of its 4 nodes (0, 1, 2)"));
    assert_int_equal(claims_sent, 0);
    kill_agent(1);
    kill_agent(2);
    kill_agent(4);
    begin(0, CAIRN_OP_RESTORE, false); /* from a few agents nobody can tell */
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_AGAIN);
    assert_non_null(strstr(outcome_of(0)->text, "only 2 of the job's 5 agents answered"));
    assert_non_null(strstr(outcome_of(0)->text, "no answer from agents 1, 2, 4\n"));
}

static void
dry_run_and_fresh(void **unused)
{
    start(true);
    begin(0, CAIRN_OP_DRY_RUN, false);
    assert_int_equal(run(0), 0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_int_equal(outcome_of(0)->generation.step, 10);
    assert_int_equal(claims_sent, 0);
    begin(0, CAIRN_OP_FRESH, false);
    assert_int_equal(run(0), 0);
    assert_epoch(0x20000, (struct cairn_generation_id){0}, true);
    assert_null(agents[0].membership.record.ready_roster);
}

static void
verify(void **unused)
{
    static struct cairn_bad_block bad = {.area = CAIRN_AREA_DATA, .block = 3};
    struct part *part;

    start(true);
    hold(0, g2, 0); /* in flight: not looked at */
    begin(1, CAIRN_OP_VERIFY, false);
    assert_int_equal(run(1), 0);
    assert_int_equal(outcome_of(1)->err, CAIRN_OK);
    assert_int_equal(outcome_of(1)->generation.step, 10);
    assert_int_equal(outcome_of(1)->lost_members, 0);
    assert_int_equal(outcome_of(1)->bad_blocks, 0);
    part = parts_find(&agents[2].parts, g1, 2);
    part->checked.bad = &bad;
    part->checked.bad_count = 1;
    begin(1, CAIRN_OP_VERIFY, false);
    assert_int_equal(run(1), 0);
    assert_int_equal(outcome_of(1)->err, CAIRN_OK);
    assert_int_equal(outcome_of(1)->bad_blocks, 1);
    assert_int_equal(outcome_of(1)->repaired_blocks, 7);
    assert_int_equal(claims_sent, 0);
    assert_epoch(0x10000, (struct cairn_generation_id){0}, false); /* the record is as it was */
}

/* This agent stands still for a minute: no agent is given up for that. */
static void
stands_still(void **unused)
{
    start(true);
    begin(0, CAIRN_OP_RESTORE, false);
    now_ns += 60000 * ms;
    restore_stood_still(&agents[0].restore, 60000 * ms);
    (void)run(0);
    assert_int_equal(outcome_of(0)->err, CAIRN_OK);
    assert_int_equal(outcome_of(0)->lost_members, 0);
}

#define CASE(name) cmocka_unit_test_teardown(name, done)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(an_operator_restores),
        CASE(an_operator_goes_back_to_files),
        CASE(a_dead_member_is_replaced),
        CASE(a_repair_keeps_everything),
        CASE(a_blank_agent_comes_back),
        CASE(wedged),
        CASE(wedged_later),
        CASE(deaths_on_the_way),
        CASE(no_way_back),
        CASE(no_witness),
        CASE(what_was_given_up_stays_so),
        CASE(the_target_fails),
        CASE(a_newcomer),
        CASE(in_flight),
        CASE(damaged_beyond_repair),
        CASE(a_part_that_is_completed_late_counts),
        CASE(no_memory_at_the_target),
        CASE(what_a_repair_reads_is_left_out),
        CASE(too_much_is_lost),
        CASE(dry_run_and_fresh),
        CASE(verify),
        CASE(stands_still),
    };

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
