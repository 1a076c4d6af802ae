/*
 * tests/fuzz/fuzz_sealed.c - what travels over a proved connection, changed on its way.
 *
 * A sender sends a frame, a payload, a frame, a short payload and a frame. The first byte chooses
 * encryption and either side's library; the rest are changes of five bytes: what, where (three
 * bytes), and how much. The receiver must see exactly those frames that end before the first
 * change, and the payloads before each as they were sent. If only a payload's own bytes change, and
 * it is authenticated, the receiver sees all frames and learns that the payload is torn.
 */
#include "tests/fuzz/streams.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    FRAMES = 3,
    FRAME_BYTES = 100,
    LONG_BYTES = CAIRN_BLOCK_BYTES + 1000, /* two blocks */
    SHORT_BYTES = 300,
    WIRE_BYTES_MAX = 2 * CAIRN_BLOCK_BYTES,
    CHANGE_BYTES = 5,
    CHANGES_MAX = 8
};

static uint8_t frames[FRAMES][FRAME_BYTES];
static uint8_t long_payload[LONG_BYTES], short_payload[SHORT_BYTES];
static uint8_t pool[2][CAIRN_BULK_BYTES_MAX]; /* the receiver's buffers */
static uint32_t received_count;
static bool is_torn[2];

static uint8_t *
buffer(void *context, const struct stream *stream, const struct cairn_backend_remote *remote,
       uint32_t bytes_len)
{
    return remote->address < 2 && remote->key == remote->address + 10 ? pool[remote->address]
                                                                      : NULL;
}

static void
torn(void *context, uint64_t address)
{
    require(address < 2 && !is_torn[address]);
    is_torn[address] = true;
}

static bool
received(void *context, struct stream *stream, const uint8_t *bytes, size_t bytes_len)
{
    require(received_count < FRAMES && bytes_len == FRAME_BYTES);
    require(memcmp(bytes, frames[received_count++], FRAME_BYTES) == 0);
    require(received_count < 2 || is_torn[0] == (memcmp(pool[0], long_payload, LONG_BYTES) != 0));
    require(received_count < 3 || is_torn[1] == (memcmp(pool[1], short_payload, SHORT_BYTES) != 0));
    return true;
}

static bool
proved(void *context, struct stream *stream)
{
    stream->proved = true;
    return true;
}

/* Two streams that have proved themselves to each other. */
static void
pair_open(struct stream_owner owners[2], struct stream *streams[2])
{
    int fds[2];

    streams_sockets(fds);
    for (uint32_t i = 0; i < 2; i++) {
        stream_parts_init(&owners[i].done);
        require(stream_create(&owners[i], fds[i], i == 0, i == 0 ? 1 : CAIRN_BACKEND_ALL,
                              &streams[i]) == CAIRN_OK);
    }
    stream_connected(streams[0]);
    for (int turn = 0; turn < 3; turn++)
        for (int i = 1; i >= 0; i--)
            while (stream_receive(streams[i]))
                ;
    require(streams[0]->proved && streams[1]->proved);
}

/* What the sender sends of one part, behind what is in wire[len]. */
static size_t
part_send(struct stream *sender, int fd, struct stream_part part, uint8_t *wire, size_t len)
{
    stream_send(sender, &part);
    while (stream_flush(sender))
        len += streams_take(fd, wire + len, WIRE_BYTES_MAX - len);
    require(stream_parts_pop(&sender->owner->done) == &part && !part.failed);
    return len + streams_take(fd, wire + len, WIRE_BYTES_MAX - len);
}

/* All that is sent. ends[i]: where frame i ends in it. */
static size_t
wire_make(struct stream *sender, int fd, uint8_t *wire, size_t ends[FRAMES])
{
    struct stream_part frame = {.bytes_len = FRAME_BYTES};
    struct stream_part payloads[FRAMES - 1] = {
        {.bytes = long_payload, .bytes_len = LONG_BYTES, .payload = true, .remote = {.key = 10}},
        {.bytes = short_payload,
         .bytes_len = SHORT_BYTES,
         .payload = true,
         .remote = {.address = 1, .key = 11}}};
    size_t len = 0;

    for (int i = 0; i < FRAMES; i++) {
        frame.bytes = frames[i];
        len = ends[i] = part_send(sender, fd, frame, wire, len);
        if (i < FRAMES - 1)
            len = part_send(sender, fd, payloads[i], wire, len);
    }
    return len;
}

/* Flips bits (0), cuts off (1), leaves out (2), or repeats (3). The new length. */
static size_t
change(uint8_t *wire, size_t len, const uint8_t *data)
{
    size_t at = ((size_t)data[1] << 16 | (size_t)data[2] << 8 | data[3]) % (len + 1);
    size_t count = data[4] < len - at ? data[4] : len - at;

    switch (data[0] % 4) {
    case 0:
        if (at < len)
            wire[at] ^= data[4];
        return len;
    case 1:
        return at;
    case 2:
        memmove(wire + at, wire + at + count, len - at - count);
        return len - count;
    default:
        if (len + count > WIRE_BYTES_MAX)
            return len;
        memmove(wire + at + count, wire + at, len - at);
        return len + count;
    }
}

/* Whether a byte is of a payload that is not encrypted. */
static bool
is_payload(size_t at, const size_t ends[FRAMES])
{
    return (at >= ends[0] + STREAM_HEAD_BYTES && at < ends[0] + STREAM_HEAD_BYTES + LONG_BYTES) ||
           (at >= ends[1] + STREAM_HEAD_BYTES && at < ends[1] + STREAM_HEAD_BYTES + SHORT_BYTES);
}

static void
start(struct cairn_tls *tls[2][2], struct cairn_cipher *ciphers[CAIRN_CIPHER_LIBRARIES])
{
    for (int i = 0; i < CAIRN_CIPHER_LIBRARIES; i++)
        require(cairn_cipher_libraries[i]->open(&ciphers[i]) == CAIRN_OK);
    for (uint32_t i = 0; i < 2; i++) {
        tls[0][i] = streams_tls(i, CAIRN_PROTECTION_AUTHENTICATE);
        tls[1][i] = streams_tls(i, CAIRN_PROTECTION_ENCRYPT);
    }
    for (int i = 0; i < FRAMES; i++)
        memset(frames[i], 'a' + i, FRAME_BYTES);
    for (int i = 0; i < LONG_BYTES; i++)
        long_payload[i] = (uint8_t)(i * 31 >> 3);
    memset(short_payload, 's', SHORT_BYTES);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cairn_tls *tls[2][2];
    static struct cairn_cipher *ciphers[CAIRN_CIPHER_LIBRARIES];
    static uint8_t sent[WIRE_BYTES_MAX], wire[WIRE_BYTES_MAX];
    struct stream_owner owners[2];
    struct stream *streams[2];
    size_t ends[FRAMES], sent_len, len, same = 0;
    uint32_t whole = 0;
    bool encrypt;

    if (!ciphers[0])
        start(tls, ciphers);
    if (size == 0 || size > 1 + CHANGES_MAX * CHANGE_BYTES)
        return 0;
    encrypt = data[0] & 1;
    for (uint32_t i = 0; i < 2; i++)
        owners[i] = (struct stream_owner){
            .buffer = buffer,
            .torn = torn,
            .received = received,
            .proved = proved,
            .epoll_fd = -1,
            .tls = tls[encrypt][i],
            .cipher = ciphers[(data[0] >> (1 + i)) % CAIRN_CIPHER_LIBRARIES],
            .protection = encrypt ? CAIRN_PROTECTION_ENCRYPT : CAIRN_PROTECTION_AUTHENTICATE};
    pair_open(owners, streams);
    received_count = 0;
    is_torn[0] = is_torn[1] = false;
    memset(pool[0], 0, LONG_BYTES);
    memset(pool[1], 0, SHORT_BYTES);
    len = sent_len = wire_make(streams[0], streams[1]->fd, sent, ends);
    memcpy(wire, sent, len);
    for (size_t at = 1; at + CHANGE_BYTES <= size; at += CHANGE_BYTES)
        len = change(wire, len, data + at);
    while (same < sent_len &&
           ((same < len && wire[same] == sent[same]) || (!encrypt && is_payload(same, ends))))
        same++;
    while (whole < FRAMES && ends[whole] <= same)
        whole++;
    streams_feed(streams[1], streams[0]->fd, wire, len, CAIRN_BLOCK_BYTES / 2);
    require(received_count == whole);
    require(!encrypt || (!is_torn[0] && !is_torn[1]));
    stream_destroy(streams[0]);
    stream_destroy(streams[1]);
    return 0;
}
