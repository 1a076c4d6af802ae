/*
 * tests/unit/agent/core/restore/test_inventory.c - inventories go over the wire whole; damaged
 * chunks are refused; the pin follows its rules.
 */
#include "agent/core/restore/answer.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

static struct parts parts;
static struct cairn_roster *roster;
static struct cairn_bad_block bad[2] = {{.area = CAIRN_AREA_DATA, .block = 5},
                                        {.area = CAIRN_AREA_PARITY, .block = 9}};
static const struct cairn_generation_id g1 = {.epoch = 0x10000, .run = 7, .step = 40};
static const struct cairn_generation_id g2 = {.epoch = 0x10000, .run = 7, .step = 50};

static int
fresh(void **unused)
{
    static const uint32_t agents[3] = {0, 1, 2};

    memset(&parts, 0, sizeof parts);
    if (cairn_roster_build(agents, NULL, 3, 1, 3, &roster) != CAIRN_OK)
        return 1;
    for (uint32_t i = 1; i < 4; i++) {
        struct part *part = &parts.list[i];

        part->state = i == 2 ? CAIRN_PART_OPEN : CAIRN_PART_COMPLETE;
        part->generation = i == 1 ? g1 : g2;
        part->member = i % 3;
        part->roster = roster;
        part->geometry.n = 3;
        part->seals[1].whole = true;
        part->seals[1].shard_blocks = 10 * i;
    }
    parts.list[3].checked.bad = bad;
    parts.list[3].checked.bad_count = 2;
    parts.version = 99;
    return 0;
}

static int
done(void **unused)
{
    cairn_roster_drop(roster);
    return 0;
}

static struct inventory_self
some_self(void)
{
    return (struct inventory_self){.incarnation = 3,
                                   .promised = 0x20001,
                                   .active = 0x10000,
                                   .blank = true,
                                   .ready = g2,
                                   .spilled = {1, 2, 3},
                                   .ranks = 4,
                                   .world = 5,
                                   .blocks = 6,
                                   .promised_roster = roster};
}

static struct cairn_actions actions;
static uint64_t up[1] = {0xff};
static const struct cairn_core_options options = {.self = 1, .agent_count = 8, .incarnation = 1};

static struct answering answering;
static struct peers peers = {.up = up};
static struct membership membership;
static struct env env = {.options = &options,
                         .membership = &membership,
                         .peers = &peers,
                         .parts = &parts,
                         .actions = &actions};

/* The bytes of an INVENTORY. */
static void
pack(uint8_t **bytes, size_t *len)
{
    const struct inventory_self self = some_self();
    const struct cairn_message *message;

    inventory_send(&env, 2, 1, &self);
    assert_int_equal(actions.count, 1);
    message = &actions.list[0].as.send.message;
    *len = message->bytes_len;
    *bytes = malloc(*len);
    assert_non_null(*bytes);
    memcpy(*bytes, message->bytes, *len);
    cairn_actions_fini(&actions);
}

static void
goes_over_the_wire(void **unused)
{
    struct inventory inventory = {0};
    uint8_t *bytes;
    size_t len;

    pack(&bytes, &len);
    assert_int_equal(inventory_read(bytes, len, &inventory), CAIRN_OK);
    assert_true(inventory.known);
    assert_int_equal(inventory.self.incarnation, 3);
    assert_int_equal(inventory.self.promised, 0x20001);
    assert_int_equal(inventory.self.active, 0x10000);
    assert_true(inventory.self.blank);
    assert_false(inventory.self.knows);
    assert_true(cairn_generation_is(inventory.self.ready, g2));
    assert_int_equal(inventory.self.spilled.step, 2);
    assert_int_equal(inventory.self.ranks, 4);
    assert_int_equal(inventory.self.world, 5);
    assert_int_equal(inventory.self.blocks, 6);
    assert_int_equal(inventory.self.promised_roster->member_count, 3);
    assert_int_equal(inventory.version, 99);
    assert_int_equal(inventory.part_count, 2); /* the open one is not listed */
    assert_non_null(inventory_find(&inventory, g1, 1));
    assert_int_equal(inventory_find(&inventory, g1, 1)->largest_shard, 10);
    assert_null(inventory_find(&inventory, g2, 2));
    assert_int_equal(inventory_find(&inventory, g2, 0)->bad_count, 2);
    assert_int_equal(inventory_find(&inventory, g2, 0)->bad[1].block, 9);
    assert_int_equal(inventory_find(&inventory, g2, 0)->bad[1].area, CAIRN_AREA_PARITY);
    inventory_forget_part(&inventory, 0);
    assert_null(inventory_find(&inventory, g1, 1));
    assert_non_null(inventory_find(&inventory, g2, 0));
    inventory_fini(&inventory);
    free(bytes);
}

static void
damaged_ones_are_refused(void **unused)
{
    uint8_t *bytes, *copy;
    size_t len;

    pack(&bytes, &len);
    copy = malloc(len + 1);
    assert_non_null(copy);
    for (size_t cut = 0; cut < len; cut++) {
        struct inventory inventory = {0};
        uint8_t *exact = malloc(cut + 1); /* so that a sanitizer sees a read past the end */

        assert_non_null(exact);
        memcpy(exact, bytes, cut);
        assert_int_equal(inventory_read(exact, cut, &inventory), CAIRN_CORRUPT);
        free(exact);
    }
    memcpy(copy, bytes, len);
    copy[len] = 0;
    {
        struct inventory inventory = {0};

        assert_int_equal(inventory_read(copy, len + 1, &inventory), CAIRN_CORRUPT);
    }
    for (size_t at = 0; at < len; at++) {
        struct inventory inventory = {0};

        memcpy(copy, bytes, len);
        copy[at] ^= 0xff;
        if (inventory_read(copy, len, &inventory) == CAIRN_OK) /* a number that may be anything */
            inventory_fini(&inventory);
    }
    free(copy);
    free(bytes);
}

/* ---- answers ---- */

static void
ask(uint32_t from, uint64_t attempt, enum cairn_ask mode)
{
    const struct inventory_self self = some_self();
    struct cairn_message message = {.kind = CAIRN_MSG_ASK, .from = from, .to = 1};

    message.as.ask.attempt = attempt;
    message.as.ask.mode = mode;
    message.as.ask.generation = g2;
    answer_ask(&env, &answering, &self, &message);
}

/* Returns the attempt of the INVENTORY that was sent to an agent; 0: none. Answers each VERIFY. */
static uint64_t
answered(uint32_t to)
{
    const struct inventory_self self = some_self();
    uint64_t attempt = 0;

    for (size_t i = 0; i < actions.count; i++) {
        const struct cairn_action *action = &actions.list[i];
        struct cairn_event_answer answer = {.part = action->as.part.part,
                                            .request = action->as.part.request,
                                            .generation = action->as.part.generation};

        if (action->type == CAIRN_ACTION_VERIFY) {
            parts_verified(&env, &parts.list[answer.part], &answer);
            answer_progress(&env, &answering, &self);
        }
    }
    for (size_t i = 0; i < actions.count; i++)
        if (actions.list[i].type == CAIRN_ACTION_SEND &&
            actions.list[i].as.send.message.kind == CAIRN_MSG_INVENTORY &&
            actions.list[i].as.send.message.to == to)
            attempt = actions.list[i].as.send.message.as.inventory.attempt;
    cairn_actions_clear(&actions);
    return attempt;
}

/* The attempt that each of two coordinators is answered. */
static void
both_answered(uint64_t to_2, uint64_t to_3)
{
    uint64_t attempts[2] = {0};
    const struct inventory_self self = some_self();

    for (size_t i = 0; i < actions.count; i++) {
        const struct cairn_action *action = &actions.list[i];

        if (action->type == CAIRN_ACTION_VERIFY) {
            const struct cairn_event_answer answer = {.part = action->as.part.part,
                                                      .request = action->as.part.request,
                                                      .generation = action->as.part.generation};

            parts_verified(&env, &parts.list[answer.part], &answer);
            answer_progress(&env, &answering, &self);
        } else if (action->type == CAIRN_ACTION_SEND) {
            attempts[action->as.send.message.to - 2] = action->as.send.message.as.inventory.attempt;
        }
    }
    assert_int_equal(attempts[0], to_2);
    assert_int_equal(attempts[1], to_3);
    cairn_actions_clear(&actions);
}

/* Two coordinators compare at once: both are answered, the second has the pin. */
static void
two_coordinators(void **unused)
{
    assert_int_equal(answer_init(&answering, options.agent_count), CAIRN_OK);
    parts.list[3].checked.bad = NULL;
    parts.list[3].checked.bad_count = 0;
    ask(2, 5, CAIRN_ASK_VERIFY);
    ask(3, 4, CAIRN_ASK_VERIFY);
    both_answered(5, 4);
    ask(2, 6, CAIRN_ASK_VERIFY);
    ask(3, 7, CAIRN_ASK_VERIFY_ALL);
    ask(2, 6, CAIRN_ASK_RELEASE);
    both_answered(0, 7);
    ask(2, 8, CAIRN_ASK_VERIFY);
    ask(3, 9, CAIRN_ASK_VERIFY);
    answer_end(&env, &answering, 3);
    both_answered(8, 0);
    answer_fini(&answering);
    cairn_actions_fini(&actions);
}

static void
pins(void **unused)
{
    assert_int_equal(answer_init(&answering, options.agent_count), CAIRN_OK);
    parts.list[3].checked.bad = NULL;
    parts.list[3].checked.bad_count = 0;
    ask(2, 5, CAIRN_ASK_LIST);
    assert_int_equal(answered(2), 5);
    assert_false(parts.pinned);
    ask(2, 6, CAIRN_ASK_VERIFY);
    assert_true(parts.pinned);
    assert_true(cairn_generation_is(parts.pinned_generation, g2));
    assert_int_equal(actions.count, 1); /* only VERIFY: the answer waits for it */
    assert_int_equal(answered(2), 6);
    ask(3, 9, CAIRN_ASK_LIST);
    assert_int_equal(answered(3), 9);
    assert_true(parts.pinned);
    ask(3, 10, CAIRN_ASK_RELEASE); /* it has no pin here */
    assert_true(parts.pinned);
    ask(3, 11, CAIRN_ASK_VERIFY); /* the later coordinator has the pin */
    assert_int_equal(answered(3), 11);
    answer_end(&env, &answering, 2);
    assert_true(parts.pinned);
    answer_end(&env, &answering, 3);
    assert_false(parts.pinned);
    ask(2, 10, CAIRN_ASK_VERIFY);
    assert_int_equal(answered(2), 10);
    ask(2, 0, CAIRN_ASK_RELEASE);
    assert_false(parts.pinned);
    ask(2, 11, CAIRN_ASK_VERIFY);
    assert_int_equal(answered(2), 11);
    answer_unpin(&env, &answering);
    assert_false(parts.pinned);
    ask(2, 12, CAIRN_ASK_VERIFY_ALL);
    assert_int_equal(answered(2), 12);
    assert_false(parts.pinned);
    answer_fini(&answering);
    cairn_actions_fini(&actions);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fresh, done)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(goes_over_the_wire),
        CASE(damaged_ones_are_refused),
        CASE(pins),
        CASE(two_coordinators),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
