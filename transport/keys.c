/* transport/keys.c - see keys.h. */
#include "transport/keys.h"

#include "base/log.h"
#include "base/wire.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <string.h>
#include <sys/mman.h>

enum { KEY_BYTES_MAX = 256, INFO_BYTES = 40, PAGE_BYTES = 4096 };

struct cairn_keys {
    uint64_t job_id;
    uint32_t id;
    size_t key_len;
    uint8_t key[KEY_BYTES_MAX];
};

/* HKDF-SHA256 of the job's key for one purpose. */
static cairn_err
derive(const struct cairn_keys *keys, const char *purpose, uint32_t from, uint32_t to, uint8_t *out,
       size_t out_len)
{
    static char digest[] = "SHA256", salt[] = "cairn transport 1";
    uint8_t info[INFO_BYTES] = {0};
    struct cairn_writer writer;
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *context = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    OSSL_PARAM params[5];
    bool good;

    cairn_writer_init(&writer, info, sizeof info);
    cairn_write_bytes(&writer, purpose, strlen(purpose));
    cairn_write_u64(&writer, keys->job_id);
    cairn_write_u32(&writer, from);
    cairn_write_u32(&writer, to);
    params[0] = OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0);
    params[1] = OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)keys->key,
                                                  keys->key_len);
    params[2] = OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof salt - 1);
    params[3] = OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof info);
    params[4] = OSSL_PARAM_construct_end();
    good = context && EVP_KDF_derive(context, out, out_len, params) == 1;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    if (good)
        return CAIRN_OK;
    CAIRN_LOG_AT(ERROR, "transport: the crypto library cannot derive a key");
    return CAIRN_IO;
}

cairn_err
cairn_keys_create(const void *key, size_t key_len, uint64_t job_id, struct cairn_keys **out)
{
    struct cairn_keys *keys;
    cairn_err err;

    _Static_assert(sizeof *keys <= PAGE_BYTES, "the keys fit their page");
    if (key_len == 0 || key_len > KEY_BYTES_MAX)
        return CAIRN_INVAL;
    keys = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (keys == MAP_FAILED)
        return CAIRN_NOMEM;
    (void)madvise(keys, PAGE_BYTES, MADV_DONTDUMP);
    (void)mlock(keys, PAGE_BYTES);
    keys->job_id = job_id;
    keys->key_len = key_len;
    memcpy(keys->key, key, key_len);
    err = derive(keys, "id", 0, 0, (uint8_t *)&keys->id, sizeof keys->id);
    if (err) {
        cairn_keys_destroy(keys);
        return err;
    }
    *out = keys;
    return CAIRN_OK;
}

void
cairn_keys_destroy(struct cairn_keys *keys)
{
    if (!keys)
        return;
    explicit_bzero(keys, sizeof *keys);
    munmap(keys, PAGE_BYTES);
}

uint32_t
cairn_keys_offered(const struct cairn_keys *keys)
{
    return keys->id;
}

cairn_err
cairn_keys_psk(const struct cairn_keys *keys, uint32_t key_id, uint32_t from, uint32_t to,
               uint8_t out[CAIRN_KEYS_PSK_BYTES])
{
    if (key_id != keys->id)
        return CAIRN_NOT_FOUND;
    return derive(keys, "psk", from, to, out, CAIRN_KEYS_PSK_BYTES);
}
