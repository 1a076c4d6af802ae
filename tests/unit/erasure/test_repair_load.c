/* tests/unit/erasure/test_repair_load.c - the repair schedule spreads its load and refuses wrong
 * requests. */
#include "erasure/repair.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <stdlib.h>

static uint64_t random_state = 11;

static uint64_t
bit(uint32_t position)
{
    return (uint64_t)1 << position;
}

/* The busiest survivor has at most 5 % and a few items more than the mean, in work and in reads. */
static void
load_is_even(void **state)
{
    static const uint32_t codes[][2] = {{4, 2}, {8, 2}, {8, 3}, {10, 4}, {2, 1}, {1, 3}, {60, 4}};

    for (size_t c = 0; c < sizeof codes / sizeof codes[0]; c++)
        for (int round = 0; round < 8; round++) {
            uint32_t k = codes[c][0], m = codes[c][1], n = k + m;
            struct cairn_geometry geometry;
            struct cairn_stripes stripes;
            struct cairn_repair repair;
            struct cairn_repair_item item;
            struct cairn_repair_totals totals;
            struct cairn_repair_request request = {.stripes = &stripes};
            uint64_t shard_bytes[CAIRN_SHARDS_MAX], work[CAIRN_SHARDS_MAX] = {0};
            uint64_t read[CAIRN_SHARDS_MAX] = {0}, lost = 0, slack;
            uint32_t survivors, lost_count = 1 + (uint32_t)round % m;

            for (uint32_t p = 0; p < n; p++)
                shard_bytes[p] =
                    (uint64_t)k * 2000 * 65536 - (round < 4 ? 0 : splitmix(&random_state) % 65536);
            while (__builtin_popcountll(lost) < (int)lost_count)
                lost |= bit((uint32_t)(splitmix(&random_state) % n));
            assert_int_equal(cairn_geometry_init(k, m, 65536, &geometry), CAIRN_OK);
            assert_int_equal(cairn_stripes_init(&geometry, shard_bytes, &stripes), CAIRN_OK);
            request.intact = cairn_geometry_all(&geometry) & ~lost;
            request.rebuild_data = request.rebuild_parity = lost;
            assert_int_equal(cairn_repair_init(&request, NULL, &totals, &repair), CAIRN_OK);
            while (cairn_repair_next(&repair, &item)) {
                work[item.worker] += item.line_count * (uint64_t)__builtin_popcountll(item.rebuild);
                for (uint32_t p = 0; p < n; p++)
                    read[p] += item.reads >> p & 1 ? item.line_count : 0;
            }
            survivors = n - lost_count;
            slack = 3 * CAIRN_MESSAGE_BLOCKS_MAX * lost_count;
            for (uint32_t p = 0; p < n; p++) {
                if (lost & bit(p)) {
                    assert_true(work[p] == 0 && read[p] == 0);
                    continue;
                }
                assert_true(work[p] <= totals.rebuilt_blocks * 105 / 100 / survivors + slack);
                assert_true(work[p] + slack >= totals.rebuilt_blocks * 95 / 100 / survivors);
                assert_true(read[p] <= totals.read_blocks * 105 / 100 / survivors + slack);
                assert_true(read[p] + slack >= totals.read_blocks * 95 / 100 / survivors);
            }
        }
}

static void
wrong_requests_are_refused(void **state)
{
    struct cairn_geometry geometry;
    struct cairn_stripes stripes;
    struct cairn_repair repair;
    struct cairn_repair_item item;
    uint64_t shard_bytes[6] = {100, 100, 100, 100, 100, 100};
    struct cairn_bad_block bad = {.position = 6};
    struct cairn_repair_request request = {.stripes = &stripes, .intact = 0x3f};

    assert_int_equal(cairn_geometry_init(4, 2, 10, &geometry), CAIRN_OK);
    assert_int_equal(cairn_stripes_init(&geometry, shard_bytes, &stripes), CAIRN_OK);
    assert_int_equal(cairn_repair_init(&request, NULL, NULL, &repair), CAIRN_OK);
    assert_false(cairn_repair_next(&repair, &item)); /* nothing lost, nothing to do */
    request.intact = 0x7f;
    assert_int_equal(cairn_repair_init(&request, NULL, NULL, &repair), CAIRN_INVAL);
    request.intact = 0x3f;
    request.rebuild_data = 1;
    assert_int_equal(cairn_repair_init(&request, NULL, NULL, &repair), CAIRN_INVAL);
    request.intact = 0x3e;
    request.rebuild_parity = 0x40;
    assert_int_equal(cairn_repair_init(&request, NULL, NULL, &repair), CAIRN_INVAL);
    request.rebuild_parity = 0;
    request.bad = &bad;
    request.bad_count = 1;
    assert_int_equal(cairn_repair_init(&request, NULL, NULL, &repair), CAIRN_INVAL);
    bad.position = 1;
    bad.block = 10;
    assert_int_equal(cairn_repair_init(&request, NULL, NULL, &repair), CAIRN_INVAL);
    bad.block = 9;
    assert_int_equal(cairn_repair_init(&request, NULL, NULL, &repair), CAIRN_OK);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_is_even),
        cmocka_unit_test(wrong_requests_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
