/*
 * transport/seal.h - the protection of payloads' blocks: one direction of one connection.
 *
 * Each block of at most CAIRN_BLOCK_BYTES has a tag of AES-256-GCM (cipher.h) under the
 * connection's own key. A seal that encrypts also covers the part of the payload's header before
 * the block. The nonce counts blocks from 0. The key comes from TLS's exporter, so it differs for
 * every connection and direction, and no nonce can come twice under it: not after a crash, in
 * adopted memory, or in a slot that is filled again. A block that is repeated, left out, moved, or
 * brought from another connection has the wrong nonce.
 */
#ifndef CAIRN_TRANSPORT_SEAL_H
#define CAIRN_TRANSPORT_SEAL_H

#include "transport/cipher.h"
#include "transport/transport.h"

enum {
    CAIRN_SEAL_KEY_BYTES = CAIRN_CIPHER_KEY_BYTES,
    CAIRN_SEAL_TAG_BYTES = CAIRN_CIPHER_TAG_BYTES
};

struct cairn_seal;

/* A block to be sealed: head[head_len] stands before it in the payload's header. */
struct cairn_seal_block {
    struct cairn_seal *seal;
    const void *head;
    const void *block;
    size_t head_len, block_len;
    void *out;    /* where it goes encrypted; unused by a seal that only tags */
    uint8_t *tag; /* [CAIRN_SEAL_TAG_BYTES] */
    uint8_t nonce[CAIRN_CIPHER_NONCE_BYTES];
};

/* With `encrypt` a seal makes and checks, else it only tags. The cipher is borrowed until the seal
 * ends. CAIRN_NOMEM. Thread: the owner's. */
CAIRN_MUST_CHECK cairn_err cairn_seal_create(const struct cairn_cipher *cipher, bool encrypt,
                                             bool sender, const uint8_t key[CAIRN_SEAL_KEY_BYTES],
                                             struct cairn_seal **out);
void cairn_seal_destroy(struct cairn_seal *seal); /* NULL is allowed */

/*
 * The sender's side: encrypts the next block into `out` and makes its tag. head[head_len] precedes
 * the block. CAIRN_IO.
 */
CAIRN_MUST_CHECK cairn_err cairn_seal_make(struct cairn_seal *seal, const void *head,
                                           size_t head_len, const void *block, size_t block_len,
                                           void *out, uint8_t tag[CAIRN_SEAL_TAG_BYTES]);

/* The two halves of that: the block's place in the order of blocks (all other members are set); and
 * the work, in thread number 0 … CAIRN_CIPHER_THREADS - 1. */
void cairn_seal_take(struct cairn_seal_block *block);
CAIRN_MUST_CHECK cairn_err cairn_seal_run(const struct cairn_seal_block *block, uint32_t thread);

/* The receiver's side: checks the next block, and decrypts it in place. CAIRN_CORRUPT: it is not
 * what the other side sent; what the block then holds must not be used. */
CAIRN_MUST_CHECK cairn_err cairn_seal_check(struct cairn_seal *seal, const void *head,
                                            size_t head_len, void *block, size_t block_len,
                                            const uint8_t tag[CAIRN_SEAL_TAG_BYTES]);

/* Either side, without encryption: the next block's tag. CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_seal_tag(struct cairn_seal *seal, const void *block,
                                          size_t block_len, uint8_t tag[CAIRN_SEAL_TAG_BYTES]);

#ifdef CAIRN_PLANTED_BUGS
extern bool cairn_seal_planted; /* BUG_NONCE_OF_PLACE, for the simulator */
#endif

/* Compares tags, in a time that does not depend on them. */
bool cairn_seal_tags_same(const uint8_t *a, const uint8_t *b, size_t bytes_len);

#endif
