/*
 * agent/core/env/action.h - what an agent does: the output of cairn_core_step (core.h).
 */
#ifndef CAIRN_AGENT_CORE_ENV_ACTION_H
#define CAIRN_AGENT_CORE_ENV_ACTION_H

#include "agent/core/env/types.h"

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
    CAIRN_SKIP_NOT_READY = 3, /* no run is assembled, or this agent is not a member */
    CAIRN_SKIP_STALE = 4,     /* the job holds this step or a later one, which was not restored */
    CAIRN_SKIP_UNTILED = 6    /* the run was refused: cairn_core_view.refusal says why */
};

/* Blocks that go with a SEND: of a part (area DATA or PARITY), or of a repair item (SCRATCH). */
struct cairn_blocks {
    uint32_t count; /* 0: the message carries none */
    uint32_t area;
    uint32_t part;        /* not SCRATCH */
    uint32_t row;         /* PARITY: the slot; RING: the row */
    uint64_t first_block; /* DATA: in the shard; PARITY, RING: line */
    uint32_t item;        /* SCRATCH. The process fills in the checksums, as for RING */
    uint32_t shard;
};

struct cairn_action_send {
    struct cairn_message message; /* its bytes are owned by the action list */
    struct cairn_blocks blocks;
};

struct cairn_action_peer {
    uint32_t agent;
};

/* The event's blocks, from block `skip` on, are added to all parity rows of the own stripe: row 0
 * in the part's slot 0, the others in the ring, whose end they do not cross. `fresh`: they replace
 * what is there. */
struct cairn_action_fold {
    uint32_t part;
    uint32_t source;      /* data index */
    uint64_t first_block; /* line */
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

/* Rebuilds shards `lost` of an item from shards `sources`; absent shards are zero. */
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
 * FINISH: checksum the parity.
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
    const uint64_t *skip; /* VERIFY: a bitset of blocks that are not compared, the parity's behind
                           * the data's, owned by the action list; NULL: none */
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
    bool failed;                 /* memory ran out and an action is missing: the agent must stop */
    struct cairn_action missing; /* it */
};

void cairn_actions_clear(struct cairn_actions *actions);
void cairn_actions_fini(struct cairn_actions *actions);

#endif
