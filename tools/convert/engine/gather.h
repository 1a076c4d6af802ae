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

#include "base/file.h"
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

/* Carries out the moves into `target`, which is target offset 0 of the moves; may reorder them.
 * CAIRN_CORRUPT if a file ends early, errors of reading; complained about with file and offset. */
CAIRN_MUST_CHECK cairn_err cairn_gather_run(struct cairn_gather *gather, struct cairn_move *moves,
                                            size_t count, uint8_t *target,
                                            struct cairn_complaint *complaint);

/* Reads a container from `at` on into parts[count], one after the other, from memory or its file.
 * Changes `parts`; none is empty. Errors as above. Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_gather_parts(const struct cairn_checkpoint *checkpoint,
                                              struct cairn_handles *handles, uint32_t container,
                                              uint64_t at, struct iovec *parts, int count,
                                              struct cairn_complaint *complaint);

enum { CAIRN_CLIPS_PER_MOVE_MAX = 3 };

/* Where the last byte of a move lies in its target container, plus one. */
uint64_t cairn_move_target_end(const struct cairn_move *move);

/* Appends to clips[*count …] what of a move is in [begin, end) of its target: the end of a run,
 * whole runs, the beginning of one; at most CAIRN_CLIPS_PER_MOVE_MAX. The clips' target offsets
 * count from `begin`. The move reaches into the range, and its runs do not overlap in the target.
 * */
void cairn_clip_move(const struct cairn_move *move, uint64_t begin, uint64_t end,
                     struct cairn_move *clips, size_t *count);

#endif
