/*
 * tools/convert/engine/clip.h - the part of a move that is in a tile: a range of the target
 * container.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_CLIP_H
#define CAIRN_TOOLS_CONVERT_ENGINE_CLIP_H

#include "snapshot/reshard.h"

enum { CAIRN_CLIPS_PER_MOVE_MAX = 3 };

/* Where the last byte of a move lies in its target container, plus one. */
uint64_t cairn_move_target_end(const struct cairn_move *move);

/*
 * Appends to clips[*count …] what of a move is in [begin, end) of its target: the end of a run,
 * whole runs, the beginning of one; at most CAIRN_CLIPS_PER_MOVE_MAX. The clips' target offsets
 * count from `begin`. The move reaches into the range, and its runs do not overlap in the target.
 */
void cairn_clip_move(const struct cairn_move *move, uint64_t begin, uint64_t end,
                     struct cairn_move *clips, size_t *count);

#endif
