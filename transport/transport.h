/*
 * transport/transport.h - messages and bulk payloads between the agents of one job.
 *
 * A transport is one endpoint of this node and one peer entry per node of the job. It knows nothing
 * of snapshots. A message has a body of at most CAIRN_TRANSPORT_BODY_BYTES_MAX bytes, copied at
 * send, and optionally a payload of at most CAIRN_BULK_BYTES_MAX bytes, borrowed until on_sent and
 * written straight into a buffer that the receiver has granted before.
 *
 * What holds, and what does not:
 *   1. A peer that dies is a state, not an error: on_peer says down, and up when it is back. A peer
 *      whose process restarted comes back with another incarnation; what was in flight is unknown
 *      and is reported as CAIRN_PEER: send it again, the layers above are idempotent.
 *   2. Between on_peer(up) and on_peer(down) messages arrive once, whole, and in the order they
 *      were sent within their class: messages without a payload among themselves, messages with a
 *      payload among themselves. A message without a payload may overtake one with a payload.
 *   3. on_sent(CAIRN_OK) says that the borrowed payload may be reused, and not that the peer has
 *      acted on it: that takes an answer.
 *   4. No queue is unbounded. A sender without credit at the receiver, or without a free operation,
 *      is told CAIRN_AGAIN. Buffers that the receiver keeps hold back payloads from that sender and
 *      nothing else: messages without a payload need no such buffer.
 *   5. Nothing but the handshake is read from a peer that has proved neither the job's key nor, by
 *      its certificate, which node it is.
 *   6. The liveness of a silent peer is not decided here (heartbeats above do that); an operation
 *      that makes no progress for timeout_ns is, and takes the peer down.
 *
 * Threads: a transport belongs to the loop thread that opened it. It has no thread of its own, but
 * for one that asks for the name of a peer that cannot be reached, and touches nothing else.
 * Callbacks are called from cairn_transport_poll only. They may call cairn_transport_send,
 * _release, _connect, _disconnect and _readdress, but not _poll or _close.
 */
#ifndef CAIRN_TRANSPORT_TRANSPORT_H
#define CAIRN_TRANSPORT_TRANSPORT_H

#include "base/limits.h"
#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_TRANSPORT_VERSION = 1, /* of the frames: transport/frame.h; the layers
                                           * above have their own */
    CAIRN_TRANSPORT_BODY_BYTES_MAX = 4096,
    CAIRN_TRANSPORT_KEY_BYTES_MIN = 16,
    CAIRN_TRANSPORT_KEY_BYTES_MAX = 256,
    CAIRN_TRANSPORT_JOB_BYTES_MAX = 64, /* of its name, NUL included */
    CAIRN_TRANSPORT_WINDOW_MAX = 16     /* payload buffers that one peer may be granted at once */
};

enum cairn_peer_state {
    CAIRN_PEER_IDLE,       /* nobody has asked for it yet */
    CAIRN_PEER_CONNECTING, /* first attempt */
    CAIRN_PEER_UP,
    CAIRN_PEER_DOWN,   /* lost or never reached; being tried again in the background */
    CAIRN_PEER_DENIED, /* holds another key or a certificate that does not count, belongs to another
                        * job or is not the node it should be */
    CAIRN_PEER_VERSION /* speaks no version that this agent speaks */
};

/* What the network between agents cannot do to payloads. With a key or certificate, messages always
 * use TLS. */
enum cairn_protection {
    CAIRN_PROTECTION_NONE,
    CAIRN_PROTECTION_AUTHENTICATE, /* change, repeat or move them */
    CAIRN_PROTECTION_ENCRYPT       /* … or read them */
};

struct cairn_transport;
struct cairn_transport_hub; /* transport_loop.h */

/*
 * A message has arrived. body[body_len] is valid during the call. payload[payload_len] (NULL
 * without one; aligned to 4096, or where on_place wanted it) belongs to the receiver until
 * cairn_transport_release(buffer); buffer is 0 without a payload. With
 * CAIRN_PROTECTION_AUTHENTICATE a message comes without its payload if that changed on the way, or
 * in the sender's memory after cairn_transport_send.
 */
typedef void cairn_transport_message_fn(void *context, uint32_t from_node, const void *body,
                                        size_t body_len, const void *payload, size_t payload_len,
                                        uint64_t buffer);

/*
 * A payload begins to come that its sender gave a place (not 0). Returns memory[payload_len] for
 * it, which is written until the message arrives, the peer goes down, or cairn_transport_unplace.
 * NULL: it comes into a receive buffer, as it always does from some providers. Calls nothing of the
 * transport.
 */
typedef void *cairn_transport_place_fn(void *context, uint32_t from_node, uint64_t place,
                                       size_t payload_len);

/* A send has ended, in any order over the peers: CAIRN_OK, or CAIRN_PEER (it may have arrived). */
typedef void cairn_transport_sent_fn(void *context, uint32_t node, uint64_t ticket, cairn_err err);

/* A peer came up or went down. Incarnation: of the session that begins or ends. */
typedef void cairn_transport_peer_fn(void *context, uint32_t node, bool up, uint64_t incarnation);

/* A send to this peer that got CAIRN_AGAIN may be tried again. NULL is allowed. */
typedef void cairn_transport_writable_fn(void *context, uint32_t node);

/* A key of the job: bytes[len], CAIRN_TRANSPORT_KEY_BYTES_MIN … _MAX; len 0: none. */
struct cairn_transport_key {
    const void *bytes;
    size_t len;
};

/* A text of certificates or a key in PEM (RFC 7468). */
struct cairn_pem {
    const char *name; /* of the file, for messages */
    const char *text;
    size_t len;
};

/* This node's certificate, and the authorities of other nodes' certificates: certificate.h. */
struct cairn_transport_certificate {
    struct cairn_pem chain; /* this node's, then those between it and an authority's */
    struct cairn_pem private_key;
    struct cairn_pem authorities;
    const char *identity; /* the pattern of the nodes' names: identity.h */
    const char *job;      /* its name */
};

/* When a certificate is valid, in seconds since 1970; both 0: there is none. */
struct cairn_certificate_dates {
    int64_t begins_s, ends_s;
};

enum cairn_certificate_state {
    CAIRN_CERTIFICATE_NONE,
    CAIRN_CERTIFICATE_VALID,
    CAIRN_CERTIFICATE_DUE, /* for renewal, which should have come before now */
    CAIRN_CERTIFICATE_EXPIRED,
    CAIRN_CERTIFICATE_EARLY /* not valid yet */
};

struct cairn_transport_options {
    const char *provider;         /* "tcp" (NULL means it), "loop", or a fabric, which needs a key
                                   * or a certificate: "libfabric-tcp", "net", "shm", … */
    const char *bind_address;     /* "host:port", "[v6]:port"; port 0 is not allowed */
    uint32_t node;                /* of this agent, < node_count */
    uint32_t node_count;          /* 1 … CAIRN_NODES_MAX */
    const char *const *addresses; /* [node_count], "host:port" each; one's own entry is not used */
    uint64_t job_id;
    uint64_t incarnation; /* of this process; differs after every restart */
    const void *key;      /* the job's key, NULL: none. Without key and certificate only
                                    * loopback is allowed. */
    size_t key_len;       /* CAIRN_TRANSPORT_KEY_BYTES_MIN … _MAX, 0 without a key */
    struct cairn_transport_key second_key; /* is accepted from peers, and not offered to them */
    /* NULL: none. With a key as well, calls offer both, and a peer
     * needs one of them: so a job moves from one to the other. */
    const struct cairn_transport_certificate *certificate;
    enum cairn_protection protection; /* with a key or certificate; the same on all nodes */
    uint16_t version;                 /* the newest that is spoken; 0: CAIRN_TRANSPORT_VERSION */
    uint16_t version_oldest;          /* … and the oldest; 0: the same. A session has the newest
                                      * version that both sides speak. */
    bool checksum_payload;            /* payloads that are sent carry a checksum here as well */
    uint32_t buffer_count;            /* receive buffers of CAIRN_BULK_BYTES_MAX; 0 means 64 */
    uint32_t window;                  /* of them, granted to one peer at most; 0 means 8 */
    uint32_t operation_count;         /* sends in flight over all peers; 0 means 1024 */
    uint64_t timeout_ns;              /* without progress of an operation; 0 means 10 s */
    struct cairn_transport_hub *hub;  /* provider "loop" only: where the others are */
    cairn_transport_message_fn *on_message;
    cairn_transport_sent_fn *on_sent;
    cairn_transport_peer_fn *on_peer;
    cairn_transport_writable_fn *on_writable;
    cairn_transport_place_fn *on_place; /* NULL: payloads come into receive buffers */
    void *context;                      /* first argument of the callbacks */
};

struct cairn_transport_peer {
    enum cairn_peer_state state;
    uint64_t incarnation;     /* of its current or last session, 0: none yet */
    uint16_t version;         /* of that session */
    uint32_t operations;      /* sends that have not ended */
    uint32_t credits;         /* payloads that may be sent now */
    uint32_t buffers_granted; /* of this node's buffers, waiting for its payloads */
    uint32_t buffers_held;    /* of this node's buffers, holding its payloads until released */
};

/* Counters since open. */
struct cairn_transport_stats {
    uint64_t sent_messages;
    uint64_t sent_payload_bytes;
    uint64_t received_messages;
    uint64_t received_payload_bytes;
    uint64_t dropped_malformed;       /* with a wrong length, magic or checksum */
    uint64_t dropped_payloads;        /* that changed: see cairn_transport_message_fn */
    uint64_t dropped_unauthenticated; /* of a peer without a session, or with another token */
    uint64_t refused_handshakes;
    uint64_t refused_connections; /* that proved no key and no certificate */
    uint64_t ignored_connections; /* of addresses that are ignored; the kernel counts each SYN */
    uint32_t ignored_addresses;   /* now: strangers.h */
    uint64_t sessions;            /* that came up */
    uint64_t timeouts;
    uint64_t resets; /* of the whole endpoint: README.md */
    uint32_t buffers_free;
    uint32_t operations_free;
};

/*
 * Opens a transport and listens. `options` and all it points to are borrowed for the call (the hub
 * and the context until close). CAIRN_DENIED: bind_address is not loopback and there is no key and
 * no certificate. CAIRN_CONFIG: an address, the provider or a number is wrong; the log says which
 * and lists the providers. (If a peer's name does not resolve, it is looked up again.) CAIRN_IO:
 * the address cannot be bound, such as a port in use. CAIRN_NOT_FOUND: libfabric is not installed.
 * CAIRN_NOMEM. On success the caller owns *out and ends it with cairn_transport_close.
 */
CAIRN_MUST_CHECK cairn_err cairn_transport_open(const struct cairn_transport_options *options,
                                                struct cairn_transport **out);

/*
 * Closes: no callback is called, operations in flight end without on_sent, borrowed payloads and
 * received buffers end with it. NULL is allowed.
 */
void cairn_transport_close(struct cairn_transport *transport);

/* A descriptor that becomes readable when poll has work; -1 if the provider has none: use due. */
int cairn_transport_fd(const struct cairn_transport *transport);

/*
 * When poll must be called at the latest even if fd stays silent: 0 at once (do not sleep),
 * UINT64_MAX never, else a time on the clock of now_ns. Ask right before every sleep on fd.
 */
uint64_t cairn_transport_due(struct cairn_transport *transport, uint64_t now_ns);

/*
 * Makes progress and calls the callbacks, for a bounded amount of work. now_ns is a monotonic
 * clock. Does not block.
 */
void cairn_transport_poll(struct cairn_transport *transport, uint64_t now_ns);

/*
 * Sends a message. body[body_len] is copied; payload[payload_len] (NULL and 0: none) is borrowed
 * until on_sent with this ticket. CAIRN_OK: accepted, on_sent comes exactly once unless the
 * transport is closed first. CAIRN_AGAIN: no credit, no free operation, or the first connection is
 * pending; on_writable or on_peer says when to try again. CAIRN_PEER: the peer is not up; it is
 * tried in the background. CAIRN_DENIED, CAIRN_VERSION: see cairn_peer_state. CAIRN_INVAL: too
 * long, no such node, or this node. Calls no callback, allocates nothing.
 */
CAIRN_MUST_CHECK cairn_err cairn_transport_send(struct cairn_transport *transport, uint32_t node,
                                                const void *body, size_t body_len,
                                                const void *payload, size_t payload_len,
                                                uint64_t ticket);

/* The same, with a name for the receiver's on_place. */
CAIRN_MUST_CHECK cairn_err cairn_transport_send_placed(struct cairn_transport *transport,
                                                       uint32_t node, const void *body,
                                                       size_t body_len, const void *payload,
                                                       size_t payload_len, uint64_t place,
                                                       uint64_t ticket);

/* Receives nothing more into memory[bytes], which on_place gave: what has come moves to receive
 * buffers. */
void cairn_transport_unplace(struct cairn_transport *transport, const void *memory, size_t bytes);

/* Gives a received payload's buffer back. Exactly once per buffer; a stale one is ignored. */
void cairn_transport_release(struct cairn_transport *transport, uint64_t buffer);

/* Starts to connect to a peer that nobody has sent to yet, or that was left. No effect on
 * others. */
void cairn_transport_connect(struct cairn_transport *transport, uint32_t node);

/*
 * This node no longer needs a session with the peer: a session that is up stays until it ends,
 * which is then expected; the peer is not called again before a send or connect.
 */
void cairn_transport_leave(struct cairn_transport *transport, uint32_t node);

/*
 * Declares a peer dead, such as after missed heartbeats: its operations end with CAIRN_PEER at the
 * next poll; then it is tried again in the background.
 */
void cairn_transport_disconnect(struct cairn_transport *transport, uint32_t node);

/*
 * The node has another address from now on, such as that of the machine that replaces a dead one. A
 * session with it ends at the next poll, and it is tried at its new address. The address is copied.
 * CAIRN_CONFIG: malformed, or not of this node's family (logged), or the node is this one or does
 * not exist; CAIRN_NOMEM. Then nothing has changed.
 */
CAIRN_MUST_CHECK cairn_err cairn_transport_readdress(struct cairn_transport *transport,
                                                     uint32_t node, const char *address);

/*
 * Takes other keys and another certificate from now on: calls offer the first key and accept both;
 * sessions live on. All is copied; the second key, or both, may be empty, and the certificate NULL,
 * but not all of them. CAIRN_INVAL: the provider cannot (restart instead), or the transport has
 * neither key nor certificate; CAIRN_CONFIG: a length is wrong, the keys are the same, or the
 * certificate is refused (logged); CAIRN_NOMEM, CAIRN_IO. On failure the old ones stay.
 */
CAIRN_MUST_CHECK cairn_err
cairn_transport_rekey(struct cairn_transport *transport, const struct cairn_transport_key keys[2],
                      const struct cairn_transport_certificate *certificate);

/* Reads the state of a peer; node < node_count. */
void cairn_transport_peer_read(const struct cairn_transport *transport, uint32_t node,
                               struct cairn_transport_peer *out);

void cairn_transport_stats_read(const struct cairn_transport *transport,
                                struct cairn_transport_stats *out);

#endif
