/*
 * tests/unit/erasure/test_code.c - the code against two references: the field arithmetic below,
 * which shares nothing with the product, and ISA-L's own base path.
 */
#include "erasure/code.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <stdlib.h>
#include <string.h>

#include <isa-l/erasure_code.h>

enum { SMALL_BYTES = 97, GUARD_BYTES = 64, GUARD = 0xa5 };

/* ---- the reference: GF(2^8) by shifting and adding ---- */

static uint64_t random_state = 42;

static uint8_t
times(uint8_t a, uint8_t b)
{
    unsigned product = 0, shifted = a;

    for (unsigned bit = 0; bit < 8; bit++) {
        if (b >> bit & 1)
            product ^= shifted;
        shifted <<= 1;
        if (shifted & 0x100)
            shifted ^= 0x11d;
    }
    return (uint8_t)product;
}

static uint8_t
one_over(uint8_t a)
{
    for (unsigned b = 1; b < 256; b++)
        if (times(a, (uint8_t)b) == 1)
            return (uint8_t)b;
    return 0;
}

/* Cauchy, scaled so that row 0 and column 0 are all 1, straight from the definition in code.h. */
static uint8_t
generator(uint32_t k, uint32_t r, uint32_t j)
{
    uint8_t cauchy = one_over((uint8_t)((k + r) ^ j));
    uint8_t column = one_over((uint8_t)(k ^ j));
    uint8_t row = times(one_over((uint8_t)(k + r)), one_over(one_over((uint8_t)k)));

    return times(times(cauchy, one_over(column)), one_over(row));
}

static void
reference_encode(uint32_t k, uint32_t m, size_t bytes, uint8_t *const shards[])
{
    for (uint32_t r = 0; r < m; r++) {
        memset(shards[k + r], 0, bytes);
        for (uint32_t j = 0; j < k; j++) {
            uint8_t product[256], coefficient = generator(k, r, j);

            for (unsigned v = 0; v < 256; v++)
                product[v] = times(coefficient, (uint8_t)v);
            for (size_t at = 0; shards[j] && at < bytes; at++)
                shards[k + r][at] ^= product[shards[j][at]];
        }
    }
}

/* ---- a stripe in memory, with guards around every shard ---- */

struct stripe {
    uint32_t n;
    size_t bytes;
    uint8_t *memory;
    uint8_t *shards[CAIRN_SHARDS_MAX];
};

static void
stripe_init(struct stripe *stripe, uint32_t n, size_t bytes, size_t misalign)
{
    size_t stride = (bytes + 63) / 64 * 64 + 3 * GUARD_BYTES;

    stripe->n = n;
    stripe->bytes = bytes;
    stripe->memory = aligned_alloc(64, stride * n);
    assert_non_null(stripe->memory);
    memset(stripe->memory, GUARD, stride * n);
    for (uint32_t i = 0; i < n; i++) {
        stripe->shards[i] = stripe->memory + i * stride + GUARD_BYTES + misalign;
        for (size_t at = 0; at < bytes; at++)
            stripe->shards[i][at] = (uint8_t)splitmix(&random_state);
    }
}

static void
stripe_fini(struct stripe *stripe)
{
    for (uint32_t i = 0; i < stripe->n; i++)
        for (size_t g = 0; g < GUARD_BYTES; g++) {
            if (g < GUARD_BYTES / 2)
                /* cppcheck-suppress negativeIndex ; the guard lies in front of the shard */
                assert_int_equal(stripe->shards[i][-1 - (long)g], GUARD);
            assert_int_equal(stripe->shards[i][stripe->bytes + g], GUARD);
        }
    free(stripe->memory);
}

static struct cairn_code *
code_of(uint32_t k, uint32_t m)
{
    struct cairn_code *code = NULL;

    assert_int_equal(cairn_code_create(k, m, &code), CAIRN_OK);
    return code;
}

/* The next larger number with as many bits: walks all sets of one size. */
static uint64_t
next_set(uint64_t set)
{
    uint64_t low = set & -set, ripple = set + low;

    return ripple | ((set ^ ripple) >> 2) / low;
}

/* Loses the set in a copy of the stripe and rebuilds it. */
static void
lose_and_rebuild(const struct cairn_code *code, const struct stripe *good, uint64_t lost)
{
    struct stripe copy;

    stripe_init(&copy, good->n, good->bytes, 0);
    for (uint32_t i = 0; i < good->n; i++)
        if (!(lost >> i & 1))
            memcpy(copy.shards[i], good->shards[i], good->bytes);
    assert_int_equal(cairn_code_rebuild(code, good->bytes, lost, copy.shards), CAIRN_OK);
    for (uint32_t i = 0; i < good->n; i++)
        assert_memory_equal(copy.shards[i], good->shards[i], good->bytes);
    stripe_fini(&copy);
}

/* Encodes a random stripe and checks it against both references. */
static void
encode_checked(const struct cairn_code *code, uint32_t k, uint32_t m, size_t bytes, size_t misalign,
               struct stripe *out)
{
    struct stripe expected;
    uint8_t coefficients[CAIRN_SHARDS_MAX * CAIRN_SHARDS_MAX];
    uint8_t tables[32 * 32 * 32 + 1];

    stripe_init(out, k + m, bytes, misalign);
    cairn_code_encode(code, bytes, out->shards);
    stripe_init(&expected, k + m, bytes, 0);
    for (uint32_t j = 0; j < k; j++)
        memcpy(expected.shards[j], out->shards[j], bytes);
    reference_encode(k, m, bytes, expected.shards);
    for (uint32_t r = 0; r < m; r++)
        assert_memory_equal(out->shards[k + r], expected.shards[k + r], bytes);
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t j = 0; j < k; j++) {
            coefficients[r * k + j] = cairn_code_coefficient(code, r, j);
            assert_int_equal(coefficients[r * k + j], generator(k, r, j));
        }
    if (m > 0) {
        for (uint32_t r = 0; r < m; r++)
            memset(expected.shards[k + r], 0, bytes);
        ec_init_tables((int)k, (int)m, coefficients, tables);
        ec_encode_data_base((int)bytes, (int)k, (int)m, tables, expected.shards,
                            expected.shards + k);
    }
    for (uint32_t r = 0; r < m; r++)
        assert_memory_equal(out->shards[k + r], expected.shards[k + r], bytes);
    stripe_fini(&expected);
}

static void
shuffle(uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t other = (uint32_t)(splitmix(&random_state) % i), kept = order[i - 1];

        order[i - 1] = order[other];
        order[other] = kept;
    }
}

/* Folds all data in random order, once row by row and once all rows at once: it must be `good`. */
static void
fold_checked(const struct cairn_code *code, uint32_t k, uint32_t m, const struct stripe *good)
{
    struct stripe single, all;
    uint32_t order[CAIRN_SHARDS_MAX];

    stripe_init(&single, k + m, good->bytes, 5); /* its parity is garbage: `first` overwrites */
    stripe_init(&all, k + m, good->bytes, 0);
    for (uint32_t r = 0; r < m; r++) {
        shuffle(order, k);
        for (uint32_t j = 0; j < k; j++)
            cairn_code_fold(code, r, order[j], good->bytes, good->shards[order[j]],
                            single.shards[k + r], j == 0);
    }
    shuffle(order, k);
    for (uint32_t j = 0; j < k; j++)
        cairn_code_fold_rows(code, order[j], good->bytes, good->shards[order[j]], all.shards + k,
                             j == 0);
    for (uint32_t r = 0; r < m; r++) {
        assert_memory_equal(single.shards[k + r], good->shards[k + r], good->bytes);
        assert_memory_equal(all.shards[k + r], good->shards[k + r], good->bytes);
    }
    stripe_fini(&single);
    stripe_fini(&all);
}

static void
too_much_lost(const struct cairn_code *code, const struct stripe *good, uint64_t lost)
{
    struct stripe copy;

    stripe_init(&copy, good->n, good->bytes, 0);
    for (uint32_t i = 0; i < good->n; i++)
        memcpy(copy.shards[i], good->shards[i], good->bytes);
    assert_int_equal(cairn_code_rebuild(code, good->bytes, lost, copy.shards), CAIRN_LOST);
    for (uint32_t i = 0; i < good->n; i++)
        assert_memory_equal(copy.shards[i], good->shards[i], good->bytes);
    stripe_fini(&copy);
}

static void
every_loss_set_of_every_small_code(void **state)
{
    for (uint32_t k = 1; k <= 10; k++)
        for (uint32_t m = 0; m <= 4; m++) {
            struct cairn_code *code = code_of(k, m);
            struct stripe good;
            uint32_t n = k + m;

            encode_checked(code, k, m, SMALL_BYTES, 0, &good);
            fold_checked(code, k, m, &good);
            for (uint64_t lost = 0; lost < (uint64_t)1 << n; lost++) {
                uint32_t count = (uint32_t)__builtin_popcountll(lost);

                if (count <= m)
                    lose_and_rebuild(code, &good, lost);
                else if (count == m + 1)
                    too_much_lost(code, &good, lost);
            }
            stripe_fini(&good);
            cairn_code_destroy(code);
        }
}

static void
every_choice_of_sources_rebuilds(void **state)
{
    for (uint32_t k = 1; k <= 5; k++)
        for (uint32_t m = 1; m <= 3; m++) {
            struct cairn_code *code = code_of(k, m);
            struct stripe good;
            uint32_t n = k + m;
            uint64_t all = ((uint64_t)1 << n) - 1;

            encode_checked(code, k, m, SMALL_BYTES, 0, &good);
            for (uint64_t sources = ((uint64_t)1 << k) - 1; sources <= all;
                 sources = next_set(sources))
                for (uint64_t wanted = 0; wanted <= all; wanted++) {
                    struct stripe copy;

                    if (wanted & sources)
                        continue;
                    stripe_init(&copy, n, SMALL_BYTES, 0);
                    for (uint32_t i = 0; i < n; i++)
                        if (sources >> i & 1)
                            memcpy(copy.shards[i], good.shards[i], SMALL_BYTES);
                        else if (!(wanted >> i & 1))
                            memset(copy.shards[i], 7, SMALL_BYTES); /* in neither: not touched */
                    assert_int_equal(
                        cairn_code_rebuild_some(code, SMALL_BYTES, sources, wanted, copy.shards),
                        CAIRN_OK);
                    for (uint32_t i = 0; i < n; i++)
                        if ((sources | wanted) >> i & 1)
                            assert_memory_equal(copy.shards[i], good.shards[i], SMALL_BYTES);
                        else
                            assert_int_equal(copy.shards[i][0], 7);
                    stripe_fini(&copy);
                }
            stripe_fini(&good);
            cairn_code_destroy(code);
        }
}

static void
large_codes_lose_random_sets(void **state)
{
    static const uint32_t codes[][2] = {{32, 32}, {60, 4}, {1, 63}, {63, 1}, {57, 7}, {12, 4}};

    for (size_t c = 0; c < sizeof codes / sizeof codes[0]; c++) {
        uint32_t k = codes[c][0], m = codes[c][1], order[CAIRN_SHARDS_MAX];
        struct cairn_code *code = code_of(k, m);
        struct stripe good;

        encode_checked(code, k, m, 8300, 0, &good); /* longer than a span of the many-row path */
        fold_checked(code, k, m, &good);
        for (int round = 0; round < 40; round++) {
            uint32_t count = round < 10 ? m : 1 + (uint32_t)(splitmix(&random_state) % m);
            uint64_t lost = 0;

            shuffle(order, k + m);
            for (uint32_t i = 0; i < count; i++)
                lost |= (uint64_t)1 << order[i];
            lose_and_rebuild(code, &good, lost);
        }
        stripe_fini(&good);
        cairn_code_destroy(code);
    }
}

static void
every_length_and_alignment(void **state)
{
    static const size_t lengths[] = {0,  1,  7,   15,  16,  31,  32,   33,   63,    64,
                                     65, 95, 127, 128, 129, 255, 1023, 4096, 65536, 65537};
    static const uint32_t codes[][2] = {{1, 2}, {2, 1}, {4, 1}, {4, 2}, {8, 3}, {5, 8}};

    for (size_t c = 0; c < sizeof codes / sizeof codes[0]; c++)
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
            for (size_t misalign = 0; misalign < 32; misalign += misalign < 2 ? 1 : 14) {
                uint32_t k = codes[c][0], m = codes[c][1];
                struct cairn_code *code = code_of(k, m);
                struct stripe good;

                encode_checked(code, k, m, lengths[l], misalign, &good);
                fold_checked(code, k, m, &good);
                lose_and_rebuild(code, &good, 1);
                lose_and_rebuild(code, &good, (uint64_t)1 << (k + m - 1));
                stripe_fini(&good);
                cairn_code_destroy(code);
            }
}

static void
null_shards_are_zeros(void **state)
{
    for (uint32_t k = 1; k <= 5; k++)
        for (uint32_t m = 1; m <= 3; m++)
            for (uint64_t zeros = 0; zeros < (uint64_t)1 << k; zeros++) {
                struct cairn_code *code = code_of(k, m);
                struct stripe good, sparse;
                uint8_t *shards[CAIRN_SHARDS_MAX];

                stripe_init(&good, k + m, SMALL_BYTES, 0);
                stripe_init(&sparse, k + m, SMALL_BYTES, 0);
                for (uint32_t j = 0; j < k; j++) {
                    if (zeros >> j & 1)
                        memset(good.shards[j], 0, SMALL_BYTES);
                    memcpy(sparse.shards[j], good.shards[j], SMALL_BYTES);
                }
                reference_encode(k, m, SMALL_BYTES, good.shards);
                for (uint32_t i = 0; i < k + m; i++)
                    shards[i] = zeros >> i & 1 ? NULL : sparse.shards[i];
                cairn_code_encode(code, SMALL_BYTES, shards);
                for (uint32_t r = 0; r < m; r++)
                    assert_memory_equal(shards[k + r], good.shards[k + r], SMALL_BYTES);
                for (uint64_t lost = 0; lost < (uint64_t)1 << (k + m); lost++) {
                    if ((lost & zeros) || __builtin_popcountll(lost) > (int)m)
                        continue;
                    for (uint32_t i = 0; i < k + m; i++)
                        if (lost >> i & 1)
                            memset(shards[i], 0x5a, SMALL_BYTES);
                    assert_int_equal(cairn_code_rebuild(code, SMALL_BYTES, lost, shards), CAIRN_OK);
                    for (uint32_t i = 0; i < k + m; i++)
                        if (shards[i])
                            assert_memory_equal(shards[i], good.shards[i], SMALL_BYTES);
                }
                stripe_fini(&good);
                stripe_fini(&sparse);
                cairn_code_destroy(code);
            }
}

static void
folding_twice_takes_out(void **state)
{
    struct cairn_code *code = code_of(6, 3);
    struct stripe good, copy;
    uint8_t *some[3];

    encode_checked(code, 6, 3, 1000, 0, &good);
    stripe_init(&copy, 9, 1000, 0);
    for (uint32_t i = 0; i < 9; i++)
        memcpy(copy.shards[i], good.shards[i], 1000);
    /* Row 1 is not wanted: it must stay as it is. */
    some[0] = copy.shards[6];
    some[1] = NULL;
    some[2] = copy.shards[8];
    cairn_code_fold_rows(code, 2, 1000, good.shards[4], some, false);
    assert_memory_not_equal(copy.shards[6], good.shards[6], 1000);
    assert_memory_equal(copy.shards[7], good.shards[7], 1000);
    assert_memory_not_equal(copy.shards[8], good.shards[8], 1000);
    cairn_code_fold(code, 0, 2, 1000, good.shards[4], copy.shards[6], false);
    cairn_code_fold(code, 2, 2, 1000, good.shards[4], copy.shards[8], false);
    for (uint32_t i = 0; i < 9; i++)
        assert_memory_equal(copy.shards[i], good.shards[i], 1000);
    stripe_fini(&good);
    stripe_fini(&copy);
    cairn_code_destroy(code);
}

static void
misuse_is_refused(void **state)
{
    struct cairn_code *code = NULL;
    struct stripe stripe;
    uint8_t *shards[CAIRN_SHARDS_MAX];

    assert_int_equal(cairn_code_create(0, 2, &code), CAIRN_INVAL);
    assert_int_equal(cairn_code_create(65, 0, &code), CAIRN_INVAL);
    assert_int_equal(cairn_code_create(60, 5, &code), CAIRN_INVAL);
    assert_int_equal(cairn_code_create(2, UINT32_MAX, &code), CAIRN_INVAL);
    assert_int_equal(cairn_code_create(UINT32_MAX, 2, &code), CAIRN_INVAL);
    assert_null(code);
    cairn_code_destroy(NULL);
    code = code_of(64, 0);
    cairn_code_destroy(code);

    code = code_of(4, 2);
    stripe_init(&stripe, 6, 128, 0);
    memcpy(shards, stripe.shards, sizeof shards);
    assert_int_equal(cairn_code_rebuild(code, 128, 1 << 6, shards), CAIRN_INVAL);
    assert_int_equal(cairn_code_rebuild(code, 128, 7, shards), CAIRN_LOST);
    assert_int_equal(cairn_code_rebuild_some(code, 128, 0x0f, 0x18, shards), CAIRN_INVAL);
    assert_int_equal(cairn_code_rebuild_some(code, 128, 0x1f, 0x20, shards), CAIRN_INVAL);
    assert_int_equal(cairn_code_rebuild_some(code, 128, 0x0f, 0x40, shards), CAIRN_INVAL);
    assert_int_equal(cairn_code_rebuild_some(code, 128, 0x47, 0x10, shards), CAIRN_INVAL);
    assert_int_equal(cairn_code_rebuild_some(code, 128, 0x07, 0x10, shards), CAIRN_LOST);
    shards[4] = NULL;
    assert_int_equal(cairn_code_rebuild_some(code, 128, 0x0f, 0x10, shards), CAIRN_INVAL);
    assert_int_equal(cairn_code_rebuild(code, 128, 0x10, shards), CAIRN_INVAL);
    stripe_fini(&stripe);
    cairn_code_destroy(code);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_loss_set_of_every_small_code),
        cmocka_unit_test(every_choice_of_sources_rebuilds),
        cmocka_unit_test(large_codes_lose_random_sets),
        cmocka_unit_test(every_length_and_alignment),
        cmocka_unit_test(null_shards_are_zeros),
        cmocka_unit_test(folding_twice_takes_out),
        cmocka_unit_test(misuse_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
