/*
 * agent/core/restore/inventory.h - what an agent holds and knows, as it tells a coordinator.
 * inventory.c has the format.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_INVENTORY_H
#define CAIRN_AGENT_CORE_RESTORE_INVENTORY_H

#include "agent/core/part/part.h"

/* What an agent says of itself, beside its parts. */
struct inventory_self {
    uint64_t incarnation;
    uint64_t promised;
    uint64_t active; /* epoch */
    bool blank;
    bool knows;                           /* what it has promised */
    struct cairn_generation_id ready;     /* what a restore would get; step 0: nothing */
    struct cairn_generation_id spilled;   /* newest in the spill directory; step 0: none */
    uint32_t ranks;                       /* of its trainers; 0: it has none */
    uint32_t world;                       /* ranks of their job; 0: unknown */
    uint64_t blocks;                      /* of their shard */
    struct cairn_roster *promised_roster; /* of a promised epoch that is not active here; may be
                                           * NULL; owned by an inventory that was read */
};

/* A complete part. */
struct inventory_part {
    struct cairn_generation_id generation;
    uint32_t member;
    uint64_t largest_shard; /* blocks of the largest shard in its group */
    uint64_t bad_count;     /* blocks that the last comparison found damaged */
    uint32_t bad_listed;
    struct cairn_bad_block *bad; /* [bad_listed], owned */
    struct cairn_roster *roster;
};

struct inventory {
    bool known; /* false: the agent has not answered, and the rest is zero */
    struct inventory_self self;
    uint64_t version; /* of its parts */
    uint32_t part_count;
    struct inventory_part parts[CAIRN_PARTS_MAX];
};

/* Sends what this agent holds as the answer to an ASK. */
void inventory_send(struct env *env, uint32_t to, uint64_t attempt,
                    const struct inventory_self *self);
/* CAIRN_CORRUPT, CAIRN_NOMEM. The caller ends *out with inventory_fini. */
CAIRN_MUST_CHECK cairn_err inventory_read(const void *bytes, size_t len, struct inventory *out);
void inventory_fini(struct inventory *inventory);
/* Removes the part with that index. */
void inventory_forget_part(struct inventory *inventory, uint32_t index);
/* The part of a member in a generation; NULL: it is not here. */
const struct inventory_part *inventory_find(const struct inventory *inventory,
                                            struct cairn_generation_id generation, uint32_t member);

#endif
