/*
 * agent/process/memory.h - the agent's memory: arenas of its own slots, of hosted parts, and their
 * records.
 *
 * Everything is reserved and pre-faulted at start, after the sum was compared with free memory:
 * `slots` times (data + parity), and one small arena of records. The keeper, if configured, holds
 * every descriptor; an agent that finds arenas of the right sizes there adopts them with their
 * contents. Hosted parts (of lost members, during and after a repair) are reserved when needed.
 *
 * Blocks are CAIRN_BLOCK_BYTES. A part index below `slots` is an own slot, others are hosted. The
 * data of own slots is cut into files, one per rank's region. Parity slot i of a part with m parity
 * slots begins at block i * (parity_blocks / m) of its parity arena. Thread: loop; workers may read
 * and write through pointers that they were given while the part is held (cairn_memory_hold).
 */
#ifndef CAIRN_AGENT_PROCESS_MEMORY_H
#define CAIRN_AGENT_PROCESS_MEMORY_H

#include "agent/process/keeper.h"
#include "base/limits.h"
#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_arena;
struct cairn_memory;

struct cairn_memory_options {
    uint32_t slots;
    uint32_t parts; /* own slots and hosted parts */
    uint64_t slot_blocks;
    uint64_t parity_blocks;
    uint64_t record_bytes; /* most bytes of one part's record */
    uint64_t ring_bytes;   /* that the caller reserves beside it; counted only */
    uint32_t data_count;   /* k and m, for the printed sum */
    uint32_t parity_count;
    bool hugepages;
    struct cairn_keeper *keeper; /* NULL: none; kept until close */
};

/*
 * Reserves or adopts. CAIRN_NOMEM: it does not fit; CAIRN_CONFIG: the keeper holds arenas of other
 * sizes; report[] has the sum, or what to do. *adopted: memory was taken over from an earlier
 * agent.
 */
CAIRN_MUST_CHECK cairn_err cairn_memory_open(const struct cairn_memory_options *options,
                                             struct cairn_memory **out, bool *adopted, char *report,
                                             size_t report_bytes);
/* Releases all; the keeper's items live on. NULL is allowed. */
void cairn_memory_close(struct cairn_memory *memory);

/*
 * The keeper has died: goes on with another one (kept until close), and passes it every arena.
 * Returns the first error of a put; refused arenas are then not kept, and the call may be repeated.
 */
CAIRN_MUST_CHECK cairn_err cairn_memory_keeper_set(struct cairn_memory *memory,
                                                   struct cairn_keeper *keeper);

/* All reserved bytes. */
uint64_t cairn_memory_reserved_bytes(const struct cairn_memory *memory);

/*
 * Regions: the blocks of an own slot that one rank captures into, in a file of their own, whose
 * descriptor only its trainer gets (memory_region.h). A region is known by its first block, a
 * multiple of the unit, its number of blocks, and its rank. Its file has no pages at first, so it
 * costs nothing. The pages of the slot then move into it; pages of other regions in the way go back
 * to the slot's own file first. Workers make the moves: next_move names the next one, and after it
 * the loop asks again.
 */
struct cairn_memory_region;

uint64_t cairn_memory_region_unit_blocks(const struct cairn_memory *memory);
/* NULL: there is none. slot is an own slot. */
struct cairn_memory_region *cairn_memory_region_find(const struct cairn_memory *memory,
                                                     uint32_t slot, uint64_t first_block,
                                                     uint64_t blocks, uint32_t rank);
/* Makes one without pages. CAIRN_FULL: the slot has too many; CAIRN_NOMEM: no memory, or no
 * descriptor; CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_memory_region_make(struct cairn_memory *memory, uint32_t slot,
                                                    uint64_t first_block, uint64_t blocks,
                                                    uint32_t rank,
                                                    struct cairn_memory_region **out);
/* The first block of a region with pages that the rank has in any slot, of this many blocks;
 * UINT64_MAX without one. */
uint64_t cairn_memory_region_place(const struct cairn_memory *memory, uint64_t blocks,
                                   uint32_t rank);
/* Borrowed. */
int cairn_memory_region_fd(const struct cairn_memory_region *region);
/* All of its pages are in its file: what its trainer writes is in the slot. */
bool cairn_memory_region_is_whole(const struct cairn_memory_region *region);
/* Ends a region without pages that is not moving. False: it has pages, and stays. */
bool cairn_memory_region_forget(struct cairn_memory *memory, struct cairn_memory_region *region);
/*
 * The next move towards a whole region: *moving, NULL for none now, whose pages go into its file
 * (*out) or back. It is moving until cairn_memory_region_moved. Errors of cairn_keeper_put.
 */
CAIRN_MUST_CHECK cairn_err cairn_memory_region_next_move(struct cairn_memory *memory,
                                                         struct cairn_memory_region *region,
                                                         struct cairn_memory_region **moving,
                                                         bool *out);
/* Carries a move out. CAIRN_AGAIN: stopped; CAIRN_NOMEM, CAIRN_IO: partly done, no byte is wrong.
 * Thread: a worker. */
CAIRN_MUST_CHECK cairn_err cairn_memory_region_move(struct cairn_memory *memory,
                                                    const struct cairn_memory_region *region,
                                                    bool out);
void cairn_memory_region_moved(struct cairn_memory_region *region);
/* A worker moves pages of a part. */
bool cairn_memory_is_moving(const struct cairn_memory *memory, uint32_t part);
/* All moves end soon; none begins. Before the workers are stopped. */
void cairn_memory_stop_moves(struct cairn_memory *memory);

/* Around writes to a part's data: they wait for a moving slice. */
void cairn_memory_write_begin(struct cairn_memory *memory, uint32_t part);
void cairn_memory_write_end(struct cairn_memory *memory, uint32_t part);

/* The address of blocks; NULL if the part has no or too little memory. */
uint8_t *cairn_memory_data(const struct cairn_memory *memory, uint32_t part, uint64_t block,
                           uint64_t count);
uint8_t *cairn_memory_parity(const struct cairn_memory *memory, uint32_t part, uint32_t parity_slot,
                             uint32_t parity_slots, uint64_t line, uint64_t count);

/* All of a part's data (area 0) or parity (1); NULL and 0 without memory. */
uint8_t *cairn_memory_area(const struct cairn_memory *memory, uint32_t part, uint32_t area,
                           size_t *bytes_len);

/* Stores (or with len 0 erases) a part's record, so that a death at any instruction leaves the
 * old or the new. */
CAIRN_MUST_CHECK cairn_err cairn_memory_record_store(struct cairn_memory *memory, uint32_t part,
                                                     const void *bytes, size_t len);
/* Loads a record; *bytes is NULL without one. CAIRN_CORRUPT if no copy passes its check. Freed by
 * the caller. */
CAIRN_MUST_CHECK cairn_err cairn_memory_record_load(struct cairn_memory *memory, uint32_t part,
                                                    uint8_t **bytes, size_t *len);
/*
 * False if the record of a part is lost, or one of its copies fails its check: storing it again
 * fixes that. Thread: any, beside stores too, while the part is held.
 */
bool cairn_memory_record_is_whole(const struct cairn_memory *memory, uint32_t part);

/*
 * Memory for a hosted part, in two steps, because reserving takes seconds per ten gigabytes:
 * reserve (in a worker; `memory` is read only), then host (in the loop), which takes over
 * *reserved. cairn_memory_unreserve gives back what was not hosted; all zero is allowed.
 * CAIRN_NOMEM with the sum in the log; CAIRN_INVAL if the part is not hosted or has memory already.
 * A refusal by the keeper is logged, and not a failure.
 */
struct cairn_memory_reserved {
    struct cairn_arena *data, *parity, *record;
};
CAIRN_MUST_CHECK cairn_err cairn_memory_reserve(const struct cairn_memory *memory,
                                                uint64_t data_blocks, uint64_t parity_blocks,
                                                struct cairn_memory_reserved *reserved);
CAIRN_MUST_CHECK cairn_err cairn_memory_host(struct cairn_memory *memory, uint32_t part,
                                             struct cairn_memory_reserved *reserved);
void cairn_memory_unreserve(struct cairn_memory_reserved *reserved);

/* A user (a message in flight, a worker's job) of a part's bytes; hosted memory is given back
 * after the last. */
void cairn_memory_hold(struct cairn_memory *memory, uint32_t part);
void cairn_memory_unhold(struct cairn_memory *memory, uint32_t part);
/* The part is free: hosted memory is given back as soon as nobody holds it. Own slots stay
 * reserved. */
void cairn_memory_free(struct cairn_memory *memory, uint32_t part);

#endif
