/*
 * tests/unit/agent/core/test_rebuild.c - a part that is too damaged to be counted goes to be
 * rebuilt: that it was once promised is not forgotten.
 */
#include "agent/core/core_state.h"

#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MS_NS = 1000000, STEP = 20, PLAN_BYTES = 4096 };

struct answer {
    uint64_t request; /* of the last SEAL, FINISH or VERIFY */
    uint32_t holding;
    bool committed, stored;            /* STORE_EPOCH came */
    bool erased, erased_before_stored; /* an empty STORE_HOLDING came */
};

static struct answer
take(struct cairn_core *core, struct cairn_event event)
{
    struct cairn_actions actions = {0};
    struct answer answer = {0};

    event.now_ns = MS_NS;
    cairn_core_step(core, &event, &actions);
    assert_false(actions.failed);
    for (size_t i = 0; i < actions.count; i++) {
        const struct cairn_action *action = &actions.list[i];

        if (action->type == CAIRN_ACTION_SEAL || action->type == CAIRN_ACTION_FINISH ||
            action->type == CAIRN_ACTION_VERIFY) {
            answer.request = action->request;
            answer.holding = action->holding;
        }
        answer.committed |= action->type == CAIRN_ACTION_COMMITTED;
        if (action->type == CAIRN_ACTION_STORE_HOLDING && action->bytes_len == 0) {
            answer.erased = true;
            answer.erased_before_stored |= !answer.stored;
        }
        answer.stored |= action->type == CAIRN_ACTION_STORE_EPOCH;
    }
    cairn_actions_fini(&actions);
    return answer;
}

/* A job of one agent without parity, in which step 20 is complete. */
static int
setup(void **state)
{
    static const uint64_t crc = 5;
    const struct cairn_core_options options = {.agent_count = 1,
                                               .group_size = 1,
                                               .slots = 2,
                                               .slot_blocks = 64,
                                               .every_steps = 1,
                                               .incarnation = 1,
                                               .heartbeat_interval_ns = 1000 * (uint64_t)MS_NS,
                                               .dead_after_ns = 10000 * (uint64_t)MS_NS,
                                               .repair_after_ns = 10000 * (uint64_t)MS_NS,
                                               .resend_after_ns = 1000 * (uint64_t)MS_NS,
                                               .claim_timeout_ns = 10000 * (uint64_t)MS_NS,
                                               .rebuild_timeout_ns = 20000 * (uint64_t)MS_NS};
    struct cairn_bytes none = {0}, records[CAIRN_HOLDINGS_MAX] = {{0}};
    struct cairn_generation generation = {0, STEP};
    struct cairn_core *core = NULL;
    struct answer answer;
    uint32_t dropped;

    assert_int_equal(cairn_core_create(&options, MS_NS, none, records, &dropped, &core), CAIRN_OK);
    generation.epoch = core->active;
    take(core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 1});
    take(core, (struct cairn_event){.type = CAIRN_EVENT_BEGIN, .step = STEP});
    take(core, (struct cairn_event){
                   .type = CAIRN_EVENT_BLOCKS, .generation = generation, .count = 1, .crcs = &crc});
    answer = take(core, (struct cairn_event){.type = CAIRN_EVENT_DONE, .generation = generation});
    answer = take(core, (struct cairn_event){.type = CAIRN_EVENT_SEALED,
                                             .generation = generation,
                                             .holding = answer.holding,
                                             .request = answer.request,
                                             .bytes = (const uint8_t *)"manifest",
                                             .bytes_len = 8});
    take(core, (struct cairn_event){.type = CAIRN_EVENT_FINISHED,
                                    .generation = generation,
                                    .holding = answer.holding,
                                    .request = answer.request});
    assert_int_equal(core->holdings[answer.holding].state, CAIRN_HOLDING_COMPLETE);
    *state = core;
    return 0;
}

static int
teardown(void **state)
{
    cairn_core_destroy(*state);
    return 0;
}

/* Of a generation's only member nothing is left: the plan says that nobody holds its part and that
 * this agent is to get it. */
static struct answer
rebuild(struct cairn_core *core)
{
    struct cairn_message message = {.type = CAIRN_MSG_REBUILD,
                                    .epoch = core->promised,
                                    .generation = {core->active, STEP},
                                    .request = 1};
    uint8_t bytes[PLAN_BYTES];
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_roster_write(core->table, &writer);
    cairn_write_u32(&writer, UINT32_MAX);
    cairn_write_u32(&writer, 0);
    cairn_write_u32(&writer, 0);
    assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
    message.bytes = bytes;
    message.bytes_len = (uint32_t)writer.used_bytes;
    return take(core, (struct cairn_event){.type = CAIRN_EVENT_MESSAGE, .message = &message});
}

static void
a_part_too_damaged_was_promised(void **state)
{
    struct cairn_core *core = *state;
    struct holding *holding = holding_find(core, (struct cairn_generation){core->active, STEP}, 0);
    struct answer answer;

    assert_int_equal(core->forgotten_before, 0);
    holding->bad_count = BAD_BLOCKS_MAX + 1;
    answer = rebuild(core);
    holding = holding_find(core, (struct cairn_generation){core->active, STEP}, 0);
    assert_int_equal(holding->state, CAIRN_HOLDING_REBUILDING);
    assert_true(answer.erased);
    assert_int_equal(core->forgotten_before, STEP + 1);
    assert_true(answer.stored);
    assert_false(answer.erased_before_stored); /* an agent that dies in between knows it still */
}

static void
a_whole_part_stays(void **state)
{
    struct cairn_core *core = *state;
    struct answer answer = rebuild(core);

    assert_false(answer.erased);
    assert_int_equal(core->forgotten_before, 0);
    assert_int_equal(holding_find(core, (struct cairn_generation){core->active, STEP}, 0)->state,
                     CAIRN_HOLDING_COMPLETE);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_part_too_damaged_was_promised, setup, teardown),
        cmocka_unit_test_setup_teardown(a_whole_part_stays, setup, teardown),
    };

    return cmocka_run_group_tests_name("agent/rebuild", tests, NULL, NULL);
}
