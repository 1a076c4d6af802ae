/*
 * transport/transport_loop.c - the backend `loop`: transports of one process, for tests.
 *
 * A link holds what one node has sent and the other has not yet taken. Moving an item off a link
 * reports it done to its sender. Frames are copied when sent; a payload is copied when taken, so
 * that it is truly borrowed until then.
 */
#include "transport/transport_loop.h"

#include "transport/backend.h"
#include "transport/frame.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { HUB_NODES_MAX = 256, LINK_ITEMS_MAX = 256, EVENTS_PER_POLL = 256 };

struct item {
    struct item *next;
    struct cairn_backend_part *part; /* NULL: injected, nobody waits for it */
    const void *payload;             /* a write; NULL: a frame */
    struct cairn_backend_remote remote;
    size_t bytes_len;
    cairn_err err; /* once done */
    uint8_t bytes[];
};

struct items {
    struct item *head;
    struct item **end;
    uint32_t count;
};

struct link {
    struct items items;
    bool cut;
    uint32_t drop;
    uint32_t drop_payloads;
    uint32_t corrupt;
};

struct region {
    uint64_t key; /* 0: closed */
    size_t filled_bytes;
};

struct loop {
    struct cairn_backend backend;
    struct cairn_transport_hub *hub;
    struct cairn_backend_events events;
    uint32_t node;
    uint32_t buffer_count;
    uint8_t *pool;
    struct region *regions;
    uint64_t next_key;
    struct items done;
    bool dead; /* killed: does nothing until it is closed */
    int fd;
};

struct cairn_transport_hub {
    pthread_mutex_t lock; /* guards everything below, and the done lists of the places */
    uint32_t node_count;
    struct loop **places;
    struct link *links; /* [from * node_count + to] */
};

static void
items_init(struct items *items)
{
    items->head = NULL;
    items->end = &items->head;
    items->count = 0;
}

static void
items_push(struct items *items, struct item *item)
{
    item->next = NULL;
    *items->end = item;
    items->end = &item->next;
    items->count++;
}

static struct item *
items_pop(struct items *items)
{
    struct item *item = items->head;

    if (!item)
        return NULL;
    items->head = item->next;
    if (!items->head)
        items->end = &items->head;
    items->count--;
    return item;
}

static void
items_free(struct items *items)
{
    for (struct item *item = items_pop(items); item; item = items_pop(items))
        free(item);
}

static struct link *
link_of(struct cairn_transport_hub *hub, uint32_t from, uint32_t to)
{
    return &hub->links[(size_t)from * hub->node_count + to];
}

static void
wake(struct loop *loop)
{
    uint64_t one = 1;

    if (loop && write(loop->fd, &one, sizeof one) < 0)
        CAIRN_ASSERT(errno == EAGAIN); /* the counter is full, so it is readable */
}

/* Gives an item back to its sender. */
static void
item_done(struct cairn_transport_hub *hub, uint32_t from, struct item *item, cairn_err err)
{
    struct loop *sender = hub->places[from];

    item->err = err;
    if (!item->part || !sender || sender->dead) {
        free(item);
        return;
    }
    items_push(&sender->done, item);
    wake(sender);
}

static void
link_fail(struct cairn_transport_hub *hub, uint32_t from, uint32_t to)
{
    struct items *items = &link_of(hub, from, to)->items;

    for (struct item *item = items_pop(items); item; item = items_pop(items))
        item_done(hub, from, item, CAIRN_PEER);
}

/* ---- the hub ---- */

cairn_err
cairn_transport_hub_create(uint32_t node_count, struct cairn_transport_hub **out)
{
    struct cairn_transport_hub *hub;

    if (node_count == 0 || node_count > HUB_NODES_MAX)
        return CAIRN_INVAL;
    hub = calloc(1, sizeof *hub);
    if (!hub)
        return CAIRN_NOMEM;
    hub->node_count = node_count;
    hub->places = calloc(node_count, sizeof *hub->places);
    hub->links = calloc((size_t)node_count * node_count, sizeof *hub->links);
    if (!hub->places || !hub->links) {
        free(hub->places);
        free(hub->links);
        free(hub);
        return CAIRN_NOMEM;
    }
    pthread_mutex_init(&hub->lock, NULL);
    for (size_t i = 0; i < (size_t)node_count * node_count; i++)
        items_init(&hub->links[i].items);
    *out = hub;
    return CAIRN_OK;
}

void
cairn_transport_hub_destroy(struct cairn_transport_hub *hub)
{
    if (!hub)
        return;
    for (size_t i = 0; i < (size_t)hub->node_count * hub->node_count; i++)
        items_free(&hub->links[i].items);
    pthread_mutex_destroy(&hub->lock);
    free(hub->places);
    free(hub->links);
    free(hub);
}

void
cairn_transport_hub_cut(struct cairn_transport_hub *hub, uint32_t from, uint32_t to, bool cut)
{
    pthread_mutex_lock(&hub->lock);
    link_of(hub, from, to)->cut = cut;
    wake(hub->places[to]);
    pthread_mutex_unlock(&hub->lock);
}

void
cairn_transport_hub_drop(struct cairn_transport_hub *hub, uint32_t from, uint32_t to,
                         uint32_t count)
{
    pthread_mutex_lock(&hub->lock);
    link_of(hub, from, to)->drop = count;
    pthread_mutex_unlock(&hub->lock);
}

void
cairn_transport_hub_drop_payloads(struct cairn_transport_hub *hub, uint32_t from, uint32_t to,
                                  uint32_t count)
{
    pthread_mutex_lock(&hub->lock);
    link_of(hub, from, to)->drop_payloads = count;
    pthread_mutex_unlock(&hub->lock);
}

void
cairn_transport_hub_corrupt(struct cairn_transport_hub *hub, uint32_t from, uint32_t to,
                            uint32_t count)
{
    pthread_mutex_lock(&hub->lock);
    link_of(hub, from, to)->corrupt = count;
    pthread_mutex_unlock(&hub->lock);
}

static void
place_leave(struct cairn_transport_hub *hub, uint32_t node)
{
    struct loop *loop = hub->places[node];

    loop->dead = true;
    for (uint32_t other = 0; other < hub->node_count; other++) {
        link_fail(hub, other, node);
        items_free(&link_of(hub, node, other)->items);
    }
    hub->places[node] = NULL;
}

void
cairn_transport_hub_kill(struct cairn_transport_hub *hub, uint32_t node)
{
    pthread_mutex_lock(&hub->lock);
    if (hub->places[node])
        place_leave(hub, node);
    pthread_mutex_unlock(&hub->lock);
}

cairn_err
cairn_transport_hub_inject(struct cairn_transport_hub *hub, uint32_t to, const void *bytes,
                           size_t bytes_len)
{
    struct item *item = calloc(1, sizeof *item + bytes_len);

    if (!item)
        return CAIRN_NOMEM;
    if (bytes_len)
        memcpy(item->bytes, bytes, bytes_len);
    item->bytes_len = bytes_len;
    pthread_mutex_lock(&hub->lock);
    items_push(&link_of(hub, to, to)->items, item);
    wake(hub->places[to]);
    pthread_mutex_unlock(&hub->lock);
    return CAIRN_OK;
}

/* ---- the backend ---- */

static struct loop *
loop_of(struct cairn_backend *backend)
{
    return (struct loop *)(void *)backend;
}

static void
loop_close(struct cairn_backend *backend)
{
    struct loop *loop = loop_of(backend);
    struct cairn_transport_hub *hub = loop->hub;

    pthread_mutex_lock(&hub->lock);
    if (hub->places[loop->node] == loop)
        place_leave(hub, loop->node);
    pthread_mutex_unlock(&hub->lock);
    items_free(&loop->done);
    close(loop->fd);
    free(loop->regions);
    free(loop);
}

static int
loop_fd(const struct cairn_backend *backend)
{
    return ((const struct loop *)(const void *)backend)->fd;
}

/* A link that has something to take. */
static struct link *
link_ready(struct loop *loop, uint32_t *from)
{
    for (uint32_t other = 0; other < loop->hub->node_count; other++) {
        struct link *link = link_of(loop->hub, other, loop->node);

        if (link->items.head && !link->cut) {
            *from = other;
            return link;
        }
    }
    return NULL;
}

static bool
loop_may_sleep(struct cairn_backend *backend)
{
    struct loop *loop = loop_of(backend);
    uint32_t from;
    bool idle;

    pthread_mutex_lock(&loop->hub->lock);
    idle = loop->dead || (!loop->done.head && !link_ready(loop, &from));
    pthread_mutex_unlock(&loop->hub->lock);
    return idle;
}

/* Puts a payload into the region that its sender names. */
static cairn_err
write_take(struct loop *loop, const struct item *item)
{
    uint64_t index = item->remote.address / CAIRN_BULK_BYTES_MAX;

    if (item->remote.address % CAIRN_BULK_BYTES_MAX || index >= loop->buffer_count ||
        item->remote.key == 0 || loop->regions[index].key != item->remote.key)
        return CAIRN_PEER;
    memcpy(loop->pool + item->remote.address, item->payload, item->bytes_len);
    loop->regions[index].filled_bytes = item->bytes_len;
    return CAIRN_OK;
}

/* Takes one item; gives the bytes of a frame (the caller's to free), NULL for a write or
 * nothing. */
static struct item *
item_take(struct loop *loop, bool *any)
{
    uint32_t from;
    struct link *link = link_ready(loop, &from);
    struct item *item;
    struct item *frame = NULL;

    *any = link != NULL;
    if (!link)
        return NULL;
    item = items_pop(&link->items);
    if (item->payload) {
        bool lost = link->drop_payloads > 0;

        link->drop_payloads -= lost;
        item_done(loop->hub, from, item, lost ? CAIRN_OK : write_take(loop, item));
        return NULL;
    }
    if (link->drop) {
        link->drop--;
    } else {
        frame = malloc(sizeof *frame + item->bytes_len);
        if (frame) {
            memcpy(frame, item, sizeof *frame + item->bytes_len);
            if (link->corrupt && item->bytes_len) {
                link->corrupt--;
                frame->bytes[item->bytes_len / 2] ^= 0x10;
            }
        }
    }
    item_done(loop->hub, from, item, CAIRN_OK);
    return frame;
}

static bool
loop_progress(struct cairn_backend *backend)
{
    struct loop *loop = loop_of(backend);
    struct cairn_transport_hub *hub = loop->hub;
    uint64_t woken;
    bool any = true;

    if (loop->dead)
        return false;
    if (read(loop->fd, &woken, sizeof woken) < 0)
        CAIRN_ASSERT(errno == EAGAIN); /* nobody woke us: the caller polls by its own clock */
    for (int i = 0; i < EVENTS_PER_POLL && any && !loop->dead; i++) {
        struct item *done;
        struct item *frame = NULL;

        pthread_mutex_lock(&hub->lock);
        done = items_pop(&loop->done);
        if (!done)
            frame = item_take(loop, &any);
        pthread_mutex_unlock(&hub->lock);
        if (done)
            loop->events.done(loop->events.context, done->part, done->err);
        else if (frame)
            loop->events.received(loop->events.context, CAIRN_BACKEND_ALL, frame->bytes,
                                  frame->bytes_len);
        free(done);
        free(frame);
    }
    return any && !loop->dead;
}

static cairn_err
item_send(struct loop *loop, uint32_t node, struct item *item)
{
    struct cairn_transport_hub *hub = loop->hub;
    struct link *link = link_of(hub, loop->node, node);
    cairn_err err = CAIRN_OK;

    pthread_mutex_lock(&hub->lock);
    if (loop->dead || !hub->places[node])
        err = CAIRN_PEER;
    else if (link->items.count >= LINK_ITEMS_MAX)
        err = CAIRN_AGAIN;
    if (!err) {
        items_push(&link->items, item);
        wake(hub->places[node]);
    }
    pthread_mutex_unlock(&hub->lock);
    if (err)
        free(item);
    return err;
}

static cairn_err
loop_send(struct cairn_backend *backend, uint32_t node, const void *bytes, size_t bytes_len,
          struct cairn_backend_part *part)
{
    struct item *item = calloc(1, sizeof *item + bytes_len);

    if (!item)
        return CAIRN_AGAIN;
    memcpy(item->bytes, bytes, bytes_len);
    item->bytes_len = bytes_len;
    item->part = part;
    return item_send(loop_of(backend), node, item);
}

static cairn_err
loop_write(struct cairn_backend *backend, uint32_t node, const void *bytes, size_t bytes_len,
           struct cairn_backend_remote remote, struct cairn_backend_part *part)
{
    struct item *item = calloc(1, sizeof *item);

    if (!item)
        return CAIRN_AGAIN;
    item->payload = bytes;
    item->bytes_len = bytes_len;
    item->remote = remote;
    item->part = part;
    return item_send(loop_of(backend), node, item);
}

static cairn_err
loop_disconnect(struct cairn_backend *backend, uint32_t node)
{
    struct loop *loop = loop_of(backend);
    struct cairn_transport_hub *hub = loop->hub;

    pthread_mutex_lock(&hub->lock);
    for (uint32_t other = 0; other < hub->node_count && !loop->dead; other++) {
        if (node != CAIRN_BACKEND_ALL && other != node)
            continue;
        link_fail(hub, other, loop->node);
        link_fail(hub, loop->node, other);
    }
    if (node == CAIRN_BACKEND_ALL)
        items_free(&loop->done);
    pthread_mutex_unlock(&hub->lock);
    return CAIRN_OK;
}

static cairn_err
loop_region(struct cairn_backend *backend, uint32_t index, struct cairn_backend_remote *out)
{
    struct loop *loop = loop_of(backend);

    pthread_mutex_lock(&loop->hub->lock);
    loop->regions[index].key = out ? loop->next_key++ : 0;
    loop->regions[index].filled_bytes = 0;
    if (out) {
        out->address = (uint64_t)index * CAIRN_BULK_BYTES_MAX;
        out->key = loop->regions[index].key;
    }
    pthread_mutex_unlock(&loop->hub->lock);
    return CAIRN_OK;
}

static enum cairn_backend_fill
loop_filled(const struct cairn_backend *backend, uint32_t index, size_t bytes_len)
{
    const struct loop *loop = (const struct loop *)(const void *)backend;

    return loop->regions[index].filled_bytes == bytes_len ? CAIRN_BACKEND_WHOLE
                                                          : CAIRN_BACKEND_EMPTY;
}

/* Nodes of a hub have no addresses. */
static cairn_err
loop_readdress(struct cairn_backend *backend, uint32_t node, const char *address)
{
    (void)backend;
    (void)node;
    (void)address;
    return CAIRN_OK;
}

static const struct cairn_transport_ops loop_ops = {
    .name = "loop",
    .close = loop_close,
    .fd = loop_fd,
    .may_sleep = loop_may_sleep,
    .progress = loop_progress,
    .send = loop_send,
    .write = loop_write,
    .disconnect = loop_disconnect,
    .region = loop_region,
    .filled = loop_filled,
    .readdress = loop_readdress,
};

cairn_err
cairn_backend_loop_open(const struct cairn_backend_options *options, struct cairn_backend **out)
{
    const struct cairn_transport_options *transport = options->transport;
    struct cairn_transport_hub *hub = transport->hub;
    struct loop *loop;

    if (!hub || hub->node_count < transport->node_count)
        return CAIRN_INVAL;
    loop = calloc(1, sizeof *loop);
    if (!loop)
        return CAIRN_NOMEM;
    loop->backend.ops = &loop_ops;
    loop->backend.ordered = true;
    loop->backend.isolates = true;
    loop->hub = hub;
    loop->events = options->events;
    loop->node = transport->node;
    loop->pool = options->pool;
    loop->buffer_count = options->buffer_count;
    loop->next_key = 1;
    items_init(&loop->done);
    loop->regions = calloc(options->buffer_count, sizeof *loop->regions);
    loop->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!loop->regions || loop->fd < 0) {
        if (loop->fd >= 0)
            close(loop->fd);
        free(loop->regions);
        free(loop);
        return CAIRN_NOMEM;
    }
    pthread_mutex_lock(&hub->lock);
    if (hub->places[loop->node]) {
        pthread_mutex_unlock(&hub->lock);
        CAIRN_LOG_AT(ERROR, "transport: place %u of the hub is in use", (unsigned)loop->node);
        close(loop->fd);
        free(loop->regions);
        free(loop);
        return CAIRN_IO;
    }
    hub->places[loop->node] = loop;
    pthread_mutex_unlock(&hub->lock);
    *out = &loop->backend;
    return CAIRN_OK;
}
