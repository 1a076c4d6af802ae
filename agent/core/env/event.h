/*
 * agent/core/env/event.h - what happens to an agent: the input of cairn_core_step (core.h).
 */
#ifndef CAIRN_AGENT_CORE_ENV_EVENT_H
#define CAIRN_AGENT_CORE_ENV_EVENT_H

#include "agent/core/env/types.h"

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

/* A session with a peer begins. Messages of its earlier sessions are gone. */
struct cairn_event_peer {
    uint32_t agent;
    uint64_t incarnation; /* PEER_UP */
};

struct cairn_event_message {
    const struct cairn_message *message;
    bool payload_ok; /* its blocks have the checksums in the message */
};

/* The newest step that a rank has begun since it registered. */
struct cairn_begun_step {
    uint64_t step;
    uint64_t before; /* the one begun before it */
    bool waiting;    /* for GRANT or SKIP */
    bool last;       /* no step follows: it waits also while it is not due */
};

/*
 * The local trainers' tensors are known (ranks > 0), have changed, or are gone (0). Each change
 * ends the run. `manifest` is packed as for SEALED, with any block checksums. Ranks register one
 * after the other: a rank that has not changed keeps its step.
 */
struct cairn_event_ranks {
    const struct cairn_begun_step *steps; /* [ranks]; NULL: none has begun */
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
    /* RESTORE, DRY_RUN: this generation only. Its epoch is the round, its run 0; step 0: the newest
     * restorable. */
    struct cairn_generation_id wanted;
    struct cairn_generation_id wanted_spilled; /* its files, found whole; step 0: there are none */
};

/* PIN: a spill reads the generation: keep it until it is unpinned. SPILLED: the newest generation
 * that is whole on durable storage; step 0: there is none any more. */
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

#endif
