/*
 * snapshot/region.h - a range of an arena in a file of its own, so that another process can be
 * given this range and nothing else.
 *
 * A descriptor gives a whole file, never a part of it. So the range's pages move to a second file,
 * which is mapped in place of the arena's own pages: users of the arena see no difference. The
 * files have the same offsets: byte x of the arena is byte x of the region's file, which is a hole
 * before the region.
 *
 *        arena's file   |aaaaaaaa|        |aaaaaaaa|
 *        region's file           |rrrrrrrr|
 *        mapping        |aaaaaaaa|rrrrrrrr|aaaaaaaa|
 *
 * Pages move slice by slice, either way. `*moved` counts the bytes, from the region's begin, that
 * are in its own file. It is in memory that outlives the process, so that the next one can map both
 * files as they were left.
 *
 * Invariants:
 *  1. Bytes below `*moved` are in the region's file, the others in the arena's. This holds at every
 *     instant at which the process may die, except for one slice if huge pages are used up: its
 *     contents are lost then, and its checksum shows it.
 *  2. Both files together never have more than one slice of pages more than the arena alone.
 *  3. Readers of the arena see the same bytes before, during and after a move. The caller keeps
 *     writers away.
 */
#ifndef CAIRN_SNAPSHOT_REGION_H
#define CAIRN_SNAPSHOT_REGION_H

#include "cairn/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_arena;

struct cairn_region {
    const struct cairn_arena *arena; /* borrowed */
    uint64_t begin, end;             /* multiples of cairn_region_unit_bytes */
    int fd;                          /* of its own file */
    _Atomic uint64_t *moved;         /* borrowed; a multiple of the unit, at most end - begin */
};

/* What begin and end are multiples of: the arena's pages, and blocks. */
uint64_t cairn_region_unit_bytes(const struct cairn_arena *arena);

/*
 * Makes the region's file, which has no pages yet and is sealed as an arena is. `name` is what
 * /proc shows. region->arena, begin and end are set; on success region->fd is the caller's, who
 * closes it. CAIRN_NOMEM, CAIRN_IO. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_region_create(const char *name, struct cairn_region *region);

/*
 * Maps what an earlier process left in the region's file, given in region->fd with all other fields
 * set; the arena was adopted around it. CAIRN_CORRUPT: it is another file, or *moved is impossible;
 * CAIRN_NOMEM. The caller keeps the descriptor. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_region_adopt(const struct cairn_region *region);

/*
 * Moves the next slice of pages into the region's file (`out` true) or back to the arena's.
 * Contents go with them if `keep`; else they become zeros, or what the file had. CAIRN_AGAIN: one
 * was moved and more are left; CAIRN_OK: none is left; CAIRN_NOMEM, CAIRN_IO: nothing has changed.
 * Thread: one per region at a time; nobody writes to the region meanwhile.
 */
CAIRN_MUST_CHECK cairn_err cairn_region_move(const struct cairn_region *region, bool out,
                                             bool keep);

#endif
