/*
 * tests/sim/seals.c - the tags of blocks between agents: the product's seals (transport/seal.h)
 * over a cipher that sees every nonce.
 *
 * A session has a seal for each direction at either end. TLS gives them a key that no other session
 * has; here a key is the numbers of the agents, the direction, and the session's number. The judge
 * fails a schedule in which a sender's nonces under one key do not rise, no matter what has
 * crashed, is adopted or is filled again in between.
 */
#include "agent/core/env/planted.h"
#include "tests/sim/sim.h"
#include "transport/seal.h"

#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

struct seal_cipher {
    struct cairn_cipher cipher; /* first */
    struct world *world;
    bool sender;
};

struct seal_key {
    struct cairn_cipher_key key; /* first */
    const struct seal_cipher *of;
    uint8_t bytes[CAIRN_CIPHER_KEY_BYTES];
};

static uint64_t
mix_bytes(uint64_t hash, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < len; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return mix64(hash);
}

/* ---- the cipher ---- */

static cairn_err
key_create(const struct cairn_cipher *cipher, bool encrypt, bool sender, const uint8_t *bytes,
           struct cairn_cipher_key **out)
{
    struct seal_key *key = calloc(1, sizeof *key);

    if (!key)
        abort();
    key->key.ops = cipher->ops;
    key->of = (const struct seal_cipher *)(const void *)cipher;
    memcpy(key->bytes, bytes, sizeof key->bytes);
    *out = &key->key;
    return CAIRN_OK;
}

static void
key_destroy(struct cairn_cipher_key *key)
{
    free(key);
}

/* The place of a key, which may be new: below which nonce all may have been used. */
static uint64_t *
seen_find(struct seals_seen *seen, uint64_t key)
{
    uint64_t at;

    if (seen->count * 2 >= seen->room) {
        struct seals_seen larger = {.room = seen->room ? seen->room * 2 : 64, .count = seen->count};

        larger.table = calloc(larger.room, sizeof *larger.table);
        if (!larger.table)
            abort();
        for (uint64_t i = 0; i < seen->room; i++)
            if (seen->table[i].key)
                *seen_find(&larger, seen->table[i].key) = seen->table[i].next;
        larger.count = seen->count;
        free(seen->table);
        *seen = larger;
    }
    key |= 1; /* 0 is an empty place */
    for (at = key >> 1 & (seen->room - 1); seen->table[at].key && seen->table[at].key != key;)
        at = (at + 1) & (seen->room - 1);
    seen->count += !seen->table[at].key;
    seen->table[at].key = key;
    return &seen->table[at].next;
}

/* A sender's nonces must rise under each key: then none comes twice. */
static void
nonce_judge(const struct seal_key *key, const uint8_t *nonce)
{
    struct world *world = key->of->world;
    uint64_t *next = seen_find(&world->seals_seen, mix_bytes(1, key->bytes, sizeof key->bytes));
    struct cairn_reader reader;
    uint64_t number;

    cairn_reader_init(&reader, nonce, CAIRN_CIPHER_NONCE_BYTES);
    number = cairn_read_u64(&reader);
    if (number < *next || cairn_read_u32(&reader) != 0)
        judge_fail(world, VERDICT_OTHER, "agent %u may give two blocks one nonce under one key",
                   key->bytes[0]);
    *next = number + 1;
}

static cairn_err
make(struct cairn_cipher_key *key, uint32_t thread, const struct cairn_cipher_block *how,
     const void *block, void *out, uint8_t *tag)
{
    const struct seal_key *own = (const struct seal_key *)(const void *)key;
    uint64_t hash = mix_bytes(mix_bytes(1, own->bytes, sizeof own->bytes), how->nonce,
                              CAIRN_CIPHER_NONCE_BYTES);

    if (own->of->sender)
        nonce_judge(own, how->nonce);
    for (size_t i = 0; i < CAIRN_CIPHER_TAG_BYTES; i += sizeof hash) {
        hash = mix_bytes(hash, block, how->block_len);
        memcpy(tag + i, &hash, sizeof hash);
    }
    return CAIRN_OK;
}

static const struct cairn_cipher_ops ops = {
    .name = "seen", .key_create = key_create, .key_destroy = key_destroy, .make = make};

/* ---- sessions ---- */

void
seals_open(struct world *world, struct link *link)
{
    static struct seal_cipher ciphers[2];

    cairn_seal_planted = world->planted_bug == BUG_NONCE_OF_PLACE;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t side = i / 2, at = i % 2; /* of the seal: 0 at the sender */
        uint64_t numbers[CAIRN_SEAL_KEY_BYTES / 8] = {
            link->agents[!side], link->agents[side],
            world->planted_bug == BUG_KEY_OF_NODES ? 0 : link->session};
        uint8_t bytes[CAIRN_SEAL_KEY_BYTES];

        ciphers[at] = (struct seal_cipher){{.ops = &ops}, world, at == 0};
        memcpy(bytes, numbers, sizeof bytes);
        cairn_seal_destroy(link->seals[side][at]);
        if (cairn_seal_create(&ciphers[at].cipher, false, at == 0, bytes, &link->seals[side][at]))
            abort();
    }
}

void
seals_close(struct link *link)
{
    for (uint32_t i = 0; i < 4; i++)
        cairn_seal_destroy(link->seals[i / 2][i % 2]);
}

uint64_t
seals_tag(struct cairn_seal *seal, const uint8_t *payload, uint32_t payload_len)
{
    uint64_t all = 0;

    for (uint32_t at = 0; at < payload_len; at += BLOCK_BYTES) {
        uint8_t tag[CAIRN_SEAL_TAG_BYTES];
        uint32_t rest = payload_len - at;

        if (cairn_seal_tag(seal, payload + at, rest < BLOCK_BYTES ? rest : BLOCK_BYTES, tag))
            abort();
        all = mix_bytes(all, tag, sizeof tag);
    }
    return all;
}
