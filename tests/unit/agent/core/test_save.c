/*
 * tests/unit/agent/core/test_save.c - which steps become generations: fast ones that collide are
 * thinned out, jumps are not; what was due or asked for and was given up is tried again at the
 * steps that follow, until one is committed; and those whose tensors are not held exactly once are
 * not committed.
 */
#include "agent/core/core.h"

#include "base/limits.h"
#include "snapshot/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEP_NS = 1000000, SLOW_STEP_NS = 200 * STEP_NS };

static struct cairn_core *
core_every(uint64_t every_steps)
{
    const struct cairn_core_options options = {.agent_count = 1,
                                               .group_size = 1,
                                               .slots = 2,
                                               .slot_blocks = 64,
                                               .every_steps = every_steps,
                                               .incarnation = 1,
                                               .heartbeat_interval_ns = 1000 * (uint64_t)STEP_NS,
                                               .dead_after_ns = 10000 * (uint64_t)STEP_NS,
                                               .repair_after_ns = 10000 * (uint64_t)STEP_NS,
                                               .resend_after_ns = 1000 * (uint64_t)STEP_NS,
                                               .claim_timeout_ns = 10000 * (uint64_t)STEP_NS,
                                               .rebuild_timeout_ns = 20000 * (uint64_t)STEP_NS};
    struct cairn_bytes none = {0}, records[CAIRN_HOLDINGS_MAX] = {{0}};
    struct cairn_core *core = NULL;
    uint32_t dropped;

    assert_int_equal(cairn_core_create(&options, 1, none, records, &dropped, &core), CAIRN_OK);
    return core;
}

/* The type of the first action of these two that an event leads to, 0 for none. */
static enum cairn_action_type
grant_or_skip(struct cairn_core *core, struct cairn_event event, uint64_t now_ns)
{
    struct cairn_actions actions = {0};
    enum cairn_action_type found = (enum cairn_action_type)0;

    event.now_ns = now_ns;
    cairn_core_step(core, &event, &actions);
    for (size_t i = 0; i < actions.count && !found; i++)
        if (actions.list[i].type == CAIRN_ACTION_GRANT || actions.list[i].type == CAIRN_ACTION_SKIP)
            found = actions.list[i].type;
    cairn_actions_fini(&actions);
    return found;
}

/* The next update comes before the copy of the last one has ended. */
static enum cairn_action_type
begin(struct cairn_core *core, uint64_t step, uint64_t now_ns)
{
    return grant_or_skip(core, (struct cairn_event){.type = CAIRN_EVENT_BEGIN, .step = step},
                         now_ns);
}

/* A core whose last generations collided: of steps of 1 ms every second one is due. */
static struct cairn_core *
thinned_core(uint64_t *now_ns)
{
    struct cairn_core *core = core_every(1);

    *now_ns = STEP_NS;
    (void)grant_or_skip(
        core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 5}, *now_ns);
    (void)grant_or_skip(core, (struct cairn_event){.type = CAIRN_EVENT_TICK}, *now_ns);
    assert_int_equal(begin(core, 1, *now_ns += STEP_NS), CAIRN_ACTION_GRANT);
    assert_int_equal(begin(core, 2, *now_ns += STEP_NS), CAIRN_ACTION_GRANT);
    assert_int_equal(begin(core, 3, *now_ns += STEP_NS), CAIRN_ACTION_SKIP);
    return core;
}

static void
fast_steps_that_collide_are_thinned_out(void **state)
{
    uint64_t now_ns;
    struct cairn_core *core = thinned_core(&now_ns);

    (void)state;
    assert_int_equal(begin(core, 4, now_ns += STEP_NS), CAIRN_ACTION_GRANT);
    assert_int_equal(begin(core, 5, now_ns += STEP_NS), CAIRN_ACTION_SKIP);
    cairn_core_destroy(core);
}

/* As a job does that names its saves by the time of day, or that goes on from another one's
 * step. */
static void
a_jump_is_not_thinned_out(void **state)
{
    for (uint64_t jump = 1795307943; jump <= 1795307944; jump++) {
        uint64_t now_ns;
        struct cairn_core *core = thinned_core(&now_ns);

        (void)state;
        assert_int_equal(begin(core, jump, now_ns += STEP_NS), CAIRN_ACTION_GRANT);
        assert_int_equal(begin(core, jump + 1, now_ns + UINT64_C(1000000000)), CAIRN_ACTION_GRANT);
        cairn_core_destroy(core);
    }
}

/* The manifest of one block that holds elements [at, at + 2) of the 4 of "x", and `more` of
 * them. */
static void
pack_manifest(struct cairn_generation generation, uint64_t at, uint64_t more, uint8_t **bytes,
              size_t *len)
{
    uint64_t crc = 0;
    struct cairn_manifest_rank rank = {.rank = 0, .world = 1, .region_bytes = CAIRN_BLOCK_BYTES};
    struct cairn_manifest_entry entries[2] = {{.slice = {.name = "x",
                                                         .dtype = CAIRN_F32,
                                                         .kind = CAIRN_PARAM,
                                                         .dims = 1,
                                                         .shape = {4},
                                                         .offset = {at},
                                                         .extent = {2},
                                                         .device = -1,
                                                         .replica_count = 1}}};
    struct cairn_manifest manifest = {.job_id = 1,
                                      .generation = generation,
                                      .container_count = 1,
                                      .container_bytes = CAIRN_BLOCK_BYTES,
                                      .ranks = &rank,
                                      .rank_count = 1,
                                      .entry_count = more ? 2 : 1,
                                      .entries = entries,
                                      .block_crcs = &crc,
                                      .block_count = 1};

    entries[1] = entries[0];
    entries[1].slice.offset[0] = (at + 2) % 4;
    entries[1].offset_bytes = 64;
    assert_int_equal(cairn_manifest_pack(&manifest, bytes, len), CAIRN_OK);
}

/* Captures a step of one block that was granted; true when that is committed. */
static bool
capture(struct cairn_core *core, uint64_t step, uint64_t more, uint64_t now_ns)
{
    static const uint64_t crc = 5;
    struct cairn_core_view view;
    struct cairn_generation generation = {0, step};
    struct cairn_event events[4] = {{.type = CAIRN_EVENT_BLOCKS, .count = 1, .crcs = &crc},
                                    {.type = CAIRN_EVENT_DONE},
                                    {.type = CAIRN_EVENT_SEALED},
                                    {.type = CAIRN_EVENT_FINISHED}};
    uint64_t asked = 0;
    uint32_t holding = 0;
    uint8_t *bytes = NULL;
    bool committed = false;

    cairn_core_look(core, &view);
    generation.epoch = view.active;
    pack_manifest(generation, 0, more, &bytes, &events[2].bytes_len);
    events[2].bytes = bytes;
    for (uint32_t i = 0; i < 4; i++) {
        struct cairn_actions actions = {0};

        events[i].generation = generation;
        events[i].request = asked;
        events[i].holding = holding;
        events[i].now_ns = now_ns;
        cairn_core_step(core, &events[i], &actions);
        for (size_t a = 0; a < actions.count; a++) {
            committed |= actions.list[a].type == CAIRN_ACTION_COMMITTED;
            if (actions.list[a].type != CAIRN_ACTION_SEAL &&
                actions.list[a].type != CAIRN_ACTION_FINISH)
                continue;
            asked = actions.list[a].request;
            holding = actions.list[a].holding;
        }
        cairn_actions_fini(&actions);
    }
    free(bytes);
    return committed;
}

/* Half of a tensor that nobody holds the rest of: refused with its name, the next step is skipped,
 * and all is well when it is mended. */
static void
what_is_not_whole_is_refused(void **state)
{
    struct cairn_core *core = core_every(1);
    struct cairn_core_view view;
    uint64_t now_ns = STEP_NS;

    (void)state;
    (void)grant_or_skip(
        core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1}, now_ns);
    for (uint64_t step = 1; step <= 5; step += 2) {
        assert_int_equal(begin(core, step, now_ns += STEP_NS), CAIRN_ACTION_GRANT);
        assert_false(capture(core, step, 0, now_ns));
        cairn_core_look(core, &view);
        assert_string_equal(view.refusal, "x: 2 of 4 elements are in no piece, such as [2:4]");
        assert_int_equal(view.committed.step, 0);
        assert_int_equal(begin(core, step + 1, now_ns += STEP_NS), CAIRN_ACTION_SKIP);
    }
    (void)grant_or_skip(
        core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1}, now_ns);
    for (uint64_t step = 7; step <= 8; step++) {
        assert_int_equal(begin(core, step, now_ns += UINT64_C(1000000000)), CAIRN_ACTION_GRANT);
        assert_true(capture(core, step, 1, now_ns));
        cairn_core_look(core, &view);
        assert_string_equal(view.refusal, "");
        assert_int_equal(view.committed.step, step);
    }
    cairn_core_destroy(core);
}

/* Steps that take less time than the news: the first one after it is skipped, so that the trainer
 * is told. */
static void
late_news_of_a_refusal(void **state)
{
    struct cairn_core *core = core_every(1);
    uint64_t now_ns = STEP_NS;

    (void)state;
    (void)grant_or_skip(
        core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1}, now_ns);
    assert_int_equal(begin(core, 1, now_ns += STEP_NS), CAIRN_ACTION_GRANT);
    assert_false(capture(core, 1, 0, now_ns));
    assert_int_equal(begin(core, 4, now_ns += STEP_NS), CAIRN_ACTION_SKIP);
    assert_int_equal(begin(core, 5, now_ns += STEP_NS), CAIRN_ACTION_GRANT);
    cairn_core_destroy(core);
}

/* With rare generations too one due step is skipped, and a refused one is not owed: nothing is
 * tried before the next is due. */
static void
a_refused_step_is_not_owed(void **state)
{
    struct cairn_core *core = core_every(10);
    uint64_t now_ns = STEP_NS;

    (void)state;
    (void)grant_or_skip(
        core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1}, now_ns);
    assert_int_equal(begin(core, 10, now_ns += STEP_NS), CAIRN_ACTION_GRANT);
    assert_false(capture(core, 10, 0, now_ns));
    for (uint64_t step = 11; step <= 20; step++) /* 20: because of the refusal */
        assert_int_equal(begin(core, step, now_ns += STEP_NS), CAIRN_ACTION_SKIP);
    assert_int_equal(begin(core, 21, now_ns += STEP_NS), CAIRN_ACTION_GRANT);
    cairn_core_destroy(core);
}

/* What another version wrote may be of a committed generation: it is told from what is damaged. */
static void
records_of_another_version(void **state)
{
    static const uint8_t before[32] = {2}, own[32] = {3};

    (void)state;
    assert_true(cairn_core_record_is_foreign((struct cairn_bytes){before, sizeof before}));
    assert_false(cairn_core_record_is_foreign((struct cairn_bytes){own, sizeof own}));
    assert_false(cairn_core_record_is_foreign((struct cairn_bytes){NULL, 0}));
}

/* ---- what is owed ---- */

/* A job of one rank that is at `step`, with slow steps: nothing is thinned out. */
static struct cairn_core *
job_at(uint64_t every_steps, uint64_t step, uint64_t *now_ns)
{
    struct cairn_core *core = core_every(every_steps);

    *now_ns = STEP_NS;
    (void)grant_or_skip(
        core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 5, .world = 1},
        *now_ns);
    (void)grant_or_skip(core, (struct cairn_event){.type = CAIRN_EVENT_TICK}, *now_ns);
    assert_int_equal(begin(core, step, *now_ns += SLOW_STEP_NS), CAIRN_ACTION_SKIP);
    return core;
}

static void
cancel(struct cairn_core *core, uint64_t step, uint64_t now_ns)
{
    (void)grant_or_skip(core, (struct cairn_event){.type = CAIRN_EVENT_CANCEL, .step = step},
                        now_ns);
}

/* The next step, whose fence comes before its copy has begun. True: it was to be a generation. */
static bool
begin_and_give_up(struct cairn_core *core, uint64_t step, uint64_t *now_ns)
{
    bool due = begin(core, step, *now_ns += SLOW_STEP_NS) == CAIRN_ACTION_GRANT;

    cancel(core, step, *now_ns);
    return due;
}

/* Asks for a snapshot; the step that is promised. */
static uint64_t
ask(struct cairn_core *core, uint64_t now_ns)
{
    struct cairn_event event = {.type = CAIRN_EVENT_OPERATOR,
                                .operation = CAIRN_OP_SNAPSHOT,
                                .request = 1,
                                .now_ns = now_ns};
    struct cairn_actions actions = {0};
    uint64_t step = 0;

    cairn_core_step(core, &event, &actions);
    for (size_t i = 0; i < actions.count; i++)
        if (actions.list[i].type == CAIRN_ACTION_REPLY) {
            assert_int_equal(actions.list[i].err, CAIRN_OK);
            step = strtoull((const char *)actions.list[i].bytes, NULL, 10);
        }
    cairn_actions_fini(&actions);
    assert_int_not_equal(step, 0);
    return step;
}

/* The step that answers the core's question of that type about a holding. */
static struct cairn_event
answer(const struct cairn_action *action)
{
    static const uint8_t manifest[64];
    struct cairn_event event = {.type = CAIRN_EVENT_FINISHED,
                                .holding = action->holding,
                                .request = action->request,
                                .generation = action->generation};

    if (action->type == CAIRN_ACTION_SEAL) {
        event.type = CAIRN_EVENT_SEALED;
        event.bytes = manifest;
        event.bytes_len = sizeof manifest;
    }
    return event;
}

/* Steps the core, and answers what it asks, until it asks nothing more; true when a generation was
 * committed. */
static bool
run_to_commit(struct cairn_core *core, struct cairn_event event)
{
    bool committed = false, more = true;

    while (more) {
        struct cairn_actions actions = {0};

        cairn_core_step(core, &event, &actions);
        more = false;
        for (size_t i = 0; i < actions.count; i++) {
            const struct cairn_action *action = &actions.list[i];

            committed |= action->type == CAIRN_ACTION_COMMITTED;
            if (action->type == CAIRN_ACTION_SEAL || action->type == CAIRN_ACTION_FINISH) {
                event = answer(action);
                more = true;
            }
        }
        event.now_ns = 0; /* later than nothing */
        cairn_actions_fini(&actions);
    }
    return committed;
}

/* The copy of a step that was granted comes to its end, and is committed. */
static void
complete(struct cairn_core *core, uint64_t step)
{
    static const uint64_t crcs[5] = {1, 2, 3, 4, 5};
    struct cairn_core_view view;
    struct cairn_event event = {.count = 5, .crcs = crcs};

    cairn_core_look(core, &view);
    event.generation = (struct cairn_generation){view.active, step};
    event.type = CAIRN_EVENT_BLOCKS;
    assert_false(run_to_commit(core, event));
    event.type = CAIRN_EVENT_DONE;
    assert_true(run_to_commit(core, event));
}

/* An agent that has just started has seen no step: what it would promise may lie far behind the
 * job. */
static void
who_knows_no_step_promises_none(void **state)
{
    struct cairn_event event = {
        .type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 5, .world = 1, .now_ns = STEP_NS};
    struct cairn_core *core = core_every(1000);
    struct cairn_actions actions = {0};

    (void)state;
    cairn_core_step(core, &event, &actions);
    cairn_actions_clear(&actions);
    event = (struct cairn_event){
        .type = CAIRN_EVENT_OPERATOR, .operation = CAIRN_OP_SNAPSHOT, .request = 1};
    cairn_core_step(core, &event, &actions);
    assert_int_equal(actions.count, 1);
    assert_int_equal(actions.list[0].type, CAIRN_ACTION_REPLY);
    assert_int_equal(actions.list[0].err, CAIRN_AGAIN);
    cairn_actions_fini(&actions);
    cairn_core_destroy(core);
}

static void
what_was_asked_for_is_tried_until_it_is_committed(void **state)
{
    uint64_t now_ns, step;
    struct cairn_core *core = job_at(1000, 8, &now_ns);

    (void)state;
    step = ask(core, now_ns);
    assert_int_equal(step, 10);
    assert_false(begin_and_give_up(core, 9, &now_ns));
    for (; step < 16; step++)
        assert_true(begin_and_give_up(core, step, &now_ns));
    assert_int_equal(begin(core, step, now_ns += SLOW_STEP_NS), CAIRN_ACTION_GRANT);
    complete(core, step);
    for (step++; step < 40; step++)
        assert_int_equal(begin(core, step, now_ns += SLOW_STEP_NS), CAIRN_ACTION_SKIP);
    cairn_core_destroy(core);
}

static void
what_was_due_is_tried_at_the_next_step(void **state)
{
    uint64_t now_ns;
    struct cairn_core *core = job_at(100, 99, &now_ns);

    (void)state;
    assert_true(begin_and_give_up(core, 100, &now_ns));
    assert_int_equal(begin(core, 101, now_ns += SLOW_STEP_NS), CAIRN_ACTION_GRANT);
    complete(core, 101);
    for (uint64_t step = 102; step < 200; step++)
        assert_int_equal(begin(core, step, now_ns += SLOW_STEP_NS), CAIRN_ACTION_SKIP);
    assert_int_equal(begin(core, 200, now_ns += SLOW_STEP_NS), CAIRN_ACTION_GRANT);
    cairn_core_destroy(core);
}

/* A trainer begins nothing while the copy before is not over. */
static void
a_due_step_that_never_began_is_made_up_for(void **state)
{
    uint64_t now_ns;
    struct cairn_core *core = job_at(100, 99, &now_ns);

    (void)state;
    assert_int_equal(begin(core, 102, now_ns += SLOW_STEP_NS), CAIRN_ACTION_GRANT);
    complete(core, 102);
    assert_int_equal(begin(core, 103, now_ns += SLOW_STEP_NS), CAIRN_ACTION_SKIP);
    cairn_core_destroy(core);
}

/* An agent that has restarted in a job that is past a due step tries again with the others, who may
 * owe it. */
static void
who_has_just_started_owes_what_the_others_may_owe(void **state)
{
    uint64_t now_ns = STEP_NS;
    struct cairn_core *core = core_every(100);

    (void)state;
    (void)grant_or_skip(
        core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 5, .world = 1},
        now_ns);
    assert_int_equal(begin(core, 703, now_ns += SLOW_STEP_NS), CAIRN_ACTION_GRANT);
    complete(core, 703);
    for (uint64_t step = 704; step < 800; step++)
        assert_int_equal(begin(core, step, now_ns += SLOW_STEP_NS), CAIRN_ACTION_SKIP);
    assert_int_equal(begin(core, 800, now_ns += SLOW_STEP_NS), CAIRN_ACTION_GRANT);
    cairn_core_destroy(core);
}

/* While it may still be committed, nothing is captured beside it. */
static void
what_is_under_way_is_not_tried_again(void **state)
{
    uint64_t now_ns;
    struct cairn_core *core = job_at(100, 99, &now_ns);
    struct cairn_core_view view;
    static const uint64_t crcs[5] = {1, 2, 3, 4, 5};
    struct cairn_event event = {.count = 5, .crcs = crcs, .type = CAIRN_EVENT_BLOCKS};

    (void)state;
    assert_int_equal(begin(core, 100, now_ns += SLOW_STEP_NS), CAIRN_ACTION_GRANT);
    cairn_core_look(core, &view);
    event.generation = (struct cairn_generation){view.active, 100};
    assert_int_equal(grant_or_skip(core, event, now_ns), 0);
    event.type = CAIRN_EVENT_DONE; /* its seal is not answered yet */
    assert_int_equal(grant_or_skip(core, event, now_ns), 0);
    for (uint64_t step = 101; step < 110; step++)
        assert_int_equal(begin(core, step, now_ns += SLOW_STEP_NS), CAIRN_ACTION_SKIP);
    cairn_core_destroy(core);
}

/* A trainer that can never take one is asked ever more rarely: by far not at every step. */
static void
what_never_succeeds_is_tried_ever_more_rarely(void **state)
{
    uint64_t now_ns, tries = 0;
    struct cairn_core *core = job_at(1000, 999, &now_ns);

    (void)state;
    for (uint64_t step = 1000; step < 2000; step++)
        tries += begin_and_give_up(core, step, &now_ns);
    assert_in_range(tries, 40, 80);
    assert_true(begin_and_give_up(core, 2000, &now_ns));
    assert_true(begin_and_give_up(core, 2001, &now_ns));
    cairn_core_destroy(core);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_steps_that_collide_are_thinned_out),
        cmocka_unit_test(a_jump_is_not_thinned_out),
        cmocka_unit_test(what_is_not_whole_is_refused),
        cmocka_unit_test(late_news_of_a_refusal),
        cmocka_unit_test(a_refused_step_is_not_owed),
        cmocka_unit_test(records_of_another_version),
        cmocka_unit_test(who_knows_no_step_promises_none),
        cmocka_unit_test(what_was_asked_for_is_tried_until_it_is_committed),
        cmocka_unit_test(what_was_due_is_tried_at_the_next_step),
        cmocka_unit_test(a_due_step_that_never_began_is_made_up_for),
        cmocka_unit_test(who_has_just_started_owes_what_the_others_may_owe),
        cmocka_unit_test(what_is_under_way_is_not_tried_again),
        cmocka_unit_test(what_never_succeeds_is_tried_ever_more_rarely),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
