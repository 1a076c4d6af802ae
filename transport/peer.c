/*
 * transport/peer.c - peers: sessions, going down, calling, and time. internal.h has the picture,
 * handshake.c the messages before a session.
 */
#include "transport/internal.h"

#include "base/log.h"

#include <inttypes.h>
#include <string.h>

static const uint64_t millisecond_ns = 1000000;
const uint64_t refused_ns = 5000000000u; /* between tries of a peer that was refused */

enum {
    BACKOFF_MS_MIN = 100,
    BACKOFF_MS_MAX = 1000,
    SILENT_MS = 1000, /* without a valid frame, before a strange token makes us call */
    GRACE_MS = 1000   /* for the backend to report a lost peer's operations */
};

void
peer_init(struct peer *peer, uint32_t node)
{
    peer->node = node;
    peer->state = CAIRN_PEER_IDLE;
    peer->queue_end = &peer->queue;
    peer->handshake_operation.kind = OPERATION_HANDSHAKE;
    peer->handshake_operation.frame = peer->handshake_frame;
    peer->flow_operation.kind = OPERATION_FLOW;
    peer->flow_operation.frame = peer->flow_frame;
    struct operation *own[] = {&peer->handshake_operation, &peer->flow_operation};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        own[i]->peer = peer;
        own[i]->write.operation = own[i];
        own[i]->send.operation = own[i];
    }
}

void
peer_handshake_set(struct cairn_transport *t, struct peer *peer, uint8_t kind, uint16_t version,
                   const struct cairn_frame_handshake *handshake)
{
    peer->pending_kind = kind;
    peer->pending_version = version;
    peer->pending_handshake = *handshake;
    transport_attend(t, peer);
}

/* Posts the pending handshake frame. False: the backend says try again. */
bool
peer_post_handshake(struct cairn_transport *t, struct peer *peer)
{
    struct cairn_frame frame = {.kind = peer->pending_kind,
                                .version = peer->pending_version,
                                .job_id = t->job_id,
                                .from = t->node,
                                .to = peer->node,
                                .body_len = CAIRN_FRAME_HANDSHAKE_BYTES};
    cairn_err err;

    if (!peer->pending_kind || peer->handshake_operation.posted)
        return true; /* the end of the one before attends to the peer again */
    cairn_frame_handshake_pack(&peer->pending_handshake,
                               peer->handshake_frame + CAIRN_FRAME_HEADER_BYTES);
    cairn_frame_pack(&frame, NULL, peer->handshake_frame);
    peer->handshake_operation.frame_len = sizeof peer->handshake_frame;
    err = operation_send_own(t, &peer->handshake_operation);
    if (err && peer->state == CAIRN_PEER_UP && err != CAIRN_AGAIN)
        peer_break(t, peer, "the connection is lost");
    if (err)
        return false; /* a refused connection is tried again like a full one, until the call ends */
    peer->pending_kind = 0;
    return true;
}

/* Says hello. The answer is due within the call's timeout. */
void
peer_call(struct cairn_transport *t, struct peer *peer)
{
    struct cairn_frame_handshake hello = {
        .incarnation = t->incarnation, .versions = t->versions, .keyed = t->key_len > 0};

    if (cairn_proof_random(peer->calling_nonce, sizeof peer->calling_nonce) != CAIRN_OK) {
        peer->next_call_ns = t->now_ns + BACKOFF_MS_MAX * millisecond_ns;
        transport_arm(t, peer->next_call_ns);
        return;
    }
    memcpy(hello.nonce_initiator, peer->calling_nonce, sizeof hello.nonce_initiator);
    if (peer->state == CAIRN_PEER_IDLE)
        peer->state = CAIRN_PEER_CONNECTING;
    peer->calling = true;
    peer->unreached = NULL;
    peer->called_ns = t->now_ns;
    peer->call_deadline_ns = 0; /* peer_call_timed sets it: between polls now_ns may be old */
    peer->retry_ns = 0;
    peer->retry_step_ns = 0;
    peer_handshake_set(t, peer, CAIRN_FRAME_HELLO, t->versions.newest, &hello);
}

/* In a poll: starts the clock of calls made since the last one. */
void
peer_call_timed(struct cairn_transport *t, struct peer *peer)
{
    if (!peer->calling || peer->call_deadline_ns)
        return;
    peer->called_ns = t->now_ns;
    peer->call_deadline_ns = t->now_ns + t->call_timeout_ns;
    transport_arm(t, peer->call_deadline_ns);
}

void
peer_break(struct cairn_transport *t, struct peer *peer, const char *why)
{
    if (!peer->broken)
        peer->broken = why;
    transport_attend(t, peer);
}

/*
 * Ends what belongs to the session. Its queue ends with on_sent, its grants are taken back; the
 * state is the caller's to set before, for the callbacks may send.
 */
static void
session_end(struct cairn_transport *t, struct peer *peer, bool isolated)
{
    peer->serial++; /* what the backend still has is overtaken */
    peer->token = 0;
    peer->answering = false;
    peer->waiting_since_ns = 0;
    if (peer->posted) {
        peer->ended_ns = t->now_ns;
        transport_arm(t, t->now_ns + GRACE_MS * millisecond_ns);
    }
    flow_forget(t, peer, isolated);
    operations_fail_queued(t, peer);
}

void
peer_down(struct cairn_transport *t, struct peer *peer, enum cairn_peer_state state,
          const char *why)
{
    bool was_up = peer->state == CAIRN_PEER_UP;
    bool isolated = true, left = peer->leaving && state == CAIRN_PEER_DOWN;

    peer->state = left ? CAIRN_PEER_IDLE : state;
    peer->leaving = false;
    peer->broken = NULL;
    peer->calling = false;
    peer->pending_kind = 0;
    peer->backoff_ns = peer->backoff_ns ? peer->backoff_ns * 2 : BACKOFF_MS_MIN * millisecond_ns;
    if (peer->backoff_ns > BACKOFF_MS_MAX * millisecond_ns)
        peer->backoff_ns = BACKOFF_MS_MAX * millisecond_ns;
    peer->next_call_ns = t->now_ns + (state == CAIRN_PEER_DOWN ? peer->backoff_ns : refused_ns);
    transport_arm(t, peer->next_call_ns);
    if (!t->reset_running && t->backend->ops->disconnect(t->backend, peer->node) != CAIRN_OK)
        isolated = false;
    if (was_up) {
        cairn_log_line(left ? CAIRN_LOG_INFO : CAIRN_LOG_WARN,
                       "transport: %s peer node=%" PRIu32 " reason=\"%s\"", left ? "left" : "lost",
                       peer->node, why);
        peer->logged_down = !left;
        session_end(t, peer, isolated);
        t->on_peer(t->context, peer->node, false, peer->incarnation);
    } else if (state == CAIRN_PEER_DOWN && !peer->logged_down) {
        CAIRN_LOG_AT(WARN, "transport: cannot reach peer node=%" PRIu32 " reason=\"%s\", trying on",
                     peer->node, why);
        peer->logged_down = true;
    }
}

void
peer_up(struct cairn_transport *t, struct peer *peer, uint64_t incarnation, uint64_t token,
        uint16_t version)
{
    uint64_t incarnation_before = peer->incarnation;

    if (peer->state == CAIRN_PEER_UP) {
        /* On an isolating backend the new handshake came over the only connection there is, behind
         * everything that the old session wrote. */
        peer->state = CAIRN_PEER_DOWN;
        session_end(t, peer, t->backend->isolates);
        t->on_peer(t->context, peer->node, false, incarnation_before);
    }
    peer->serial++;
    peer->state = CAIRN_PEER_UP;
    peer->incarnation = incarnation;
    peer->token = token;
    peer->version = version;
    memset(peer->sent_sequence, 0, sizeof peer->sent_sequence);
    memset(peer->received_sequence, 0, sizeof peer->received_sequence);
    peer->valid_ns = t->now_ns;
    peer->broken = NULL;
    peer->leaving = false;
    peer->calling = false;
    peer->answering = false;
    peer->backoff_ns = 0;
    peer->retry_ns = 0;
    peer->retry_step_ns = 0;
    peer->logged_refusal = CAIRN_REFUSAL_NONE;
    peer->logged_down = false;
    t->stats.sessions++;
    flow_ask(t, peer);
    transport_attend(t, peer);
    CAIRN_LOG_AT(INFO, "transport: peer is up node=%" PRIu32 " incarnation=%" PRIu64, peer->node,
                 incarnation);
    t->on_peer(t->context, peer->node, true, incarnation);
}

/* The backend's connection to a peer is there, or is lost. A call goes on over the next one. */
void
peer_connection_changed(void *context, uint32_t node, const char *why)
{
    struct cairn_transport *t = context;
    struct peer *peer = &t->peers[node];

    if (!why) {
        peer->retry_ns = 0;
        transport_attend(t, peer);
    } else if (peer->state == CAIRN_PEER_UP) {
        peer_break(t, peer, why);
    } else {
        (void)!t->backend->ops->disconnect(t->backend, node); /* the next one takes its place */
        peer->unreached = why;
        peer->answering = false;
        if (peer->calling && !peer->pending_kind)
            peer->pending_kind = CAIRN_FRAME_HELLO;
        operation_retry_later(t, peer);
        transport_attend(t, peer);
    }
}

/*
 * A frame came under another token: from an older session, or from a peer that thinks it is up with
 * an earlier process here. A call cures the second.
 */
void
peer_stranger(struct cairn_transport *t, struct peer *peer)
{
    t->stats.dropped_unauthenticated++;
    if (peer->calling || peer->answering)
        return;
    if (peer->state == CAIRN_PEER_IDLE ||
        (peer->state == CAIRN_PEER_UP && t->now_ns - peer->valid_ns > SILENT_MS * millisecond_ns &&
         t->now_ns - peer->called_ns > SILENT_MS * millisecond_ns))
        peer_call(t, peer);
}

/* ---- time ---- */

uint64_t
peer_due(const struct cairn_transport *t, const struct peer *peer)
{
    uint64_t due = UINT64_MAX;

    if (peer->calling && peer->call_deadline_ns && peer->call_deadline_ns < due)
        due = peer->call_deadline_ns;
    if (!peer->calling && peer->next_call_ns < due &&
        (peer->state == CAIRN_PEER_DOWN || peer->state == CAIRN_PEER_DENIED ||
         peer->state == CAIRN_PEER_VERSION))
        due = peer->next_call_ns;
    if (peer->state == CAIRN_PEER_UP && peer->waiting_since_ns &&
        peer->waiting_since_ns + t->timeout_ns < due)
        due = peer->waiting_since_ns + t->timeout_ns;
    if (peer->ended_ns && peer->ended_ns + GRACE_MS * millisecond_ns < due)
        due = peer->ended_ns + GRACE_MS * millisecond_ns;
    if (peer->revoked && peer->return_ns < due)
        due = peer->return_ns;
    if (peer->attention && peer->retry_ns > t->now_ns && peer->retry_ns < due)
        due = peer->retry_ns;
    return due;
}

void
peer_timers(struct cairn_transport *t, struct peer *peer)
{
    if (peer->state == CAIRN_PEER_UP && peer->waiting_since_ns &&
        t->now_ns >= peer->waiting_since_ns + t->timeout_ns) {
        t->stats.timeouts++;
        peer_down(t, peer, CAIRN_PEER_DOWN, "an operation made no progress in time");
    }
    if (peer->ended_ns && t->now_ns >= peer->ended_ns + GRACE_MS * millisecond_ns) {
        /* Still with the backend: only the endpoint's end gives the memory back. */
        peer->ended_ns = 0;
        if (operations_borrow(t, peer))
            t->reset_wanted = true;
    }
    if (peer->revoked && t->now_ns >= peer->return_ns)
        flow_return(t, peer);
    if (peer->calling && peer->call_deadline_ns && t->now_ns >= peer->call_deadline_ns) {
        peer->calling = false;
        if (peer->state != CAIRN_PEER_UP)
            peer_down(t, peer, CAIRN_PEER_DOWN, peer->unreached ? peer->unreached : "no answer");
    } else if (!peer->calling && t->now_ns >= peer->next_call_ns &&
               (peer->state == CAIRN_PEER_DOWN || peer->state == CAIRN_PEER_DENIED ||
                peer->state == CAIRN_PEER_VERSION)) {
        peer_call(t, peer);
    }
}
