/*
 * agent/core/env/message.h - what agents send each other: one struct per message, packed by
 * base/wire.h.
 *
 * A message belongs to one session between two agents. Within a session messages arrive once and in
 * order, or the session ends and both sides learn it; but a message with blocks, or a long one, may
 * be overtaken by a short one (transport/transport.h). So no handler relies on the order between
 * bulk and control.
 *
 * Each list below is one message: its fields, in wire order. It defines the struct, its packing,
 * its unpacking, and by the fields' types the bounds that a received one is held to. Every message
 * also has `bytes`; the list's comment says what they are. DATA, BLOCKS and WRITE carry blocks
 * beside the message; their CRC-64s, one per block, are the `bytes`, and the receiver checks them
 * before the core sees the message.
 */
#ifndef CAIRN_AGENT_CORE_ENV_MESSAGE_H
#define CAIRN_AGENT_CORE_ENV_MESSAGE_H

#include "base/limits.h"
#include "cairn/err.h"
#include "snapshot/generation.h"
#include "snapshot/tiling_audit.h"

/*
 * A leader's decision: what is committed, and what to capture next. Decisions of one epoch are
 * ordered by `serial`; a later one replaces an earlier one whole, so losing one costs nothing.
 */
struct cairn_decision {
    uint64_t serial; /* 0: none yet */
    uint64_t run;    /* 0: no run is assembled, so nothing may be captured */
    uint64_t next;   /* capture the first step begun at or after this one; 0: none is due */
    struct cairn_generation_id committed; /* the epoch's newest; step 0: none */
};

/* POSITION: both sides, when a session begins. The header's epoch is the active one. */
#define CAIRN_FIELDS_POSITION(F) F(U64, promised)

/* HEARTBEAT: to log2(n) agents. bytes: rumors about others (peers.c). */
#define CAIRN_FIELDS_HEARTBEAT(F) F(U64, incarnation) F(U64, counter)

/* REPORT: an agent's trainers and all else that the leader must know about that agent, each time
 * that it changes (reports_differ). So the newest report says everything. ranks 0: there are no
 * trainers. */
#define CAIRN_FIELDS_REPORT(F)                                                                     \
    F(AGENT, agent) /* whose trainers; the head of its block passes the report on */               \
    F(U32, ranks)                                                                                  \
    F(U32, world)       /* ranks of the whole job; 0: unknown */                                   \
    F(U64, launch)      /* of the job; 0: unknown */                                               \
    F(U64, tiling_sum)  /* see snapshot/tiling.h */                                                \
    F(U64, begun)       /* newest step begun */                                                    \
    F(U64, begun_below) /* the same of all that are below in the tree, as far as is known */       \
    F(U64, incarnation)                                                                            \
    F(U64, registration)     /* counts RANKS events; 0: nothing is known of the agent */           \
    F(GENERATION, captured)  /* newest own part of the epoch that is captured in full */           \
    F(GENERATION, committed) /* newest of the epoch that the agent knows of */                     \
    F(GENERATION, complete0) /* of the epoch, newest first: there and on all below (R2) */         \
    F(GENERATION, complete1)                                                                       \
    F(GENERATION, complete2)                                                                       \
    F(GENERATION, complete3)                                                                       \
    F(GENERATION,                                                                                  \
      aborted)       /* newest that the agent gave up since the decision it knows; or the   \
                             * step that was due, if it has not opened it; step 0: none */      \
    F(ABORT, reason) /* for that */                                                                \
    F(U64, asked)    /* wants a generation of this step or a later one; 0: none */                 \
    F(GENERATION, stalled) /* its part makes no progress; step 0: none */                          \
    F(WAIT, cause)         /* what that part waits for */                                          \
    F(AGENT_OR_NONE, for_agent)                                                                    \
    F(U64, for_ms)

/* AUDIT: the leader asks (answer 0) what tensors a member holds. A member that still has these
 * trainers answers (answer 1); its bytes are sums by division, keys, or pieces
 * (snapshot/tiling.h). */
#define CAIRN_FIELDS_AUDIT(F)                                                                      \
    F(BOOL, answer)                                                                                \
    F(AGENT, agent)  /* who answers */                                                             \
    F(U64, run)      /* that these trainers may write if the audit ends well */                    \
    F(U32, question) /* of this audit */                                                           \
    F(U64, incarnation)                                                                            \
    F(U64, registration) /* of these trainers, as in REPORT */                                     \
    F(AUDIT, asks)                                                                                 \
    F(U64, prefix) /* PIECES: of the tensors' keys */                                              \
    F(BOOL, cut)   /* ORIGINS: there are more */

/* DECISION: from the leader down the tree. bytes: why there is no run, for people. */
#define CAIRN_FIELDS_DECISION(F) F(DECISION, decision)

/* DATA: row 0: captured blocks for the encoder of their stripe; other rows: finished parity from
 * the encoder for the row's owner. bytes: checksums. */
#define CAIRN_FIELDS_DATA(F)                                                                       \
    F(DECISION, decision) /* the newest that the sender knows */                                   \
    F(GENERATION, generation)                                                                      \
    F(U32, member) /* whose blocks; of finished parity the encoder */                              \
    F(U32, stripe)                                                                                 \
    F(U32, row)                                                                                    \
    F(U64, line) /* in the chunk */                                                                \
    F(COUNT, count)

/* SEAL: part [offset, offset + bytes) of a member's seal. */
#define CAIRN_FIELDS_SEAL(F)                                                                       \
    F(DECISION, decision)                                                                          \
    F(GENERATION, generation)                                                                      \
    F(U32, member)     /* whose seal */                                                            \
    F(U32, for_member) /* whose part it is for */                                                  \
    F(U64, attempt)    /* of a repair; 0: a save */                                                \
    F(U64, offset)                                                                                 \
    F(U64, total)

/* RECEIVED: how far DATA or SEAL has arrived. */
#define CAIRN_FIELDS_RECEIVED(F)                                                                   \
    F(GENERATION, generation)                                                                      \
    F(U32, member)     /* whose blocks or seal */                                                  \
    F(U32, for_member) /* at whose part */                                                         \
    F(U32, stripe)                                                                                 \
    F(U32, row) /* CAIRN_ROW_SEAL: the seal */                                                     \
    F(U64, attempt)                                                                                \
    F(U64, count)  /* blocks taken, or bytes of the seal */                                        \
    F(U64, until)  /* the sender may send up to this block, or byte */                             \
    F(BOOL, again) /* 1: send again from `count` on; something was damaged or is missing */

/* ASK: a coordinator wants an inventory. Always short, so no RELEASE overtakes it. */
#define CAIRN_FIELDS_ASK(F)                                                                        \
    F(U64, attempt) /* names the coordinator's try; ends with its session */                       \
    F(ASK, mode)    /* enum cairn_ask */                                                           \
    F(GENERATION, generation)                                                                      \
    F(U64, lost) /* VERIFY: positions of the part's group that nobody holds, as a set */

/* INVENTORY: the answer. bytes: inventory.c. */
#define CAIRN_FIELDS_INVENTORY(F) F(U64, attempt)

/* REBUILD: bytes: who holds what, and who gets what (plan.c). */
#define CAIRN_FIELDS_REBUILD(F)                                                                    \
    F(U64, attempt) /* of the VERIFY before it */                                                  \
    F(GENERATION, generation)

/* REBUILT: a target's progress, or why an agent cannot take part. */
#define CAIRN_FIELDS_REBUILT(F)                                                                    \
    F(U64, attempt)                                                                                \
    F(U32, member)                                                                                 \
    F(BOOL, finished)                                                                              \
    F(BOOL, proved) /* err LOST is proved from the checksums: trying again cannot help */          \
    F(ERR, err)                                                                                    \
    F(U64, blocks) /* written so far */

/* READ: send me blocks of a complete part. Its member and the stripe say in which area they lie. */
#define CAIRN_FIELDS_READ(F)                                                                       \
    F(U64, request)                                                                                \
    F(GENERATION, generation)                                                                      \
    F(U32, member)                                                                                 \
    F(U32, stripe)                                                                                 \
    F(U64, line) /* the first, in the chunk */                                                     \
    F(COUNT, count)

/* BLOCKS: the answer to READ. count 0: err says why. bytes: checksums. */
#define CAIRN_FIELDS_BLOCKS(F)                                                                     \
    CAIRN_FIELDS_READ(F)                                                                           \
    F(ERR, err)

/* WRITE: rebuilt blocks for their new owner. bytes: checksums. */
#define CAIRN_FIELDS_WRITE(F)                                                                      \
    CAIRN_FIELDS_READ(F)                                                                           \
    F(U64, attempt)

/* WRITTEN: the answer to WRITE. request 0: from now on the target takes what it is sent. */
#define CAIRN_FIELDS_WRITTEN(F)                                                                    \
    F(U64, request)                                                                                \
    F(U32, member)                                                                                 \
    F(BOOL, again) /* 1: send it again; with request 0 all that is not answered */

/* CLAIM: promise me the header's epoch. bytes: its finished record (record.c). */
#define CAIRN_FIELDS_CLAIM(F) F(U64, attempt)

/* PROMISE: err OK: promised and stored; else why not. */
#define CAIRN_FIELDS_PROMISE(F)                                                                    \
    F(U64, attempt)                                                                                \
    F(ERR, err)                                                                                    \
    F(U64, promised)

/* ACTIVATE: bytes: the record of the header's epoch. Also to an agent that is behind. */
#define CAIRN_FIELDS_ACTIVATE(F) F(U64, promised)

/* X(symbol, value, name, lower-case member) */
#define CAIRN_MESSAGE_LIST(X)                                                                      \
    X(POSITION, 1, position)                                                                       \
    X(HEARTBEAT, 2, heartbeat)                                                                     \
    X(REPORT, 3, report)                                                                           \
    X(AUDIT, 4, audit)                                                                             \
    X(DECISION, 5, decision)                                                                       \
    X(DATA, 6, data)                                                                               \
    X(SEAL, 7, seal)                                                                               \
    X(RECEIVED, 8, received)                                                                       \
    X(ASK, 9, ask)                                                                                 \
    X(INVENTORY, 10, inventory)                                                                    \
    X(REBUILD, 11, rebuild)                                                                        \
    X(REBUILT, 12, rebuilt)                                                                        \
    X(READ, 13, read)                                                                              \
    X(BLOCKS, 14, blocks)                                                                          \
    X(WRITE, 15, write)                                                                            \
    X(WRITTEN, 16, written)                                                                        \
    X(CLAIM, 17, claim)                                                                            \
    X(PROMISE, 18, promise)                                                                        \
    X(ACTIVATE, 19, activate)

enum cairn_message_kind {
#define CAIRN_KIND(symbol, value, member) CAIRN_MSG_##symbol = value,
    CAIRN_MESSAGE_LIST(CAIRN_KIND)
#undef CAIRN_KIND
};

#define CAIRN_MESSAGE_KIND_LAST CAIRN_MSG_ACTIVATE

enum { CAIRN_ROW_SEAL = 0xffffffffu };

/* Why a member aborts; 0: it does not. */
enum cairn_abort {
    CAIRN_ABORT_PASSED = 1, /* its trainers were past the step */
    CAIRN_ABORT_CANCELLED,  /* a trainer gave its copy up */
    CAIRN_ABORT_NO_SLOT,    /* a spill still reads the slot */
    CAIRN_ABORT_TOO_LARGE,  /* the group has too little memory for its parity */
    CAIRN_ABORT_DAMAGED,    /* blocks arrive damaged, or the parity differs from a seal */
    CAIRN_ABORT_MISMATCH,   /* its trainers begin other steps than those of its group */
    CAIRN_ABORT_MEMORY,     /* the agent has no memory to describe the part */
    CAIRN_ABORT_FORGOTTEN   /* a member of its group began again and lacks finished parity */
};

/* What a member waits for; 0: nothing. */
enum cairn_wait {
    CAIRN_WAIT_TRAINERS = 1, /* own ranks have not begun, or not copied */
    CAIRN_WAIT_BLOCKS,       /* for_agent's blocks or seal */
    CAIRN_WAIT_PARITY,       /* for_agent's acknowledgement of own blocks or seal */
    CAIRN_WAIT_HERE,         /* checksums or the record on this agent */
    CAIRN_WAIT_SILENT        /* for_agent says nothing: no session, or no answer */
};

enum cairn_ask {
    CAIRN_ASK_LIST = 0, /* what do you hold? */
    CAIRN_ASK_VERIFY,   /* pin this generation, and compare its parts with their checksums, but not
                           * what rebuilding `lost` reads: it is compared then */
    CAIRN_ASK_VERIFY_ALL, /* the same for all parts; nothing is pinned */
    CAIRN_ASK_RELEASE     /* unpin; no answer */
};

/* Types of fields: name, C type, what packs it, and what a value must be. */
#define CAIRN_FIELD_TYPES(T)                                                                       \
    T(BOOL, uint8_t, cairn_codec_u8, value <= 1)                                                   \
    T(U32, uint32_t, cairn_codec_u32, true)                                                        \
    T(U64, uint64_t, cairn_codec_u64, true)                                                        \
    T(AGENT, uint32_t, cairn_codec_u32, value < CAIRN_NODES_MAX)                                   \
    T(AGENT_OR_NONE, uint32_t, cairn_codec_u32, value < CAIRN_NODES_MAX || value == UINT32_MAX)    \
    T(ERR, uint32_t, cairn_codec_u32, value <= CAIRN_INTERNAL)                                     \
    T(ABORT, uint32_t, cairn_codec_u32, value <= CAIRN_ABORT_FORGOTTEN)                            \
    T(WAIT, uint32_t, cairn_codec_u32, value <= CAIRN_WAIT_SILENT)                                 \
    T(ASK, uint32_t, cairn_codec_u32, value <= CAIRN_ASK_RELEASE)                                  \
    T(AUDIT, uint32_t, cairn_codec_u32, value <= CAIRN_TILING_PIECES)                              \
    T(COUNT, uint32_t, cairn_codec_u32, value <= CAIRN_MESSAGE_BLOCKS_MAX) /* blocks */            \
    T(GENERATION, struct cairn_generation_id, cairn_generation_code, true)                         \
    T(DECISION, struct cairn_decision, code_decision, true)

#define CAIRN_FIELD_TYPE(name, type, form, bound) typedef type cairn_field_##name;
CAIRN_FIELD_TYPES(CAIRN_FIELD_TYPE)
#undef CAIRN_FIELD_TYPE
#define CAIRN_FIELD(type, name) cairn_field_##type name;
#define CAIRN_MESSAGE_STRUCT(symbol, value, member)                                                \
    struct cairn_message_##member {                                                                \
        CAIRN_FIELDS_##symbol(CAIRN_FIELD)                                                         \
    };
CAIRN_MESSAGE_LIST(CAIRN_MESSAGE_STRUCT)
#undef CAIRN_MESSAGE_STRUCT

struct cairn_message {
    enum cairn_message_kind kind;
    uint32_t from; /* agent; the session's other side */
    uint32_t to;   /* agent */
    uint64_t epoch;
    union {
#define CAIRN_MESSAGE_MEMBER(symbol, value, member) struct cairn_message_##member member;
        CAIRN_MESSAGE_LIST(CAIRN_MESSAGE_MEMBER)
#undef CAIRN_MESSAGE_MEMBER
    } as;
    const uint8_t *bytes; /* borrowed */
    uint32_t bytes_len;
};

enum {
    CAIRN_MESSAGE_HEAD_BYTES_MAX = 320,  /* of a packed message without its `bytes` */
    CAIRN_MESSAGE_PART_BYTES_MAX = 65536 /* of `bytes`, where a message is one of several parts */
};

const char *cairn_message_name(enum cairn_message_kind kind);

/* True for a message that carries blocks. */
static inline bool
cairn_message_has_blocks(const struct cairn_message *message)
{
    return message->kind == CAIRN_MSG_DATA || message->kind == CAIRN_MSG_BLOCKS ||
           message->kind == CAIRN_MSG_WRITE;
}

/* True for a message that means something in one epoch only. */
static inline bool
cairn_message_is_of_epoch(const struct cairn_message *message)
{
    return (message->kind >= CAIRN_MSG_REPORT && message->kind <= CAIRN_MSG_RECEIVED) &&
           !(message->kind == CAIRN_MSG_SEAL && message->as.seal.attempt != 0) &&
           !(message->kind == CAIRN_MSG_RECEIVED && message->as.received.attempt != 0);
}

/* The blocks that a message says it carries; 0 for one without. */
uint32_t cairn_message_block_count(const struct cairn_message *message);

/*
 * A name for the place of a WRITE's payload, which goes ahead of the message: member, stripe and
 * line (cairn_core_place). 0: the message has none. The top bit tells such names from others.
 */
uint64_t cairn_message_place(const struct cairn_message *message);
bool cairn_place_is_write(uint64_t place);
/* Fills in member, stripe and line. */
void cairn_place_read(uint64_t place, struct cairn_message_write *out);

/* Packs into out[out_bytes]; *used is the length. CAIRN_FULL when it does not fit. */
CAIRN_MUST_CHECK cairn_err cairn_message_pack(const struct cairn_message *message, void *out,
                                              size_t out_bytes, size_t *used);

/*
 * Unpacks; message->bytes borrows from `bytes`. CAIRN_CORRUPT for anything that is not a message:
 * unknown kind, agents out of range, more blocks than a message may carry, checksums that do not
 * match the count.
 */
CAIRN_MUST_CHECK cairn_err cairn_message_unpack(const void *bytes, size_t bytes_len,
                                                struct cairn_message *out);

#endif
