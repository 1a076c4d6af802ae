/*
 * transport/transport.c - opening, polling and the public calls; the rules are in peer.c,
 * operation.c and flow.c, the bytes in the backends.
 */
#include "transport/internal.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/secret.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static const uint64_t second_ns = 1000000000;

/* ---- lists and timers ---- */

/* The peer has something to post, or is broken: the next poll looks at it. */
void
transport_attend(struct cairn_transport *t, struct peer *peer)
{
    t->attention_fresh = true;
    if (peer->attention)
        return;
    peer->attention = true;
    peer->attention_next = t->attention;
    t->attention = peer;
}

void
transport_arm(struct cairn_transport *t, uint64_t due_ns)
{
    if (due_ns < t->timer_ns)
        t->timer_ns = due_ns;
}

/* ---- receiving ---- */

static void
frame_received(void *context, uint32_t node, const uint8_t *bytes, size_t bytes_len)
{
    static const enum class_of_frame classes[] = {[CAIRN_FRAME_MESSAGE] = CLASS_MESSAGE,
                                                  [CAIRN_FRAME_BULK] = CLASS_BULK,
                                                  [CAIRN_FRAME_FLOW] = CLASS_FLOW};
    struct cairn_transport *t = context;
    struct cairn_frame frame;
    struct peer *peer;

    if (cairn_frame_parse(bytes, bytes_len, &frame) != CAIRN_OK) {
        t->stats.dropped_malformed++;
        return;
    }
    if (frame.from >= t->node_count || frame.from == t->node ||
        (node != CAIRN_BACKEND_ALL && node != frame.from)) {
        t->stats.dropped_unauthenticated++;
        return;
    }
    if (frame.kind <= CAIRN_FRAME_REFUSE) {
        peer_handshake(t, &frame);
        return;
    }
    peer = &t->peers[frame.from];
    if (peer->state != CAIRN_PEER_UP || frame.token != peer->token || frame.to != t->node ||
        frame.version != peer->version || frame.job_id != t->job_id) {
        peer_stranger(t, peer);
        return;
    }
    if (peer->broken)
        return; /* it goes down in this poll */
    if (frame.sequence != peer->received_sequence[classes[frame.kind]] + 1) {
        peer_break(t, peer, "a frame is missing or came twice");
        return;
    }
    peer->received_sequence[classes[frame.kind]]++;
    peer->valid_ns = t->now_ns;
    if (frame.kind == CAIRN_FRAME_FLOW) {
        flow_received(t, peer, &frame);
    } else if (frame.kind == CAIRN_FRAME_BULK) {
        flow_bulk(t, peer, &frame, bytes, bytes_len);
    } else {
        t->stats.received_messages++;
        t->on_message(t->context, peer->node, frame.body, frame.body_len, NULL, 0, 0);
    }
}

static uint8_t *
payload_place(void *context, uint32_t node, uint64_t place, size_t bytes_len)
{
    struct cairn_transport *t = context;

    return t->on_place ? t->on_place(t->context, node, place, bytes_len) : NULL;
}

/* ---- open and close ---- */

static bool
key_is_sane(const void *key, size_t key_len)
{
    if ((!key && key_len == 0) || (key && key_len >= CAIRN_TRANSPORT_KEY_BYTES_MIN &&
                                   key_len <= CAIRN_TRANSPORT_KEY_BYTES_MAX))
        return true;
    CAIRN_LOG_AT(ERROR, "transport: the key has %zu bytes, and must have %d to %d", key_len,
                 CAIRN_TRANSPORT_KEY_BYTES_MIN, CAIRN_TRANSPORT_KEY_BYTES_MAX);
    return false;
}

static cairn_err
options_check(const struct cairn_transport_options *options)
{
    if (!options->on_message || !options->on_sent || !options->on_peer || !options->bind_address ||
        !options->addresses)
        return CAIRN_INVAL;
    if (options->node_count == 0 || options->node_count > CAIRN_NODES_MAX ||
        options->node >= options->node_count) {
        CAIRN_LOG_AT(
            ERROR, "transport: node %" PRIu32 " of %" PRIu32 " nodes is out of range (at most %d)",
            options->node, options->node_count, CAIRN_NODES_MAX);
        return CAIRN_CONFIG;
    }
    if (!key_is_sane(options->key, options->key_len) ||
        !key_is_sane(options->second_key.bytes, options->second_key.len))
        return CAIRN_CONFIG;
    if (options->window > CAIRN_TRANSPORT_WINDOW_MAX || options->buffer_count > 65536 ||
        options->operation_count > 65536) {
        CAIRN_LOG_AT(ERROR,
                     "transport: window=%" PRIu32 " buffers=%" PRIu32 " operations=%" PRIu32
                     " is out of range (at most %d, 65536, 65536)",
                     options->window, options->buffer_count, options->operation_count,
                     CAIRN_TRANSPORT_WINDOW_MAX);
        return CAIRN_CONFIG;
    }
    return CAIRN_OK;
}

/* Maps the pages of the pool now: a fault per page while payloads come in costs a third of
 * receiving them. */
static void
pool_populate(struct cairn_transport *t)
{
    /* the job's state stays out of core files */
    (void)madvise(t->pool, t->pool_bytes, MADV_DONTDUMP);
    (void)madvise(t->pool, t->pool_bytes, MADV_HUGEPAGE);
    if (madvise(t->pool, t->pool_bytes, MADV_POPULATE_WRITE) != 0)
        for (size_t at = 0; at < t->pool_bytes; at += 4096)
            t->pool[at] = 0;
}

static cairn_err
memory_make(struct cairn_transport *t)
{
    t->peers = calloc(t->node_count, sizeof *t->peers);
    t->operations = calloc(t->operation_count, sizeof *t->operations);
    t->frames = calloc(t->operation_count, CAIRN_FRAME_BYTES_MAX);
    t->buffers = calloc(t->buffer_count, sizeof *t->buffers);
    t->pool_bytes = (size_t)t->buffer_count * CAIRN_BULK_BYTES_MAX;
    t->pool = mmap(NULL, t->pool_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (t->pool == MAP_FAILED)
        t->pool = NULL;
    if (!t->peers || !t->operations || !t->frames || !t->buffers || !t->pool)
        return CAIRN_NOMEM;
    pool_populate(t);
    for (uint32_t i = 0; i < t->node_count; i++)
        peer_init(&t->peers[i], i);
    for (uint32_t i = 0; i < t->operation_count; i++) {
        struct operation *operation = &t->operations[i];

        operation->frame = t->frames + (size_t)i * CAIRN_FRAME_BYTES_MAX;
        operation->write.operation = operation;
        operation->send.operation = operation;
        operation->next = t->free_operations;
        t->free_operations = operation;
    }
    t->free_operation_count = t->operation_count;
    flow_init(t);
    return CAIRN_OK;
}

static void
options_take(struct cairn_transport *t, const struct cairn_transport_options *options)
{
    t->node = options->node;
    t->node_count = options->node_count;
    t->job_id = options->job_id;
    t->incarnation = options->incarnation;
    t->versions.newest = options->version ? options->version : CAIRN_TRANSPORT_VERSION;
    t->versions.oldest = options->version_oldest ? options->version_oldest : t->versions.newest;
    t->checksum_payload = options->checksum_payload;
    t->buffer_count = options->buffer_count ? options->buffer_count : 64;
    t->window = options->window ? options->window : 8;
    t->operation_count = options->operation_count ? options->operation_count : 1024;
    t->timeout_ns = options->timeout_ns ? options->timeout_ns : 10 * second_ns;
    t->call_timeout_ns = t->timeout_ns < 2 * second_ns ? t->timeout_ns : 2 * second_ns;
    t->on_message = options->on_message;
    t->on_sent = options->on_sent;
    t->on_peer = options->on_peer;
    t->on_writable = options->on_writable;
    t->on_place = options->on_place;
    t->context = options->context;
    t->timer_ns = UINT64_MAX;
}

cairn_err
cairn_transport_open(const struct cairn_transport_options *options, struct cairn_transport **out)
{
    struct cairn_transport *t = NULL;
    struct cairn_backend_options backend;
    cairn_err err = options_check(options);

    if (err)
        goto done;
    t = calloc(1, sizeof *t);
    if (!t) {
        err = CAIRN_NOMEM;
        goto done;
    }
    options_take(t, options);
    err = memory_make(t);
    if (err)
        goto done;
    backend = (struct cairn_backend_options){.transport = options,
                                             .pool = t->pool,
                                             .buffer_count = t->buffer_count,
                                             .operation_count = t->operation_count,
                                             .events = {.done = operation_done,
                                                        .received = frame_received,
                                                        .place = payload_place,
                                                        .changed = peer_connection_changed,
                                                        .refused = peer_key_refused,
                                                        .context = t}};
    if (!options->provider || strcmp(options->provider, "tcp") == 0)
        err = cairn_backend_tcp_open(&backend, &t->backend);
    else if (strcmp(options->provider, "loop") == 0)
        err = cairn_backend_loop_open(&backend, &t->backend);
    else
        err = cairn_backend_rdma_open(&backend, &t->backend);
    if (err)
        goto done;
    if (options->key && !t->backend->ops->rekey) {
        t->key = cairn_secret_alloc(CAIRN_TRANSPORT_KEY_BYTES_MAX);
        if (!t->key) {
            err = CAIRN_NOMEM;
            goto done;
        }
        memcpy(t->key, options->key, options->key_len);
        t->key_len = options->key_len;
    }
    *out = t;
    t = NULL;
done:
    cairn_transport_close(t);
    return err;
}

void
cairn_transport_close(struct cairn_transport *t)
{
    if (!t)
        return;
    if (t->backend)
        t->backend->ops->close(t->backend);
    if (t->pool)
        munmap(t->pool, t->pool_bytes);
    cairn_secret_free(t->key, CAIRN_TRANSPORT_KEY_BYTES_MAX);
    free(t->buffers);
    free(t->frames);
    free(t->operations);
    free(t->peers);
    free(t);
}

/* ---- the loop ---- */

int
cairn_transport_fd(const struct cairn_transport *t)
{
    return t->backend->ops->fd(t->backend);
}

uint64_t
cairn_transport_due(struct cairn_transport *t, uint64_t now_ns)
{
    static const uint64_t blind_ns = 1000000; /* a backend without a descriptor is asked this
                                               * often */

    if (t->attention_fresh || t->more)
        return 0;
    if (cairn_transport_fd(t) < 0)
        return now_ns + blind_ns < t->timer_ns ? now_ns + blind_ns : t->timer_ns;
    return t->backend->ops->may_sleep(t->backend) ? t->timer_ns : 0;
}

/* Looks at the peers that have something to post. What cannot be posted stays for the next poll. */
static void
attention_pump(struct cairn_transport *t)
{
    struct peer *peer = t->attention;

    t->attention = NULL;
    t->attention_fresh = false;
    while (peer) {
        struct peer *next = peer->attention_next;
        bool outstanding;

        peer->attention = false;
        if (peer->broken)
            peer_down(t, peer, CAIRN_PEER_DOWN, peer->broken);
        peer_call_timed(t, peer);
        operation_pump(t, peer);
        outstanding = peer->posted || peer->queue || peer->pending_kind;
        if (!outstanding) {
            peer->waiting_since_ns = 0;
        } else if (peer->waiting_since_ns == 0) {
            peer->waiting_since_ns = t->now_ns;
        }
        if (outstanding && peer->state == CAIRN_PEER_UP)
            transport_arm(t, peer->waiting_since_ns + t->timeout_ns);
        if ((peer->pending_kind && !peer->handshake_operation.posted) ||
            peer->retry_ns > t->now_ns) {
            bool fresh = t->attention_fresh;

            transport_attend(t, peer); /* to be tried again: at retry_ns, or at an event before */
            t->attention_fresh = fresh;
        }
        peer = next;
    }
}

static void
timers_run(struct cairn_transport *t)
{
    if (t->now_ns < t->timer_ns)
        return;
    t->timer_ns = UINT64_MAX;
    for (uint32_t i = 0; i < t->node_count; i++) {
        peer_timers(t, &t->peers[i]);
        transport_arm(t, peer_due(t, &t->peers[i]));
    }
}

/* Tells the senders that were told CAIRN_AGAIN. */
static void
blocked_wake(struct cairn_transport *t)
{
    struct peer *peer = t->blocked;

    t->blocked = NULL;
    while (peer) {
        struct peer *next = peer->blocked_next;
        bool ready =
            operation_available(t, peer) && (!peer->blocked_on_credit || peer->credit_count);

        peer->blocked = false;
        if (peer->state == CAIRN_PEER_UP && !ready) {
            peer->blocked = true;
            peer->blocked_next = t->blocked;
            t->blocked = peer;
        } else if (t->on_writable && peer->state == CAIRN_PEER_UP) {
            t->on_writable(t->context, peer->node);
        }
        peer = next;
    }
}

/*
 * Opens the endpoint again: the last resort, if the backend has memory that no single peer's
 * disconnect brings back. All sessions end; they are made again at once.
 */
static void
reset_run(struct cairn_transport *t)
{
    if (!t->reset_wanted)
        return;
    if (t->now_ns < t->reset_ns) {
        transport_arm(t, t->reset_ns);
        return;
    }
    t->reset_ns = t->now_ns + second_ns;
    CAIRN_LOG_AT(WARN, "transport: open the endpoint again: operations of a lost peer do not end");
    if (t->backend->ops->disconnect(t->backend, CAIRN_BACKEND_ALL) != CAIRN_OK) {
        transport_arm(t, t->reset_ns);
        return;
    }
    t->reset_wanted = false;
    t->reset_running = true;
    t->stats.resets++;
    for (uint32_t i = 0; i < t->node_count; i++) {
        struct peer *peer = &t->peers[i];

        peer->posted = 0;
        if (peer->state == CAIRN_PEER_UP)
            peer_down(t, peer, CAIRN_PEER_DOWN, "the endpoint was opened again");
        flow_forget(t, peer, true);
        if (peer->calling)
            peer->call_deadline_ns = t->now_ns;
    }
    flow_reset(t);
    operations_reset(t);
    t->reset_running = false;
    t->timer_ns = t->now_ns;
}

void
cairn_transport_poll(struct cairn_transport *t, uint64_t now_ns)
{
    t->now_ns = now_ns;
    t->more = t->backend->ops->progress(t->backend);
    attention_pump(t);
    timers_run(t);
    if (t->wanting)
        flow_grant(t);
    if (t->blocked)
        blocked_wake(t);
    reset_run(t);
    if (t->attention_fresh)
        attention_pump(t);
}

/* ---- calls of the user ---- */

static void
block(struct cairn_transport *t, struct peer *peer, bool on_credit)
{
    peer->blocked_on_credit = on_credit;
    if (peer->blocked)
        return;
    peer->blocked = true;
    peer->blocked_next = t->blocked;
    t->blocked = peer;
}

static cairn_err
send_refused(struct cairn_transport *t, struct peer *peer)
{
    switch (peer->state) {
    case CAIRN_PEER_IDLE:
        peer_call(t, peer);
        return CAIRN_AGAIN;
    case CAIRN_PEER_CONNECTING:
        return CAIRN_AGAIN;
    case CAIRN_PEER_DENIED:
        return CAIRN_DENIED;
    case CAIRN_PEER_VERSION:
        return CAIRN_VERSION;
    default:
        return CAIRN_PEER;
    }
}

cairn_err
cairn_transport_send(struct cairn_transport *t, uint32_t node, const void *body, size_t body_len,
                     const void *payload, size_t payload_len, uint64_t ticket)
{
    return cairn_transport_send_placed(t, node, body, body_len, payload, payload_len, 0, ticket);
}

cairn_err
cairn_transport_send_placed(struct cairn_transport *t, uint32_t node, const void *body,
                            size_t body_len, const void *payload, size_t payload_len,
                            uint64_t place, uint64_t ticket)
{
    struct peer *peer;

    if (node >= t->node_count || node == t->node || body_len > CAIRN_TRANSPORT_BODY_BYTES_MAX ||
        payload_len > CAIRN_BULK_BYTES_MAX || (!body && body_len) || (!payload) != (!payload_len))
        return CAIRN_INVAL;
    peer = &t->peers[node];
    if (peer->state != CAIRN_PEER_UP)
        return send_refused(t, peer);
    if (peer->broken)
        return CAIRN_PEER;
    if (payload_len && peer->credit_count == 0) {
        flow_urge(t, peer);
        block(t, peer, true);
        return CAIRN_AGAIN;
    }
    if (!operation_available(t, peer)) {
        block(t, peer, false);
        return CAIRN_AGAIN;
    }
    operation_submit(t, peer, body, body_len, payload, payload_len, place, ticket);
    if (payload_len)
        flow_ask(t, peer);
    return CAIRN_OK;
}

void
cairn_transport_unplace(struct cairn_transport *t, const void *memory, size_t bytes)
{
    if (t->backend->ops->unplace)
        t->backend->ops->unplace(t->backend, memory, bytes);
}

void
cairn_transport_release(struct cairn_transport *t, uint64_t buffer)
{
    flow_release(t, buffer);
}

void
cairn_transport_connect(struct cairn_transport *t, uint32_t node)
{
    if (node >= t->node_count || node == t->node)
        return;
    t->peers[node].leaving = false;
    if (t->peers[node].state == CAIRN_PEER_IDLE)
        peer_call(t, &t->peers[node]);
}

void
cairn_transport_leave(struct cairn_transport *t, uint32_t node)
{
    struct peer *peer = &t->peers[node];

    CAIRN_ASSERT(node < t->node_count);
    if (peer->state == CAIRN_PEER_UP) {
        peer->leaving = true;
    } else if (peer->state == CAIRN_PEER_DOWN && !peer->answering) {
        peer->state = CAIRN_PEER_IDLE;
        peer->calling = false;
        peer->pending_kind = 0;
        (void)!t->backend->ops->disconnect(t->backend, node);
    }
}

void
cairn_transport_disconnect(struct cairn_transport *t, uint32_t node)
{
    if (node < t->node_count && t->peers[node].state == CAIRN_PEER_UP)
        peer_break(t, &t->peers[node], "declared dead");
}

cairn_err
cairn_transport_rekey(struct cairn_transport *t, const struct cairn_transport_key keys[2],
                      const struct cairn_transport_certificate *certificate)
{
    if (!t->backend->ops->rekey || (keys[0].len == 0 && !certificate))
        return CAIRN_INVAL;
    if (!key_is_sane(keys[0].bytes, keys[0].len) || !key_is_sane(keys[1].bytes, keys[1].len))
        return CAIRN_CONFIG;
    return t->backend->ops->rekey(t->backend, keys, certificate);
}

cairn_err
cairn_transport_readdress(struct cairn_transport *t, uint32_t node, const char *address)
{
    cairn_err err;

    if (node >= t->node_count || node == t->node)
        return CAIRN_CONFIG;
    err = t->backend->ops->readdress(t->backend, node, address);
    if (err)
        return err;
    CAIRN_LOG_AT(INFO, "transport: node=%" PRIu32 " is at %s from now on", node, address);
    if (t->peers[node].state == CAIRN_PEER_IDLE)
        (void)!t->backend->ops->disconnect(t->backend, node);
    else
        peer_break(t, &t->peers[node], "it has another address");
    return CAIRN_OK;
}

void
cairn_transport_peer_read(const struct cairn_transport *t, uint32_t node,
                          struct cairn_transport_peer *out)
{
    const struct peer *peer;

    CAIRN_ASSERT(node < t->node_count);
    peer = &t->peers[node];
    out->state = peer->state;
    out->incarnation = peer->incarnation;
    out->version = peer->version;
    out->operations = peer->operation_count;
    out->credits = peer->credit_count;
    out->buffers_granted = peer->granted_count;
    out->buffers_held = peer->held_count;
}

void
cairn_transport_stats_read(const struct cairn_transport *t, struct cairn_transport_stats *out)
{
    *out = t->stats;
    out->buffers_free = t->free_buffer_count;
    out->operations_free = t->free_operation_count;
    if (t->backend->ops->strangers)
        t->backend->ops->strangers(t->backend, out);
}
