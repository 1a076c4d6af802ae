/* transport/seal.c - see seal.h. */
#include "transport/seal.h"

#include "base/wire.h"

#include <openssl/evp.h>
#include <stdlib.h>

enum { NONCE_BYTES = 12 };

struct cairn_seal {
    EVP_CIPHER_CTX *context;
    bool encrypt;
    uint64_t count; /* of blocks: the next one's nonce */
};

cairn_err
cairn_seal_create(bool encrypt, bool sender, const uint8_t key[CAIRN_SEAL_KEY_BYTES],
                  struct cairn_seal **out)
{
    struct cairn_seal *seal = calloc(1, sizeof *seal);

    if (!seal)
        return CAIRN_NOMEM;
    seal->encrypt = encrypt;
    seal->context = EVP_CIPHER_CTX_new();
    if (!seal->context ||
        EVP_CipherInit_ex(seal->context, EVP_aes_256_gcm(), NULL, key, NULL, sender) != 1) {
        cairn_seal_destroy(seal);
        return CAIRN_NOMEM;
    }
    *out = seal;
    return CAIRN_OK;
}

void
cairn_seal_destroy(struct cairn_seal *seal)
{
    if (!seal)
        return;
    EVP_CIPHER_CTX_free(seal->context); /* erases the key */
    free(seal);
}

/* Starts the next block's nonce and takes in what is not encrypted. */
static bool
block_begin(struct cairn_seal *seal, const void *head, size_t head_len, const void *block,
            size_t block_len)
{
    uint8_t nonce[NONCE_BYTES] = {0};
    struct cairn_writer writer;
    int taken;

    cairn_writer_init(&writer, nonce, sizeof nonce);
    cairn_write_u64(&writer, seal->count++);
    return EVP_CipherInit_ex(seal->context, NULL, NULL, NULL, nonce, -1) == 1 &&
           (head_len == 0 ||
            EVP_CipherUpdate(seal->context, NULL, &taken, head, (int)head_len) == 1) &&
           (seal->encrypt ||
            EVP_CipherUpdate(seal->context, NULL, &taken, block, (int)block_len) == 1);
}

cairn_err
cairn_seal_make(struct cairn_seal *seal, const void *head, size_t head_len, const void *block,
                size_t block_len, void *out, uint8_t tag[CAIRN_SEAL_TAG_BYTES])
{
    uint8_t rest[16];
    int taken;

    if (!block_begin(seal, head, head_len, block, block_len) ||
        (seal->encrypt &&
         EVP_CipherUpdate(seal->context, out, &taken, block, (int)block_len) != 1) ||
        EVP_CipherFinal_ex(seal->context, rest, &taken) != 1 ||
        EVP_CIPHER_CTX_ctrl(seal->context, EVP_CTRL_AEAD_GET_TAG, CAIRN_SEAL_TAG_BYTES, tag) != 1)
        return CAIRN_IO;
    return CAIRN_OK;
}

cairn_err
cairn_seal_check(struct cairn_seal *seal, const void *head, size_t head_len, void *block,
                 size_t block_len, uint8_t tag[CAIRN_SEAL_TAG_BYTES])
{
    uint8_t rest[16];
    int taken;

    if (!block_begin(seal, head, head_len, block, block_len) ||
        (seal->encrypt &&
         EVP_CipherUpdate(seal->context, block, &taken, block, (int)block_len) != 1) ||
        EVP_CIPHER_CTX_ctrl(seal->context, EVP_CTRL_AEAD_SET_TAG, CAIRN_SEAL_TAG_BYTES, tag) != 1 ||
        EVP_CipherFinal_ex(seal->context, rest, &taken) != 1)
        return CAIRN_CORRUPT;
    return CAIRN_OK;
}
