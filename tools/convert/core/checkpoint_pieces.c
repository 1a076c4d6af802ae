/*
 * tools/convert/core/checkpoint_pieces.c - a checkpoint's tensors, their pieces and aliases.
 *
 * Every piece is checked here against the size of its container. So a header with false numbers
 * cannot make the executor read past the end of a file.
 */
#include "tools/convert/core/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/assert.h"
#include "base/json.h"
#include "snapshot/box.h"

cairn_err
cairn_checkpoint_check_name(const struct cairn_checkpoint *checkpoint, const char *name)
{
    size_t bytes = strlen(name);
    const char *why = NULL;

    if (bytes >= CAIRN_NAME_BYTES_MAX)
        return cairn_refuse(
            checkpoint, CAIRN_CORRUPT,
            "%.100s…: the name has %zu bytes; at most %d are supported; shorten its keys", name,
            bytes, CAIRN_NAME_BYTES_MAX - 1);
    if (bytes == 0)
        why = "is empty; give it one";
    else if (!cairn_utf8_valid(name, bytes))
        why = "is not UTF-8; rename it";
    for (size_t i = 0; i < bytes && !why; i++)
        if ((uint8_t)name[i] < 0x20 || name[i] == 0x7f)
            why = "has a control character; rename it";
    return why ? cairn_refuse(checkpoint, CAIRN_CORRUPT, "%s: the name %s", name, why) : CAIRN_OK;
}

cairn_err
cairn_checkpoint_add_tensor(struct cairn_checkpoint *checkpoint, const char *name,
                            enum cairn_dtype dtype, enum cairn_kind kind, uint32_t dims,
                            const uint64_t *shape, uint32_t *tensor)
{
    const char *why = "";
    cairn_err err;

    if (dims > CAIRN_DIMS_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "tensor %.300s has %" PRIu32 " dimensions; at most %d are known", name,
                            dims, CAIRN_DIMS_MAX);
    if (cairn_layout_tensor_count(checkpoint->layout) >= CAIRN_CONVERT_TENSORS_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT, "more than %d tensors",
                            CAIRN_CONVERT_TENSORS_MAX);
    err = cairn_checkpoint_check_name(checkpoint, name);
    if (err)
        return err;
    err = cairn_box_add_tensor(checkpoint->layout, name, dtype, kind, dims, shape, tensor, &why);
    if (err == CAIRN_INVAL)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT, "tensor %.300s: %s", name, why);
    if (err)
        return cairn_refuse(checkpoint, err, "no memory for %" PRIu32 " tensors",
                            cairn_layout_tensor_count(checkpoint->layout));
    return CAIRN_OK;
}

/* Checks the pieces that the layout accepted, from `first` on. */
static cairn_err
check_pieces(const struct cairn_checkpoint *checkpoint, size_t first)
{
    size_t count = cairn_layout_piece_count(checkpoint->layout);

    if (count > CAIRN_CONVERT_PIECES_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT, "more than %d pieces of tensors",
                            CAIRN_CONVERT_PIECES_MAX);
    for (size_t i = first; i < count; i++) {
        const struct cairn_piece *piece = cairn_layout_piece(checkpoint->layout, i);
        const struct cairn_tensor *known = cairn_layout_tensor(checkpoint->layout, piece->tensor);
        const struct cairn_container *container = &checkpoint->containers[piece->container];

        if (cairn_box_end(known, piece) > container->bytes)
            return cairn_complain(checkpoint->complaint, CAIRN_CORRUPT,
                                  "%s: tensor %s ends at byte %" PRIu64 " and the file has %" PRIu64
                                  "; it is truncated, take another copy",
                                  cairn_checkpoint_container_name(checkpoint, piece->container),
                                  known->name, cairn_box_end(known, piece), container->bytes);
    }
    return CAIRN_OK;
}

cairn_err
cairn_checkpoint_add_box(struct cairn_checkpoint *checkpoint, uint32_t tensor, uint32_t container,
                         const uint64_t *start, const uint64_t *extent, uint64_t offset_bytes,
                         const uint64_t *stride_bytes)
{
    size_t first = cairn_layout_piece_count(checkpoint->layout);
    const struct cairn_tensor *known;
    struct cairn_piece piece;
    cairn_err err;

    if (tensor >= cairn_layout_tensor_count(checkpoint->layout) ||
        container >= checkpoint->container_count)
        return cairn_refuse(checkpoint, CAIRN_INTERNAL, "piece of an unknown tensor or file");
    known = cairn_layout_tensor(checkpoint->layout, tensor);
    if (!cairn_box_make(known, tensor, container, start, extent, offset_bytes, stride_bytes,
                        &piece))
        return CAIRN_OK;
    err = cairn_layout_add_piece(checkpoint->layout, &piece);
    if (err == CAIRN_INVAL)
        return cairn_complain(checkpoint->complaint, CAIRN_CORRUPT,
                              "%s: a part of tensor %s lies outside its shape or every file",
                              cairn_checkpoint_container_name(checkpoint, container), known->name);
    if (err)
        return cairn_refuse(checkpoint, err, "no memory for %zu pieces of tensors", first);
    return check_pieces(checkpoint, first);
}

cairn_err
cairn_checkpoint_add_flat(struct cairn_checkpoint *checkpoint, uint32_t tensor, uint32_t container,
                          const uint64_t *start, const uint64_t *extent, uint64_t flat_begin,
                          uint64_t flat_end, uint64_t offset_bytes)
{
    size_t first = cairn_layout_piece_count(checkpoint->layout);
    const char *why = "";
    cairn_err err;

    if (tensor >= cairn_layout_tensor_count(checkpoint->layout) ||
        container >= checkpoint->container_count)
        return cairn_refuse(checkpoint, CAIRN_INTERNAL, "piece of an unknown tensor or file");
    if (flat_begin == flat_end)
        return CAIRN_OK;
    err = cairn_box_add_flat(checkpoint->layout, tensor, container, start, extent, flat_begin,
                             flat_end, offset_bytes, &why);
    if (err == CAIRN_INVAL)
        return cairn_complain(checkpoint->complaint, CAIRN_CORRUPT,
                              "%s: elements %" PRIu64 " to %" PRIu64 " of tensor %s: %s",
                              cairn_checkpoint_container_name(checkpoint, container), flat_begin,
                              flat_end, cairn_layout_tensor(checkpoint->layout, tensor)->name, why);
    if (err)
        return cairn_refuse(checkpoint, err, "no memory for %zu pieces of tensors", first);
    return check_pieces(checkpoint, first);
}

cairn_err
cairn_checkpoint_add_alias(struct cairn_checkpoint *checkpoint, const char *name, uint32_t of)
{
    enum cairn_kind kind = CAIRN_PARAM; /* a missing tensor is complained about below */

    if (of < cairn_layout_tensor_count(checkpoint->layout))
        kind = cairn_layout_tensor(checkpoint->layout, of)->kind;
    return cairn_checkpoint_add_alias_as(checkpoint, name, kind, of);
}

cairn_err
cairn_checkpoint_add_alias_as(struct cairn_checkpoint *checkpoint, const char *name,
                              enum cairn_kind kind, uint32_t of)
{
    struct cairn_tensor known;
    uint32_t tensor;
    cairn_err err;

    if (of >= cairn_layout_tensor_count(checkpoint->layout))
        return cairn_refuse(checkpoint, CAIRN_INTERNAL, "alias of an unknown tensor");
    known = *cairn_layout_tensor(checkpoint->layout, of);
    if (cairn_layout_tensor_find(checkpoint->layout, name) != UINT32_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "tensor %.300s exists, and is tied to %s too", name, known.name);
    if (!cairn_array_grow(&checkpoint->aliases, checkpoint->alias_count,
                          sizeof(*checkpoint->aliases)))
        return CAIRN_NOMEM;
    err = cairn_checkpoint_add_tensor(checkpoint, name, known.dtype, kind, known.dims, known.shape,
                                      &tensor);
    if (err)
        return err;
    CAIRN_ASSERT(tensor == cairn_layout_tensor_count(checkpoint->layout) - 1);
    checkpoint->aliases[checkpoint->alias_count++] = (struct cairn_alias){tensor, of};
    return CAIRN_OK;
}

uint32_t
cairn_checkpoint_past_alias(const struct cairn_checkpoint *checkpoint, uint32_t tensor)
{
    const struct cairn_alias *aliases = checkpoint->aliases;
    uint32_t low = 0;

    CAIRN_BISECT(low, checkpoint->alias_count, middle, aliases[middle].tensor < tensor);
    return low < checkpoint->alias_count && aliases[low].tensor == tensor ? aliases[low].of
                                                                          : tensor;
}

static int
compare_names(const void *left, const void *right, void *layout)
{
    return strcmp(cairn_layout_tensor(layout, *(const uint32_t *)left)->name,
                  cairn_layout_tensor(layout, *(const uint32_t *)right)->name);
}

void
cairn_checkpoint_sort(const struct cairn_checkpoint *checkpoint, uint32_t *tensors, size_t count)
{
    qsort_r(tensors, count, sizeof(*tensors), compare_names, checkpoint->layout);
}

uint32_t
cairn_checkpoint_parameter_of(const struct cairn_checkpoint *checkpoint, uint32_t tensor,
                              uint32_t *key_bytes)
{
    const struct cairn_tensor *known = cairn_layout_tensor(checkpoint->layout, tensor);
    const char *dot = strchr(known->name, '.');
    uint32_t parameter;

    if (known->kind != CAIRN_OPTIMIZER || !dot || dot == known->name)
        return UINT32_MAX;
    parameter = cairn_layout_tensor_find(checkpoint->layout, dot + 1);
    if (parameter == UINT32_MAX ||
        cairn_layout_tensor(checkpoint->layout, parameter)->kind != CAIRN_PARAM)
        return UINT32_MAX;
    *key_bytes = (uint32_t)(dot - known->name);
    return parameter;
}
