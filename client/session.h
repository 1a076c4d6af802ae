/*
 * client/session.h - the protocol between a trainer or an operator and the agent of its node.
 *
 * A sequence of frames goes both ways over one Unix stream socket: a header of 8 bytes, then the
 * payload, all little-endian:
 *
 *   u32 payload bytes   at most 256 MiB for REGISTER and RESTORE_INFO, 1 MiB for the others
 *   u16 type            enum cairn_session_type
 *   u8  version         of the framing: CAIRN_SESSION_FRAMING
 *   u8  descriptors     that travel with the frame (SCM_RIGHTS), attached to its first byte
 *
 * A payload is packed by base/wire.h, field after field in the order of the frame's struct below;
 * strings are u32 length and bytes, enums and bools are u32. The forms of HELLO and REFUSED never
 * change, so that two incompatible versions can tell each other.
 *
 * What follows what:
 * - HELLO → WELCOME, or REFUSED (request 0) and the agent closes.
 * - REGISTER → REGISTERED, or REFUSED with the same request. A REGISTER replaces the one before.
 * - BEGIN → GRANT or SKIP of that step. After GRANT: PIECE in order of blocks, then DONE; or CANCEL
 *   at any time, before GRANT too (a GRANT or SKIP that crosses a CANCEL is ignored).
 * - POISON instead of DONE, only if WELCOME allows it: the rank has captured its part, and it is
 *   worse than what the job holds. The agent keeps it like DONE, or answers with DROP.
 * - DROP makes the client stop copying. It answers with CANCEL unless DONE or CANCEL went before.
 *   Until DONE or CANCEL the agent must assume that the client writes to the slot; afterwards the
 *   client writes nothing there and sends nothing more of that step.
 * - BEGIN of the last step → COMMITTED too, once that step is committed.
 * - RESTORE → RESTORE_INFO. If that says CAIRN_OK: FETCH → FETCHED any number of times, several at
 *   once, then RESTORED. The agent holds the generation and the window until RESTORED or the end of
 *   the connection.
 * - TIMING at any time, once for each ring of timing records of the trainer's process. The agent
 *   may release it at any time. It answers REFUSED with request CAIRN_SESSION_RINGS_REQUEST if
 *   another process holds the rank; the trainer hands the rings over again later.
 * - MOVED, only if WELCOME allows it, after layers have moved, or failed to.
 * - SHARES, only if WELCOME allows it, when the trainer first asks for its share, and when the
 *   shares change → OFFER, once the agents have shares with a higher number.
 * - UNWATCHED, only if WELCOME allows POISON, after each REGISTER, and when it changes.
 * - STATS and COVERAGE at any time; each replaces the one before. OPERATOR → OPERATOR_REPLY once or
 *   more, the last with `final`.
 *
 * The end of the connection is the end of the trainer, or its detachment: it stops copying before
 * it closes. A trainer that forked leaves its socket in the child, so an agent also watches the pid
 * of HELLO to notice a death at once.
 *
 * The reader and the writer never block and hold no socket, so the agent's loop and the client's
 * service thread share the code. The form of everything that arrives is checked here: bounds, known
 * enums, counts, no trailing bytes. The receiver checks what it means.
 */
#ifndef CAIRN_CLIENT_SESSION_H
#define CAIRN_CLIENT_SESSION_H

#include "base/wire.h"
#include "cairn/client.h"
#include "snapshot/generation.h"

enum {
    CAIRN_SESSION_PROTOCOL = 5, /* in HELLO and WELCOME; 5: generations have a run, REGISTER a
                                 * launch, BEGIN tells the last step and COMMITTED
                                 * answers it */
    CAIRN_SESSION_FRAMING = 1,  /* in every header */
    CAIRN_SESSION_HEADER_BYTES = 8,
    CAIRN_SESSION_PAYLOAD_BYTES_MAX = 1 << 20,
    CAIRN_SESSION_BULK_BYTES_MAX = 256 << 20, /* payload of REGISTER and RESTORE_INFO */
    CAIRN_SESSION_FDS_MAX = 16,               /* in one frame: slots of a node, or one window */
    CAIRN_SESSION_TEXT_BYTES = 512,           /* of a reason, its NUL included */
    CAIRN_SESSION_JOB_BYTES = 128,            /* of a job's name, its NUL included */
    CAIRN_SESSION_PIECE_BLOCKS_MAX = 1024,    /* in one PIECE */
    CAIRN_SESSION_FETCH_ITEMS_MAX = 256,      /* in one FETCH */
    CAIRN_SESSION_RINGS_MAX = 8               /* of timing records, in one process */
};

enum cairn_session_type {
    /* client to agent */
    CAIRN_SESSION_HELLO = 1,
    CAIRN_SESSION_REGISTER = 2,
    CAIRN_SESSION_BEGIN = 3,
    CAIRN_SESSION_PIECE = 4,
    CAIRN_SESSION_DONE = 5,
    CAIRN_SESSION_CANCEL = 6,
    CAIRN_SESSION_RESTORE = 7,
    CAIRN_SESSION_FETCH = 8,
    CAIRN_SESSION_RESTORED = 9,
    CAIRN_SESSION_STATS = 10,
    CAIRN_SESSION_OPERATOR = 11,
    CAIRN_SESSION_COVERAGE = 12,
    CAIRN_SESSION_TIMING = 13,
    CAIRN_SESSION_LEAVE = 14,
    CAIRN_SESSION_SHARES = 15,
    CAIRN_SESSION_MOVED = 16,
    CAIRN_SESSION_POISON = 17,
    CAIRN_SESSION_UNWATCHED = 18,
    /* agent to client */
    CAIRN_SESSION_WELCOME = 64,
    CAIRN_SESSION_REFUSED = 65,
    CAIRN_SESSION_REGISTERED = 66,
    CAIRN_SESSION_GRANT = 67,
    CAIRN_SESSION_SKIP = 68,
    CAIRN_SESSION_DROP = 69,
    CAIRN_SESSION_EPOCH = 70,
    CAIRN_SESSION_RESTORE_INFO = 71,
    CAIRN_SESSION_FETCHED = 72,
    CAIRN_SESSION_OPERATOR_REPLY = 73,
    CAIRN_SESSION_COMMITTED = 74,
    CAIRN_SESSION_OFFER = 75
};

enum cairn_session_side { CAIRN_SESSION_CLIENT = 1, CAIRN_SESSION_AGENT = 2 };

enum cairn_session_role { CAIRN_ROLE_TRAINER = 1, CAIRN_ROLE_OPERATOR = 2 };

enum cairn_session_reason {
    CAIRN_REASON_NOT_DUE = 1, /* SKIP: the policy wants no generation of this step */
    CAIRN_REASON_BUSY = 2,    /* SKIP: the one before is still being protected, no slot is free */
    CAIRN_REASON_NOT_READY =
        3, /* SKIP, DROP: the group is not whole, a restore runs, nothing registered */
    CAIRN_REASON_FENCE = 4,   /* CANCEL: the fence came before the grant */
    CAIRN_REASON_TIMEOUT = 5, /* CANCEL, DROP: a fence or a peer took too long */
    CAIRN_REASON_DEVICE = 6,  /* CANCEL: a copy failed */
    CAIRN_REASON_CLOSING = 7, /* CANCEL: the trainer closes or registers again */
    CAIRN_REASON_OTHER = 8,
    CAIRN_REASON_POISONED = 9, /* DROP: answers POISON, the generation is not kept */
    CAIRN_REASON_STOP = 10     /* DROP: the same, and the trainer is asked to stop */
};

enum cairn_session_source { CAIRN_SOURCE_MEMORY = 1, CAIRN_SOURCE_FILES = 2 };

enum { CAIRN_CONTAINER_NONE = 0xffffffffu, CAIRN_SLOT_OF_REGION = 0x100 };

/* ---- frames: client to agent ---- */

struct cairn_session_hello {
    uint32_t protocol; /* CAIRN_SESSION_PROTOCOL */
    uint32_t role;     /* enum cairn_session_role */
    char job[CAIRN_SESSION_JOB_BYTES];
    uint32_t rank; /* rank, world and local_ranks are 0 for an operator */
    uint32_t world;
    uint32_t local_ranks;
    uint64_t pid;
    uint64_t epoch; /* that this client was last welcomed under or told of, 0 at first: tells a
                     * left-over of an older one, which is not told */
};

/* What the rank holds, in the order of capture. Addresses do not travel: they are NULL here. */
struct cairn_session_register {
    uint32_t request; /* > 0, comes back in the answer */
    uint32_t count;
    uint64_t launch;            /* the same for all ranks of one start of the job; 0: unknown */
    struct cairn_slice *slices; /* unpacked: owned, ended by cairn_session_register_fini */
    char *names;                /* storage of the unpacked slices' names */
};

struct cairn_session_begin {
    uint64_t step;
    bool last; /* no step follows: SKIP only if it can never be captured */
};

/* Blocks [first_block, first_block + count) of this rank's region are captured. */
struct cairn_session_piece {
    struct cairn_generation_id generation;
    uint64_t first_block;
    uint32_t count; /* 1 … CAIRN_SESSION_PIECE_BLOCKS_MAX */
    uint64_t crcs[CAIRN_SESSION_PIECE_BLOCKS_MAX];
};

struct cairn_session_done {
    struct cairn_generation_id generation;
};

/* Why a captured generation should not replace a good one. */
struct cairn_session_poison {
    struct cairn_generation_id generation;
    bool is_rejected;                    /* by the trainer, which says why */
    uint32_t tensors;                    /* of this rank that were finite and hold values that are
                                          * not; 0: it is rejected only */
    char name[CAIRN_NAME_BYTES_MAX];     /* of the first of them; plain */
    char reason[CAIRN_REASON_BYTES_MAX]; /* of the rejection; plain */
};

/* Parameters and optimizer state of the rank for which POISON is never sent: they were not finite
 * when they were first captured or restored. Replaces the one before. */
struct cairn_session_unwatched {
    uint32_t tensors;
    char name[CAIRN_NAME_BYTES_MAX]; /* of the first of them; plain */
};

struct cairn_session_cancel {
    uint64_t step;
    uint32_t reason; /* enum cairn_session_reason */
};

struct cairn_session_restore {
    uint32_t request;
};

/* Blocks of a container, wanted at window_offset of the window, one after the other. */
struct cairn_session_fetch_item {
    uint32_t container;
    uint32_t block_count;
    uint64_t first_block;
    uint64_t window_offset;
};

struct cairn_session_fetch {
    uint32_t request;
    uint32_t count; /* 1 … CAIRN_SESSION_FETCH_ITEMS_MAX */
    struct cairn_session_fetch_item items[CAIRN_SESSION_FETCH_ITEMS_MAX];
};

struct cairn_session_restored {
    struct cairn_generation_id generation;
    uint64_t bytes;
    cairn_err err;
};

/* Something that no snapshot of the rank holds. Both texts are plain (base/text.h). */
struct cairn_session_uncovered {
    uint32_t kind; /* enum cairn_kind */
    char name[CAIRN_NAME_BYTES_MAX];
    char reason[CAIRN_REASON_BYTES_MAX];
};

struct cairn_session_coverage {
    char refusal[CAIRN_REASON_BYTES_MAX]; /* plain; why no snapshots are taken, empty: they are */
    uint32_t left_out;                    /* things beyond those in items */
    uint32_t count;                       /* 0 … CAIRN_UNCOVERED_MAX */
    struct cairn_session_uncovered items[CAIRN_UNCOVERED_MAX];
};

/* Travels with one descriptor: a memfd, sealed at least against shrinking, with a ring of timing
 * records (cairn/timing.h). */
struct cairn_session_timing {
    uint32_t index; /* of the rings of this connection, from 0; below CAIRN_SESSION_RINGS_MAX */
};

/* Micro-batches of a step for each replica, and layers of each of its stages (cairn/client.h).
 * SHARES: those that this rank computes by; OFFER: those that the agents offer. */
struct cairn_session_shares {
    uint64_t number;
    uint32_t count;                     /* 1 … CAIRN_REPLICAS_MAX */
    uint32_t parts[CAIRN_REPLICAS_MAX]; /* 1 or more each; the rest is 0 */
    uint32_t stages; /* of each replica, at most CAIRN_STAGES_MAX together; 0: the layers stay, or
                      * the trainer cannot move them */
    uint32_t layers[CAIRN_STAGES_MAX]; /* [count][stages], 1 or more each; the rest is 0 */
};

/* How a move of layers ended at this rank. */
struct cairn_session_moved {
    uint64_t number;        /* of the placement that was entered */
    bool is_adopted;        /* by all ranks; false: by none */
    uint64_t standstill_ns; /* this rank did not train for so long */
};

/* LEAVE carries nothing: the trainer will end the connection, and goes on or ends as planned. A
 * process that ends without it has crashed. STATS carries a struct cairn_client_stats. OPERATOR
 * carries text: */

struct cairn_session_operator {
    const char *text; /* JSON; unpacked: borrowed from the frame, not ended by NUL */
    size_t text_bytes;
};

/* ---- frames: agent to client ---- */

enum {
    CAIRN_WELCOME_RESTORABLE = 1, /* a generation is held ready to be restored */
    CAIRN_WELCOME_COPIES = 4,     /* the agent says which kernel copies fastest */
    CAIRN_WELCOME_OFFERS = 8,     /* placements may be offered: SHARES is understood. (2 was the
                                   * same for shares that carried no stages) */
    CAIRN_WELCOME_MOVES = 16,     /* MOVED is understood */
    CAIRN_WELCOME_POISON = 32,    /* POISON is understood */
    CAIRN_WELCOME_COPY_SHIFT = 24 /* its number (snapshot/copy.h) is in the upper byte */
};

struct cairn_session_welcome {
    uint32_t protocol;
    uint64_t epoch;
    uint32_t node;
    uint32_t flags;
};

enum { CAIRN_SESSION_RINGS_REQUEST = 0x7fffffff };

struct cairn_session_refused {
    uint32_t request; /* 0: HELLO; CAIRN_SESSION_RINGS_REQUEST: TIMING; else that of a REGISTER */
    cairn_err err;    /* not CAIRN_OK */
    char text[CAIRN_SESSION_TEXT_BYTES];
};

/*
 * Travels with slot_count descriptors: the memory of each slot, a memfd sealed at least against
 * shrinking. The rank's region is at region_offset of each of them.
 */
struct cairn_session_registered {
    uint32_t request;
    uint64_t region_offset; /* multiples of CAIRN_BLOCK_BYTES */
    uint64_t region_bytes;
    uint32_t slot_count; /* 1 … CAIRN_SESSION_FDS_MAX */
};

struct cairn_session_grant {
    uint64_t step;
    struct cairn_generation_id generation; /* its step is `step` */
    uint32_t slot;
};

struct cairn_session_skip {
    uint64_t step;
    uint32_t reason; /* enum cairn_session_reason */
    char text[CAIRN_SESSION_TEXT_BYTES];
};

struct cairn_session_drop {
    struct cairn_generation_id generation;
    uint32_t reason;
};

struct cairn_session_epoch {
    uint64_t epoch;
};

struct cairn_session_committed {
    struct cairn_generation_id generation;
};

struct cairn_session_bytes {
    const uint8_t *bytes; /* unpacked: borrowed from the frame */
    size_t bytes_len;
};

/*
 * What can be restored. With err = CAIRN_OK it travels with one descriptor, the window: a memfd
 * of window_bytes, sealed at least against shrinking. Otherwise all but err, text and request is
 * zero.
 */
struct cairn_session_restore_info {
    uint32_t request;
    cairn_err err; /* CAIRN_NOT_FOUND: nothing to restore */
    char text[CAIRN_SESSION_TEXT_BYTES];
    struct cairn_generation_id generation;
    uint32_t source; /* enum cairn_session_source */
    uint64_t window_bytes;
    uint32_t own_container; /* that lies in this node's memory from byte 0 of own_slot: of an agent
                               that gives whole slots to trainers; or CAIRN_CONTAINER_NONE */
    uint32_t own_slot;      /* index into the descriptors of REGISTERED; with CAIRN_CONTAINER_NONE
                               CAIRN_SLOT_OF_REGION more: there this rank's own region lies, and
                               nothing else; or 0 */
    uint32_t count;
    struct cairn_session_bytes
        *manifests; /* packed (snapshot/manifest.h), one per container; the array is
                       owned when unpacked: cairn_session_restore_info_fini */
};

struct cairn_session_fetched {
    uint32_t request;
    cairn_err err; /* CAIRN_OK: all items of the request are in the window */
    char text[CAIRN_SESSION_TEXT_BYTES];
};

struct cairn_session_operator_reply {
    int32_t exit_code;
    uint32_t final;   /* 1: the last one */
    const char *text; /* unpacked: borrowed from the frame, not ended by NUL */
    size_t text_bytes;
};

/* ---- reader: bytes and descriptors in, frames out ---- */

struct cairn_session_frame {
    enum cairn_session_type type;
    const uint8_t *payload; /* borrowed from the reader until its next call */
    size_t payload_bytes;
    uint32_t fd_count;
    int fds[CAIRN_SESSION_FDS_MAX]; /* owned; one that is taken over is set to -1 */
};

struct cairn_session_reader {
    enum cairn_session_side from; /* frames of the other direction are refused */
    uint8_t *bytes;
    size_t begin, used,
        room; /* bytes[begin, used) are not consumed yet, room is the size of bytes */
    int fds[2 * CAIRN_SESSION_FDS_MAX]; /* received, not yet claimed by a frame */
    uint32_t fd_count;
    cairn_err failed; /* sticky */
    int os_error;     /* errno behind the last CAIRN_PEER, 0 when the other side closed */
};

/* Makes an empty reader for frames sent by `from`. Allocates nothing. */
void cairn_session_reader_init(struct cairn_session_reader *reader, enum cairn_session_side from);
/* Frees, closes descriptors that no frame claimed. All zero is allowed. */
void cairn_session_reader_fini(struct cairn_session_reader *reader);

/*
 * Receives once from a non-blocking socket. CAIRN_OK: got something, ask for frames; CAIRN_AGAIN:
 * nothing there; CAIRN_PEER: the other side is gone (earlier frames can still be taken);
 * CAIRN_CORRUPT: too many descriptors; CAIRN_NOMEM: no memory, or this process may have no more
 * descriptors; the stream has then lost some and stays failed. Memory grows with what arrives,
 * never with what a header promises.
 */
CAIRN_MUST_CHECK cairn_err cairn_session_reader_receive(struct cairn_session_reader *reader,
                                                        int socket);

/* The same from memory; takes over fds[fd_count] in every case. CAIRN_CORRUPT, CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_session_reader_feed(struct cairn_session_reader *reader,
                                                     const void *bytes, size_t bytes_len,
                                                     const int *fds, uint32_t fd_count);

/*
 * Takes the next whole frame. CAIRN_AGAIN: none is complete; CAIRN_CORRUPT or CAIRN_VERSION: the
 * stream is not ours, and stays so. The caller ends *out with cairn_session_frame_fini.
 */
CAIRN_MUST_CHECK cairn_err cairn_session_reader_next(struct cairn_session_reader *reader,
                                                     struct cairn_session_frame *out);
/* Closes the frame's descriptors that are not -1. */
void cairn_session_frame_fini(struct cairn_session_frame *frame);

/* ---- writer: a bounded queue of frames ---- */

struct cairn_session_writer {
    uint8_t *bytes;
    size_t begin, used, room; /* as in the reader */
    size_t limit_bytes;
    uint64_t sent_bytes; /* of the whole stream */
    struct {
        uint64_t at; /* the stream's byte that they travel with */
        uint32_t count;
        int fds[CAIRN_SESSION_FDS_MAX]; /* our own duplicates */
    } pending[4];                       /* frames with descriptors that are queued, in order */
    uint32_t pending_count;
    int os_error; /* errno behind the last CAIRN_PEER, or behind a descriptor that could not be
                     duplicated */
};

/*
 * Makes an empty writer that takes no frame while limit_bytes or more are queued: it holds at most
 * that and one frame more. Allocates nothing before the first frame.
 */
void cairn_session_writer_init(struct cairn_session_writer *writer, size_t limit_bytes);
/* Frees what is queued. All zero is allowed. */
void cairn_session_writer_fini(struct cairn_session_writer *writer);
/* Bytes queued and not sent. */
size_t cairn_session_writer_queued(const struct cairn_session_writer *writer);

/*
 * Sends what the socket (non-blocking) takes. CAIRN_OK: the queue is empty; CAIRN_AGAIN: the socket
 * is full, wait until it is writable; CAIRN_PEER: the other side is gone. Never raises SIGPIPE.
 */
CAIRN_MUST_CHECK cairn_err cairn_session_writer_send(struct cairn_session_writer *writer,
                                                     int socket);

/*
 * Queue one frame. CAIRN_AGAIN: the queue is full, nothing was queued; CAIRN_FULL: the frame is
 * larger than its type may be; CAIRN_NOMEM; CAIRN_INVAL: a field is out of its range. Arguments are
 * borrowed for the call; descriptors are duplicated. cairn_session_put_frame queues any payload;
 * cairn_session_put_space queues a frame whose payload the caller writes to *payload (payload_bytes
 * long) before the next call on the writer.
 */
#define CAIRN_SESSION_PUT(name, type)                                                              \
    CAIRN_MUST_CHECK cairn_err cairn_session_put_##name(struct cairn_session_writer *writer,       \
                                                        const type *value)
CAIRN_MUST_CHECK cairn_err cairn_session_put_frame(struct cairn_session_writer *writer,
                                                   enum cairn_session_type type,
                                                   const void *payload, size_t payload_bytes,
                                                   const int *fds, uint32_t fd_count);
CAIRN_MUST_CHECK cairn_err cairn_session_put_space(struct cairn_session_writer *writer,
                                                   enum cairn_session_type type,
                                                   size_t payload_bytes, const int *fds,
                                                   uint32_t fd_count, uint8_t **payload);
CAIRN_SESSION_PUT(hello, struct cairn_session_hello);
CAIRN_SESSION_PUT(register, struct cairn_session_register);
CAIRN_SESSION_PUT(begin, struct cairn_session_begin);
CAIRN_SESSION_PUT(piece, struct cairn_session_piece);
CAIRN_SESSION_PUT(done, struct cairn_session_done);
CAIRN_SESSION_PUT(cancel, struct cairn_session_cancel);
CAIRN_SESSION_PUT(poison, struct cairn_session_poison);
CAIRN_SESSION_PUT(unwatched, struct cairn_session_unwatched);
CAIRN_SESSION_PUT(restore, struct cairn_session_restore);
CAIRN_SESSION_PUT(fetch, struct cairn_session_fetch);
CAIRN_SESSION_PUT(restored, struct cairn_session_restored);
CAIRN_SESSION_PUT(stats, struct cairn_client_stats);
CAIRN_SESSION_PUT(coverage, struct cairn_session_coverage);
CAIRN_SESSION_PUT(operator, struct cairn_session_operator);
CAIRN_SESSION_PUT(shares, struct cairn_session_shares);
CAIRN_SESSION_PUT(moved, struct cairn_session_moved);
CAIRN_SESSION_PUT(offer, struct cairn_session_shares);
CAIRN_SESSION_PUT(welcome, struct cairn_session_welcome);
CAIRN_SESSION_PUT(refused, struct cairn_session_refused);
CAIRN_SESSION_PUT(grant, struct cairn_session_grant);
CAIRN_SESSION_PUT(skip, struct cairn_session_skip);
CAIRN_SESSION_PUT(drop, struct cairn_session_drop);
CAIRN_SESSION_PUT(epoch, struct cairn_session_epoch);
CAIRN_SESSION_PUT(committed, struct cairn_session_committed);
CAIRN_SESSION_PUT(fetched, struct cairn_session_fetched);
CAIRN_SESSION_PUT(operator_reply, struct cairn_session_operator_reply);
CAIRN_MUST_CHECK cairn_err cairn_session_put_timing(struct cairn_session_writer *writer,
                                                    const struct cairn_session_timing *value,
                                                    int ring_fd);
CAIRN_MUST_CHECK cairn_err cairn_session_put_leave(struct cairn_session_writer *writer);
/* slot_fds[value->slot_count] */
CAIRN_MUST_CHECK cairn_err
cairn_session_put_registered(struct cairn_session_writer *writer,
                             const struct cairn_session_registered *value, const int *slot_fds);
/* window_fd is -1 where value->err is not CAIRN_OK */
CAIRN_MUST_CHECK cairn_err
cairn_session_put_restore_info(struct cairn_session_writer *writer,
                               const struct cairn_session_restore_info *value, int window_fd);

/*
 * Unpack the payload of a frame of that type. CAIRN_CORRUPT if its form is wrong (*out untouched),
 * CAIRN_NOMEM. Also checks the number of descriptors; they stay in the frame.
 */
#define CAIRN_SESSION_TAKE(name, type)                                                             \
    CAIRN_MUST_CHECK cairn_err cairn_session_take_##name(const struct cairn_session_frame *frame,  \
                                                         type *out)
CAIRN_SESSION_TAKE(hello, struct cairn_session_hello);
CAIRN_SESSION_TAKE(register, struct cairn_session_register);
CAIRN_SESSION_TAKE(begin, struct cairn_session_begin);
CAIRN_SESSION_TAKE(piece, struct cairn_session_piece);
CAIRN_SESSION_TAKE(done, struct cairn_session_done);
CAIRN_SESSION_TAKE(cancel, struct cairn_session_cancel);
CAIRN_SESSION_TAKE(poison, struct cairn_session_poison);
CAIRN_SESSION_TAKE(unwatched, struct cairn_session_unwatched);
CAIRN_SESSION_TAKE(restore, struct cairn_session_restore);
CAIRN_SESSION_TAKE(fetch, struct cairn_session_fetch);
CAIRN_SESSION_TAKE(restored, struct cairn_session_restored);
CAIRN_SESSION_TAKE(stats, struct cairn_client_stats);
CAIRN_SESSION_TAKE(coverage, struct cairn_session_coverage);
CAIRN_SESSION_TAKE(operator, struct cairn_session_operator);
CAIRN_SESSION_TAKE(shares, struct cairn_session_shares);
CAIRN_SESSION_TAKE(moved, struct cairn_session_moved);
CAIRN_SESSION_TAKE(offer, struct cairn_session_shares);
CAIRN_SESSION_TAKE(timing, struct cairn_session_timing);
CAIRN_MUST_CHECK cairn_err cairn_session_take_leave(const struct cairn_session_frame *frame);
CAIRN_SESSION_TAKE(welcome, struct cairn_session_welcome);
CAIRN_SESSION_TAKE(refused, struct cairn_session_refused);
CAIRN_SESSION_TAKE(registered, struct cairn_session_registered);
CAIRN_SESSION_TAKE(grant, struct cairn_session_grant);
CAIRN_SESSION_TAKE(skip, struct cairn_session_skip);
CAIRN_SESSION_TAKE(drop, struct cairn_session_drop);
CAIRN_SESSION_TAKE(epoch, struct cairn_session_epoch);
CAIRN_SESSION_TAKE(committed, struct cairn_session_committed);
CAIRN_SESSION_TAKE(restore_info, struct cairn_session_restore_info);
CAIRN_SESSION_TAKE(fetched, struct cairn_session_fetched);
CAIRN_SESSION_TAKE(operator_reply, struct cairn_session_operator_reply);
#undef CAIRN_SESSION_PUT
#undef CAIRN_SESSION_TAKE

/* Free what take allocated and zero it; all zero is allowed. */
void cairn_session_register_fini(struct cairn_session_register *value);
void cairn_session_restore_info_fini(struct cairn_session_restore_info *value);

/* The same for other code that keeps shares or passes them on. */
void cairn_session_shares_pack(const struct cairn_session_shares *shares,
                               struct cairn_writer *writer);
void cairn_session_shares_unpack(struct cairn_reader *reader, struct cairn_session_shares *out);

/*
 * Checks who serves the socket that `fd` is connected to: our own user or root, whose agents may
 * serve all users. CAIRN_DENIED: another user; do not trust it with anything.
 */
CAIRN_MUST_CHECK cairn_err cairn_session_server_check(int fd);

/*
 * A descriptor's size if it is a memfd that cannot shrink under a mapping; CAIRN_DENIED if it is
 * not sealed so, CAIRN_INVAL if it is smaller than bytes_min.
 */
CAIRN_MUST_CHECK cairn_err cairn_session_fd_check(int fd, uint64_t bytes_min, uint64_t *bytes);

#endif
