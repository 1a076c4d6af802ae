/*
 * tests/unit/agent/core/test_again.c - what is known to be lost is sent again at once, not after
 * resend_after: blocks of a generation for which a member had no slot, and all that was sent before
 * there was a connection.
 */
#include "agent/core/core.h"
#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SELF = 0, OTHER = 1, SLOTS = 2, MS_NS = 1000000 };

struct member {
    struct cairn_core *core;
    uint64_t epoch;
    uint32_t opened, data, data_acks, seals, facts; /* that the last event sent to the other one */
    struct cairn_generation generation;             /* of the last OPENED */
    uint64_t asked;                                 /* request of the last SEAL */
    uint32_t asked_of;                              /* holding of the last SEAL */
};

/* Time stands still at 1 ms: nothing here comes from a clock. */
static void
take(struct member *member, struct cairn_event event)
{
    struct cairn_actions actions = {0};

    event.now_ns = MS_NS;
    cairn_core_step(member->core, &event, &actions);
    assert_false(actions.failed);
    member->opened = member->data = member->data_acks = member->seals = member->facts = 0;
    for (size_t i = 0; i < actions.count; i++) {
        const struct cairn_message *message = &actions.list[i].message;

        if (actions.list[i].type == CAIRN_ACTION_SEAL) {
            member->asked = actions.list[i].request;
            member->asked_of = actions.list[i].holding;
        }
        if (actions.list[i].type != CAIRN_ACTION_SEND)
            continue;
        assert_int_equal(message->to, OTHER);
        member->opened += message->type == CAIRN_MSG_OPENED;
        member->data += message->type == CAIRN_MSG_DATA;
        member->data_acks += message->type == CAIRN_MSG_DATA_ACK;
        member->seals += message->type == CAIRN_MSG_SEAL;
        member->facts += message->type == CAIRN_MSG_FACTS;
        if (message->type == CAIRN_MSG_OPENED)
            member->generation = message->generation;
    }
    cairn_actions_fini(&actions);
}

static void
hear(struct member *member, struct cairn_message message)
{
    message.from = OTHER;
    message.to = SELF;
    take(member, (struct cairn_event){
                     .type = CAIRN_EVENT_MESSAGE, .message = &message, .payload_ok = true});
}

static void
begin(struct member *member, uint64_t step)
{
    take(member, (struct cairn_event){.type = CAIRN_EVENT_BEGIN, .step = step});
}

static void
capture(struct member *member, uint64_t step)
{
    static const uint64_t crc = 5;

    take(member, (struct cairn_event){.type = CAIRN_EVENT_BLOCKS,
                                      .generation = {member->epoch, step},
                                      .count = 1,
                                      .crcs = &crc});
}

/* All of the own part is captured and sealed: that the trainer goes on does not give it up. */
static void
complete(struct member *member, uint64_t step)
{
    begin(member, step);
    capture(member, step);
    take(member,
         (struct cairn_event){.type = CAIRN_EVENT_DONE, .generation = {member->epoch, step}});
    take(member, (struct cairn_event){.type = CAIRN_EVENT_SEALED,
                                      .generation = {member->epoch, step},
                                      .request = member->asked,
                                      .holding = member->asked_of,
                                      .bytes = (const uint8_t *)"manifest",
                                      .bytes_len = 8});
    assert_int_equal(member->seals, 1);
}

static struct cairn_message
data_of(const struct member *member, uint64_t step)
{
    return (struct cairn_message){.type = CAIRN_MSG_DATA,
                                  .epoch = member->epoch,
                                  .generation = {member->epoch, step},
                                  .member = OTHER,
                                  .block_count = 1,
                                  .bytes = (const uint8_t *)"12345678",
                                  .bytes_len = 8};
}

static struct cairn_message
opened(const struct member *member, uint64_t step)
{
    return (struct cairn_message){.type = CAIRN_MSG_OPENED,
                                  .epoch = member->epoch,
                                  .generation = {member->epoch, step},
                                  .member = OTHER};
}

static int
setup_with_slots(void **state, uint32_t slots)
{
    const struct cairn_core_options options = {.self = SELF,
                                               .agent_count = 2,
                                               .group_size = 2,
                                               .parity = 1,
                                               .slots = slots,
                                               .slot_blocks = 64,
                                               .parity_blocks = 64,
                                               .every_steps = 1,
                                               .incarnation = 1,
                                               .heartbeat_interval_ns = 1000 * (uint64_t)MS_NS,
                                               .dead_after_ns = 100000 * (uint64_t)MS_NS,
                                               .repair_after_ns = 100000 * (uint64_t)MS_NS,
                                               .resend_after_ns = 10 * (uint64_t)MS_NS,
                                               .claim_timeout_ns = 10000 * (uint64_t)MS_NS,
                                               .rebuild_timeout_ns = 20000 * (uint64_t)MS_NS};
    struct cairn_bytes none = {0}, records[CAIRN_HOLDINGS_MAX] = {{0}};
    struct member *member = calloc(1, sizeof *member);
    struct cairn_core_view view;
    uint32_t dropped;

    assert_non_null(member);
    assert_int_equal(cairn_core_create(&options, MS_NS, none, records, &dropped, &member->core),
                     CAIRN_OK);
    cairn_core_look(member->core, &view);
    member->epoch = view.active;
    take(member, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1});
    *state = member;
    return 0;
}

static int
setup(void **state)
{
    return setup_with_slots(state, SLOTS);
}

static int
setup_three(void **state)
{
    return setup_with_slots(state, 3);
}

static int
teardown(void **state)
{
    struct member *member = *state;

    cairn_core_destroy(member->core);
    free(member);
    return 0;
}

/* Both slots are taken when the first blocks of step 3 come; the one that is free next is opened
 * for it, and that is told once. */
static void
turned_away_is_asked_for(void **state)
{
    struct member *member = *state;

    complete(member, 1);
    begin(member, 2);
    hear(member, data_of(member, 3));
    assert_int_equal(member->opened + member->data_acks, 0);
    take(member, (struct cairn_event){.type = CAIRN_EVENT_CANCEL, .step = 2});
    assert_int_equal(member->opened, 1);
    assert_int_equal(member->generation.step, 3);
    hear(member, data_of(member, 3));
    assert_int_equal(member->data_acks, 1);
    assert_int_equal(member->opened, 0);
    begin(member, 3);
    assert_int_equal(member->opened, 0);
}

static void
give_up(struct member *member, uint64_t step)
{
    hear(member, (struct cairn_message){.type = CAIRN_MSG_FACTS,
                                        .epoch = member->epoch,
                                        .generation = {member->epoch, step},
                                        .member = 2,
                                        .offset = 1});
}

/* With three slots two generations may be turned away: both are opened, the older one first, or it
 * would be passed. */
static void
each_that_is_turned_away_is_asked_for(void **state)
{
    struct member *member = *state;

    complete(member, 1);
    complete(member, 2);
    complete(member, 3);
    hear(member, data_of(member, 5));
    hear(member, data_of(member, 4));
    assert_int_equal(member->opened + member->data_acks, 0);
    give_up(member, 2);
    assert_int_equal(member->opened, 1);
    assert_int_equal(member->generation.step, 4);
    give_up(member, 3);
    assert_int_equal(member->opened, 1);
    assert_int_equal(member->generation.step, 5);
    give_up(member, 1);
    assert_int_equal(member->opened, 0);
}

/* Of more than there are slots for the newest are remembered, and what is settled makes way. */
static void
what_is_turned_away_is_bounded(void **state)
{
    struct member *member = *state;

    complete(member, 1);
    begin(member, 2);
    for (uint64_t step = 9; step >= 3; step--)
        hear(member, data_of(member, step));
    take(member, (struct cairn_event){.type = CAIRN_EVENT_CANCEL, .step = 2});
    assert_int_equal(member->opened, 1);
    assert_int_equal(member->generation.step, 9 - CAIRN_OWN_SLOTS_MAX + 1);
}

/* Where a slot is free nothing was lost, and nothing is told. */
static void
first_blocks_open_a_free_slot(void **state)
{
    struct member *member = *state;

    hear(member, data_of(member, 3));
    assert_int_equal(member->data_acks, 1);
    assert_int_equal(member->opened, 0);
    begin(member, 3);
    assert_int_equal(member->opened, 0);
}

/* What this member's trainers are past is given up, not opened, though a slot becomes free. */
static void
what_is_passed_is_not_opened(void **state)
{
    struct member *member = *state;

    complete(member, 1);
    begin(member, 2);
    hear(member, data_of(member, 3));
    begin(member, 4); /* gives step 2 up */
    assert_int_equal(member->opened, 0);
    hear(member, data_of(member, 3));
    assert_int_equal(member->data_acks, 0);
    assert_true(member->facts > 0); /* that it never will */
}

/* Unacknowledged blocks, and only those, go again when their owner says that it has opened its
 * part. */
static void
opened_sends_again(void **state)
{
    struct member *member = *state;
    struct cairn_message strange = opened(member, 1);

    begin(member, 1);
    hear(member, opened(member, 1));
    assert_int_equal(member->data, 0); /* nothing is captured */
    capture(member, 1);
    assert_int_equal(member->data, 1);
    hear(member, opened(member, 1));
    assert_int_equal(member->data, 1);
    hear(member, opened(member, 2));
    assert_int_equal(member->data, 0);
    strange.member = SELF;
    hear(member, strange);
    assert_int_equal(member->data, 0);
    strange.member = 77;
    hear(member, strange);
    assert_int_equal(member->data, 0);
    strange = opened(member, 1);
    strange.epoch++;
    hear(member, strange);
    assert_int_equal(member->data, 0);
}

static void
acknowledged_is_not_sent_again(void **state)
{
    struct member *member = *state;
    struct cairn_message ack = {.type = CAIRN_MSG_DATA_ACK,
                                .epoch = member->epoch,
                                .generation = {member->epoch, 1},
                                .member = SELF,
                                .offset = 1};

    begin(member, 1);
    capture(member, 1);
    for (uint32_t stripe = 0; stripe < 2; stripe++) {
        ack.stripe = stripe;
        hear(member, ack);
    }
    hear(member, opened(member, 1));
    assert_int_equal(member->data, 0);
}

static void
connection_sends_again(void **state)
{
    struct member *member = *state;

    complete(member, 1);
    take(member, (struct cairn_event){.type = CAIRN_EVENT_CONNECTED, .agent = OTHER});
    assert_int_equal(member->data, 1);
    assert_int_equal(member->seals, 1);
    take(member, (struct cairn_event){.type = CAIRN_EVENT_CONNECTED, .agent = 77});
    assert_int_equal(member->data + member->seals, 0);
}

/* What trainers have captured may still be committed when they are gone, but not of two runs: once
 * others are here it is given up. */
static void
what_others_left_unfinished_is_given_up(void **state)
{
    struct member *member = *state;
    struct cairn_holding_view view;

    complete(member, 1);
    take(member, (struct cairn_event){.type = CAIRN_EVENT_RANKS});
    assert_int_equal(member->facts, 0);
    assert_true(cairn_core_look_holding(member->core, 0, &view));
    take(member, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1});
    assert_true(member->facts > 0);
    assert_false(cairn_core_look_holding(member->core, 0, &view));
    hear(member, data_of(member, 1)); /* of the other node's new trainers */
    assert_int_equal(member->data_acks, 0);
    assert_false(cairn_core_look_holding(member->core, 0, &view));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(turned_away_is_asked_for, setup, teardown),
        cmocka_unit_test_setup_teardown(each_that_is_turned_away_is_asked_for, setup_three,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_is_turned_away_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(what_others_left_unfinished_is_given_up, setup, teardown),
        cmocka_unit_test_setup_teardown(first_blocks_open_a_free_slot, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_passed_is_not_opened, setup, teardown),
        cmocka_unit_test_setup_teardown(opened_sends_again, setup, teardown),
        cmocka_unit_test_setup_teardown(acknowledged_is_not_sent_again, setup, teardown),
        cmocka_unit_test_setup_teardown(connection_sends_again, setup, teardown),
    };

    return cmocka_run_group_tests_name("agent/again", tests, NULL, NULL);
}
