/*
 * agent/core/core.h - the protocol of one agent as a pure state machine: (state, event) → (state,
 * actions).
 *
 * No clock, no I/O, no threads, no random numbers: events bring the time, and whoever carries out
 * the actions moves the bytes. The agent feeds the core from its event loop
 * (agent/process/step.c); the simulator feeds the same code from a seeded scheduler (tests/sim).
 * README.md says which file has which part.
 *
 * Invariants:
 *  1. A vote, yes or no, is given once per member and generation, and never taken back. (After a
 *     restart an agent may vote no on what it had dropped because another member's no ended it.)
 *  2. A yes is given only after the holding is complete (data captured and sealed, parity folded
 *     from every sealed member of the group) and its record is stored.
 *  3. A complete holding is dropped only when
 *      - a later generation is known to be committed, or
 *      - some member voted no on it, or
 *      - a newer epoch was activated with another generation that its coordinator saw whole, or
 *        with files, or because nothing was ever committed. An epoch that only lifts the fence of
 *        a failed restore drops nothing.
 *  4. After promising epoch e an agent says and does nothing under an epoch older than e.
 *  5. promised >= active, both only grow, and both are stored before any other agent hears of them.
 *
 * Who checks them: after every event, in the product too, core_check asserts what one state can
 * show: promised >= active, and that the holdings agree with the epoch and with each other. The
 * rest spans many events and agents; the simulator checks it after every event of every schedule
 * (tests/sim/judge.c), from what it knows about all agents.
 */
#ifndef CAIRN_AGENT_CORE_CORE_H
#define CAIRN_AGENT_CORE_CORE_H

#include "agent/core/message.h"
#include "agent/core/roster.h"
#include "cairn/err.h"
#include "cairn/types.h"
#include "erasure/repair.h"

#include <stdbool.h>

enum {
    CAIRN_OWN_SLOTS_MAX = 4, /* of a node's own member */
    CAIRN_HOLDINGS_MAX = 8   /* own slots and those hosted for lost members */
};

struct cairn_core_options {
    uint32_t self;              /* agent number */
    uint32_t agent_count;       /* configured, spares included */
    const char *const *domains; /* [agent_count] labels of failure domains; NULL: each its own */
    const bool *spares;         /* [agent_count] */
    uint32_t parity;            /* m */
    uint32_t group_size;        /* k + m wanted */
    uint32_t slots;             /* 2 … CAIRN_OWN_SLOTS_MAX */
    uint64_t slot_blocks;       /* data blocks that fit one slot of the own member */
    uint64_t parity_blocks;     /* parity blocks that fit one slot, all parity slots together */
    uint64_t every_steps;       /* a generation is due when step % every_steps == 0 */
    uint64_t incarnation;       /* of this start of this agent; grows from start to start */
    uint64_t heartbeat_interval_ns;
    uint64_t dead_after_ns;
    uint64_t repair_after_ns; /* 0: never by itself */
    uint64_t resend_after_ns;
    uint64_t claim_timeout_ns;   /* longest wait for agents that do not answer a claim */
    uint64_t rebuild_timeout_ns; /* without progress */
    bool memory_is_new; /* the slots were made for this start, not adopted: what earlier starts said
                           is unknown */
    uint32_t planted_bug; /* tests only, see CAIRN_PLANTED in core_state.h; 0: none */
};

/*
 * What happened. Pointers are borrowed for the call. Every SEAL, FINISH, VERIFY, DECODE and OPEN is
 * answered once, and the answer repeats `request` of its action: an answer to what has been dropped
 * or asked anew since is told by that.
 */
enum cairn_event_type {
    CAIRN_EVENT_TICK,    /* time has passed */
    CAIRN_EVENT_MESSAGE, /* message, payload_ok */
    CAIRN_EVENT_RANKS,  /* the local trainers' tensors are known: blocks = data blocks of the shard,
                         * count = ranks; 0: gone; world = ranks of the whole job, 0: unknown;
                         * same_trainers */
    CAIRN_EVENT_BEGIN,  /* rank, step: that update is done */
    CAIRN_EVENT_BLOCKS, /* generation, first_block, count, crcs: captured blocks of the shard */
    CAIRN_EVENT_DONE,   /* generation, rank: that rank's region is captured */
    CAIRN_EVENT_CANCEL, /* rank, step: that rank gives the snapshot of `step` up */
    CAIRN_EVENT_SEALED, /* holding, bytes: the packed manifest (the answer to SEAL) */
    CAIRN_EVENT_FINISHED, /* holding, crcs, count: checksums of all parity blocks (answer to FINISH)
                           */
    CAIRN_EVENT_VERIFIED, /* holding, bad, count, record_damaged, err (it could not be looked at):
                           * answer to VERIFY (positions are filled in by the core) */
    CAIRN_EVENT_DECODED,  /* item: answer to DECODE */
    CAIRN_EVENT_OPENED,   /* holding, err: answer to OPEN of memory for a hosted holding */
    CAIRN_EVENT_OPERATOR, /* operation, request, generation, flags */
    CAIRN_EVENT_PIN,      /* generation, count: 1 keep it until 0 (a spill reads it) */
    CAIRN_EVENT_SPILLED,  /* generation: the newest one that is whole on durable storage */
    CAIRN_EVENT_CONNECTED /* agent: what was sent to it before may be lost, and what is sent now
                           * arrives */
};

enum cairn_operation {
    CAIRN_OP_RESTORE, /* choose, fence, rebuild, activate */
    CAIRN_OP_DRY_RUN, /* choose only */
    CAIRN_OP_FRESH, /* a new epoch that begins with nothing; what is held goes with its first commit
                     */
    CAIRN_OP_SNAPSHOT, /* take a generation at the next step that all can still make */
    CAIRN_OP_VERIFY    /* checksum every holding of every agent, repair what is repairable */
};

struct cairn_event {
    enum cairn_event_type type;
    uint64_t now_ns;
    const struct cairn_message *message;
    bool payload_ok; /* the payload's checksums are those in the message */
    bool record_damaged;
    bool same_trainers; /* that were here until now, and have registered anew */
    uint32_t rank;
    uint32_t agent;
    uint32_t world;
    uint64_t step;
    struct cairn_generation generation;
    uint64_t blocks;
    uint64_t first_block;
    uint64_t count;
    const uint64_t *crcs;
    const struct cairn_bad_block *bad;
    uint32_t holding;
    uint32_t item;
    cairn_err err;
    const uint8_t *bytes;
    size_t bytes_len;
    enum cairn_operation operation;
    uint64_t request; /* OPERATOR: the caller's own number; answers: that of the action */
};

/* What is to be done, in this order. A crash between two actions is allowed at any point. */
enum cairn_action_type {
    CAIRN_ACTION_SEND,  /* message; with count > 0 the blocks of (holding, area) as payload; area
                           SCRATCH: those of (item, source), with their checksums filled in by the
                           process */
    CAIRN_ACTION_FOLD,  /* payload of the event, from its block `skip` on → parity of (holding,
                           stripe, row): source, first_block, count, fresh */
    CAIRN_ACTION_WRITE, /* payload of the event → (holding, area, stripe, first_block, count) */
    CAIRN_ACTION_STAGE, /* payload of the event → item's shard `source`. Of an agent's own blocks it
                         * may stay where it is: the core releases the item before it closes that
                         * holding */
    CAIRN_ACTION_DECODE,  /* item: rebuild shards `lost` of `count` blocks from shards `sources`;
                             answer DECODED */
    CAIRN_ACTION_RELEASE, /* item: its scratch is free again */
    CAIRN_ACTION_STORE_EPOCH,   /* bytes: durable before the next action; a failure must stop the
                                   agent */
    CAIRN_ACTION_STORE_HOLDING, /* holding, bytes: into the slot's record, before the next action;
                                   empty: erase */
    CAIRN_ACTION_OPEN,  /* memory for a holding: blocks of data, first_block of parity (m equal
                           slots); answer OPENED */
    CAIRN_ACTION_CLOSE, /* the holding's memory is free (hosted: given back) */
    CAIRN_ACTION_SEAL, /* holding: pack the manifest from registered tensors and crcs; answer SEALED
                        */
    CAIRN_ACTION_FINISH,    /* holding: checksum the parity; answer FINISHED */
    CAIRN_ACTION_VERIFY,    /* holding: compare data, parity and record with their checksums; answer
                          * VERIFIED / */
    CAIRN_ACTION_GRANT,     /* rank, step, generation, holding: the trainer may copy */
    CAIRN_ACTION_SKIP,      /* rank, step, reason; until_step; generation that is restorable, or
                          * none */
    CAIRN_ACTION_DROP,      /* generation: local trainers stop copying it */
    CAIRN_ACTION_COMMITTED, /* generation, holding */
    CAIRN_ACTION_ACTIVATED, /* generation (ready, or none): a new epoch; restart: trainers of older
                               epochs are refused, and the core has forgotten them: RANKS comes
                               again when new ones are there */
    CAIRN_ACTION_REPLY      /* request, err, text: an operator's request is answered */
};

enum cairn_skip {
    CAIRN_SKIP_NOT_DUE = 1,
    CAIRN_SKIP_BUSY = 2,
    CAIRN_SKIP_NOT_READY = 3,
    CAIRN_SKIP_STALE = 4,  /* the job holds a later generation: the trainer began anew without
                           * restoring it */
    CAIRN_SKIP_BEGUN = 5,  /* trainers that are gone had begun the step too */
    CAIRN_SKIP_UNTILED = 6 /* the one before was given up: its tensors are not held exactly once */
};

struct cairn_action {
    enum cairn_action_type type;
    struct cairn_message message; /* SEND; bytes are owned by the action list */
    uint32_t holding;             /* index of the holding, UINT32_MAX none */
    uint32_t area;
    uint32_t stripe;
    uint32_t row;
    uint32_t source; /* data index (FOLD) or shard index (STAGE) */
    uint32_t skip;   /* FOLD: blocks of the payload that are folded already */
    bool fresh;      /* FOLD: overwrite instead of add */
    bool restart;    /* ACTIVATED */
    uint64_t first_block;
    uint32_t count;
    uint32_t item;
    uint64_t lost;    /* DECODE: shards to rebuild */
    uint64_t sources; /* DECODE: shards that are staged (absent ones beyond chunk ends are zero) */
    uint32_t data_shards;   /* DECODE: k */
    uint32_t parity_shards; /* DECODE: m */
    uint32_t rank;
    uint32_t member;
    uint64_t step;
    uint64_t blocks;
    struct cairn_generation generation;
    enum cairn_skip reason;
    uint64_t until_step; /* SKIP: the last step that is skipped for this reason, where that is
                          * known; else 0 */
    uint64_t request;    /* REPLY: the operator's; else to be repeated in the answer */
    cairn_err err;
    const uint8_t *bytes; /* owned by the action list */
    size_t bytes_len;
};

struct cairn_actions {
    struct cairn_action *list;
    size_t count;
    size_t room;
    bool
        failed; /* memory ran out and something that must be done is missing: the agent must stop */
};

/* What an operator's restore, dry run or verify found; also the text of a REPLY is made from it. */
struct cairn_outcome {
    enum cairn_operation operation;
    uint64_t request;
    cairn_err err;
    struct cairn_generation generation;
    uint64_t epoch;
    uint64_t rebuilt_blocks; /* decoded for lost members, data and parity */
    uint64_t bad_blocks;
    uint64_t repaired_blocks;
    uint32_t lost_members;
    char text[1536]; /* why: one line per generation considered */
};

struct cairn_core;

/*
 * Makes a core. epoch_record is what STORE_EPOCH stored last (NULL: a first start); records[i] is
 * the record of the adopted memory of holding i (empty: free; from options.slots on they are hosted
 * ones). Records that do not parse are treated as free slots and said in *dropped (their count).
 * CAIRN_INVAL for options out of bounds, CAIRN_CORRUPT for an epoch record that does not parse,
 * CAIRN_NOMEM. The caller ends *out with cairn_core_destroy.
 */
struct cairn_bytes {
    const uint8_t *bytes;
    size_t len;
};
CAIRN_MUST_CHECK cairn_err cairn_core_create(const struct cairn_core_options *options,
                                             uint64_t now_ns, struct cairn_bytes epoch_record,
                                             const struct cairn_bytes records[CAIRN_HOLDINGS_MAX],
                                             uint32_t *dropped, struct cairn_core **out);
/* True of a record that is whole (its checksum is the caller's) but that another version of cairn
 * wrote. */
bool cairn_core_record_is_foreign(struct cairn_bytes record);
void cairn_core_destroy(struct cairn_core *core);

/* Takes one event and appends what is to be done to `actions` (which the caller empties with
 * cairn_actions_clear). */
void cairn_core_step(struct cairn_core *core, const struct cairn_event *event,
                     struct cairn_actions *actions);

void cairn_actions_clear(struct cairn_actions *actions);
void cairn_actions_fini(struct cairn_actions *actions);

/* ---- What the process, the services and `cairn status` may read. ---- */
enum cairn_holding_state {
    CAIRN_HOLDING_FREE = 0,
    CAIRN_HOLDING_OPEN,      /* being captured and folded */
    CAIRN_HOLDING_FINISHING, /* everything is here, the parity is being checksummed */
    CAIRN_HOLDING_COMPLETE,  /* its fact was said */
    CAIRN_HOLDING_REBUILDING /* being written by others' repair */
};

struct cairn_holding_view {
    enum cairn_holding_state state;
    struct cairn_generation generation;
    uint32_t member;
    uint32_t memory; /* slot number for the own member's slots, or slots + i for hosted ones */
    bool committed;
    uint64_t data_blocks;
    uint64_t bad_blocks;
    bool record_mended; /* the last VERIFY found its record damaged */
    const struct cairn_roster *table;
    const uint8_t *manifest; /* packed for SEAL by the process; NULL before */
    size_t manifest_len;
    const uint64_t *block_crcs; /* of the data; NULL before the seal */
    const struct cairn_stripes
        *stripes;      /* lengths in blocks (block_bytes is 1); NULL before all seals are here */
    uint32_t position; /* in the group */
    const uint64_t *const
        *parity_crcs; /* [m] by parity slot, each per block; NULL entries before it is complete */
};

struct cairn_core_view {
    uint64_t promised;
    uint64_t active;
    struct cairn_generation
        ready;             /* what a trainer's restore gets: restored, or the newest committed */
    bool ready_from_files; /* it lies in the spill directory, not in memory */
    struct cairn_generation committed; /* newest known committed */
    const struct cairn_roster *table;
    const struct cairn_roster *ready_table; /* of `ready`; NULL when none is in memory */
    uint64_t restart_epoch; /* the newest epoch that began with new trainers; sessions from before
                               it are refused */
    bool settled; /* false: the epoch only lifts the fence of a restore that failed; nothing was
                     dropped for it */
    uint32_t self_member; /* UINT32_MAX: a spare */
    uint64_t last_step;   /* newest step begun here */
    bool met;             /* has heard of the others since the start, and is in their epoch */
    bool frozen;          /* promised a newer epoch that is not active yet */
    bool busy;            /* coordinates a restore or repair */
    const char *refusal;  /* why generations are given up: which tensor is not held exactly once;
                           * "" */
};

void cairn_core_look(const struct cairn_core *core, struct cairn_core_view *out);
bool cairn_core_look_holding(const struct cairn_core *core, uint32_t holding,
                             struct cairn_holding_view *out);
bool cairn_core_alive(const struct cairn_core *core, uint32_t agent);
/* The agent that holds a member's part of the ready generation, UINT32_MAX if unknown. */
uint32_t cairn_core_holder(const struct cairn_core *core, struct cairn_generation generation,
                           uint32_t member);
/* How many members' parts the ready generation has; 0 when none is ready in memory. */
uint32_t cairn_core_ready_members(const struct cairn_core *core);
/* The seal (packed manifest) of another member of the own group in a complete holding; NULL if not
 * here. */
const uint8_t *cairn_core_peer_manifest(const struct cairn_core *core, uint32_t holding,
                                        uint32_t member, size_t *len);
/* The outcome of the last operator's operation, for building the REPLY. */
const struct cairn_outcome *cairn_core_outcome(const struct cairn_core *core);
/* When the next TICK is due. */
uint64_t cairn_core_deadline(const struct cairn_core *core);

#endif
