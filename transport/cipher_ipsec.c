/*
 * transport/cipher_ipsec.c - AES-256-GCM by Intel's ipsec-mb: see cipher.h. The only file here that
 * includes it.
 *
 * The library is opened at run time, only for hosts that protect payloads. Its kernels are members
 * of a struct that grows between versions, so only the version of our headers is used. It tests
 * itself when opened. Its calls return nothing: what they would refuse (missing keys, buffers) is
 * asserted here.
 */
#include "transport/cipher.h"

#include "base/assert.h"
#include "base/secret.h"

#include <dlfcn.h>
#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>
#include <stdlib.h>

/*
 * A sender's block comes from memory. The kernels compute faster than a core's own prefetching
 * fetches it, since that ends at each page. So a sender computes a page while it fetches the next
 * one. A receiver's block was just copied and is in cache.
 */
enum { AHEAD_BYTES = 4096, LINE_BYTES = 64 };

struct ipsec {
    struct cairn_cipher cipher;
    void *library;
    IMB_MGR *manager;
    void (*manager_free)(IMB_MGR *manager);
};

/* In memory of base/secret.h: it has the key, and the hash's secret in `state`. */
struct ipsec_key {
    struct cairn_cipher_key key;
    IMB_MGR *manager;
    bool encrypt;
    bool sender;
    struct gcm_context_data state;
    _Alignas(64) struct gcm_key_data data; /* the kernels read it in whole vectors */
};

static struct ipsec_key *
ipsec_key_of(struct cairn_cipher_key *key)
{
    return (struct ipsec_key *)(void *)key;
}

static void
ipsec_close(struct cairn_cipher *cipher)
{
    struct ipsec *ipsec = (struct ipsec *)(void *)cipher;

    if (ipsec->manager)
        ipsec->manager_free(ipsec->manager);
    dlclose(ipsec->library);
    free(ipsec);
}

/* The library's manager, ready for this processor. NULL: wrong version, or its own tests fail. */
static IMB_MGR *
manager_make(struct ipsec *ipsec)
{
    unsigned (*version)(void);
    IMB_MGR *(*make)(uint64_t flags);
    void (*init)(IMB_MGR * manager, IMB_ARCH * arch);
    IMB_ARCH arch = IMB_ARCH_NONE;

    *(void **)(void *)&version = dlsym(ipsec->library, "imb_get_version");
    *(void **)(void *)&make = dlsym(ipsec->library, "alloc_mb_mgr");
    *(void **)(void *)&init = dlsym(ipsec->library, "init_mb_mgr_auto");
    *(void **)(void *)&ipsec->manager_free = dlsym(ipsec->library, "free_mb_mgr");
    if (!version || !make || !init || !ipsec->manager_free || version() != IMB_VERSION_NUM)
        return NULL;
    ipsec->manager = make(0);
    if (!ipsec->manager)
        return NULL;
    init(ipsec->manager, &arch);
    return arch != IMB_ARCH_NONE && (ipsec->manager->features & IMB_FEATURE_SELF_TEST_PASS)
               ? ipsec->manager
               : NULL;
}

static cairn_err
ipsec_open(struct cairn_cipher **out)
{
    struct ipsec *ipsec = calloc(1, sizeof *ipsec);

    if (!ipsec)
        return CAIRN_NOMEM;
    ipsec->cipher.ops = &cairn_cipher_ipsec;
    ipsec->library = dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!ipsec->library) {
        free(ipsec);
        return CAIRN_NOT_FOUND;
    }
    if (!manager_make(ipsec)) {
        ipsec_close(&ipsec->cipher);
        return CAIRN_NOT_FOUND;
    }
    *out = &ipsec->cipher;
    return CAIRN_OK;
}

static void
ipsec_key_destroy(struct cairn_cipher_key *key)
{
    cairn_secret_free(ipsec_key_of(key), sizeof(struct ipsec_key));
}

static cairn_err
ipsec_key_create(const struct cairn_cipher *cipher, bool encrypt, bool sender,
                 const uint8_t bytes[CAIRN_CIPHER_KEY_BYTES], struct cairn_cipher_key **out)
{
    const struct ipsec *ipsec = (const struct ipsec *)(const void *)cipher;
    struct ipsec_key *key = cairn_secret_alloc(sizeof *key);

    if (!key)
        return CAIRN_NOMEM;
    key->key.ops = cipher->ops;
    key->manager = ipsec->manager;
    key->encrypt = encrypt;
    key->sender = sender;
    IMB_AES256_GCM_PRE(key->manager, bytes, &key->data);
    *out = &key->key;
    return CAIRN_OK;
}

/* The bytes of a block to compute next. Those behind them are fetched into the cache. */
static size_t
step_fetch(const struct ipsec_key *key, const uint8_t *rest, size_t rest_len)
{
    size_t step = key->sender && rest_len > AHEAD_BYTES ? AHEAD_BYTES : rest_len;
    size_t end = rest_len - step < AHEAD_BYTES ? rest_len : step + AHEAD_BYTES;

    for (size_t at = step; at < end; at += LINE_BYTES)
        __builtin_prefetch(rest + at, 0, 2);
    return step;
}

/* The tag of head and block, neither of them encrypted. */
static void
tag_compute(struct ipsec_key *key, const struct cairn_cipher_block *how, const void *block,
            uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    IMB_MGR *manager = key->manager;

    IMB_AES256_GMAC_INIT(manager, &key->data, &key->state, how->nonce, CAIRN_CIPHER_NONCE_BYTES);
    if (how->head_len)
        IMB_AES256_GMAC_UPDATE(manager, &key->data, &key->state, how->head, how->head_len);
    for (size_t at = 0, step; at < how->block_len; at += step) {
        const uint8_t *rest = (const uint8_t *)block + at;

        step = step_fetch(key, rest, how->block_len - at);
        IMB_AES256_GMAC_UPDATE(manager, &key->data, &key->state, rest, step);
    }
    IMB_AES256_GMAC_FINALIZE(manager, &key->data, &key->state, tag, CAIRN_CIPHER_TAG_BYTES);
}

/* Encrypts the block into `out` and makes its tag. */
static void
block_encrypt(struct ipsec_key *key, const struct cairn_cipher_block *how, const void *block,
              uint8_t *out, uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    IMB_MGR *manager = key->manager;

    IMB_AES256_GCM_INIT(manager, &key->data, &key->state, how->nonce, how->head, how->head_len);
    for (size_t at = 0, step; at < how->block_len; at += step) {
        const uint8_t *rest = (const uint8_t *)block + at;

        step = step_fetch(key, rest, how->block_len - at);
        IMB_AES256_GCM_ENC_UPDATE(manager, &key->data, &key->state, out + at, rest, step);
    }
    IMB_AES256_GCM_ENC_FINALIZE(manager, &key->data, &key->state, tag, CAIRN_CIPHER_TAG_BYTES);
}

static cairn_err
ipsec_make(struct cairn_cipher_key *key, const struct cairn_cipher_block *how, const void *block,
           void *out, uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    struct ipsec_key *own = ipsec_key_of(key);

    CAIRN_ASSERT(block && how->block_len && (how->head || !how->head_len));
    CAIRN_ASSERT(out || !own->encrypt);
    if (own->encrypt)
        block_encrypt(own, how, block, out, tag);
    else
        tag_compute(own, how, block, tag);
    return CAIRN_OK;
}

static cairn_err
ipsec_check(struct cairn_cipher_key *key, const struct cairn_cipher_block *how, void *block,
            const uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    struct ipsec_key *own = ipsec_key_of(key);
    uint8_t right[CAIRN_CIPHER_TAG_BYTES];

    CAIRN_ASSERT(block && how->block_len && (how->head || !how->head_len));
    if (own->encrypt)
        IMB_AES256_GCM_DEC(own->manager, &own->data, &own->state, block, block, how->block_len,
                           how->nonce, how->head, how->head_len, right, CAIRN_CIPHER_TAG_BYTES);
    else
        tag_compute(own, how, block, right);
    return CRYPTO_memcmp(right, tag, sizeof right) == 0 ? CAIRN_OK : CAIRN_CORRUPT;
}

const struct cairn_cipher_ops cairn_cipher_ipsec = {
    .name = "ipsec-mb",
    .open = ipsec_open,
    .close = ipsec_close,
    .key_create = ipsec_key_create,
    .key_destroy = ipsec_key_destroy,
    .make = ipsec_make,
    .check = ipsec_check,
};
