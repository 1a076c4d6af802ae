/*
 * agent/service/spill_fill.h - fills the buffers of one target container from blocks of the
 * sources, in bounded memory.
 *
 * The moves of a reshard plan say where every byte of a file comes from. A buffer (a range of the
 * file) is filled in passes: a pass takes as many of the buffer's runs as their source blocks fit a
 * window of FILL_WINDOW_BLOCKS blocks, has the blocks that are not in the window yet fetched, and
 * copies. Blocks that the next pass or buffer needs again are still in the window. Runs that cross
 * buffers or blocks are cut. Pure: the caller fetches.
 *
 *     fill_begin ─► fill_next ─ true: fetch runs ─► fill_copy ─► fill_next … ─ false: fill_check
 *
 * Memory: the window, and 8 bytes per move of the container.
 */
#ifndef CAIRN_AGENT_SERVICE_SPILL_FILL_H
#define CAIRN_AGENT_SERVICE_SPILL_FILL_H

#include "agent/service/fetch.h"
#include "base/limits.h"
#include "snapshot/reshard.h"

enum { FILL_WINDOW_BLOCKS = 128 };

struct fill;

/*
 * Makes a fill for the moves to target_container. moves is kept until fill_destroy. CAIRN_NOMEM;
 * CAIRN_INVAL if the runs of a move overlap in the target, or end beyond 63 bits.
 */
CAIRN_MUST_CHECK cairn_err fill_create(const struct cairn_moves *moves, uint32_t target_container,
                                       struct fill **out);
void fill_destroy(struct fill *fill); /* NULL is allowed */

/* Begins buffer[bytes], which is [offset, offset + bytes) of the target. Offsets of one fill only
 * grow. */
void fill_begin(struct fill *fill, uint8_t *buffer, uint64_t offset, size_t bytes);

/* The next pass: the caller fetches runs[*count] (at most FILL_WINDOW_BLOCKS), then calls
 * fill_copy. False: no bytes are left. */
bool fill_next(struct fill *fill, struct fetcher_run *runs, uint32_t *count);
void fill_copy(struct fill *fill);

/* True once the buffer is filled. */
bool fill_check(const struct fill *fill);

#endif
