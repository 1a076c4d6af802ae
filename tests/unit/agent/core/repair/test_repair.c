/*
 * tests/unit/agent/core/repair/test_repair.c - lost and damaged parts are rebuilt with the right
 * bytes, in any order in which the agents hear of the plan, with blocks damaged or lost on the
 * way.
 */
#include "tests/unit/agent/core/group.h"

enum { COORDINATOR = 3, ATTEMPT = 77 };

static const uint64_t sizes[4] = {300, 257, 1, 128};

static void
lose(struct group *group, uint32_t member)
{
    struct agent *agent = &group->agents[member];

    part_drop(&agent->env, own_part(group, member), false);
    carry_out(group, agent, NULL);
}

/* A plan in which all members hold their own parts. */
static struct plan
plan_new(struct group *group)
{
    uint32_t count = group->roster->member_count;
    struct plan plan = {.roster = cairn_roster_hold(group->roster),
                        .holders = calloc(count, sizeof(uint32_t)),
                        .targets = calloc(count, sizeof(uint32_t)),
                        .bad = calloc(8, sizeof(struct cairn_bad_block))};

    assert_non_null(plan.holders);
    assert_non_null(plan.targets);
    assert_non_null(plan.bad);
    for (uint32_t m = 0; m < count; m++) {
        plan.holders[m] = group->roster->members[m].agent;
        plan.targets[m] = UINT32_MAX;
    }
    return plan;
}

static void
give(struct plan *plan, uint32_t member, uint32_t target)
{
    plan->holders[member] = UINT32_MAX;
    plan->targets[member] = target;
}

/* Agent `to` hears of the plan. */
static void
tell(struct group *group, const struct plan *plan, uint32_t to)
{
    struct agent *agent = &group->agents[to];
    struct cairn_message message =
        env_message(&group->agents[COORDINATOR].env, CAIRN_MSG_REBUILD, 0x20003);
    uint8_t *bytes = NULL;
    size_t len = 0;

    assert_int_equal(plan_pack(plan, &bytes, &len), CAIRN_OK);
    message.as.rebuild = (struct cairn_message_rebuild){ATTEMPT, group->generation};
    message.bytes = bytes;
    message.bytes_len = (uint32_t)len;
    repair_begin(&agent->env, &agent->repair, &message);
    free(bytes);
    carry_out(group, agent, NULL);
}

/* All hear the news, `first` before the others and `between` messages before them. */
static void
repair_all(struct group *group, struct plan *plan, uint32_t first, size_t between)
{
    tell(group, plan, first);
    run(group, between);
    for (uint32_t a = 0; a < group->count; a++)
        if (a != first) {
            tell(group, plan, a);
            run(group, between);
        }
    run(group, SIZE_MAX);
}

/* All have saved, member 0's part is lost, and member 0 gets it back. */
static struct plan
plan_of_loss(struct group *group)
{
    struct plan plan;

    save_all(group);
    plan = plan_new(group);
    lose(group, 0);
    give(&plan, 0, 0);
    return plan;
}

static void
end_repair(struct group *group, struct plan *plan)
{
    plan_fini(plan);
    group_free(group);
}

static void
lost_parts_go_to_their_own_agents(void **state)
{
    static const uint64_t blocks[][4] = {{300, 257, 1, 128}, {9, 0, 40, 3}, {0, 0, 0, 0}};

    for (size_t i = 0; i < 3; i++)
        for (uint32_t first = 0; first < 4; first++)
            for (uint32_t lost = 0; lost < 16; lost++) {
                uint32_t count = (uint32_t)__builtin_popcount(lost);
                struct group *group;
                struct plan plan;

                if (count == 0 || count > 2)
                    continue;
                group = group_new(4, 4, 2, blocks[i]);
                save_all(group);
                plan = plan_new(group);
                for (uint32_t m = 0; m < 4; m++)
                    if (lost & (1u << m)) {
                        lose(group, m);
                        give(&plan, m, m);
                    }
                repair_all(group, &plan, first, 20);
                assert_int_equal(group->rebuilt.as.rebuilt.err, 0);
                assert_int_equal(group->finished, count);
                for (uint32_t m = 0; m < 4; m++)
                    assert_part_is_right(group, m, m);
                end_repair(group, &plan);
            }
}

/* Spares take them into their own slots, survivors into hosted memory. */
static void
lost_parts_go_to_others(void **state)
{
    struct group *group = group_new(6, 4, 2, sizes);
    struct plan plan;

    save_all(group);
    plan = plan_new(group);
    lose(group, 0);
    lose(group, 1);
    give(&plan, 0, 5);
    give(&plan, 1, 2);
    repair_all(group, &plan, 0, 5);
    assert_int_equal(group->finished, 2);
    assert_true(group->reports >= 8); /* progress */
    assert_part_is_right(group, 5, 0);
    assert_part_is_right(group, 2, 1);
    assert_int_equal(group->agents[5].opens, 0);
    assert_int_equal(group->agents[2].opens, 1);
    end_repair(group, &plan);
}

static void
no_memory_is_reported(void **state)
{
    struct group *group = group_new(4, 4, 2, sizes);
    struct plan plan;

    save_all(group);
    plan = plan_new(group);
    lose(group, 1);
    give(&plan, 1, 2);
    group->refuse_open = true;
    repair_all(group, &plan, 0, 5);
    assert_int_equal(group->rebuilt.as.rebuilt.err, CAIRN_NOMEM);
    assert_int_equal(group->rebuilt.as.rebuilt.member, 1);
    assert_null(parts_find(&group->agents[2].parts, group->generation, 1));
    end_repair(group, &plan);
}

/* What arrives damaged is asked for again: READ's answers, rebuilt blocks, both. */
static void
damage_on_the_way_is_mended(void **state)
{
    static const uint32_t kinds[3] = {CAIRN_MSG_BLOCKS, CAIRN_MSG_WRITE, 0};

    for (uint32_t kind = 0; kind < 3; kind++) {
        struct group *group = group_new(4, 4, 2, sizes);
        struct plan plan;

        plan = plan_of_loss(group);
        group->damage_every = 6;
        group->damage_kind = kinds[kind];
        repair_all(group, &plan, 1, 9);
        assert_int_equal(group->rebuilt.as.rebuilt.err, 0);
        assert_int_equal(group->finished, 1);
        assert_part_is_right(group, 0, 0);
        end_repair(group, &plan);
    }
}

static bool
has_place(struct group *group, uint32_t from, const struct cairn_message *write)
{
    struct agent *agent = &group->agents[write->to];
    struct cairn_action_place where;

    return target_place(&agent->env, &agent->repair, from, cairn_message_place(write),
                        write->as.write.count, &where);
}

/* A payload arrives in place if its blocks are missing and its sender works for the repair. */
static void
only_missing_blocks_are_places(void **state)
{
    struct group *group = group_new(6, 4, 2, sizes);
    struct plan plan;
    uint64_t placed = 0;

    plan = plan_of_loss(group);
    for (uint32_t a = 0; a < 4; a++)
        tell(group, &plan, a);
    while (group->head < group->tail) {
        const struct packet *next = &group->queue[group->head % QUEUE_MAX];
        struct cairn_message message;

        assert_int_equal(cairn_message_unpack(next->bytes, next->len, &message), CAIRN_OK);
        assert_int_equal(cairn_place_is_write(cairn_message_place(&message)),
                         message.kind == CAIRN_MSG_WRITE);
        if (message.kind != CAIRN_MSG_WRITE || !has_place(group, message.from, &message)) {
            deliver(group); /* a write that comes too early, or is a repeat */
            continue;
        }
        placed += message.as.write.count;
        assert_false(has_place(group, 0, &message)); /* it holds nothing */
        assert_false(has_place(group, 5, &message));
        message.as.write.line += 1000;
        assert_false(has_place(group, message.from, &message));
        message.as.write.line -= 1000;
        message.bytes = NULL; /* its packet's, which go now */
        deliver(group);
        assert_false(has_place(group, message.from, &message));
    }
    assert_int_equal(group->finished, 1);
    assert_int_equal(placed, part_blocks(own_part(group, 0)));
    assert_part_is_right(group, 0, 0);
    end_repair(group, &plan);
}

static void
damage_again_and_again_is_reported(void **state)
{
    struct group *group = group_new(4, 4, 2, sizes);
    struct plan plan;

    plan = plan_of_loss(group);
    group->damage_every = 1;
    group->damage_kind = CAIRN_MSG_BLOCKS;
    tell(group, &plan, 0);
    tell(group, &plan, 1);
    for (uint32_t i = 0; i < 200 && group->head < group->tail; i++)
        deliver(group);
    assert_int_equal(group->rebuilt.as.rebuilt.err, CAIRN_AGAIN);
    assert_int_equal(group->finished, 0);
    end_repair(group, &plan);
}

/* A session ends after any number of messages, and a new one begins. */
static void
a_new_session_goes_on(void **state)
{
    for (size_t after = 0; after < 150; after += 5) {
        struct group *group = group_new(4, 4, 2, sizes);
        struct plan plan;

        plan = plan_of_loss(group);
        for (uint32_t a = 0; a < 4; a++)
            tell(group, &plan, a);
        run(group, after);
        session_down(group, 0, 1);
        session_down(group, 2, 1);
        run(group, after);
        session_up(group, 0, 1);
        run(group, 3);
        session_up(group, 1, 2);
        run(group, SIZE_MAX);
        assert_int_equal(group->finished, 1);
        assert_part_is_right(group, 0, 0);
        end_repair(group, &plan);
    }
}

/* A few damaged blocks of data and parity are written again where they lie. */
static void
bad_blocks_are_mended(void **state)
{
    struct group *group = group_new(4, 4, 2, sizes);
    struct agent *agent = &group->agents[0];
    struct cairn_bad_block bad[3] = {{.area = CAIRN_AREA_DATA, .block = 0},
                                     {.area = CAIRN_AREA_DATA, .block = 299},
                                     {.area = CAIRN_AREA_PARITY, .block = 2}};
    struct cairn_event_answer verified = {.bad = bad, .count = 3};
    struct plan plan;
    struct part *part;
    uint32_t index;

    save_all(group);
    part = own_part(group, 0);
    index = part_index(&agent->env, part);
    agent->memory[index].data[0][3] ^= 4;
    agent->memory[index].data[299][3] ^= 4;
    agent->memory[index].parity[0][2][3] ^= 4;
    parts_verify(&agent->env, group->generation, 0);
    assert_false(parts_are_verified(&agent->parts, group->generation));
    verified.part = index;
    verified.request = part->checked.request;
    verified.generation = group->generation;
    parts_verified(&agent->env, part, &verified);
    assert_true(parts_are_verified(&agent->parts, group->generation));
    assert_true(part->checked.bad_count == 3);
    cairn_actions_clear(&agent->actions);
    plan = plan_new(group);
    plan.targets[0] = 0;
    memcpy(plan.bad, bad, sizeof bad);
    plan.bad_count = 3;
    repair_all(group, &plan, 2, 4);
    assert_int_equal(group->finished, 1);
    assert_true(part->checked.bad_count == 0);
    assert_part_is_right(group, 0, 0);
    end_repair(group, &plan);
}

static void
too_much_lost_is_proved(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct plan plan;

    save_all(group);
    plan = plan_new(group);
    lose(group, 0);
    lose(group, 1);
    give(&plan, 0, 0);
    give(&plan, 1, 1);
    tell(group, &plan, 2);
    run(group, SIZE_MAX);
    assert_int_equal(group->rebuilt.as.rebuilt.err, CAIRN_LOST);
    assert_int_equal(group->rebuilt.as.rebuilt.proved, 1);
    end_repair(group, &plan);
}

/* A plan that calls a part lost which its target has is out of date: what it reads would not be
 * compared. */
static void
what_is_there_is_not_rebuilt(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct plan plan;

    save_all(group);
    plan = plan_new(group);
    give(&plan, 0, 0);
    repair_all(group, &plan, 1, 4);
    assert_int_equal(group->rebuilt.as.rebuilt.err, CAIRN_AGAIN);
    assert_int_equal(group->finished, 0);
    assert_part_is_right(group, 0, 0);
    end_repair(group, &plan);
}

/* READ is answered without a plan; WRITE of another attempt is not. */
static void
attempts_are_told_apart(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct agent *agent = &group->agents[0];
    static const uint8_t crcs[8];
    struct cairn_message read, write;
    struct plan plan;

    save_all(group);
    read = env_message(&group->agents[1].env, CAIRN_MSG_READ, 1);
    read.as.read = (struct cairn_message_read){
        .request = 3, .generation = group->generation, .member = 0, .count = 2};
    repair_message(&agent->env, &agent->repair, &read, true);
    assert_int_equal(agent->actions.count, 1);
    assert_int_equal(agent->actions.list[0].as.send.message.as.blocks.count, 2);
    cairn_actions_clear(&agent->actions);
    read.as.read.line = 299;
    repair_message(&agent->env, &agent->repair, &read, true);
    assert_int_equal(agent->actions.list[0].as.send.message.as.blocks.err, CAIRN_NOT_FOUND);
    cairn_actions_clear(&agent->actions);
    plan = plan_new(group);
    lose(group, 1);
    give(&plan, 1, 1);
    tell(group, &plan, 0);
    tell(group, &plan, 1);
    write = env_message(&group->agents[0].env, CAIRN_MSG_WRITE, 0x20003);
    write.as.write = (struct cairn_message_write){.request = 3,
                                                  .generation = group->generation,
                                                  .member = 1,
                                                  .count = 1,
                                                  .attempt = ATTEMPT + 1};
    write.bytes = crcs;
    write.bytes_len = 8;
    agent = &group->agents[1];
    repair_message(&agent->env, &agent->repair, &write, true);
    assert_int_equal(agent->actions.count, 0);
    end_repair(group, &plan);
}

/* A plan ends with all that is not complete; the next one begins from the start. */
static void
unfinished_parts_go(void **state)
{
    struct group *group = group_new(4, 4, 2, sizes);
    struct agent *agent = &group->agents[0];
    struct part *part;
    struct plan plan;

    plan = plan_of_loss(group);
    tell(group, &plan, 0);
    for (uint32_t a = 1; a < 4; a++)
        tell(group, &plan, a);
    run(group, 40);
    part = own_part(group, 0);
    assert_int_equal(part->state, CAIRN_PART_REBUILDING);
    tell(group, &plan, 0);
    assert_true(own_part(group, 0)->mending.written_blocks == 0);
    repair_all(group, &plan, 0, 10);
    assert_part_is_right(group, 0, 0);
    lose(group, 0);
    tell(group, &plan, 0);
    assert_non_null(own_part(group, 0));
    repair_end(&agent->env, &agent->repair, agent->repair.coordinator + 1);
    assert_non_null(own_part(group, 0));
    repair_end(&agent->env, &agent->repair, agent->repair.coordinator);
    assert_null(own_part(group, 0));
    cairn_actions_clear(&agent->actions);
    end_repair(group, &plan);
}

static void
plans_are_checked(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct plan plan = plan_new(group), back = {0};
    uint8_t *bytes = NULL;
    size_t whole = 0;

    give(&plan, 2, 3);
    plan.bad[0] = (struct cairn_bad_block){.position = 3, .area = CAIRN_AREA_PARITY, .block = 9};
    plan.bad_count = 1;
    assert_int_equal(plan_pack(&plan, &bytes, &whole), CAIRN_OK);
    for (size_t len = 0; len < whole; len++)
        assert_int_equal(plan_read(bytes, len, 4, &back), CAIRN_CORRUPT);
    assert_int_equal(plan_read(bytes, whole, 3, &back), CAIRN_CORRUPT); /* no agent 3 */
    assert_int_equal(plan_read(bytes, whole, 4, &back), CAIRN_OK);
    free(bytes);
    assert_int_equal(back.targets[2], 3);
    assert_int_equal(back.holders[2], UINT32_MAX);
    assert_int_equal(back.bad[0].position, 3);
    assert_true(back.bad[0].block == 9);
    plan_fini(&back);
    end_repair(group, &plan);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lost_parts_go_to_their_own_agents),
        cmocka_unit_test(lost_parts_go_to_others),
        cmocka_unit_test(no_memory_is_reported),
        cmocka_unit_test(damage_on_the_way_is_mended),
        cmocka_unit_test(only_missing_blocks_are_places),
        cmocka_unit_test(damage_again_and_again_is_reported),
        cmocka_unit_test(a_new_session_goes_on),
        cmocka_unit_test(bad_blocks_are_mended),
        cmocka_unit_test(too_much_lost_is_proved),
        cmocka_unit_test(what_is_there_is_not_rebuilt),
        cmocka_unit_test(attempts_are_told_apart),
        cmocka_unit_test(unfinished_parts_go),
        cmocka_unit_test(plans_are_checked),
    };

    return cmocka_run_group_tests_name("agent/core/repair", tests, NULL, NULL);
}
