/* erasure/stripe.c - the formulas of stripe.h. */
#include "erasure/stripe.h"

#include <string.h>

#include "base/assert.h"

static const uint64_t shard_bytes_max = UINT64_C(1) << 56; /* sums over a group cannot overflow */

cairn_err
cairn_geometry_init(uint32_t k, uint32_t m, uint32_t block_bytes, struct cairn_geometry *out)
{
    if (k < 1 || k > CAIRN_SHARDS_MAX || m > CAIRN_SHARDS_MAX - k || block_bytes < 1)
        return CAIRN_INVAL;
    *out = (struct cairn_geometry){.k = k, .m = m, .n = k + m, .block_bytes = block_bytes};
    return CAIRN_OK;
}

/* (position - stripe) mod n: below m a parity row, else data index + m. */
static uint32_t
distance(const struct cairn_geometry *geometry, uint32_t stripe, uint32_t position)
{
    CAIRN_ASSERT(stripe < geometry->n);
    CAIRN_ASSERT(position < geometry->n);
    return (position + geometry->n - stripe) % geometry->n;
}

uint32_t
cairn_stripe_shard(const struct cairn_geometry *geometry, uint32_t stripe, uint32_t position)
{
    return (distance(geometry, stripe, position) + geometry->k) % geometry->n; /* - m is + k */
}

uint32_t
cairn_stripe_position(const struct cairn_geometry *geometry, uint32_t stripe, uint32_t shard)
{
    CAIRN_ASSERT(stripe < geometry->n);
    CAIRN_ASSERT(shard < geometry->n);
    return (stripe + geometry->m + shard) % geometry->n;
}

uint32_t
cairn_stripe_data_index(const struct cairn_geometry *geometry, uint32_t stripe, uint32_t position)
{
    uint32_t d = distance(geometry, stripe, position);

    return d < geometry->m ? CAIRN_STRIPE_NONE : d - geometry->m;
}

uint32_t
cairn_stripe_parity_row(const struct cairn_geometry *geometry, uint32_t stripe, uint32_t position)
{
    uint32_t d = distance(geometry, stripe, position);

    return d < geometry->m ? d : CAIRN_STRIPE_NONE;
}

uint32_t
cairn_stripe_chunk(const struct cairn_geometry *geometry, uint32_t stripe, uint32_t position)
{
    uint32_t d = distance(geometry, stripe, position);

    return d < geometry->m ? CAIRN_STRIPE_NONE : geometry->n - 1 - d;
}

uint32_t
cairn_stripe_parity_position(const struct cairn_geometry *geometry, uint32_t stripe, uint32_t row)
{
    CAIRN_ASSERT(stripe < geometry->n);
    CAIRN_ASSERT(row < geometry->m);
    return (stripe + row) % geometry->n;
}

uint32_t
cairn_chunk_stripe(const struct cairn_geometry *geometry, uint32_t position, uint32_t chunk)
{
    CAIRN_ASSERT(position < geometry->n);
    CAIRN_ASSERT(chunk < geometry->k);
    return (position + 1 + chunk) % geometry->n;
}

uint32_t
cairn_slot_stripe(const struct cairn_geometry *geometry, uint32_t position, uint32_t slot)
{
    CAIRN_ASSERT(position < geometry->n);
    CAIRN_ASSERT(slot < geometry->m);
    return (position + geometry->n - slot) % geometry->n;
}

uint64_t
cairn_geometry_all(const struct cairn_geometry *geometry)
{
    return geometry->n == 64 ? UINT64_MAX : ((uint64_t)1 << geometry->n) - 1;
}

/* Moves bit i of a set of n bits to bit (i + by) mod n. */
static uint64_t
rotate(const struct cairn_geometry *geometry, uint64_t set, uint32_t by)
{
    by %= geometry->n;
    if (by == 0)
        return set;
    return (set << by | set >> (geometry->n - by)) & cairn_geometry_all(geometry);
}

uint64_t
cairn_stripe_shards_of(const struct cairn_geometry *geometry, uint32_t stripe, uint64_t positions)
{
    CAIRN_ASSERT((positions & ~cairn_geometry_all(geometry)) == 0);
    return rotate(geometry, positions, cairn_stripe_shard(geometry, stripe, 0));
}

uint64_t
cairn_stripe_positions_of(const struct cairn_geometry *geometry, uint32_t stripe, uint64_t shards)
{
    CAIRN_ASSERT((shards & ~cairn_geometry_all(geometry)) == 0);
    return rotate(geometry, shards, cairn_stripe_position(geometry, stripe, 0));
}

static uint64_t
divide_up(uint64_t value, uint64_t by)
{
    return value / by + (value % by != 0);
}

static uint64_t
blocks_of_chunk(uint64_t shard_blocks, uint64_t stride, uint32_t chunk)
{
    uint64_t before = chunk * stride;

    if (shard_blocks <= before)
        return 0;
    return shard_blocks - before < stride ? shard_blocks - before : stride;
}

uint64_t
cairn_shard_blocks(const struct cairn_geometry *geometry, uint64_t shard_bytes)
{
    return divide_up(shard_bytes, geometry->block_bytes);
}

uint64_t
cairn_shard_chunk_blocks(const struct cairn_geometry *geometry, uint64_t shard_bytes)
{
    return divide_up(cairn_shard_blocks(geometry, shard_bytes), geometry->k);
}

uint64_t
cairn_chunk_blocks(const struct cairn_geometry *geometry, uint64_t shard_bytes, uint32_t chunk)
{
    CAIRN_ASSERT(chunk < geometry->k);
    return blocks_of_chunk(cairn_shard_blocks(geometry, shard_bytes),
                           cairn_shard_chunk_blocks(geometry, shard_bytes), chunk);
}

static struct cairn_place
data_place(const struct cairn_geometry *geometry, uint32_t position, uint64_t stride,
           uint64_t block)
{
    struct cairn_place place = {0};

    place.chunk = (uint32_t)(block / stride);
    place.line = block % stride;
    place.stripe = cairn_chunk_stripe(geometry, position, place.chunk);
    place.shard = geometry->k - 1 - place.chunk;
    return place;
}

cairn_err
cairn_stripes_init(const struct cairn_geometry *geometry, const uint64_t *shard_bytes,
                   struct cairn_stripes *out)
{
    uint32_t n = geometry->n;

    for (uint32_t p = 0; p < n; p++)
        if (shard_bytes[p] > shard_bytes_max)
            return CAIRN_INVAL;
    memset(out, 0, sizeof *out);
    out->geometry = *geometry;
    for (uint32_t p = 0; p < n; p++) {
        out->shard_bytes[p] = shard_bytes[p];
        out->shard_blocks[p] = cairn_shard_blocks(geometry, shard_bytes[p]);
        out->chunk_blocks[p] = cairn_shard_chunk_blocks(geometry, shard_bytes[p]);
    }
    for (uint32_t s = 0; s < n; s++)
        for (uint32_t p = 0; p < n; p++) {
            uint64_t blocks;

            if (cairn_stripe_chunk(geometry, s, p) == CAIRN_STRIPE_NONE)
                continue;
            blocks = cairn_stripes_blocks(out, s, p);
            if (blocks > out->parity_blocks[s])
                out->parity_blocks[s] = blocks;
        }
    return CAIRN_OK;
}

uint64_t
cairn_stripes_blocks(const struct cairn_stripes *stripes, uint32_t stripe, uint32_t position)
{
    uint32_t chunk = cairn_stripe_chunk(&stripes->geometry, stripe, position);

    if (chunk == CAIRN_STRIPE_NONE)
        return stripes->parity_blocks[stripe];
    return blocks_of_chunk(stripes->shard_blocks[position], stripes->chunk_blocks[position], chunk);
}

/* Where a slot of a position begins in its parity area; slot = m gives the area's length. */
static uint64_t
slot_first_block(const struct cairn_stripes *stripes, uint32_t position, uint32_t slot)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < slot; i++)
        sum += stripes->parity_blocks[cairn_slot_stripe(&stripes->geometry, position, i)];
    return sum;
}

uint64_t
cairn_stripes_area_blocks(const struct cairn_stripes *stripes, uint32_t position,
                          enum cairn_area area)
{
    CAIRN_ASSERT(position < stripes->geometry.n);
    if (area == CAIRN_AREA_DATA)
        return stripes->shard_blocks[position];
    return slot_first_block(stripes, position, stripes->geometry.m);
}

enum cairn_area
cairn_stripes_area(const struct cairn_stripes *stripes, uint32_t stripe, uint32_t position,
                   uint64_t *first_block)
{
    uint32_t d = distance(&stripes->geometry, stripe, position);

    if (d < stripes->geometry.m) {
        *first_block = slot_first_block(stripes, position, d);
        return CAIRN_AREA_PARITY;
    }
    *first_block = (stripes->geometry.n - 1 - d) * stripes->chunk_blocks[position];
    return CAIRN_AREA_DATA;
}

cairn_err
cairn_stripes_place(const struct cairn_stripes *stripes, uint32_t position, enum cairn_area area,
                    uint64_t block, struct cairn_place *out)
{
    const struct cairn_geometry *geometry = &stripes->geometry;

    if (position >= geometry->n || (area != CAIRN_AREA_DATA && area != CAIRN_AREA_PARITY) ||
        block >= cairn_stripes_area_blocks(stripes, position, area))
        return CAIRN_INVAL;
    if (area == CAIRN_AREA_DATA) {
        *out = data_place(geometry, position, stripes->chunk_blocks[position], block);
        return CAIRN_OK;
    }
    for (uint32_t slot = 0; slot < geometry->m; slot++) {
        uint32_t stripe = cairn_slot_stripe(geometry, position, slot);

        if (block < stripes->parity_blocks[stripe]) {
            *out = (struct cairn_place){
                .stripe = stripe, .shard = geometry->k + slot, .chunk = slot, .line = block};
            return CAIRN_OK;
        }
        block -= stripes->parity_blocks[stripe];
    }
    return CAIRN_INTERNAL; /* the slots add up to the area */
}
