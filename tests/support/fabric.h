/*
 * tests/support/fabric.h - the backend `rdma` over two that exist in memory alone: a test says what
 * has come over each, and sees what was sent. This node is 0; a peer's key for tags is one byte
 * repeated.
 */
#ifndef TESTS_FABRIC_H
#define TESTS_FABRIC_H

#include "transport/backend.h"
#include "transport/cipher.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum {
    FABRIC_NODES = 3,
    FABRIC_BUFFERS = 3,
    FABRIC_PARTS = 64,
    FABRIC_OFFER_BYTES = 36 + 4,
    FABRIC_TAGS_BYTES = 32,
    FABRIC_FRAME_BYTES_MAX = 512
};

struct fabric_below {
    struct cairn_backend backend; /* first */
    struct cairn_backend_events events;
    struct cairn_backend_part *parts[FABRIC_PARTS]; /* in flight */
    uint32_t part_count;
    uint32_t sent_count, written_count, disconnected_count;
    uint8_t sent[FABRIC_FRAME_BYTES_MAX]; /* the last frame */
    size_t sent_len;
    uint64_t next_key;
};

struct fabric_test {
    struct cairn_backend *rdma;
    struct fabric_below control, bulk;
    uint32_t received_count;             /* frames that were handed on */
    uint32_t ok_count, failed_count;     /* operations that have ended */
    uint32_t broken_count[FABRIC_NODES]; /* times that a connection was reported as lost */
    const char *why;                     /* the last time */
    struct cairn_backend_remote remotes[FABRIC_BUFFERS]; /* of the open buffers */
};

static struct fabric_test fabric;
static uint8_t fabric_pool[FABRIC_BUFFERS][CAIRN_BULK_BYTES_MAX];

static inline struct fabric_below *
fabric_below_of(struct cairn_backend *backend)
{
    return (struct fabric_below *)(void *)backend;
}

static inline cairn_err
fabric_part_add(struct fabric_below *below, struct cairn_backend_part *part)
{
    if (below->part_count == FABRIC_PARTS)
        return CAIRN_AGAIN;
    below->parts[below->part_count++] = part;
    return CAIRN_OK;
}

static inline cairn_err
fabric_send(struct cairn_backend *backend, uint32_t node, const void *bytes, size_t bytes_len,
            struct cairn_backend_part *part)
{
    struct fabric_below *below = fabric_below_of(backend);

    below->sent_count++;
    below->sent_len = bytes_len < sizeof below->sent ? bytes_len : sizeof below->sent;
    memcpy(below->sent, bytes, below->sent_len);
    return fabric_part_add(below, part);
}

static inline cairn_err
fabric_write(struct cairn_backend *backend, uint32_t node, const void *bytes, size_t bytes_len,
             struct cairn_backend_remote remote, struct cairn_backend_part *part)
{
    fabric_below_of(backend)->written_count++;
    return fabric_part_add(fabric_below_of(backend), part);
}

/* All that is in flight ends well. */
static inline bool
fabric_progress(struct cairn_backend *backend)
{
    struct fabric_below *below = fabric_below_of(backend);
    uint32_t count = below->part_count;

    for (uint32_t i = 0; i < count; i++)
        below->events.done(below->events.context, below->parts[i], CAIRN_OK);
    below->part_count -= count;
    memmove(below->parts, below->parts + count, below->part_count * sizeof *below->parts);
    return false;
}

static inline void
fabric_close(struct cairn_backend *backend)
{
}

static inline int
fabric_fd(const struct cairn_backend *backend)
{
    return -1;
}

static inline bool
fabric_may_sleep(struct cairn_backend *backend)
{
    return true;
}

static inline cairn_err
fabric_disconnect(struct cairn_backend *backend, uint32_t node)
{
    struct fabric_below *below = fabric_below_of(backend);

    below->disconnected_count++;
    if (node == CAIRN_BACKEND_ALL)
        below->part_count = 0;
    return CAIRN_OK;
}

static inline cairn_err
fabric_region(struct cairn_backend *backend, uint32_t index, struct cairn_backend_remote *out)
{
    if (out)
        *out = (struct cairn_backend_remote){.address = (uint64_t)index * CAIRN_BULK_BYTES_MAX,
                                             .key = ++fabric_below_of(backend)->next_key};
    return CAIRN_OK;
}

static inline cairn_err
fabric_endpoint(struct cairn_backend *backend, uint8_t out[CAIRN_BACKEND_NAME_BYTES],
                size_t *out_len)
{
    memcpy(out, "here", 4);
    *out_len = 4;
    return CAIRN_OK;
}

static inline cairn_err
fabric_reach(struct cairn_backend *backend, uint32_t node, const uint8_t *name, size_t name_len)
{
    return name_len == 4 && memcmp(name, "here", 4) == 0 ? CAIRN_OK : CAIRN_PEER;
}

static const struct cairn_transport_ops fabric_ops = {.name = "memory",
                                                      .close = fabric_close,
                                                      .fd = fabric_fd,
                                                      .may_sleep = fabric_may_sleep,
                                                      .progress = fabric_progress,
                                                      .send = fabric_send,
                                                      .write = fabric_write,
                                                      .disconnect = fabric_disconnect,
                                                      .region = fabric_region,
                                                      .endpoint = fabric_endpoint,
                                                      .reach = fabric_reach};

static inline cairn_err
fabric_below_open(struct fabric_below *below, const struct cairn_backend_options *options,
                  struct cairn_backend **out)
{
    *below = (struct fabric_below){.backend = {.ops = &fabric_ops, .isolates = true},
                                   .events = options->events};
    *out = &below->backend;
    return CAIRN_OK;
}

static inline cairn_err
fabric_control_open(const struct cairn_backend_options *options, struct cairn_backend **out)
{
    return fabric_below_open(&fabric.control, options, out);
}

static inline cairn_err
fabric_bulk_open(const struct cairn_backend_options *options, struct cairn_backend **out)
{
    return fabric_below_open(&fabric.bulk, options, out);
}

/* ---- what the transport above would be told ---- */

static inline void
fabric_on_done(void *context, struct cairn_backend_part *part, cairn_err err)
{
    if (err)
        fabric.failed_count++;
    else
        fabric.ok_count++;
}

static inline void
fabric_on_received(void *context, uint32_t node, const uint8_t *bytes, size_t bytes_len)
{
    fabric.received_count++;
}

static inline void
fabric_on_changed(void *context, uint32_t node, const char *why)
{
    if (!why)
        return;
    fabric.broken_count[node]++;
    fabric.why = why;
}

static inline void
fabric_on_refused(void *context, uint32_t node, const char *why)
{
}

static inline cairn_err
fabric_open(enum cairn_protection protection)
{
    static const struct cairn_transport_options transport = {
        .provider = "memory", .node_count = FABRIC_NODES, .key = "a key of sixteen", .key_len = 16};
    struct cairn_transport_options options = transport;
    const struct cairn_backend_options backend = {.transport = &options,
                                                  .pool = fabric_pool[0],
                                                  .buffer_count = FABRIC_BUFFERS,
                                                  .operation_count = FABRIC_PARTS / 4,
                                                  .events = {.done = fabric_on_done,
                                                             .received = fabric_on_received,
                                                             .changed = fabric_on_changed,
                                                             .refused = fabric_on_refused}};

    options.protection = protection;
    memset(&fabric, 0, sizeof fabric);
    return cairn_backend_rdma_over(&backend, fabric_control_open, fabric_bulk_open, &fabric.rdma);
}

static inline void
fabric_test_close(void)
{
    if (fabric.rdma)
        fabric.rdma->ops->close(fabric.rdma);
    fabric.rdma = NULL;
}

/* A frame has come from a proved node. */
static inline void
fabric_deliver(uint32_t node, const uint8_t *bytes, size_t bytes_len)
{
    fabric.control.events.received(fabric.control.events.context, node, bytes, bytes_len);
}

static inline void
fabric_number(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

/* An offer of a node at "here" whose tags have the key `seed`, `seed`, … */
static inline size_t
fabric_offer(enum cairn_protection protection, uint8_t seed, uint8_t out[FABRIC_OFFER_BYTES])
{
    out[0] = 'F';
    out[1] = (uint8_t)protection;
    fabric_number(out + 2, 4, 2);
    memset(out + 4, seed, CAIRN_CIPHER_KEY_BYTES);
    memcpy(out + 36, "here", 4);
    return FABRIC_OFFER_BYTES;
}

/* The frame that says that a payload lies in an open buffer, with the tags of what lies there (seed
 * 0: none). NULL cipher: no memory. */
static inline size_t
fabric_tags(const struct cairn_cipher *cipher, uint8_t seed, uint32_t index, uint32_t bytes_len,
            uint64_t number, uint8_t out[FABRIC_FRAME_BYTES_MAX])
{
    uint32_t count = seed ? (uint32_t)((bytes_len + CAIRN_BLOCK_BYTES - 1) / CAIRN_BLOCK_BYTES) : 0;
    uint8_t secret[CAIRN_CIPHER_KEY_BYTES];
    struct cairn_cipher_key *key = NULL;

    memset(secret, seed, sizeof secret);
    out[0] = 'T';
    out[1] = 0;
    fabric_number(out + 2, count, 2);
    fabric_number(out + 4, bytes_len, 4);
    fabric_number(out + 8, number, 8);
    fabric_number(out + 16, fabric.remotes[index].address, 8);
    fabric_number(out + 24, fabric.remotes[index].key, 8);
    if (count && cipher->ops->key_create(cipher, false, true, secret, &key) != CAIRN_OK)
        abort();
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rest = bytes_len - i * CAIRN_BLOCK_BYTES;
        uint8_t nonce[CAIRN_CIPHER_NONCE_BYTES];
        const struct cairn_cipher_block how = {
            .nonce = nonce, .block_len = rest < CAIRN_BLOCK_BYTES ? rest : CAIRN_BLOCK_BYTES};

        fabric_number(nonce, number, 8);
        fabric_number(nonce + 8, i, 4);
        if (key->ops->make(key, 0, &how, fabric_pool[index] + (size_t)i * CAIRN_BLOCK_BYTES, NULL,
                           out + FABRIC_TAGS_BYTES + i * CAIRN_CIPHER_TAG_BYTES) != CAIRN_OK)
            abort();
    }
    cairn_cipher_key_destroy(key);
    return FABRIC_TAGS_BYTES + (size_t)count * CAIRN_CIPHER_TAG_BYTES;
}

static inline void
fabric_region_open(uint32_t index)
{
    if (fabric.rdma->ops->region(fabric.rdma, index, &fabric.remotes[index]) != CAIRN_OK)
        abort();
}

#endif
