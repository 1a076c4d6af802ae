/*
 * erasure/stripe.h - the geometry of an erasure group: which byte is in which stripe, on which
 * member.
 *
 * A group has n = k + m members at positions 0 … n-1 and n stripes. Stripe s keeps parity row r on
 * position (s + r) mod n and one data chunk on each of the other k positions. n = 6, m = 2 (k = 4),
 * with P for a parity row and c for a chunk of that position's shard:
 *
 *              position 0    1    2    3    4    5
 *   stripe 0           P0   P1   c3   c2   c1   c0      c0 … c3: the four chunks, in order,
 *   stripe 1           c0   P0   P1   c3   c2   c1      into which a position's shard is cut
 *   stripe 2           c1   c0   P0   P1   c3   c2
 *   stripe 3           c2   c1   c0   P0   P1   c3      shard index in the stripe (see code.h):
 *   stripe 4           c3   c2   c1   c0   P0   P1      (position - stripe - m) mod n, so that
 *   stripe 5           P1   c3   c2   c1   c0   P0      c3 is data 0, c0 is data 3, P1 is shard 5
 *
 * So every position holds k data chunks (its own shard) and m parity chunks, and everything is one
 * formula in d = (position - stripe) mod n:
 *
 *   d <  m   the position holds parity row d of the stripe, in its parity slot d
 *   d >= m   it holds data index d - m, which is chunk n - 1 - d of its shard
 *
 *   chunk c of position p is in stripe (p + 1 + c) mod n
 *   slot i of position p is of stripe (p - i) mod n
 *
 * Lengths. All is counted in blocks of block_bytes. A shard of b blocks is cut into k chunks of
 * ceil(b / k) blocks; the last chunks may be short or empty. Members' shards may differ in length,
 * so the chunks of one stripe may too: a chunk is padded with virtual zero blocks, which are never
 * stored, sent or read, to the length of its stripe's parity, which is that of the longest data
 * chunk. A last block that is shorter than block_bytes is padded with zeros by its reader.
 *
 * Areas. A position's data area is its shard; its parity area is its m slots one after the other,
 * each as long as its stripe's parity. A block index is an index into an area; a line is a block
 * number in the chunks of a stripe, the same for all of them.
 *
 * With m = 0 there is no parity, k = n, and all of the above holds. Pure values and functions.
 * Thread: any.
 */
#ifndef CAIRN_ERASURE_STRIPE_H
#define CAIRN_ERASURE_STRIPE_H

#include "base/limits.h"
#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_STRIPE_NONE = 0xffffffffu }; /* "this position has none" */

enum cairn_area { CAIRN_AREA_DATA = 0, CAIRN_AREA_PARITY = 1 };

struct cairn_geometry {
    uint32_t k; /* data chunks of a stripe, and chunks of a shard */
    uint32_t m; /* parity chunks of a stripe, and parity slots of a position */
    uint32_t n; /* members, and stripes: k + m */
    uint32_t block_bytes;
};

/* Where a block of an area belongs. */
struct cairn_place {
    uint32_t stripe;
    uint32_t shard; /* index in the stripe: data index, or k + parity row */
    uint32_t chunk; /* of the data area, or slot of the parity area */
    uint32_t reserved;
    uint64_t line; /* block number in the chunk */
};

/* Needs k >= 1, k + m <= CAIRN_SHARDS_MAX and block_bytes >= 1, else CAIRN_INVAL. */
CAIRN_MUST_CHECK cairn_err cairn_geometry_init(uint32_t k, uint32_t m, uint32_t block_bytes,
                                               struct cairn_geometry *out);

/* ---- positions, stripes, chunks: no lengths needed ---- */

/* Index of a position's chunk in a stripe: 0 … k-1 is data, k + r is parity row r. */
uint32_t cairn_stripe_shard(const struct cairn_geometry *geometry, uint32_t stripe,
                            uint32_t position);
/* The reverse: who holds shard index `shard` of a stripe. */
uint32_t cairn_stripe_position(const struct cairn_geometry *geometry, uint32_t stripe,
                               uint32_t shard);
/* Data index, parity row (= slot) and chunk of a position in a stripe, or CAIRN_STRIPE_NONE. */
uint32_t cairn_stripe_data_index(const struct cairn_geometry *geometry, uint32_t stripe,
                                 uint32_t position);
uint32_t cairn_stripe_parity_row(const struct cairn_geometry *geometry, uint32_t stripe,
                                 uint32_t position);
uint32_t cairn_stripe_chunk(const struct cairn_geometry *geometry, uint32_t stripe,
                            uint32_t position);
/* The position that holds parity row `row` of a stripe. */
uint32_t cairn_stripe_parity_position(const struct cairn_geometry *geometry, uint32_t stripe,
                                      uint32_t row);
/* The stripe of chunk c (< k) of a position's shard, and of parity slot i (< m) of a position. */
uint32_t cairn_chunk_stripe(const struct cairn_geometry *geometry, uint32_t position,
                            uint32_t chunk);
uint32_t cairn_slot_stripe(const struct cairn_geometry *geometry, uint32_t position, uint32_t slot);
/* Turns a set of positions into the set of their shard indexes in a stripe, and back. */
uint64_t cairn_stripe_shards_of(const struct cairn_geometry *geometry, uint32_t stripe,
                                uint64_t positions);
uint64_t cairn_stripe_positions_of(const struct cairn_geometry *geometry, uint32_t stripe,
                                   uint64_t shards);
/* The set of all n positions. */
uint64_t cairn_geometry_all(const struct cairn_geometry *geometry);

/* ---- lengths of one shard ---- */

/* Blocks of a shard: ceil(shard_bytes / block_bytes). */
uint64_t cairn_shard_blocks(const struct cairn_geometry *geometry, uint64_t shard_bytes);
/* Blocks of each full chunk of a shard: ceil(blocks / k). The chunk stride in the shard. */
uint64_t cairn_shard_chunk_blocks(const struct cairn_geometry *geometry, uint64_t shard_bytes);
/* Blocks that chunk c really has: the stride, or less or none at the end of the shard. */
uint64_t cairn_chunk_blocks(const struct cairn_geometry *geometry, uint64_t shard_bytes,
                            uint32_t chunk);

/* ---- lengths of the whole group ---- */

/* A geometry with the lengths of all shards: made once per generation, a plain value. */
struct cairn_stripes {
    struct cairn_geometry geometry;
    uint64_t shard_bytes[CAIRN_SHARDS_MAX];   /* by position */
    uint64_t shard_blocks[CAIRN_SHARDS_MAX];  /* by position */
    uint64_t chunk_blocks[CAIRN_SHARDS_MAX];  /* by position: stride of its chunks */
    uint64_t parity_blocks[CAIRN_SHARDS_MAX]; /* by stripe: length of each of its parity chunks */
};

/* shard_bytes[n], by position; any may be 0. CAIRN_INVAL when one is above 2^56. */
CAIRN_MUST_CHECK cairn_err cairn_stripes_init(const struct cairn_geometry *geometry,
                                              const uint64_t *shard_bytes,
                                              struct cairn_stripes *out);

/* Blocks that a position really has of its chunk in a stripe (data or parity). */
uint64_t cairn_stripes_blocks(const struct cairn_stripes *stripes, uint32_t stripe,
                              uint32_t position);
/* Blocks of an area of a position. */
uint64_t cairn_stripes_area_blocks(const struct cairn_stripes *stripes, uint32_t position,
                                   enum cairn_area area);
/* Which area of a position holds its chunk of a stripe, and the block index of its start. */
enum cairn_area cairn_stripes_area(const struct cairn_stripes *stripes, uint32_t stripe,
                                   uint32_t position, uint64_t *first_block);
/*
 * Where a block of an area belongs. CAIRN_INVAL if no such position, area or block exists, so
 * numbers from a peer are allowed.
 */
CAIRN_MUST_CHECK cairn_err cairn_stripes_place(const struct cairn_stripes *stripes,
                                               uint32_t position, enum cairn_area area,
                                               uint64_t block, struct cairn_place *out);
#endif
