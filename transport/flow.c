/*
 * transport/flow.c - credits: who may write a payload into which receive buffer.
 *
 * A sender asks (`wanted`) for as many buffers as fill its window, and again when half of them are
 * used, so that a steady stream never waits for a grant. A receiver grants from its pool in turn.
 * One peer gets at most `window`, and at most half of the free pool plus one, so that a peer
 * without a buffer finds one. If none is left for such a peer, an unused grant is asked back
 * (`revoked`) from the peer with the most, and the waiting peer gets it first. All of this travels
 * in flow frames, one at a time per peer; what must be sent waits in counters and lists of fixed
 * length.
 */
#include "transport/internal.h"

#include "base/assert.h"
#include "base/log.h"

#include <inttypes.h>
#include <string.h>

enum { RETURN_MS = 10 };

static const uint64_t change_log_ns = 10000000000; /* between two lines on a peer */

void
flow_init(struct cairn_transport *t)
{
    t->free_buffer = 0;
    t->free_buffer_count = t->buffer_count;
    for (uint32_t i = 0; i < t->buffer_count; i++)
        t->buffers[i] = (struct buffer){.state = BUFFER_FREE, .next_free = i + 1};
    t->wanting = NULL;
    t->wanting_end = &t->wanting;
}

static void
buffer_free(struct cairn_transport *t, uint32_t index)
{
    t->buffers[index].state = BUFFER_FREE;
    t->buffers[index].next_free = t->free_buffer;
    t->free_buffer = index;
    t->free_buffer_count++;
}

static void
region_close(struct cairn_transport *t, uint32_t index)
{
    (void)t->backend->ops->region(t->backend, index, NULL); /* closing does not fail */
}

/* ---- as a sender ---- */

void
flow_ask(struct cairn_transport *t, struct peer *peer)
{
    uint32_t have = peer->credit_count + peer->asked_count;

    if (have > t->window / 2)
        return;
    peer->to_ask += t->window - have;
    peer->asked_count += t->window - have;
    transport_attend(t, peer);
}

/* A payload waits for a credit: grants that others do not use are worth asking back. */
void
flow_urge(struct cairn_transport *t, struct peer *peer)
{
    flow_ask(t, peer);
    if (peer->urged || peer->to_urge)
        return;
    peer->to_urge = true;
    transport_attend(t, peer);
}

/* Returns buffers that were asked back and are unused. A sender that still waits asks again: its
 * credit is gone. */
void
flow_return(struct cairn_transport *t, struct peer *peer)
{
    for (; peer->revoked && peer->credit_count; peer->revoked--) {
        if (peer->return_count == CAIRN_TRANSPORT_WINDOW_MAX)
            break;
        peer->returns[peer->return_count++] = peer->credits[--peer->credit_count].buffer_index;
        transport_attend(t, peer);
    }
    peer->revoked = 0; /* the payload that used the credit answers as well */
    if (peer->blocked && peer->blocked_on_credit && peer->credit_count == 0)
        flow_urge(t, peer);
}

static void
credits_received(struct cairn_transport *t, struct peer *peer, const struct cairn_frame_flow *flow)
{
    for (uint16_t i = 0; i < flow->grant_count; i++) {
        struct credit *credit = &peer->credits[peer->credit_count];

        if (peer->credit_count == CAIRN_TRANSPORT_WINDOW_MAX) {
            peer_break(t, peer, "it granted more than was asked");
            return;
        }
        credit->buffer_index = flow->grants[i].buffer_index;
        credit->remote.address = flow->grants[i].address;
        credit->remote.key = flow->grants[i].key;
        peer->credit_count++;
        peer->urged = false;
        if (peer->asked_count)
            peer->asked_count--;
    }
    if (flow->revoked == 0 || peer->credit_count == 0)
        return; /* the payload that used the credit answers: a later one is not meant */
    /* A waiting sender gets a moment to use its credit: one that came and went in the same poll
     * would be passed round for ever. */
    peer->revoked += flow->revoked;
    peer->return_ns = t->now_ns;
    if (peer->blocked && peer->blocked_on_credit)
        peer->return_ns += RETURN_MS * UINT64_C(1000000);
    transport_arm(t, peer->return_ns);
}

/* ---- as a receiver ---- */

/* The place of a buffer in granted[], granted_count when it is not there. */
static uint32_t
grant_find(const struct peer *peer, uint32_t buffer_index)
{
    uint32_t at = 0;

    while (at < peer->granted_count &&
           (peer->granted[at].buffer_index != buffer_index || !peer->granted[at].announced))
        at++;
    return at;
}

static void
grant_remove(struct peer *peer, uint32_t at)
{
    memmove(&peer->granted[at], &peer->granted[at + 1],
            (peer->granted_count - at - 1) * sizeof peer->granted[0]);
    peer->granted_count--;
}

static bool
may_grant(const struct cairn_transport *t, const struct peer *peer)
{
    uint32_t holding = peer->granted_count + peer->held_count;

    return t->free_buffer_count > 0 && holding < t->window &&
           holding < 1 + t->free_buffer_count / 2;
}

static bool
grant_one(struct cairn_transport *t, struct peer *peer)
{
    uint32_t index = t->free_buffer;
    struct grant *grant = &peer->granted[peer->granted_count];

    if (t->backend->ops->region(t->backend, index, &grant->remote) != CAIRN_OK)
        return false; /* logged there; the buffer stays free and is tried again */
    t->free_buffer = t->buffers[index].next_free;
    t->free_buffer_count--;
    t->buffers[index].state = BUFFER_GRANTED;
    t->buffers[index].node = peer->node;
    grant->buffer_index = index;
    grant->announced = false;
    peer->granted_count++;
    peer->wanted_count--;
    peer->urgent = false;
    transport_attend(t, peer);
    return true;
}

/* A payload waits there, and nothing here is open for it. */
static bool
is_starving(const struct peer *peer)
{
    return peer->wanted_count && peer->urgent && peer->granted_count == 0 && peer->held_count == 0;
}

/* Asks unused grants back, one for each peer that starves: of the peers that have the most, one of
 * each at a time. */
static void
revoke(struct cairn_transport *t, uint32_t starving)
{
    for (uint32_t i = 0; i < t->node_count; i++)
        starving -= t->peers[i].revoking && starving > 0;
    while (starving-- > 0) {
        struct peer *victim = NULL;

        for (uint32_t i = 0; i < t->node_count; i++) {
            struct peer *peer = &t->peers[i];

            if (peer->granted_count > 0 && !peer->revoking &&
                (!victim || peer->granted_count > victim->granted_count))
                victim = peer;
        }
        if (!victim)
            return;
        victim->revoking = true;
        victim->to_revoke++;
        transport_attend(t, victim);
    }
}

/* Peers that starve come first, or others would take back what they were asked for. */
static uint32_t
feed_starving(struct cairn_transport *t)
{
    uint32_t starving = 0;

    for (struct peer *peer = t->wanting; peer; peer = peer->wanting_next)
        if (is_starving(peer) && (t->free_buffer_count == 0 || !grant_one(t, peer)))
            starving++;
    return starving;
}

void
flow_grant(struct cairn_transport *t)
{
    uint32_t starving = feed_starving(t);
    bool granted = true;

    while (granted) {
        struct peer **at = &t->wanting;

        granted = false;
        while (*at) {
            struct peer *peer = *at;

            if (starving == 0 && peer->wanted_count && may_grant(t, peer) && grant_one(t, peer))
                granted = true;
            if (peer->wanted_count) {
                at = &peer->wanting_next;
                continue;
            }
            *at = peer->wanting_next;
            peer->wanting = false;
        }
        t->wanting_end = at;
    }
    if (starving)
        revoke(t, starving);
}

static void
wants_received(struct cairn_transport *t, struct peer *peer, uint32_t wanted)
{
    if (wanted == 0)
        return;
    peer->wanted_count += wanted;
    if (peer->wanted_count > CAIRN_TRANSPORT_WINDOW_MAX)
        peer->wanted_count = CAIRN_TRANSPORT_WINDOW_MAX;
    if (!peer->wanting) {
        peer->wanting = true;
        peer->wanting_next = NULL;
        *t->wanting_end = peer;
        t->wanting_end = &peer->wanting_next;
    }
}

void
flow_received(struct cairn_transport *t, struct peer *peer, const struct cairn_frame *frame)
{
    struct cairn_frame_flow flow;

    if (cairn_frame_flow_parse(frame->body, frame->body_len, &flow) != CAIRN_OK) {
        peer_break(t, peer, "a flow frame is malformed");
        return;
    }
    for (uint16_t i = 0; i < flow.return_count; i++) {
        uint32_t at = grant_find(peer, flow.returns[i]);

        if (at == peer->granted_count) {
            peer_break(t, peer, "it returned a buffer that it was not granted");
            return;
        }
        region_close(t, flow.returns[i]);
        grant_remove(peer, at);
        buffer_free(t, flow.returns[i]);
        peer->revoking = false;
    }
    wants_received(t, peer, flow.wanted);
    if (flow.urgent)
        peer->urgent = true;
    credits_received(t, peer, &flow);
    transport_attend(t, peer);
}

/* Counts and logs a payload that changed. A trainer or a network may change very many. */
static void
change_log(struct cairn_transport *t, struct peer *peer)
{
    t->stats.dropped_payloads++;
    if (peer->logged_change_ns && t->now_ns - peer->logged_change_ns < change_log_ns)
        return;
    peer->logged_change_ns = t->now_ns;
    CAIRN_LOG_AT(WARN,
                 "transport: dropped a payload of node %u: it changed on its way, or a trainer "
                 "there wrote to it; %" PRIu64 " of all nodes so far",
                 peer->node, t->stats.dropped_payloads);
}

void
flow_bulk(struct cairn_transport *t, struct peer *peer, const struct cairn_frame *frame,
          const uint8_t *bytes, size_t bytes_len)
{
    uint32_t index = frame->buffer_index;
    uint32_t at = grant_find(peer, index);
    enum cairn_backend_fill fill;
    const uint8_t *payload;

    if (at == peer->granted_count) {
        peer_break(t, peer, "it sent a payload into a buffer that it was not granted");
        return;
    }
    fill = t->backend->ops->filled(t->backend, index, frame->payload_len);
    if (fill == CAIRN_BACKEND_EMPTY) {
        peer_break(t, peer, "it announced a payload that has not come");
        return;
    }
    payload = t->backend->ops->placed ? t->backend->ops->placed(t->backend, index) : NULL;
    if (!payload)
        payload = t->pool + (size_t)index * CAIRN_BULK_BYTES_MAX;
    region_close(t, index); /* from here on the sender cannot change what is read */
    grant_remove(peer, at);
    peer->revoking = false;
    if (fill == CAIRN_BACKEND_TORN) {
        buffer_free(t, index);
        t->attention_fresh |= t->wanting != NULL; /* the next poll grants it */
        change_log(t, peer);
        t->on_message(t->context, peer->node, frame->body, frame->body_len, NULL, 0, 0);
        return;
    }
    if ((frame->flags & CAIRN_FRAME_PAYLOAD_CHECKED) &&
        cairn_frame_check_payload(bytes, bytes_len, payload, frame->payload_len) != CAIRN_OK) {
        buffer_free(t, index);
        t->stats.dropped_malformed++;
        peer_break(t, peer, "a payload is damaged");
        return;
    }
    t->buffers[index].state = BUFFER_HELD;
    t->buffers[index].generation++;
    peer->held_count++;
    t->stats.received_messages++;
    t->stats.received_payload_bytes += frame->payload_len;
    t->on_message(t->context, peer->node, frame->body, frame->body_len, payload, frame->payload_len,
                  (uint64_t)t->buffers[index].generation << 32 | (index + 1));
}

void
flow_release(struct cairn_transport *t, uint64_t handle)
{
    uint32_t index = (uint32_t)handle - 1;
    struct buffer *buffer;

    if ((uint32_t)handle == 0 || index >= t->buffer_count)
        return;
    buffer = &t->buffers[index];
    if (buffer->state != BUFFER_HELD || buffer->generation != (uint32_t)(handle >> 32))
        return;
    t->peers[buffer->node].held_count--;
    buffer_free(t, index);
    if (t->wanting)
        t->attention_fresh = true; /* the next poll grants it */
}

/* Posts one flow frame with everything pending. False: the backend says try again. */
bool
flow_post(struct cairn_transport *t, struct peer *peer)
{
    struct cairn_frame_flow flow = {
        .wanted = peer->to_ask, .urgent = peer->to_urge, .revoked = peer->to_revoke};
    struct cairn_frame frame = {.kind = CAIRN_FRAME_FLOW};
    uint16_t announced = 0;
    cairn_err err;

    if (peer->flow_operation.posted)
        return true; /* its end attends to the peer again */
    for (uint32_t i = 0; i < peer->granted_count; i++) {
        if (peer->granted[i].announced)
            continue;
        flow.grants[flow.grant_count].buffer_index = peer->granted[i].buffer_index;
        flow.grants[flow.grant_count].address = peer->granted[i].remote.address;
        flow.grants[flow.grant_count++].key = peer->granted[i].remote.key;
        announced++;
    }
    flow.return_count = (uint16_t)peer->return_count;
    memcpy(flow.returns, peer->returns, peer->return_count * sizeof peer->returns[0]);
    if (!flow.wanted && !flow.urgent && !flow.revoked && !announced && !flow.return_count)
        return true;
    frame.body_len =
        (uint32_t)cairn_frame_flow_pack(&flow, peer->flow_frame + CAIRN_FRAME_HEADER_BYTES);
    frame_prepare(t, peer, CLASS_FLOW, &frame);
    cairn_frame_pack(&frame, NULL, peer->flow_frame);
    peer->flow_operation.frame_len = CAIRN_FRAME_HEADER_BYTES + frame.body_len;
    err = operation_send_own(t, &peer->flow_operation);
    if (err) {
        peer->sent_sequence[CLASS_FLOW]--;
        if (err != CAIRN_AGAIN)
            peer_break(t, peer, "the connection is lost");
        return err != CAIRN_AGAIN;
    }
    for (uint32_t i = 0; i < peer->granted_count; i++)
        peer->granted[i].announced = true;
    peer->to_ask = 0;
    peer->urged |= peer->to_urge;
    peer->to_urge = false;
    peer->to_revoke = 0;
    peer->return_count = 0;
    return true;
}

/*
 * Forgets a session's credits. With `reclaim` the peer cannot write any more, and the buffers that
 * it was granted are free again; without, they are doubtful.
 */
void
flow_forget(struct cairn_transport *t, struct peer *peer, bool reclaim)
{
    peer->credit_count = 0;
    peer->asked_count = 0;
    peer->to_ask = 0;
    peer->to_urge = false;
    peer->urged = false;
    peer->urgent = false;
    peer->return_count = 0;
    peer->revoked = 0;
    peer->wanted_count = 0; /* the next flow_grant takes it out of the list */
    peer->to_revoke = 0;
    peer->revoking = false;
    for (uint32_t i = 0; i < peer->granted_count; i++) {
        uint32_t index = peer->granted[i].buffer_index;

        region_close(t, index);
        if (reclaim) {
            buffer_free(t, index);
        } else {
            t->buffers[index].state = BUFFER_DOUBTFUL;
            t->doubtful_buffer_count++;
        }
    }
    peer->granted_count = 0;
    if (t->doubtful_buffer_count > t->buffer_count / 2)
        t->reset_wanted = true;
}

/* The endpoint is gone, and nothing writes any more. */
void
flow_reset(struct cairn_transport *t)
{
    for (uint32_t i = 0; i < t->buffer_count; i++)
        if (t->buffers[i].state == BUFFER_DOUBTFUL)
            buffer_free(t, i);
    t->doubtful_buffer_count = 0;
}
