/*
 * tests/unit/agent/core/test_restore_join.c - cores that exchange messages: an agent that has
 * trainers and is no member becomes one. If too few agents run to promise an epoch, none freezes.
 *
 * Agents 0, 1 and 3 are the members of the first epoch, agent 2 is a spare whose trainers belong to
 * the job, the others are away.
 */
#include "agent/core/core_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RUNNING = 4, AGENTS_MAX = 8, LETTERS_MAX = 512 };
static const uint64_t ms = 1000000, first_epoch = 0x1ffff;

struct letter {
    struct cairn_message message;
    uint8_t *bytes;
};

static struct cairn_core *cores[RUNNING];
static struct letter letters[LETTERS_MAX];
static uint32_t letter_count;
static uint64_t now_ns;
static uint32_t tick_ms;
static bool any_frozen; /* at some time */
static uint64_t repair_after_ns = 30000 * UINT64_C(1000000);
static bool faints; /* agent 1, once, as it has promised: it says nothing of what it holds */
static uint64_t faint_until_ns;

static void
start_with(uint32_t agent_count, struct cairn_bytes record)
{
    bool spares[AGENTS_MAX] = {false, false, true, false, true, true, true, true};
    struct cairn_bytes records[CAIRN_HOLDINGS_MAX] = {{0}};
    uint32_t dropped;

    now_ns = 1000 * ms;
    any_frozen = faints = false;
    faint_until_ns = 0;
    tick_ms = 100;
    for (uint32_t a = 0; a < RUNNING; a++) {
        const struct cairn_core_options options = {.self = a,
                                                   .agent_count = agent_count,
                                                   .spares = spares,
                                                   .parity = 1,
                                                   .group_size = 3,
                                                   .slots = 2,
                                                   .slot_blocks = 64,
                                                   .parity_blocks = 64,
                                                   .every_steps = 1,
                                                   .incarnation = 1,
                                                   .heartbeat_interval_ns = 500 * ms,
                                                   .dead_after_ns = 3000 * ms,
                                                   .repair_after_ns = repair_after_ns,
                                                   .resend_after_ns = 500 * ms,
                                                   .claim_timeout_ns = 3000 * ms,
                                                   .rebuild_timeout_ns = 600000 * ms};

        assert_int_equal(cairn_core_create(&options, now_ns, record, records, &dropped, &cores[a]),
                         CAIRN_OK);
    }
}

static void
start(uint32_t agent_count)
{
    start_with(agent_count, (struct cairn_bytes){0});
}

static void
end(void)
{
    for (uint32_t i = 0; i < letter_count; i++)
        free(letters[i].bytes);
    letter_count = 0;
    for (uint32_t a = 0; a < RUNNING; a++)
        cairn_core_destroy(cores[a]);
}

/* Lets an agent take an event, and keeps what it sends. */
static void
step(uint32_t agent, struct cairn_event event)
{
    struct cairn_actions actions = {0};
    struct cairn_core_view view;

    event.now_ns = now_ns;
    cairn_core_step(cores[agent], &event, &actions);
    assert_false(actions.failed);
    for (size_t i = 0; i < actions.count; i++) {
        const struct cairn_message *message = &actions.list[i].message;
        struct letter *letter = &letters[letter_count];

        if (actions.list[i].type != CAIRN_ACTION_SEND || message->to >= RUNNING)
            continue;
        if (faints && agent == 1 && message->type == CAIRN_MSG_INVENTORY &&
            message->epoch > first_epoch) {
            faints = false;
            faint_until_ns = now_ns + 12000 * ms;
            continue;
        }
        assert_true(letter_count++ < LETTERS_MAX);
        letter->message = *message;
        letter->bytes = malloc(message->bytes_len + 1);
        assert_non_null(letter->bytes);
        if (message->bytes_len)
            memcpy(letter->bytes, message->bytes, message->bytes_len);
        letter->message.bytes = letter->bytes;
    }
    cairn_actions_fini(&actions);
    cairn_core_look(cores[agent], &view);
    any_frozen |= view.frozen;
}

static bool
has_fainted(uint32_t agent)
{
    return agent == 1 && now_ns < faint_until_ns;
}

static void
deliver(void)
{
    while (letter_count > 0) {
        struct letter letter = letters[0];

        memmove(letters, letters + 1, --letter_count * sizeof *letters);
        if (!has_fainted(letter.message.to))
            step(letter.message.to, (struct cairn_event){.type = CAIRN_EVENT_MESSAGE,
                                                         .message = &letter.message,
                                                         .payload_ok = true});
        free(letter.bytes);
    }
}

/* A trainer on each node that runs; then the time passes. */
static void
train(uint32_t seconds)
{
    for (uint32_t a = 0; a < RUNNING; a++)
        step(a, (struct cairn_event){
                    .type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 5, .world = RUNNING});
    for (uint32_t i = 0; i < seconds * 1000 / tick_ms; i++) {
        now_ns += tick_ms * ms;
        for (uint32_t a = 0; a < RUNNING; a++)
            if (!has_fainted(a))
                step(a, (struct cairn_event){.type = CAIRN_EVENT_TICK});
        deliver();
    }
}

/* Agent 2 is no member; all train for some time, and then it is one, in an epoch that all know. */
static void
assert_joins(uint32_t seconds)
{
    struct cairn_core_view views[RUNNING];

    cairn_core_look(cores[2], &views[2]);
    assert_int_equal(views[2].self_member, UINT32_MAX);
    train(seconds);
    for (uint32_t a = 0; a < RUNNING; a++) {
        cairn_core_look(cores[a], &views[a]);
        assert_false(views[a].frozen);
        assert_true(views[a].settled);
        assert_int_equal(views[a].active, views[0].active);
        assert_int_equal(views[a].table->member_count, RUNNING);
        assert_int_not_equal(views[a].self_member, UINT32_MAX);
        assert_int_equal(views[a].restart_epoch, first_epoch); /* the trainers go on */
    }
}

static void
becomes_a_member(void **unused)
{
    (void)unused;
    start(5);
    assert_joins(60);
    end();
}

/* The claim has met a member that is held up: the fence is lifted with nothing decided, and agent 4
 * is away. */
static void
becomes_a_member_after_a_claim_that_failed(void **unused)
{
    (void)unused;
    start(5);
    faints = true;
    assert_joins(300);
    assert_int_not_equal(faint_until_ns, 0);
    end();
}

/* All agents were started anew after a restore from files, which they do not find any more. */
static void
becomes_a_member_where_files_are_gone(void **unused)
{
    const struct cairn_generation from = {first_epoch - (UINT64_C(1) << EPOCH_CLAIMANT_BITS), 7};
    const uint32_t members[] = {0, 1, 3};
    struct cairn_roster *table = NULL;
    struct cairn_bytes record;
    uint8_t *bytes = NULL;

    (void)unused;
    assert_int_equal(cairn_roster_build(members, NULL, 3, 1, 3, &table), CAIRN_OK);
    assert_int_equal(epoch_pack(first_epoch, from, true, true, first_epoch, NULL, NULL, table,
                                &bytes, &record.len),
                     CAIRN_OK);
    record.bytes = bytes;
    start_with(5, record);
    assert_joins(120);
    for (uint32_t a = 0; a < RUNNING; a++) {
        struct cairn_core_view view;

        cairn_core_look(cores[a], &view);
        assert_true(view.ready_from_files); /* which the epoch does not change */
        assert_int_equal(view.ready.epoch, from.epoch);
        assert_int_equal(view.ready.step, from.step);
    }
    end();
    free(bytes);
    cairn_roster_drop(table);
}

/* What the trainers began with was in memory, and is lost with all of it; nobody repairs by
 * itself. */
static void
becomes_a_member_where_memory_is_gone(void **unused)
{
    const struct cairn_generation from = {first_epoch - (UINT64_C(1) << EPOCH_CLAIMANT_BITS), 7};
    const uint32_t members[] = {0, 1, 3};
    struct cairn_roster *table = NULL;
    struct cairn_bytes record;
    uint8_t *bytes = NULL;

    (void)unused;
    assert_int_equal(cairn_roster_build(members, NULL, 3, 1, 3, &table), CAIRN_OK);
    assert_int_equal(epoch_pack(first_epoch, from, false, true, first_epoch, table, members, table,
                                &bytes, &record.len),
                     CAIRN_OK);
    record.bytes = bytes;
    repair_after_ns = 0;
    start_with(RUNNING, record); /* all of the job's agents answer: nobody is left who may hold
                                  * it */
    assert_joins(120);
    end();
    start_with(RUNNING + 1, record);
    train(120); /* one is away, and may hold it */
    for (uint32_t a = 0; a < RUNNING; a++) {
        struct cairn_core_view view;

        cairn_core_look(cores[a], &view);
        assert_int_equal(view.active, first_epoch);
        assert_int_equal(view.ready.step, from.step);
    }
    end();
    repair_after_ns = 30000 * ms;
    free(bytes);
    cairn_roster_drop(table);
}

static void
a_minority_is_not_frozen(void **unused)
{
    struct cairn_core_view first, view;

    (void)unused;
    start(8); /* four run, which is no majority */
    cairn_core_look(cores[0], &first);
    train(120);
    for (uint32_t a = 0; a < RUNNING; a++) {
        cairn_core_look(cores[a], &view);
        assert_int_equal(view.active, first.active);
        assert_int_equal(view.promised, first.promised);
    }
    assert_false(any_frozen);
    end();
}

/* Agents that take a turn every 1.2 s, where they should beat every 0.5 s, tell the dead from those
 * that run. */
static void
late_turns_do_not_hide_the_dead(void **unused)
{
    (void)unused;
    start(5);
    tick_ms = 1200;
    train(30);
    for (uint32_t a = 0; a < RUNNING; a++)
        assert_true(cairn_core_alive(cores[0], a));
    faint_until_ns = UINT64_MAX;
    train(60);
    assert_false(cairn_core_alive(cores[0], 1));
    assert_true(cairn_core_alive(cores[0], 2));
    assert_true(cairn_core_alive(cores[0], 3));
    end();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(becomes_a_member),
        cmocka_unit_test(becomes_a_member_after_a_claim_that_failed),
        cmocka_unit_test(becomes_a_member_where_files_are_gone),
        cmocka_unit_test(becomes_a_member_where_memory_is_gone),
        cmocka_unit_test(a_minority_is_not_frozen),
        cmocka_unit_test(late_turns_do_not_hide_the_dead),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
