/* transport/stream.c - see stream.h. */
#include "transport/stream.h"

#include "transport/frame.h"

#include "base/limits.h"
#include "base/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    PAYLOAD_MARK = 0xb0,
    FRAME_MARK = 'C',
    FRAME_BODY_LEN_AT = 40,
    TLS_KIND_FIRST = 20,
    TLS_KIND_ALERT = 21,
    TLS_KIND_LAST = 23,
    TAGS_MARK = 'T',
    TAGS_AT = 1 + STREAM_HEAD_BYTES,
    TAGS_RECORD_BYTES_MAX = TAGS_AT + STREAM_TAGS_BYTES_MAX,
    RECORD_BYTES_MAX = CAIRN_FRAME_BYTES_MAX + CAIRN_TLS_OVERHEAD_BYTES,
    BATCH_BYTES = 1 << 20,                          /* of payload in one batch */
    BATCH_CIPHER_BLOCKS = STREAM_CIPHER_BLOCKS / 2, /* the others are made while these are sent */
    TAGGED_READ_BYTES = 4 * CAIRN_BLOCK_BYTES, /* at once: in cache when their tags are computed */
    WAKE_BYTES_MAX = 1 << 20,
    WAKE_CIPHER_BYTES_MAX = 1 << 18, /* still in cache when they are decrypted */
    RECEIVE_BYTES_MAX = 4 << 20,     /* of one stream in one turn */
    BEHIND_BYTES = 1024 /* read together with a payload's end: the tags and the frame */
};

_Static_assert(sizeof(struct stream_part) <= sizeof(struct cairn_backend_part),
               "a part fits its scratch");

/* A TLS alert in clear (handshake_failure), for peers that speak to us without our key. */
static const uint8_t refusal[7] = {TLS_KIND_ALERT, 3, 3, 0, 2, 2, 40};

void
stream_parts_init(struct stream_parts *parts)
{
    parts->head = NULL;
    parts->end = &parts->head;
}

void
stream_parts_push(struct stream_parts *parts, struct stream_part *part)
{
    part->next = NULL;
    *parts->end = part;
    parts->end = &part->next;
}

struct stream_part *
stream_parts_pop(struct stream_parts *parts)
{
    struct stream_part *part = parts->head;

    if (!part)
        return NULL;
    parts->head = part->next;
    if (!parts->head)
        parts->end = &parts->head;
    return part;
}

/* ---- life ---- */

cairn_err
stream_create(struct stream_owner *owner, int fd, bool outbound, uint32_t node, struct stream **out)
{
    struct stream *stream = calloc(1, sizeof *stream);

    if (stream)
        stream->in = malloc(STREAM_IN_UNPROVED);
    if (!stream || !stream->in) {
        close(fd);
        free(stream);
        return CAIRN_NOMEM;
    }
    stream->owner = owner;
    stream->fd = fd;
    stream->outbound = stream->connecting = outbound;
    stream->clear = !owner->tls;
    stream->node = node;
    stream->in_bytes = STREAM_IN_UNPROVED;
    stream->wake_bytes = 1;
    stream_parts_init(&stream->queue);
    stream_parts_init(&stream->ended);
    *out = stream;
    return CAIRN_OK;
}

void
stream_fail(struct stream *stream, const char *why)
{
    struct stream_parts *lists[] = {&stream->ended, &stream->queue};

    if (stream->failed)
        return;
    stream->failed = why;
    for (uint32_t i = stream->out ? stream->out->sealing.taken : 0;
         stream->out && i < stream->out->sealing.added; i++)
        cairn_sealer_drop(stream->owner->sealer, &stream->out->sealing.jobs[i]);
    if (stream->events) /* a child between fork and exec keeps the socket, and its events, alive */
        (void)epoll_ctl(stream->owner->epoll_fd, EPOLL_CTL_DEL, stream->fd, NULL);
    close(stream->fd);
    stream->fd = -1;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        struct stream_part *part;

        while ((part = stream_parts_pop(lists[i])) != NULL) {
            part->failed = true;
            stream_parts_push(&stream->owner->done, part);
        }
    }
}

void
stream_destroy(struct stream *stream)
{
    if (!stream)
        return;
    stream_fail(stream, "closed");
    cairn_tls_link_destroy(stream->link);
    cairn_seal_destroy(stream->seal_in);
    cairn_seal_destroy(stream->seal_out);
    if (stream->in)
        explicit_bzero(stream->in, stream->in_bytes);
    free(stream->in);
    if (stream->out)
        free(stream->out->sealing.cipher);
    free(stream->out);
    free(stream);
}

static bool
encrypts(const struct stream *stream)
{
    return stream->owner->protection == CAIRN_PROTECTION_ENCRYPT;
}

static bool
authenticates(const struct stream *stream)
{
    return stream->owner->protection == CAIRN_PROTECTION_AUTHENTICATE;
}

/* The keys of payloads' blocks, of either direction. */
static cairn_err
seals_make(struct stream *stream)
{
    uint8_t keys[CAIRN_TLS_EXPORT_BYTES];
    const struct cairn_cipher *cipher = stream->owner->cipher;
    cairn_err err = cairn_tls_link_export(stream->link, keys);

    if (!err)
        err = cairn_seal_create(cipher, encrypts(stream), true,
                                keys + (stream->outbound ? 0 : CAIRN_SEAL_KEY_BYTES),
                                &stream->seal_out);
    if (!err)
        err = cairn_seal_create(cipher, encrypts(stream), false,
                                keys + (stream->outbound ? CAIRN_SEAL_KEY_BYTES : 0),
                                &stream->seal_in);
    explicit_bzero(keys, sizeof keys);
    return err;
}

/* Memory and keys for a peer that is proved. */
static cairn_err
proved_prepare(struct stream *stream)
{
    uint8_t *in = realloc(stream->in, STREAM_IN_BYTES);

    if (!in)
        return CAIRN_NOMEM;
    stream->in = in;
    stream->in_bytes = STREAM_IN_BYTES;
    stream->out = calloc(1, sizeof *stream->out);
    if (!stream->out)
        return CAIRN_NOMEM;
    if (encrypts(stream))
        stream->out->sealing.cipher = malloc((size_t)STREAM_CIPHER_BLOCKS * CAIRN_BLOCK_BYTES);
    if (encrypts(stream) && !stream->out->sealing.cipher)
        return CAIRN_NOMEM;
    return encrypts(stream) || authenticates(stream) ? seals_make(stream) : CAIRN_OK;
}

/* ---- the handshake ---- */

/* Sends pending handshake bytes: at most some KiB of certificates into an empty socket. */
static bool
handshake_output(struct stream *stream)
{
    uint8_t bytes[STREAM_IN_UNPROVED];
    size_t len;

    while ((len = cairn_tls_link_output(stream->link, bytes, sizeof bytes)) > 0)
        if (send(stream->fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)len)
            return false;
    return true;
}

static bool
handshake_step(struct stream *stream, const uint8_t *record, size_t record_len)
{
    cairn_err err = CAIRN_OK;

    if (!stream->link)
        err = cairn_tls_link_create(stream->owner->tls, stream->outbound, stream->node,
                                    &stream->link);
    if (!err)
        err = cairn_tls_link_handshake(stream->link, record, record_len);
    if (stream->link && !handshake_output(stream) && (!err || err == CAIRN_AGAIN)) {
        stream_fail(stream, "the connection is lost");
        return false;
    }
    if (err == CAIRN_AGAIN) {
        stream->known = cairn_tls_link_known(stream->link);
        return true;
    }
    if (!err)
        err = proved_prepare(stream);
    if (err) {
        const char *why = stream->link ? cairn_tls_link_why(stream->link) : "";

        stream->refused = err == CAIRN_DENIED;
        stream->refuses = stream->refused && why[0];
        stream_fail(stream, why[0] && (stream->refuses || !stream->outbound) ? why
                            : stream->refused                                ? "it refused us"
                                              : "its handshake failed");
        return false;
    }
    stream->node = cairn_tls_link_peer(stream->link);
    return stream->owner->proved(stream->owner->context, stream);
}

void
stream_connected(struct stream *stream)
{
    stream->connecting = false;
    if (!stream->clear)
        (void)handshake_step(stream, NULL, 0);
    else if (proved_prepare(stream) != CAIRN_OK)
        stream_fail(stream, "out of memory");
    else
        (void)stream->owner->proved(stream->owner->context, stream);
}

/* ---- receiving ---- */

/* The bytes of the next span's block or payload, of `left`. */
static uint32_t
span_bytes(const struct stream *stream, uint32_t left)
{
    return encrypts(stream) && left > CAIRN_BLOCK_BYTES ? CAIRN_BLOCK_BYTES : left;
}

/* The bytes after the payload that are part of the span. */
static uint32_t
tag_bytes(const struct stream *stream)
{
    return encrypts(stream) ? CAIRN_SEAL_TAG_BYTES : 0;
}

static uint32_t
block_count(uint32_t bytes_len)
{
    return (bytes_len + CAIRN_BLOCK_BYTES - 1) / CAIRN_BLOCK_BYTES;
}

/* Whether what comes next is of a payload. */
static bool
arrives(const struct stream *stream)
{
    return stream->arrival.to && stream->arrival.got < stream->arrival.len + tag_bytes(stream);
}

/* Computes the tags of the blocks that have come whole. */
static cairn_err
tags_compute(struct stream *stream)
{
    struct stream_arrival *arrival = &stream->arrival;
    cairn_err err = CAIRN_OK;

    while (!err && arrival->tagged < arrival->got) {
        uint32_t block = arrival->tagged / CAIRN_BLOCK_BYTES;
        uint32_t rest = arrival->len - arrival->tagged;
        uint32_t len = rest < CAIRN_BLOCK_BYTES ? rest : CAIRN_BLOCK_BYTES;

        if (arrival->got - arrival->tagged < len)
            break;
        err = cairn_seal_tag(stream->seal_in, arrival->to + arrival->tagged, len,
                             arrival->tags + (size_t)block * CAIRN_SEAL_TAG_BYTES);
        arrival->tagged += len;
    }
    return err;
}

/* A span is complete: checks it and turns to the next one. An authenticated payload stays until its
 * tags come. */
static bool
span_end(struct stream *stream)
{
    struct stream_arrival *arrival = &stream->arrival;

    if (authenticates(stream))
        return true;
    if (encrypts(stream) &&
        cairn_seal_check(stream->seal_in, arrival->head, arrival->first ? STREAM_HEAD_BYTES : 0,
                         arrival->to, arrival->len, arrival->tag) != CAIRN_OK) {
        stream_fail(stream, "a payload is damaged");
        return false;
    }
    arrival->first = false;
    arrival->got = 0;
    arrival->to = arrival->left ? arrival->to + arrival->len : NULL;
    arrival->len = span_bytes(stream, arrival->left);
    arrival->left -= arrival->len;
    return true;
}

/* Counts bytes of a payload that are in place. */
static bool
arrival_advance(struct stream *stream, size_t bytes_len)
{
    stream->arrival.got += (uint32_t)bytes_len;
    if (authenticates(stream) && tags_compute(stream) != CAIRN_OK) {
        stream_fail(stream, "the crypto library failed");
        return false;
    }
    return arrives(stream) || span_end(stream);
}

/* Takes payload bytes that were read together with earlier input. */
static size_t
arrival_copy(struct stream *stream, const uint8_t *bytes, size_t bytes_len)
{
    struct stream_arrival *arrival = &stream->arrival;
    bool in_block = arrival->got < arrival->len;
    size_t room =
        in_block ? arrival->len - arrival->got : arrival->len + tag_bytes(stream) - arrival->got;
    size_t count = bytes_len < room ? bytes_len : room;

    memcpy(in_block ? arrival->to + arrival->got : arrival->tag + (arrival->got - arrival->len),
           bytes, count);
    return arrival_advance(stream, count) ? count : 0;
}

/* A payload's header: where it goes. */
static bool
arrival_begin(struct stream *stream, const uint8_t *bytes)
{
    struct stream_arrival *arrival = &stream->arrival;
    struct cairn_backend_remote remote;
    struct cairn_reader reader;
    uint32_t payload_len;
    uint8_t protection;

    cairn_reader_init(&reader, bytes, STREAM_HEAD_BYTES);
    (void)cairn_read_u8(&reader);
    protection = cairn_read_u8(&reader);
    if (cairn_read_u16(&reader) != 0 || protection != stream->owner->protection) {
        stream_fail(stream, "its payloads are not protected as ours; give all agents the same "
                            "protection");
        return false;
    }
    if (arrival->to) { /* its tags have not come */
        stream_fail(stream, "a payload is damaged");
        return false;
    }
    payload_len = cairn_read_u32(&reader);
    arrival->address = remote.address = cairn_read_u64(&reader);
    remote.key = cairn_read_u64(&reader);
    remote.place = cairn_read_u64(&reader);
    arrival->to = payload_len && payload_len <= CAIRN_BULK_BYTES_MAX
                      ? stream->owner->buffer(stream->owner->context, stream, &remote, payload_len)
                      : NULL;
    if (!arrival->to) {
        stream_fail(stream, "it sent a payload into a buffer that it was not granted");
        return false;
    }
    memcpy(arrival->head, bytes, STREAM_HEAD_BYTES);
    arrival->first = true;
    arrival->got = arrival->tagged = 0;
    arrival->len = span_bytes(stream, payload_len);
    arrival->left = payload_len - arrival->len;
    return true;
}

void
stream_move(struct stream *stream, uint64_t address, const uint8_t *from, uint8_t *to)
{
    struct stream_arrival *arrival = &stream->arrival;

    if (arrival->to && arrival->address == address)
        arrival->to = to + (arrival->to - from);
}

/* The record behind an authenticated payload: the tags that its sender gave it. */
static bool
tags_take(struct stream *stream, const uint8_t *record, size_t record_len)
{
    struct stream_arrival *arrival = &stream->arrival;
    size_t tags_len = (size_t)block_count(arrival->len) * CAIRN_SEAL_TAG_BYTES;

    if (record_len != TAGS_AT + tags_len || record[0] != TAGS_MARK ||
        memcmp(record + 1, arrival->head, STREAM_HEAD_BYTES) != 0) {
        stream_fail(stream, "a payload is damaged");
        return false;
    }
    if (!cairn_seal_tags_same(record + TAGS_AT, arrival->tags, tags_len))
        stream->owner->torn(stream->owner->context, arrival->address);
    arrival->to = NULL;
    return true;
}

/* Handles one whole TLS record. */
static bool
record_take(struct stream *stream, const uint8_t *record, size_t record_len)
{
    uint8_t frame[CAIRN_FRAME_BYTES_MAX];
    size_t frame_len = 0;
    cairn_err err;

    if (!stream->proved)
        return handshake_step(stream, record, record_len);
    err = cairn_tls_link_open(stream->link, record, record_len, frame, sizeof frame, &frame_len);
    if (err == CAIRN_AGAIN)
        return true;
    if (err) { /* a callee looks at its caller's certificate when the caller has done its part */
        stream->refused = err == CAIRN_DENIED && !stream->heard;
        stream_fail(stream, stream->refused ? "it refused us" : "a message is damaged");
        return false;
    }
    stream->heard = true;
    if (stream->arrival.to)
        return tags_take(stream, frame, frame_len);
    return stream->owner->received(stream->owner->context, stream, frame, frame_len);
}

/* The length of the first item of the input; 0: unknown. */
static size_t
thing_bytes(struct stream *stream, const uint8_t *bytes, size_t bytes_len)
{
    if (bytes[0] >= TLS_KIND_FIRST && bytes[0] <= TLS_KIND_LAST && !stream->clear) {
        size_t len;

        if (bytes_len < CAIRN_TLS_HEADER_BYTES)
            return CAIRN_TLS_HEADER_BYTES;
        len = CAIRN_TLS_HEADER_BYTES + ((size_t)bytes[3] << 8 | bytes[4]);
        return len <= (stream->proved ? RECORD_BYTES_MAX : STREAM_IN_UNPROVED) ? len : 0;
    }
    if (bytes[0] == PAYLOAD_MARK && stream->proved)
        return STREAM_HEAD_BYTES;
    if (bytes[0] == FRAME_MARK && stream->clear) {
        struct cairn_reader reader;
        uint32_t body_len;

        if (bytes_len < CAIRN_FRAME_HEADER_BYTES)
            return CAIRN_FRAME_HEADER_BYTES;
        cairn_reader_init(&reader, bytes + FRAME_BODY_LEN_AT, 4);
        body_len = cairn_read_u32(&reader);
        if (body_len >
            (stream->proved ? CAIRN_TRANSPORT_BODY_BYTES_MAX : CAIRN_FRAME_HANDSHAKE_BYTES))
            return 0;
        return CAIRN_FRAME_HEADER_BYTES + body_len;
    }
    return 0;
}

/* The stream begins with something that may not be there. */
static void
thing_unknown(struct stream *stream, uint8_t first)
{
    if (!stream->clear && first == FRAME_MARK) {
        stream->refused = true;
        (void)!send(stream->fd, refusal, sizeof refusal, MSG_NOSIGNAL | MSG_DONTWAIT);
        stream_fail(stream, "it has no key and no certificate, or no TLS");
    } else if (stream->clear && first >= TLS_KIND_FIRST && first <= TLS_KIND_LAST) {
        stream->refused = true;
        if (first != TLS_KIND_ALERT)
            (void)!send(stream->fd, refusal, sizeof refusal, MSG_NOSIGNAL | MSG_DONTWAIT);
        stream_fail(stream, "it has a key or a certificate, and this agent has neither");
    } else {
        stream_fail(stream, stream->proved ? "a message is damaged" : "it is not an agent");
    }
}

/* Handles the input; keeps the beginning of an incomplete item. */
static void
input_parse(struct stream *stream)
{
    size_t at = 0;

    while (at < stream->in_len && !stream->held) {
        const uint8_t *bytes = stream->in + at;
        size_t bytes_len = stream->in_len - at, len;
        bool go_on = true;

        if (arrives(stream)) {
            at += arrival_copy(stream, bytes, bytes_len);
            if (stream->failed)
                return;
            continue;
        }
        len = thing_bytes(stream, bytes, bytes_len);
        if (len == 0) {
            thing_unknown(stream, bytes[0]);
            return;
        }
        if (len > bytes_len)
            break;
        if (bytes[0] == PAYLOAD_MARK) {
            go_on = arrival_begin(stream, bytes);
        } else if (bytes[0] != FRAME_MARK) {
            go_on = record_take(stream, bytes, len);
        } else if (stream->proved || proved_prepare(stream) == CAIRN_OK) {
            bytes = stream->in + at; /* it may have grown */
            stream->heard = stream->proved;
            go_on = stream->owner->received(stream->owner->context, stream, bytes, len);
            if (!go_on && stream->held)
                break; /* the frame is taken when it is no longer held */
        } else {
            stream_fail(stream, "out of memory");
        }
        if (stream->failed)
            return;
        at += len;
        if (!go_on)
            break;
    }
    memmove(stream->in, stream->in + at, stream->in_len - at);
    stream->in_len -= at;
}

/* Reads once: a payload into its buffer, all else into `in`. The bytes read, -1 at an end. */
static ssize_t
input_read(struct stream *stream)
{
    struct stream_arrival *arrival = &stream->arrival;
    struct iovec pieces[3];
    struct msghdr message = {.msg_iov = pieces};
    size_t count = 0, direct = 0, room = stream->in_bytes - stream->in_len;
    ssize_t got;

    if (arrives(stream) && stream->in_len == 0) {
        uint32_t rest = arrival->len > arrival->got ? arrival->len - arrival->got : 0;
        bool part = authenticates(stream) && rest > TAGGED_READ_BYTES;

        direct = part ? TAGGED_READ_BYTES : arrival->len + tag_bytes(stream) - arrival->got;
        if (rest)
            pieces[count++] =
                (struct iovec){arrival->to + arrival->got, part ? TAGGED_READ_BYTES : rest};
        if (tag_bytes(stream)) {
            uint32_t have = arrival->got > arrival->len ? arrival->got - arrival->len : 0;

            pieces[count++] = (struct iovec){arrival->tag + have, CAIRN_SEAL_TAG_BYTES - have};
        }
        room = part || arrival->left ? 0 : BEHIND_BYTES;
    }
    if (room)
        pieces[count++] = (struct iovec){stream->in + stream->in_len, room};
    message.msg_iovlen = count;
    do
        got = recvmsg(stream->fd, &message, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (got <= 0) {
        stream_fail(stream, got == 0 ? "the connection was closed" : "the connection is lost");
        return -1;
    }
    if ((size_t)got > direct)
        stream->in_len += (size_t)got - direct;
    if (direct && !arrival_advance(stream, (size_t)got < direct ? (size_t)got : direct))
        return -1;
    return got;
}

/* Sets how much of a payload must arrive before the socket wakes us: waking for each segment costs
 * more than reading it. The rest is under way, and the kernel wakes us earlier if it has no
 * room. */
static void
wake_set(struct stream *stream)
{
    const struct stream_arrival *arrival = &stream->arrival;
    uint32_t rest =
        arrives(stream) ? arrival->len + tag_bytes(stream) - arrival->got + arrival->left : 1;
    uint32_t most = encrypts(stream) ? WAKE_CIPHER_BYTES_MAX : WAKE_BYTES_MAX;
    int wake_bytes = (int)(rest < most ? rest : most);

    if (stream->failed || wake_bytes == stream->wake_bytes)
        return;
    stream->wake_bytes = wake_bytes;
    (void)setsockopt(stream->fd, SOL_SOCKET, SO_RCVLOWAT, &wake_bytes, sizeof wake_bytes);
}

bool
stream_receive(struct stream *stream)
{
    size_t total = 0;
    ssize_t got = 1;

    if (stream->in_len && !stream->held)
        input_parse(stream);
    while (got > 0 && !stream->failed && !stream->held && total < RECEIVE_BYTES_MAX) {
        got = input_read(stream);
        if (got > 0)
            total += (size_t)got;
        if (got > 0 && stream->in_len)
            input_parse(stream);
    }
    wake_set(stream);
    return got > 0 && !stream->failed && !stream->held;
}

/* ---- sending ---- */

static void
piece_add(struct stream_batch *batch, const uint8_t *bytes, size_t bytes_len)
{
    struct iovec *last = batch->count ? &batch->pieces[batch->count - 1] : NULL;

    if (last && (uint8_t *)last->iov_base + last->iov_len == bytes)
        last->iov_len += bytes_len;
    else
        batch->pieces[batch->count++] = (struct iovec){(void *)(uintptr_t)bytes, bytes_len};
}

/* A place in `stage` for bytes that go out next. */
static uint8_t *
stage_take(struct stream_batch *batch, size_t bytes_len)
{
    uint8_t *at = batch->stage + batch->stage_used;

    batch->stage_used += bytes_len;
    piece_add(batch, at, bytes_len);
    return at;
}

/* Seals one message into a record that goes out next. */
static cairn_err
record_add(struct stream *stream, const uint8_t *bytes, size_t bytes_len)
{
    struct stream_batch *batch = &stream->out->batch;
    size_t used = 0;
    cairn_err err =
        cairn_tls_link_seal(stream->link, bytes, bytes_len, batch->stage + batch->stage_used,
                            STREAM_STAGE_BYTES - batch->stage_used, &used);

    if (!err)
        (void)stage_take(batch, used);
    return err;
}

static cairn_err
frame_add(struct stream *stream, const struct stream_part *part)
{
    if (!stream->clear)
        return record_add(stream, part->bytes, part->bytes_len);
    memcpy(stage_take(&stream->out->batch, part->bytes_len), part->bytes, part->bytes_len);
    return CAIRN_OK;
}

static void
head_pack(const struct stream *stream, const struct stream_part *part,
          uint8_t out[STREAM_HEAD_BYTES])
{
    struct cairn_writer writer;

    cairn_writer_init(&writer, out, STREAM_HEAD_BYTES);
    cairn_write_u8(&writer, PAYLOAD_MARK);
    cairn_write_u8(&writer, (uint8_t)stream->owner->protection);
    cairn_write_u16(&writer, 0);
    cairn_write_u32(&writer, part->bytes_len);
    cairn_write_u64(&writer, part->remote.address);
    cairn_write_u64(&writer, part->remote.key);
    cairn_write_u64(&writer, part->remote.place);
}

static uint32_t
block_bytes(const struct stream_part *part, uint32_t block)
{
    uint32_t rest = part->bytes_len - block * CAIRN_BLOCK_BYTES;

    return rest < CAIRN_BLOCK_BYTES ? rest : CAIRN_BLOCK_BYTES;
}

/* A payload begins: its header goes out, and none of its blocks is sealed. */
static void
head_add(struct stream *stream, const struct stream_part *part)
{
    struct stream_sealing *sealing = &stream->out->sealing;

    head_pack(stream, part, sealing->head);
    memcpy(stage_take(&stream->out->batch, STREAM_HEAD_BYTES), sealing->head, STREAM_HEAD_BYTES);
    sealing->added = sealing->taken = 0;
}

/* Has the payload's blocks before number `end` sealed. */
static void
blocks_seal(struct stream *stream, const struct stream_part *part, uint32_t end)
{
    struct stream_sealing *sealing = &stream->out->sealing;
    uint32_t count = block_count(part->bytes_len);

    for (; sealing->added < end && sealing->added < count; sealing->added++) {
        uint32_t block = sealing->added;
        struct cairn_sealer_job *job = &sealing->jobs[block];

        job->block =
            (struct cairn_seal_block){.seal = stream->seal_out,
                                      .block = part->bytes + (size_t)block * CAIRN_BLOCK_BYTES,
                                      .block_len = block_bytes(part, block),
                                      .tag = sealing->tags + (size_t)block * CAIRN_SEAL_TAG_BYTES};
        if (encrypts(stream)) {
            job->block.head = sealing->head;
            job->block.head_len = block ? 0 : STREAM_HEAD_BYTES;
            job->block.out =
                sealing->cipher + (size_t)(block % STREAM_CIPHER_BLOCKS) * CAIRN_BLOCK_BYTES;
        }
        cairn_seal_take(&job->block);
        cairn_sealer_add(stream->owner->sealer, job);
    }
}

/* Takes the next block back. */
static cairn_err
block_take(struct stream *stream)
{
    struct stream_sealing *sealing = &stream->out->sealing;

    return cairn_sealer_finish(stream->owner->sealer, &sealing->jobs[sealing->taken++]);
}

/* Adds the record of a payload's tags. */
static cairn_err
tags_add(struct stream *stream, const struct stream_part *part)
{
    uint8_t record[TAGS_RECORD_BYTES_MAX] = {TAGS_MARK};
    uint32_t count = block_count(part->bytes_len);
    size_t tags_len = (size_t)count * CAIRN_SEAL_TAG_BYTES;
    cairn_err err = CAIRN_OK;

    while (!err && stream->out->sealing.taken < count)
        err = block_take(stream);
    memcpy(record + 1, stream->out->sealing.head, STREAM_HEAD_BYTES);
    memcpy(record + TAGS_AT, stream->out->sealing.tags, tags_len);
    return err ? err : record_add(stream, record, TAGS_AT + tags_len);
}

/* Adds encrypted blocks, each with its tag: the next block, and later blocks that are ready. */
static cairn_err
sealed_add(struct stream *stream, struct stream_part *part)
{
    struct stream_sealing *sealing = &stream->out->sealing;
    uint32_t sent = sealing->taken;
    cairn_err err = CAIRN_OK;

    blocks_seal(stream, part, sent + STREAM_CIPHER_BLOCKS);
    do {
        const struct cairn_seal_block *block = &sealing->jobs[sealing->taken].block;

        err = block_take(stream);
        piece_add(&stream->out->batch, block->out, block->block_len);
        memcpy(stage_take(&stream->out->batch, CAIRN_SEAL_TAG_BYTES), block->tag,
               CAIRN_SEAL_TAG_BYTES);
        part->at += (uint32_t)block->block_len;
    } while (!err && sealing->taken < sealing->added &&
             sealing->taken - sent < BATCH_CIPHER_BLOCKS &&
             cairn_sealer_has_done(stream->owner->sealer, &sealing->jobs[sealing->taken]));
    return err;
}

/* Adds the next bytes of a payload to the batch, at most `room`. */
static cairn_err
payload_add(struct stream *stream, struct stream_part *part, size_t *room)
{
    uint32_t rest = part->bytes_len - part->at;
    uint32_t len = rest < *room ? rest : (uint32_t)*room;

    if (part->at == 0)
        head_add(stream, part);
    if (encrypts(stream)) {
        *room = 0;
        return sealed_add(stream, part);
    }
    if (authenticates(stream))
        blocks_seal(stream, part, STREAM_BLOCKS_MAX);
    piece_add(&stream->out->batch, part->bytes + part->at, len);
    part->at += len;
    *room -= len;
    return CAIRN_OK;
}

/* Adds what is next of the part. *whole: all of it is added. */
static cairn_err
part_add(struct stream *stream, struct stream_part *part, size_t *room, bool *whole)
{
    cairn_err err;

    if (part->payload && part->at < part->bytes_len) {
        err = payload_add(stream, part, room);
        *whole = part->at == part->bytes_len && !authenticates(stream);
    } else {
        err = part->payload ? tags_add(stream, part) : frame_add(stream, part);
        *whole = true;
    }
    return err;
}

/* Fills an empty batch from the queue. */
static cairn_err
batch_fill(struct stream *stream)
{
    struct stream_batch *batch = &stream->out->batch;
    size_t room = BATCH_BYTES;
    cairn_err err = CAIRN_OK;

    batch->first = batch->count = 0;
    batch->stage_used = 0;
    while (!err && stream->queue.head && batch->count + 4 <= STREAM_BATCH_PIECES &&
           STREAM_STAGE_BYTES - batch->stage_used >= RECORD_BYTES_MAX) {
        struct stream_part *part = stream->queue.head;
        bool whole;

        /* Tags are added when their payload is sent, for until then a thread makes them. */
        if (part->payload && (room == 0 || (part->at == part->bytes_len && batch->count)))
            break;
        err = part_add(stream, part, &room, &whole);
        if (whole)
            stream_parts_push(&stream->ended, stream_parts_pop(&stream->queue));
    }
    return err;
}

/* Sends the batch on. True: all of it. */
static bool
batch_send(struct stream *stream)
{
    struct stream_batch *batch = &stream->out->batch;

    while (batch->first < batch->count) {
        struct msghdr message = {.msg_iov = batch->pieces + batch->first,
                                 .msg_iovlen = batch->count - batch->first};
        ssize_t sent = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                stream_fail(stream, "the connection is lost");
            return false;
        }
        while (batch->first < batch->count && (size_t)sent >= batch->pieces[batch->first].iov_len)
            sent -= (ssize_t)batch->pieces[batch->first++].iov_len;
        if (sent) {
            struct iovec *piece = &batch->pieces[batch->first];

            piece->iov_base = (uint8_t *)piece->iov_base + sent;
            piece->iov_len -= (size_t)sent;
        }
    }
    return true;
}

void
stream_send(struct stream *stream, struct stream_part *part)
{
    part->at = 0;
    part->failed = false;
    stream_parts_push(&stream->queue, part);
}

bool
stream_flush(struct stream *stream)
{
    struct stream_part *part;

    while (!stream->failed) {
        if (!batch_send(stream))
            return !stream->failed;
        while ((part = stream_parts_pop(&stream->ended)) != NULL)
            stream_parts_push(&stream->owner->done, part);
        if (!stream->queue.head)
            return false;
        if (batch_fill(stream) != CAIRN_OK)
            stream_fail(stream, "the crypto library failed");
    }
    return false;
}
