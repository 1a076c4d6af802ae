/*
 * transport/identity.h - the name in a certificate: for which job and node it is.
 *
 * A job has one pattern with {job} and {node}, such as spiffe://example.org/cairn/{job}/{node} or
 * {job}-{node}.cairn.example.org. The first kind is a SPIFFE ID, a URI in the certificate's subject
 * alternative name; the second is a DNS name there. Both are compared as a whole: wildcards in a
 * certificate match nothing, and its subject does not count.
 *
 * A pattern is refused if two nodes, or nodes of two jobs, could have one name: {job} and {node}
 * must occur once each, not side by side, and {node} must not touch a digit.
 *
 * Pure. Thread: any.
 */
#ifndef CAIRN_TRANSPORT_IDENTITY_H
#define CAIRN_TRANSPORT_IDENTITY_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_IDENTITY_PATTERN_BYTES_MAX = 256, /* NUL included, as in the next */
    CAIRN_IDENTITY_BYTES_MAX = 384
};

enum cairn_identity_kind { CAIRN_IDENTITY_DNS, CAIRN_IDENTITY_URI };

/* A name of a certificate: bytes[len], any bytes. */
struct cairn_identity_name {
    enum cairn_identity_kind kind;
    const uint8_t *bytes;
    size_t len;
};

/* Whether names by this pattern tell the nodes of this job from all others, and fit a certificate.
 * CAIRN_CONFIG: why[why_bytes] has the reason and what to do. */
CAIRN_MUST_CHECK cairn_err cairn_identity_check(const char *pattern, const char *job, char *why,
                                                size_t why_bytes);

/* The name of a node by a pattern that was checked with this job. */
void cairn_identity_format(const char *pattern, const char *job, uint32_t node,
                           char out[CAIRN_IDENTITY_BYTES_MAX]);

/* Which kind of name an identity or a pattern is. */
enum cairn_identity_kind cairn_identity_kind_of(const char *identity);

/*
 * Whether one of names[count] is the identity. A SPIFFE ID must be the only URI among them, as
 * SPIFFE demands (X509-SVID, section 2), and equal byte for byte. A DNS name is compared without
 * regard to case.
 */
bool cairn_identity_matches(const char *identity, const struct cairn_identity_name *names,
                            uint32_t count);

#endif
