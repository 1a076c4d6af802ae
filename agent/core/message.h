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

/* X(symbol, value, name) */
#define CAIRN_MESSAGE_LIST(X)                                                                                                            \
    X(CAIRN_MSG_HEARTBEAT, 1,                                                                                                            \
      "heartbeat") /* bytes: the liveness table; generation: newest committed; offset: passed_step of the epoch */                       \
    X(CAIRN_MSG_DATA, 2, "data")         /* captured blocks for a parity owner */                                                        \
    X(CAIRN_MSG_DATA_ACK, 3, "data_ack") /* offset: blocks folded so far */                                                              \
    X(CAIRN_MSG_SEAL, 4,                                                                                                                 \
      "seal") /* part [offset, offset + bytes_len) of a seal of `total` bytes */                                                         \
    X(CAIRN_MSG_SEAL_ACK, 5, "seal_ack") /* offset: bytes received so far */                                                             \
    X(CAIRN_MSG_FACTS, 6,                                                                                                                \
      "facts") /* bytes: members that protected, that never will, and of each of the former u16 ranks, u32 layout; offset 1: given up */ \
    X(CAIRN_MSG_CLAIM, 7, "claim")          /* promise me this epoch */                                                                  \
    X(CAIRN_MSG_PROMISE, 8, "promise")      /* promised, durably */                                                                      \
    X(CAIRN_MSG_REFUSE, 9, "refuse")        /* offset: the epoch promised already */                                                     \
    X(CAIRN_MSG_QUERY, 10, "query")         /* what do you hold? (asked without a claim) */                                              \
    X(CAIRN_MSG_INVENTORY, 11, "inventory") /* bytes: what I hold */                                                                     \
    X(CAIRN_MSG_REBUILD, 12, "rebuild")     /* bytes: who holds what, who is to get what */                                              \
    X(CAIRN_MSG_READ, 13, "read")           /* blocks of a holding, please */                                                            \
    X(CAIRN_MSG_BLOCKS, 14, "blocks")       /* the answer to READ */                                                                     \
    X(CAIRN_MSG_WRITE, 15, "write")         /* rebuilt blocks for their new owner */                                                     \
    X(CAIRN_MSG_WRITE_ACK, 16, "write_ack")                                                                                              \
    X(CAIRN_MSG_REBUILT, 17, "rebuilt") /* a holding is whole; offset: bytes written */                                                  \
    X(CAIRN_MSG_REBUILD_FAILED, 18, "rebuild_failed") /* err says why */                                                                 \
    X(CAIRN_MSG_ACTIVATE, 19, "activate")             /* bytes: the epoch record */                                                      \
    X(CAIRN_MSG_ACTIVATE_ACK, 20, "activate_ack")                                                                                        \
    X(CAIRN_MSG_SYNC, 21, "sync")               /* my epoch is older than yours: send ACTIVATE */                                        \
    X(CAIRN_MSG_SNAPSHOT_AT, 22, "snapshot_at") /* take a generation at this step */                                                     \
    X(CAIRN_MSG_FETCH, 23, "fetch")             /* blocks for a trainer, a spill or an export */                                         \
    X(CAIRN_MSG_FETCHED, 24, "fetched")         /* the answer to FETCH */                                                                \
    X(CAIRN_MSG_SERVICE, 25, "service")         /* agent services above the core: bytes is JSON */                                       \
    X(CAIRN_MSG_TIMING, 26,                                                                                                              \
      "timing") /* request: a stream, offset: the number of this part; bytes: reports */                                                 \
    X(CAIRN_MSG_TIMING_ACK, 27,                                                                                                          \
      "timing_ack") /* offset: parts received so far; UINT64_MAX: begin a new stream */                                                  \
    X(CAIRN_MSG_VERDICTS, 28, "verdicts") /* bytes: the ledger of verdicts */                                                            \
    X(CAIRN_MSG_LAYOUT_ASK, 29,                                                                                                          \
      "layout_ask") /* request: digest of member's layout, stripe: divisions, first_block: prefix, offset: \
                                                    keys received, total: the combination that it is part of */                             \
    X(CAIRN_MSG_LAYOUT, 30,                                                                                                              \
      "layout") /* the same, but total: keys there are; bytes: 64 sums (u64) and keys (u64) from \
                                                    offset on; after all divisions pieces (snapshot/tiling_pieces.c) */                                       \
    X(CAIRN_MSG_TILED, 31,                                                                                                               \
      "tiled") /* request: a combination of layouts; err: 0 good, AGAIN tell me, else bytes: what is wrong */                            \
    X(CAIRN_MSG_OPENED, 32, "opened") /* member's part is open now: what came before was
                                                  * turned away, send it again */

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
