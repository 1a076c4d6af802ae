/* A thread that seals ahead: it and the loop together seal every block once, with the nonce of the
 * block's place, also when jobs are dropped. */
#include "transport/sealer.h"
#include "base/limits.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 16, ROUNDS = 200 };

static const uint8_t key[CAIRN_SEAL_KEY_BYTES] = "one connection's key, thirty-two";
static uint8_t plain[BLOCKS][CAIRN_BLOCK_BYTES], sealed[BLOCKS][CAIRN_BLOCK_BYTES];
static uint8_t tags[BLOCKS][CAIRN_SEAL_TAG_BYTES];
static struct cairn_sealer_job jobs[BLOCKS];

static void
jobs_add(struct cairn_sealer *sealer, struct cairn_seal *seal, uint8_t (*out)[CAIRN_BLOCK_BYTES])
{
    for (int i = 0; i < BLOCKS; i++) {
        jobs[i].block = (struct cairn_seal_block){.seal = seal,
                                                  .block = plain[i],
                                                  .block_len = CAIRN_BLOCK_BYTES - (size_t)i,
                                                  .out = out[i],
                                                  .tag = tags[i]};
        cairn_seal_take(&jobs[i].block);
        cairn_sealer_add(sealer, &jobs[i]);
    }
}

/* Whether the receiver takes the next block as the sender's. */
static bool
is_right(struct cairn_seal *receiver, bool encrypt, int i)
{
    size_t block_len = CAIRN_BLOCK_BYTES - (size_t)i;
    uint8_t tag[CAIRN_SEAL_TAG_BYTES];

    if (encrypt)
        return cairn_seal_check(receiver, NULL, 0, sealed[i], block_len, tags[i]) == CAIRN_OK &&
               memcmp(sealed[i], plain[i], block_len) == 0;
    return cairn_seal_tag(receiver, plain[i], block_len, tag) == CAIRN_OK &&
           memcmp(tag, tags[i], sizeof tag) == 0;
}

/* Blocks are asked for in another order in each round. with: there is a thread. */
static void
rounds_run(const struct cairn_cipher *cipher, bool encrypt, bool with)
{
    struct cairn_seal *sender = NULL, *receiver = NULL;
    struct cairn_sealer *sealer = NULL;

    assert_int_equal(cairn_seal_create(cipher, encrypt, true, key, &sender), CAIRN_OK);
    assert_int_equal(cairn_seal_create(cipher, encrypt, false, key, &receiver), CAIRN_OK);
    if (with)
        assert_int_equal(cairn_sealer_create(&sealer), CAIRN_OK);
    for (int round = 0; round < ROUNDS; round++) {
        memset(tags, 0, sizeof tags);
        for (int i = 0; i < BLOCKS; i++)
            memset(plain[i], round + i, CAIRN_BLOCK_BYTES);
        jobs_add(sealer, sender, sealed);
        for (int i = 0; i < BLOCKS; i++)
            assert_int_equal(cairn_sealer_finish(sealer, &jobs[(i * 7 + round) % BLOCKS]),
                             CAIRN_OK);
        for (int i = 0; i < BLOCKS; i++)
            assert_true(is_right(receiver, encrypt, i));
    }
    cairn_sealer_destroy(sealer);
    cairn_seal_destroy(sender);
    cairn_seal_destroy(receiver);
}

static void
test_every_block_once(void **state)
{
    for (int i = 0; i < CAIRN_CIPHER_LIBRARIES; i++) {
        struct cairn_cipher *cipher = NULL;

        if (cairn_cipher_libraries[i]->open(&cipher) == CAIRN_NOT_FOUND)
            continue;
        for (int way = 0; way < 4; way++)
            rounds_run(cipher, way / 2, way % 2);
        cairn_cipher_close(cipher);
    }
}

/* What is dropped may be freed at once: afterwards the thread does not touch it. */
static void
test_dropped(void **state)
{
    struct cairn_cipher *cipher = NULL;
    struct cairn_seal *sender = NULL;
    struct cairn_sealer *sealer = NULL;

    assert_int_equal(cairn_cipher_openssl.open(&cipher), CAIRN_OK);
    assert_int_equal(cairn_seal_create(cipher, true, true, key, &sender), CAIRN_OK);
    assert_int_equal(cairn_sealer_create(&sealer), CAIRN_OK);
    for (int round = 0; round < ROUNDS; round++) {
        uint8_t(*out)[CAIRN_BLOCK_BYTES] = malloc(sizeof sealed);

        assert_non_null(out);
        jobs_add(sealer, sender, out);
        for (int i = 0; i < round % BLOCKS; i++)
            assert_int_equal(cairn_sealer_finish(sealer, &jobs[i]), CAIRN_OK);
        for (int i = 0; i < BLOCKS; i++) {
            cairn_sealer_drop(sealer, &jobs[i]);
            assert_int_equal(jobs[i].state, CAIRN_SEALER_IDLE);
        }
        free(out);
    }
    cairn_sealer_destroy(sealer);
    cairn_seal_destroy(sender);
    cairn_cipher_close(cipher);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_block_once),
                                       cmocka_unit_test(test_dropped)};

    return cmocka_run_group_tests_name("sealer", tests, NULL, NULL);
}
