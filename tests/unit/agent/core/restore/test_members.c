/*
 * tests/unit/agent/core/restore/test_members.c - who gets a lost part, and who is in the next
 * epoch.
 *
 * Eight agents; 0 to 5 are the members of the old epoch, in groups of three with m = 1; 6 and 7 are
 * spares.
 */
#include "agent/core/restore/members.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { AGENTS = 8 };

static const bool spares[AGENTS] = {[6] = true, [7] = true};
static const struct cairn_core_options options = {.agent_count = AGENTS,
                                                  .spares = spares,
                                                  .parity = 1,
                                                  .group_size = 3,
                                                  .slots = 2,
                                                  .slot_blocks = 64,
                                                  .parity_blocks = 64};
static const struct cairn_generation_id g = {.epoch = 0x10000, .run = 1, .step = 10};
static struct inventory inventories[AGENTS];
static struct cairn_roster *roster;
static struct choice choice;
static uint64_t no_room[1];
static struct plan plan;
static char text[200];

static void
hold(uint32_t agent, uint32_t member)
{
    struct inventory *inventory = &inventories[agent];

    inventory->parts[inventory->part_count++] = (struct inventory_part){
        .generation = g, .member = member, .largest_shard = 30, .roster = roster};
}

static int
fresh(void **unused)
{
    static const uint32_t agents[6] = {0, 1, 2, 3, 4, 5};

    memset(inventories, 0, sizeof inventories);
    no_room[0] = 0;
    if (cairn_roster_build(agents, NULL, 6, 1, 3, &roster) != CAIRN_OK)
        return 1;
    choice = (struct choice){.generation = g, .roster = roster};
    for (uint32_t a = 0; a < AGENTS; a++) {
        inventories[a].known = true;
        inventories[a].self.active = 0x10000;
        if (a < 6)
            hold(a, a);
    }
    return 0;
}

static int
done(void **unused)
{
    plan_fini(&plan);
    cairn_roster_drop(roster);
    return 0;
}

static void
lose(uint32_t agent, bool dead)
{
    inventories[agent].part_count = 0;
    inventories[agent].known = !dead;
}

static cairn_err
make(bool only_bad)
{
    plan_fini(&plan);
    return members_plan(&options, inventories, &choice, no_room, only_bad, &plan);
}

static void
nothing_to_do(void **unused)
{
    assert_int_equal(make(false), CAIRN_OK);
    assert_false(members_plan_has_work(&plan));
    for (uint32_t m = 0; m < 6; m++)
        assert_int_equal(plan.holders[m], m);
}

static void
targets(void **unused)
{
    lose(2, false);
    assert_int_equal(make(false), CAIRN_OK);
    assert_int_equal(plan.targets[2], 2); /* its own agent is back */
    assert_true(members_plan_has_work(&plan));
    no_room[0] = 1 << 2;
    assert_int_equal(make(false), CAIRN_OK);
    assert_int_equal(plan.targets[2], 6); /* a spare */
    lose(3, true);
    assert_int_equal(make(false), CAIRN_OK);
    assert_int_equal(plan.targets[2], 6);
    assert_int_equal(plan.targets[3], 7); /* the other spare */
    lose(6, true);
    lose(7, true);
    no_room[0] |= 1; /* agent 0 */
    assert_int_equal(make(false), CAIRN_OK);
    /* of the other group, so that no group loses two parts with one agent */
    assert_int_not_equal(roster->members[plan.targets[2]].group, roster->members[2].group);
    assert_int_not_equal(roster->members[plan.targets[3]].group, roster->members[3].group);
    no_room[0] = 0xff;
    assert_int_equal(make(false), CAIRN_LOST);
    assert_int_equal(make(true), CAIRN_OK); /* a verify leaves lost parts lost */
    assert_false(members_plan_has_work(&plan));
}

static void
bad_blocks(void **unused)
{
    struct cairn_bad_block bad[2] = {{.area = CAIRN_AREA_DATA, .block = 3},
                                     {.area = CAIRN_AREA_PARITY, .block = 4}};

    inventories[4].parts[0].bad = bad;
    inventories[4].parts[0].bad_count = inventories[4].parts[0].bad_listed = 2;
    assert_int_equal(make(true), CAIRN_OK);
    assert_int_equal(plan.targets[4], 4);
    assert_int_equal(plan.bad_count, 2);
    assert_int_equal(plan.bad[1].position, 4); /* the member */
    assert_int_equal(plan.bad[1].block, 4);
    hold(6, 4); /* an undamaged copy: nothing needs to be mended */
    assert_int_equal(make(true), CAIRN_OK);
    assert_int_equal(plan.holders[4], 6);
    assert_int_equal(plan.bad_count, 0);
}

static void
assert_agents(const struct cairn_roster *actual, uint32_t count, const uint32_t *agents)
{
    assert_int_equal(actual->member_count, count);
    for (uint32_t m = 0; m < count; m++)
        assert_int_equal(actual->members[m].agent, agents[m]);
}

/* An operator's restore: those that answered, spares that hold a lost member's part, no unused
 * members. */
static void
answering(void **unused)
{
    const uint32_t expected[] = {0, 1, 6, 3, 4, 5}, fewer[] = {0, 1, 3, 4, 5};
    struct members_basis basis = {
        .inventories = inventories, .old = roster, .plan = &plan, .generation = g};
    struct cairn_roster *next = NULL;

    lose(2, true);
    assert_int_equal(make(false), CAIRN_OK);
    plan.holders[2] = plan.targets[2]; /* it is rebuilt */
    assert_int_equal(members_next(&options, &basis, &next, text, sizeof text), CAIRN_OK);
    assert_agents(next, 6, expected);
    assert_string_equal(text, "");
    cairn_roster_drop(next);
    basis.plan = NULL; /* nothing in memory: no targets */
    assert_int_equal(members_next(&options, &basis, &next, text, sizeof text), CAIRN_OK);
    assert_agents(next, 5, fewer);
    cairn_roster_drop(next);
    basis.old = NULL; /* the first epoch */
    assert_int_equal(members_next(&options, &basis, &next, text, sizeof text), CAIRN_OK);
    assert_agents(next, 5, fewer);
    cairn_roster_drop(next);
    for (uint32_t a = 0; a < AGENTS; a++)
        inventories[a].known = a == 4;
    assert_int_equal(members_next(&options, &basis, &next, text, sizeof text), CAIRN_OK);
    assert_int_equal(next->member_count, 1);
    assert_int_equal(next->groups[0].parity, 0);
    assert_non_null(strstr(text, "with 1 nodes a group survives only 0 losses, not 1"));
    cairn_roster_drop(next);
    inventories[4].known = false;
    assert_int_equal(members_next(&options, &basis, &next, text, sizeof text), CAIRN_LOST);
}

static void
late(void **unused)
{
    const uint32_t expected[] = {0, 1, 2, 3, 4, 5, 7};
    struct members_basis basis = {.inventories = inventories,
                                  .old = roster,
                                  .epoch = 0x10000,
                                  .joining = true,
                                  .generation = g};
    struct cairn_roster *next = NULL;

    for (uint32_t a = 0; a < AGENTS; a++)
        inventories[a].self.ranks = a != 6;
    assert_true(members_may_change(&options, inventories, roster, 0x10000));
    assert_int_equal(members_next(&options, &basis, &next, text, sizeof text), CAIRN_OK);
    assert_agents(next, 7, expected);
    cairn_roster_drop(next);
    inventories[1].self.world = 8; /* a rank is missing */
    assert_false(members_may_change(&options, inventories, roster, 0x10000));
    inventories[1].self.world = 7;
    assert_true(members_may_change(&options, inventories, roster, 0x10000));
    inventories[7].self.world = 6; /* another job */
    assert_false(members_may_change(&options, inventories, roster, 0x10000));
    inventories[7].self.world = 0;
    inventories[3].known = false; /* a member is silent */
    assert_false(members_may_change(&options, inventories, roster, 0x10000));
    assert_int_equal(members_next(&options, &basis, &next, text, sizeof text), CAIRN_LOST);
}

/* A job on fewer nodes than there are agents. */
static void
idle(void **unused)
{
    const uint32_t expected[] = {0, 1, 3, 4};
    struct members_basis basis = {.inventories = inventories,
                                  .old = roster,
                                  .epoch = 0x10000,
                                  .joining = true,
                                  .generation = g};
    struct cairn_roster *next = NULL;

    for (uint32_t a = 0; a < AGENTS; a++)
        inventories[a].self.ranks = a < 5 && a != 2;
    assert_false(members_may_change(&options, inventories, roster, 0x10000));
    inventories[0].self.world = 4; /* all its ranks are attached */
    assert_int_equal(members_next(&options, &basis, &next, text, sizeof text), CAIRN_OK);
    assert_agents(next, 4, expected);
    cairn_roster_drop(next);
    inventories[0].self.world = 5; /* one will come */
    assert_false(members_may_change(&options, inventories, roster, 0x10000));
    inventories[2].self.ranks = 1;
    assert_true(members_may_change(&options, inventories, roster, 0x10000));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fresh, done)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(nothing_to_do), CASE(targets), CASE(bad_blocks),
        CASE(answering),     CASE(late),    CASE(idle),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
