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
#include "base/clock.h"
#include "base/limits.h"
#include "base/secret.h"

#include <dlfcn.h>
#include <emmintrin.h>
#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>
#include <stdlib.h>

/*
 * A sender's block comes from memory, and the kernels compute faster than a core's own prefetching
 * fetches it: that ends at each page. So a sender may compute some KiB while it fetches the
 * next KiB. The best number depends on the processor, and is measured. A receiver's block has just
 * been copied, and is in cache.
 */
static const size_t ahead_choices[] = {CAIRN_BLOCK_BYTES, 2048, 4096};
enum { CHOICES = sizeof ahead_choices / sizeof ahead_choices[0], LINE_BYTES = 64 };
enum { TRIALS = 4, TRIAL_BLOCKS = 4 };

struct ipsec {
    struct cairn_cipher cipher;
    void *library;
    IMB_MGR *manager;
    void (*manager_free)(IMB_MGR *manager);
    size_t ahead_bytes[2]; /* for keys that tag, and that encrypt */
};

/* In memory of base/secret.h: it has the key, and the hash's secret in `states`. */
struct ipsec_key {
    struct cairn_cipher_key key;
    IMB_MGR *manager;
    bool encrypt;
    size_t ahead_bytes;
    struct gcm_context_data states[CAIRN_CIPHER_THREADS];
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
    key->ahead_bytes = sender ? ipsec->ahead_bytes[encrypt] : CAIRN_BLOCK_BYTES;
    IMB_AES256_GCM_PRE(key->manager, bytes, &key->data);
    *out = &key->key;
    return CAIRN_OK;
}

/* The bytes of a block to compute next. Those behind them are fetched into the cache. */
static size_t
step_fetch(const struct ipsec_key *key, const uint8_t *rest, size_t rest_len)
{
    size_t step = rest_len < key->ahead_bytes ? rest_len : key->ahead_bytes;
    size_t end = rest_len - step < key->ahead_bytes ? rest_len : step + key->ahead_bytes;

    for (size_t at = step; at < end; at += LINE_BYTES)
        __builtin_prefetch(rest + at, 0, 2);
    return step;
}

/* The tag of head and block, neither of them encrypted. */
static void
tag_compute(struct ipsec_key *key, struct gcm_context_data *state,
            const struct cairn_cipher_block *how, const void *block,
            uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    IMB_MGR *manager = key->manager;

    IMB_AES256_GMAC_INIT(manager, &key->data, state, how->nonce, CAIRN_CIPHER_NONCE_BYTES);
    if (how->head_len)
        IMB_AES256_GMAC_UPDATE(manager, &key->data, state, how->head, how->head_len);
    for (size_t at = 0, step; at < how->block_len; at += step) {
        const uint8_t *rest = (const uint8_t *)block + at;

        step = step_fetch(key, rest, how->block_len - at);
        IMB_AES256_GMAC_UPDATE(manager, &key->data, state, rest, step);
    }
    IMB_AES256_GMAC_FINALIZE(manager, &key->data, state, tag, CAIRN_CIPHER_TAG_BYTES);
}

/* Encrypts the block into `out` and makes its tag. */
static void
block_encrypt(struct ipsec_key *key, struct gcm_context_data *state,
              const struct cairn_cipher_block *how, const void *block, uint8_t *out,
              uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    IMB_MGR *manager = key->manager;

    IMB_AES256_GCM_INIT(manager, &key->data, state, how->nonce, how->head, how->head_len);
    for (size_t at = 0, step; at < how->block_len; at += step) {
        const uint8_t *rest = (const uint8_t *)block + at;

        step = step_fetch(key, rest, how->block_len - at);
        IMB_AES256_GCM_ENC_UPDATE(manager, &key->data, state, out + at, rest, step);
    }
    IMB_AES256_GCM_ENC_FINALIZE(manager, &key->data, state, tag, CAIRN_CIPHER_TAG_BYTES);
}

static cairn_err
ipsec_make(struct cairn_cipher_key *key, uint32_t thread, const struct cairn_cipher_block *how,
           const void *block, void *out, uint8_t tag[CAIRN_CIPHER_TAG_BYTES])
{
    struct ipsec_key *own = ipsec_key_of(key);
    struct gcm_context_data *state = &own->states[thread];

    CAIRN_ASSERT(block && how->block_len && (how->head || !how->head_len));
    CAIRN_ASSERT((out || !own->encrypt) && thread < CAIRN_CIPHER_THREADS);
    if (own->encrypt)
        block_encrypt(own, state, how, block, out, tag);
    else
        tag_compute(own, state, how, block, tag);
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
        IMB_AES256_GCM_DEC(own->manager, &own->data, own->states, block, block, how->block_len,
                           how->nonce, how->head, how->head_len, right, CAIRN_CIPHER_TAG_BYTES);
    else
        tag_compute(own, own->states, how, block, right);
    return CRYPTO_memcmp(right, tag, sizeof right) == 0 ? CAIRN_OK : CAIRN_CORRUPT;
}

/* What a sender needs for some blocks in memory: the shortest of some trials. */
static uint64_t
trial_ns(struct cairn_cipher_key *key, uint8_t *blocks, uint8_t *out)
{
    static const uint8_t zeros[CAIRN_CIPHER_NONCE_BYTES];
    const struct cairn_cipher_block how = {.nonce = zeros, .block_len = CAIRN_BLOCK_BYTES};
    struct cairn_clock clock = cairn_clock_system();
    uint8_t tag[CAIRN_CIPHER_TAG_BYTES];
    uint64_t shortest_ns = UINT64_MAX;

    for (int trial = 0; trial < TRIALS; trial++) {
        uint64_t begun_ns, took_ns;

        for (size_t at = 0; at < TRIAL_BLOCKS * CAIRN_BLOCK_BYTES; at += LINE_BYTES)
            _mm_clflush(blocks + at);
        _mm_mfence();
        begun_ns = cairn_clock_now_ns(&clock);
        for (int i = 0; i < TRIAL_BLOCKS; i++)
            (void)ipsec_make(key, 0, &how, blocks + (size_t)i * CAIRN_BLOCK_BYTES, out, tag);
        took_ns = cairn_clock_now_ns(&clock) - begun_ns;
        if (took_ns < shortest_ns)
            shortest_ns = took_ns;
    }
    return shortest_ns;
}

/* Chooses how far ahead senders fetch. */
static cairn_err
ahead_measure(struct ipsec *ipsec, bool encrypt)
{
    static const uint8_t zeros[CAIRN_CIPHER_KEY_BYTES];
    uint8_t *blocks = calloc(TRIAL_BLOCKS + 1, CAIRN_BLOCK_BYTES);
    struct cairn_cipher_key *key = NULL;
    uint64_t shortest_ns = UINT64_MAX;
    cairn_err err = blocks ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        err = ipsec_key_create(&ipsec->cipher, encrypt, true, zeros, &key);
    for (int i = 0; i < CHOICES && !err; i++) {
        uint64_t took_ns;

        ipsec_key_of(key)->ahead_bytes = ahead_choices[i];
        took_ns = trial_ns(key, blocks, blocks + TRIAL_BLOCKS * CAIRN_BLOCK_BYTES);
        if (took_ns < shortest_ns) {
            shortest_ns = took_ns;
            ipsec->ahead_bytes[encrypt] = ahead_choices[i];
        }
    }
    if (key)
        ipsec_key_destroy(key);
    free(blocks);
    return err;
}

static cairn_err
ipsec_open(struct cairn_cipher **out)
{
    struct ipsec *ipsec = calloc(1, sizeof *ipsec);
    cairn_err err;

    if (!ipsec)
        return CAIRN_NOMEM;
    ipsec->cipher.ops = &cairn_cipher_ipsec;
    ipsec->library = dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!ipsec->library) {
        free(ipsec);
        return CAIRN_NOT_FOUND;
    }
    err = manager_make(ipsec) ? CAIRN_OK : CAIRN_NOT_FOUND;
    for (int encrypt = 0; encrypt < 2 && !err; encrypt++)
        err = ahead_measure(ipsec, encrypt);
    if (err) {
        ipsec_close(&ipsec->cipher);
        return err;
    }
    *out = &ipsec->cipher;
    return CAIRN_OK;
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
