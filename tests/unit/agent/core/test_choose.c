/*
 * tests/unit/agent/core/test_choose.c - which generation is taken: tables of who holds what, the
 * answer, and its text.
 *
 * Six agents in two groups of three (m = 1): members 0, 2, 4 and 1, 3, 5. A case is one line per
 * generation: a letter per member: '.' nobody holds it, 'h' its own agent does, 'b' with 300 bad
 * blocks (too many), 'd' with one bad block.
 */
#include "agent/core/core_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { AGENTS = 7, TEXT_BYTES = 1536 }; /* agent 6 is a spare */

static struct inventory inventories[AGENTS];
static struct cairn_roster *table;
static struct choice choice;
static char text[TEXT_BYTES];

static const uint64_t epoch_1 = (UINT64_C(1) << EPOCH_CLAIMANT_BITS) | 0xffff;

static void
hold(uint32_t agent, uint64_t step, uint32_t member, uint64_t bad)
{
    struct inventory *inventory = &inventories[agent];
    struct inventory_holding *holding = &inventory->holdings[inventory->holding_count++];

    assert_true(inventory->holding_count <= CAIRN_HOLDINGS_MAX);
    *holding = (struct inventory_holding){
        .generation = {epoch_1, step}, .member = member, .bad_count = bad, .table = table};
}

static void
generation(uint64_t step, const char *members)
{
    for (uint32_t m = 0; m < 6; m++)
        if (members[m] != '.')
            hold(m, step, m, members[m] == 'b' ? 300 : members[m] == 'd');
}

static void
choose(void)
{
    memset(text, 'x', sizeof text);
    choose_generation(inventories, AGENTS, &choice, text, sizeof text);
    assert_non_null(memchr(text, '\0', sizeof text));
}

static int
fresh(void **unused)
{
    static const uint32_t agents[6] = {0, 1, 2, 3, 4, 5};

    (void)unused;
    memset(inventories, 0, sizeof inventories);
    memset(&choice, 0, sizeof choice);
    for (uint32_t a = 0; a < AGENTS; a++) {
        inventories[a].known = true;
        inventories[a].active = epoch_1;
    }
    return cairn_roster_build(agents, NULL, 6, 1, 3, &table) != CAIRN_OK;
}

static int
done(void **unused)
{
    (void)unused;
    cairn_roster_drop(table);
    table = NULL;
    return 0;
}

static void
assert_taken(uint64_t step, uint32_t lost)
{
    assert_int_equal(choice.err, CAIRN_OK);
    assert_false(choice.from_files);
    assert_int_equal(choice.generation.step, step);
    assert_int_equal(choice.lost_members, lost);
    assert_ptr_equal(choice.table, table);
}

/* What may have been committed is taken though an older one is whole; what never was is passed
 * over. */
static void
rebuilt_or_passed_over(void **unused)
{
    (void)unused;
    generation(10, "hhhhhh");
    generation(20, "h.hhhh");
    choose();
    assert_taken(10, 0); /* agent 1 holds step 10, so it never said yes to 20 */
    assert_non_null(strstr(text, "step 20: passed over"));
    inventories[3].holdings[1].committed = true;
    choose();
    assert_taken(20, 1); /* agent 3 knows that it is committed */
    inventories[3].holdings[1].committed = false;
    inventories[1].forgotten_before = 21;
    choose();
    assert_taken(20, 1); /* agent 1 had it perhaps: a record of its was damaged */
    inventories[1].forgotten_before = 20;
    choose();
    assert_taken(10, 0); /* its memory is whole again since step 20 */
    inventories[1].forgotten_before = 0;
    inventories[1].active = epoch_1 + 1;
    choose();
    assert_taken(20, 1); /* what it says of another epoch does not count for this one */
    inventories[1].active = epoch_1;
    inventories[1].holdings[0].generation.epoch = epoch_1 - 1;
    choose();
    assert_taken(20, 1); /* agent 1 had it perhaps: what it holds is of another epoch */
    inventories[1].holding_count = 0;
    hold(6, 10, 1, 0);
    choose();
    assert_taken(20, 1); /* the part of step 10 is hosted by the spare, agent 1 has lost its
                          * memory */
}

static void
the_newest_that_is_whole(void **unused)
{
    static const struct {
        const char *older, *newer; /* steps 10 and 20 */
        uint64_t taken;            /* 0: lost */
        uint32_t lost;
    } cases[] = {
        {"hhhhhh", "hhhhhh", 20, 0}, {"hhhhhh", "h.hhhh", 10, 0}, {"hhhhhh", "..hhhh", 10, 0},
        {".hhhhh", ".hhhhh", 20, 1}, {"h..hhh", "h..hhh", 20, 2}, {".hhhhh", "h.hhhh", 20, 1},
        {"hhhhhh", ".h.hhh", 10, 0}, {"hhhhhh", "h.h.hh", 10, 0}, {"hhhhh.", "h.h.hh", 10, 1},
        {"......", "hhhhhh", 20, 0}, {"hhhhhh", "......", 10, 0}, {".h.hhh", "hh.h.h", 0, 0},
        {"......", "......", 0, 0},  {"hhhhhh", "bhhhhh", 20, 1}, {"hhhhhh", "bhbhhh", 10, 0},
        {"hhhhhh", "dhdhdh", 20, 0}, {"bb....", "....bb", 0, 0},  {"hhh...", "hhh...", 0, 0},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (uint32_t a = 0; a < AGENTS; a++)
            inventories[a].holding_count = 0;
        generation(10, cases[i].older);
        generation(20, cases[i].newer);
        choose();
        if (cases[i].taken == 0)
            assert_int_equal(choice.err, CAIRN_LOST);
        else
            assert_taken(cases[i].taken, cases[i].lost);
    }
}

static void
the_text_says_why(void **unused)
{
    (void)unused;
    generation(10, "hhhhh.");
    generation(20, "h.h.hh");
    choose();
    assert_string_equal(text, "epoch 1 step 20: not restorable: group 1 has lost 2 of its 3 nodes "
                              "(1, 3) and survives 1;\n"
                              "epoch 1 step 10: taken: the newest that is whole; 1 of 6 members' "
                              "parts are rebuilt from the "
                              "others\n");
}

static void
nothing_at_all(void **unused)
{
    (void)unused;
    choose();
    assert_int_equal(choice.err, CAIRN_LOST);
    assert_string_equal(text, "no agent that answered holds a generation, and none was spilled\n");
    generation(10, "h.....");
    choose();
    assert_int_equal(choice.err, CAIRN_LOST);
    assert_non_null(strstr(text, "no spilled generation is known\n"));
    assert_null(choice.table);
}

static void
files(void **unused)
{
    (void)unused;
    inventories[6].spilled = (struct cairn_generation){epoch_1, 15};
    generation(10, "hhhhhh");
    choose(); /* the files are newer than what memory has */
    assert_int_equal(choice.err, CAIRN_OK);
    assert_true(choice.from_files);
    assert_int_equal(choice.generation.step, 15);
    assert_null(choice.table);
    assert_string_equal(text, "epoch 1 step 15: taken from the spilled checkpoint\n");
    generation(15, "hhhhhh");
    choose(); /* memory is as new, and faster */
    assert_taken(15, 0);
    generation(20, "h.h.hh");
    choose();
    assert_taken(15, 0);
}

static void
files_when_memory_fails(void **unused)
{
    (void)unused;
    inventories[2].spilled = (struct cairn_generation){epoch_1, 5};
    generation(10, ".h.hhh");
    choose();
    assert_int_equal(choice.err, CAIRN_OK);
    assert_true(choice.from_files);
    assert_int_equal(choice.generation.step, 5);
    assert_non_null(strstr(text, "step 10: not restorable"));
    inventories[2].known = false; /* nobody answered there */
    choose();
    assert_int_equal(choice.err, CAIRN_LOST);
}

static void
excluded(void **unused)
{
    (void)unused;
    generation(10, "hhhhhh");
    generation(20, "hhhhhh");
    choice.excluded[0] = (struct cairn_generation){epoch_1, 20};
    choice.excluded_count = 1;
    choose();
    assert_taken(10, 0);
    assert_non_null(strstr(text, "step 20: not restorable: damaged beyond repair\n"));
}

/* A later epoch is newer whatever its step. */
static void
epochs(void **unused)
{
    (void)unused;
    generation(20, "hhhhhh");
    for (uint32_t m = 0; m < 6; m++) {
        hold(m, 7, m, 0);
        inventories[m].holdings[1].generation.epoch = (UINT64_C(2) << EPOCH_CLAIMANT_BITS) | 3;
    }
    choose();
    assert_taken(7, 0);
    assert_non_null(strstr(text, "epoch 2 step 7: taken"));
}

/* A part may be with anyone; the undamaged copy first, then its own agent's. */
static void
holders(void **unused)
{
    struct cairn_generation g = {epoch_1, 10};

    (void)unused;
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), UINT32_MAX);
    hold(6, 10, 3, 0);
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 6);
    hold(0, 10, 3, 0);
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 0);
    hold(3, 10, 3, 0);
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 3);
    inventories[3].holdings[0].bad_count = 1;
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 0);
    inventories[0].holdings[0].bad_count = 1;
    inventories[6].holdings[0].bad_count = 1;
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 3);
    inventories[3].holdings[0].bad_count = BAD_BLOCKS_MAX + 1;
    assert_int_equal(choose_holder(inventories, AGENTS, g, 3), 0);
    generation(10, "hhh.hh");
    choose();
    assert_taken(10, 0);
}

/* That a committed one had to be passed over is a reason to wait for those who have not answered.
 */
static void
passed(void **unused)
{
    (void)unused;
    generation(10, "hhhhhh");
    generation(20, ".h.hhh");
    choose();
    assert_taken(10, 0);
    assert_false(choice.passed_committed);
    inventories[1].holdings[1].committed = true;
    choose();
    assert_taken(10, 0);
    assert_true(choice.passed_committed);
}

/* All groups together must hold every rank of the job. */
static void
ranks(void **unused)
{
    (void)unused;
    generation(10, "hhhhhh");
    generation(20, "hhhhhh");
    for (uint32_t m = 0; m < 6; m++)
        for (uint32_t h = 0; h < 2; h++) {
            inventories[m].holdings[h].world = 12;
            inventories[m].holdings[h].group_ranks = 6;
        }
    choose();
    assert_taken(20, 0);
    for (uint32_t m = 1; m < 6; m += 2)
        inventories[m].holdings[1].group_ranks = 5;
    choose();
    assert_taken(10, 0);
    assert_non_null(strstr(text, "step 20: not restorable: it holds 11 of the job's 12 ranks\n"));
}

/* A late agent of an epoch that began with nothing is not kept out by parts of a generation that
 * cannot be whole. */
static void
joins_begin_from_nothing(void **unused)
{
    static struct cairn_core core;

    (void)unused;
    memset(&core, 0, sizeof core);
    core.options.agent_count = AGENTS;
    core.active = epoch_1;
    core.restore.inventories = inventories;
    choose();
    core.restore.choice = choice;
    assert_true(join_from_nothing(&core));
    generation(10, "hh..h."); /* of members 1, 3 and 5 one is there */
    choose();
    core.restore.choice = choice;
    assert_true(join_from_nothing(&core));
    /* an agent of an epoch before */
    inventories[6].ready = (struct cairn_generation){epoch_1 - 1, 5};
    inventories[6].active = epoch_1 - 1;
    assert_true(join_from_nothing(&core));
    inventories[6].active = epoch_1;
    assert_false(join_from_nothing(&core));
    inventories[6].ready.step = 0;
    inventories[0].holdings[0].committed = true;
    choose();
    core.restore.choice = choice;
    assert_false(join_from_nothing(&core));
    generation(20, "hhhhhh");
    choose();
    core.restore.choice = choice;
    assert_false(join_from_nothing(&core));
}

/* Nor out of one that began with files of which nobody knows any more. */
static void
joins_keep_files(void **unused)
{
    static struct cairn_core core;
    const struct cairn_generation from = {epoch_1 - 1, 5};

    (void)unused;
    memset(&core, 0, sizeof core);
    core.options.agent_count = AGENTS;
    core.active = epoch_1;
    core.ready = from;
    core.ready_from_files = true;
    core.restore.inventories = inventories;
    inventories[0].ready = inventories[6].ready = from;
    generation(10, "hh..h."); /* of members 1, 3 and 5 one is there */
    choose();
    core.restore.choice = choice;
    assert_true(join_keeps_files(&core));
    inventories[6].ready = (struct cairn_generation){epoch_1, 10}; /* was committed */
    assert_false(join_keeps_files(&core));
    inventories[6].ready = from;
    core.ready_from_files = false;
    assert_false(join_keeps_files(&core));
    core.ready_from_files = true;
    inventories[0].holdings[0].committed = true;
    choose();
    core.restore.choice = choice;
    assert_false(join_keeps_files(&core));
    generation(20, "hhhhhh");
    choose();
    core.restore.choice = choice;
    assert_false(join_keeps_files(&core));
}

/* All groups together must hold every tensor evenly: their sums add up to 0 then. */
static void
tilings(void **unused)
{
    (void)unused;
    generation(10, "hhhhhh");
    generation(20, "hhhhhh");
    for (uint32_t m = 0; m < 6; m++)
        for (uint32_t h = 0; h < 2; h++)
            inventories[m].holdings[h].tiling_sum = m % 2 ? CAIRN_TILING_FIELD - 77 : 77;
    choose();
    assert_taken(20, 0);
    for (uint32_t m = 1; m < 6; m += 2)
        inventories[m].holdings[1].tiling_sum = 77;
    choose();
    assert_taken(10, 0);
    assert_non_null(strstr(text, "step 20: not restorable: its ranks do not hold every element of "
                                 "every tensor exactly once\n"));
}

/* A tensor that is held twice leaves no trace in the sums: who knows that those layouts were
 * refused says so. */
static void
refused(void **unused)
{
    uint64_t combination = 0;

    (void)unused;
    generation(10, "hhhhhh");
    generation(20, "hhhhhh");
    for (uint32_t m = 0; m < 6; m++)
        for (uint32_t h = 0; h < 2; h++)
            inventories[m].holdings[h].layout = 100 * h + 1 + table->members[m].group;
    for (uint32_t g = 0; g < 2; g++)
        combination = tiling_with_group(combination, 101 + g);
    inventories[6].refused[1] = combination;
    inventories[6].refused_count = 1;
    choose();
    assert_taken(20, 0);
    inventories[6].refused_count = 2;
    choose();
    assert_taken(10, 0);
    inventories[2].holdings[1].committed = true; /* then it was not refused */
    choose();
    assert_taken(20, 0);
}

/* A text that does not fit is cut, never overrun. */
static void
long_text(void **unused)
{
    char small[40];

    (void)unused;
    for (uint64_t step = 1; step <= CAIRN_HOLDINGS_MAX; step++)
        hold(0, step, 0, 0);
    memset(small, 'x', sizeof small);
    choose_generation(inventories, AGENTS, &choice, small, sizeof small - 8);
    assert_int_equal(choice.err, CAIRN_LOST);
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
        CASE(rebuilt_or_passed_over),
        CASE(the_text_says_why),
        CASE(nothing_at_all),
        CASE(files),
        CASE(files_when_memory_fails),
        CASE(excluded),
        CASE(epochs),
        CASE(holders),
        CASE(passed),
        CASE(ranks),
        CASE(joins_begin_from_nothing),
        CASE(joins_keep_files),
        CASE(tilings),
        CASE(refused),
        CASE(long_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
