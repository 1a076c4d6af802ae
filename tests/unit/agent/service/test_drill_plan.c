/*
 * tests/unit/agent/service/test_drill_plan.c - a drill decodes each lost block once, for all losses
 * of small groups with uneven shards, and from k members that are left.
 */
#include <string.h>

#include "agent/service/drill_plan.h"
#include "base/limits.h"
#include "tests/support/cmocka.h"

enum { BLOCKS_MAX = 64, LINES_MAX = 3 };

static void
make(uint32_t k, uint32_t m, struct cairn_stripes *out)
{
    struct cairn_geometry geometry;
    uint64_t bytes[CAIRN_SHARDS_MAX];

    assert_int_equal(cairn_geometry_init(k, m, CAIRN_BLOCK_BYTES, &geometry), CAIRN_OK);
    for (uint32_t p = 0; p < k + m; p++) /* one of them empty */
        bytes[p] = (uint64_t)(p * 7 % 24) * CAIRN_BLOCK_BYTES;
    assert_int_equal(cairn_stripes_init(&geometry, bytes, out), CAIRN_OK);
}

static uint32_t
count_of(uint64_t positions)
{
    return (uint32_t)__builtin_popcountll(positions);
}

/* Goes through a drill, and counts how often each lost data block is decoded. */
static void
drill(const struct cairn_stripes *stripes, uint64_t lost)
{
    uint32_t seen[CAIRN_SHARDS_MAX][BLOCKS_MAX] = {{0}};
    const uint32_t n = stripes->geometry.n;
    struct drill_place place = {0};
    struct drill_lines lines;
    uint64_t decoded = 0;

    while (drill_next(stripes, lost, LINES_MAX, &place, &lines)) {
        assert_true(lines.count >= 1 && lines.count <= LINES_MAX);
        assert_int_equal(lines.wanted & ~lost, 0);
        for (uint32_t p = 0; p < n; p++) {
            uint64_t first;
            uint32_t count = drill_blocks(stripes, &lines, p);

            if (!((lines.wanted >> p) & 1))
                continue;
            assert_int_equal(cairn_stripes_area(stripes, lines.stripe, p, &first), CAIRN_AREA_DATA);
            assert_true(count >= 1);
            for (uint32_t i = 0; i < count; i++)
                seen[p][first + lines.first + i]++;
            decoded += count;
        }
        place.line = lines.first + lines.count;
    }
    for (uint32_t p = 0; p < n; p++)
        for (uint64_t b = 0; b < stripes->shard_blocks[p]; b++)
            assert_int_equal(seen[p][b], (lost >> p) & 1);
    assert_int_equal(decoded, drill_total_blocks(stripes, lost));
}

static void
each_lost_block_is_decoded_once(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {2, 1}, {3, 2}, {4, 3}, {5, 0}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct cairn_stripes stripes;

        make(shapes[i][0], shapes[i][1], &stripes);
        for (uint64_t lost = 0; lost < UINT64_C(1) << stripes.geometry.n; lost++)
            if (count_of(lost) <= stripes.geometry.m)
                drill(&stripes, lost);
    }
}

static void
sources_are_k_that_are_left(void **state)
{
    struct cairn_stripes stripes;

    make(4, 3, &stripes);
    for (uint64_t without = 0; without < 1 << 7; without++)
        for (uint32_t own = 0; own < 7; own++) {
            uint64_t sources;
            bool enough = drill_sources(&stripes.geometry, without, own, &sources);

            assert_int_equal(enough, count_of(without) <= 3);
            if (!enough)
                continue;
            assert_int_equal(count_of(sources), 4);
            assert_int_equal(sources & without, 0);
            assert_int_equal(sources >> 7, 0);
            if (!((without >> own) & 1))
                assert_true((sources >> own) & 1);
        }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_lost_block_is_decoded_once),
        cmocka_unit_test(sources_are_k_that_are_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
