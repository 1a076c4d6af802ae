/*
 * tests/unit/agent/core/test_forgotten.c - up to which step an agent that has lost memory may have
 * said yes: the first begin tells, once, and no trainer that begins anew lowers that.
 */
#include "agent/core/core_state.h"

#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MS_NS = 1000000, OTHER = 1, STEP = 20 };

/* What the last event led to. */
struct seen {
    bool stored; /* STORE_EPOCH */
    bool granted;
    enum cairn_skip skipped;
    uint64_t until_step; /* of a SKIP */
};

static struct seen
take(struct cairn_core *core, struct cairn_event event)
{
    struct cairn_actions actions = {0};
    struct seen seen = {0};

    event.now_ns = MS_NS;
    cairn_core_step(core, &event, &actions);
    assert_false(actions.failed);
    for (size_t i = 0; i < actions.count; i++) {
        const struct cairn_action *action = &actions.list[i];

        seen.stored |= action->type == CAIRN_ACTION_STORE_EPOCH;
        seen.granted |= action->type == CAIRN_ACTION_GRANT;
        if (action->type == CAIRN_ACTION_SKIP) {
            seen.skipped = action->reason;
            seen.until_step = action->until_step;
        }
    }
    cairn_actions_fini(&actions);
    return seen;
}

/* Agent 0 of two, with memory that was made for this start, whose trainers have registered. */
static int
start(void **state, uint32_t group_size)
{
    const struct cairn_core_options options = {.agent_count = 2,
                                               .group_size = group_size,
                                               .parity = group_size - 1,
                                               .slots = 2,
                                               .slot_blocks = 64,
                                               .parity_blocks = 64,
                                               .every_steps = 1,
                                               .incarnation = 2,
                                               .heartbeat_interval_ns = 1000 * (uint64_t)MS_NS,
                                               .dead_after_ns = 10000 * (uint64_t)MS_NS,
                                               .repair_after_ns = 10000 * (uint64_t)MS_NS,
                                               .resend_after_ns = 1000 * (uint64_t)MS_NS,
                                               .claim_timeout_ns = 10000 * (uint64_t)MS_NS,
                                               .rebuild_timeout_ns = 20000 * (uint64_t)MS_NS,
                                               .memory_is_new = true};
    struct cairn_bytes none = {0}, records[CAIRN_HOLDINGS_MAX] = {{0}};
    struct cairn_core *core = NULL;
    uint32_t dropped;

    assert_int_equal(cairn_core_create(&options, MS_NS, none, records, &dropped, &core), CAIRN_OK);
    take(core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1});
    assert_true(core->forgotten_before == UINT64_MAX);
    *state = core;
    return 0;
}

static int
setup(void **state)
{
    return start(state, 2);
}

static int
setup_two_groups(void **state)
{
    return start(state, 1);
}

static int
teardown(void **state)
{
    cairn_core_destroy(*state);
    return 0;
}

static struct seen
begin(struct cairn_core *core, uint64_t step)
{
    return take(core, (struct cairn_event){.type = CAIRN_EVENT_BEGIN, .step = step});
}

static void
new_trainers(struct cairn_core *core)
{
    take(core, (struct cairn_event){.type = CAIRN_EVENT_RANKS});
    take(core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1});
}

/* The other agent says in its heartbeat that it holds a step of that epoch whole. */
static void
other_holds(struct cairn_core *core, uint64_t epoch, uint64_t step)
{
    uint8_t bytes[2 * 4 * 8];
    struct cairn_writer writer;
    struct cairn_message message = {.type = CAIRN_MSG_HEARTBEAT,
                                    .from = OTHER,
                                    .epoch = core->active,
                                    .bytes = bytes,
                                    .bytes_len = sizeof bytes};

    cairn_writer_init(&writer, bytes, sizeof bytes);
    for (uint32_t agent = 0; agent < 2; agent++) {
        cairn_write_u64(&writer, 1);
        cairn_write_u64(&writer, 1);
        cairn_write_u64(&writer, agent == OTHER ? epoch : 0);
        cairn_write_u64(&writer, agent == OTHER ? step : 0);
    }
    take(core, (struct cairn_event){.type = CAIRN_EVENT_MESSAGE, .message = &message});
    assert_true(core->peers[OTHER].holds == step);
}

/* Trainers that went on while the agent was away: nothing later than what they begin now was ever
 * promised. */
static void
the_first_begin_tells(void **state)
{
    struct cairn_core *core = *state;
    struct seen seen;

    other_holds(core, core->active, STEP - 1);
    seen = begin(core, STEP);
    assert_int_equal(core->forgotten_before, STEP);
    assert_true(seen.stored);
    assert_true(seen.granted);
    seen = begin(core, STEP + 1);
    assert_int_equal(core->forgotten_before, STEP);
    assert_false(seen.stored);
}

/* They are at the same step as another group, which may be done with it. */
static void
the_step_of_another_group_is_no_other_run(void **state)
{
    struct cairn_core *core = *state;

    assert_int_equal(core->table->group_count, 2);
    other_holds(core, core->active, STEP);
    assert_true(begin(core, STEP).granted);
    assert_int_equal(core->forgotten_before, STEP);
}

/* The own group cannot be done with it before they have begun it: what it holds has this node's
 * part of other trainers. */
static void
the_step_of_the_own_group_is_of_another_run(void **state)
{
    struct cairn_core *core = *state;
    struct seen seen;

    other_holds(core, core->active, STEP);
    seen = begin(core, STEP);
    assert_false(seen.granted);
    assert_int_equal(seen.skipped, CAIRN_SKIP_BEGUN);
    assert_int_equal(core->forgotten_before, STEP + 1);
    assert_true(begin(core, STEP + 1).granted);
}

/* A limit that is known is not lowered by trainers that begin again from step 1, in the same
 * epoch. */
static void
trainers_that_begin_again_prove_nothing(void **state)
{
    struct cairn_core *core = *state;

    begin(core, STEP);
    new_trainers(core);
    assert_int_equal(begin(core, 1).skipped, CAIRN_SKIP_BEGUN);
    assert_int_equal(core->forgotten_before, STEP);
}

/* Steps are begun in lockstep, but not at one instant: the one after the last that was begun here
 * may have been begun, and be whole, where nobody hears of it. */
static void
the_step_after_the_last_may_be_of_the_trainers_before(void **state)
{
    struct cairn_core *core = *state;
    struct seen seen;

    begin(core, STEP);
    new_trainers(core);
    seen = begin(core, STEP + 1);
    assert_false(seen.granted);
    assert_int_equal(seen.skipped, CAIRN_SKIP_BEGUN);
    assert_int_equal(seen.until_step, STEP + 1);
    assert_true(begin(core, STEP + 2).granted);
}

/* Not every step is begun: the next one of the others may have been any. */
static void
what_is_whole_elsewhere_is_of_the_trainers_before(void **state)
{
    struct cairn_core *core = *state;

    other_holds(core, core->active, STEP - 5);
    begin(core, STEP);
    core->peers[OTHER].holds = STEP + 5; /* as it has said meanwhile */
    new_trainers(core);
    assert_int_equal(begin(core, STEP + 5).skipped, CAIRN_SKIP_BEGUN);
    assert_true(begin(core, STEP + 6).granted);
}

/* A script whose tensors are others after each step registers them anew before each snapshot: it is
 * the same run all the same. */
static void
trainers_that_register_anew_go_on(void **state)
{
    struct cairn_core *core = *state;

    assert_int_equal(core->table->group_count, 2);
    for (uint64_t step = STEP; step < STEP + 3; step++) {
        assert_true(begin(core, step).granted);
        take(core, (struct cairn_event){.type = CAIRN_EVENT_RANKS});
        take(core, (struct cairn_event){
                       .type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1, .same_trainers = true});
    }
    /* that one was given up with its tensors */
    assert_int_equal(begin(core, STEP + 2).skipped, CAIRN_SKIP_BEGUN);
}

/* What is whole has every member's part, and this one never had it. */
static void
in_one_group_it_is_not(void **state)
{
    struct cairn_core *core = *state;

    begin(core, STEP);
    new_trainers(core);
    assert_int_equal(begin(core, STEP).skipped, CAIRN_SKIP_BEGUN);
    assert_true(begin(core, STEP + 1).granted);
}

/* Nor what was forgotten since: a part too damaged to be counted, see rebuild_target.c. */
static void
no_begin_brings_back_a_damaged_part(void **state)
{
    struct cairn_core *core = *state;

    begin(core, STEP);
    core->forgotten_before = STEP + 1;
    new_trainers(core);
    begin(core, 5);
    assert_int_equal(core->forgotten_before, STEP + 1);
}

/* Nothing is known here, and trainers begin at 1 while others hold step 20: the start before this
 * one may have promised that. */
static void
who_begins_below_the_others_began_anew(void **state)
{
    struct cairn_core *core = *state;
    struct seen seen;

    other_holds(core, core->active, STEP);
    seen = begin(core, 1);
    assert_int_equal(core->forgotten_before, STEP + 1);
    assert_true(seen.stored);
    assert_int_equal(seen.skipped, CAIRN_SKIP_BEGUN);
    assert_int_equal(seen.until_step, STEP);
    assert_int_equal(begin(core, STEP).skipped, CAIRN_SKIP_BEGUN);
    assert_true(begin(core, STEP + 1).granted);
}

/* Another agent has seen trainers go that had begun up to that step. */
static void
what_others_saw_of_trainers_is_a_limit(void **state)
{
    struct cairn_core *core = *state;
    uint8_t bytes[2 * 4 * 8] = {0};
    struct cairn_message message = {.type = CAIRN_MSG_HEARTBEAT,
                                    .from = OTHER,
                                    .epoch = core->active + 1,
                                    .offset = STEP,
                                    .bytes = bytes,
                                    .bytes_len = sizeof bytes};

    take(core, (struct cairn_event){.type = CAIRN_EVENT_MESSAGE, .message = &message});
    assert_int_equal(core->passed_step, 0); /* of another epoch */
    message.epoch = core->active;
    take(core, (struct cairn_event){.type = CAIRN_EVENT_MESSAGE, .message = &message});
    assert_int_equal(begin(core, STEP).skipped, CAIRN_SKIP_BEGUN);
    assert_true(begin(core, STEP + 1).granted);
}

/* Trainers may have begun anew while an agent was away: it captures nothing before it has heard of
 * the others. */
static void
an_agent_that_is_back_waits_for_the_others(void **state)
{
    struct cairn_core *core = *state;
    struct seen seen;

    core->is_back = true;
    seen = begin(core, STEP);
    assert_false(seen.granted);
    assert_int_equal(seen.skipped, CAIRN_SKIP_NOT_READY);
    other_holds(core, core->active, STEP - 1);
    assert_true(begin(core, STEP + 1).granted);
}

static void
what_is_whole_in_another_epoch_is_no_limit(void **state)
{
    struct cairn_core *core = *state;

    other_holds(core, core->active - 1, STEP);
    assert_true(begin(core, 1).granted);
    assert_int_equal(core->forgotten_before, 1);
}

/* An agent that lost its epoch with its memory and hears of the one that it was in still knows
 * nothing of it. */
static void
an_epoch_that_is_only_heard_of_is_not_known(void **state)
{
    struct cairn_core *core = *state;
    struct cairn_generation nothing = {0, 0};
    uint64_t epoch = core->active + (UINT64_C(1) << EPOCH_CLAIMANT_BITS);
    struct cairn_message message = {.type = CAIRN_MSG_ACTIVATE, .from = OTHER, .epoch = epoch};
    uint8_t *bytes = NULL;
    size_t len = 0;

    assert_int_equal(epoch_pack(epoch, nothing, false, true, core->active, NULL, NULL, core->table,
                                &bytes, &len),
                     CAIRN_OK);
    message.bytes = bytes;
    message.bytes_len = (uint32_t)len;
    take(core, (struct cairn_event){.type = CAIRN_EVENT_MESSAGE, .message = &message});
    assert_true(core->active == epoch);
    assert_true(core->forgotten_before == UINT64_MAX);
    begin(core, STEP);
    assert_int_equal(core->forgotten_before, STEP);
    free(bytes);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_first_begin_tells, setup, teardown),
        cmocka_unit_test_setup_teardown(the_step_of_another_group_is_no_other_run, setup_two_groups,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_step_of_the_own_group_is_of_another_run, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(trainers_that_begin_again_prove_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(the_step_after_the_last_may_be_of_the_trainers_before,
                                        setup_two_groups, teardown),
        cmocka_unit_test_setup_teardown(what_is_whole_elsewhere_is_of_the_trainers_before,
                                        setup_two_groups, teardown),
        cmocka_unit_test_setup_teardown(trainers_that_register_anew_go_on, setup_two_groups,
                                        teardown),
        cmocka_unit_test_setup_teardown(in_one_group_it_is_not, setup, teardown),
        cmocka_unit_test_setup_teardown(no_begin_brings_back_a_damaged_part, setup, teardown),
        cmocka_unit_test_setup_teardown(who_begins_below_the_others_began_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(what_others_saw_of_trainers_is_a_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(an_agent_that_is_back_waits_for_the_others, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_is_whole_in_another_epoch_is_no_limit, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_epoch_that_is_only_heard_of_is_not_known, setup,
                                        teardown),
    };

    return cmocka_run_group_tests_name("agent/forgotten", tests, NULL, NULL);
}
