/* transport/seal.c - see seal.h. */
#include "transport/seal.h"

#include "base/wire.h"

#include <openssl/crypto.h>
#include <stdlib.h>

struct cairn_seal {
    struct cairn_cipher_key *key;
    uint64_t count; /* of blocks: the next one's nonce */
};

cairn_err
cairn_seal_create(const struct cairn_cipher *cipher, bool encrypt, bool sender,
                  const uint8_t key[CAIRN_SEAL_KEY_BYTES], struct cairn_seal **out)
{
    struct cairn_seal *seal = calloc(1, sizeof *seal);
    cairn_err err;

    if (!seal)
        return CAIRN_NOMEM;
    err = cipher->ops->key_create(cipher, encrypt, sender, key, &seal->key);
    if (err) {
        free(seal);
        return err;
    }
    *out = seal;
    return CAIRN_OK;
}

void
cairn_seal_destroy(struct cairn_seal *seal)
{
    if (!seal)
        return;
    seal->key->ops->key_destroy(seal->key);
    free(seal);
}

#ifdef CAIRN_PLANTED_BUGS
bool cairn_seal_planted;
#define CAIRN_PLANTED_PLACE(block, count) (cairn_seal_planted ? (uintptr_t)(block) : (count))
#else
#define CAIRN_PLANTED_PLACE(block, count) ((void)(block), (count))
#endif

/* Every call uses up a nonce, whether it succeeds or not. */
static void
nonce_take(struct cairn_seal *seal, const void *block, uint8_t nonce[CAIRN_CIPHER_NONCE_BYTES])
{
    struct cairn_writer writer;
    uint64_t number = seal->count++;

    cairn_writer_init(&writer, nonce, CAIRN_CIPHER_NONCE_BYTES);
    cairn_write_u64(&writer, CAIRN_PLANTED_PLACE(block, number));
    cairn_write_u32(&writer, 0);
}

void
cairn_seal_take(struct cairn_seal_block *block)
{
    nonce_take(block->seal, block->block, block->nonce);
}

cairn_err
cairn_seal_run(const struct cairn_seal_block *block, uint32_t thread)
{
    const struct cairn_cipher_block how = {block->nonce, block->head, block->head_len,
                                           block->block_len};
    struct cairn_cipher_key *key = block->seal->key;

    return key->ops->make(key, thread, &how, block->block, block->out, block->tag);
}

cairn_err
cairn_seal_make(struct cairn_seal *seal, const void *head, size_t head_len, const void *block,
                size_t block_len, void *out, uint8_t tag[CAIRN_SEAL_TAG_BYTES])
{
    struct cairn_seal_block whole = {seal, head, block, head_len, block_len, out, tag, {0}};

    cairn_seal_take(&whole);
    return cairn_seal_run(&whole, 0);
}

cairn_err
cairn_seal_check(struct cairn_seal *seal, const void *head, size_t head_len, void *block,
                 size_t block_len, const uint8_t tag[CAIRN_SEAL_TAG_BYTES])
{
    uint8_t nonce[CAIRN_CIPHER_NONCE_BYTES];
    const struct cairn_cipher_block how = {nonce, head, head_len, block_len};

    nonce_take(seal, block, nonce);
    return seal->key->ops->check(seal->key, &how, block, tag);
}

cairn_err
cairn_seal_tag(struct cairn_seal *seal, const void *block, size_t block_len,
               uint8_t tag[CAIRN_SEAL_TAG_BYTES])
{
    return cairn_seal_make(seal, NULL, 0, block, block_len, NULL, tag);
}

bool
cairn_seal_tags_same(const uint8_t *a, const uint8_t *b, size_t bytes_len)
{
    return CRYPTO_memcmp(a, b, bytes_len) == 0;
}
