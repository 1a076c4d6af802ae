/* tools/convert/maps/sizes.h - the sizes of a rule's axes, found from shapes and from what is
 * known, and shapes from the sizes. Pure. */
#ifndef CAIRN_TOOLS_CONVERT_MAPS_SIZES_H
#define CAIRN_TOOLS_CONVERT_MAPS_SIZES_H

#include "tools/convert/maps/language.h"

/* A tensor with its pattern. */
struct cairn_map_shape {
    const struct cairn_map_tensor *pattern; /* shaped */
    const char *name;
    uint32_t dims;
    const uint64_t *shape; /* [dims] */
};

/* Finds the size of every axis of shapes[count]: values[] (by symbol) come with what is known (0:
 * not), and get all. Every dimension must be its product, a padded one at least that. CAIRN_INVAL
 * if one is not, or an axis stays unknown; complained about with tensor, shape, rule and what to
 * do. */
CAIRN_MUST_CHECK cairn_err cairn_map_sizes_find(const struct cairn_map *map,
                                                const struct cairn_map_rule *rule,
                                                const struct cairn_map_shape *shapes, size_t count,
                                                uint64_t values[CAIRN_MAP_SYMBOLS_MAX],
                                                struct cairn_complaint *complaint);

/* A dimension's length without padding; false if an axis is unknown, or it is too long. */
bool cairn_map_length(const struct cairn_map_dim *dim, const uint64_t *values, uint64_t *length);

/* The size of a sum's term, and of what stands before it in the sum; of one that is not a sum, its
 * size and 0. All axes are known, and the dimension has a length. */
uint64_t cairn_map_term_size(const struct cairn_map_term *term, const uint64_t *values);
uint64_t cairn_map_factor_size(const struct cairn_map_factor *factor, const uint64_t *values);

#endif
