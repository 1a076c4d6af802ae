/*
 * snapshot/reshard_runs.h - from a box that two pieces share to moves, and from many moves to
 * few.
 *
 * Internal to reshard. Pure.
 */
#ifndef CAIRN_SNAPSHOT_RESHARD_RUNS_H
#define CAIRN_SNAPSHOT_RESHARD_RUNS_H

#include "snapshot/reshard.h"
#include "snapshot/reshard_boxes.h"

/* Moves under construction. All zero is the empty one. */
struct cairn_move_list {
    struct cairn_move *moves;
    size_t count;
    size_t limit;
    uint64_t in_place_bytes;
};

void cairn_move_list_fini(struct cairn_move_list *list);

/* The offset of element `at` of the tensor in the container; it is inside the piece. */
uint64_t cairn_piece_offset(const struct cairn_piece *piece, const uint64_t *at, uint32_t dims);

/*
 * Appends the moves that carry `box` (inside both pieces) from the source's to the target's
 * container: one for each step of the dimensions that two levels cannot express. With
 * `same_containers`, runs that are in place are counted instead. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_moves_emit(struct cairn_move_list *list,
                                            const struct cairn_tensor *tensor,
                                            const struct cairn_piece *source,
                                            const struct cairn_piece *target,
                                            const struct cairn_box *box, bool same_containers);

/*
 * Merges the moves from `begin` on into as few as it can; they carry one tensor. Changes their
 * order.
 */
void cairn_moves_merge(struct cairn_move_list *list, size_t begin);

/* Sorts all by source container, then source offset, then target. */
void cairn_moves_sort(struct cairn_move_list *list);
#endif
