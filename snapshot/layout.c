/*
 * snapshot/layout.c - the layout as two growing tables, and the lowering of flat ranges to
 * pieces.
 *
 * Tensors are found by name through a table of open addressing (linear probing, at most half
 * full, of tensor index + 1, 0 being empty). An add first makes room for all that it may append,
 * so that a failure leaves the tables as they were.
 */
#include "snapshot/layout.h"

#include <stdlib.h>
#include <string.h>

enum { PIECES_PER_ADD_MAX = 2 * CAIRN_DIMS_MAX - 1 };

/* A tensor's pieces: their count, and the last. */
struct owned {
    size_t count;
    size_t last;
};

struct cairn_layout {
    struct cairn_tensor *tensors;
    struct owned *owned; /* [tensor_limit] */
    uint32_t tensor_count;
    uint32_t tensor_limit;
    uint32_t *slots; /* slot_count, a power of two, is 0 before the first tensor */
    uint32_t slot_count;
    struct cairn_piece *pieces;
    size_t piece_count;
    size_t piece_limit;
};

cairn_err
cairn_layout_create(struct cairn_layout **out)
{
    struct cairn_layout *layout = calloc(1, sizeof *layout);

    if (!layout)
        return CAIRN_NOMEM;
    *out = layout;
    return CAIRN_OK;
}

void
cairn_layout_destroy(struct cairn_layout *layout)
{
    if (!layout)
        return;
    free(layout->tensors);
    free(layout->owned);
    free(layout->slots);
    free(layout->pieces);
    free(layout);
}

/* FNV-1a: names are short and few enough. */
static uint32_t
name_hash(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return (uint32_t)(hash ^ (hash >> 32));
}

/* The slot that has the name, or the empty one for it. slot_count > 0. */
static uint32_t
slot_of(const struct cairn_layout *layout, const char *name)
{
    uint32_t mask = layout->slot_count - 1;
    uint32_t slot = name_hash(name) & mask;

    while (layout->slots[slot] && strcmp(layout->tensors[layout->slots[slot] - 1].name, name) != 0)
        slot = (slot + 1) & mask;
    return slot;
}

/* Makes room for one more tensor. */
static cairn_err
reserve_tensor(struct cairn_layout *layout)
{
    uint32_t limit = layout->tensor_limit ? 2 * layout->tensor_limit : 16;
    uint32_t slot_count = 2 * limit;
    struct cairn_tensor *tensors;
    struct owned *owned;
    uint32_t *slots;

    if (layout->tensor_count < layout->tensor_limit)
        return CAIRN_OK;
    if (layout->tensor_limit > UINT32_MAX / 8)
        return CAIRN_NOMEM;
    tensors = realloc(layout->tensors, limit * sizeof *tensors);
    if (!tensors)
        return CAIRN_NOMEM;
    layout->tensors =
        tensors; /* larger than tensor_limit says, which does no harm if what follows fails */
    owned = realloc(layout->owned, limit * sizeof *owned);
    if (!owned)
        return CAIRN_NOMEM;
    layout->owned = owned;
    slots = calloc(slot_count, sizeof *slots);
    if (!slots)
        return CAIRN_NOMEM;
    free(layout->slots);
    layout->slots = slots;
    layout->slot_count = slot_count;
    layout->tensor_limit = limit;
    for (uint32_t i = 0; i < layout->tensor_count; i++)
        layout->slots[slot_of(layout, layout->tensors[i].name)] = i + 1;
    return CAIRN_OK;
}

static cairn_err
reserve_pieces(struct cairn_layout *layout, size_t count)
{
    size_t limit = layout->piece_limit ? 2 * layout->piece_limit : 32;
    struct cairn_piece *pieces;

    if (layout->piece_limit - layout->piece_count >= count)
        return CAIRN_OK;
    if (limit > SIZE_MAX / sizeof *pieces)
        return CAIRN_NOMEM;
    pieces = realloc(layout->pieces, limit * sizeof *pieces);
    if (!pieces)
        return CAIRN_NOMEM;
    layout->pieces = pieces;
    layout->piece_limit = limit;
    return CAIRN_OK;
}

/* Whether a known tensor is the slice's tensor; *fault gets what differs. */
static bool
tensor_agrees(const struct cairn_tensor *tensor, const struct cairn_slice *slice,
              const char **fault)
{
    if (tensor->dtype != slice->dtype)
        *fault = "the tensor is known with another dtype";
    else if (tensor->kind != slice->kind)
        *fault = "the tensor is known with another kind";
    else if (tensor->dims != slice->dims ||
             memcmp(tensor->shape, slice->shape, slice->dims * sizeof slice->shape[0]) != 0)
        *fault = "the tensor is known with another shape";
    else
        return true;
    return false;
}

/* Appends the slice's tensor. Room is reserved and the name unknown. */
static uint32_t
append_tensor(struct cairn_layout *layout, const struct cairn_slice *slice)
{
    uint32_t index = layout->tensor_count++;
    struct cairn_tensor *tensor = &layout->tensors[index];

    layout->owned[index] = (struct owned){0};
    memset(tensor, 0, sizeof *tensor);
    memcpy(tensor->name, slice->name, strlen(slice->name));
    tensor->dtype = slice->dtype;
    tensor->kind = slice->kind;
    tensor->dims = slice->dims;
    memcpy(tensor->shape, slice->shape, slice->dims * sizeof slice->shape[0]);
    layout->slots[slot_of(layout, tensor->name)] = index + 1;
    return index;
}

/* Appends an empty piece of a tensor. Room is reserved. */
static struct cairn_piece *
append_piece(struct cairn_layout *layout, uint32_t tensor)
{
    struct cairn_piece *piece = &layout->pieces[layout->piece_count];

    layout->owned[tensor].count++;
    layout->owned[tensor].last = layout->piece_count++;
    memset(piece, 0, sizeof *piece);
    piece->tensor = tensor;
    return piece;
}

/*
 * Appends the flat range [at, end) of the slice's box as boxes: at each step the longest run of
 * whole units of the outermost dimension whose unit begins at `at`. The units grow on the way out
 * of the first row and shrink on the way into the last, so a dimension is used at most twice, and
 * the first once. Room is reserved.
 */
static void
append_range(struct cairn_layout *layout, const struct cairn_slice *slice, uint32_t tensor,
             uint32_t container, uint64_t at, uint64_t end, uint64_t offset_bytes)
{
    uint64_t element_bytes = cairn_dtype_bytes(slice->dtype);
    uint64_t begin = at;
    uint64_t unit[CAIRN_DIMS_MAX] = {0}; /* elements of one step along a dimension of the box */

    for (uint32_t d = slice->dims; d-- > 0;)
        unit[d] = d + 1 < slice->dims ? unit[d + 1] * slice->extent[d + 1] : 1;
    do {
        struct cairn_piece *piece = append_piece(layout, tensor);
        uint64_t taken = 1;
        uint32_t cut = 0;

        piece->container = container;
        piece->offset_bytes = offset_bytes + (at - begin) * element_bytes;
        while (cut + 1 < slice->dims && (at % unit[cut] != 0 || end - at < unit[cut]))
            cut++;
        for (uint32_t d = 0; d < slice->dims; d++) {
            uint64_t index = at / unit[d] % slice->extent[d];

            piece->start[d] = slice->offset[d] + index;
            piece->extent[d] = d < cut ? 1 : slice->extent[d];
            piece->stride_bytes[d] = unit[d] * element_bytes;
            if (d == cut) {
                uint64_t whole = (end - at) / unit[d];

                piece->extent[d] =
                    slice->extent[d] - index < whole ? slice->extent[d] - index : whole;
                taken = piece->extent[d] * unit[d];
            }
        }
        at += taken;
    } while (at < end);
}

/* Why a range of a slice at offset_bytes is wrong, NULL if it is right. */
static const char *
range_fault(const struct cairn_slice *slice, uint64_t flat_begin, uint64_t flat_end,
            uint64_t offset_bytes)
{
    struct cairn_slice ranged = *slice;
    const char *fault = NULL;
    uint64_t end_bytes;

    ranged.flat_begin = flat_begin;
    ranged.flat_end = flat_end;
    ranged.replica_index = 0;
    if (cairn_slice_check(&ranged, &fault) != CAIRN_OK)
        return fault;
    end_bytes = cairn_slice_elements(&ranged) * cairn_dtype_bytes(slice->dtype);
    if (offset_bytes > INT64_MAX || end_bytes > INT64_MAX - offset_bytes)
        return "the offset in the container is too large";
    return NULL;
}

cairn_err
cairn_layout_add(struct cairn_layout *layout, uint32_t container, const struct cairn_slice *slice,
                 uint64_t flat_begin, uint64_t flat_end, uint64_t offset_bytes, const char **why)
{
    const char *fault = range_fault(slice, flat_begin, flat_end, offset_bytes);
    uint32_t tensor = UINT32_MAX;
    cairn_err err;

    if (!fault) {
        tensor = cairn_layout_tensor_find(layout, slice->name);
        if (tensor != UINT32_MAX)
            (void)tensor_agrees(&layout->tensors[tensor], slice, &fault);
    }
    if (fault) {
        if (why)
            *why = fault;
        return CAIRN_INVAL;
    }
    err = reserve_pieces(layout, PIECES_PER_ADD_MAX);
    if (!err && tensor == UINT32_MAX)
        err = reserve_tensor(layout);
    if (err)
        return err;
    if (tensor == UINT32_MAX)
        tensor = append_tensor(layout, slice);
    if (flat_end == 0) {
        flat_end = 1;
        for (uint32_t d = 0; d < slice->dims; d++)
            flat_end *= slice->extent[d];
    }
    if (flat_begin < flat_end)
        append_range(layout, slice, tensor, container, flat_begin, flat_end, offset_bytes);
    return CAIRN_OK;
}

cairn_err
cairn_layout_add_piece(struct cairn_layout *layout, const struct cairn_piece *piece)
{
    const struct cairn_tensor *tensor;
    struct cairn_piece *copy;
    uint64_t end_bytes = piece->offset_bytes;
    cairn_err err;

    if (piece->tensor >= layout->tensor_count)
        return CAIRN_INVAL;
    tensor = &layout->tensors[piece->tensor];
    for (uint32_t d = 0; d < tensor->dims; d++) {
        uint64_t span_bytes;

        if (piece->extent[d] == 0 || piece->start[d] > tensor->shape[d] ||
            piece->extent[d] > tensor->shape[d] - piece->start[d])
            return CAIRN_INVAL;
        if (__builtin_mul_overflow(piece->extent[d] - 1, piece->stride_bytes[d], &span_bytes) ||
            __builtin_add_overflow(end_bytes, span_bytes, &end_bytes))
            return CAIRN_INVAL;
    }
    if (end_bytes > INT64_MAX - cairn_dtype_bytes(tensor->dtype))
        return CAIRN_INVAL;
    err = reserve_pieces(layout, 1);
    if (err)
        return err;
    copy = append_piece(layout, piece->tensor);
    *copy = *piece;
    for (uint32_t d = tensor->dims; d < CAIRN_DIMS_MAX; d++)
        copy->start[d] = copy->extent[d] = copy->stride_bytes[d] = 0;
    return CAIRN_OK;
}

uint32_t
cairn_layout_tensor_count(const struct cairn_layout *layout)
{
    return layout->tensor_count;
}

const struct cairn_tensor *
cairn_layout_tensor(const struct cairn_layout *layout, uint32_t index)
{
    return &layout->tensors[index];
}

uint32_t
cairn_layout_tensor_find(const struct cairn_layout *layout, const char *name)
{
    if (layout->slot_count == 0)
        return UINT32_MAX;
    return layout->slots[slot_of(layout, name)] -
           1; /* an empty slot is 0, and 0 - 1 is UINT32_MAX */
}

size_t
cairn_layout_piece_count(const struct cairn_layout *layout)
{
    return layout->piece_count;
}

const struct cairn_piece *
cairn_layout_piece(const struct cairn_layout *layout, size_t index)
{
    return &layout->pieces[index];
}

const struct cairn_piece *
cairn_layout_only_piece(const struct cairn_layout *layout, uint32_t tensor)
{
    const struct owned *owned = &layout->owned[tensor];

    return owned->count == 1 ? &layout->pieces[owned->last] : NULL;
}
