/* snapshot/box.c - see box.h. */
#include "snapshot/box.h"

#include <string.h>

#include "base/assert.h"

bool
cairn_shape_equal(uint32_t dims, const uint64_t *shape, uint32_t other_dims, const uint64_t *other)
{
    return dims == other_dims && memcmp(shape, other, dims * sizeof(*shape)) == 0;
}

uint64_t
cairn_shape_elements(uint32_t dims, const uint64_t *shape)
{
    uint64_t elements = 1;

    for (uint32_t d = 0; d < dims; d++)
        elements *= shape[d];
    return elements;
}

bool
cairn_shape_bounded(uint32_t dims, const uint64_t *shape, uint64_t max, uint64_t *elements)
{
    *elements = 1;
    for (uint32_t d = 0; d < dims; d++)
        if (__builtin_mul_overflow(*elements, shape[d], elements) || *elements > max)
            return false;
    return true;
}

void
cairn_shape_strides(uint32_t dims, const uint64_t *shape, uint64_t element, uint64_t *strides)
{
    for (uint32_t d = dims; d-- > 0; element *= shape[d] > 0 ? shape[d] : 1)
        strides[d] = element;
}

uint64_t
cairn_tensor_bytes(const struct cairn_tensor *tensor)
{
    return cairn_dtype_bytes(tensor->dtype) * cairn_shape_elements(tensor->dims, tensor->shape);
}

uint64_t
cairn_box_end(const struct cairn_tensor *tensor, const struct cairn_piece *piece)
{
    uint64_t end = piece->offset_bytes + cairn_dtype_bytes(tensor->dtype);

    for (uint32_t d = 0; d < tensor->dims; d++) {
        CAIRN_ASSERT(piece->extent[d] > 0); /* a layout has no empty pieces */
        end += (piece->extent[d] - 1) * piece->stride_bytes[d];
    }
    return end;
}

bool
cairn_box_make(const struct cairn_tensor *known, uint32_t tensor, uint32_t container,
               const uint64_t *start, const uint64_t *extent, uint64_t offset_bytes,
               const uint64_t *stride_bytes, struct cairn_piece *piece)
{
    uint64_t stride = cairn_dtype_bytes(known->dtype);

    memset(piece, 0, sizeof(*piece));
    piece->tensor = tensor;
    piece->container = container;
    piece->offset_bytes = offset_bytes;
    for (uint32_t d = known->dims; d-- > 0;) {
        piece->start[d] = start ? start[d] : 0;
        piece->extent[d] = extent ? extent[d] : known->shape[d];
        piece->stride_bytes[d] = stride_bytes ? stride_bytes[d] : stride;
        if (piece->extent[d] == 0)
            return false;
        if (__builtin_mul_overflow(stride, piece->extent[d], &stride))
            stride = UINT64_MAX; /* such a box leaves its tensor, which the layout says */
    }
    return true;
}

cairn_err
cairn_box_add_tensor(struct cairn_layout *layout, const char *name, enum cairn_dtype dtype,
                     enum cairn_kind kind, uint32_t dims, const uint64_t *shape, uint32_t *index,
                     const char **why)
{
    struct cairn_slice slice = {
        .name = name, .dtype = dtype, .kind = kind, .dims = dims, .replica_count = 1};
    bool empty = false;
    cairn_err err;

    for (uint32_t d = 0; d < dims; d++) {
        slice.shape[d] = slice.extent[d] = shape[d];
        empty = empty || shape[d] == 0;
    }
    /* An empty flat range: the tensor alone. [1, 1) of a tensor without elements does not exist,
     * but its whole box is empty as it is. */
    err = cairn_layout_add(layout, 0, &slice, !empty, !empty, 0, why);
    if (!err)
        *index = cairn_layout_tensor_find(layout, name);
    return err;
}

cairn_err
cairn_box_copy_tensor(struct cairn_layout *layout, const struct cairn_tensor *tensor,
                      enum cairn_dtype dtype, uint32_t *index)
{
    return cairn_box_add_tensor(layout, tensor->name, dtype, tensor->kind, tensor->dims,
                                tensor->shape, index, NULL);
}

cairn_err
cairn_box_copy_whole(struct cairn_layout *layout, const struct cairn_tensor *tensor,
                     uint64_t offset_bytes)
{
    struct cairn_piece piece;
    uint32_t index;
    cairn_err err = cairn_box_copy_tensor(layout, tensor, tensor->dtype, &index);

    if (err || !cairn_box_make(tensor, index, 0, NULL, NULL, offset_bytes, NULL, &piece))
        return err;
    return cairn_layout_add_piece(layout, &piece);
}

cairn_err
cairn_box_add_flat(struct cairn_layout *layout, uint32_t tensor, uint32_t container,
                   const uint64_t *start, const uint64_t *extent, uint64_t flat_begin,
                   uint64_t flat_end, uint64_t offset_bytes, const char **why)
{
    /* A copy: the layout's own may move as it grows. */
    const struct cairn_tensor known = *cairn_layout_tensor(layout, tensor);
    struct cairn_slice slice = {.name = known.name,
                                .dtype = known.dtype,
                                .kind = known.kind,
                                .dims = known.dims,
                                .replica_count = 1};

    memcpy(slice.shape, known.shape, sizeof(slice.shape));
    for (uint32_t d = 0; d < known.dims; d++) {
        slice.offset[d] = start ? start[d] : 0;
        slice.extent[d] = extent ? extent[d] : known.shape[d];
    }
    return cairn_layout_add(layout, container, &slice, flat_begin, flat_end, offset_bytes, why);
}

uint32_t
cairn_box_by_stride(const struct cairn_tensor *tensor, const struct cairn_piece *piece,
                    uint32_t order[CAIRN_DIMS_MAX])
{
    uint32_t count = 0;

    for (uint32_t d = 0; d < tensor->dims; d++) {
        uint32_t at = count;

        if (piece->extent[d] == 1)
            continue;
        while (at > 0 && piece->stride_bytes[order[at - 1]] < piece->stride_bytes[d]) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = d;
        count++;
    }
    return count;
}

bool
cairn_box_nests(const struct cairn_tensor *tensor, const struct cairn_piece *piece)
{
    uint64_t span = cairn_dtype_bytes(tensor->dtype);
    uint32_t order[CAIRN_DIMS_MAX], count = cairn_box_by_stride(tensor, piece, order);

    for (uint32_t i = count; i-- > 0;) {
        if (piece->stride_bytes[order[i]] < span)
            return false;
        span += (piece->extent[order[i]] - 1) * piece->stride_bytes[order[i]];
    }
    return true;
}
