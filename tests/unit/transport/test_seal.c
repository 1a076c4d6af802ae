/* Blocks of payloads: what is changed, repeated, left out, moved or brought from another
 * connection is found, with either library on each of the two sides. */
#include "transport/seal.h"
#include "tests/unit/transport/ciphers.h"

#include <string.h>

enum { BLOCKS = 4, BYTES = 4096, HEAD = 24 };

static const uint8_t key[CAIRN_SEAL_KEY_BYTES] = "one connection's key, thirty-two";
static const uint8_t other_key[CAIRN_SEAL_KEY_BYTES] = "another connection's, thirty-two";
static const uint8_t head[HEAD] = "a payload's header";
static uint8_t plain[BLOCKS][BYTES], sealed[BLOCKS][BYTES], tags[BLOCKS][CAIRN_SEAL_TAG_BYTES];
static struct cairn_seal *sender, *receiver;

/* What differs between runs of a test: the library of either side. */
enum { WAYS = CAIRN_CIPHER_LIBRARIES * CAIRN_CIPHER_LIBRARIES };

static const struct cairn_cipher *
receiver_cipher(int way)
{
    return ciphers[way % CAIRN_CIPHER_LIBRARIES];
}

/* Seals all blocks; the first one has a header. */
static void
sealed_make(int way)
{
    const struct cairn_cipher *from = ciphers[way / CAIRN_CIPHER_LIBRARIES];

    assert_int_equal(cairn_seal_create(from, true, true, key, &sender), CAIRN_OK);
    assert_int_equal(cairn_seal_create(receiver_cipher(way), true, false, key, &receiver),
                     CAIRN_OK);
    for (int i = 0; i < BLOCKS; i++) {
        memset(plain[i], 'a' + i, BYTES);
        memcpy(sealed[i], plain[i], BYTES);
        assert_int_equal(
            cairn_seal_make(sender, head, i ? 0 : HEAD, plain[i], BYTES, sealed[i], tags[i]),
            CAIRN_OK);
        assert_memory_not_equal(sealed[i], plain[i], BYTES);
    }
}

static int
ends_destroy(void **state)
{
    cairn_seal_destroy(sender);
    cairn_seal_destroy(receiver);
    sender = receiver = NULL;
    return 0;
}

static cairn_err
check(int i)
{
    return cairn_seal_check(receiver, head, i ? 0 : HEAD, sealed[i], BYTES, tags[i]);
}

static void
test_blocks_in_order(void **state)
{
    for (int way = 0; way < WAYS; way++) {
        sealed_make(way);
        for (int i = 0; i < BLOCKS; i++) {
            assert_int_equal(check(i), CAIRN_OK);
            assert_memory_equal(sealed[i], plain[i], BYTES);
        }
        ends_destroy(state);
    }
}

/* Every bit of a tag counts, and bits all over the block and the header. */
static void
test_any_bit(void **state)
{
    for (int way = 0; way < WAYS; way++)
        for (size_t bit = 0; bit < 8 * (CAIRN_SEAL_TAG_BYTES + 40); bit++) {
            uint8_t damaged_head[HEAD];

            sealed_make(way);
            memcpy(damaged_head, head, HEAD);
            if (bit < 8 * CAIRN_SEAL_TAG_BYTES)
                tags[0][bit / 8] ^= (uint8_t)(1 << bit % 8);
            else if (bit < 8 * (CAIRN_SEAL_TAG_BYTES + HEAD))
                damaged_head[bit / 8 - CAIRN_SEAL_TAG_BYTES] ^= (uint8_t)(1 << bit % 8);
            else
                sealed[0][(bit * 37) % BYTES] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(
                cairn_seal_check(receiver, damaged_head, HEAD, sealed[0], BYTES, tags[0]),
                CAIRN_CORRUPT);
            ends_destroy(state);
        }
}

static void
test_repeated_left_out_moved(void **state)
{
    for (int way = 0; way < WAYS; way++) {
        uint8_t copy[BYTES];

        sealed_make(way);
        memcpy(copy, sealed[0], BYTES);
        assert_int_equal(check(0), CAIRN_OK);
        memcpy(sealed[0], copy, BYTES);
        assert_int_equal(check(0), CAIRN_CORRUPT); /* repeated */
        ends_destroy(state);
        sealed_make(way);
        assert_int_equal(check(0), CAIRN_OK);
        assert_int_equal(check(2), CAIRN_CORRUPT); /* the one before it is missing */
        ends_destroy(state);
    }
}

/* Two connections count from the same nonce, under keys that differ. */
static void
test_another_connection(void **state)
{
    for (int way = 0; way < WAYS; way++) {
        sealed_make(way);
        cairn_seal_destroy(receiver);
        assert_int_equal(cairn_seal_create(receiver_cipher(way), true, false, other_key, &receiver),
                         CAIRN_OK);
        assert_int_equal(check(0), CAIRN_CORRUPT);
        ends_destroy(state);
    }
}

/* Tags of blocks in clear. Either side computes the same, with either library; a bit of the
 * block, its length, its place or its connection changes the tag. */
static void
test_tags(void **state)
{
    for (int way = 0; way < WAYS; way++) {
        const struct cairn_cipher *from = ciphers[way / CAIRN_CIPHER_LIBRARIES];
        uint8_t computed[CAIRN_SEAL_TAG_BYTES];

        memset(plain[0], 'a', BYTES);
        for (size_t change = 0; change < 4 + 8 * BYTES / 251; change++) {
            size_t bit = (change - 4) * 251;

            assert_int_equal(cairn_seal_create(from, false, true, key, &sender), CAIRN_OK);
            assert_int_equal(cairn_seal_create(receiver_cipher(way), false, false,
                                               change == 1 ? other_key : key, &receiver),
                             CAIRN_OK);
            assert_int_equal(cairn_seal_tag(sender, plain[0], BYTES, tags[0]), CAIRN_OK);
            if (change == 2) /* a block in between */
                assert_int_equal(cairn_seal_tag(receiver, plain[0], BYTES, computed), CAIRN_OK);
            if (change >= 4)
                plain[0][bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(
                cairn_seal_tag(receiver, plain[0], change == 3 ? BYTES - 1 : BYTES, computed),
                CAIRN_OK);
            if (change >= 4)
                plain[0][bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_true(cairn_seal_tags_same(tags[0], computed, sizeof computed) == (change == 0));
            ends_destroy(state);
        }
    }
}

/* The same bytes, sent again, have another tag. */
static void
test_no_tag_comes_twice(void **state)
{
    enum { TIMES = 1000 };
    static uint8_t seen[TIMES][CAIRN_SEAL_TAG_BYTES];

    assert_int_equal(cairn_seal_create(ciphers[0], false, true, key, &sender), CAIRN_OK);
    for (int i = 0; i < TIMES; i++) {
        assert_int_equal(cairn_seal_tag(sender, plain[0], BYTES, seen[i]), CAIRN_OK);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(seen[i], seen[j], sizeof seen[i]);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_blocks_in_order, ends_destroy),
        cmocka_unit_test_teardown(test_any_bit, ends_destroy),
        cmocka_unit_test_teardown(test_repeated_left_out_moved, ends_destroy),
        cmocka_unit_test_teardown(test_another_connection, ends_destroy),
        cmocka_unit_test_teardown(test_tags, ends_destroy),
        cmocka_unit_test_teardown(test_no_tag_comes_twice, ends_destroy),
    };

    return cmocka_run_group_tests(tests, ciphers_open, ciphers_close);
}
