/*
 * tools/convert/core/checkpoint_pieces.c - what readers call to say which part of which tensor lies
 * where.
 *
 * Every piece is held against the size of its container here, so that no format can make the
 * executor read past a file's end by what a header claims.
 */
#include "tools/convert/core/format.h"

#include <inttypes.h>

#include "tools/convert/core/box.h"

cairn_err
cairn_checkpoint_add_tensor(struct cairn_checkpoint *checkpoint, const char *name,
                            enum cairn_dtype dtype, enum cairn_kind kind, uint32_t dims,
                            const uint64_t *shape, uint32_t *tensor,
                            struct cairn_complaint *complaint)
{
    const char *why = "";
    cairn_err err;

    if (dims > CAIRN_DIMS_MAX)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: tensor %.300s has %" PRIu32 " dimensions; at most %d are known",
                              checkpoint->place.path, name, dims, CAIRN_DIMS_MAX);
    if (cairn_layout_tensor_count(checkpoint->layout) >= CAIRN_CONVERT_TENSORS_MAX)
        return cairn_complain(complaint, CAIRN_CORRUPT, "%s: more than %d tensors",
                              checkpoint->place.path, CAIRN_CONVERT_TENSORS_MAX);
    err = cairn_box_add_tensor(checkpoint->layout, name, dtype, kind, dims, shape, tensor, &why);
    if (err == CAIRN_INVAL)
        return cairn_complain(complaint, CAIRN_CORRUPT, "%s: tensor %.300s: %s",
                              checkpoint->place.path, name, why);
    if (err)
        return cairn_complain(complaint, err, "%s: no memory for %" PRIu32 " tensors",
                              checkpoint->place.path,
                              cairn_layout_tensor_count(checkpoint->layout));
    return CAIRN_OK;
}

/* What may be said of any piece, after the layout took it from `first` on. */
static cairn_err
check_pieces(const struct cairn_checkpoint *checkpoint, size_t first,
             struct cairn_complaint *complaint)
{
    size_t count = cairn_layout_piece_count(checkpoint->layout);

    if (count > CAIRN_CONVERT_PIECES_MAX)
        return cairn_complain(complaint, CAIRN_CORRUPT, "%s: more than %d pieces of tensors",
                              checkpoint->place.path, CAIRN_CONVERT_PIECES_MAX);
    for (size_t i = first; i < count; i++) {
        const struct cairn_piece *piece = cairn_layout_piece(checkpoint->layout, i);
        const struct cairn_tensor *known = cairn_layout_tensor(checkpoint->layout, piece->tensor);
        const struct cairn_container *container = &checkpoint->containers[piece->container];

        if (cairn_box_end(known, piece) > container->bytes)
            return cairn_complain(complaint, CAIRN_CORRUPT,
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
                         const uint64_t *stride_bytes, struct cairn_complaint *complaint)
{
    size_t first = cairn_layout_piece_count(checkpoint->layout);
    const struct cairn_tensor *known;
    struct cairn_piece piece;
    cairn_err err;

    if (tensor >= cairn_layout_tensor_count(checkpoint->layout) ||
        container >= checkpoint->container_count)
        return cairn_complain(complaint, CAIRN_INTERNAL, "%s: a piece of nothing",
                              checkpoint->place.path);
    known = cairn_layout_tensor(checkpoint->layout, tensor);
    if (!cairn_box_make(known, tensor, container, start, extent, offset_bytes, stride_bytes,
                        &piece))
        return CAIRN_OK;
    err = cairn_layout_add_piece(checkpoint->layout, &piece);
    if (err == CAIRN_INVAL)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: a part of tensor %s is outside of its shape, or of any file",
                              cairn_checkpoint_container_name(checkpoint, container), known->name);
    if (err)
        return cairn_complain(complaint, err, "%s: no memory for %zu pieces of tensors",
                              checkpoint->place.path, first);
    return check_pieces(checkpoint, first, complaint);
}

cairn_err
cairn_checkpoint_add_flat(struct cairn_checkpoint *checkpoint, uint32_t tensor, uint32_t container,
                          const uint64_t *start, const uint64_t *extent, uint64_t flat_begin,
                          uint64_t flat_end, uint64_t offset_bytes,
                          struct cairn_complaint *complaint)
{
    size_t first = cairn_layout_piece_count(checkpoint->layout);
    const char *why = "";
    cairn_err err;

    if (tensor >= cairn_layout_tensor_count(checkpoint->layout) ||
        container >= checkpoint->container_count)
        return cairn_complain(complaint, CAIRN_INTERNAL, "%s: a piece of nothing",
                              checkpoint->place.path);
    if (flat_begin == flat_end)
        return CAIRN_OK;
    err = cairn_box_add_flat(checkpoint->layout, tensor, container, start, extent, flat_begin,
                             flat_end, offset_bytes, &why);
    if (err == CAIRN_INVAL)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: elements %" PRIu64 " to %" PRIu64 " of tensor %s: %s",
                              cairn_checkpoint_container_name(checkpoint, container), flat_begin,
                              flat_end, cairn_layout_tensor(checkpoint->layout, tensor)->name, why);
    if (err)
        return cairn_complain(complaint, err, "%s: no memory for %zu pieces of tensors",
                              checkpoint->place.path, first);
    return check_pieces(checkpoint, first, complaint);
}
