/*
 * tests/fuzz/fuzz_opening.c - the first bytes of a connection, before and in its handshake.
 *
 * The first byte chooses: any bytes at a stream that was called (0) or that calls (1); a real
 * handshake whose caller's (2) or callee's (3) bytes are changed on the way; any bytes at a stream
 * without a key (4); and 5 to 8 as 0 to 3 with certificates in place of the key. A change is three
 * bytes: where, and what is flipped there; 0 cuts the rest off. Nobody is proved without the key or
 * a certificate, and until then a stream takes little memory and no frame.
 */
#include "tests/fuzz/streams.h"
#include "transport/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FLIGHT_BYTES_MAX = 4096, CHANGE_BYTES = 3, WAYS = 9, CERTIFIED = 5 };

static bool may_be_proved;

static uint8_t *
no_buffer(void *context, const struct stream *stream, const struct cairn_backend_remote *remote,
          uint32_t bytes_len)
{
    abort(); /* there are no payloads before a peer is proved */
}

/* The first frame in clear. */
static bool
first_frame(void *context, struct stream *stream, const uint8_t *bytes, size_t bytes_len)
{
    require(stream->clear && !stream->proved && bytes[0] == 'C');
    require(bytes_len <= CAIRN_FRAME_HEADER_BYTES + CAIRN_FRAME_HANDSHAKE_BYTES);
    stream_fail(stream, "seen");
    return false;
}

static bool
proved(void *context, struct stream *stream)
{
    require(may_be_proved && stream->node == 1);
    stream->proved = true;
    return true;
}

/* Changes what is on its way; its new length. */
static size_t
change(uint8_t *flight, size_t len, const uint8_t *data, size_t size)
{
    for (; size >= CHANGE_BYTES && len; data += CHANGE_BYTES, size -= CHANGE_BYTES) {
        size_t at = ((size_t)data[0] << 8 | data[1]) % len;

        if (data[2] == 0)
            len = at;
        else
            flight[at] ^= data[2];
    }
    return len;
}

/* A real peer on the other socket, one side's bytes changed. */
static void
handshake(struct stream *stream, struct cairn_tls *tls, int fd, const uint8_t *data, size_t size)
{
    uint8_t flight[FLIGHT_BYTES_MAX];
    struct cairn_tls_link *link = NULL;
    size_t len;
    cairn_err err = CAIRN_AGAIN;

    require(cairn_tls_link_create(tls, !stream->outbound, 0, &link) == CAIRN_OK);
    if (!stream->outbound)
        err = cairn_tls_link_handshake(link, NULL, 0);
    for (int turn = 0; turn < 4 && !stream->failed && (!err || err == CAIRN_AGAIN); turn++) {
        len = streams_take(fd, flight, sizeof flight);
        if (len && err == CAIRN_AGAIN)
            err = cairn_tls_link_handshake(link, flight, len);
        len = cairn_tls_link_output(link, flight, sizeof flight);
        len = change(flight, len, data, size);
        streams_feed(stream, fd, flight, len, sizeof flight);
    }
    cairn_tls_link_destroy(link);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cairn_tls *keyed[2], *certified[2], **tls;
    struct stream_owner owner = {
        .buffer = no_buffer, .received = first_frame, .proved = proved, .epoll_fd = -1};
    struct stream *stream = NULL;
    bool outbound;
    uint8_t way;
    int fds[2];

    for (uint32_t i = 0; i < 2; i++)
        if (!keyed[i]) {
            keyed[i] = streams_tls(i, CAIRN_PROTECTION_NONE);
            certified[i] = streams_tls_certified(i);
        }
    if (size == 0 || size > FLIGHT_BYTES_MAX)
        return 0;
    way = data[0] % WAYS;
    tls = way >= CERTIFIED ? certified : keyed;
    way %= CERTIFIED;
    outbound = way == 1 || way == 3;
    owner.tls = way == 4 ? NULL : tls[0];
    may_be_proved = way == 2 || way == 3;
    stream_parts_init(&owner.done);
    streams_sockets(fds);
    require(stream_create(&owner, fds[0], outbound, outbound ? 1 : CAIRN_BACKEND_ALL, &stream) ==
            CAIRN_OK);
    if (outbound)
        stream_connected(stream);
    if (may_be_proved)
        handshake(stream, tls[1], fds[1], data + 1, size - 1);
    else
        streams_feed(stream, fds[1], data + 1, size - 1, size / 2 + 1);
    require(stream->proved || stream->clear || stream->in_bytes == STREAM_IN_UNPROVED);
    require(stream->proved || !may_be_proved || size > 1); /* unchanged, it succeeds */
    stream_destroy(stream);
    (void)close(fds[1]);
    return 0;
}
