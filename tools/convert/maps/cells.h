/*
 * tools/convert/maps/cells.h - one part of a rule as boxes of the target tensor, each an affine
 * image of elements of the source tensor.
 *
 * Every axis of a part has a dimension and a step in both tensors. Axes that run along one
 * dimension of the target without gaps, and evenly along one of the source, make the box; the
 * others are counted through. So a query group is a box of rows, and a transposed matrix is one
 * box. Pure.
 */
#ifndef CAIRN_TOOLS_CONVERT_MAPS_CELLS_H
#define CAIRN_TOOLS_CONVERT_MAPS_CELLS_H

#include "cairn/types.h"
#include "tools/convert/maps/language.h"

enum { CAIRN_MAP_OUTER_MAX = 32, CAIRN_MAP_CELLS_MAX = 1 << 22 };

/* Along one axis: which dimension of each tensor, and how many of its elements a step is. */
struct cairn_map_stride {
    uint64_t size;
    uint32_t source_dim, target_dim;
    uint64_t source_step, target_step;
};

struct cairn_map_cells {
    uint32_t source_dims, target_dims;
    uint64_t source_base[CAIRN_DIMS_MAX], target_base[CAIRN_DIMS_MAX];
    struct cairn_map_stride runs[CAIRN_DIMS_MAX]; /* by target dimension; target_step is 1 */
    struct cairn_map_stride outer[CAIRN_MAP_OUTER_MAX];
    uint64_t at[CAIRN_MAP_OUTER_MAX];
    uint32_t outer_count;
    uint64_t count, done;
};

struct cairn_map_cell {
    uint64_t target_start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX];
    uint64_t source_start[CAIRN_DIMS_MAX];
};

/*
 * Begins with part `part` of a rule: from source to target, both shaped, with all sizes known.
 * Captures that are axes of the other tensor have their number in fixed[] (by symbol), and
 * is_fixed[] says which. False: more boxes than CAIRN_MAP_CELLS_MAX, or more axes than fit.
 */
bool cairn_map_cells_init(const struct cairn_map_tensor *source,
                          const struct cairn_map_tensor *target, uint32_t part,
                          const uint64_t *values, const uint64_t *fixed, const bool *is_fixed,
                          struct cairn_map_cells *out);

/* The next box; false behind the last. */
bool cairn_map_cells_next(struct cairn_map_cells *cells, struct cairn_map_cell *cell);

#endif
