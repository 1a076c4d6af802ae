/*
 * transport/seal.h - the encryption of payloads' blocks: one direction of one connection.
 *
 * Each block of at most CAIRN_BLOCK_BYTES is encrypted by AES-256-GCM (cipher.h) under the
 * connection's own key; its tag is also over what stands before it in the payload's header. The
 * nonce is a counter of blocks from 0 on. The key is TLS's exporter's, so it differs for every
 * connection and direction, and no nonce can come twice under it, after any crash or restore.
 * A block that is repeated, left out, moved, or brought from another connection has the wrong
 * nonce. What is not encrypted has tags of another kind: tag.h.
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

/* The cipher is borrowed until the seal ends. CAIRN_NOMEM. Thread: the owner's. */
CAIRN_MUST_CHECK cairn_err cairn_seal_create(const struct cairn_cipher *cipher, bool sender,
                                             const uint8_t key[CAIRN_SEAL_KEY_BYTES],
                                             struct cairn_seal **out);
void cairn_seal_destroy(struct cairn_seal *seal); /* NULL is allowed */

/*
 * The sender's side: encrypts the next block into `out` and makes its tag. head[head_len] stands
 * before the block. CAIRN_IO.
 */
CAIRN_MUST_CHECK cairn_err cairn_seal_make(struct cairn_seal *seal, const void *head,
                                           size_t head_len, const void *block, size_t block_len,
                                           void *out, uint8_t tag[CAIRN_SEAL_TAG_BYTES]);

/* The receiver's side: checks the next block, and decrypts it in place. CAIRN_CORRUPT: it is not
 * what the other side sent; what the block then holds must not be used. */
CAIRN_MUST_CHECK cairn_err cairn_seal_check(struct cairn_seal *seal, const void *head,
                                            size_t head_len, void *block, size_t block_len,
                                            const uint8_t tag[CAIRN_SEAL_TAG_BYTES]);

#endif
