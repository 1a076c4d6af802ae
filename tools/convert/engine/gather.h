/*
 * tools/convert/engine/gather.h - reads what moves say into a tile, in as few and as long reads as
 * it can.
 *
 * One gather belongs to one thread. Long runs go straight to their place in the tile: sorted by
 * where they lie, those that follow one another (or nearly) are one preadv. Short runs (transposes,
 * narrow columns) are read row by row into a staging buffer, all that lie side by side at once, and
 * scattered from there in memory.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_GATHER_H
#define CAIRN_TOOLS_CONVERT_ENGINE_GATHER_H

#include "snapshot/reshard.h"
#include "tools/convert/core/checkpoint.h"
#include "tools/convert/engine/handles.h"

struct cairn_gather;

/* Bytes that one gather allocates. */
size_t cairn_gather_bytes(void);

/* The checkpoint and the handles of its containers are borrowed. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_gather_create(const struct cairn_checkpoint *checkpoint,
                                               struct cairn_handles *handles,
                                               struct cairn_gather **out);
void cairn_gather_destroy(struct cairn_gather *gather); /* NULL is allowed */

/*
 * Carries out the moves into `target`, whose first byte is target offset 0 of the moves. May change
 * the order of the moves. CAIRN_CORRUPT where a file ends early; the errors of reading; all of them
 * complained about with file and offset.
 */
CAIRN_MUST_CHECK cairn_err cairn_gather_run(struct cairn_gather *gather, struct cairn_move *moves,
                                            size_t count, uint8_t *target,
                                            struct cairn_complaint *complaint);

#endif
