/*
 * tests/unit/agent/core/part/test_save.c - capture, seals and parity of one group: all parts become
 * complete with the right parity, even with blocks damaged, lost with its session or repeated on
 * the way.
 */
#include "tests/unit/agent/core/group.h"

static const uint64_t sizes[4] = {300, 257, 1, 128};

static void
assert_all_complete(struct group *group)
{
    for (uint32_t m = 0; m < group->roster->member_count; m++) {
        assert_int_equal(group->agents[m].completions, 1);
        assert_int_equal(group->agents[m].aborts, 0);
        assert_part_is_right(group, m, m);
    }
}

static void
members_of_all_sizes_complete(void **state)
{
    static const uint64_t blocks[][4] = {
        {300, 257, 1, 128}, {5, 5, 5, 5}, {0, 40, 40, 40}, {0, 0, 0, 1}, {0, 0, 0, 0}};

    for (uint32_t parity = 1; parity < 4; parity++)
        for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
            struct group *group = group_new(4, 4, parity, blocks[i]);

            save_all(group);
            assert_all_complete(group);
            group_free(group);
        }
}

static void
one_agent_without_parity_completes(void **state)
{
    static const uint64_t blocks[1] = {9};
    struct group *group = group_new(1, 1, 0, blocks);

    save_all(group);
    assert_all_complete(group);
    group_free(group);
}

static void
blocks_are_sent_as_they_are_captured(void **state)
{
    struct group *group = group_new(4, 4, 2, sizes);

    for (uint32_t m = 0; m < 4; m++)
        (void)open_part(group, m);
    for (uint64_t first = 0; first < 300; first += 7) /* out of step with the others */
        for (uint32_t m = 0; m < 4; m++)
            if (first < sizes[m]) {
                capture(group, m, first, min_u64(7, sizes[m] - first));
                run(group, 3);
            }
    for (uint32_t m = 4; m-- > 0;)
        (void)captured(group, m);
    run(group, SIZE_MAX);
    assert_all_complete(group);
    group_free(group);
}

static void
damaged_blocks_are_sent_again(void **state)
{
    for (uint32_t every = 2; every < 12; every++) {
        struct group *group = group_new(4, 4, 2, sizes);

        group->damage_every = every;
        save_all(group);
        assert_all_complete(group);
        group_free(group);
    }
}

static void
blocks_damaged_again_and_again_abort(void **state)
{
    struct group *group = group_new(4, 4, 2, sizes);

    group->damage_every = 1;
    for (uint32_t m = 0; m < 4; m++)
        (void)open_part(group, m);
    capture(group, 0, 0, 300);
    while (group->head < group->tail && group->agents[1].aborts == 0)
        deliver(group);
    assert_int_equal(group->agents[1].abort, CAIRN_ABORT_DAMAGED);
    assert_true(group->delivered < 200);
    group_free(group);
}

/* A session ends after any number of messages, and a new one begins. */
static void
a_new_session_goes_on(void **state)
{
    for (size_t after = 0; after < 120; after += 3) {
        struct group *group = group_new(4, 4, 2, sizes);

        for (uint32_t m = 0; m < 4; m++)
            (void)open_part(group, m);
        for (uint32_t m = 0; m < 4; m++) {
            capture(group, m, 0, sizes[m]);
            (void)captured(group, m);
        }
        run(group, after);
        session_down(group, 0, 1);
        run(group, after);
        session_down(group, 3, 1);
        session_up(group, 1, 0);
        run(group, after / 2);
        session_up(group, 1, 3);
        run(group, SIZE_MAX);
        assert_all_complete(group);
        assert_true(group->delivered < 1000);
        group_free(group);
    }
}

/* Members wait for the slowest when they are a ring ahead, and not for ever. */
static void
the_ring_holds_members_back(void **state)
{
    static const uint64_t blocks[4] = {300, 300, 300, 300};
    struct group *group = group_new(4, 4, 2, blocks);

    for (uint32_t m = 0; m < 4; m++)
        (void)open_part(group, m);
    for (uint32_t m = 1; m < 4; m++) {
        capture(group, m, 0, 300);
        (void)captured(group, m);
    }
    run(group, SIZE_MAX);
    for (uint32_t m = 1; m < 4; m++)
        for (uint32_t chunk = 0; chunk < 2; chunk++) {
            const struct part *part = own_part(group, m);
            uint32_t stripe = cairn_chunk_stripe(&part->geometry, part->position, chunk);
            bool with_0 = cairn_stripe_chunk(&part->geometry, stripe,
                                             own_part(group, 0)->position) != CAIRN_STRIPE_NONE;

            if (with_0)
                assert_int_equal(part->flows[FLOW_DATA][stripe].next, RING_LINES);
            else /* all but the last line are forwarded, which waits for the seals */
                assert_int_equal(part->flows[FLOW_DATA][stripe].next, 150);
        }
    capture(group, 0, 0, 300);
    (void)captured(group, 0);
    run(group, SIZE_MAX);
    assert_all_complete(group);
    group_free(group);
}

/* A row's owner that begins again asks for lines that have left the ring. */
static void
a_forgotten_row_aborts(void **state)
{
    static const uint64_t blocks[4] = {300, 300, 300, 300};
    struct group *group = group_new(4, 4, 2, blocks);
    struct part *encoder, *owner;
    uint32_t e = 0, o = 0;

    for (uint32_t m = 0; m < 4; m++)
        (void)open_part(group, m);
    for (uint32_t m = 0; m < 4; m++)
        capture(group, m, 0, 300);
    encoder = own_part(group, e);
    for (uint32_t m = 1; m < 4; m++)
        if (own_part(group, m)->position ==
            cairn_stripe_parity_position(&encoder->geometry, encoder->position, 1))
            o = m;
    assert_int_not_equal(o, e);
    owner = own_part(group, o);
    while (encoder->flows[FLOW_ROW][owner->position].acked < RING_LINES)
        deliver(group);
    part_drop(&group->agents[o].env, owner, false);
    carry_out(group, &group->agents[o], NULL);
    (void)open_part(group, o);
    run(group, SIZE_MAX);
    assert_int_equal(group->agents[e].abort, CAIRN_ABORT_FORGOTTEN);
    group_free(group);
}

static void
nothing_is_sent_without_a_session(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);

    for (uint32_t b = 1; b < 4; b++)
        session_down(group, 0, b);
    for (uint32_t m = 0; m < 4; m++)
        (void)open_part(group, m);
    capture(group, 0, 0, 300);
    (void)captured(group, 0);
    assert_true(group->head == group->tail);
    for (uint32_t kind = 0; kind < FLOW_KINDS; kind++)
        for (uint32_t p = 0; p < 4; p++)
            assert_true(own_part(group, 0)->flows[kind][p].next == 0);
    group_free(group);
}

/* A complete part has nothing to send: its member waits until all have what they need from it, and
 * an adopted one still answers those that ask whether it has their blocks. */
static void
a_complete_part_owes_nothing(void **state)
{
    struct group *group = group_new(4, 4, 2, sizes);
    struct agent *agent = &group->agents[0];
    struct cairn_bytes record;
    uint32_t for_agent, index;
    struct part *part;

    for (uint32_t m = 0; m < 4; m++)
        (void)open_part(group, m);
    for (uint32_t m = 0; m < 4; m++) {
        capture(group, m, 0, sizes[m]);
        (void)captured(group, m);
    }
    while (agent->completions == 0)
        deliver(group);
    session_down(group, 0, 1); /* agent 1 may not have heard that agent 0 has its blocks */
    part = own_part(group, 0);
    index = part_index(&agent->env, part);
    record = (struct cairn_bytes){agent->memory[index].record, agent->memory[index].record_len};
    part_fini(part);
    assert_int_equal(part_load(&agent->options, &agent->parts, index, record), CAIRN_OK);
    assert_int_equal(save_waits_for(&agent->env, part, 1, &for_agent), 0);
    session_up(group, 0, 1);
    run(group, SIZE_MAX);
    assert_all_complete(group);
    group_free(group);
}

static void
missing_blocks_abort(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);

    (void)open_part(group, 0);
    capture(group, 0, 0, 299);
    assert_int_equal(captured(group, 0), CAIRN_ABORT_CANCELLED);
    group_free(group);
}

/* What was folded is not what the seal says. */
static void
parity_that_differs_from_a_seal_aborts(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);

    for (uint32_t m = 0; m < 4; m++)
        (void)open_part(group, m);
    for (uint32_t m = 0; m < 4; m++) {
        capture(group, m, 0, sizes[m]);
        run(group, SIZE_MAX);
        if (m == 0)
            own_part(group, 0)->capture.crcs[290]++;
        (void)captured(group, m);
    }
    run(group, SIZE_MAX);
    assert_true(group->agents[1].aborts + group->agents[2].aborts + group->agents[3].aborts > 0);
    group_free(group);
}

/* A member sends its chunk of the own stripe, or as encoder of another one that stripe's row. */
static bool
sends(const struct part *part, uint32_t stripe, uint32_t row, uint32_t member)
{
    uint32_t position = part->roster->members[member].position;

    return row == 0 ? cairn_stripe_chunk(&part->geometry, stripe, position) != CAIRN_STRIPE_NONE
                    : position == stripe;
}

static void
numbers_out_of_bounds_are_dropped(void **state)
{
    struct group *group = group_new(4, 4, 2, sizes);
    struct agent *agent = &group->agents[1];
    static const uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_message good, message;
    struct part *part;

    part = open_part(group, 1);
    (void)open_part(group, 0);
    good = env_message(&group->agents[0].env, CAIRN_MSG_DATA, group->generation.epoch);
    good.bytes = crcs;
    good.bytes_len = 8;
    good.as.data =
        (struct cairn_message_data){.generation = group->generation, .member = 0, .count = 1};
    for (uint32_t stripe = 0; stripe < 6; stripe++)
        for (uint32_t row = 0; row < 4; row++)
            for (uint32_t member = 0; member < 6; member++)
                for (uint32_t from = 0; from < 4; from++) {
                    bool belongs = stripe < 4 && row < 2 && member < 4 && member != 1 &&
                                   from == member && (stripe + row) % 4 == part->position &&
                                   sends(part, stripe, row, member);

                    message = good;
                    message.from = from;
                    message.as.data.stripe = stripe;
                    message.as.data.row = row;
                    message.as.data.member = member;
                    message.as.data.line = UINT64_C(1) << 40;
                    (void)save_data(&agent->env, part, &message, true);
                    assert_int_equal(agent->actions.count, 0);
                    message.as.data.line = 0;
                    (void)save_data(&agent->env, part, &message, true);
                    assert_int_equal(agent->actions.count > 0, belongs);
                    cairn_actions_clear(&agent->actions);
                }
    group_free(group);
}

static void
what_a_member_waits_for(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct part *part;
    uint32_t for_agent = 0;

    for (uint32_t m = 0; m < 4; m++)
        part = open_part(group, m);
    part = own_part(group, 0);
    assert_int_equal(save_waits_for(&group->agents[0].env, part, 1, &for_agent),
                     CAIRN_WAIT_TRAINERS);
    assert_int_equal(for_agent, UINT32_MAX);
    for (uint32_t m = 0; m < 3; m++) {
        capture(group, m, 0, sizes[m]);
        (void)captured(group, m);
    }
    run(group, SIZE_MAX);
    assert_int_equal(save_waits_for(&group->agents[0].env, part, 1, &for_agent), CAIRN_WAIT_BLOCKS);
    assert_int_equal(for_agent, 3);
    group_free(group);
}

static void
memory_for_parity(void **state)
{
    struct cairn_core_options options = {.parity_blocks = 10};
    struct cairn_roster_group group = {.count = 5, .parity = 2};

    assert_true(save_parity_fits(&options, &group, 15));
    assert_false(save_parity_fits(&options, &group, 16));
    assert_true(save_parity_fits(&options, &group, 0));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_of_all_sizes_complete),
        cmocka_unit_test(one_agent_without_parity_completes),
        cmocka_unit_test(blocks_are_sent_as_they_are_captured),
        cmocka_unit_test(damaged_blocks_are_sent_again),
        cmocka_unit_test(blocks_damaged_again_and_again_abort),
        cmocka_unit_test(a_new_session_goes_on),
        cmocka_unit_test(the_ring_holds_members_back),
        cmocka_unit_test(a_forgotten_row_aborts),
        cmocka_unit_test(nothing_is_sent_without_a_session),
        cmocka_unit_test(a_complete_part_owes_nothing),
        cmocka_unit_test(missing_blocks_abort),
        cmocka_unit_test(parity_that_differs_from_a_seal_aborts),
        cmocka_unit_test(numbers_out_of_bounds_are_dropped),
        cmocka_unit_test(what_a_member_waits_for),
        cmocka_unit_test(memory_for_parity),
    };

    return cmocka_run_group_tests_name("agent/core/save", tests, NULL, NULL);
}
