/*
 * transport/stream.h - one connection of the backend `tcp`: a socket, the handshake on it, and the
 * frames and payloads that travel over it.
 *
 * What a stream carries, each thing told apart by its first byte:
 *   0x14 … 0x17  a TLS record. After the handshake each holds one frame (frame.h).
 *   'C'          a frame in clear, where there is no key and no certificate (on loopback only)
 *   0xb0         a payload: a header, then blocks of at most CAIRN_BLOCK_BYTES
 *
 *   offset bytes of a payload's header, little-endian
 *      0     1  0xb0
 *      1     1  protection (enum cairn_protection)
 *      2     2  zero
 *      4     4  bytes of the payload
 *      8     8  address: buffer of the receiver, times CAIRN_BULK_BYTES_MAX
 *     16     8  key of that buffer
 *     24     8  place: cairn_transport_send_placed; 0: none
 *
 * With `encrypt` each block is followed by its tag of 16 bytes (seal.h), and the header is part of
 * the first block's tag.
 *
 * With `authenticate` the tags of all blocks follow the payload in a TLS record:
 *   'T', the payload's header, then 16 bytes per block
 * So they belong to this payload of this session. The frame behind them says what it is. If the
 * header fits and a tag does not, the payload is torn: its bytes changed on the way, or at the
 * sender after their tag was made (a trainer may write to its region at any time). A torn payload
 * counts as not received, and the session goes on.
 *
 * Before the peer is proved a stream has STREAM_IN_UNPROVED bytes of memory and parses TLS records
 * only. A payload is received straight into the buffer that its header names, if that buffer is
 * open under this key, or into the memory of its place. Its tags are computed while its blocks are
 * in cache. A thread seals payloads on their way out (sealer.h).
 *
 * Thread: the loop's. Nothing blocks. A stream that fails closes its socket, and `failed` says why.
 */
#ifndef CAIRN_TRANSPORT_STREAM_H
#define CAIRN_TRANSPORT_STREAM_H

#include "transport/backend.h"
#include "transport/sealer.h"
#include "transport/tls.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
    STREAM_IN_UNPROVED = 2048,
    STREAM_IN_BYTES = 16384,
    STREAM_STAGE_BYTES = 16384,
    STREAM_BATCH_PIECES = 96,
    STREAM_HEAD_BYTES = 32,
    STREAM_BLOCKS_MAX = CAIRN_BULK_BYTES_MAX / CAIRN_BLOCK_BYTES, /* of a payload */
    STREAM_TAGS_BYTES_MAX = STREAM_BLOCKS_MAX * CAIRN_SEAL_TAG_BYTES,
    STREAM_CIPHER_BLOCKS = 8
};

/* A frame or payload on its way out, in the scratch of its backend part. */
struct stream_part {
    struct stream_part *next;
    const uint8_t *bytes;
    struct cairn_backend_remote remote; /* of a payload */
    uint32_t bytes_len;
    uint32_t at; /* so many bytes are in batches */
    bool payload;
    bool failed;
};

struct stream_parts {
    struct stream_part *head;
    struct stream_part **end;
};

/* A payload on its way in. A span is what is received in one: a block and its tag where payloads
 * are encrypted, else the payload. */
struct stream_arrival {
    uint8_t *to;     /* where the span's block or payload goes, NULL: no payload comes */
    uint32_t len;    /* of that */
    uint32_t got;    /* of the span */
    uint32_t left;   /* bytes of the payload behind this span */
    uint32_t tagged; /* bytes whose tags are computed */
    bool first;      /* span of its payload */
    uint8_t head[STREAM_HEAD_BYTES];
    uint64_t address;                    /* of its buffer */
    uint8_t tag[CAIRN_SEAL_TAG_BYTES];   /* of an encrypted block */
    uint8_t tags[STREAM_TAGS_BYTES_MAX]; /* as they must be */
};

/* What goes out with the next calls of sendmsg: pieces of payloads, and of `stage`. */
struct stream_batch {
    struct iovec pieces[STREAM_BATCH_PIECES];
    uint32_t first, count;
    size_t stage_used;
    uint8_t stage[STREAM_STAGE_BYTES];
};

/* The blocks of the payload that is being sent. A block is added to the owner's sealer, taken back
 * sealed, and sent with its batch. */
struct stream_sealing {
    struct cairn_sealer_job jobs[STREAM_BLOCKS_MAX];
    uint32_t added, taken;
    uint8_t head[STREAM_HEAD_BYTES];
    uint8_t tags[STREAM_TAGS_BYTES_MAX];
    uint8_t
        *cipher; /* [STREAM_CIPHER_BLOCKS] encrypted blocks in turns; NULL: nothing is encrypted */
};

/* What a stream needs to send. */
struct stream_out {
    struct stream_batch batch;
    struct stream_sealing sealing;
};

struct stream;

/* What a stream asks and tells its owner. */
struct stream_owner {
    /* The memory for a payload that begins. NULL: no buffer is open under this address and key. */
    uint8_t *(*buffer)(void *context, const struct stream *stream,
                       const struct cairn_backend_remote *remote, uint32_t bytes_len);
    /* The payload that began there is torn. */
    void (*torn)(void *context, uint64_t address);
    /* A frame of a proved stream, or the first one in clear of an unproved. False: stop reading. */
    bool (*received)(void *context, struct stream *stream, const uint8_t *bytes, size_t bytes_len);
    /* The handshake is complete: stream->node is the peer. False: stop reading. */
    bool (*proved)(void *context, struct stream *stream);
    void *context;
    struct cairn_tls *tls;       /* NULL: no key and no certificate, all is in clear */
    struct cairn_cipher *cipher; /* NULL: payloads are not protected */
    struct cairn_sealer *sealer; /* NULL: streams seal alone */
    int epoll_fd;                /* watches the sockets */
    enum cairn_protection protection;
    struct stream_parts done; /* parts that have ended */
};

struct stream {
    struct stream *next;  /* in a list of the owner's */
    struct stream *dirty; /* next one with something to send */
    struct stream_owner *owner;
    int fd;
    bool outbound;
    bool connecting;
    bool proved;
    bool known;   /* the caller's hello fits our keys or certificates */
    bool heard;   /* a frame has come since it was proved */
    bool held;    /* nothing is read for now */
    bool resumed; /* it was, and may have more to read than its socket shows */
    bool queued;  /* in the list of those with something to send */
    bool buried;  /* the owner is done with it */
    bool refused; /* one side does not take the other's key or certificate, or has none */
    bool refuses; /* and it is this one: `failed` says why */
    bool clear;   /* no TLS */
    const char *failed;
    uint32_t node; /* CAIRN_BACKEND_ALL: unknown */
    uint64_t deadline_ns;
    uint64_t again_ns, patience_ns;  /* connecting: when to call again, and how long it waited */
    uint32_t events;                 /* that epoll watches */
    int wake_bytes;                  /* that must be there before the socket wakes us */
    struct sockaddr_storage address; /* that an outbound stream calls */
    struct in6_addr source;          /* from which an inbound one comes, IPv4 mapped into IPv6 */
    uint64_t work_ns;                /* what it has cost before it is proved */
    struct cairn_tls_link *link;
    struct cairn_seal *seal_out, *seal_in; /* NULL: payloads are not protected */
    uint8_t *in;
    size_t in_bytes, in_len;
    struct stream_arrival arrival;
    struct stream_parts queue; /* not wholly in a batch yet */
    struct stream_parts ended; /* wholly in the batch */
    struct stream_out *out;    /* NULL until the peer is proved */
};

void stream_parts_init(struct stream_parts *parts);
void stream_parts_push(struct stream_parts *parts, struct stream_part *part);
struct stream_part *stream_parts_pop(struct stream_parts *parts);

/* Makes a stream over a socket, which is the stream's from here on (closed on failure, too). */
CAIRN_MUST_CHECK cairn_err stream_create(struct stream_owner *owner, int fd, bool outbound,
                                         uint32_t node, struct stream **out);
/* Its parts must have been taken. NULL is allowed. */
void stream_destroy(struct stream *stream);

/* An outbound socket is connected. */
void stream_connected(struct stream *stream);

/* Reads and handles what has come, a bounded amount; true: there may be more. */
bool stream_receive(struct stream *stream);

/* What still comes of the payload for a buffer's address goes to other memory. */
void stream_move(struct stream *stream, uint64_t address, const uint8_t *from, uint8_t *to);

/* Queues a part. */
void stream_send(struct stream *stream, struct stream_part *part);

/* Sends what is queued, as far as the socket takes it. True: something waits for the socket. */
bool stream_flush(struct stream *stream);

/* Closes the socket. All parts that have not ended fail. */
void stream_fail(struct stream *stream, const char *why);

#endif
