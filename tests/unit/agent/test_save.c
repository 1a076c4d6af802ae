/* tests/unit/agent/test_save.c - which steps become generations: fast ones that collide are thinned out, jumps are not. */
#include "agent/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { STEP_NS = 1000000 };

static struct cairn_core *
new_core(void)
{
    const struct cairn_core_options options = {.agent_count = 1,
                                               .group_size = 1,
                                               .slots = 2,
                                               .slot_blocks = 64,
                                               .every_steps = 1,
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
    return grant_or_skip(core, (struct cairn_event){.type = CAIRN_EVENT_BEGIN, .step = step}, now_ns);
}

/* A core whose last generations collided: of steps of 1 ms every second one is due. */
static struct cairn_core *
thinned_core(uint64_t *now_ns)
{
    struct cairn_core *core = new_core();

    *now_ns = STEP_NS;
    (void)grant_or_skip(core, (struct cairn_event){.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 5},
                        *now_ns);
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

/* As a job does that names its saves by the time of day, or that goes on from another one's step. */
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fast_steps_that_collide_are_thinned_out),
        cmocka_unit_test(a_jump_is_not_thinned_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
