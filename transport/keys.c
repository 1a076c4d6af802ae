/* transport/keys.c - see keys.h. */
#include "transport/keys.h"

#include "base/log.h"
#include "base/secret.h"
#include "base/wire.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <inttypes.h>
#include <string.h>

enum { INFO_BYTES = 40 };

struct key {
    uint32_t id;
    size_t len; /* 0: none */
    uint8_t bytes[CAIRN_TRANSPORT_KEY_BYTES_MAX];
};

struct cairn_keys {
    uint64_t job_id;
    struct key ring[CAIRN_KEYS_MAX];
};

/* HKDF-SHA256 of one of the job's keys for one purpose. */
static cairn_err
derive(const struct cairn_keys *keys, const struct key *key, const char *purpose, uint32_t from,
       uint32_t to, uint8_t *out, size_t out_len)
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
    params[1] = OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)key->bytes,
                                                  key->len);
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
cairn_keys_create(uint64_t job_id, struct cairn_keys **out)
{
    struct cairn_keys *keys = cairn_secret_alloc(sizeof *keys);

    if (!keys)
        return CAIRN_NOMEM;
    keys->job_id = job_id;
    *out = keys;
    return CAIRN_OK;
}

void
cairn_keys_destroy(struct cairn_keys *keys)
{
    cairn_secret_free(keys, sizeof *keys);
}

cairn_err
cairn_keys_set(struct cairn_keys *keys, const struct cairn_transport_key ring[CAIRN_KEYS_MAX])
{
    struct cairn_keys *fresh = NULL;
    cairn_err err = cairn_keys_create(keys->job_id, &fresh);

    for (uint32_t i = 0; !err && i < CAIRN_KEYS_MAX; i++) {
        struct key *key = &fresh->ring[i];

        if (ring[i].len == 0)
            continue;
        key->len = ring[i].len;
        memcpy(key->bytes, ring[i].bytes, ring[i].len);
        err = derive(fresh, key, "id", 0, 0, (uint8_t *)&key->id, sizeof key->id);
    }
    if (!err && fresh->ring[1].len && fresh->ring[0].id == fresh->ring[1].id) {
        CAIRN_LOG_AT(ERROR,
                     "transport: both keys have the id %08" PRIx32 "; give two different keys",
                     fresh->ring[0].id);
        err = CAIRN_CONFIG;
    }
    if (!err && memcmp(keys, fresh, sizeof *keys) != 0) {
        *keys = *fresh;
        if (keys->ring[1].len)
            CAIRN_LOG_AT(INFO,
                         "transport: key %08" PRIx32 " is offered, and %08" PRIx32 " accepted",
                         keys->ring[0].id, keys->ring[1].id);
        else if (keys->ring[0].len)
            CAIRN_LOG_AT(INFO, "transport: key %08" PRIx32 " is offered", keys->ring[0].id);
        else
            CAIRN_LOG_AT(INFO, "transport: no key is offered or accepted, but certificates are");
    }
    if (fresh)
        cairn_keys_destroy(fresh);
    return err;
}

bool
cairn_keys_id(const struct cairn_keys *keys, uint32_t place, uint32_t *id)
{
    if (place >= CAIRN_KEYS_MAX || keys->ring[place].len == 0)
        return false;
    *id = keys->ring[place].id;
    return true;
}

cairn_err
cairn_keys_psk(const struct cairn_keys *keys, uint32_t key_id, uint32_t from, uint32_t to,
               uint8_t out[CAIRN_KEYS_PSK_BYTES])
{
    for (uint32_t i = 0; i < CAIRN_KEYS_MAX; i++)
        if (keys->ring[i].len && keys->ring[i].id == key_id)
            return derive(keys, &keys->ring[i], "psk", from, to, out, CAIRN_KEYS_PSK_BYTES);
    return CAIRN_NOT_FOUND;
}

bool
cairn_keys_ports(const struct cairn_keys *keys, uint32_t place, uint32_t to,
                 struct cairn_ports *out)
{
    uint32_t number;

    if (place >= CAIRN_KEYS_MAX || keys->ring[place].len == 0 ||
        derive(keys, &keys->ring[place], "ports", 0, to, (uint8_t *)&number, sizeof number) !=
            CAIRN_OK)
        return false;
    *out = cairn_ports_make(number);
    return true;
}
