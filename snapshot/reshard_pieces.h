/*
 * snapshot/reshard_pieces.h - the pieces of a layout in the order in which tiling and reshard
 * walk them.
 *
 * Internal to layout and reshard. Borrows the layout, which must not grow meanwhile.
 */
#ifndef CAIRN_SNAPSHOT_RESHARD_PIECES_H
#define CAIRN_SNAPSHOT_RESHARD_PIECES_H

#include "snapshot/layout.h"

/*
 * The pieces of a layout, tensor by tensor: those of tensor t are piece[begin[t]] to
 * piece[begin[t + 1] - 1], sorted by box, then container, then offset, so that replicas stand
 * side by side. CAIRN_NOMEM.
 */
struct cairn_piece_table {
    size_t *begin; /* tensor count + 1 */
    const struct cairn_piece **piece;
};

CAIRN_MUST_CHECK cairn_err cairn_piece_table_init(struct cairn_piece_table *table,
                                                  const struct cairn_layout *layout);
void cairn_piece_table_fini(struct cairn_piece_table *table);

/* The pieces from `at` on that have the box of piece[at], within the same tensor: at least 1. */
size_t cairn_piece_replicas(const struct cairn_piece_table *table, size_t at, size_t end,
                            uint32_t dims);
#endif
