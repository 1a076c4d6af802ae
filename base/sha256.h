/*
 * base/sha256.h - SHA-256 of a stream of bytes, by OpenSSL.
 *
 * For fingerprints that people compare. base/crc.h is enough against accidents.
 */
#ifndef CAIRN_BASE_SHA256_H
#define CAIRN_BASE_SHA256_H

#include "cairn/err.h"

#include <stddef.h>
#include <stdint.h>

enum { CAIRN_SHA256_BYTES = 32, CAIRN_SHA256_TEXT_BYTES = 65 /* hex and its NUL */ };

struct cairn_sha256;

CAIRN_MUST_CHECK cairn_err cairn_sha256_create(struct cairn_sha256 **out); /* CAIRN_NOMEM */
void cairn_sha256_destroy(struct cairn_sha256 *sha);                       /* NULL is allowed */

/* Adds bytes. cairn_sha256_final returns a failure inside OpenSSL. */
void cairn_sha256_update(struct cairn_sha256 *sha, const void *bytes, size_t bytes_len);

/* Gives the digest of everything added, and starts again. CAIRN_INTERNAL if OpenSSL failed. */
CAIRN_MUST_CHECK cairn_err cairn_sha256_final(struct cairn_sha256 *sha,
                                              uint8_t digest[CAIRN_SHA256_BYTES]);

/* The digest as lower-case hex. */
void cairn_sha256_text(const uint8_t digest[CAIRN_SHA256_BYTES],
                       char text[CAIRN_SHA256_TEXT_BYTES]);

#endif
