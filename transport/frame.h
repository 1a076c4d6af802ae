/*
 * transport/frame.h - the bytes of a frame, and the proofs of the handshake.
 *
 * A frame is a header of 64 bytes and a body. All numbers are little-endian.
 *
 *   offset bytes
 *      0     4  magic, 'C' 'R' 'N' 0xa7
 *      4     2  version: of the session; in a hello and a refusal the newest of the sender, in
 *                the other handshakes the one that both sides will use
 *      6     1  kind (enum cairn_frame_kind)
 *      7     1  flags (CAIRN_FRAME_PAYLOAD_CHECKED)
 *      8     8  job
 *     16     4  from node
 *     20     4  to node
 *     24     8  session token, 0 in a handshake
 *     32     8  sequence: counts 1, 2, … per session, direction and class; 0 in a handshake
 *     40     4  body bytes
 *     44     4  payload bytes
 *     48     4  buffer of the receiver that holds the payload; 0 without one
 *     52     4  zero
 *     56     8  CRC-64 of bytes 0 … 55, the body and, when flagged, the payload
 *
 * The first 24 bytes, the place of the checksum and the handshake's body keep their form in every
 * later version, so that versions can tell each other apart.
 *
 * The handshake's body, 112 bytes, the same for all its kinds; what a kind does not use is zero:
 *
 *      0     8  incarnation of the sender
 *      8     1  1 when the sender has a key
 *      9     1  reason of a refusal (enum cairn_refusal)
 *     10     2  oldest version that the sender speaks; 0: the one in the header alone
 *     12     2  newest
 *     14     2  zero
 *     16    32  nonce of the initiator
 *     48    32  nonce of the responder
 *     80    32  proof
 *
 *   initiator                                   responder
 *      hello(nonce i)                    ->
 *                                        <-     welcome(nonces i and r, proof "welcome")
 *      confirm(nonces i and r, proof "confirm") ->
 *
 * The responder chooses the newest version that both speak, or refuses. A proof is HMAC-SHA256
 * under the job's key of the proof's name and the transcript: version, job, initiator, responder,
 * both incarnations, both nonces, both ranges of versions (so that nobody can lower the choice).
 * The session token is the first 8 bytes of the proof named "session". Without a key proofs are
 * zero and the token is a CRC-64 of the transcript. Both sides may call at once: then the lower
 * node is the initiator.
 */
#ifndef CAIRN_TRANSPORT_FRAME_H
#define CAIRN_TRANSPORT_FRAME_H

#include "transport/transport.h"

enum {
    CAIRN_FRAME_HEADER_BYTES = 64,
    CAIRN_FRAME_BYTES_MAX = 64 + CAIRN_TRANSPORT_BODY_BYTES_MAX,
    CAIRN_FRAME_NONCE_BYTES = 32,
    CAIRN_FRAME_PROOF_BYTES = 32,
    CAIRN_FRAME_HANDSHAKE_BYTES = 112,
    CAIRN_FRAME_PAYLOAD_CHECKED = 1
};

enum cairn_frame_kind {
    CAIRN_FRAME_HELLO = 1,
    CAIRN_FRAME_WELCOME = 2,
    CAIRN_FRAME_CONFIRM = 3,
    CAIRN_FRAME_REFUSE = 4,
    CAIRN_FRAME_MESSAGE = 5, /* without a payload */
    CAIRN_FRAME_BULK = 6,    /* with a payload, which is in the buffer by now */
    CAIRN_FRAME_FLOW = 7     /* credits: struct cairn_frame_flow */
};

enum cairn_refusal {
    CAIRN_REFUSAL_NONE = 0,
    CAIRN_REFUSAL_VERSION = 1,
    CAIRN_REFUSAL_JOB = 2,
    CAIRN_REFUSAL_KEY = 3,
    CAIRN_REFUSAL_NODE = 4
};

struct cairn_frame {
    uint16_t version;
    uint8_t kind;
    uint8_t flags;
    uint64_t job_id;
    uint32_t from;
    uint32_t to;
    uint64_t token;
    uint64_t sequence;
    uint32_t body_len;
    uint32_t payload_len;
    uint32_t buffer_index;
    uint64_t checksum;   /* as it came */
    const uint8_t *body; /* borrowed */
};

struct cairn_frame_versions {
    uint16_t oldest;
    uint16_t newest;
};

struct cairn_frame_handshake {
    uint64_t incarnation;
    struct cairn_frame_versions versions; /* of the sender */
    uint8_t keyed;
    uint8_t refusal;
    uint8_t nonce_initiator[CAIRN_FRAME_NONCE_BYTES];
    uint8_t nonce_responder[CAIRN_FRAME_NONCE_BYTES];
    uint8_t proof[CAIRN_FRAME_PROOF_BYTES];
};

/*
 * The body of a flow frame: u32 wanted, u16 urgent, u16 revoked, u16 grants, u16 returns, then per
 * grant u32 buffer, u64 address, u64 key, and per return u32 buffer.
 */
struct cairn_frame_grant {
    uint32_t buffer_index;
    uint64_t address;
    uint64_t key;
};

struct cairn_frame_flow {
    uint32_t wanted;  /* so many more buffers are asked for */
    uint16_t urgent;  /* 1: a payload waits for one */
    uint16_t revoked; /* so many unused grants are asked back */
    uint16_t grant_count;
    uint16_t return_count;
    struct cairn_frame_grant grants[CAIRN_TRANSPORT_WINDOW_MAX];
    uint32_t returns[CAIRN_TRANSPORT_WINDOW_MAX];
};

enum { CAIRN_FRAME_FLOW_BYTES_MAX = 12 + CAIRN_TRANSPORT_WINDOW_MAX * 24 };

/*
 * Packs the header in front of a body that is already at out + CAIRN_FRAME_HEADER_BYTES. With
 * CAIRN_FRAME_PAYLOAD_CHECKED, payload[payload_len] is read for the checksum.
 */
void cairn_frame_pack(const struct cairn_frame *frame, const void *payload, uint8_t *out);

/*
 * Parses any bytes. CAIRN_CORRUPT unless they are one whole frame with the right magic, lengths in
 * range, a known kind and, if the payload is not part of it, the right checksum. With
 * CAIRN_FRAME_PAYLOAD_CHECKED the caller checks the payload later with cairn_frame_check_payload.
 * out->body points into `bytes`.
 */
CAIRN_MUST_CHECK cairn_err cairn_frame_parse(const uint8_t *bytes, size_t bytes_len,
                                             struct cairn_frame *out);

/* Checks a frame's checksum with its payload. CAIRN_OK or CAIRN_CORRUPT. */
CAIRN_MUST_CHECK cairn_err cairn_frame_check_payload(const uint8_t *bytes, size_t bytes_len,
                                                     const void *payload, size_t payload_len);

void cairn_frame_handshake_pack(const struct cairn_frame_handshake *handshake,
                                uint8_t out[CAIRN_FRAME_HANDSHAKE_BYTES]);
CAIRN_MUST_CHECK cairn_err cairn_frame_handshake_parse(const uint8_t *body, size_t body_len,
                                                       struct cairn_frame_handshake *out);

/* Packs into out[CAIRN_FRAME_FLOW_BYTES_MAX] and gives the bytes used. */
size_t cairn_frame_flow_pack(const struct cairn_frame_flow *flow, uint8_t *out);
CAIRN_MUST_CHECK cairn_err cairn_frame_flow_parse(const uint8_t *body, size_t body_len,
                                                  struct cairn_frame_flow *out);

/* What both sides of a handshake must agree on. */
struct cairn_transcript {
    uint16_t version;
    uint64_t job_id;
    uint32_t initiator;
    uint32_t responder;
    uint64_t initiator_incarnation;
    uint64_t responder_incarnation;
    const uint8_t *nonce_initiator; /* CAIRN_FRAME_NONCE_BYTES */
    const uint8_t *nonce_responder;
    struct cairn_frame_versions initiator_versions;
    struct cairn_frame_versions responder_versions;
};

/* The proof of this name; key_len 0: zeroes. CAIRN_IO if the crypto library fails. */
CAIRN_MUST_CHECK cairn_err cairn_proof_make(const void *key, size_t key_len, const char *name,
                                            const struct cairn_transcript *transcript,
                                            uint8_t out[CAIRN_FRAME_PROOF_BYTES]);

/* Compares in constant time. CAIRN_OK, CAIRN_DENIED if they differ, CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_proof_check(const void *key, size_t key_len, const char *name,
                                             const struct cairn_transcript *transcript,
                                             const uint8_t proof[CAIRN_FRAME_PROOF_BYTES]);

/* The session's token, never 0. */
CAIRN_MUST_CHECK cairn_err cairn_proof_token(const void *key, size_t key_len,
                                             const struct cairn_transcript *transcript,
                                             uint64_t *out);

/* Fills with bytes from the system's generator, never repeating. CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_proof_random(void *out, size_t out_len);

#endif
