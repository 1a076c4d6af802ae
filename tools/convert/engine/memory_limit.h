/*
 * tools/convert/engine/memory_limit.h - how large tiles are and how many threads run, so that the
 * whole process stays below a limit of memory.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_MEMORY_LIMIT_H
#define CAIRN_TOOLS_CONVERT_ENGINE_MEMORY_LIMIT_H

#include "tools/convert/engine/execute.h"

/* Sets tile_bytes (at most CAIRN_TILE_BYTES_MAX, a multiple of 64 KiB) and thread_count (at most
 * its current value) so that resident memory and what threads will allocate stay below limit_bytes;
 * spare_bytes becomes spare_per_tile times the tile. CAIRN_INVAL, with the sum, if one thread with
 * the smallest tile is too much; CAIRN_IO without Linux' /proc. */
CAIRN_MUST_CHECK cairn_err cairn_memory_limit_fit(struct cairn_execution *execution,
                                                  uint64_t limit_bytes, uint64_t spare_per_tile,
                                                  struct cairn_complaint *complaint);

/* Refuses what cannot fit before it is allocated: `wanted_bytes` more than what is resident now.
 * `what` names it. Errors as above. */
CAIRN_MUST_CHECK cairn_err cairn_memory_limit_check(uint64_t limit_bytes, uint64_t wanted_bytes,
                                                    const char *what,
                                                    struct cairn_complaint *complaint);

/* The most memory that a plan of so many pieces of source and target takes, in bytes. */
uint64_t cairn_memory_limit_plan_bytes(size_t source_pieces, size_t target_pieces);

#endif
