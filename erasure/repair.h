/*
 * erasure/repair.h - the repair schedule: who reads what from whom to rebuild what is lost.
 *
 * Given the lengths of a group's shards, the intact positions and what must be rebuilt, an iterator
 * yields work items. An item is a run of at most CAIRN_MESSAGE_BLOCKS_MAX lines of one stripe (see
 * stripe.h) in which the same chunks must be rebuilt from the same sources:
 *
 *   worker   reads the chunks of `reads` (its own among them), decodes, and sends each chunk of
 *            `rebuild` to the node now at that position
 *
 * Invariants:
 *  1. Every block that must be rebuilt is in exactly one item; a virtual zero block is in none.
 *  2. `sources` has exactly k positions, all known: intact and not bad at these lines, or virtual
 *     zeros there (which cost no read, are known even on a lost position, and are therefore always
 *     taken first).
 *  3. `reads` is the part of `sources` that has real blocks; `worker` is one of them.
 *  4. Within an item every position of `sources` and `rebuild` has either all lines or (virtual
 *     zeros) none.
 *  5. Work and reads are even: the worker is the one with the least work so far, and the other
 *     reads fall on those least read so far. So the whole schedule is a function of the request
 *     alone, and every agent that iterates it from the start finds the same; each carries out the
 *     items whose worker it is.
 *
 * Pure and without allocation, apart from what qsort does in init.
 */
#ifndef CAIRN_ERASURE_REPAIR_H
#define CAIRN_ERASURE_REPAIR_H

#include "base/codec.h"
#include "erasure/stripe.h"

#include <stddef.h>

/* A single damaged block of an intact position. */
struct cairn_bad_block {
    uint32_t position;
    enum cairn_area area;
    uint64_t block;  /* index in the area */
    uint32_t stripe; /* set by cairn_repair_init */
    uint32_t reserved;
    uint64_t line; /* set by cairn_repair_init */
};

/* Codes u8 area, u64 block. */
void cairn_bad_block_code(struct cairn_codec *codec, struct cairn_bad_block *bad);

struct cairn_repair_request {
    const struct cairn_stripes *stripes; /* kept until the repair is over */
    uint64_t intact;                     /* positions that can be read from and can work */
    uint64_t rebuild_data;       /* positions whose shard must be rebuilt; none of them intact */
    uint64_t rebuild_parity;     /* positions whose parity must be rebuilt; none of them intact */
    struct cairn_bad_block *bad; /* may be NULL; sorted by init, kept until the repair is over */
    size_t bad_count; /* repeats, and blocks of positions that are not intact, are harmless */
};

/* Why a repair is impossible. */
struct cairn_repair_loss {
    uint32_t stripe;
    uint32_t missing;   /* of its n chunks, at this line; more than m */
    uint64_t line;      /* the first such one */
    uint64_t positions; /* whose chunks these are */
};

struct cairn_repair_totals {
    uint64_t items;
    uint64_t rebuilt_blocks;
    uint64_t read_blocks; /* the workers' own included */
};

struct cairn_repair_item {
    uint32_t stripe;
    uint32_t line_count; /* 1 … CAIRN_MESSAGE_BLOCKS_MAX */
    uint64_t line_first;
    /* Sets of positions; cairn_stripe_shards_of turns them into sets for code.h. */
    uint64_t rebuild;
    uint64_t sources;
    uint64_t reads;
    uint32_t worker;
    uint32_t reserved;
};

/* The iterator: the caller's memory, no end function. Fields are private. */
struct cairn_repair {
    struct cairn_repair_request request;
    uint32_t stripe;
    uint64_t line;
    size_t bad_at;                   /* the first bad block at or after (stripe, line) */
    uint64_t work[CAIRN_SHARDS_MAX]; /* blocks rebuilt so far, by position */
    uint64_t read[CAIRN_SHARDS_MAX]; /* blocks read so far, by position */
};

/*
 * Starts a schedule and proves that it can be carried out. CAIRN_INVAL if a set has a bit of n or
 * above, a position is both intact and to be rebuilt, or a bad block does not exist. CAIRN_LOST if
 * too much is missing to rebuild something: *loss is the first place with the most missing, and
 * nothing else is written. On success *totals is the cost of the whole schedule. loss and totals
 * may be NULL.
 */
CAIRN_MUST_CHECK cairn_err cairn_repair_init(const struct cairn_repair_request *request,
                                             struct cairn_repair_loss *loss,
                                             struct cairn_repair_totals *totals,
                                             struct cairn_repair *out);

/* Yields the next item; false when there is none left, with *out untouched. */
bool cairn_repair_next(struct cairn_repair *repair, struct cairn_repair_item *out);

#endif
