/*
 * transport/tls.h - TLS 1.3 over bytes that others send and receive, proved by the job's key as
 * pre-shared key, or by certificates of both sides. The only file here that includes OpenSSL's TLS,
 * except for what certificate.c sets in its contexts.
 *
 * With a key, a caller names job, caller, callee, key and protection in the identity of its
 * pre-shared key; with a certificate it names the same without the key as the protocol of the
 * application (ALPN, RFC 7301). The callee checks either before it computes anything, and refuses
 * what it does not know. Then both sides prove the key, or that they own the certificate of the
 * node that they claim to be (certificate.h), with a fresh Diffie-Hellman exchange, so that a
 * recorded conversation stays closed if the key becomes known later. A caller with both offers
 * both; a callee that knows the key takes it. There are no tickets, no early data and no other
 * version of TLS.
 *
 * Threads: a context and its links belong to one thread.
 */
#ifndef CAIRN_TRANSPORT_TLS_H
#define CAIRN_TRANSPORT_TLS_H

#include "transport/ports.h"
#include "transport/transport.h"

enum {
    CAIRN_TLS_HEADER_BYTES = 5,    /* of a record: kind, version, u16 length in network order */
    CAIRN_TLS_OVERHEAD_BYTES = 22, /* that sealing adds to one message: header, kind, tag */
    CAIRN_TLS_EXPORT_BYTES = 64
};

struct cairn_tls;
struct cairn_tls_link;

/* The options are borrowed for the call; they have a key, a certificate or both. CAIRN_CONFIG,
 * CAIRN_IO (both logged), CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_tls_create(const struct cairn_transport_options *options,
                                            struct cairn_tls **out);
/* As cairn_transport_rekey. */
CAIRN_MUST_CHECK cairn_err cairn_tls_rekey(struct cairn_tls *tls,
                                           const struct cairn_transport_key keys[2],
                                           const struct cairn_transport_certificate *certificate);
/* As cairn_keys_ports. */
bool cairn_tls_ports(const struct cairn_tls *tls, uint32_t place, uint32_t to,
                     struct cairn_ports *out);
/* Whether peers may prove themselves by certificates, with or without a key. */
bool cairn_tls_is_certified(const struct cairn_tls *tls);
void cairn_tls_destroy(struct cairn_tls *tls); /* NULL is allowed; its links must have ended */

/* One connection: as caller of node `peer`, or as callee of any node. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_tls_link_create(struct cairn_tls *tls, bool caller, uint32_t peer,
                                                 struct cairn_tls_link **out);
void cairn_tls_link_destroy(struct cairn_tls_link *link); /* NULL is allowed */

/*
 * Takes records[bytes_len] of the other side. The caller begins with none. A callee's first record
 * is a whole hello, which must name the job before OpenSSL sees it. CAIRN_OK: the peer is proved;
 * CAIRN_AGAIN: it needs more; CAIRN_NOMEM; CAIRN_DENIED: the other side refused us, or we refuse
 * its certificate, for the reason of cairn_tls_link_why; CAIRN_CORRUPT: anything else, with the
 * same reason. In every case cairn_tls_link_output has the bytes to send.
 */
CAIRN_MUST_CHECK cairn_err cairn_tls_link_handshake(struct cairn_tls_link *link,
                                                    const uint8_t *bytes, size_t bytes_len);

/* Moves at most out_bytes that must be sent into out; 0: no more. */
size_t cairn_tls_link_output(struct cairn_tls_link *link, uint8_t *out, size_t out_bytes);

/* Why a handshake failed, "" unknown; as long as the link. */
const char *cairn_tls_link_why(const struct cairn_tls_link *link);

/* The callee's side, once it has answered: the caller has shown that it holds the key that it
 * names, though perhaps in a hello that it recorded; or it names what its certificate must. */
bool cairn_tls_link_known(const struct cairn_tls_link *link);

/* The node on the other side, once it is proved. */
uint32_t cairn_tls_link_peer(const struct cairn_tls_link *link);

/* Seals one message into out, in one record. CAIRN_IO: the link is broken. */
CAIRN_MUST_CHECK cairn_err cairn_tls_link_seal(struct cairn_tls_link *link, const void *bytes,
                                               size_t bytes_len, uint8_t *out, size_t out_bytes,
                                               size_t *used);

/* Opens one whole record. CAIRN_AGAIN: it held no message; CAIRN_DENIED: the other side ends the
 * conversation, as a callee does that refuses a certificate; CAIRN_CORRUPT: the record is forged,
 * damaged or repeated. */
CAIRN_MUST_CHECK cairn_err cairn_tls_link_open(struct cairn_tls_link *link, const uint8_t *record,
                                               size_t record_len, uint8_t *out, size_t out_bytes,
                                               size_t *used);

/* Keys for payloads, that only the two sides of this very connection know: half of them for each
 * direction, the caller's first. CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_tls_link_export(struct cairn_tls_link *link,
                                                 uint8_t out[CAIRN_TLS_EXPORT_BYTES]);

#endif
