/*
 * transport/internal.h - the state that transport.c, peer.c and flow.c share. Not for other
 * folders.
 *
 * Life of a peer (peer.c, handshake.c):
 *
 *     IDLE --send, connect, hello--> CONNECTING --welcome, confirm--> UP
 *     CONNECTING --no answer--> DOWN      UP --lost, timeout, disconnect--> DOWN
 *     DOWN --backoff--> calls again --> UP
 *     any but UP --refused--> DENIED, VERSION (slow retry)
 *
 * Life of an operation (flow.c): free -> queued at its peer -> with the backend (posted > 0) ->
 * free. A payload is written first and its frame sent after it; over a backend without order the
 * frame waits until the write is reported. If its peer ends, an operation stays with the backend
 * until that reports it (backend.h, the rule about memory).
 *
 * Life of a receive buffer (flow.c): FREE -> GRANTED to a peer -> HELD by the receiver -> FREE.
 * Each grant opens the buffer under a fresh key; the key dies when the payload is delivered or the
 * peer goes down. If the backend cannot close one peer's connection, GRANTED buffers are then
 * DOUBTFUL until the endpoint is opened again; half a pool of such buffers triggers that.
 *
 * Invariants:
 *   1. peer->posted counts the parts with the backend, and is 0 after a reset.
 *   2. A buffer is GRANTED to a peer exactly when that peer's granted[] lists it.
 *   3. granted_count + held_count <= window for each peer; asked_count + credit_count <= window.
 *   4. Only cairn_transport_poll calls callbacks.
 */
#ifndef CAIRN_TRANSPORT_INTERNAL_H
#define CAIRN_TRANSPORT_INTERNAL_H

#include "transport/backend.h"
#include "transport/frame.h"
#include "transport/transport.h"

enum class_of_frame { CLASS_MESSAGE, CLASS_BULK, CLASS_FLOW, CLASS_COUNT };

enum operation_stage {
    STAGE_WRITE,   /* the payload must be written */
    STAGE_WRITTEN, /* waits for the write to be reported: backend without order */
    STAGE_SEND,    /* the frame must be sent */
    STAGE_POSTED   /* all parts are with the backend */
};

struct operation;

/* The backend's handle of one part; `part` comes first so that done() finds the operation. */
struct operation_part {
    struct cairn_backend_part part;
    struct operation *operation;
};

enum operation_kind {
    OPERATION_USER,
    OPERATION_HANDSHAKE, /* one per peer, its own memory */
    OPERATION_FLOW       /* one per peer, its own memory */
};

struct operation {
    struct operation_part write;
    struct operation_part send;
    struct operation *next; /* in a queue or the free list */
    struct peer *peer;
    uint8_t *frame;
    size_t frame_len;
    const void *payload;
    size_t payload_len;
    struct cairn_backend_remote remote;
    uint64_t ticket;
    uint64_t serial; /* of the session it was made in */
    enum operation_kind kind;
    enum operation_stage stage;
    uint32_t posted; /* parts with the backend */
    bool overtaken;  /* its session has ended */
    cairn_err err;
};

struct credit {
    uint32_t buffer_index;
    struct cairn_backend_remote remote;
};

struct grant {
    uint32_t buffer_index;
    bool announced;
    struct cairn_backend_remote remote;
};

struct peer {
    uint32_t node;
    enum cairn_peer_state state;
    enum cairn_refusal logged_refusal; /* a refusal is logged once until the peer is up */
    bool logged_down;
    uint64_t logged_change_ns; /* of payloads */

    /* session */
    uint64_t serial; /* counts sessions */
    uint64_t incarnation;
    uint64_t token;
    uint16_t version;
    uint64_t sent_sequence[CLASS_COUNT];
    uint64_t received_sequence[CLASS_COUNT];
    uint64_t valid_ns;     /* when the last valid frame came */
    const char *unreached; /* why the connection of this call was lost, NULL: it was not */
    const char *broken;    /* why it must go down at the next pump, NULL: it must not */
    bool leaving;          /* the session's end is expected, and no call follows it */

    /* handshake */
    bool calling;   /* our hello awaits its welcome */
    bool answering; /* our welcome awaits its confirm */
    uint8_t calling_nonce[CAIRN_FRAME_NONCE_BYTES];
    uint8_t answering_nonce[CAIRN_FRAME_NONCE_BYTES]; /* ours */
    uint8_t answered_nonce[CAIRN_FRAME_NONCE_BYTES];  /* theirs */
    uint64_t answered_incarnation;
    struct cairn_frame_versions answered_versions;
    uint16_t answered_version; /* that was chosen */
    uint64_t called_ns;
    uint64_t call_deadline_ns;
    uint64_t next_call_ns;
    uint64_t backoff_ns;
    uint8_t pending_kind; /* the handshake frame to send next, 0: none; a newer one replaces it */
    uint16_t pending_version;
    struct cairn_frame_handshake pending_handshake;

    /* operations */
    struct operation *queue; /* not yet (wholly) with the backend, in order */
    struct operation **queue_end;
    uint32_t operation_count;  /* the user's, queued or posted */
    uint32_t posted;           /* parts with the backend, of all kinds */
    uint64_t waiting_since_ns; /* since when work is outstanding without progress; 0: none */
    uint64_t ended_ns;         /* when the session ended while parts were posted; 0: none are */
    uint64_t retry_ns;         /* after CAIRN_AGAIN of the backend */
    uint64_t retry_step_ns;
    struct operation handshake_operation;
    struct operation flow_operation;
    uint8_t handshake_frame[CAIRN_FRAME_HEADER_BYTES + CAIRN_FRAME_HANDSHAKE_BYTES];
    uint8_t flow_frame[CAIRN_FRAME_HEADER_BYTES + CAIRN_FRAME_FLOW_BYTES_MAX];

    /* credits that the peer gave us */
    struct credit credits[CAIRN_TRANSPORT_WINDOW_MAX];
    uint32_t credit_count;
    uint32_t asked_count; /* asked for and not yet given */
    uint32_t to_ask;      /* of these, not yet sent */
    bool to_urge;         /* a payload waits, and the peer must hear it */
    bool urged;           /* it has heard, and no credit has come since */
    uint32_t returns[CAIRN_TRANSPORT_WINDOW_MAX];
    uint32_t return_count;
    uint32_t revoked;   /* credits that were asked back and are not in `returns` yet */
    uint64_t return_ns; /* when they are */

    /* buffers that we gave the peer */
    struct grant granted[CAIRN_TRANSPORT_WINDOW_MAX];
    uint32_t granted_count;
    uint32_t held_count;
    uint32_t wanted_count; /* the peer asks for so many more */
    bool urgent;           /* and a payload waits there */
    uint16_t to_revoke;
    bool revoking;

    /* lists */
    struct peer *attention_next;
    bool attention;
    struct peer *wanting_next;
    bool wanting;
    struct peer *blocked_next;
    bool blocked;
    bool blocked_on_credit;
};

enum buffer_state {
    BUFFER_FREE,
    BUFFER_GRANTED,
    BUFFER_HELD,
    BUFFER_DOUBTFUL /* its peer is lost, and a half received write may still end in it */
};

struct buffer {
    enum buffer_state state;
    uint32_t node;
    uint32_t generation; /* counts deliveries: a stale handle is told apart */
    uint32_t next_free;
};

struct cairn_transport {
    struct cairn_backend *backend;
    uint32_t node;
    uint32_t node_count;
    uint64_t job_id;
    uint64_t incarnation;
    uint8_t *key;                         /* [CAIRN_TRANSPORT_KEY_BYTES_MAX], of base/secret.h */
    size_t key_len;                       /* 0: no key, or the backend proves it */
    struct cairn_frame_versions versions; /* that are spoken */
    bool checksum_payload;
    uint32_t window;
    uint64_t timeout_ns;
    uint64_t call_timeout_ns;
    cairn_transport_message_fn *on_message;
    cairn_transport_sent_fn *on_sent;
    cairn_transport_peer_fn *on_peer;
    cairn_transport_writable_fn *on_writable;
    cairn_transport_place_fn *on_place;
    void *context;

    struct peer *peers;
    struct operation *operations;
    uint8_t *frames; /* one of CAIRN_FRAME_BYTES_MAX per operation */
    struct operation *free_operations;
    uint32_t operation_count;
    uint32_t free_operation_count;
    struct buffer *buffers;
    uint8_t *pool;
    size_t pool_bytes;
    uint32_t buffer_count;
    uint32_t free_buffer; /* head of the free list, buffer_count: none */
    uint32_t free_buffer_count;
    uint32_t doubtful_buffer_count;

    struct peer *attention; /* peers with something to post, or broken */
    bool attention_fresh;   /* one was added since the last poll */
    struct peer *wanting;   /* peers that want buffers, in order */
    struct peer **wanting_end;
    struct peer *blocked; /* peers whose sender was told CAIRN_AGAIN */
    bool more;            /* the backend had more events than a poll takes */
    bool reset_wanted;
    bool reset_running;
    uint64_t reset_ns; /* not before */
    uint64_t now_ns;   /* of the running or last poll */
    uint64_t timer_ns; /* no peer's deadline is before this */
    struct cairn_transport_stats stats;
};

/* transport.c */
void transport_attend(struct cairn_transport *t, struct peer *peer);
void transport_arm(struct cairn_transport *t, uint64_t due_ns);

/* peer.c */
extern const uint64_t refused_ns; /* between tries of a peer that was refused */
void peer_init(struct peer *peer, uint32_t node);
void peer_call(struct cairn_transport *t, struct peer *peer);
void peer_call_timed(struct cairn_transport *t, struct peer *peer);
void peer_break(struct cairn_transport *t, struct peer *peer, const char *why);
void peer_down(struct cairn_transport *t, struct peer *peer, enum cairn_peer_state state,
               const char *why);
void peer_connection_changed(void *context, uint32_t node, const char *why);
void peer_stranger(struct cairn_transport *t, struct peer *peer);
void peer_timers(struct cairn_transport *t, struct peer *peer);
uint64_t peer_due(const struct cairn_transport *t, const struct peer *peer);
void peer_up(struct cairn_transport *t, struct peer *peer, uint64_t incarnation, uint64_t token,
             uint16_t version);
void peer_handshake_set(struct cairn_transport *t, struct peer *peer, uint8_t kind,
                        uint16_t version, const struct cairn_frame_handshake *handshake);
bool peer_post_handshake(struct cairn_transport *t, struct peer *peer);

/* handshake.c */
void peer_handshake(struct cairn_transport *t, const struct cairn_frame *frame);
void peer_key_refused(void *context, uint32_t node, const char *why);

/* operation.c */
cairn_err operation_submit(struct cairn_transport *t, struct peer *peer, const void *body,
                           size_t body_len, const void *payload, size_t payload_len, uint64_t place,
                           uint64_t ticket);
bool operation_available(const struct cairn_transport *t, const struct peer *peer);
void operation_retry_later(struct cairn_transport *t, struct peer *peer);
void operation_pump(struct cairn_transport *t, struct peer *peer);
cairn_err operation_send_own(struct cairn_transport *t, struct operation *operation);
void operation_done(void *context, struct cairn_backend_part *part, cairn_err err);
void operations_fail_queued(struct cairn_transport *t, struct peer *peer);
bool operations_borrow(const struct cairn_transport *t, const struct peer *peer);
void operations_reset(struct cairn_transport *t);
void frame_prepare(struct cairn_transport *t, struct peer *peer, enum class_of_frame class_index,
                   struct cairn_frame *frame);

/* flow.c */
void flow_init(struct cairn_transport *t);
void flow_ask(struct cairn_transport *t, struct peer *peer);
void flow_urge(struct cairn_transport *t, struct peer *peer);
void flow_return(struct cairn_transport *t, struct peer *peer);
void flow_received(struct cairn_transport *t, struct peer *peer, const struct cairn_frame *frame);
void flow_bulk(struct cairn_transport *t, struct peer *peer, const struct cairn_frame *frame,
               const uint8_t *bytes, size_t bytes_len);
bool flow_post(struct cairn_transport *t, struct peer *peer);
void flow_grant(struct cairn_transport *t);
void flow_forget(struct cairn_transport *t, struct peer *peer, bool reclaim);
void flow_reset(struct cairn_transport *t);
void flow_release(struct cairn_transport *t, uint64_t handle);

#endif
