/* transport/cipher.c - see cipher.h: which library is the fastest. */
#include "transport/cipher.h"

#include "base/clock.h"
#include "base/limits.h"

#include <stdlib.h>

/* Each round is long beside the clock's resolution. The shortest of several counts: nobody took the
 * core away in it. */
enum { ROUNDS = 4, ROUND_BLOCKS = 8 };

const struct cairn_cipher_ops *const cairn_cipher_libraries[CAIRN_CIPHER_LIBRARIES] = {
    &cairn_cipher_openssl, &cairn_cipher_ipsec};

/* Seals the block again and again, under a key that protects nothing. */
static cairn_err
measure(struct cairn_cipher *cipher, bool encrypt, const uint8_t *block, uint8_t *out,
        double *bytes_per_s)
{
    static const uint8_t zeros[CAIRN_CIPHER_KEY_BYTES];
    const struct cairn_cipher_block how = {.nonce = zeros, .block_len = CAIRN_BLOCK_BYTES};
    struct cairn_clock clock = cairn_clock_system();
    struct cairn_cipher_key *key = NULL;
    uint8_t tag[CAIRN_CIPHER_TAG_BYTES];
    uint64_t shortest_ns = UINT64_MAX;
    cairn_err err = cipher->ops->key_create(cipher, encrypt, true, zeros, &key);

    for (int round = 0; round < ROUNDS && !err; round++) {
        uint64_t begin_ns = cairn_clock_now_ns(&clock), took_ns;

        for (int i = 0; i < ROUND_BLOCKS && !err; i++)
            err = cipher->ops->make(key, 0, &how, block, out, tag);
        took_ns = cairn_clock_now_ns(&clock) - begin_ns;
        if (took_ns < shortest_ns)
            shortest_ns = took_ns;
    }
    cairn_cipher_key_destroy(key);
    if (!err)
        *bytes_per_s = (double)ROUND_BLOCKS * CAIRN_BLOCK_BYTES * 1e9 / (double)(shortest_ns + 1);
    return err;
}

cairn_err
cairn_cipher_choose(bool encrypt, struct cairn_cipher **out, struct cairn_cipher_speeds *speeds)
{
    struct cairn_cipher_speeds found = {{0}};
    struct cairn_cipher *best = NULL;
    double best_speed = 0;
    uint8_t *block = calloc(2, CAIRN_BLOCK_BYTES);
    cairn_err err = block ? CAIRN_OK : CAIRN_NOMEM;

    for (int i = 0; i < CAIRN_CIPHER_LIBRARIES && !err; i++) {
        struct cairn_cipher *cipher = NULL;
        double *speed = &found.bytes_per_s[i];

        err = cairn_cipher_libraries[i]->open(&cipher);
        if (err == CAIRN_NOT_FOUND) {
            err = CAIRN_OK;
            continue;
        }
        if (!err)
            err = measure(cipher, encrypt, block, block + CAIRN_BLOCK_BYTES, speed);
        if (!err && *speed > best_speed) {
            cairn_cipher_close(best);
            best = cipher;
            best_speed = *speed;
            cipher = NULL;
        }
        cairn_cipher_close(cipher);
    }
    free(block);
    if (err) {
        cairn_cipher_close(best);
        return err;
    }
    if (speeds)
        *speeds = found;
    *out = best;
    return CAIRN_OK;
}

void
cairn_cipher_close(struct cairn_cipher *cipher)
{
    if (cipher)
        cipher->ops->close(cipher);
}

void
cairn_cipher_key_destroy(struct cairn_cipher_key *key)
{
    if (key)
        key->ops->key_destroy(key);
}
