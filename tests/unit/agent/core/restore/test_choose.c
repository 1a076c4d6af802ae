/*
 * tests/unit/agent/core/restore/test_choose.c - which generation is chosen: tables of who holds
 * what, the answer, and its text.
 *
 * Six agents in two groups of three (m = 1): members 0, 2, 4 and 1, 3, 5. A case is one line per
 * generation: a letter per member: '.' nobody holds it, 'h' its own agent does, 'b' with 300 bad
 * blocks (too many), 'd' with one bad block.
 */
#include "agent/core/restore/choose.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { AGENTS = 7, TEXT_BYTES = 1536 }; /* agent 6 is a spare */

static struct inventory inventories[AGENTS];
static struct cairn_roster *roster;
static struct choice choice;
static char text[TEXT_BYTES];

static const uint64_t epoch_1 = (UINT64_C(1) << 16) | 0xffff;

static struct cairn_generation_id
at(uint64_t step)
{
    return (struct cairn_generation_id){.epoch = epoch_1, .run = 3, .step = step};
}

static struct inventory_part *
hold(uint32_t agent, struct cairn_generation_id generation, uint32_t member, uint64_t bad)
{
    struct inventory *inventory = &inventories[agent];
    struct inventory_part *part = &inventory->parts[inventory->part_count++];

    assert_true(inventory->part_count <= CAIRN_PARTS_MAX);
    *part = (struct inventory_part){
        .generation = generation, .member = member, .bad_count = bad, .roster = roster};
    return part;
}

static void
generation(uint64_t step, const char *members)
{
    for (uint32_t m = 0; m < 6; m++)
        if (members[m] != '.')
            hold(m, at(step), m, members[m] == 'b' ? 300 : members[m] == 'd');
}

static void
choose(void)
{
    memset(text, 'x', sizeof text);
    choose_generation(inventories, AGENTS, (struct cairn_generation_id){0},
                      choose_spilled(inventories, AGENTS), &choice, text, sizeof text);
    assert_non_null(memchr(text, '\0', sizeof text));
}

static int
fresh(void **unused)
{
    static const uint32_t agents[6] = {0, 1, 2, 3, 4, 5};

    memset(inventories, 0, sizeof inventories);
    memset(&choice, 0, sizeof choice);
    for (uint32_t a = 0; a < AGENTS; a++) {
        inventories[a].known = true;
        inventories[a].self.active = epoch_1;
    }
    return cairn_roster_build(agents, NULL, 6, 1, 3, &roster) != CAIRN_OK;
}

static int
done(void **unused)
{
    choice_clear(&choice);
    cairn_roster_drop(roster);
    return 0;
}

static void
assert_taken(uint64_t step, uint32_t lost)
{
    assert_int_equal(choice.err, CAIRN_OK);
    assert_false(choice.from_files);
    assert_int_equal(choice.generation.step, step);
    assert_int_equal(choice.lost_members, lost);
    assert_ptr_equal(choice.roster, roster);
}

static void
the_newest_that_is_whole(void **unused)
{
    generation(10, "hhhhhh");
    choose();
    assert_taken(10, 0);
    generation(20, "h.dhhh"); /* one lost in each group can be rebuilt */
    choose();
    assert_taken(20, 1);
    assert_false(choice.goes_back);
    generation(30, "hb.bhh"); /* two of group 1 are lost: too many bad blocks */
    choose();
    assert_taken(20, 1);
    assert_false(choice.goes_back); /* agent 2 never had it, so it was not committed */
}

static void
choose_named(uint64_t step, bool has_files)
{
    const struct cairn_generation_id wanted = {.epoch = epoch_1 >> 16, .step = step};
    const struct cairn_generation_id files = {.epoch = epoch_1, .step = step}, none = {0};

    memset(text, 'x', sizeof text);
    choose_generation(inventories, AGENTS, wanted, has_files ? files : none, &choice, text,
                      sizeof text);
    assert_non_null(memchr(text, '\0', sizeof text));
}

static void
a_named_generation_and_no_other(void **unused)
{
    generation(10, "h.hhhh");
    generation(20, "hhhhhh");
    generation(30, "hb.bhh");
    choose_named(10, true); /* memory before files */
    assert_taken(10, 1);
    choose_named(20, false);
    assert_taken(20, 0);
    choose_named(30, false); /* not restorable: no other one takes its place */
    assert_int_equal(choice.err, CAIRN_LOST);
    choose_named(5, false);
    assert_int_equal(choice.err, CAIRN_LOST);
    choose_named(30, true);
    assert_int_equal(choice.err, CAIRN_OK);
    assert_true(choice.from_files);
    assert_int_equal(choice.generation.step, 30);
    assert_null(choice.roster);
    choose_named(10, true);
    choice.excluded[choice.excluded_count++] =
        (struct excluded){at(10), choose_intact(inventories, AGENTS, at(10))};
    choose_named(10, true); /* proved to be damaged: its files are left */
    assert_true(choice.from_files);
    choose_named(10, false);
    assert_int_equal(choice.err, CAIRN_LOST);
}

/* A member that answered, forgot nothing and has no part of a generation proves that it was not
 * committed. */
static void
goes_back(void **unused)
{
    generation(10, "hhhhhh");
    generation(20, "hhhh..");
    for (uint32_t m = 0; m < 4; m++)
        inventories[m].parts[1].bad_count = m == 1 || m == 3 ? 300 : 0; /* group 1 lacks two */
    choose();
    assert_taken(10, 0);
    assert_false(choice.goes_back); /* agents 4 and 5 never had it */
    inventories[4].self.blank = inventories[5].self.blank = true;
    choose();
    assert_true(choice.goes_back);
    inventories[4].self.blank = false;
    choose();
    assert_false(choice.goes_back);
    inventories[4].self.active = epoch_1 - 1;
    choose();
    assert_true(choice.goes_back);
    inventories[4].self.active = epoch_1;
    inventories[4].self.ready = at(25); /* it knows of a later commit, and may have dropped it */
    choose();
    assert_true(choice.goes_back);
    inventories[4].self.ready = at(10);
    choose();
    assert_false(choice.goes_back);
    inventories[0].self.ready = at(20); /* somebody knows */
    choose();
    assert_true(choice.goes_back);
    inventories[0].known = false;
    choose();
    assert_false(choice.goes_back);
}

/* A commit that somebody knows counts, even if no part of it is left. */
static void
goes_back_from_nothing(void **unused)
{
    choose();
    assert_int_equal(choice.err, CAIRN_LOST);
    assert_false(choice.goes_back);
    inventories[3].self.ready = at(20);
    choose();
    assert_true(choice.goes_back);
    inventories[3].self.spilled = at(20);
    inventories[3].self.spilled.run = 0; /* as files have it */
    choose();
    assert_true(choice.from_files);
    assert_false(choice.goes_back);
    inventories[2].self.ready = at(21);
    choose();
    assert_true(choice.goes_back);
}

static void
the_text_says_why(void **unused)
{
    generation(10, "hhhhh.");
    generation(20, "h.h.hh");
    choose();
    assert_string_equal(
        text,
        "epoch 1 step 20: not restorable: group 1 has lost 2 of its 3 nodes (1, 3) and "
        "survives 1\n"
        "epoch 1 step 10: chosen as the newest; rebuild the parts of 1 of 6 members (node 5)\n");
}

static void
nothing_at_all(void **unused)
{
    choose();
    assert_int_equal(choice.err, CAIRN_LOST);
    assert_string_equal(text, "no agent that answered holds a generation, and none was spilled\n");
    generation(10, "h.....");
    choose();
    assert_int_equal(choice.err, CAIRN_LOST);
    assert_non_null(strstr(text, "no spilled generation is known\n"));
    assert_null(choice.roster);
}

static void
files(void **unused)
{
    inventories[6].self.spilled = (struct cairn_generation_id){.epoch = epoch_1, .step = 15};
    generation(10, "hhhhhh");
    choose(); /* the files are newer than memory */
    assert_int_equal(choice.err, CAIRN_OK);
    assert_true(choice.from_files);
    assert_int_equal(choice.generation.step, 15);
    assert_null(choice.roster);
    assert_string_equal(text, "epoch 1 step 15: chosen from the spilled checkpoint\n");
    generation(15, "hhhhhh");
    choose(); /* memory is as new, and faster */
    assert_taken(15, 0);
    generation(20, "h.h.hh");
    choose();
    assert_taken(15, 0);
    inventories[6].known = false;
    assert_int_equal(choose_spilled(inventories, AGENTS).step, 0);
}

static void
excluded(void **unused)
{
    generation(10, "hhhhhh");
    generation(20, "hhhhhh");
    choice.excluded[0] = (struct excluded){at(20), choose_intact(inventories, AGENTS, at(20))};
    choice.excluded_count = 1;
    choose();
    assert_taken(10, 0);
    assert_true(choice.goes_back);
    assert_non_null(strstr(text, "step 20: not restorable: damaged beyond repair\n"));
    hold(6, at(20), 0, 0); /* more parts are here than when that was proved */
    choose();
    assert_taken(20, 0);
}

/* A later epoch is newer at any run and step, and a later run at any step. */
static void
order(void **unused)
{
    generation(20, "hhhhhh");
    for (uint32_t m = 0; m < 6; m++)
        hold(m, (struct cairn_generation_id){.epoch = epoch_1, .run = 4, .step = 9}, m, 0);
    choose();
    assert_taken(9, 0);
    for (uint32_t m = 0; m < 6; m++)
        hold(m, (struct cairn_generation_id){.epoch = 0x20003, .run = 1, .step = 7}, m, 0);
    choose();
    assert_taken(7, 0);
    assert_non_null(strstr(text, "epoch 2 step 7: chosen"));
}

/* A part may be with anyone; undamaged copies first, then the member's own agent. */
static void
holders(void **unused)
{
    struct cairn_generation_id g = at(10);

    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), UINT32_MAX);
    hold(6, g, 3, 0);
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 6);
    hold(0, g, 3, 0);
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 0);
    hold(3, g, 3, 0);
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 3);
    inventories[3].parts[0].bad_count = 1;
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 0);
    inventories[0].parts[0].bad_count = 1;
    inventories[6].parts[0].bad_count = 1;
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 3);
    inventories[3].parts[0].bad_count = BAD_BLOCKS_MAX + 1;
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 0);
}

/* More generations than are considered: only the newest are. Text that does not fit is cut. */
static void
many(void **unused)
{
    char small[40];

    for (uint32_t a = 0; a < AGENTS; a++)
        for (uint64_t i = 0; i < CAIRN_PARTS_MAX; i++)
            hold(a, at(a * CAIRN_PARTS_MAX + i + 1), 0, 0);
    choose();
    assert_int_equal(choice.err, CAIRN_LOST);
    assert_non_null(strstr(text, "step 56: not restorable"));
    memset(small, 'x', sizeof small);
    choose_generation(inventories, AGENTS, (struct cairn_generation_id){0},
                      (struct cairn_generation_id){0}, &choice, small, sizeof small - 8);
    assert_true(strlen(small) < sizeof small - 8);
    for (size_t i = sizeof small - 8; i < sizeof small; i++)
        assert_int_equal(small[i], 'x');
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fresh, done)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_newest_that_is_whole),
        CASE(a_named_generation_and_no_other),
        CASE(goes_back),
        CASE(goes_back_from_nothing),
        CASE(the_text_says_why),
        CASE(nothing_at_all),
        CASE(files),
        CASE(excluded),
        CASE(order),
        CASE(holders),
        CASE(many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
