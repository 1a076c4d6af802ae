/* tests/unit/erasure/test_stripe.c - every position, stripe, chunk and block of many groups. */
#include "erasure/stripe.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

static uint64_t random_state = 7;

static struct cairn_geometry
geometry_of(uint32_t k, uint32_t m, uint32_t block_bytes)
{
    struct cairn_geometry geometry;

    assert_int_equal(cairn_geometry_init(k, m, block_bytes, &geometry), CAIRN_OK);
    assert_int_equal(geometry.n, k + m);
    return geometry;
}

/* The picture in stripe.h, cell by cell: P0, P1 as 'A', 'B', chunks as '0' … '3'. */
static void
picture_of_six_members_is_true(void **state)
{
    static const char *picture[] = {"AB3210", "0AB321", "10AB32", "210AB3", "3210AB", "B3210A"};
    struct cairn_geometry g = geometry_of(4, 2, 1);

    for (uint32_t s = 0; s < 6; s++)
        for (uint32_t p = 0; p < 6; p++) {
            char cell = picture[s][p];

            if (cell >= 'A') {
                assert_int_equal(cairn_stripe_parity_row(&g, s, p), cell - 'A');
                assert_int_equal(cairn_stripe_shard(&g, s, p), 4 + cell - 'A');
                assert_int_equal(cairn_stripe_chunk(&g, s, p), CAIRN_STRIPE_NONE);
                assert_int_equal(cairn_stripe_data_index(&g, s, p), CAIRN_STRIPE_NONE);
            } else {
                assert_int_equal(cairn_stripe_parity_row(&g, s, p), CAIRN_STRIPE_NONE);
                assert_int_equal(cairn_stripe_chunk(&g, s, p), cell - '0');
                assert_int_equal(cairn_stripe_data_index(&g, s, p), 3 - (cell - '0'));
                assert_int_equal(cairn_stripe_shard(&g, s, p), 3 - (cell - '0'));
            }
        }
}

static void
every_mapping_has_its_reverse(void **state)
{
    for (uint32_t k = 1; k <= 64; k++)
        for (uint32_t m = 0; k + m <= 64; m += m < 5 ? 1 : 9) {
            struct cairn_geometry g = geometry_of(k, m, 1);
            uint64_t all = cairn_geometry_all(&g);

            assert_int_equal(__builtin_popcountll(all), g.n);
            for (uint32_t s = 0; s < g.n; s++) {
                uint64_t seen = 0, some = splitmix(&random_state) & all, expected = 0;

                for (uint32_t r = 0; r < m; r++)
                    assert_int_equal(cairn_stripe_parity_position(&g, s, r), (s + r) % g.n);
                for (uint32_t p = 0; p < g.n; p++) {
                    uint32_t shard = cairn_stripe_shard(&g, s, p);
                    uint32_t row = cairn_stripe_parity_row(&g, s, p);
                    uint32_t chunk = cairn_stripe_chunk(&g, s, p);

                    assert_int_equal(shard, (p + 2 * g.n - s - m) % g.n);
                    assert_int_equal(cairn_stripe_position(&g, s, shard), p);
                    seen |= (uint64_t)1 << shard;
                    if (some >> p & 1)
                        expected |= (uint64_t)1 << shard;
                    assert_true((row == CAIRN_STRIPE_NONE) != (chunk == CAIRN_STRIPE_NONE));
                    if (row != CAIRN_STRIPE_NONE) {
                        assert_int_equal(shard, k + row);
                        assert_int_equal(cairn_stripe_parity_position(&g, s, row), p);
                        assert_int_equal(cairn_slot_stripe(&g, p, row), s);
                    } else {
                        assert_true(chunk < k);
                        assert_int_equal(cairn_chunk_stripe(&g, p, chunk), s);
                        assert_int_equal(cairn_stripe_data_index(&g, s, p), shard);
                    }
                }
                assert_true(seen == all);
                assert_true(cairn_stripe_shards_of(&g, s, some) == expected);
                assert_true(cairn_stripe_positions_of(&g, s, expected) == some);
            }
        }
}

/* The positions whose data is folded into a line of a stripe's parity, as a set of bits. */
static uint64_t
contributors(const struct cairn_stripes *stripes, uint32_t stripe, uint64_t line)
{
    uint64_t set = 0;

    for (uint32_t p = 0; p < stripes->geometry.n; p++)
        if (cairn_stripe_chunk(&stripes->geometry, stripe, p) != CAIRN_STRIPE_NONE &&
            line < cairn_stripes_blocks(stripes, stripe, p))
            set |= (uint64_t)1 << p;
    return set;
}

/* Checks all lengths and places of a group against what the definition says, block by block. */
static void
check_lengths(const struct cairn_geometry *g, const uint64_t *shard_bytes)
{
    struct cairn_stripes stripes;
    uint64_t longest[CAIRN_SHARDS_MAX] = {0}, counted[CAIRN_SHARDS_MAX] = {0};

    assert_int_equal(cairn_stripes_init(g, shard_bytes, &stripes), CAIRN_OK);
    for (uint32_t p = 0; p < g->n; p++) {
        uint64_t chunk_bytes = (shard_bytes[p] + g->k - 1) / g->k; /* ceil, then up to a block */
        uint64_t stride = (chunk_bytes + g->block_bytes - 1) / g->block_bytes, sum = 0;

        assert_true(cairn_shard_chunk_blocks(g, shard_bytes[p]) == stride);
        for (uint64_t b = 0; b < cairn_shard_blocks(g, shard_bytes[p]); b++) {
            struct cairn_place place;
            uint64_t first;

            assert_int_equal(cairn_stripes_place(&stripes, p, CAIRN_AREA_DATA, b, &place),
                             CAIRN_OK);
            assert_true(b == place.chunk * stride + place.line);
            assert_true(place.line < cairn_chunk_blocks(g, shard_bytes[p], place.chunk));
            assert_int_equal(place.stripe, (p + 1 + place.chunk) % g->n);
            assert_int_equal(place.shard, cairn_stripe_data_index(g, place.stripe, p));
            assert_int_equal(cairn_stripes_area(&stripes, place.stripe, p, &first),
                             CAIRN_AREA_DATA);
            assert_true(first + place.line == b);
            assert_true(contributors(&stripes, place.stripe, place.line) >> p & 1);
            if (place.line + 1 > longest[place.stripe])
                longest[place.stripe] = place.line + 1;
            counted[place.stripe]++;
        }
        for (uint32_t c = 0; c < g->k; c++)
            sum += cairn_chunk_blocks(g, shard_bytes[p], c);
        assert_true(sum == cairn_stripes_area_blocks(&stripes, p, CAIRN_AREA_DATA));
    }
    for (uint32_t s = 0; s < g->n; s++) {
        uint64_t contributed = 0;

        assert_true(stripes.parity_blocks[s] == longest[s]);
        for (uint64_t line = 0; line <= longest[s]; line++)
            contributed += (uint64_t)__builtin_popcountll(contributors(&stripes, s, line));
        assert_true(contributed == counted[s]);
    }
    for (uint32_t p = 0; p < g->n; p++) {
        uint64_t b = 0;

        for (uint32_t slot = 0; slot < g->m; slot++) {
            uint32_t s = cairn_slot_stripe(g, p, slot);
            uint64_t first;

            assert_int_equal(cairn_stripes_area(&stripes, s, p, &first), CAIRN_AREA_PARITY);
            assert_true(first == b);
            assert_true(cairn_stripes_blocks(&stripes, s, p) == longest[s]);
            for (uint64_t line = 0; line < longest[s]; line++, b++) {
                struct cairn_place place;

                assert_int_equal(cairn_stripes_place(&stripes, p, CAIRN_AREA_PARITY, b, &place),
                                 CAIRN_OK);
                assert_int_equal(place.stripe, s);
                assert_int_equal(place.shard, g->k + slot);
                assert_int_equal(place.chunk, slot);
                assert_true(place.line == line);
            }
        }
        assert_true(b == cairn_stripes_area_blocks(&stripes, p, CAIRN_AREA_PARITY));
    }
}

static void
lengths_and_places_agree(void **state)
{
    for (uint32_t k = 1; k <= 9; k++)
        for (uint32_t m = 0; m <= 4; m++)
            for (int round = 0; round < 12; round++) {
                struct cairn_geometry g =
                    geometry_of(k, m, 1 + (uint32_t)(splitmix(&random_state) % 9));
                uint64_t shard_bytes[CAIRN_SHARDS_MAX];

                for (uint32_t p = 0; p < g.n; p++)
                    shard_bytes[p] =
                        round == 0 ? 0 : splitmix(&random_state) % (round < 4 ? 12 : 300);
                if (round == 11)
                    for (uint32_t p = 0; p < g.n; p++)
                        shard_bytes[p] = 10 * g.k * g.block_bytes;
                check_lengths(&g, shard_bytes);
            }
}

static void
equal_shards_cost_parity_over_data(void **state)
{
    struct cairn_geometry g = geometry_of(4, 2, 65536);
    struct cairn_stripes stripes;
    uint64_t shard_bytes[6];

    for (uint32_t p = 0; p < 6; p++)
        shard_bytes[p] = (uint64_t)400 * 65536;
    assert_int_equal(cairn_stripes_init(&g, shard_bytes, &stripes), CAIRN_OK);
    for (uint32_t p = 0; p < 6; p++)
        assert_int_equal(cairn_stripes_area_blocks(&stripes, p, CAIRN_AREA_PARITY), 200);
}

static void
what_does_not_exist_is_refused(void **state)
{
    struct cairn_geometry g;
    struct cairn_stripes stripes;
    struct cairn_place place;
    uint64_t shard_bytes[3] = {100, 7, 0};

    assert_int_equal(cairn_geometry_init(0, 1, 64, &g), CAIRN_INVAL);
    assert_int_equal(cairn_geometry_init(63, 2, 64, &g), CAIRN_INVAL);
    assert_int_equal(cairn_geometry_init(UINT32_MAX, 2, 64, &g), CAIRN_INVAL);
    assert_int_equal(cairn_geometry_init(2, UINT32_MAX, 64, &g), CAIRN_INVAL);
    assert_int_equal(cairn_geometry_init(2, 1, 0, &g), CAIRN_INVAL);
    g = geometry_of(2, 1, 10);
    assert_int_equal(cairn_stripes_init(&g, shard_bytes, &stripes), CAIRN_OK);
    assert_int_equal(cairn_stripes_place(&stripes, 3, CAIRN_AREA_DATA, 0, &place), CAIRN_INVAL);
    assert_int_equal(cairn_stripes_place(&stripes, 0, CAIRN_AREA_DATA, 10, &place), CAIRN_INVAL);
    assert_int_equal(cairn_stripes_place(&stripes, 0, CAIRN_AREA_DATA, 9, &place), CAIRN_OK);
    assert_int_equal(cairn_stripes_place(&stripes, 2, CAIRN_AREA_DATA, 0, &place), CAIRN_INVAL);
    assert_int_equal(cairn_stripes_place(&stripes, 0, CAIRN_AREA_PARITY, UINT64_MAX, &place),
                     CAIRN_INVAL);
    assert_int_equal(cairn_stripes_place(&stripes, 0, (enum cairn_area)2, 0, &place), CAIRN_INVAL);
    shard_bytes[1] = UINT64_MAX;
    assert_int_equal(cairn_stripes_init(&g, shard_bytes, &stripes), CAIRN_INVAL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(picture_of_six_members_is_true),
        cmocka_unit_test(every_mapping_has_its_reverse),
        cmocka_unit_test(lengths_and_places_agree),
        cmocka_unit_test(equal_shards_cost_parity_over_data),
        cmocka_unit_test(what_does_not_exist_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
