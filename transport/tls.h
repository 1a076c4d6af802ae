/*
 * transport/tls.h - TLS 1.3 over bytes that somebody else sends and receives, with the job's key as
 * pre-shared key. The only file here that includes OpenSSL's TLS.
 *
 * A caller names job, caller, callee, key and protection in the identity of its pre-shared key; the
 * callee looks at the identity and refuses what it does not know. Both sides prove the key within
 * one round trip, with a fresh Diffie-Hellman exchange (psk_dhe_ke), so that a recorded
 * conversation stays closed when the key is known later. There are no certificates, no tickets, no
 * early data and no other version of TLS.
 *
 * Threads: a context and its links belong to one thread.
 */
#ifndef CAIRN_TRANSPORT_TLS_H
#define CAIRN_TRANSPORT_TLS_H

#include "transport/transport.h"

enum {
    CAIRN_TLS_HEADER_BYTES = 5,    /* of a record: kind, version, u16 length in network order */
    CAIRN_TLS_OVERHEAD_BYTES = 22, /* that sealing adds to one message: header, kind, tag */
    CAIRN_TLS_EXPORT_BYTES = 64
};

struct cairn_tls;
struct cairn_tls_link;

/* The options are borrowed for the call; they have a key. CAIRN_NOMEM, CAIRN_IO (logged). */
CAIRN_MUST_CHECK cairn_err cairn_tls_create(const struct cairn_transport_options *options,
                                            struct cairn_tls **out);
/* As cairn_transport_rekey. */
CAIRN_MUST_CHECK cairn_err cairn_tls_rekey(struct cairn_tls *tls,
                                           const struct cairn_transport_key keys[2]);
void cairn_tls_destroy(struct cairn_tls *tls); /* NULL is allowed; its links must have ended */

/* One connection: as caller of node `peer`, or as callee of whoever it is. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_tls_link_create(struct cairn_tls *tls, bool caller, uint32_t peer,
                                                 struct cairn_tls_link **out);
void cairn_tls_link_destroy(struct cairn_tls_link *link); /* NULL is allowed */

/*
 * Takes records[bytes_len] of the other side (the caller begins with none). CAIRN_OK: the peer is
 * proved; CAIRN_AGAIN: it needs more; CAIRN_DENIED: the other side refused us; CAIRN_CORRUPT:
 * anything else, and cairn_tls_link_why says what. cairn_tls_link_output has what must be sent in
 * every case.
 */
CAIRN_MUST_CHECK cairn_err cairn_tls_link_handshake(struct cairn_tls_link *link,
                                                    const uint8_t *bytes, size_t bytes_len);

/* Moves at most out_bytes that must be sent into out; 0: no more. */
size_t cairn_tls_link_output(struct cairn_tls_link *link, uint8_t *out, size_t out_bytes);

/* Why a handshake failed, static or as long as the link. */
const char *cairn_tls_link_why(const struct cairn_tls_link *link);

/* The node on the other side, once it is proved. */
uint32_t cairn_tls_link_peer(const struct cairn_tls_link *link);

/* Seals one message into out, in one record. CAIRN_IO: the link is broken. */
CAIRN_MUST_CHECK cairn_err cairn_tls_link_seal(struct cairn_tls_link *link, const void *bytes,
                                               size_t bytes_len, uint8_t *out, size_t out_bytes,
                                               size_t *used);

/* Opens one whole record. CAIRN_AGAIN: it held no message; CAIRN_CORRUPT: it is forged, damaged,
 * repeated, or the end of the conversation. */
CAIRN_MUST_CHECK cairn_err cairn_tls_link_open(struct cairn_tls_link *link, const uint8_t *record,
                                               size_t record_len, uint8_t *out, size_t out_bytes,
                                               size_t *used);

/* Keys for payloads, that only the two sides of this very connection know: half of them for each
 * direction, the caller's first. CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_tls_link_export(struct cairn_tls_link *link,
                                                 uint8_t out[CAIRN_TLS_EXPORT_BYTES]);

#endif
