/* snapshot/box.h - boxes of tensors in a layout: adding and measuring them. */
#ifndef CAIRN_SNAPSHOT_BOX_H
#define CAIRN_SNAPSHOT_BOX_H

#include "snapshot/layout.h"

/* Whether two shapes are the same. */
bool cairn_shape_equal(uint32_t dims, const uint64_t *shape, uint32_t other_dims,
                       const uint64_t *other);

/* The elements of a shape or an extent in a layout, where they cannot overflow. */
uint64_t cairn_shape_elements(uint32_t dims, const uint64_t *shape);
/* The same for a shape from outside; false if it has more than `max`. */
bool cairn_shape_bounded(uint32_t dims, const uint64_t *shape, uint64_t max, uint64_t *elements);

/* The strides of a row-major array whose elements are `element` apart. A size of 0 counts as 1. */
void cairn_shape_strides(uint32_t dims, const uint64_t *shape, uint64_t element, uint64_t *strides);

/* The bytes of all elements of a tensor in a layout. */
uint64_t cairn_tensor_bytes(const struct cairn_tensor *tensor);

/* Where a piece in a layout ends in its container: after its farthest element. */
uint64_t cairn_box_end(const struct cairn_tensor *tensor, const struct cairn_piece *piece);

/*
 * Fills in a piece that is a box of tensor number `tensor`, `known`, with its first element at
 * offset_bytes of the container. start and extent NULL: the whole tensor; stride_bytes NULL:
 * row-major without gaps. False if the box is empty. The layout checks that it lies in its tensor.
 */
bool cairn_box_make(const struct cairn_tensor *known, uint32_t tensor, uint32_t container,
                    const uint64_t *start, const uint64_t *extent, uint64_t offset_bytes,
                    const uint64_t *stride_bytes, struct cairn_piece *piece);

/* Adds a tensor without pieces; *index gets its number, also if it exists already. Errors:
 * those of cairn_layout_add; *why may be NULL. */
CAIRN_MUST_CHECK cairn_err cairn_box_add_tensor(struct cairn_layout *layout, const char *name,
                                                enum cairn_dtype dtype, enum cairn_kind kind,
                                                uint32_t dims, const uint64_t *shape,
                                                uint32_t *index, const char **why);

/* Adds a tensor as in another layout, but of this dtype and without pieces; or as a whole,
 * row-major at offset_bytes of container 0. Errors as above. */
CAIRN_MUST_CHECK cairn_err cairn_box_copy_tensor(struct cairn_layout *layout,
                                                 const struct cairn_tensor *tensor,
                                                 enum cairn_dtype dtype, uint32_t *index);
CAIRN_MUST_CHECK cairn_err cairn_box_copy_whole(struct cairn_layout *layout,
                                                const struct cairn_tensor *tensor,
                                                uint64_t offset_bytes);

/* Adds the elements [flat_begin, flat_end), not none, of the row-major box [start, start + extent)
 * of a tensor of the layout; NULL and errors as above. */
CAIRN_MUST_CHECK cairn_err cairn_box_add_flat(struct cairn_layout *layout, uint32_t tensor,
                                              uint32_t container, const uint64_t *start,
                                              const uint64_t *extent, uint64_t flat_begin,
                                              uint64_t flat_end, uint64_t offset_bytes,
                                              const char **why);

/* The dimensions of more than one step, longest stride first; returns how many. */
uint32_t cairn_box_by_stride(const struct cairn_tensor *tensor, const struct cairn_piece *piece,
                             uint32_t order[CAIRN_DIMS_MAX]);

/* Whether no byte of a piece is two elements: the strides nest. */
bool cairn_box_nests(const struct cairn_tensor *tensor, const struct cairn_piece *piece);

#endif
