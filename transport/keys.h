/*
 * transport/keys.h - a ring of two keys of the job, and what is derived from them.
 *
 * Calls offer the first key of the ring; both are accepted. So a job changes its key node by node:
 * first every agent gets the new key as its second, then as its first, then the old one goes.
 * Sessions live on under the key that they began with.
 *
 * No key of the job reaches another file here: TLS gets a pre-shared key per pair of caller and
 * callee, by HKDF-SHA256 (RFC 5869) over the job's number and both nodes. A key has an id of 32
 * bits, derived the same way, so that two sides can name a key without showing it. The ring is in
 * memory of base/secret.h. Thread: the owner's.
 */
#ifndef CAIRN_TRANSPORT_KEYS_H
#define CAIRN_TRANSPORT_KEYS_H

#include "transport/ports.h"
#include "transport/transport.h"

enum { CAIRN_KEYS_PSK_BYTES = 32, CAIRN_KEYS_MAX = 2 };

struct cairn_keys;

/* Makes a ring without keys. CAIRN_NOMEM. The caller ends *out with cairn_keys_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_keys_create(uint64_t job_id, struct cairn_keys **out);
void cairn_keys_destroy(struct cairn_keys *keys); /* NULL is allowed */

/* Takes copies in place of the keys it has; the second may be empty, or both. CAIRN_IO: the crypto
 * library fails; CAIRN_CONFIG: two keys of one id (logged). The ring is as before then. */
CAIRN_MUST_CHECK cairn_err cairn_keys_set(struct cairn_keys *keys,
                                          const struct cairn_transport_key ring[CAIRN_KEYS_MAX]);

/* The id of the key at this place of the ring; a caller offers the one at place 0. False: none. */
bool cairn_keys_id(const struct cairn_keys *keys, uint32_t place, uint32_t *id);

/* The pre-shared key of this id for calls from node to node. CAIRN_NOT_FOUND: unknown id;
 * CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_keys_psk(const struct cairn_keys *keys, uint32_t key_id,
                                          uint32_t from, uint32_t to,
                                          uint8_t out[CAIRN_KEYS_PSK_BYTES]);

/* The ports from which holders of the key at this place of the ring call a node. False: no key, or
 * the crypto library fails (logged). */
bool cairn_keys_ports(const struct cairn_keys *keys, uint32_t place, uint32_t to,
                      struct cairn_ports *out);

#endif
