/*
 * transport/certificate.h - this node's X.509 certificate, its private key, and the authorities
 * whose certificates of other nodes count (RFC 5280).
 *
 * Another node is let in if its certificate leads to one of the authorities, is valid now, is not
 * an authority's itself, and names that node (identity.h). Every certificate in the file of
 * authorities is trusted, also one signed by another; the system's own authorities are not used.
 * The same file may hold revocation lists: then the authority of every node's certificate needs a
 * list there that is valid now and does not name the certificate.
 *
 * The private key is in OpenSSL's secure heap, which is locked in memory where the system allows it
 * and left out of core files. Thread: the owner's.
 */
#ifndef CAIRN_TRANSPORT_CERTIFICATE_H
#define CAIRN_TRANSPORT_CERTIFICATE_H

#include "transport/identity.h"
#include "transport/transport.h"

struct cairn_certificate;
struct ssl_ctx_st;        /* OpenSSL's SSL_CTX */
struct x509_store_ctx_st; /* OpenSSL's X509_STORE_CTX */

enum { CAIRN_CERTIFICATE_TIME_BYTES = 32 };

/*
 * Parses and checks the certificate of a node: all parts can be read, the private key fits the
 * certificate, and it names this node. Ignores its dates. All is borrowed for the call.
 * CAIRN_CONFIG: why[why_bytes] says what is wrong and what to do; CAIRN_NOMEM. The caller ends *out
 * with cairn_certificate_destroy.
 */
CAIRN_MUST_CHECK cairn_err cairn_certificate_create(const struct cairn_transport_certificate *pem,
                                                    uint32_t node, struct cairn_certificate **out,
                                                    char *why, size_t why_bytes);
void cairn_certificate_destroy(struct cairn_certificate *certificate); /* NULL is allowed */

/* The dates of this node's certificate. */
void cairn_certificate_dates(const struct cairn_certificate *certificate,
                             struct cairn_certificate_dates *out);

/* What dates mean at a time of the wall clock, in seconds since 1970. */
enum cairn_certificate_state cairn_certificate_state(const struct cairn_certificate_dates *dates,
                                                     int64_t now_s);

/* A time in seconds since 1970 as "2026-11-28 03:50:00Z". */
void cairn_certificate_time(int64_t time_s, char out[CAIRN_CERTIFICATE_TIME_BYTES]);

/* Whether other nodes with the same authorities would take this node's certificate now.
 * CAIRN_DENIED with the reason; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_certificate_self_check(const struct cairn_certificate *certificate,
                                                        char *why, size_t why_bytes);

/* Makes a context of OpenSSL show this certificate and trust these authorities. CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_certificate_use(const struct cairn_certificate *certificate,
                                                 struct ssl_ctx_st *context);

/* Whether a peer's certificate is that of this node. CAIRN_DENIED: why[why_bytes] gives the reason,
 * printable. */
CAIRN_MUST_CHECK cairn_err cairn_certificate_verify(const struct cairn_certificate *certificate,
                                                    struct x509_store_ctx_st *shown, uint32_t node,
                                                    char *why, size_t why_bytes);

#endif
