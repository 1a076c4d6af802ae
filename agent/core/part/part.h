/*
 * agent/core/part/part.h - one member's part of one generation in this agent's memory, and the
 * table of all parts.
 *
 *   FREE ─ open ─► OPEN ─ all sealed and folded ─► FINISHING ─ record stored ─► COMPLETE
 *   FREE ─ a repair's target ─► REBUILDING ─ record stored ─► COMPLETE
 *   any ─ drop ─► FREE
 *
 * A complete part never changes, apart from damaged blocks that a repair mends. The record is what
 * makes memory describe itself: it is stored when the part is complete, erased before its slot is
 * filled again, and read by the agent that adopts the memory after a crash.
 *
 * Rule kept here: R3 (parts_retain is the only function that drops complete parts).
 */
#ifndef CAIRN_AGENT_CORE_PART_PART_H
#define CAIRN_AGENT_CORE_PART_PART_H

#include "agent/core/env/env.h"
#include "agent/core/epoch/send.h"
#include "snapshot/shard_seal.h"
#include "erasure/stripe.h"

enum {
    BAD_BLOCKS_MAX = 256 /* listed per part; more make the part lost */
};

/* What goes from a part to the other members of its group while it is OPEN. */
enum flow_kind {
    FLOW_DATA, /* the own chunk of a stripe, to the member that encodes it */
    FLOW_ROW,  /* a finished parity row of the own stripe, to the member that keeps it */
    FLOW_SEAL, /* the own seal, to each member */
    FLOW_KINDS
};

static inline enum flow_kind
flow_of_row(uint32_t row)
{
    return row == CAIRN_ROW_SEAL ? FLOW_SEAL : row == 0 ? FLOW_DATA : FLOW_ROW;
}

/* Blocks, or bytes of a seal, on their way to one member. */
struct flow {
    uint64_t next;  /* first that was not sent */
    uint64_t acked; /* first that the receiver has not reported */
    uint64_t until; /* the receiver has room for what comes before */
};

/* The receiver has everything before `count`; again: it wants what follows once more. */
static inline void
flow_received(struct flow *flow, uint64_t count, bool again, uint64_t until)
{
    if (again || flow->next < count)
        flow->next = count;
    if (again || flow->acked < count)
        flow->acked = count;
    flow->until = again ? until : max_u64(flow->until, until);
}

/*
 * Whether to ask a sender to send again: for a damaged message always, for a gap once. Every
 * message after a damaged one shows the same gap, and each must not ask again. The caller takes
 * `position` out of *asked when the next message in order is taken.
 */
static inline bool
flow_asks(uint64_t *asked, uint32_t position, bool gap)
{
    uint64_t bit = UINT64_C(1) << position;
    bool asks = !gap || !(*asked & bit);

    *asked |= bit;
    return asks;
}

/* Capture of the own part. */
struct capture {
    uint64_t *captured; /* bitset [blocks] */
    uint64_t *crcs;     /* [blocks] */
    uint64_t blocks;
    uint64_t done; /* local ranks whose region is captured, as a set */
};

/* The other ends of the flows, by position of the sender: the blocks of its chunk of the own stripe
 * are folded into slot 0 and the ring, the row that it encodes for this position is written. */
struct folding {
    uint64_t taken[FLOW_KINDS][CAIRN_SHARDS_MAX]; /* blocks folded in or written, in order; a
                                                   * seal counts itself */
    uint64_t chain[CAIRN_SHARDS_MAX]; /* CRC-64 over the checksums of the folded blocks */
    uint64_t touched;                 /* lines below were written in this generation */
    uint64_t until[CAIRN_SHARDS_MAX]; /* what its data flow may send up to */
    uint64_t asked[FLOW_KINDS];       /* positions that were asked to send again, sets */
    uint32_t corrupt_in_row;
};

/* What a repair writes: everything (REBUILDING), or the bad blocks of a COMPLETE part. */
struct mending {
    uint64_t *missing; /* bitset over data blocks, then the parity area; NULL: none */
    uint64_t missing_count;
    uint64_t written_blocks;
    bool memory_ready; /* REBUILDING: OPENED has come, or none was needed */
};

/* The last comparison with the checksums. */
struct checked {
    struct cairn_bad_block *bad; /* [min(bad_count, BAD_BLOCKS_MAX)], positions filled in */
    uint64_t bad_count;
    bool record_mended;
    uint64_t request; /* of the newest VERIFY, until it has succeeded; 0: none */
};

struct part {
    enum cairn_part_state state;
    struct cairn_generation_id generation;
    uint32_t member;
    uint32_t position;
    struct cairn_roster *roster;
    struct cairn_geometry geometry;
    struct cairn_stripes stripes; /* lengths; valid once lengths_known */
    bool lengths_known;
    bool spilling;        /* a spill reads it */
    bool working;         /* a repair reads it */
    uint64_t request;     /* of the newest SEAL, FINISH or OPEN; 0: none */
    uint64_t progress_ns; /* when something arrived or was captured last */
    struct cairn_shard_seal seals[CAIRN_SHARDS_MAX]; /* by position; own included */
    uint64_t *parity_crcs[CAIRN_SHARDS_MAX]; /* by slot; [parity blocks]; the first owns all */
    struct flow flows[FLOW_KINDS][CAIRN_SHARDS_MAX]; /* by position of the receiver */
    struct capture capture;
    struct folding folding;
    struct mending mending;
    struct checked checked;
};

struct parts {
    struct part list[CAIRN_PARTS_MAX];
    uint64_t version; /* grows whenever a part becomes complete, a complete one goes, or an epoch
                       * is promised or begins */
    bool pinned;      /* for a coordinator: nothing new is opened, and this is kept */
    struct cairn_generation_id pinned_generation; /* step 0: none */
};

static inline uint32_t
part_index(const struct env *env, const struct part *part)
{
    return (uint32_t)(part - env->parts->list);
}

/* The member, and its agent, at a position of the part's group. */
static inline uint32_t
part_member(const struct part *part, uint32_t position)
{
    return cairn_roster_group_of(part->roster, part->member)->members[position];
}

static inline uint32_t
part_agent(const struct part *part, uint32_t position)
{
    return part->roster->members[part_member(part, position)].agent;
}

/* It still needs its trainers: the SEAL is not asked for. */
static inline bool
part_captures(const struct part *part)
{
    return part->state == CAIRN_PART_OPEN && part->request == 0;
}

/* A position's chunk of the stripe that the position `encoder` encodes, which has its number;
 * CAIRN_STRIPE_NONE: it has none. */
static inline uint32_t
part_chunk(const struct part *part, uint32_t encoder, uint32_t position)
{
    return part->geometry.m > 0 ? cairn_stripe_chunk(&part->geometry, encoder, position)
                                : CAIRN_STRIPE_NONE;
}

/* Blocks of a parity slot. Needs the lengths. */
static inline uint64_t
part_slot_blocks(const struct part *part, uint32_t slot)
{
    return part->stripes.parity_blocks[cairn_slot_stripe(&part->geometry, part->position, slot)];
}

/* Asks the process for something about a part; the answer repeats the request's number. */
struct cairn_action *part_ask(struct env *env, const struct part *part,
                              enum cairn_action_type type);
struct part *parts_find(struct parts *parts, struct cairn_generation_id generation,
                        uint32_t member);
/* The own part being captured or finished, or complete and not committed; NULL: none. */
struct part *parts_in_flight(const struct env *env);
/*
 * A free slot for a part: own slots for the own member's captures, any that is large enough for a
 * repair, which leaves one own slot for captures. NULL: none, or no memory.
 */
struct part *part_open(struct env *env, struct cairn_generation_id generation, uint32_t member,
                       struct cairn_roster *roster, enum cairn_part_state state, bool own);
/* Fills a slot with an empty part. */
CAIRN_MUST_CHECK cairn_err part_init(struct part *part, struct cairn_generation_id generation,
                                     uint32_t member, struct cairn_roster *roster,
                                     enum cairn_part_state state);
/* Ends a part in any state. tell_trainers: they stop copying it. */
void part_drop(struct env *env, struct part *part, bool tell_trainers);
void part_fini(struct part *part);
/* Sets `stripes` once all seals are whole; false before. */
bool part_lengths(struct part *part);
/* Stores the record and makes the part COMPLETE. */
CAIRN_MUST_CHECK cairn_err part_complete(struct env *env, struct part *part);
/* Stores the record again. */
CAIRN_MUST_CHECK cairn_err part_store(struct env *env, const struct part *part);
CAIRN_MUST_CHECK cairn_err part_load(const struct cairn_core_options *options, struct parts *parts,
                                     uint32_t index, struct cairn_bytes record);
/* True for a record that another version of Cairn wrote. */
bool part_record_is_foreign(struct cairn_bytes record);
/* Some blocks of a part: lines of a stripe. */
struct span {
    enum cairn_area area;
    uint32_t slot;        /* PARITY */
    uint64_t first_block; /* DATA: in the shard; PARITY: in the slot */
    uint64_t index;       /* of the first, among the data blocks and then the parity area */
    const uint64_t *crcs; /* of the blocks; NULL: not known here */
};
/* Needs the lengths. False for blocks that the part does not have. */
bool part_span(const struct part *part, uint32_t stripe, uint64_t line, uint32_t count,
               struct span *out);
/* Makes room for the checksums of all parity blocks. Needs the lengths. */
CAIRN_MUST_CHECK cairn_err part_make_parity_crcs(struct part *part);
/* Keeps the checksums of all parity blocks, slot by slot. */
CAIRN_MUST_CHECK cairn_err part_keep_parity_crcs(struct part *part, const uint64_t *crcs,
                                                 uint64_t count);
/* Blocks of the data and of the parity area. Needs the lengths. */
static inline uint64_t
part_blocks(const struct part *part)
{
    return cairn_stripes_area_blocks(&part->stripes, part->position, CAIRN_AREA_DATA) +
           cairn_stripes_area_blocks(&part->stripes, part->position, CAIRN_AREA_PARITY);
}

/*
 * Drops what the rules allow: parts older than what is committed; own parts of the active epoch
 * that the decision aborts; after an activation every part of another generation than its ready
 * one. Keeps what a spill, a repair or a coordinator reads, and the newest generation if the epoch
 * began with nothing in memory. While fenced it ends OPEN and FINISHING parts only: the claimant
 * has counted the others.
 */
void parts_retain(struct env *env);

/*
 * True if the decision asks for a later run or step than this generation of the active epoch, which
 * it does not name as committed. Then no member is done with it (R2), and its parts may go (R3). A
 * run that ended aborts nothing by itself: all members may be done, and the leader may still
 * commit. The next run's decision does.
 */
bool parts_abort(const struct env *env, struct cairn_generation_id generation);

/* VERIFY of complete parts: of one generation, or of all (step 0). One that is under way begins
 * again. lost: positions of the group (a set) that will be rebuilt from all others. Workers compare
 * what that reads, so it is left out here. */
void parts_verify(struct env *env, struct cairn_generation_id generation, uint64_t lost);
/* Takes VERIFIED. */
void parts_verified(struct env *env, struct part *part, const struct cairn_event_answer *answer);
/* True if each VERIFY of them has succeeded. */
bool parts_are_verified(const struct parts *parts, struct cairn_generation_id generation);

#endif
