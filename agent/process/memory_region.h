/*
 * agent/process/memory_region.h - the files of an own slot's regions: one per rank, so that a
 * trainer is given its own region and nothing else.
 *
 * A region is a run of blocks, and the rank whose trainer captures there. Its file begins without
 * pages; snapshot/region.h moves those of the slot into it. The keeper holds the file from before
 * its first page; the name gives the next agent its blocks, and the table of moved bytes how many
 * of them it has.
 *
 * Invariants:
 *  1. Regions of a slot that have pages, or are about to get them, do not overlap.
 *  2. Regions that have pages are in the keeper, if there is one.
 *  3. A write to the slot's memory by this agent excludes moves (regions_write_begin).
 */
#ifndef CAIRN_AGENT_PROCESS_MEMORY_REGION_H
#define CAIRN_AGENT_PROCESS_MEMORY_REGION_H

#include "agent/process/keeper.h"
#include "base/limits.h"
#include "snapshot/arena.h"
#include "snapshot/region.h"

#include <pthread.h>

enum { MEMORY_REGIONS_MAX = 2 * CAIRN_RANKS_PER_NODE_MAX }; /* of a slot */

struct cairn_memory_region {
    struct cairn_region pages;
    uint32_t slot;
    uint32_t index; /* in the slot's list, and in the table of moved bytes */
    uint32_t rank;
    uint64_t first_block;
    uint64_t blocks; /* the pages, which are whole, may have more */
    bool is_kept;    /* in the keeper, or would be if there were one */
    bool is_moving;  /* a worker has it */
};

/* Of one slot. */
struct memory_regions {
    uint32_t slot;
    const struct cairn_arena *arena;
    _Atomic uint64_t *moved; /* [MEMORY_REGIONS_MAX] */
    struct cairn_memory_region *list[MEMORY_REGIONS_MAX];
    pthread_rwlock_t lock; /* a move holds it shared for each slice, a write alone */
    atomic_bool is_blank;  /* what is in the slot is not needed by anybody */
    atomic_bool is_stopping;
};

/* Finds the regions of a slot among the keeper's items: away[*away_count], by place, for
 * cairn_arena_adopt. arena_bytes: of the slot's own file in the keeper, 0: none. Drops unusable
 * items. */
void regions_find(struct memory_regions *regions, struct cairn_keeper *keeper,
                  struct cairn_keeper_item *items, uint32_t item_count, uint64_t arena_bytes,
                  struct cairn_arena_range away[MEMORY_REGIONS_MAX], uint32_t *away_count);

/* Maps what regions_find has found over the slot's arena. */
void regions_adopt(struct memory_regions *regions, const struct cairn_arena *arena);

CAIRN_MUST_CHECK cairn_err regions_init(struct memory_regions *regions, uint32_t slot,
                                        _Atomic uint64_t *moved);
void regions_fini(struct memory_regions *regions);

/* NULL: there is none. */
struct cairn_memory_region *regions_get(const struct memory_regions *regions, uint64_t first_block,
                                        uint64_t blocks, uint32_t rank);
/* Makes one without pages. CAIRN_FULL, CAIRN_NOMEM, CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err regions_add(struct memory_regions *regions, uint64_t first_block,
                                       uint64_t blocks, uint32_t rank,
                                       struct cairn_memory_region **out);
/* Closes one that has no pages and is not moving. */
void regions_drop(struct memory_regions *regions, struct cairn_memory_region *region,
                  struct cairn_keeper *keeper);
/* Passes it to the keeper, if there is one and it does not hold it yet. */
CAIRN_MUST_CHECK cairn_err regions_keep(struct cairn_memory_region *region,
                                        struct cairn_keeper *keeper);
/* Another region with pages, or in the keeper, in the place of this one; NULL. */
struct cairn_memory_region *regions_in_way(const struct memory_regions *regions,
                                           const struct cairn_memory_region *region);

/* Moves all pages of a region out of the slot's file, or back. CAIRN_AGAIN: stopped before the end.
 * Thread: a worker. */
CAIRN_MUST_CHECK cairn_err regions_move(struct memory_regions *regions,
                                        const struct cairn_memory_region *region, bool out);

/* Around a write to the slot: waits for at most one slice. */
void regions_write_begin(struct memory_regions *regions);
void regions_write_end(struct memory_regions *regions);

#endif
