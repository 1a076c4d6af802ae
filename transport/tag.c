/* transport/tag.c - see tag.h. */
#include "transport/tag.h"

#include "transport/frame.h"

#include "base/limits.h"
#include "base/secret.h"
#include "base/wire.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

/* Tags that are remembered, each in the one place that its address has: those of 256 MiB that lie
 * together. All receivers of a block get it long before so much else is sent. */
enum { SUM_BYTES = 8, REMEMBERED = 4096 };

struct remembered {
    const void *block; /* NULL: no tag */
    size_t block_len;
    uint8_t sum[SUM_BYTES];
    struct cairn_tag tag;
};

struct cairn_tagger {
    uint8_t *key_bytes; /* of base/secret.h */
    struct cairn_cipher_key *key;
    uint64_t count;
    struct remembered remembered[REMEMBERED];
};

cairn_err
cairn_tagger_create(const struct cairn_cipher *cipher, struct cairn_tagger **out)
{
    struct cairn_tagger *tagger = calloc(1, sizeof *tagger);
    cairn_err err = CAIRN_NOMEM;

    if (!tagger)
        return err;
    tagger->key_bytes = cairn_secret_alloc(CAIRN_CIPHER_KEY_BYTES);
    if (tagger->key_bytes)
        err = cairn_proof_random(tagger->key_bytes, CAIRN_CIPHER_KEY_BYTES);
    if (!err)
        err = cipher->ops->key_create(cipher, false, true, tagger->key_bytes, &tagger->key);
    if (err) {
        cairn_tagger_destroy(tagger);
        return err;
    }
    *out = tagger;
    return CAIRN_OK;
}

void
cairn_tagger_destroy(struct cairn_tagger *tagger)
{
    if (!tagger)
        return;
    cairn_cipher_key_destroy(tagger->key);
    cairn_secret_free(tagger->key_bytes, CAIRN_CIPHER_KEY_BYTES);
    free(tagger);
}

const uint8_t *
cairn_tagger_key(const struct cairn_tagger *tagger)
{
    return tagger->key_bytes;
}

static struct remembered *
place_of(struct cairn_tagger *tagger, const void *block)
{
    return &tagger->remembered[(uintptr_t)block / CAIRN_BLOCK_BYTES % REMEMBERED];
}

void
cairn_tagger_find(struct cairn_tagger *tagger, const void *block, size_t block_len,
                  const uint8_t *sum, struct cairn_tag *out)
{
    const struct remembered *place = place_of(tagger, block);

    if (sum && place->block == block && place->block_len == block_len &&
        memcmp(place->sum, sum, SUM_BYTES) == 0)
        *out = place->tag;
    else
        *out = (struct cairn_tag){.number = tagger->count++};
}

cairn_err
cairn_tagger_make(struct cairn_tagger *tagger, const void *block, size_t block_len,
                  const uint8_t *sum, struct cairn_tag *tag)
{
    struct remembered *place = place_of(tagger, block);
    cairn_err err = cairn_tag_compute(tagger->key, tag->number, block, block_len, tag->bytes);

    if (err)
        return err;
    tag->known = true;
    if (!sum)
        return CAIRN_OK;
    *place = (struct remembered){.block = block, .block_len = block_len, .tag = *tag};
    memcpy(place->sum, sum, SUM_BYTES);
    return CAIRN_OK;
}

void
cairn_tagger_forget(struct cairn_tagger *tagger)
{
    memset(tagger->remembered, 0, sizeof tagger->remembered);
}

cairn_err
cairn_tag_compute(struct cairn_cipher_key *key, uint64_t number, const void *block,
                  size_t block_len, uint8_t out[CAIRN_CIPHER_TAG_BYTES])
{
    uint8_t nonce[CAIRN_CIPHER_NONCE_BYTES];
    const struct cairn_cipher_block how = {.nonce = nonce, .block_len = block_len};
    struct cairn_writer writer;

    cairn_writer_init(&writer, nonce, CAIRN_CIPHER_NONCE_BYTES);
    cairn_write_u64(&writer, number);
    cairn_write_u32(&writer, 0);
    return key->ops->make(key, &how, block, NULL, out);
}

bool
cairn_tags_same(const uint8_t *a, const uint8_t *b, size_t bytes_len)
{
    return CRYPTO_memcmp(a, b, bytes_len) == 0;
}
