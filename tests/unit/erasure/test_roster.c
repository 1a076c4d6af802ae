/*
 * tests/unit/erasure/test_roster.c - rosters: built over domains, packed, and refused when
 * they are not one.
 */
#include "erasure/roster.h"
#include "tests/support/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PACKED_MAX = 65536 };

static struct cairn_roster *
built(uint32_t members, uint32_t parity, uint32_t group_size, uint32_t domains)
{
    static uint32_t agents[CAIRN_NODES_MAX];
    static char names[64][8];
    static const char *labels[CAIRN_NODES_MAX];
    struct cairn_roster *table = NULL;

    for (uint32_t i = 0; i < members; i++) {
        agents[i] = 3 * i + 1; /* members are not agents */
        if (domains)
            snprintf(names[i % domains], sizeof names[0], "r%u", i % domains);
        labels[i] = domains ? names[i % domains] : NULL;
    }
    assert_int_equal(cairn_roster_build(agents, labels, members, parity, group_size, &table),
                     CAIRN_OK);
    return table;
}

/* Every member is in one group, at the position that the group says. */
static void
assert_whole(const struct cairn_roster *table)
{
    uint32_t placed = 0;

    for (uint32_t g = 0; g < table->group_count; g++) {
        const struct cairn_roster_group *group = &table->groups[g];

        assert_true(group->count >= 1 && group->count <= CAIRN_SHARDS_MAX);
        assert_true(group->parity < group->count);
        for (uint32_t p = 0; p < group->count; p++) {
            assert_true(group->members[p] < table->member_count);
            assert_int_equal(table->members[group->members[p]].group, g);
            assert_int_equal(table->members[group->members[p]].position, p);
            placed++;
        }
    }
    assert_int_equal(placed, table->member_count);
}

static void
sizes(void **unused)
{
    for (uint32_t members = 1; members <= 40; members++)
        for (uint32_t parity = 0; parity < 4; parity++) {
            uint32_t m = parity < members ? parity : members - 1;
            struct cairn_roster *table = built(members, m, 8, members % 5);

            assert_whole(table);
            assert_int_equal(table->member_count, members);
            for (uint32_t i = 0; i < members; i++) {
                assert_int_equal(table->members[i].agent, 3 * i + 1);
                assert_int_equal(cairn_roster_member_of(table, 3 * i + 1), i);
                assert_ptr_equal(cairn_roster_group_of(table, i),
                                 &table->groups[table->members[i].group]);
            }
            assert_int_equal(cairn_roster_member_of(table, 3 * members + 1), UINT32_MAX);
            cairn_roster_drop(table);
        }
}

/* With as many domains as a group has members, none has two of one domain. */
static void
domains(void **unused)
{
    struct cairn_roster *table = built(24, 2, 6, 6);

    for (uint32_t g = 0; g < table->group_count; g++) {
        uint32_t seen = 0;

        for (uint32_t p = 0; p < table->groups[g].count; p++) {
            uint32_t domain = table->groups[g].members[p] % 6;

            assert_false(seen & 1u << domain);
            seen |= 1u << domain;
        }
    }
    cairn_roster_drop(table);
}

static void
refused(void **unused)
{
    uint32_t agent = 0;
    struct cairn_roster *table = (struct cairn_roster *)&agent;

    assert_int_equal(cairn_roster_build(&agent, NULL, 0, 0, 4, &table), CAIRN_INVAL);
    assert_int_equal(cairn_roster_build(&agent, NULL, CAIRN_NODES_MAX + 1, 0, 4, &table),
                     CAIRN_INVAL);
    assert_int_equal(cairn_roster_build(&agent, NULL, 1, 4, 4, &table), CAIRN_INVAL);
    assert_ptr_equal(table, &agent);
}

static void
code(struct cairn_codec *codec, void *table)
{
    cairn_roster_code(codec, table);
}

static size_t
packed(const struct cairn_roster *table, uint8_t *bytes)
{
    size_t len = 0;

    assert_int_equal(cairn_codec_pack_into(code, &table, bytes, PACKED_MAX, &len), CAIRN_OK);
    return len;
}

static cairn_err
read_back(const uint8_t *bytes, size_t len, struct cairn_roster **table)
{
    struct cairn_roster *read = NULL;
    cairn_err err = cairn_codec_unpack(code, &read, bytes, len);

    if (err)
        cairn_roster_drop(read);
    else
        *table = read;
    return err;
}

static void
round_trip(void **unused)
{
    static uint8_t bytes[PACKED_MAX], again[PACKED_MAX];

    for (uint32_t members = 1; members < 200; members += 13) {
        struct cairn_roster *table = built(members, members > 2 ? 2 : 0, 8, 7), *back = NULL;
        size_t len = packed(table, bytes);

        assert_int_equal(read_back(bytes, len, &back), CAIRN_OK);
        assert_whole(back);
        assert_int_equal(packed(back, again), len);
        assert_memory_equal(bytes, again, len);
        cairn_roster_drop(back);
        for (size_t cut = 0; cut < len; cut++) {
            uint8_t *exact = malloc(cut + 1);

            assert_non_null(exact);
            memcpy(exact, bytes, cut);
            assert_int_not_equal(read_back(exact, cut, &back), CAIRN_OK);
            free(exact);
        }
        cairn_roster_drop(table);
    }
}

static void
put(uint8_t *bytes, size_t at, uint32_t value)
{
    for (int b = 0; b < 4; b++)
        bytes[at + (size_t)b] = (uint8_t)(value >> (8 * b));
}

/* One group of four: u32 members, groups, 4 agents, count, parity, 4 members. */
static void
hostile(void **unused)
{
    static const struct {
        size_t at;
        uint32_t value;
    } edits[] = {
        {0, 0},           {0, 5},           {0, UINT32_MAX}, {0, CAIRN_NODES_MAX + 1},
        {4, 0},           {4, 2},           {4, UINT32_MAX}, {8, CAIRN_NODES_MAX},
        {20, UINT32_MAX}, {24, 0},          {24, 3},         {24, 5},
        {24, 65},         {24, UINT32_MAX}, {28, 4},         {28, UINT32_MAX},
        {32, 1},          {36, 0},          {44, 4},         {44, UINT32_MAX},
    };
    struct cairn_roster *table = built(4, 1, 4, 0), *back = NULL;
    static uint8_t bytes[PACKED_MAX];
    size_t len = packed(table, bytes);

    assert_int_equal(len, 48);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        uint8_t *copy = malloc(len);

        assert_non_null(copy);
        memcpy(copy, bytes, len);
        put(copy, edits[i].at, edits[i].value);
        if (read_back(copy, len, &back) == CAIRN_OK)
            fail_msg("edit %zu is taken", i);
        free(copy);
    }
    cairn_roster_drop(table);
}

static void
references(void **unused)
{
    struct cairn_roster *table = built(5, 1, 5, 0);

    assert_ptr_equal(cairn_roster_hold(table), table);
    assert_int_equal(table->references, 2);
    cairn_roster_drop(table);
    assert_int_equal(table->member_count, 5);
    cairn_roster_drop(table);
    cairn_roster_drop(NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),      cmocka_unit_test(domains), cmocka_unit_test(refused),
        cmocka_unit_test(round_trip), cmocka_unit_test(hostile), cmocka_unit_test(references),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
