/* tests/unit/replan/assign/test_pack.c - every token in one micro-batch, none over the cap, chunks
 * in order, few micro-batches. */
#include <math.h>
#include <stdlib.h>

#include "replan/assign/pack.h"
#include "tests/support/cmocka.h"
#include "tests/unit/replan/small.h"

enum { PACKINGS = 2000, SEQUENCES_MAX = 60, SMALL_MAX = 7 };

static const struct cairn_assign_problem cost = {.square = 2e-4, .linear = 1, .constant = 3};

static double
whole_ms(uint64_t tokens)
{
    double s = (double)tokens;

    return cost.square * s * s + cost.linear * s + cost.constant;
}

/* By the rules, and the totals as they say. */
static void
check(const struct cairn_packing *packing, const uint64_t *tokens, uint32_t count, uint64_t cap)
{
    uint64_t *held = calloc((size_t)packing->microbatch_count + 1, sizeof(*held));
    double *costs = calloc((size_t)packing->microbatch_count + 1, sizeof(*costs)), sum = 0,
           largest = 0;
    uint32_t at = 0;

    assert_non_null(held);
    assert_non_null(costs);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t next = 0;
        uint32_t before = 0;

        for (; at < packing->piece_count && packing->pieces[at].sequence == i; at++) {
            const struct cairn_packed_piece *piece = &packing->pieces[at];
            double ms = whole_ms(piece->end_token) -
                        (piece->first_token > 0 ? whole_ms(piece->first_token) : 0);

            assert_true(piece->first_token == next && piece->end_token > next);
            assert_true(next == 0 || piece->microbatch > before);
            assert_true(piece->microbatch < packing->microbatch_count);
            next = piece->end_token;
            before = piece->microbatch;
            held[before] += piece->end_token - piece->first_token;
            costs[before] += ms;
            sum += ms;
        }
        assert_true(next == tokens[i]);
    }
    assert_int_equal(at, packing->piece_count);
    for (uint32_t i = 0; i < packing->microbatch_count; i++) {
        assert_true(held[i] > 0 && held[i] <= cap);
        largest = fmax(largest, costs[i]);
    }
    assert_true(fabs(sum - packing->sum_ms) <= 1e-9 * sum + 1e-9);
    assert_true(fabs(largest - packing->largest_ms) <= 1e-9 * largest + 1e-9);
    assert_true(packing->microbatch_count >= packing->microbatches_min);
    free(held);
    free(costs);
}

static void
test_random(void **test_state)
{
    uint32_t fewest = 0;

    for (uint64_t seed = 0; seed < PACKINGS; seed++) {
        uint64_t state = seed + 3, tokens[SEQUENCES_MAX], cap;
        uint32_t count = random_below(&state, SEQUENCES_MAX + 1);
        struct cairn_packing packing;

        cap = 1 + random_below(&state, 1000);
        for (uint32_t i = 0; i < count; i++)
            tokens[i] = 1 + (random_below(&state, 8) == 0 ? random_below(&state, 5000)
                                                          : random_below(&state, 300));
        assert_int_equal(cairn_pack(&cost, tokens, count, cap, &packing), CAIRN_OK);
        check(&packing, tokens, count, cap);
        fewest += packing.microbatch_count == packing.microbatches_min;
        cairn_packing_fini(&packing);
    }
    print_message("%u of %u packings have the fewest micro-batches possible\n", fewest, PACKINGS);
    assert_true(fewest > PACKINGS * 6 / 10);
}

/* The fewest micro-batches of whole sequences, all ways tried. */
static uint32_t
exhaustive_fewest(const uint64_t *tokens, uint32_t count, uint64_t cap)
{
    uint32_t chosen[SMALL_MAX] = {0}, at, best = count;

    do {
        uint64_t held[SMALL_MAX] = {0};
        uint32_t used = 0;
        bool fits = true;

        for (uint32_t i = 0; i < count; i++) {
            held[chosen[i]] += tokens[i];
            fits = fits && held[chosen[i]] <= cap;
        }
        for (uint32_t i = 0; i < count; i++)
            used += held[i] > 0;
        best = fits && used < best ? used : best;
        for (at = 0; at < count && ++chosen[at] == count; at++)
            chosen[at] = 0;
    } while (at < count);
    return best;
}

static void
test_against_all(void **test_state)
{
    uint32_t best = 0, more = 0;

    for (uint64_t seed = 0; seed < 40; seed++) {
        uint64_t state = seed + 77, tokens[SMALL_MAX];
        struct cairn_packing packing;
        uint32_t fewest;

        for (uint32_t i = 0; i < SMALL_MAX - 1; i++)
            tokens[i] = 1 + random_below(&state, 100);
        fewest = exhaustive_fewest(tokens, SMALL_MAX - 1, 100);
        assert_int_equal(cairn_pack(&cost, tokens, SMALL_MAX - 1, 100, &packing), CAIRN_OK);
        assert_true(packing.microbatches_min <= fewest);
        assert_true(packing.microbatch_count >= fewest && packing.microbatch_count <= fewest + 1);
        best += packing.microbatch_count == fewest;
        more += packing.microbatch_count > fewest;
        cairn_packing_fini(&packing);
    }
    print_message("%u of 40 as few as can be, %u one more\n", best, more);
    assert_true(best >= 30);
}

static void
test_bad(void **test_state)
{
    struct cairn_packing packing;
    uint64_t tokens[2] = {10, 0}, huge = UINT64_MAX;

    assert_int_equal(cairn_pack(&cost, tokens, 1, 0, &packing), CAIRN_INVAL);
    assert_int_equal(cairn_pack(&cost, tokens, 2, 5, &packing), CAIRN_INVAL);
    assert_int_equal(cairn_pack(&cost, &huge, 1, 5, &packing), CAIRN_INVAL);
    assert_int_equal(cairn_pack(&cost, &huge, 1, UINT64_MAX, &packing), CAIRN_OK);
    assert_int_equal(packing.microbatch_count, 1);
    cairn_packing_fini(&packing);
    assert_int_equal(cairn_pack(&cost, tokens, 0, 5, &packing), CAIRN_OK);
    assert_int_equal(packing.microbatch_count, 0);
    cairn_packing_fini(&packing);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_against_all),
        cmocka_unit_test(test_bad),
    };

    return cmocka_run_group_tests_name("replan/pack", tests, NULL, NULL);
}
