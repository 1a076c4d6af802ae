/* base/sha256.c - the only file that includes OpenSSL's digest header. */
#include "base/sha256.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct cairn_sha256 {
    EVP_MD_CTX *context;
    bool failed;
};

cairn_err
cairn_sha256_create(struct cairn_sha256 **out)
{
    struct cairn_sha256 *sha = calloc(1, sizeof(*sha));

    if (!sha)
        return CAIRN_NOMEM;
    sha->context = EVP_MD_CTX_new();
    if (!sha->context) {
        free(sha);
        return CAIRN_NOMEM;
    }
    sha->failed = EVP_DigestInit_ex(sha->context, EVP_sha256(), NULL) != 1;
    *out = sha;
    return CAIRN_OK;
}

void
cairn_sha256_destroy(struct cairn_sha256 *sha)
{
    if (!sha)
        return;
    EVP_MD_CTX_free(sha->context);
    free(sha);
}

void
cairn_sha256_update(struct cairn_sha256 *sha, const void *bytes, size_t bytes_len)
{
    if (!sha->failed && bytes_len > 0)
        sha->failed = EVP_DigestUpdate(sha->context, bytes, bytes_len) != 1;
}

cairn_err
cairn_sha256_final(struct cairn_sha256 *sha, uint8_t digest[CAIRN_SHA256_BYTES])
{
    bool failed = sha->failed;
    uint8_t value[EVP_MAX_MD_SIZE];
    unsigned value_bytes = 0;

    failed = failed || EVP_DigestFinal_ex(sha->context, value, &value_bytes) != 1 ||
             value_bytes != CAIRN_SHA256_BYTES;
    sha->failed = EVP_DigestInit_ex(sha->context, EVP_sha256(), NULL) != 1;
    if (failed)
        return CAIRN_INTERNAL;
    for (int i = 0; i < CAIRN_SHA256_BYTES; i++)
        digest[i] = value[i];
    return CAIRN_OK;
}

void
cairn_sha256_text(const uint8_t digest[CAIRN_SHA256_BYTES], char text[CAIRN_SHA256_TEXT_BYTES])
{
    for (int i = 0; i < CAIRN_SHA256_BYTES; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", digest[i]);
}
