/* transport/cipher_openssl.c - AES-256-GCM by OpenSSL: see cipher.h. */
#include "transport/cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>

struct openssl_key {
    struct cairn_cipher_key key;
    EVP_CIPHER_CTX *contexts[CAIRN_CIPHER_THREADS];
    bool encrypt;
};

static struct openssl_key *
openssl_key_of(struct cairn_cipher_key *key)
{
    return (struct openssl_key *)(void *)key;
}

static cairn_err
openssl_open(struct cairn_cipher **out)
{
    *out = malloc(sizeof **out);
    if (!*out)
        return CAIRN_NOMEM;
    (*out)->ops = &cairn_cipher_openssl;
    return CAIRN_OK;
}

static void
openssl_close(struct cairn_cipher *cipher)
{
    free(cipher);
}

static void
openssl_key_destroy(struct cairn_cipher_key *key)
{
    for (int i = 0; i < CAIRN_CIPHER_THREADS; i++)
        EVP_CIPHER_CTX_free(openssl_key_of(key)->contexts[i]); /* erases the key */
    free(key);
}

static cairn_err
openssl_key_create(const struct cairn_cipher *cipher, bool encrypt, bool sender,
                   const uint8_t bytes[CAIRN_CIPHER_KEY_BYTES], struct cairn_cipher_key **out)
{
    struct openssl_key *key = calloc(1, sizeof *key);

    if (!key)
        return CAIRN_NOMEM;
    key->key.ops = cipher->ops;
    key->encrypt = encrypt;
    for (int i = 0; i < CAIRN_CIPHER_THREADS; i++) {
        key->contexts[i] = EVP_CIPHER_CTX_new();
        if (!key->contexts[i] || EVP_CipherInit_ex(key->contexts[i], EVP_aes_256_gcm(), NULL, bytes,
                                                   NULL, sender || !encrypt) != 1) {
            openssl_key_destroy(&key->key);
            return CAIRN_NOMEM;
        }
    }
    *out = &key->key;
    return CAIRN_OK;
}

/* Takes the nonce, the head and the block. Encrypts or decrypts it into `out`; NULL: does not. */
static bool
block_take(EVP_CIPHER_CTX *context, const struct cairn_cipher_block *how, const void *block,
           void *out)
{
    int taken;

    return EVP_CipherInit_ex(context, NULL, NULL, NULL, how->nonce, -1) == 1 &&
           (how->head_len == 0 ||
            EVP_CipherUpdate(context, NULL, &taken, how->head, (int)how->head_len) == 1) &&
           EVP_CipherUpdate(context, out, &taken, block, (int)how->block_len) == 1;
}

static cairn_err
openssl_make(struct cairn_cipher_key *key, uint32_t thread, const struct cairn_cipher_block *how,
             const void *block, void *out, uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    const struct openssl_key *own = openssl_key_of(key);
    EVP_CIPHER_CTX *context = own->contexts[thread];
    uint8_t rest[16];
    int taken;

    if (!block_take(context, how, block, own->encrypt ? out : NULL) ||
        EVP_CipherFinal_ex(context, rest, &taken) != 1 ||
        EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, CAIRN_CIPHER_TAG_BYTES, tag) != 1)
        return CAIRN_IO;
    return CAIRN_OK;
}

static cairn_err
openssl_check(struct cairn_cipher_key *key, const struct cairn_cipher_block *how, void *block,
              const uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    const struct openssl_key *own = openssl_key_of(key);
    EVP_CIPHER_CTX *context = own->contexts[0];
    uint8_t rest[16], right[CAIRN_CIPHER_TAG_BYTES];
    int taken;

    if (!own->encrypt) /* the receiver computes the same tag */
        return openssl_make(key, 0, how, block, NULL, right) == CAIRN_OK &&
                       CRYPTO_memcmp(right, tag, sizeof right) == 0
                   ? CAIRN_OK
                   : CAIRN_CORRUPT;
    if (!block_take(context, how, block, block) ||
        EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, CAIRN_CIPHER_TAG_BYTES,
                            (void *)(uintptr_t)tag) != 1 ||
        EVP_CipherFinal_ex(context, rest, &taken) != 1)
        return CAIRN_CORRUPT;
    return CAIRN_OK;
}

const struct cairn_cipher_ops cairn_cipher_openssl = {
    .name = "OpenSSL",
    .open = openssl_open,
    .close = openssl_close,
    .key_create = openssl_key_create,
    .key_destroy = openssl_key_destroy,
    .make = openssl_make,
    .check = openssl_check,
};
