/*
 * transport/transport_rdma.c - the backend that splits its traffic: frames travel over the backend
 * `tcp` (TLS), payloads by the remote writes of libfabric (transport_ofi.c).
 *
 * libfabric parses bytes before it knows who sent them. So nothing that it receives is believed: a
 * message that arrives over it is dropped, and a write needs a key that the receiver drew and told
 * inside TLS. Without a key or a certificate there is no TLS, and so no fabric.
 *
 * Frames of this backend stand beside the transport's on the TLS connection (integers are
 * little-endian):
 *   'F'  offer: the first frame of each side on a connection
 *      1   1 protection   2   2 bytes of the name   4  32 key of the sender's tags
 *     36   … name of the sender's endpoint (fi_getname)
 *   'R'  the fabric's connection is there, so both sides may write; 1 byte
 *   'T'  a payload has been written; the frame that announces it comes behind
 *      1   1 zero   2   2 count of tags   4   4 bytes of the payload   8   8 count of payloads
 *     16   8 address   24   8 key of the buffer   32   … a tag of 16 bytes per CAIRN_BLOCK_BYTES,
 *     none with protection `none`
 *
 * The tags are AES-256-GCM's (cipher.h). The sender draws their key for each connection, and the
 * nonce counts payloads and blocks within it, so that no nonce comes twice under a key. The
 * receiver closes the buffer to the fabric, then compares it with the tags: what it hands on can no
 * longer change. Tags also prove that the payload has arrived, even if the fabric keeps no order. A
 * payload without its 'T' does not count, and one with other tags is torn (backend.h).
 *
 * The lower node connects over the fabric: ofi_rxm can hang where both sides do so at once.
 */
#include "transport/backend.h"

#include "transport/cipher.h"
#include "transport/frame.h"

#include "base/limits.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    MARK_OFFER = 'F',
    MARK_READY = 'R',
    MARK_TAGS = 'T',
    OFFER_BYTES = 36,
    TAGS_BYTES = 32,
    TAGS_MAX = CAIRN_BULK_BYTES_MAX / CAIRN_BLOCK_BYTES,
    TAGS_FRAME_BYTES_MAX = TAGS_BYTES + TAGS_MAX * CAIRN_CIPHER_TAG_BYTES
};

/* What a part on its way belongs to. */
enum part_kind { PART_OFFER, PART_CALL, PART_READY, PART_PAYLOAD, PART_TAGS, PART_KINDS };

struct own_part {
    struct cairn_backend_part part; /* first: it is what the backends report */
    enum part_kind kind;
    bool busy;
    void *owner; /* place or payload */
};

/* What this node knows of another. */
struct place {
    uint32_t node;
    bool offered; /* on this connection; so is what follows */
    bool known;   /* its offer has come */
    bool ready;   /* both sides may write */
    bool to_call;
    bool to_tell;        /* that it is ready */
    uint64_t connection; /* counts them: payloads of an earlier one have tags of another key */
    uint64_t payload_count;
    struct cairn_cipher_key *key_out, *key_in;
    struct own_part offer_part, call_part, ready_part;
    uint8_t ready_mark;
    uint8_t offer[OFFER_BYTES + CAIRN_BACKEND_NAME_BYTES];
};

/* A payload on its way out. */
struct payload {
    struct payload *next; /* free one */
    struct place *place;
    uint64_t connection; /* of the place */
    bool untagged;       /* the crypto library has failed */
    struct cairn_backend_part *caller;
    struct own_part write_part, tags_part;
    size_t frame_len;
    uint8_t frame[TAGS_FRAME_BYTES_MAX];
};

struct region {
    struct cairn_backend_remote remote;
    bool open;
    uint32_t filled_bytes; /* that are there and compared with their tags */
    bool torn;             /* the tags are others */
};

struct rdma {
    struct cairn_backend backend;
    struct cairn_backend_events events;
    struct cairn_backend *control, *bulk;
    struct cairn_cipher *cipher; /* NULL: payloads are not protected */
    enum cairn_protection protection;
    uint32_t node, node_count, buffer_count, payload_count;
    uint8_t *pool;
    struct place *places;     /* [node_count] */
    struct region *regions;   /* [buffer_count] */
    struct payload *payloads; /* [payload_count] */
    struct payload *free;
    bool unfinished; /* a place has something to call or to tell */
    int fd;
};

static struct rdma *
rdma_of(struct cairn_backend *backend)
{
    return (struct rdma *)(void *)backend;
}

/* The connection is gone, or will be: its keys count no more. */
static void
place_forget(struct place *place)
{
    place->offered = place->known = place->ready = place->to_call = place->to_tell = false;
    place->payload_count = 0;
    place->connection++;
    cairn_cipher_key_destroy(place->key_out);
    cairn_cipher_key_destroy(place->key_in);
    place->key_out = place->key_in = NULL;
}

static void
place_break(struct rdma *rdma, struct place *place, const char *why)
{
    place_forget(place);
    rdma->events.changed(rdma->events.context, place->node, why);
}

static cairn_err
own_send(struct cairn_backend *backend, const struct place *place, struct own_part *part,
         const void *bytes, size_t bytes_len)
{
    cairn_err err = part->busy
                        ? CAIRN_AGAIN
                        : backend->ops->send(backend, place->node, bytes, bytes_len, &part->part);

    if (!err)
        part->busy = true;
    return err;
}

/* ---- offers ---- */

/* Sends the node this one's endpoint, and the key of its tags. */
static cairn_err
offer_send(struct rdma *rdma, struct place *place)
{
    struct cairn_writer writer;
    uint8_t key[CAIRN_CIPHER_KEY_BYTES], name[CAIRN_BACKEND_NAME_BYTES];
    size_t name_len = 0;
    cairn_err err;

    if (place->offer_part.busy)
        return CAIRN_AGAIN;
    err = rdma->bulk->ops->endpoint(rdma->bulk, name, &name_len);
    if (!err)
        err = cairn_proof_random(key, sizeof key);
    if (err)
        return CAIRN_AGAIN;
    cairn_writer_init(&writer, place->offer, sizeof place->offer);
    cairn_write_u8(&writer, MARK_OFFER);
    cairn_write_u8(&writer, (uint8_t)rdma->protection);
    cairn_write_u16(&writer, (uint16_t)name_len);
    cairn_write_bytes(&writer, key, sizeof key);
    cairn_write_bytes(&writer, name, name_len);
    err = own_send(rdma->control, place, &place->offer_part, place->offer, OFFER_BYTES + name_len);
    if (!err && rdma->cipher) {
        cairn_cipher_key_destroy(place->key_out);
        place->key_out = NULL;
        err = rdma->cipher->ops->key_create(rdma->cipher, false, true, key, &place->key_out);
    }
    explicit_bzero(key, sizeof key);
    place->offered = !err;
    return err;
}

static void
offer_received(struct rdma *rdma, struct place *place, const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_reader reader;
    uint8_t protection;
    uint16_t name_len;
    cairn_err err = CAIRN_OK;

    if (place->known || bytes_len < OFFER_BYTES) {
        place_break(rdma, place, "its offer is malformed");
        return;
    }
    cairn_reader_init(&reader, bytes + 1, OFFER_BYTES - 1);
    protection = cairn_read_u8(&reader);
    name_len = cairn_read_u16(&reader);
    if (protection != rdma->protection || name_len == 0 ||
        bytes_len != (size_t)OFFER_BYTES + name_len || name_len > CAIRN_BACKEND_NAME_BYTES) {
        place_break(rdma, place, "its offer is malformed");
        return;
    }
    if (rdma->cipher)
        err = rdma->cipher->ops->key_create(rdma->cipher, false, false, bytes + 4, &place->key_in);
    if (!err)
        err = rdma->bulk->ops->reach(rdma->bulk, place->node, bytes + OFFER_BYTES, name_len);
    if (err) {
        place_break(rdma, place, "its fabric's address cannot be used");
        return;
    }
    place->known = true;
    place->to_call = rdma->node < place->node;
    rdma->unfinished |= place->to_call;
}

/* Goes on with connecting, as far as the backends allow. */
static void
place_turn(struct rdma *rdma, struct place *place)
{
    if (place->to_call &&
        own_send(rdma->bulk, place, &place->call_part, &place->ready_mark, 1) == CAIRN_OK)
        place->to_call = false;
    if (place->to_tell && place->offered &&
        own_send(rdma->control, place, &place->ready_part, &place->ready_mark, 1) == CAIRN_OK) {
        place->to_tell = false;
        place->ready = true;
    }
}

/* ---- payloads ---- */

static void
nonce_make(uint64_t payload, uint32_t block, uint8_t out[CAIRN_CIPHER_NONCE_BYTES])
{
    struct cairn_writer writer;

    cairn_writer_init(&writer, out, CAIRN_CIPHER_NONCE_BYTES);
    cairn_write_u64(&writer, payload);
    cairn_write_u32(&writer, block);
}

static uint32_t
tag_count(const struct rdma *rdma, size_t bytes_len)
{
    return rdma->cipher ? (uint32_t)((bytes_len + CAIRN_BLOCK_BYTES - 1) / CAIRN_BLOCK_BYTES) : 0;
}

static size_t
block_bytes(size_t bytes_len, uint32_t block)
{
    size_t rest = bytes_len - (size_t)block * CAIRN_BLOCK_BYTES;

    return rest < CAIRN_BLOCK_BYTES ? rest : CAIRN_BLOCK_BYTES;
}

/* Makes the frame of a payload's tags, and uses up its nonces. */
static cairn_err
tags_make(struct rdma *rdma, struct payload *payload, const uint8_t *bytes, size_t bytes_len,
          struct cairn_backend_remote remote)
{
    struct place *place = payload->place;
    struct cairn_cipher_key *key = place->key_out;
    uint64_t number = place->payload_count++;
    uint32_t count = tag_count(rdma, bytes_len);
    struct cairn_writer writer;
    cairn_err err = CAIRN_OK;

    cairn_writer_init(&writer, payload->frame, TAGS_BYTES);
    cairn_write_u8(&writer, MARK_TAGS);
    cairn_write_u8(&writer, 0);
    cairn_write_u16(&writer, (uint16_t)count);
    cairn_write_u32(&writer, (uint32_t)bytes_len);
    cairn_write_u64(&writer, number);
    cairn_write_u64(&writer, remote.address);
    cairn_write_u64(&writer, remote.key);
    for (uint32_t i = 0; i < count && !err; i++) {
        uint8_t nonce[CAIRN_CIPHER_NONCE_BYTES];
        const struct cairn_cipher_block how = {.nonce = nonce,
                                               .block_len = block_bytes(bytes_len, i)};

        nonce_make(number, i, nonce);
        err = key->ops->make(key, 0, &how, bytes + (size_t)i * CAIRN_BLOCK_BYTES, NULL,
                             payload->frame + TAGS_BYTES + i * CAIRN_CIPHER_TAG_BYTES);
    }
    payload->frame_len = TAGS_BYTES + (size_t)count * CAIRN_CIPHER_TAG_BYTES;
    return err;
}

/* The buffer that is open under this address and key; buffer_count: none. */
static uint32_t
region_find(const struct rdma *rdma, uint64_t address, uint64_t key)
{
    uint32_t i = 0;

    while (i < rdma->buffer_count &&
           !(rdma->regions[i].open && rdma->regions[i].remote.key == key &&
             rdma->regions[i].remote.address == address))
        i++;
    return i;
}

static void
tags_received(struct rdma *rdma, struct place *place, const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_reader reader;
    uint32_t zero, count, payload_len, index;
    uint64_t number, address, key;
    cairn_err err = CAIRN_OK;

    cairn_reader_init(&reader, bytes, bytes_len);
    (void)cairn_read_u8(&reader);
    zero = cairn_read_u8(&reader);
    count = cairn_read_u16(&reader);
    payload_len = cairn_read_u32(&reader);
    number = cairn_read_u64(&reader);
    address = cairn_read_u64(&reader);
    key = cairn_read_u64(&reader);
    index = region_find(rdma, address, key);
    if (zero || payload_len == 0 || payload_len > CAIRN_BULK_BYTES_MAX ||
        count != tag_count(rdma, payload_len) ||
        bytes_len != TAGS_BYTES + (size_t)count * CAIRN_CIPHER_TAG_BYTES ||
        index == rdma->buffer_count) {
        place_break(rdma, place, "the tags of a payload are malformed");
        return;
    }
    (void)rdma->backend.ops->region(&rdma->backend, index, NULL);
    for (uint32_t i = 0; i < count && !err; i++) {
        uint8_t nonce[CAIRN_CIPHER_NONCE_BYTES];
        const struct cairn_cipher_block how = {.nonce = nonce,
                                               .block_len = block_bytes(payload_len, i)};

        nonce_make(number, i, nonce);
        err = place->key_in->ops->check(place->key_in, &how,
                                        rdma->pool + (size_t)index * CAIRN_BULK_BYTES_MAX +
                                            (size_t)i * CAIRN_BLOCK_BYTES,
                                        bytes + TAGS_BYTES + i * CAIRN_CIPHER_TAG_BYTES);
    }
    if (err && err != CAIRN_CORRUPT) {
        place_break(rdma, place, "the crypto library failed");
        return;
    }
    rdma->regions[index].filled_bytes = payload_len;
    rdma->regions[index].torn = err;
}

static void
payload_free(struct rdma *rdma, struct payload *payload)
{
    if (payload->write_part.busy || payload->tags_part.busy)
        return;
    payload->next = rdma->free;
    rdma->free = payload;
}

/* A payload is written: its tags follow. The caller's frame comes behind them. */
static void
payload_written(struct rdma *rdma, struct payload *payload, cairn_err err)
{
    struct cairn_backend_part *caller = payload->caller;

    if (payload->untagged || payload->connection != payload->place->connection)
        err = CAIRN_PEER;
    if (!err)
        err = own_send(rdma->control, payload->place, &payload->tags_part, payload->frame,
                       payload->frame_len);
    payload_free(rdma, payload);
    rdma->events.done(rdma->events.context, caller, err ? CAIRN_PEER : CAIRN_OK);
}

/* ---- events of the two backends ---- */

static bool
is_own(const struct rdma *rdma, const struct cairn_backend_part *part)
{
    uintptr_t at = (uintptr_t)part;

    return (at >= (uintptr_t)rdma->places && at < (uintptr_t)(rdma->places + rdma->node_count)) ||
           (at >= (uintptr_t)rdma->payloads &&
            at < (uintptr_t)(rdma->payloads + rdma->payload_count));
}

static void
part_done(void *context, struct cairn_backend_part *part, cairn_err err)
{
    struct rdma *rdma = context;
    struct own_part *own = (struct own_part *)(void *)part;
    struct place *place;

    if (!is_own(rdma, part)) {
        rdma->events.done(rdma->events.context, part, err);
        return;
    }
    own->busy = false;
    place = own->owner;
    switch (own->kind) {
    case PART_OFFER:
        explicit_bzero(place->offer, sizeof place->offer);
        break;
    case PART_CALL:
        place->to_tell = !err && place->known;
        rdma->unfinished |= place->to_tell;
        if (!err)
            break;
        if (place->known)
            place_break(rdma, place, "it cannot be reached over the fabric");
        break;
    case PART_PAYLOAD:
        payload_written(rdma, own->owner, err);
        break;
    case PART_TAGS:
        payload_free(rdma, own->owner);
        break;
    case PART_READY:
    case PART_KINDS:
        break;
    }
}

static void
control_received(void *context, uint32_t node, const uint8_t *bytes, size_t bytes_len)
{
    struct rdma *rdma = context;
    struct place *place = &rdma->places[node];

    if (bytes_len && bytes[0] == MARK_OFFER) {
        offer_received(rdma, place, bytes, bytes_len);
    } else if (!place->known) {
        place_break(rdma, place,
                    "it does not send payloads over a fabric; give all agents the "
                    "same provider");
    } else if (bytes_len == 1 && bytes[0] == MARK_READY) {
        place->ready = true;
    } else if (bytes_len && bytes[0] == MARK_TAGS) {
        tags_received(rdma, place, bytes, bytes_len);
    } else {
        rdma->events.received(rdma->events.context, node, bytes, bytes_len);
    }
}

static void
control_changed(void *context, uint32_t node, const char *why)
{
    struct rdma *rdma = context;

    place_forget(&rdma->places[node]);
    rdma->events.changed(rdma->events.context, node, why);
}

static void
control_refused(void *context, uint32_t node, const char *why)
{
    struct rdma *rdma = context;

    rdma->events.refused(rdma->events.context, node, why);
}

/* ---- the table ---- */

static void
rdma_close(struct cairn_backend *backend)
{
    struct rdma *rdma = rdma_of(backend);

    if (rdma->control)
        rdma->control->ops->close(rdma->control);
    if (rdma->bulk)
        rdma->bulk->ops->close(rdma->bulk);
    for (uint32_t i = 0; rdma->places && i < rdma->node_count; i++)
        place_forget(&rdma->places[i]);
    cairn_cipher_close(rdma->cipher);
    if (rdma->fd >= 0)
        close(rdma->fd);
    cairn_secret_free(rdma->places, rdma->node_count * sizeof *rdma->places);
    free(rdma->payloads);
    free(rdma->regions);
    free(rdma);
}

static int
rdma_fd(const struct cairn_backend *backend)
{
    const struct rdma *rdma = (const struct rdma *)(const void *)backend;

    return rdma->bulk->ops->fd(rdma->bulk) < 0 ? -1 : rdma->fd;
}

static bool
rdma_may_sleep(struct cairn_backend *backend)
{
    struct rdma *rdma = rdma_of(backend);

    return rdma->control->ops->may_sleep(rdma->control) && rdma->bulk->ops->may_sleep(rdma->bulk);
}

static bool
rdma_progress(struct cairn_backend *backend)
{
    struct rdma *rdma = rdma_of(backend);
    bool more = rdma->bulk->ops->progress(rdma->bulk);

    more |= rdma->control->ops->progress(rdma->control);
    if (!rdma->unfinished)
        return more;
    rdma->unfinished = false;
    for (uint32_t i = 0; i < rdma->node_count; i++) {
        place_turn(rdma, &rdma->places[i]);
        rdma->unfinished |= rdma->places[i].to_call || rdma->places[i].to_tell;
    }
    return more;
}

static cairn_err
rdma_send(struct cairn_backend *backend, uint32_t node, const void *bytes, size_t bytes_len,
          struct cairn_backend_part *part)
{
    struct rdma *rdma = rdma_of(backend);
    cairn_err err = rdma->places[node].offered ? CAIRN_OK : offer_send(rdma, &rdma->places[node]);

    return err ? err : rdma->control->ops->send(rdma->control, node, bytes, bytes_len, part);
}

static cairn_err
rdma_write(struct cairn_backend *backend, uint32_t node, const void *bytes, size_t bytes_len,
           struct cairn_backend_remote remote, struct cairn_backend_part *part)
{
    struct rdma *rdma = rdma_of(backend);
    struct payload *payload = rdma->free;
    cairn_err err;

    if (!rdma->places[node].ready || !payload)
        return CAIRN_AGAIN;
    payload->place = &rdma->places[node];
    payload->connection = payload->place->connection;
    payload->caller = part;
    err = rdma->bulk->ops->write(rdma->bulk, node, bytes, bytes_len, remote,
                                 &payload->write_part.part);
    if (err)
        return err;
    payload->write_part.busy = true;
    rdma->free = payload->next;
    /* While the fabric reads the payload, too. */
    payload->untagged = tags_make(rdma, payload, bytes, bytes_len, remote) != CAIRN_OK;
    return CAIRN_OK;
}

/* No operation is in flight any more. */
static void
parts_reset(struct rdma *rdma)
{
    rdma->free = NULL;
    for (uint32_t i = 0; i < rdma->node_count; i++) {
        struct place *place = &rdma->places[i];

        place_forget(place);
        place->offer_part.busy = place->call_part.busy = place->ready_part.busy = false;
    }
    for (uint32_t i = 0; i < rdma->payload_count; i++) {
        struct payload *payload = &rdma->payloads[i];

        payload->write_part.busy = payload->tags_part.busy = false;
        payload_free(rdma, payload);
    }
    memset(rdma->regions, 0, rdma->buffer_count * sizeof *rdma->regions);
}

static cairn_err
rdma_disconnect(struct cairn_backend *backend, uint32_t node)
{
    struct rdma *rdma = rdma_of(backend);
    cairn_err err, control_err;

    if (node == CAIRN_BACKEND_ALL)
        parts_reset(rdma);
    else
        place_forget(&rdma->places[node]);
    control_err = rdma->control->ops->disconnect(rdma->control, node);
    err = rdma->bulk->ops->disconnect(rdma->bulk, node);
    return err ? err : control_err;
}

static cairn_err
rdma_region(struct cairn_backend *backend, uint32_t index, struct cairn_backend_remote *out)
{
    struct rdma *rdma = rdma_of(backend);
    cairn_err err = rdma->bulk->ops->region(rdma->bulk, index, out);

    rdma->regions[index] = (struct region){.open = out && !err};
    if (rdma->regions[index].open)
        rdma->regions[index].remote = *out;
    return err;
}

static enum cairn_backend_fill
rdma_filled(const struct cairn_backend *backend, uint32_t index, size_t bytes_len)
{
    const struct region *region = &((const struct rdma *)(const void *)backend)->regions[index];

    return region->filled_bytes != bytes_len ? CAIRN_BACKEND_EMPTY
           : region->torn                    ? CAIRN_BACKEND_TORN
                                             : CAIRN_BACKEND_WHOLE;
}

static cairn_err
rdma_readdress(struct cairn_backend *backend, uint32_t node, const char *address)
{
    struct rdma *rdma = rdma_of(backend);

    return rdma->control->ops->readdress(rdma->control, node, address);
}

static cairn_err
rdma_rekey(struct cairn_backend *backend, const struct cairn_transport_key keys[2],
           const struct cairn_transport_certificate *certificate)
{
    struct rdma *rdma = rdma_of(backend);

    return rdma->control->ops->rekey(rdma->control, keys, certificate);
}

static void
rdma_strangers(const struct cairn_backend *backend, struct cairn_transport_stats *out)
{
    const struct cairn_backend *control = ((const struct rdma *)(const void *)backend)->control;

    if (control->ops->strangers)
        control->ops->strangers(control, out);
}

static const struct cairn_transport_ops rdma_ops = {
    .name = "rdma",
    .close = rdma_close,
    .fd = rdma_fd,
    .may_sleep = rdma_may_sleep,
    .progress = rdma_progress,
    .send = rdma_send,
    .write = rdma_write,
    .disconnect = rdma_disconnect,
    .region = rdma_region,
    .filled = rdma_filled,
    .readdress = rdma_readdress,
    .rekey = rdma_rekey,
    .strangers = rdma_strangers,
};

static bool
fd_watch(struct rdma *rdma, struct cairn_backend *backend)
{
    struct epoll_event event = {.events = EPOLLIN};
    int fd = backend->ops->fd(backend);

    return fd < 0 || epoll_ctl(rdma->fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static cairn_err
memory_make(struct rdma *rdma)
{
    /* Offers hold keys. */
    rdma->places = cairn_secret_alloc(rdma->node_count * sizeof *rdma->places);
    rdma->payloads = calloc(rdma->payload_count, sizeof *rdma->payloads);
    rdma->regions = calloc(rdma->buffer_count, sizeof *rdma->regions);
    if (!rdma->places || !rdma->payloads || !rdma->regions)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < rdma->node_count; i++) {
        struct place *place = &rdma->places[i];

        place->node = i;
        place->ready_mark = MARK_READY;
        place->offer_part = (struct own_part){.kind = PART_OFFER, .owner = place};
        place->call_part = (struct own_part){.kind = PART_CALL, .owner = place};
        place->ready_part = (struct own_part){.kind = PART_READY, .owner = place};
    }
    for (uint32_t i = 0; i < rdma->payload_count; i++) {
        struct payload *payload = &rdma->payloads[i];

        payload->write_part = (struct own_part){.kind = PART_PAYLOAD, .owner = payload};
        payload->tags_part = (struct own_part){.kind = PART_TAGS, .owner = payload};
        payload_free(rdma, payload);
    }
    return CAIRN_OK;
}

/* Opens the two backends below. */
static cairn_err
backends_open(struct rdma *rdma, const struct cairn_backend_options *options,
              cairn_backend_open_fn *control_open, cairn_backend_open_fn *bulk_open)
{
    struct cairn_backend_options below = *options;
    cairn_err err;

    below.events = (struct cairn_backend_events){.done = part_done,
                                                 .received = control_received,
                                                 .changed = control_changed,
                                                 .refused = control_refused,
                                                 .context = rdma};
    err = control_open(&below, &rdma->control);
    if (err)
        return err;
    if (!options->transport->key && !options->transport->certificate) {
        CAIRN_LOG_AT(ERROR,
                     "transport: provider \"%s\" needs a key or certificates: what opens memory to "
                     "it travels in TLS",
                     options->transport->provider);
        return CAIRN_CONFIG;
    }
    err = bulk_open(&below, &rdma->bulk);
    if (err)
        return err;
    rdma->backend.isolates = rdma->bulk->isolates;
    return fd_watch(rdma, rdma->control) && fd_watch(rdma, rdma->bulk) ? CAIRN_OK : CAIRN_IO;
}

cairn_err
cairn_backend_rdma_open(const struct cairn_backend_options *options, struct cairn_backend **out)
{
    return cairn_backend_rdma_over(options, cairn_backend_tcp_open, cairn_backend_ofi_open, out);
}

cairn_err
cairn_backend_rdma_over(const struct cairn_backend_options *options,
                        cairn_backend_open_fn *control_open, cairn_backend_open_fn *bulk_open,
                        struct cairn_backend **out)
{
    const struct cairn_transport_options *transport = options->transport;
    struct rdma *rdma;
    cairn_err err;

    if (transport->protection == CAIRN_PROTECTION_ENCRYPT) {
        CAIRN_LOG_AT(ERROR,
                     "transport: provider \"%s\" does not encrypt payloads; set protection "
                     "to authenticate, or use provider tcp",
                     transport->provider);
        return CAIRN_CONFIG;
    }
    rdma = calloc(1, sizeof *rdma);
    if (!rdma)
        return CAIRN_NOMEM;
    rdma->backend.ops = &rdma_ops;
    rdma->events = options->events;
    rdma->protection = transport->protection;
    rdma->node = transport->node;
    rdma->node_count = transport->node_count;
    rdma->buffer_count = options->buffer_count;
    rdma->payload_count = options->operation_count;
    rdma->pool = options->pool;
    rdma->fd = epoll_create1(EPOLL_CLOEXEC);
    err = rdma->fd < 0 ? CAIRN_IO : memory_make(rdma);
    if (!err && rdma->protection == CAIRN_PROTECTION_AUTHENTICATE)
        err = cairn_cipher_choose(false, &rdma->cipher, NULL);
    if (!err)
        err = backends_open(rdma, options, control_open, bulk_open);
    if (err) {
        rdma_close(&rdma->backend);
        return err;
    }
    *out = &rdma->backend;
    return CAIRN_OK;
}
