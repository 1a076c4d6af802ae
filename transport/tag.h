/*
 * transport/tag.h - tags of blocks that travel in clear, where payloads are authenticated.
 *
 * A tag is AES-256-GCM's over one block (cipher.h). A tagger draws a key and counts: block after
 * block gets the next number, which is the nonce. So no nonce can come twice under a key, whatever
 * crashes, is adopted or is filled again: with the process, the key is gone. Receivers learn the
 * key and the tags inside TLS (stream.h), which also proves what block a tag belongs to.
 *
 * A block that goes to several receivers under one key needs one tag. A caller that has a checksum
 * of the block passes it: if address, length and checksum are those of a block with a tag, the
 * block gets the same tag again. If the bytes have changed nevertheless, a receiver finds that the
 * tag is wrong. Whoever loses a session must call cairn_tagger_forget, so that this heals.
 *
 * Thread: the owner's.
 */
#ifndef CAIRN_TRANSPORT_TAG_H
#define CAIRN_TRANSPORT_TAG_H

#include "transport/cipher.h"
#include "transport/transport.h"

struct cairn_tag {
    uint64_t number;
    bool known; /* `bytes` has the tag */
    uint8_t bytes[CAIRN_CIPHER_TAG_BYTES];
};

struct cairn_tagger;

/* The cipher is borrowed until the end. CAIRN_NOMEM, CAIRN_IO. The caller ends *out with
 * cairn_tagger_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_tagger_create(const struct cairn_cipher *cipher,
                                               struct cairn_tagger **out);
void cairn_tagger_destroy(struct cairn_tagger *tagger); /* NULL is allowed */

/* The key [CAIRN_CIPHER_KEY_BYTES], as long as the tagger. */
const uint8_t *cairn_tagger_key(const struct cairn_tagger *tagger);

/* Finds the tag of a block, or gives it a number only. sum[8] is its checksum, NULL: none. */
void cairn_tagger_find(struct cairn_tagger *tagger, const void *block, size_t block_len,
                       const uint8_t *sum, struct cairn_tag *out);

/* Makes the tag of a block with a number and no tag, once. CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_tagger_make(struct cairn_tagger *tagger, const void *block,
                                             size_t block_len, const uint8_t *sum,
                                             struct cairn_tag *tag);

/* Forgets all tags. */
void cairn_tagger_forget(struct cairn_tagger *tagger);

/* The tag that the holder of the key gives a block under this number. CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_tag_compute(struct cairn_cipher_key *key, uint64_t number,
                                             const void *block, size_t block_len,
                                             uint8_t out[CAIRN_CIPHER_TAG_BYTES]);

/* Compares tags, in a time that does not depend on them. */
bool cairn_tags_same(const uint8_t *a, const uint8_t *b, size_t bytes_len);

#endif
