/* Tags of blocks in clear: one for all receivers of a block, never one number for two blocks. */
#include "transport/tag.h"

#include "base/limits.h"
#include "tests/support/cmocka.h"

#include <string.h>

enum { BLOCKS = 4, BYTES = 4096 };

static uint8_t memory[BLOCKS][CAIRN_BLOCK_BYTES];
static const uint8_t sum[8] = "checksum", other_sum[8] = "another!";
static struct cairn_cipher *ciphers[CAIRN_CIPHER_LIBRARIES];

static struct cairn_tagger *
tagger_open(int library)
{
    struct cairn_tagger *tagger = NULL;

    assert_int_equal(cairn_tagger_create(ciphers[library], &tagger), CAIRN_OK);
    return tagger;
}

/* The tag of a block, made where it is not known. */
static struct cairn_tag
tag_of(struct cairn_tagger *tagger, int block, size_t len, const uint8_t *of_block)
{
    struct cairn_tag tag;

    cairn_tagger_find(tagger, memory[block], len, of_block, &tag);
    if (!tag.known)
        assert_int_equal(cairn_tagger_make(tagger, memory[block], len, of_block, &tag), CAIRN_OK);
    assert_true(tag.known);
    return tag;
}

static void
test_one_tag_for_one_block(void **state)
{
    struct cairn_tagger *tagger = tagger_open(0);
    struct cairn_tag first = tag_of(tagger, 0, BYTES, sum), again, other;

    (void)state;
    again = tag_of(tagger, 0, BYTES, sum);
    assert_true(again.number == first.number);
    assert_memory_equal(again.bytes, first.bytes, sizeof first.bytes);
    other = tag_of(tagger, 1, BYTES, sum); /* another block */
    assert_true(other.number != first.number);
    cairn_tagger_forget(tagger);
    again = tag_of(tagger, 0, BYTES, sum);
    assert_true(again.number != first.number && again.number != other.number);
    cairn_tagger_destroy(tagger);
}

/* A slot that is filled again has other checksums. What is shorter, has none, or has a number but
 * no tag yet gets a number of its own as well. */
static void
test_numbers_never_come_twice(void **state)
{
    enum { COUNT = 6 * 1000 };
    static bool seen[2 * COUNT];
    struct cairn_tagger *tagger = tagger_open(0);
    uint8_t filled[8];

    (void)state;
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < COUNT; i++) {
        struct cairn_tag tag;

        memcpy(filled, &i, sizeof i);
        memset(filled + sizeof i, 7, sizeof filled - sizeof i);
        switch (i % 6) {
        case 0:
            tag = tag_of(tagger, 0, BYTES, filled); /* the slot is filled again */
            break;
        case 1:
            tag = tag_of(tagger, 0, BYTES, NULL);
            break;
        case 2:
            tag = tag_of(tagger, 1, BYTES - 1 - (size_t)i % 64, sum);
            break;
        case 3:
            tag = tag_of(tagger, 0, BYTES, i % 12 == 3 ? sum : other_sum);
            break;
        case 4:
            cairn_tagger_forget(tagger);
            tag = tag_of(tagger, 1, BYTES, sum);
            break;
        default:
            cairn_tagger_find(tagger, memory[2], BYTES, sum, &tag);
            assert_false(tag.known);
            break;
        }
        assert_true(tag.number < 2 * COUNT);
        assert_false(seen[tag.number]);
        seen[tag.number] = true;
    }
    cairn_tagger_destroy(tagger);
}

/* An agent that starts again counts from 0: under another key, so its tags are others. */
static void
test_another_life(void **state)
{
    struct cairn_tagger *lives[2] = {tagger_open(0), tagger_open(0)};
    struct cairn_tag tags[2];

    (void)state;
    for (int i = 0; i < 2; i++)
        tags[i] = tag_of(lives[i], 0, BYTES, sum);
    assert_memory_not_equal(cairn_tagger_key(lives[0]), cairn_tagger_key(lives[1]),
                            CAIRN_CIPHER_KEY_BYTES);
    assert_true(tags[0].number == tags[1].number);
    assert_memory_not_equal(tags[0].bytes, tags[1].bytes, sizeof tags[0].bytes);
    cairn_tagger_destroy(lives[0]);
    cairn_tagger_destroy(lives[1]);
}

/* A receiver with either library computes the same; a bit of the block, its length or its number
 * changes it. */
static void
test_what_a_receiver_computes(void **state)
{
    for (int way = 0; way < CAIRN_CIPHER_LIBRARIES * CAIRN_CIPHER_LIBRARIES; way++) {
        struct cairn_cipher *receiver = ciphers[way % CAIRN_CIPHER_LIBRARIES];
        struct cairn_tagger *tagger = tagger_open(way / CAIRN_CIPHER_LIBRARIES);
        struct cairn_tag tag = tag_of(tagger, 3, BYTES, sum);
        struct cairn_cipher_key *key;
        uint8_t computed[CAIRN_CIPHER_TAG_BYTES];

        assert_int_equal(
            receiver->ops->key_create(receiver, false, true, cairn_tagger_key(tagger), &key),
            CAIRN_OK);
        assert_int_equal(cairn_tag_compute(key, tag.number, memory[3], BYTES, computed), CAIRN_OK);
        assert_true(cairn_tags_same(tag.bytes, computed, sizeof computed));
        for (size_t bit = 0; bit < 8 * BYTES; bit += 251) {
            memory[3][bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(cairn_tag_compute(key, tag.number, memory[3], BYTES, computed),
                             CAIRN_OK);
            memory[3][bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_false(cairn_tags_same(tag.bytes, computed, sizeof computed));
        }
        assert_int_equal(cairn_tag_compute(key, tag.number + 1, memory[3], BYTES, computed),
                         CAIRN_OK);
        assert_false(cairn_tags_same(tag.bytes, computed, sizeof computed));
        assert_int_equal(cairn_tag_compute(key, tag.number, memory[3], BYTES - 1, computed),
                         CAIRN_OK);
        assert_false(cairn_tags_same(tag.bytes, computed, sizeof computed));
        cairn_cipher_key_destroy(key);
        cairn_tagger_destroy(tagger);
    }
    (void)state;
}

static int
ciphers_open(void **state)
{
    (void)state;
    for (int i = 0; i < CAIRN_CIPHER_LIBRARIES; i++)
        assert_int_equal(cairn_cipher_libraries[i]->open(&ciphers[i]), CAIRN_OK);
    for (int i = 0; i < BLOCKS; i++)
        memset(memory[i], 'a' + i, sizeof memory[i]);
    return 0;
}

static int
ciphers_close(void **state)
{
    (void)state;
    for (int i = 0; i < CAIRN_CIPHER_LIBRARIES; i++)
        cairn_cipher_close(ciphers[i]);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_tag_for_one_block),
        cmocka_unit_test(test_numbers_never_come_twice),
        cmocka_unit_test(test_another_life),
        cmocka_unit_test(test_what_a_receiver_computes),
    };

    return cmocka_run_group_tests(tests, ciphers_open, ciphers_close);
}
