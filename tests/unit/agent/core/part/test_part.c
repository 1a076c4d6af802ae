/*
 * tests/unit/agent/core/part/test_part.c - parts: their slots, their records, their comparison
 * with the checksums, and the rule by which they go (R3).
 */
#include "tests/unit/agent/core/group.h"

#include "base/bitset.h"

enum { EPOCH = 0x20001, OLD_EPOCH = 0x10001, RUN = 7 };

static const uint64_t sizes[4] = {30, 25, 0, 12};

static struct cairn_bytes
record_of(struct agent *agent, uint32_t index)
{
    return (struct cairn_bytes){agent->memory[index].record, agent->memory[index].record_len};
}

/* ---- records ---- */

static void
a_record_describes_its_part(void **state)
{
    struct group *group = group_new(4, 4, 2, sizes);

    save_all(group);
    for (uint32_t m = 0; m < 4; m++) {
        struct agent *agent = &group->agents[m];
        struct part *part = own_part(group, m);
        uint32_t index = part_index(&agent->env, part);

        part_fini(part);
        assert_int_equal(part_load(&agent->options, &agent->parts, index, record_of(agent, index)),
                         CAIRN_OK);
        assert_ptr_equal(own_part(group, m), part);
        assert_part_is_right(group, m, m);
        assert_true(part->seals[part->position].shard_blocks == sizes[m]);
        assert_int_equal(part->seals[part->position].manifest_len, sizes[m] ? 3 : 0);
    }
    group_free(group);
}

static void
a_record_that_is_not_one_is_refused(void **state)
{
    struct group *group = group_new(4, 4, 2, sizes);
    struct agent *agent = &group->agents[0];
    struct cairn_bytes record;
    struct parts parts = {0};
    uint8_t *copy;

    save_all(group);
    record = record_of(agent, part_index(&agent->env, own_part(group, 0)));
    assert_false(part_record_is_foreign(record));
    assert_false(part_record_is_foreign((struct cairn_bytes){0}));
    for (size_t len = 4; len < record.len; len++) {
        struct cairn_bytes cut = {record.bytes, len};

        assert_int_equal(part_load(&agent->options, &parts, 0, cut), CAIRN_CORRUPT);
        assert_int_equal(parts.list[0].state, CAIRN_PART_FREE);
    }
    copy = malloc(record.len);
    assert_non_null(copy);
    for (size_t i = 0; i < record.len; i++) { /* some bytes are checksums that only memory proves */
        memcpy(copy, record.bytes, record.len);
        copy[i] ^= 0x40;
        if (part_load(&agent->options, &parts, 0, (struct cairn_bytes){copy, record.len}) ==
            CAIRN_OK)
            part_fini(&parts.list[0]);
    }
    memcpy(copy, record.bytes, record.len);
    copy[0] = 3;
    assert_true(part_record_is_foreign((struct cairn_bytes){copy, record.len}));
    assert_int_equal(part_load(&agent->options, &parts, 0, (struct cairn_bytes){copy, record.len}),
                     CAIRN_VERSION);
    agent->options.slot_blocks = 29; /* memory with smaller slots than the part */
    assert_int_equal(part_load(&agent->options, &parts, 0, record), CAIRN_CORRUPT);
    assert_int_equal(part_load(&agent->options, &parts, 5, record), CAIRN_OK);
    part_fini(&parts.list[5]);
    free(copy);
    group_free(group);
}

/* ---- slots ---- */

static void
a_slot_is_erased_before_it_is_filled_again(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct agent *agent = &group->agents[0];
    struct part *part =
        part_open(&agent->env, group->generation, 0, group->roster, CAIRN_PART_OPEN, true);

    assert_ptr_equal(part, &agent->parts.list[0]);
    assert_int_equal(agent->actions.count, 1);
    assert_int_equal(agent->actions.list[0].type, CAIRN_ACTION_STORE_PART);
    assert_int_equal(agent->actions.list[0].as.store.bytes_len, 0);
    cairn_actions_clear(&agent->actions);
    part_drop(&agent->env, part, true);
    assert_int_equal(agent->actions.count, 3);
    assert_int_equal(agent->actions.list[0].type, CAIRN_ACTION_DROP);
    assert_int_equal(agent->actions.list[1].type, CAIRN_ACTION_STORE_PART);
    assert_int_equal(agent->actions.list[2].type, CAIRN_ACTION_CLOSE);
    group_free(group);
}

static void
captures_have_own_slots_and_repairs_leave_one(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct agent *agent = &group->agents[0];
    struct cairn_generation_id other = group->generation;
    struct part *part;

    other.step++;
    part = part_open(&agent->env, group->generation, 0, group->roster, CAIRN_PART_REBUILDING, true);
    assert_int_equal(part_index(&agent->env, part), 0);
    assert_true(part->mending.memory_ready);
    part = part_open(&agent->env, group->generation, 1, group->roster, CAIRN_PART_REBUILDING, true);
    assert_int_equal(part_index(&agent->env, part), 2); /* the last own slot is for captures */
    assert_false(part->mending.memory_ready);
    part =
        part_open(&agent->env, group->generation, 2, group->roster, CAIRN_PART_REBUILDING, false);
    assert_int_equal(part_index(&agent->env, part), 3);
    part = part_open(&agent->env, other, 0, group->roster, CAIRN_PART_OPEN, true);
    assert_int_equal(part_index(&agent->env, part), 1);
    other.step++;
    assert_null(part_open(&agent->env, other, 0, group->roster, CAIRN_PART_OPEN, true));
    group_free(group);
}

/* ---- verify ---- */

/* What rebuilding the last member reads is left out, unless damage is known or another comparison
 * is under way. With m = 1 all others are read, as far as the last member has blocks. */
static void
a_repair_compares_what_it_reads(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct agent *agent = &group->agents[0];
    const struct cairn_action_part *verify;
    struct part *part;
    uint64_t left_out = 0;

    save_all(group);
    part = own_part(group, 0);
    cairn_actions_clear(&agent->actions);
    parts_verify(&agent->env, group->generation, 1u << 3);
    parts_verify(&agent->env, group->generation, 1u << 3);
    assert_int_equal(agent->actions.count, 2);
    verify = &agent->actions.list[0].as.part;
    assert_non_null(verify->skip);
    assert_null(agent->actions.list[1].as.part.skip);
    for (uint32_t stripe = 0; stripe < 4; stripe++)
        for (uint64_t line = 0; line < cairn_stripes_blocks(&part->stripes, stripe, 0); line++) {
            bool read = line < cairn_stripes_blocks(&part->stripes, stripe, 3);
            struct span span;

            assert_true(part_span(part, stripe, line, 1, &span));
            assert_int_equal(cairn_bitset_has(verify->skip, (uint32_t)span.index), read);
            left_out += read;
        }
    assert_true(left_out > 0);
    cairn_actions_clear(&agent->actions);
    part->checked.request = 0;
    part->checked.bad_count = 1;
    parts_verify(&agent->env, group->generation, 1u << 3);
    assert_null(agent->actions.list[0].as.part.skip);
    part->checked.bad_count = 0;
    group_free(group);
}

static void
each_attempt_verifies_again(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct agent *agent = &group->agents[0];
    struct cairn_generation_id all = {0}, other = group->generation;
    struct cairn_event_answer answer = {.generation = group->generation};
    struct part *part;
    uint64_t first;

    save_all(group);
    part = own_part(group, 0);
    other.step++;
    parts_verify(&agent->env, other, 0);
    assert_int_equal(agent->actions.count, 0);
    parts_verify(&agent->env, all, 0);
    assert_int_equal(agent->actions.count, 1);
    assert_false(parts_are_verified(&agent->parts, all));
    assert_true(parts_are_verified(&agent->parts, other));
    first = part->checked.request;
    parts_verify(&agent->env, all, 0);
    assert_int_equal(agent->actions.count, 2);
    cairn_actions_clear(&agent->actions);
    answer.part = part_index(&agent->env, part);
    answer.request = first; /* of the attempt before */
    parts_verified(&agent->env, &agent->parts.list[answer.part], &answer);
    assert_false(parts_are_verified(&agent->parts, all));
    answer.request = part->checked.request;
    answer.record_damaged = true;
    parts_verified(&agent->env, &agent->parts.list[answer.part], &answer);
    assert_true(parts_are_verified(&agent->parts, all));
    assert_true(part->checked.record_mended);
    assert_int_equal(agent->actions.list[0].type, CAIRN_ACTION_STORE_PART);
    assert_true(agent->actions.list[0].as.store.bytes_len > 0);
    group_free(group);
}

/* ---- which parts go ---- */

/* One part, alone with the retention: what happens to it. */
struct kept {
    const char *what;
    struct cairn_generation_id generation;
    uint32_t member;
    enum cairn_part_state state;
    struct cairn_decision decision;
    struct cairn_generation_id ready;
    bool from_files, fenced, pinned, spilling, working;
    bool stays;
};

#define OWN(step_)                                                                                 \
    {                                                                                              \
        .epoch = EPOCH, .step = step_, .run = RUN                                                  \
    }
#define OLD(step_)                                                                                 \
    {                                                                                              \
        .epoch = OLD_EPOCH, .step = step_, .run = 3                                                \
    }
#define DECISION(run_, next_, committed_step)                                                      \
    {                                                                                              \
        .serial = 5, .run = run_, .next = next_, .committed = {                                    \
            committed_step ? EPOCH : 0,                                                            \
            committed_step,                                                                        \
            committed_step ? RUN : 0                                                               \
        }                                                                                          \
    }

static const struct kept cases[] = {
    /* complete parts of the active epoch */
    {"no decision is known", OWN(20), .state = CAIRN_PART_COMPLETE, .stays = true},
    {"in flight", OWN(20), .state = CAIRN_PART_COMPLETE, .decision = DECISION(RUN, 20, 0),
     .stays = true},
    {"in flight, a step later", OWN(22), .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(RUN, 20, 10), .stays = true},
    {"committed", OWN(20), .state = CAIRN_PART_COMPLETE, .decision = DECISION(RUN, 30, 20),
     .stays = true},
    {"committed of a run that ended", OWN(20), .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(RUN + 1, 30, 20), .stays = true},
    {"superseded", OWN(20), .state = CAIRN_PART_COMPLETE, .decision = DECISION(RUN, 40, 30)},
    {"aborted: a later step is due", OWN(20), .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(RUN, 21, 10)},
    {"aborted: another run", OWN(20), .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(RUN + 1, 10, 0)},
    {"the run ended: the leader may still commit", OWN(20), .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(0, 0, 10), .stays = true},
    {"the run ended, but later is committed", OWN(20), .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(0, 0, 30)},
    {"of another member", OWN(20), .member = 1, .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(RUN, 21, 10), .stays = true},
    {"superseded, of another member", OWN(20), .member = 1, .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(RUN, 21, 21)},
    /* those that someone reads */
    {"superseded, but spilled", OWN(20), .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(RUN, 40, 30), .spilling = true, .stays = true},
    {"superseded, but a repair reads it", OWN(20), .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(RUN, 40, 30), .working = true, .stays = true},
    {"superseded, but pinned", OWN(20), .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(RUN, 40, 30), .pinned = true, .stays = true},
    {"superseded, but the claimant counted it", OWN(20), .state = CAIRN_PART_COMPLETE,
     .decision = DECISION(RUN, 40, 30), .fenced = true, .stays = true},
    /* of older epochs */
    {"ready", OLD(20), .state = CAIRN_PART_COMPLETE, .ready = OLD(20), .stays = true},
    {"ready, of another member", OLD(20), .member = 2, .state = CAIRN_PART_COMPLETE,
     .ready = OLD(20), .stays = true},
    {"ready, but later is committed", OLD(20), .state = CAIRN_PART_COMPLETE, .ready = OLD(20),
     .decision = DECISION(RUN, 40, 30)},
    {"older than ready", OLD(10), .state = CAIRN_PART_COMPLETE, .ready = OLD(20)},
    {"newer than ready: aborted", OLD(30), .state = CAIRN_PART_COMPLETE, .ready = OLD(20)},
    {"of ready's step and another run",
     {OLD_EPOCH, 20, 4},
     .state = CAIRN_PART_COMPLETE,
     .ready = OLD(20)},
    {"newest, and the epoch began with nothing", OLD(20), .state = CAIRN_PART_COMPLETE,
     .stays = true},
    {"newest, and the epoch began with files", OLD(20), .state = CAIRN_PART_COMPLETE,
     .ready = OLD(10), .from_files = true, .stays = true},
    {"files, and something is committed", OLD(20), .state = CAIRN_PART_COMPLETE, .ready = OLD(10),
     .from_files = true, .decision = DECISION(RUN, 40, 1)},
    {"of a later epoch",
     {EPOCH + 0x10000, 20, RUN},
     .state = CAIRN_PART_COMPLETE,
     .ready = OLD(20),
     .stays = true},
    /* open parts */
    {"open, no decision is known", OWN(20), .state = CAIRN_PART_OPEN, .stays = true},
    {"open, due", OWN(20), .state = CAIRN_PART_OPEN, .decision = DECISION(RUN, 20, 10),
     .stays = true},
    {"finishing, due", OWN(21), .state = CAIRN_PART_FINISHING, .decision = DECISION(RUN, 20, 10),
     .stays = true},
    {"open, a later step is due", OWN(20), .state = CAIRN_PART_OPEN,
     .decision = DECISION(RUN, 21, 10)},
    {"finishing, another run", OWN(20), .state = CAIRN_PART_FINISHING,
     .decision = DECISION(RUN + 1, 20, 10)},
    {"open, and the run ended", OWN(20), .state = CAIRN_PART_OPEN, .decision = DECISION(0, 0, 10)},
    {"open, and none is due", OWN(20), .state = CAIRN_PART_OPEN, .decision = DECISION(RUN, 0, 10)},
    {"open and fenced", OWN(20), .state = CAIRN_PART_OPEN, .decision = DECISION(RUN, 20, 10),
     .fenced = true},
    {"open and fenced, though pinned", OWN(20), .state = CAIRN_PART_OPEN, .fenced = true,
     .pinned = true},
    {"open of another epoch", OLD(20), .state = CAIRN_PART_OPEN, .ready = OLD(10)},
    /* parts of a repair */
    {"rebuilding", OLD(20), .state = CAIRN_PART_REBUILDING, .ready = OLD(10), .stays = true},
    {"rebuilding and fenced", OLD(20), .state = CAIRN_PART_REBUILDING, .fenced = true,
     .stays = true},
    {"rebuilding, but later is committed", OLD(20), .state = CAIRN_PART_REBUILDING,
     .decision = DECISION(RUN, 40, 30)},
};

static struct part *
add_part(struct group *group, struct parts *parts, uint32_t index,
         struct cairn_generation_id generation, uint32_t member, enum cairn_part_state part_state)
{
    assert_int_equal(part_init(&parts->list[index], generation, member, group->roster, part_state),
                     CAIRN_OK);
    return &parts->list[index];
}

/* The first agent, a member of an epoch in which nothing is decided. */
static struct agent *
in_epoch(struct group *group)
{
    struct agent *agent = &group->agents[0];

    agent->membership.record.epoch = agent->membership.promised = EPOCH;
    group->decision = (struct cairn_decision){0};
    return agent;
}

static void
parts_go_by_the_rule(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct agent *agent = in_epoch(group);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct kept *kept = &cases[i];
        struct record *record = &agent->membership.record;
        struct part *part =
            add_part(group, &agent->parts, 0, kept->generation, kept->member, kept->state);
        uint64_t version = agent->parts.version;

        part->spilling = kept->spilling;
        part->working = kept->working;
        group->decision = kept->decision;
        record->ready = kept->ready;
        record->ready_from_files = kept->from_files;
        agent->membership.promised = EPOCH + kept->fenced;
        agent->parts.pinned = kept->pinned;
        agent->parts.pinned_generation = kept->generation;
        parts_retain(&agent->env);
        if ((part->state != CAIRN_PART_FREE) != kept->stays)
            fail_msg("%s: the part %s", kept->what, kept->stays ? "went" : "stayed");
        assert_int_equal(agent->parts.version - version,
                         kept->state == CAIRN_PART_COMPLETE && !kept->stays);
        if (kept->stays)
            part_fini(part);
        cairn_actions_clear(&agent->actions);
    }
    group_free(group);
}

/* Trainers that copy a part are told that it goes. */
static void
trainers_are_told(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct agent *agent = in_epoch(group);

    agent->membership.promised = EPOCH + 1;
    (void)add_part(group, &agent->parts, 0, (struct cairn_generation_id)OWN(20), 0,
                   CAIRN_PART_OPEN);
    parts_retain(&agent->env);
    assert_int_equal(agent->actions.list[0].type, CAIRN_ACTION_DROP);
    assert_true(agent->actions.list[0].as.trainer.generation.step == 20);
    group_free(group);
}

/* If the epoch began with nothing, older generations make room, oldest first; the newest stays. */
static void
the_newest_stays_until_the_first_commit(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct agent *agent = in_epoch(group);
    struct parts *parts = &agent->parts;

    agent->options.slots = 3;
    (void)add_part(group, parts, 0, (struct cairn_generation_id)OLD(20), 0, CAIRN_PART_COMPLETE);
    (void)add_part(group, parts, 1, (struct cairn_generation_id)OLD(10), 0, CAIRN_PART_COMPLETE);
    parts_retain(&agent->env);
    assert_int_equal(parts->list[0].state, CAIRN_PART_COMPLETE);
    assert_int_equal(parts->list[1].state, CAIRN_PART_COMPLETE); /* there is a free slot */
    (void)add_part(group, parts, 2, (struct cairn_generation_id)OLD(30), 0, CAIRN_PART_COMPLETE);
    parts_retain(&agent->env);
    assert_int_equal(parts->list[0].state, CAIRN_PART_COMPLETE);
    assert_int_equal(parts->list[1].state, CAIRN_PART_FREE);
    assert_int_equal(parts->list[2].state, CAIRN_PART_COMPLETE);
    (void)add_part(group, parts, 1, (struct cairn_generation_id)OWN(5), 0, CAIRN_PART_OPEN);
    parts_retain(&agent->env);
    assert_int_equal(parts->list[0].state, CAIRN_PART_FREE);
    assert_int_equal(parts->list[2].state, CAIRN_PART_COMPLETE);
    (void)add_part(group, parts, 0, (struct cairn_generation_id)OWN(4), 0, CAIRN_PART_COMPLETE);
    parts_retain(&agent->env);
    assert_int_equal(parts->list[2].state, CAIRN_PART_COMPLETE); /* alone it never goes */
    group_free(group);
}

static void
the_part_in_flight(void **state)
{
    struct group *group = group_new(4, 4, 1, sizes);
    struct agent *agent = in_epoch(group);
    struct parts *parts = &agent->parts;
    struct part *part;

    group->decision = (struct cairn_decision)DECISION(RUN, 20, 10);
    (void)add_part(group, parts, 0, (struct cairn_generation_id)OWN(10), 0, CAIRN_PART_COMPLETE);
    assert_null(parts_in_flight(&agent->env));
    (void)add_part(group, parts, 2, (struct cairn_generation_id)OWN(20), 1, CAIRN_PART_COMPLETE);
    assert_null(parts_in_flight(&agent->env));
    part = add_part(group, parts, 1, (struct cairn_generation_id)OWN(20), 0, CAIRN_PART_OPEN);
    assert_ptr_equal(parts_in_flight(&agent->env), part);
    part->state = CAIRN_PART_COMPLETE;
    assert_ptr_equal(parts_in_flight(&agent->env), part);
    group->decision = (struct cairn_decision)DECISION(RUN, 30, 20);
    assert_null(parts_in_flight(&agent->env));
    group_free(group);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_describes_its_part),
        cmocka_unit_test(a_record_that_is_not_one_is_refused),
        cmocka_unit_test(a_slot_is_erased_before_it_is_filled_again),
        cmocka_unit_test(captures_have_own_slots_and_repairs_leave_one),
        cmocka_unit_test(a_repair_compares_what_it_reads),
        cmocka_unit_test(each_attempt_verifies_again),
        cmocka_unit_test(parts_go_by_the_rule),
        cmocka_unit_test(trainers_are_told),
        cmocka_unit_test(the_newest_stays_until_the_first_commit),
        cmocka_unit_test(the_part_in_flight),
    };

    return cmocka_run_group_tests_name("agent/core/part", tests, NULL, NULL);
}
