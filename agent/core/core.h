/*
 * agent/core/core.h - the protocol of one agent as a pure state machine: (state, event) → (state,
 * actions).
 *
 * No clock, no I/O, no threads, no random numbers: events bring the time, and the caller carries
 * out the actions and moves the bytes. The agent feeds the core from its event loop
 * (agent/process/step.c); the simulator and the explorer feed the same code (tests/sim,
 * tests/explore). docs/PROTOCOL.md has the protocol and its rules R1 to R10; README.md says which
 * file keeps which.
 */
#ifndef CAIRN_AGENT_CORE_CORE_H
#define CAIRN_AGENT_CORE_CORE_H

#include "agent/core/message.h"
#include "agent/core/roster.h"
#include "erasure/repair.h"

#include <stdbool.h>

enum {
    CAIRN_OWN_SLOTS_MAX = 4, /* of a node's own member */
    CAIRN_PARTS_MAX = 8,     /* own slots and parts hosted for lost members */
    CAIRN_REFUSAL_BYTES = 256
};

/* Beside CAIRN_AREA_DATA and CAIRN_AREA_PARITY of erasure/stripe.h: what a repair has decoded. */
enum { CAIRN_AREA_SCRATCH = 2 };

struct cairn_core_options {
    uint32_t self;              /* agent number */
    uint32_t agent_count;       /* configured, spares included */
    const char *const *domains; /* [agent_count] labels of failure domains; NULL: each its own;
                                 * borrowed for the core's life */
    const bool *spares;         /* [agent_count]; borrowed for the core's life */
    uint32_t parity;            /* m */
    uint32_t group_size;        /* k + m wanted */
    uint32_t slots;             /* 2 … CAIRN_OWN_SLOTS_MAX */
    uint64_t slot_blocks;       /* data blocks that fit one own slot */
    uint64_t parity_blocks;     /* parity blocks that fit one own slot, all parity slots together */
    uint64_t every_steps;       /* every multiple is due; 0: only what operators ask for */
    uint64_t incarnation;       /* of this start; at least 2^20 above that of the start before */
    uint64_t heartbeat_interval_ns;
    uint64_t dead_after_ns;
    uint64_t repair_after_ns;    /* 0: never by itself */
    uint64_t claim_timeout_ns;   /* longest wait for agents that do not answer a coordinator */
    uint64_t rebuild_timeout_ns; /* without progress */
    bool memory_is_new;          /* the slots were made for this start, not adopted */
    uint32_t planted_bug;        /* tests only, see planted.h; 0: none */
};

/* ---- events ---- */

enum cairn_event_type {
    CAIRN_EVENT_TICK, /* time has passed */
    CAIRN_EVENT_PEER_UP,
    CAIRN_EVENT_PEER_DOWN,
    CAIRN_EVENT_MESSAGE,
    CAIRN_EVENT_RANKS,
    CAIRN_EVENT_BEGIN,
    CAIRN_EVENT_BLOCKS,
    CAIRN_EVENT_CAPTURED,
    CAIRN_EVENT_CANCEL,
    CAIRN_EVENT_SEALED,
    CAIRN_EVENT_FINISHED,
    CAIRN_EVENT_VERIFIED,
    CAIRN_EVENT_DECODED,
    CAIRN_EVENT_OPENED,
    CAIRN_EVENT_OPERATOR,
    CAIRN_EVENT_PIN,
    CAIRN_EVENT_SPILLED
};

enum cairn_operation {
    CAIRN_OP_RESTORE,  /* choose, rebuild, claim, activate */
    CAIRN_OP_DRY_RUN,  /* choose only */
    CAIRN_OP_FRESH,    /* a new epoch that begins with nothing; what is held goes with its first
                         commit */
    CAIRN_OP_SNAPSHOT, /* take a generation soon */
    CAIRN_OP_VERIFY,   /* checksum every part of every agent, repair what is repairable */
    CAIRN_OP_FLEET     /* a new epoch with another fleet (text of OPERATOR) */
};

/* A session with a peer begins. Messages of its earlier sessions are gone. */
struct cairn_event_peer {
    uint32_t agent;
    uint64_t incarnation; /* PEER_UP */
};

struct cairn_event_message {
    const struct cairn_message *message;
    bool payload_ok; /* its blocks have the checksums in the message */
};

/*
 * The local trainers' tensors are known (ranks > 0), have changed, or are gone (0). Each change
 * ends the run. `manifest` is packed as for SEALED, with any block checksums.
 */
struct cairn_event_ranks {
    uint32_t ranks;
    uint32_t world;  /* ranks of the whole job; 0: unknown */
    uint64_t blocks; /* data blocks of the shard */
    uint64_t launch; /* the same for all ranks of one start of the job; 0: unknown */
    const uint8_t *manifest;
    size_t manifest_len;
};

/* BEGIN: the update of that step is done. CANCEL: the rank gives its snapshot up. */
struct cairn_event_step {
    uint32_t rank;
    uint64_t step;
    bool last; /* BEGIN: the trainer holds this step until GRANT or its CANCEL */
};

/* BLOCKS: captured blocks of the shard. */
struct cairn_event_blocks {
    struct cairn_generation_id generation;
    uint64_t first_block;
    uint64_t count;
    const uint64_t *crcs;
};

/* CAPTURED: all of that rank's region is captured. */
struct cairn_event_captured {
    struct cairn_generation_id generation;
    uint32_t rank;
};

/*
 * The answer to SEAL, FINISH, VERIFY or OPEN; it repeats `request` of its action. Each of these
 * actions is answered once, also after its part was closed.
 */
struct cairn_event_answer {
    uint32_t part;
    uint64_t request;
    struct cairn_generation_id generation;
    cairn_err err;        /* it could not be done */
    const uint8_t *bytes; /* SEALED: the packed manifest */
    size_t bytes_len;
    const uint64_t *crcs;              /* FINISHED: of all parity blocks, slot by slot */
    const struct cairn_bad_block *bad; /* VERIFIED; positions are filled in by the core */
    uint64_t count;                    /* of crcs, or of bad */
    bool record_damaged;               /* VERIFIED */
};

struct cairn_event_decoded {
    uint32_t item;
    uint64_t request;
};

struct cairn_event_operator {
    enum cairn_operation operation;
    uint64_t request;     /* the caller's own number, repeated in REPLY */
    const uint8_t *fleet; /* FLEET: the new fleet, opaque to the core */
    size_t fleet_len;
};

/* PIN: a spill reads the generation: keep it until it is unpinned. SPILLED: the newest generation
 * that is whole on durable storage. */
struct cairn_event_pin {
    struct cairn_generation_id generation;
    bool keep;
};

/* Pointers are borrowed for the call. */
struct cairn_event {
    enum cairn_event_type type;
    uint64_t now_ns;
    union {
        struct cairn_event_peer peer;
        struct cairn_event_message message;
        struct cairn_event_ranks ranks;
        struct cairn_event_step step;
        struct cairn_event_blocks blocks;
        struct cairn_event_captured captured;
        struct cairn_event_answer answer;
        struct cairn_event_decoded decoded;
        struct cairn_event_operator op;
        struct cairn_event_pin pin;
    } as;
};

/* ---- actions ---- */

/* What to do, in this order. A crash between two actions is allowed at any point. */
enum cairn_action_type {
    CAIRN_ACTION_SEND,
    CAIRN_ACTION_CONNECT,    /* keep trying to have a session with `agent` */
    CAIRN_ACTION_DISCONNECT, /* end the session with `agent`, which is silent; PEER_DOWN follows */
    CAIRN_ACTION_FOLD,
    CAIRN_ACTION_WRITE,
    CAIRN_ACTION_STAGE,
    CAIRN_ACTION_DECODE,
    CAIRN_ACTION_RELEASE,
    CAIRN_ACTION_STORE_EPOCH,
    CAIRN_ACTION_STORE_PART,
    CAIRN_ACTION_OPEN,
    CAIRN_ACTION_CLOSE,
    CAIRN_ACTION_SEAL,
    CAIRN_ACTION_FINISH,
    CAIRN_ACTION_VERIFY,
    CAIRN_ACTION_GRANT,
    CAIRN_ACTION_SKIP,
    CAIRN_ACTION_DROP,
    CAIRN_ACTION_COMMITTED,
    CAIRN_ACTION_ACTIVATED,
    CAIRN_ACTION_REPLY
};

enum cairn_skip {
    CAIRN_SKIP_NOT_DUE = 1,
    CAIRN_SKIP_BUSY = 2,
    CAIRN_SKIP_NOT_READY = 3, /* no run is assembled, or this agent is no member */
    CAIRN_SKIP_STALE = 4,     /* the job holds this step or a later one, which was not restored */
    CAIRN_SKIP_UNTILED = 6    /* the run was refused: cairn_core_view.refusal says why */
};

/* Blocks that go with a SEND: of a part (area DATA or PARITY), or of a repair item (SCRATCH). */
struct cairn_blocks {
    uint32_t count; /* 0: the message carries none */
    uint32_t area;
    uint32_t part;        /* DATA, PARITY */
    uint32_t row;         /* PARITY: the slot */
    uint64_t first_block; /* DATA: in the shard; PARITY: line in the slot */
    uint32_t item;        /* SCRATCH; the process fills the checksums in */
    uint32_t shard;
};

struct cairn_action_send {
    struct cairn_message message; /* its bytes are owned by the action list */
    struct cairn_blocks blocks;
};

struct cairn_action_peer {
    uint32_t agent;
};

/* The event's blocks, from block `skip` on, are added to parity; `fresh`: they replace it. */
struct cairn_action_fold {
    uint32_t part;
    uint32_t stripe;
    uint32_t row;
    uint32_t source; /* data index */
    uint64_t first_block;
    uint32_t count;
    uint32_t skip;
    bool fresh;
};

/* WRITE: the event's blocks go to a part. STAGE: they become shard `source` of an item. Blocks of
 * this agent itself may stay in place: the core releases the item before it closes that part. */
struct cairn_action_place {
    uint32_t part;
    uint32_t area;
    uint32_t row;
    uint64_t first_block;
    uint32_t count;
    uint32_t item;
    uint32_t source;
};

/* Rebuilds shards `lost` of an item from shards `sources`; absent ones are zero. */
struct cairn_action_decode {
    uint32_t item; /* also of RELEASE: its scratch is free again */
    uint64_t request;
    uint64_t lost;
    uint64_t sources;
    uint32_t data_shards;
    uint32_t parity_shards;
    uint32_t count;
};

/*
 * STORE_EPOCH: durable before the next action; a failure must stop the agent.
 * STORE_PART: into the part's record, before the next action; empty: erase.
 * Bytes are owned by the action list.
 */
struct cairn_action_store {
    uint32_t part;
    const uint8_t *bytes;
    size_t bytes_len;
};

/*
 * OPEN: memory for a hosted part of `blocks` data and `parity_blocks` parity blocks (m equal
 * slots).
 * CLOSE: the part's memory is free (hosted: given back).
 * SEAL: pack the manifest from the registered tensors and `crcs`.
 * FINISH: checksum the parity, and the data of a rebuilt part.
 * VERIFY: compare data, parity and record with their checksums.
 */
struct cairn_action_part {
    uint32_t part;
    uint64_t request;
    struct cairn_generation_id generation;
    uint32_t member;
    uint64_t blocks;
    uint64_t parity_blocks;
    const uint64_t *crcs; /* SEAL: [blocks], owned by the action list */
};

/* GRANT: the rank may copy. SKIP: it may not. DROP: ranks stop copying the generation. */
struct cairn_action_trainer {
    uint32_t rank;
    uint32_t part;
    uint64_t step;
    struct cairn_generation_id generation; /* SKIP: what a restore would get */
    enum cairn_skip reason;
    uint64_t until_step; /* SKIP: the last step skipped for this reason, if known; else 0 */
};

struct cairn_action_committed {
    struct cairn_generation_id generation;
    uint32_t part; /* UINT32_MAX: none here */
};

/* A new epoch. restart: trainers of older epochs are refused, and the core has forgotten them. */
struct cairn_action_activated {
    struct cairn_generation_id ready; /* step 0: none */
    bool restart;
};

struct cairn_action_reply {
    uint64_t request;
    cairn_err err;
    struct cairn_generation_id generation;
    const char *text; /* owned by the action list */
};

struct cairn_action {
    enum cairn_action_type type;
    union {
        struct cairn_action_send send;
        struct cairn_action_peer peer;
        struct cairn_action_fold fold;
        struct cairn_action_place place;
        struct cairn_action_decode decode;
        struct cairn_action_store store;
        struct cairn_action_part part;
        struct cairn_action_trainer trainer;
        struct cairn_action_committed committed;
        struct cairn_action_activated activated;
        struct cairn_action_reply reply;
    } as;
    void *owned; /* freed with the list */
};

struct cairn_actions {
    struct cairn_action *list;
    size_t count;
    size_t room;
    bool failed; /* memory ran out and an action is missing: the agent must stop */
};

void cairn_actions_clear(struct cairn_actions *actions);
void cairn_actions_fini(struct cairn_actions *actions);

/* ---- the core ---- */

struct cairn_core;

struct cairn_bytes {
    const uint8_t *bytes;
    size_t len;
};

/*
 * Makes a core. epoch_record is what STORE_EPOCH stored last (empty: none); records[i] is what
 * STORE_PART stored for part i (empty: free). Records that do not parse are counted in *dropped,
 * and make the agent blank. CAIRN_INVAL for options out of bounds, CAIRN_CORRUPT or CAIRN_VERSION
 * for an epoch record that cannot be used, CAIRN_NOMEM. The caller ends *out with
 * cairn_core_destroy.
 */
CAIRN_MUST_CHECK cairn_err cairn_core_create(const struct cairn_core_options *options,
                                             uint64_t now_ns, struct cairn_bytes epoch_record,
                                             const struct cairn_bytes records[CAIRN_PARTS_MAX],
                                             uint32_t *dropped, struct cairn_core **out);
/* True for a part's record that another version of Cairn wrote. */
bool cairn_core_record_is_foreign(struct cairn_bytes record);
void cairn_core_destroy(struct cairn_core *core);

/* Takes one event and appends what to do to `actions`, which the caller has cleared. */
void cairn_core_step(struct cairn_core *core, const struct cairn_event *event,
                     struct cairn_actions *actions);

/* ---- what the process, the services and tests may read ---- */

enum cairn_part_state {
    CAIRN_PART_FREE = 0,
    CAIRN_PART_OPEN,      /* being captured and folded */
    CAIRN_PART_FINISHING, /* everything is here, the parity is being checksummed */
    CAIRN_PART_COMPLETE,  /* its record is stored; it never changes */
    CAIRN_PART_REBUILDING /* being written by a repair */
};

struct cairn_part_view {
    enum cairn_part_state state;
    struct cairn_generation_id generation;
    uint32_t member;
    uint32_t position; /* in the group */
    bool committed;
    bool record_mended; /* the last VERIFY found its record damaged */
    uint64_t data_blocks;
    uint64_t bad_blocks;
    const struct cairn_roster *roster;
    const uint8_t *manifest; /* packed; NULL before the part is sealed */
    size_t manifest_len;
    const uint64_t *block_crcs;          /* of the data; NULL before the seal */
    const struct cairn_stripes *stripes; /* lengths in blocks; NULL before all seals are here */
    const uint64_t *const *parity_crcs;  /* [m] by slot; NULL entries before it is complete */
};

/* Who blocks the generation that is due. */
struct cairn_blocker {
    struct cairn_generation_id generation; /* step 0: nothing is blocked */
    uint32_t agent;                        /* who is not done */
    uint32_t for_agent;                    /* whom it waits for; UINT32_MAX: nobody */
    enum cairn_wait cause;
    uint64_t for_ms;
};

struct cairn_core_view {
    uint64_t promised;
    uint64_t active;                  /* epoch; 0: none yet */
    struct cairn_generation_id ready; /* what a restore gets: restored, or the newest committed */
    bool ready_from_files;            /* it lies in the spill directory, not in memory */
    struct cairn_generation_id committed;    /* newest of the active epoch */
    const struct cairn_roster *roster;       /* of the active epoch; NULL before the first */
    const struct cairn_roster *ready_roster; /* of `ready`; NULL when none is in memory */
    uint64_t restart_epoch;                  /* the newest epoch that began with new trainers */
    uint32_t self_member;                    /* UINT32_MAX: no member */
    uint64_t run;                            /* 0: no run is assembled */
    uint64_t next_step;                      /* due; 0: none */
    uint64_t last_step;                      /* newest step begun here */
    bool met;            /* has exchanged positions with others since the start */
    bool blank;          /* has forgotten its part, and waits for an epoch that admits it */
    bool fenced;         /* promised an epoch that is not active yet */
    bool busy;           /* coordinates a restore or repair */
    const char *refusal; /* why no run is assembled; "" */
    struct cairn_blocker blocker; /* on the leader */
    uint64_t dropped_messages;    /* at the door */
    const uint8_t *fleet;         /* of the active epoch */
    size_t fleet_len;
};

/* What an operator's restore, dry run or verify found. */
struct cairn_outcome {
    enum cairn_operation operation;
    uint64_t request;
    cairn_err err;
    struct cairn_generation_id generation;
    uint64_t epoch;
    uint64_t rebuilt_blocks; /* decoded for lost members, data and parity */
    uint64_t bad_blocks;
    uint64_t repaired_blocks;
    uint32_t lost_members;
    char text[1536]; /* why: one line per generation considered */
};

void cairn_core_look(const struct cairn_core *core, struct cairn_core_view *out);
bool cairn_core_look_part(const struct cairn_core *core, uint32_t part,
                          struct cairn_part_view *out);
bool cairn_core_alive(const struct cairn_core *core, uint32_t agent);
/* The agent that holds a member's part of the ready generation, UINT32_MAX if unknown. */
uint32_t cairn_core_holder(const struct cairn_core *core, struct cairn_generation_id generation,
                           uint32_t member);
/* How many members' parts the ready generation has; 0 when none is ready in memory. */
uint32_t cairn_core_ready_members(const struct cairn_core *core);
/* The packed manifest of another member of the own group in a complete part; NULL if not here. */
const uint8_t *cairn_core_peer_manifest(const struct cairn_core *core, uint32_t part,
                                        uint32_t member, size_t *len);
const struct cairn_outcome *cairn_core_outcome(const struct cairn_core *core);
/* When the next TICK is due. */
uint64_t cairn_core_deadline(const struct cairn_core *core);
/* A hash of everything in the state that can change what the core does next, times excepted. For
 * the explorer. */
uint64_t cairn_core_fingerprint(const struct cairn_core *core);

#endif
