/*
 * transport/keys.h - the job's key, and what is derived from it.
 *
 * The job's key itself never reaches another file here: TLS gets a pre-shared key per pair of
 * caller and callee, by HKDF-SHA256 (RFC 5869) over the job's number and both nodes. A key has an
 * id of 32 bits, derived the same way, so that two sides can tell which one they mean without
 * showing it. The keys lie on a page of their own, which is locked in memory where the system
 * allows it, left out of core files, and erased. Thread: any, after create.
 */
#ifndef CAIRN_TRANSPORT_KEYS_H
#define CAIRN_TRANSPORT_KEYS_H

#include "cairn/err.h"

#include <stddef.h>
#include <stdint.h>

enum { CAIRN_KEYS_PSK_BYTES = 32 };

struct cairn_keys;

/* Takes a copy of key[key_len], 1 … 256 bytes. CAIRN_NOMEM; CAIRN_IO if the crypto library fails.
 * On success the caller ends *out with cairn_keys_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_keys_create(const void *key, size_t key_len, uint64_t job_id,
                                             struct cairn_keys **out);
void cairn_keys_destroy(struct cairn_keys *keys); /* NULL is allowed */

/* The id of the key that a caller offers. */
uint32_t cairn_keys_offered(const struct cairn_keys *keys);

/* The pre-shared key of this id for calls from node to node. CAIRN_NOT_FOUND: there is no key with
 * this id; CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_keys_psk(const struct cairn_keys *keys, uint32_t key_id,
                                          uint32_t from, uint32_t to,
                                          uint8_t out[CAIRN_KEYS_PSK_BYTES]);

#endif
