/*
 * transport/cipher.h - AES-256-GCM (NIST SP 800-38D) over one block, by the fastest library on this
 * processor.
 *
 * Two libraries compute the same bytes, so each side of a connection may use either. OpenSSL is
 * always there. Intel's ipsec-mb has kernels for vectors of 512 bits that OpenSSL 3.0 lacks; it is
 * opened at run time, and a host without it only loses speed. Which one is faster depends on the
 * processor: it is measured.
 *
 * A nonce must never come twice under one key: seal.h ensures that. Thread: the owner's; two
 * threads may call `make` with the same key, each with its own number.
 */
#ifndef CAIRN_TRANSPORT_CIPHER_H
#define CAIRN_TRANSPORT_CIPHER_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_CIPHER_KEY_BYTES = 32,
    CAIRN_CIPHER_NONCE_BYTES = 12,
    CAIRN_CIPHER_TAG_BYTES = 16,
    CAIRN_CIPHER_LIBRARIES = 2,
    CAIRN_CIPHER_THREADS = 2 /* that use a key at once */
};

struct cairn_cipher;     /* an open library */
struct cairn_cipher_key; /* a key that is prepared for one direction */

/* One block: authenticates head[head_len] and block[block_len], at least one byte, and encrypts the
 * block if the key does that. */
struct cairn_cipher_block {
    const uint8_t *nonce; /* [CAIRN_CIPHER_NONCE_BYTES] */
    const void *head;
    size_t head_len;
    size_t block_len;
};

struct cairn_cipher_ops {
    const char *name;
    /* CAIRN_NOT_FOUND: this machine does not have it; CAIRN_NOMEM. */
    cairn_err (*open)(struct cairn_cipher **out);
    void (*close)(struct cairn_cipher *cipher); /* its keys must have ended */
    /* For a sender, which makes tags, or a receiver, which checks them; one that only tags may do
     * both. */
    cairn_err (*key_create)(const struct cairn_cipher *cipher, bool encrypt, bool sender,
                            const uint8_t key[CAIRN_CIPHER_KEY_BYTES],
                            struct cairn_cipher_key **out);
    void (*key_destroy)(struct cairn_cipher_key *key); /* erases it */
    /* The sender's: the tag, and with encryption the block's bytes in `out`. CAIRN_IO. */
    cairn_err (*make)(struct cairn_cipher_key *key, uint32_t thread,
                      const struct cairn_cipher_block *how, const void *block, void *out,
                      uint8_t tag[CAIRN_CIPHER_TAG_BYTES]);
    /* The receiver's, in thread 0: compares the tag, in constant time, and decrypts in place.
     * CAIRN_CORRUPT: what the block then holds must not be used. */
    cairn_err (*check)(struct cairn_cipher_key *key, const struct cairn_cipher_block *how,
                       void *block, const uint8_t tag[CAIRN_CIPHER_TAG_BYTES]);
};

/* What every library's cipher and key begin with. */
struct cairn_cipher {
    const struct cairn_cipher_ops *ops;
};
struct cairn_cipher_key {
    const struct cairn_cipher_ops *ops;
};

/* OpenSSL first. */
extern const struct cairn_cipher_ops *const cairn_cipher_libraries[CAIRN_CIPHER_LIBRARIES];
extern const struct cairn_cipher_ops cairn_cipher_openssl, cairn_cipher_ipsec;

/* Bytes per second of each library, as a sender; 0: not available. */
struct cairn_cipher_speeds {
    double bytes_per_s[CAIRN_CIPHER_LIBRARIES];
};

/* Opens the library that is fastest at this, which takes some milliseconds. speeds may be NULL.
 * CAIRN_NOMEM, CAIRN_IO. The caller ends *out with cairn_cipher_close. */
CAIRN_MUST_CHECK cairn_err cairn_cipher_choose(bool encrypt, struct cairn_cipher **out,
                                               struct cairn_cipher_speeds *speeds);
void cairn_cipher_close(struct cairn_cipher *cipher);        /* NULL is allowed */
void cairn_cipher_key_destroy(struct cairn_cipher_key *key); /* NULL is allowed */

#endif
