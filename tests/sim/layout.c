/*
 * tests/sim/layout.c - which tensors the ranks register, and the manifests of what they captured of
 * them.
 *
 * Every rank that has blocks holds 2 elements of "w", a quarter of "p" (as replicas that share the
 * copying: a flat range), a blob of its own, and is a replica of the scalar "r", which the first
 * one captures; that holds the scalar "s" too. In some lives of some schedules, the second holds
 * what the first does of "w", so that nobody holds its own elements; or "s", which is then there
 * twice; or the first says that it is the second replica of "r" too, which nobody captures then.
 * Nothing of such a life may ever be captured.
 */
#include "tests/sim/sim.h"

#include "base/limits.h"
#include "snapshot/manifest.h"

#include <stdio.h>
#include <stdlib.h>

enum { ENTRIES_PER_RANK = 5, NAME_BYTES = 16 };

/* Ranks with blocks before a rank, or of the whole job with member = members. */
static uint64_t
holders_before(const struct world *world, uint64_t life, uint32_t member, uint32_t rank)
{
    uint64_t count = 0;

    for (uint32_t m = 0; m < member; m++)
        for (uint32_t r = 0; r < world->setup.ranks; r++)
            count += gang_rank_blocks(world, life, m, r) > 0;
    for (uint32_t r = 0; r < rank; r++)
        count += gang_rank_blocks(world, life, member, r) > 0;
    return count;
}

enum layout_kind
layout_choose(struct world *world, uint64_t life, uint32_t members)
{
    if (!world->setup.untiled || world->healed || !random_chance(&world->random, 400) ||
        holders_before(world, life, members, 0) < 2)
        return LAYOUT_GOOD;
    return (enum layout_kind)random_between(&world->random, LAYOUT_UNEVEN, LAYOUT_UNNUMBERED);
}

static struct cairn_manifest_entry *
add_entry(struct cairn_manifest *manifest, const char *name, uint64_t offset_bytes, uint32_t rank)
{
    struct cairn_manifest_entry *entry = &manifest->entries[manifest->entry_count++];

    *entry = (struct cairn_manifest_entry){.offset_bytes = offset_bytes, .rank = rank};
    entry->slice = (struct cairn_slice){.name = name,
                                        .dtype = CAIRN_F32,
                                        .kind = CAIRN_PARAM,
                                        .dims = 1,
                                        .device = -1,
                                        .replica_count = 1};
    return entry;
}

/* What one rank captured; `holder` of `holders` ranks that have blocks. */
static void
add_rank(struct cairn_manifest *manifest, enum layout_kind kind, uint32_t rank, uint64_t holder,
         uint64_t holders, uint64_t at_bytes, char *name)
{
    struct cairn_slice *slice = &add_entry(manifest, "w", at_bytes, rank)->slice;

    slice->shape[0] = 2 * holders;
    slice->offset[0] = kind == LAYOUT_UNEVEN && holder == 1 ? 0 : 2 * holder;
    slice->extent[0] = 2;
    slice = &add_entry(manifest, "p", at_bytes + 64, rank)->slice;
    slice->dims = 2;
    slice->shape[0] = slice->extent[0] = 3;
    slice->shape[1] = slice->extent[1] = holders;
    slice->flat_begin = 3 * holder;
    slice->flat_end = 3 * holder + 3;
    snprintf(name, NAME_BYTES, "rank%u", rank);
    slice = &add_entry(manifest, name, at_bytes + 128, rank)->slice;
    slice->dtype = CAIRN_U8;
    slice->kind = CAIRN_OPAQUE;
    slice->shape[0] = slice->extent[0] = 1 + rank % 3;
    if (holder == 0 || (holder == 1 && kind == LAYOUT_DOUBLE))
        add_entry(manifest, "s", at_bytes + 192, rank)->slice.dims = 0;
    slice = &add_entry(manifest, "r", at_bytes + 256, rank)->slice;
    slice->dims = 0;
    slice->replica_index = kind == LAYOUT_UNNUMBERED && holder == 0 ? 1 : (uint32_t)holder;
    slice->replica_count = (uint32_t)holders;
    if (slice->replica_index > 0)
        slice->flat_begin = slice->flat_end = 1;
}

bool
layout_manifest(const struct world *world, const struct layout_of *of, uint8_t **bytes, size_t *len)
{
    bool has_ranks = of->gang_member != UINT32_MAX;
    uint64_t blocks = has_ranks ? gang_blocks(world, of->life, of->gang_member) : 0, at = 0;
    uint64_t holders = has_ranks ? holders_before(world, of->life, of->gang_members, 0) : 0;
    struct cairn_manifest manifest = {.job_id = 1,
                                      .generation = of->generation,
                                      .container = of->container,
                                      .container_count = of->container_count,
                                      .container_bytes = blocks * CAIRN_BLOCK_BYTES,
                                      .block_count = blocks};
    struct cairn_manifest_rank ranks[RANKS_MAX];
    struct cairn_manifest_entry entries[RANKS_MAX * ENTRIES_PER_RANK];
    char names[RANKS_MAX][NAME_BYTES];
    cairn_err err;

    manifest.ranks = ranks;
    manifest.entries = entries;
    manifest.block_crcs = some_zeros(blocks, sizeof(uint64_t));
    for (uint32_t r = 0; has_ranks && r < world->setup.ranks; r++) {
        uint64_t count = gang_rank_blocks(world, of->life, of->gang_member, r);
        uint32_t rank = of->gang_member * world->setup.ranks + r;

        if (count == 0)
            continue;
        ranks[manifest.rank_count++] =
            (struct cairn_manifest_rank){.rank = rank,
                                         .world = of->gang_members * world->setup.ranks,
                                         .region_offset = at * CAIRN_BLOCK_BYTES,
                                         .region_bytes = count * CAIRN_BLOCK_BYTES};
        add_rank(&manifest, of->kind, rank, holders_before(world, of->life, of->gang_member, r),
                 holders, at * CAIRN_BLOCK_BYTES, names[r]);
        at += count;
    }
    err = cairn_manifest_pack(&manifest, bytes, len);
    free(manifest.block_crcs);
    return err == CAIRN_OK;
}
