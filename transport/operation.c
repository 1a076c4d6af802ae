/*
 * transport/operation.c - sends: from the user's call to the backend, and back to on_sent.
 *
 * See internal.h for the life of an operation. A peer's queue holds what the backend has not
 * accepted yet; the pool of operations bounds it. One peer gets at most a quarter of the free
 * operations, so that a stuck peer leaves room for the others.
 */
#include "transport/internal.h"

#include "base/assert.h"

#include <string.h>

enum { RETRY_NS_MIN = 1000000, RETRY_NS_MAX = 100000000 };

bool
operation_available(const struct cairn_transport *t, const struct peer *peer)
{
    return t->free_operation_count > 0 && peer->operation_count < 2 + t->free_operation_count / 4;
}

static void
operation_free(struct cairn_transport *t, struct operation *operation)
{
    operation->peer->operation_count--;
    operation->peer = NULL;
    operation->payload = NULL;
    operation->next = t->free_operations;
    t->free_operations = operation;
    t->free_operation_count++;
}

/* Ends a user's operation: free first, so that the callback may send again. */
static void
operation_finish(struct cairn_transport *t, struct operation *operation, cairn_err err)
{
    uint32_t node = operation->peer->node;
    uint64_t ticket = operation->ticket;

    CAIRN_ASSERT(operation->posted == 0);
    operation_free(t, operation);
    t->on_sent(t->context, node, ticket, err);
}

void
frame_prepare(struct cairn_transport *t, struct peer *peer, enum class_of_frame class_index,
              struct cairn_frame *frame)
{
    frame->version = peer->version;
    frame->job_id = t->job_id;
    frame->from = t->node;
    frame->to = peer->node;
    frame->token = peer->token;
    frame->sequence = ++peer->sent_sequence[class_index];
}

static void
queue_append(struct peer *peer, struct operation *operation)
{
    operation->next = NULL;
    *peer->queue_end = operation;
    peer->queue_end = &operation->next;
}

cairn_err
operation_submit(struct cairn_transport *t, struct peer *peer, const void *body, size_t body_len,
                 const void *payload, size_t payload_len, uint64_t place, uint64_t ticket)
{
    struct operation *operation = t->free_operations;
    struct cairn_frame frame = {.kind = CAIRN_FRAME_MESSAGE};

    CAIRN_ASSERT(operation);
    CAIRN_ASSERT(!payload_len || peer->credit_count);
    t->free_operations = operation->next;
    t->free_operation_count--;
    peer->operation_count++;
    operation->peer = peer;
    operation->payload = payload;
    operation->payload_len = payload_len;
    operation->ticket = ticket;
    operation->serial = peer->serial;
    operation->stage = payload_len ? STAGE_WRITE : STAGE_SEND;
    operation->posted = 0;
    operation->overtaken = false;
    operation->err = CAIRN_OK;
    operation->frame_len = CAIRN_FRAME_HEADER_BYTES + body_len;
    if (body_len)
        memcpy(operation->frame + CAIRN_FRAME_HEADER_BYTES, body, body_len);
    frame.body_len = (uint32_t)body_len;
    if (payload_len) {
        struct credit credit = peer->credits[--peer->credit_count];

        operation->remote = credit.remote;
        operation->remote.place = place;
        frame.kind = CAIRN_FRAME_BULK;
        frame.flags = t->checksum_payload ? CAIRN_FRAME_PAYLOAD_CHECKED : 0;
        frame.payload_len = (uint32_t)payload_len;
        frame.buffer_index = credit.buffer_index;
    }
    frame_prepare(t, peer, payload_len ? CLASS_BULK : CLASS_MESSAGE, &frame);
    cairn_frame_pack(&frame, payload, operation->frame);
    t->stats.sent_messages++;
    t->stats.sent_payload_bytes += payload_len;
    queue_append(peer, operation);
    operation_pump(t, peer);
    transport_attend(t, peer);
    return CAIRN_OK;
}

/* Counts a part that the backend has taken. */
static void
part_posted(struct operation *operation)
{
    operation->posted++;
    operation->peer->posted++;
}

/* Hands the next part of an operation to the backend. */
static cairn_err
operation_post(struct cairn_transport *t, struct operation *operation)
{
    struct cairn_backend *backend = t->backend;
    uint32_t node = operation->peer->node;
    cairn_err err = CAIRN_OK;

    if (operation->stage == STAGE_WRITE) {
        err = backend->ops->write(backend, node, operation->payload, operation->payload_len,
                                  operation->remote, &operation->write.part);
        if (err)
            return err;
        part_posted(operation);
        operation->stage = backend->ordered ? STAGE_SEND : STAGE_WRITTEN;
    }
    if (operation->stage == STAGE_SEND) {
        err = backend->ops->send(backend, node, operation->frame, operation->frame_len,
                                 &operation->send.part);
        if (err)
            return err;
        part_posted(operation);
        operation->stage = STAGE_POSTED;
    }
    return CAIRN_OK;
}

cairn_err
operation_send_own(struct cairn_transport *t, struct operation *operation)
{
    operation->stage = STAGE_SEND;
    operation->serial = operation->peer->serial;
    return operation_post(t, operation);
}

/* The backend would not take it: when to try again. An event of the backend may come sooner. */
void
operation_retry_later(struct cairn_transport *t, struct peer *peer)
{
    if (peer->state == CAIRN_PEER_UP || peer->retry_step_ns == 0)
        peer->retry_step_ns = RETRY_NS_MIN;
    else if (peer->retry_step_ns < RETRY_NS_MAX)
        peer->retry_step_ns *= 2;
    peer->retry_ns = t->now_ns + peer->retry_step_ns;
    transport_arm(t, peer->retry_ns);
}

/* Posts what can be posted. A frame of a payload waits for earlier frames; see transport.h, rule
 * 2. */
static cairn_err
queue_pump(struct cairn_transport *t, struct peer *peer)
{
    struct operation **at = &peer->queue;
    bool bulk_waits = false;

    while (*at) {
        struct operation *operation = *at;
        cairn_err err;

        if (operation->stage == STAGE_WRITTEN ||
            (bulk_waits && operation->payload && operation->stage == STAGE_SEND)) {
            bulk_waits = true;
            at = &operation->next;
            continue;
        }
        err = operation_post(t, operation);
        if (err)
            return err;
        if (operation->stage == STAGE_POSTED) {
            *at = operation->next;
            if (!*at)
                peer->queue_end = at;
            operation->next = NULL;
        } else {
            bulk_waits = true;
            at = &operation->next;
        }
    }
    return CAIRN_OK;
}

/* Posts handshake, flow and queue, in this order. Calls no callback; a lost connection is
 * marked. */
void
operation_pump(struct cairn_transport *t, struct peer *peer)
{
    cairn_err err = CAIRN_OK;

    if (peer->broken || (peer->state != CAIRN_PEER_UP && t->now_ns < peer->retry_ns))
        return;
    if (!peer_post_handshake(t, peer)) {
        operation_retry_later(t, peer);
        return;
    }
    if (peer->state != CAIRN_PEER_UP || peer->pending_kind == CAIRN_FRAME_CONFIRM)
        return;
    if (!flow_post(t, peer)) {
        operation_retry_later(t, peer);
        return;
    }
    err = queue_pump(t, peer);
    if (err == CAIRN_AGAIN)
        operation_retry_later(t, peer);
    else if (err)
        peer_break(t, peer, "the connection is lost");
    else
        peer->retry_step_ns = 0;
}

/* No part of a user's operation is with the backend any more: ends it, or sends its frame. */
static void
user_part_done(struct cairn_transport *t, struct operation *operation)
{
    if (operation->posted)
        return;
    if (operation->overtaken || operation->stage == STAGE_POSTED)
        operation_finish(t, operation, operation->overtaken ? CAIRN_PEER : operation->err);
    else if (operation->stage == STAGE_WRITTEN && !operation->err)
        operation->stage = STAGE_SEND;
}

void
operation_done(void *context, struct cairn_backend_part *part, cairn_err err)
{
    struct cairn_transport *t = context;
    struct operation *operation = ((struct operation_part *)(void *)part)->operation;
    struct peer *peer = operation->peer;

    CAIRN_ASSERT(peer && operation->posted > 0 && peer->posted > 0);
    operation->posted--;
    peer->posted--;
    peer->waiting_since_ns = t->now_ns;
    if (peer->posted == 0)
        peer->ended_ns = 0;
    if (operation->serial != peer->serial)
        operation->overtaken = true;
    if (err) {
        operation->err = CAIRN_PEER;
        if (!operation->overtaken && peer->state == CAIRN_PEER_UP)
            peer_break(t, peer, "an operation failed");
        else if (operation->kind == OPERATION_HANDSHAKE && peer->calling && !peer->pending_kind)
            peer->pending_kind = CAIRN_FRAME_HELLO; /* the connection was refused: try another */
    }
    transport_attend(t, peer);
    if (operation->kind == OPERATION_USER)
        user_part_done(t, operation);
}

/* The session has ended: ends what is queued. What the backend has ends with its report. */
void
operations_fail_queued(struct cairn_transport *t, struct peer *peer)
{
    struct operation *operation = peer->queue;

    peer->queue = NULL;
    peer->queue_end = &peer->queue;
    while (operation) {
        struct operation *next = operation->next;

        operation->next = NULL;
        operation->overtaken = true;
        operation->stage = STAGE_POSTED;
        user_part_done(t, operation);
        operation = next;
    }
}

/* Whether the backend still has an operation of the user's at this peer. */
bool
operations_borrow(const struct cairn_transport *t, const struct peer *peer)
{
    for (uint32_t i = 0; i < t->operation_count; i++)
        if (t->operations[i].peer == peer && t->operations[i].posted)
            return true;
    return false;
}

/* The endpoint is gone and with it every operation. Peers are down by now. */
void
operations_reset(struct cairn_transport *t)
{
    for (uint32_t i = 0; i < t->node_count; i++) {
        t->peers[i].posted = 0;
        t->peers[i].ended_ns = 0;
        t->peers[i].handshake_operation.posted = 0;
        t->peers[i].flow_operation.posted = 0;
    }
    for (uint32_t i = 0; i < t->operation_count; i++) {
        struct operation *operation = &t->operations[i];

        if (!operation->peer || operation->posted == 0)
            continue;
        operation->posted = 0;
        operation->overtaken = true;
        user_part_done(t, operation);
    }
}
