/*
 * agent/core/message.h - what agents say to each other: one flat struct, packed by base/wire.h.
 *
 * Every message is safe to lose, repeat, delay and reorder. Bulk blocks (DATA, BLOCKS, WRITE)
 * travel beside the message as a payload of block_count blocks; their CRC-64s, one per block, are
 * in `bytes`, and the receiver checks them before the core sees the message.
 */
#ifndef CAIRN_AGENT_CORE_MESSAGE_H
#define CAIRN_AGENT_CORE_MESSAGE_H

#include "cairn/err.h"
#include "cairn/types.h"

/*
 * The messages. `field:` says what a field means there.
 *
 *   HEARTBEAT       bytes: the liveness table; generation: the newest committed one;
 *                   offset: passed_step of the epoch
 *   DATA            captured blocks for a parity owner
 *   DATA_ACK        offset: blocks folded so far
 *   SEAL            bytes: part [offset, offset + bytes_len) of a seal of `total` bytes
 *   SEAL_ACK        offset: bytes received so far
 *   FACTS           bytes: the members that protected and those that never will; for each of the
 *                   former its ranks (u16) and its layout (u32); offset 1: given up
 *   CLAIM           promise me this epoch
 *   PROMISE         promised, and stored
 *   REFUSE          offset: the epoch that is promised already
 *   QUERY           what do you hold? Asked without a claim
 *   INVENTORY       bytes: what I hold
 *   REBUILD         bytes: who holds what, and who gets what
 *   READ            send me blocks of a holding
 *   BLOCKS          the answer to READ
 *   WRITE           rebuilt blocks for their new owner
 *   WRITE_ACK       the answer to WRITE
 *   REBUILT         a holding is whole; offset: bytes written
 *   REBUILD_FAILED  err: why
 *   ACTIVATE        bytes: the epoch's record
 *   ACTIVATE_ACK    the answer to ACTIVATE
 *   SYNC            my epoch is older than yours: send ACTIVATE
 *   SNAPSHOT_AT     take a generation at this step
 *   FETCH           send blocks or a manifest, for a trainer, a spill or an export
 *   FETCHED         the answer to FETCH
 *   SERVICE         bytes: what a service above the core says, in its own form
 *   TIMING          bytes: reports; request: their stream; offset: the number of this part
 *   TIMING_ACK      offset: parts received so far; UINT64_MAX: begin a new stream
 *   VERDICTS        bytes: the ledger of verdicts
 *   LAYOUT_ASK      request: digest of a member's layout; stripe: divisions; first_block: prefix;
 *                   offset: keys received; total: the combination that it belongs to
 *   LAYOUT          the same, but total: number of keys; bytes: 64 sums (u64) and the keys (u64)
 *                   from `offset` on, after all divisions pieces (snapshot/tiling_pieces.c)
 *   TILED           request: a combination of layouts; err: CAIRN_OK good, CAIRN_AGAIN tell me,
 *                   else bytes say what is wrong
 *   OPENED          a member's part is open now: send again what was turned away before
 */

/* X(symbol, value, name) */
#define CAIRN_MESSAGE_LIST(X)                                                                      \
    X(CAIRN_MSG_HEARTBEAT, 1, "heartbeat")                                                         \
    X(CAIRN_MSG_DATA, 2, "data")                                                                   \
    X(CAIRN_MSG_DATA_ACK, 3, "data_ack")                                                           \
    X(CAIRN_MSG_SEAL, 4, "seal")                                                                   \
    X(CAIRN_MSG_SEAL_ACK, 5, "seal_ack")                                                           \
    X(CAIRN_MSG_FACTS, 6, "facts")                                                                 \
    X(CAIRN_MSG_CLAIM, 7, "claim")                                                                 \
    X(CAIRN_MSG_PROMISE, 8, "promise")                                                             \
    X(CAIRN_MSG_REFUSE, 9, "refuse")                                                               \
    X(CAIRN_MSG_QUERY, 10, "query")                                                                \
    X(CAIRN_MSG_INVENTORY, 11, "inventory")                                                        \
    X(CAIRN_MSG_REBUILD, 12, "rebuild")                                                            \
    X(CAIRN_MSG_READ, 13, "read")                                                                  \
    X(CAIRN_MSG_BLOCKS, 14, "blocks")                                                              \
    X(CAIRN_MSG_WRITE, 15, "write")                                                                \
    X(CAIRN_MSG_WRITE_ACK, 16, "write_ack")                                                        \
    X(CAIRN_MSG_REBUILT, 17, "rebuilt")                                                            \
    X(CAIRN_MSG_REBUILD_FAILED, 18, "rebuild_failed")                                              \
    X(CAIRN_MSG_ACTIVATE, 19, "activate")                                                          \
    X(CAIRN_MSG_ACTIVATE_ACK, 20, "activate_ack")                                                  \
    X(CAIRN_MSG_SYNC, 21, "sync")                                                                  \
    X(CAIRN_MSG_SNAPSHOT_AT, 22, "snapshot_at")                                                    \
    X(CAIRN_MSG_FETCH, 23, "fetch")                                                                \
    X(CAIRN_MSG_FETCHED, 24, "fetched")                                                            \
    X(CAIRN_MSG_SERVICE, 25, "service")                                                            \
    X(CAIRN_MSG_TIMING, 26, "timing")                                                              \
    X(CAIRN_MSG_TIMING_ACK, 27, "timing_ack")                                                      \
    X(CAIRN_MSG_VERDICTS, 28, "verdicts")                                                          \
    X(CAIRN_MSG_LAYOUT_ASK, 29, "layout_ask")                                                      \
    X(CAIRN_MSG_LAYOUT, 30, "layout")                                                              \
    X(CAIRN_MSG_TILED, 31, "tiled")                                                                \
    X(CAIRN_MSG_OPENED, 32, "opened")

enum cairn_message_type {
#define CAIRN_MESSAGE_ENUM(symbol, value, name) symbol = value,
    CAIRN_MESSAGE_LIST(CAIRN_MESSAGE_ENUM)
#undef CAIRN_MESSAGE_ENUM
};

#define CAIRN_MESSAGE_TYPE_LAST CAIRN_MSG_OPENED

/*
 * Of the messages, with all that their bytes hold, told in every handshake: agents of different
 * versions refuse each other and say so. Raised with every change of what a message or a packed
 * value on the wire looks like. 2: an inventory says who trains. 3: votes name layouts, seals and
 * inventories the sums of their tiling; OPENED. 4: manifests and the sums know of replicas'
 * numbers. 5: verdicts say what became of the operator's command. 6: they say what they have cost,
 * and which exchanges were begun; heartbeats how far trainers that are gone may have begun.
 */
enum { CAIRN_MESSAGE_VERSION = 6 };

/* Beside CAIRN_AREA_DATA and CAIRN_AREA_PARITY of erasure/stripe.h: what a repair has decoded. */
enum { CAIRN_AREA_SCRATCH = 2 };

struct cairn_message {
    enum cairn_message_type type;
    uint32_t from; /* agent */
    uint32_t to;   /* agent */
    uint64_t epoch;
    struct cairn_generation generation;
    uint32_t member; /* whose part it is about */
    uint32_t area;   /* enum cairn_area, or CAIRN_AREA_SCRATCH */
    uint32_t stripe;
    uint32_t row;
    uint64_t first_block; /* in the shard; for parity the line in the chunk of `stripe` */
    uint32_t block_count;
    uint32_t err; /* cairn_err */
    uint64_t request;
    uint64_t offset;
    uint64_t total;
    const uint8_t *bytes; /* borrowed */
    uint32_t bytes_len;
};

enum {
    CAIRN_MESSAGE_FIXED_BYTES = 93,
    CAIRN_MESSAGE_PART_BYTES_MAX = 65536 /* of `bytes` */
};

const char *cairn_message_name(enum cairn_message_type type);

/* Packs into out[out_bytes]; *used is the length. CAIRN_FULL when it does not fit. */
CAIRN_MUST_CHECK cairn_err cairn_message_pack(const struct cairn_message *message, void *out,
                                              size_t out_bytes, size_t *used);

/* Unpacks; message->bytes borrows from `bytes`. CAIRN_CORRUPT for anything that is not a
 * message. */
CAIRN_MUST_CHECK cairn_err cairn_message_unpack(const void *bytes, size_t bytes_len,
                                                struct cairn_message *out);

#endif
