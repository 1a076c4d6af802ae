/*
 * agent/core/env/types.h - the options of a core, and the types that events, actions and views
 * share.
 */
#ifndef CAIRN_AGENT_CORE_ENV_TYPES_H
#define CAIRN_AGENT_CORE_ENV_TYPES_H

#include "agent/core/env/message.h"
#include "erasure/roster.h"
#include "erasure/repair.h"

#include <stdbool.h>

enum {
    CAIRN_OWN_SLOTS_MAX = 4, /* of a node's own member */
    CAIRN_PARTS_MAX = 8,     /* own slots and parts hosted for lost members */
    CAIRN_REFUSAL_BYTES = 256,
    CAIRN_INCARNATION_STEP = 1 << 20
};

/* Beside CAIRN_AREA_DATA and CAIRN_AREA_PARITY of erasure/stripe.h. */
enum {
    CAIRN_AREA_SCRATCH = 2, /* what a repair has decoded */
    CAIRN_AREA_RING = 3 /* parity of the own stripe for other members; line l of each row lies at
                             * l mod ring_lines */
};

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
    uint64_t ring_lines;        /* blocks of each row in the ring; at least 2 where parity > 1 */
    uint64_t every_steps;       /* every multiple is due; 0: only what operators ask for */
    uint64_t incarnation;       /* of this start; at least CAIRN_INCARNATION_STEP above that of
                                 * the start before */
    uint64_t heartbeat_interval_ns;
    uint64_t dead_after_ns;
    uint64_t repair_after_ns;    /* 0: never by itself */
    uint64_t claim_timeout_ns;   /* longest wait for agents that do not answer a coordinator */
    uint64_t rebuild_timeout_ns; /* without progress */
    bool memory_is_new;          /* the slots were made for this start, not adopted */
    uint32_t planted_bug;        /* tests only, see planted.h; 0: none */
};

enum cairn_part_state {
    CAIRN_PART_FREE = 0,
    CAIRN_PART_OPEN,      /* being captured and folded */
    CAIRN_PART_FINISHING, /* everything is here, the parity is being checksummed */
    CAIRN_PART_COMPLETE,  /* its record is stored; it never changes */
    CAIRN_PART_REBUILDING /* being written by a repair */
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

/* Who blocks the generation that is due. */
struct cairn_blocker {
    struct cairn_generation_id generation; /* step 0: nothing is blocked */
    uint32_t agent;                        /* who is not done */
    uint32_t for_agent;                    /* whom it waits for; UINT32_MAX: nobody */
    enum cairn_wait cause;
    uint64_t for_ms;
};

/* The generations that this agent gave up as leader, and the newest of them. */
struct cairn_given_up {
    uint64_t count;
    struct cairn_generation_id generation;
    uint32_t agent; /* that could not give its part */
    enum cairn_abort reason;
};

/* What an operator's restore, dry run or verify found. */
struct cairn_outcome {
    enum cairn_operation operation;
    uint64_t request; /* 0: a repair that nobody asked for */
    cairn_err err;
    struct cairn_generation_id generation;
    uint64_t epoch;
    uint64_t rebuilt_blocks; /* decoded for lost members, data and parity */
    uint64_t bad_blocks;
    uint64_t repaired_blocks;
    uint32_t lost_members;
    char text[1536]; /* why: one line per generation considered */
};

struct cairn_bytes {
    const uint8_t *bytes;
    size_t len;
};

#endif
