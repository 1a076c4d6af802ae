/* AES-256-GCM by each library: published vectors, every library against every other, and which one
 * is chosen. */
#include "transport/cipher.h"

#include "base/limits.h"
#include "tests/unit/transport/ciphers.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_MAX = 40, VECTOR_BYTES_MAX = 64 };

static cairn_err
make(int library, bool encrypt, const uint8_t *key, const struct cairn_cipher_block *how,
     const uint8_t *block, uint8_t *out, uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    struct cairn_cipher_key *made = NULL;
    cairn_err err;

    assert_int_equal(ciphers[library]->ops->key_create(ciphers[library], encrypt, true, key, &made),
                     CAIRN_OK);
    err = made->ops->make(made, 0, how, block, out, tag);
    cairn_cipher_key_destroy(made);
    return err;
}

static cairn_err
check(int library, bool encrypt, const uint8_t *key, const struct cairn_cipher_block *how,
      uint8_t *block, const uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    struct cairn_cipher_key *made = NULL;
    cairn_err err;

    assert_int_equal(
        ciphers[library]->ops->key_create(ciphers[library], encrypt, false, key, &made), CAIRN_OK);
    err = made->ops->check(made, how, block, tag);
    cairn_cipher_key_destroy(made);
    return err;
}

static size_t
from_hex(const char *hex, uint8_t *out)
{
    size_t len = strlen(hex) / 2;

    for (size_t i = 0; i < len; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};

        out[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return len;
}

struct vector {
    const char *key, *nonce, *head, *plain, *sealed, *tag; /* sealed NULL: the tag alone */
};

#define KEY_16 "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"
#define PLAIN_16                                                                                   \
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"                             \
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
#define SEALED_16                                                                                  \
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"                             \
    "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"

/* Test cases 14, 15 and 16 of McGrew and Viega, "The Galois/Counter Mode of Operation"; and of
 * NIST's gcmEncryptExtIV256, the first one that has additional data and no plaintext. */
static const struct vector vectors[] = {
    {"0000000000000000000000000000000000000000000000000000000000000000", "000000000000000000000000",
     "", "00000000000000000000000000000000", "cea7403d4d606b6e074ec5d3baf39d18",
     "d0d1c8a799996bf0265b98b5d48ab919"},
    {KEY_16, "cafebabefacedbaddecaf888", "", PLAIN_16 "1aafd255", SEALED_16 "898015ad",
     "b094dac5d93471bdec1a502270e3cc6c"},
    {KEY_16, "cafebabefacedbaddecaf888", "feedfacedeadbeeffeedfacedeadbeefabaddad2", PLAIN_16,
     SEALED_16, "76fc6ece0f4e1768cddf8853bb2d551b"},
    {"78dc4e0aaf52d935c3c01eea57428f00ca1fd475f5da86a49c8dd73d68c8e223", "d79cf22d504cc793c3fb6c8a",
     "", "b96baa8c1c75a671bfb2d08d06be5f36", NULL, "3e5d486aa2e30b22e040b85723a06e76"},
};

static void
test_vectors(void **state)
{
    for (size_t v = 0; v < sizeof vectors / sizeof vectors[0]; v++)
        for (int library = 0; library < CAIRN_CIPHER_LIBRARIES; library++) {
            const struct vector *vector = &vectors[v];
            bool encrypt = vector->sealed != NULL;
            uint8_t key[CAIRN_CIPHER_KEY_BYTES], nonce[CAIRN_CIPHER_NONCE_BYTES], head[HEAD_MAX];
            uint8_t plain[VECTOR_BYTES_MAX], sealed[VECTOR_BYTES_MAX], out[VECTOR_BYTES_MAX];
            uint8_t right[CAIRN_CIPHER_TAG_BYTES], tag[CAIRN_CIPHER_TAG_BYTES];
            struct cairn_cipher_block how = {nonce, head, from_hex(vector->head, head),
                                             from_hex(vector->plain, plain)};

            assert_int_equal(from_hex(vector->key, key), sizeof key);
            assert_int_equal(from_hex(vector->nonce, nonce), sizeof nonce);
            assert_int_equal(from_hex(vector->tag, right), sizeof right);
            memcpy(sealed, plain, sizeof sealed);
            if (encrypt)
                assert_int_equal(from_hex(vector->sealed, sealed), how.block_len);
            memcpy(out, plain, sizeof out);
            assert_int_equal(make(library, encrypt, key, &how, plain, out, tag), CAIRN_OK);
            assert_memory_equal(tag, right, sizeof right);
            assert_memory_equal(out, sealed, how.block_len);
            assert_int_equal(check(library, encrypt, key, &how, out, right), CAIRN_OK);
            assert_memory_equal(out, plain, how.block_len);
        }
}

/* Where lengths and heads are not multiples of what the kernels take at once. */
static void
cross(bool encrypt, size_t head_len, size_t block_len)
{
    static uint8_t plain[CAIRN_BLOCK_BYTES], out[CAIRN_CIPHER_LIBRARIES][CAIRN_BLOCK_BYTES];
    static uint8_t opened[CAIRN_BLOCK_BYTES];
    uint8_t tag[CAIRN_CIPHER_LIBRARIES][CAIRN_CIPHER_TAG_BYTES];
    uint8_t key[CAIRN_CIPHER_KEY_BYTES], nonce[CAIRN_CIPHER_NONCE_BYTES], head[HEAD_MAX];
    struct cairn_cipher_block how = {nonce, head_len ? head : NULL, head_len, block_len};

    for (size_t i = 0; i < block_len; i++)
        plain[i] = (uint8_t)(i * 7 + i / 256 + block_len);
    memset(key, (int)(head_len + block_len), sizeof key);
    memset(nonce, (int)block_len, sizeof nonce);
    memset(head, (int)head_len, sizeof head);
    for (int a = 0; a < CAIRN_CIPHER_LIBRARIES; a++) {
        memcpy(out[a], plain, block_len);
        assert_int_equal(make(a, encrypt, key, &how, plain, out[a], tag[a]), CAIRN_OK);
        assert_memory_equal(out[a], out[0], block_len);
        assert_memory_equal(tag[a], tag[0], CAIRN_CIPHER_TAG_BYTES);
        for (int b = 0; b < CAIRN_CIPHER_LIBRARIES; b++) {
            memcpy(opened, out[a], block_len);
            assert_int_equal(check(b, encrypt, key, &how, opened, tag[a]), CAIRN_OK);
            assert_memory_equal(opened, plain, block_len);
            memcpy(opened, out[a], block_len);
            opened[block_len / 2] ^= 0x40;
            assert_int_equal(check(b, encrypt, key, &how, opened, tag[a]), CAIRN_CORRUPT);
        }
    }
}

static void
test_each_against_each(void **state)
{
    static const size_t heads[] = {0, 1, 15, 16, 24, 33};
    static const size_t large[] = {1023, 4096, 12289, CAIRN_BLOCK_BYTES - 1, CAIRN_BLOCK_BYTES};

    for (int encrypt = 0; encrypt < 2; encrypt++)
        for (size_t h = 0; h < sizeof heads / sizeof heads[0]; h++) {
            for (size_t len = 1; len < 900; len += len < 300 ? 1 : 13)
                cross(encrypt, heads[h], len);
            for (size_t i = 0; i < sizeof large / sizeof large[0]; i++)
                cross(encrypt, heads[h], large[i]);
        }
}

/* Each nonce makes another tag, and another key stream. */
static void
test_nonces(void **state)
{
    static const uint8_t key[CAIRN_CIPHER_KEY_BYTES] = "one key, thirty-two bytes in it";
    uint8_t first[CAIRN_CIPHER_NONCE_BYTES] = {0}, second[CAIRN_CIPHER_NONCE_BYTES] = {1};
    uint8_t plain[64] = {0}, outs[2][64], tags[2][CAIRN_CIPHER_TAG_BYTES];
    struct cairn_cipher_block how = {.block_len = sizeof plain};

    for (int library = 0; library < CAIRN_CIPHER_LIBRARIES; library++) {
        how.nonce = first;
        assert_int_equal(make(library, true, key, &how, plain, outs[0], tags[0]), CAIRN_OK);
        how.nonce = second;
        assert_int_equal(make(library, true, key, &how, plain, outs[1], tags[1]), CAIRN_OK);
        assert_memory_not_equal(outs[0], outs[1], sizeof plain);
        assert_memory_not_equal(tags[0], tags[1], sizeof tags[0]);
        assert_int_equal(check(library, true, key, &how, outs[0], tags[0]), CAIRN_CORRUPT);
    }
}

/* The one that was measured to be the fastest. */
static void
test_choice(void **state)
{
    for (int encrypt = 0; encrypt < 2; encrypt++) {
        struct cairn_cipher *chosen = NULL;
        struct cairn_cipher_speeds speeds;
        int best = 0;

        assert_int_equal(cairn_cipher_choose(encrypt, &chosen, &speeds), CAIRN_OK);
        for (int i = 0; i < CAIRN_CIPHER_LIBRARIES; i++) {
            assert_true(speeds.bytes_per_s[i] > 0);
            if (speeds.bytes_per_s[i] > speeds.bytes_per_s[best])
                best = i;
        }
        assert_ptr_equal(chosen->ops, cairn_cipher_libraries[best]);
        cairn_cipher_close(chosen);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_vectors, ciphers_open, ciphers_close),
        cmocka_unit_test_setup_teardown(test_each_against_each, ciphers_open, ciphers_close),
        cmocka_unit_test_setup_teardown(test_nonces, ciphers_open, ciphers_close),
        cmocka_unit_test(test_choice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
