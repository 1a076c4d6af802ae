/*
 * tools/convert/maps/pieces.c - the pieces of a rule's targets: the source's pieces cut by the
 * boxes of each part, padding, and the proof that every element went somewhere once.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/maps/cells.h"
#include "tools/convert/maps/instance.h"
#include "tools/convert/maps/sizes.h"

enum { ZERO_BYTES = 16 };

const struct cairn_piece **
cairn_map_pieces_of(const struct cairn_map_stage *stage, uint32_t tensor, size_t *count)
{
    uint32_t original = stage->original[tensor];

    *count = stage->table.begin[original + 1] - stage->table.begin[original];
    return &stage->table.piece[stage->table.begin[original]];
}

/* The part of a piece of the source that is in a cell, as a piece of the target. */
static bool
cut_piece(const struct cairn_map_cells *cells, const struct cairn_map_cell *cell,
          const struct cairn_piece *piece, uint64_t element_bytes, struct cairn_piece *out)
{
    bool runs[CAIRN_DIMS_MAX] = {false}; /* source dimensions along which the cell runs */

    memset(out, 0, sizeof(*out));
    out->container = piece->container;
    out->offset_bytes = piece->offset_bytes;
    for (uint32_t d = 0; d < cells->target_dims; d++) {
        const struct cairn_map_stride *run = &cells->runs[d];
        uint64_t begin = cell->source_start[run->source_dim], first = 0, last;
        uint64_t low = piece->start[run->source_dim];
        uint64_t high = low + piece->extent[run->source_dim];

        out->start[d] = cell->target_start[d];
        out->extent[d] = 1;
        out->stride_bytes[d] = element_bytes;
        if (run->size == 1)
            continue;
        runs[run->source_dim] = true;
        if (low > begin)
            first = (low - begin + run->source_step - 1) / run->source_step;
        if (high <= begin)
            return false;
        last = (high - begin + run->source_step - 1) / run->source_step; /* behind the last */
        last = last < run->size ? last : run->size;
        if (first >= last)
            return false;
        out->start[d] += first;
        out->extent[d] = last - first;
        out->stride_bytes[d] = run->source_step * piece->stride_bytes[run->source_dim];
        out->offset_bytes +=
            (begin + first * run->source_step - low) * piece->stride_bytes[run->source_dim];
    }
    for (uint32_t d = 0; d < cells->source_dims; d++) {
        if (runs[d])
            continue;
        if (cell->source_start[d] < piece->start[d] ||
            cell->source_start[d] >= piece->start[d] + piece->extent[d])
            return false;
        out->offset_bytes += (cell->source_start[d] - piece->start[d]) * piece->stride_bytes[d];
    }
    return true;
}

cairn_err
cairn_map_part_add(struct cairn_map_instance *instance, uint32_t part, uint32_t source,
                   const struct cairn_map_tensor *target, const uint64_t *fixed,
                   const bool *is_fixed)
{
    struct cairn_map_stage *stage = instance->stage;
    const struct cairn_map_tensor *pattern =
        &instance->source->tensors[instance->source->count > 1 ? part : 0];
    const struct cairn_tensor *tensor = cairn_layout_tensor(stage->from, source);
    const struct cairn_piece **pieces;
    struct cairn_map_cells cells;
    struct cairn_map_cell cell;
    struct cairn_piece cut;
    size_t count;
    cairn_err err = CAIRN_OK;

    if (!cairn_map_cells_init(pattern, target, part, instance->values, fixed, is_fixed, &cells))
        return cairn_complain(stage->checkpoint->complaint, CAIRN_INVAL,
                              "%s: the map cuts it into more than %d boxes (%s, line %" PRIu32 ")",
                              tensor->name, CAIRN_MAP_CELLS_MAX, instance->rule->file,
                              instance->rule->line);
    pieces = cairn_map_pieces_of(stage, source, &count);
    while (!err && cairn_map_cells_next(&cells, &cell)) {
        for (size_t i = 0; i < count && !err; i++)
            if (cut_piece(&cells, &cell, pieces[i], cairn_dtype_bytes(tensor->dtype), &cut))
                err = cairn_map_scratch_add(stage, &cut);
        if (stage->scratch.count > CAIRN_CONVERT_PIECES_MAX)
            return cairn_complain(stage->checkpoint->complaint, CAIRN_INVAL,
                                  "%s: the map makes more than %d pieces", tensor->name,
                                  CAIRN_CONVERT_PIECES_MAX);
    }
    return err;
}

/* A container of zeros, for padding. */
static cairn_err
need_zeros(struct cairn_map_stage *stage)
{
    struct cairn_checkpoint *checkpoint = stage->checkpoint;
    struct cairn_container *added;

    if (stage->zeros != UINT32_MAX)
        return CAIRN_OK;
    if (!cairn_array_grow(&checkpoint->containers, checkpoint->container_count,
                          sizeof(*checkpoint->containers)))
        return CAIRN_NOMEM;
    added = &checkpoint->containers[checkpoint->container_count];
    *added = (struct cairn_container){.bytes = ZERO_BYTES};
    added->literal = calloc(1, ZERO_BYTES);
    if (!added->literal)
        return CAIRN_NOMEM;
    stage->zeros = checkpoint->container_count++;
    return CAIRN_OK;
}

/* A box for each padded dimension; those of earlier dimensions take the corners. */
cairn_err
cairn_map_padding_add(struct cairn_map_instance *instance, const struct cairn_map_tensor *target,
                      const uint64_t *shape)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t d = 0; d < target->dims && !err; d++) {
        struct cairn_piece piece = {0};
        uint64_t length = 0;

        if (!cairn_map_length(&target->dim[d], instance->values, &length) || length == shape[d])
            continue;
        err = need_zeros(instance->stage);
        piece.container = instance->stage->zeros;
        for (uint32_t i = 0; i < target->dims; i++) {
            piece.extent[i] = shape[i];
            if (i < d)
                (void)cairn_map_length(&target->dim[i], instance->values, &piece.extent[i]);
        }
        piece.start[d] = length;
        piece.extent[d] = shape[d] - length;
        if (!err)
            err = cairn_map_scratch_add(instance->stage, &piece);
    }
    return err;
}

/* ---- the proof ---- */

static void
count_before(struct cairn_map_instance *instance)
{
    for (uint32_t i = 0; i < instance->source->count * instance->stack; i++) {
        uint32_t tensor = instance->sources[i];
        size_t count;
        const struct cairn_piece **pieces = cairn_map_pieces_of(instance->stage, tensor, &count);

        for (size_t k = 0; k < count; k++)
            cairn_map_places_add(&instance->before, pieces[k],
                                 cairn_layout_tensor(instance->stage->from, tensor)->dims);
    }
}

void
cairn_map_places_note(struct cairn_map_instance *instance, uint32_t dims)
{
    const struct cairn_map_stage *stage = instance->stage;

    for (size_t i = 0; i < stage->scratch.count; i++)
        if (stage->scratch.pieces[i].container != stage->zeros)
            cairn_map_places_add(&instance->after, &stage->scratch.pieces[i], dims);
}

/* The source's padding is what remains: pieces clipped to what is behind each padded length. */
static cairn_err
count_left_out(struct cairn_map_instance *instance)
{
    struct cairn_map_stage *stage = instance->stage;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < instance->source->count * instance->stack && !err; i++) {
        const struct cairn_map_tensor *pattern = &instance->source->tensors[i / instance->stack];
        const struct cairn_tensor *tensor = cairn_layout_tensor(stage->from, instance->sources[i]);
        uint64_t length[CAIRN_DIMS_MAX];
        size_t count;
        const struct cairn_piece **pieces =
            cairn_map_pieces_of(stage, instance->sources[i], &count);

        for (uint32_t d = 0; d < tensor->dims; d++)
            (void)cairn_map_length(&pattern->dim[d], instance->values, &length[d]);
        for (uint32_t d = 0; d < tensor->dims && !err; d++) {
            if (length[d] == tensor->shape[d])
                continue;
            err = cairn_checkpoint_warn(stage->checkpoint,
                                        "%s: has %" PRIu64 " in dimension %" PRIu32
                                        " and the map %" PRIu64 ": the rest is left out as padding",
                                        tensor->name, tensor->shape[d], d, length[d]);
            for (size_t k = 0; k < count; k++) {
                struct cairn_piece rest = *pieces[k];
                bool empty = false;

                for (uint32_t x = 0; x <= d; x++) {
                    uint64_t end = rest.start[x] + rest.extent[x];
                    uint64_t low = x == d && rest.start[x] < length[x] ? length[x] : rest.start[x];
                    uint64_t high = x < d && end > length[x] ? length[x] : end;

                    empty = empty || low >= high;
                    if (empty)
                        break;
                    rest.offset_bytes += (low - rest.start[x]) * rest.stride_bytes[x];
                    rest.start[x] = low;
                    rest.extent[x] = high - low;
                }
                if (!empty)
                    cairn_map_places_add(&instance->after, &rest, tensor->dims);
            }
        }
    }
    return err;
}

cairn_err
cairn_map_places_check(struct cairn_map_instance *instance)
{
    cairn_err err;

    count_before(instance);
    err = count_left_out(instance);
    if (!err && !cairn_map_places_equal(&instance->before, &instance->after))
        err = cairn_complain(
            instance->stage->checkpoint->complaint, CAIRN_INTERNAL,
            "the map (%s, line %" PRIu32 ") would not move each element of %s once; please report "
            "this defect, nothing was written",
            instance->rule->file, instance->rule->line,
            cairn_layout_tensor(instance->stage->from, instance->sources[0])->name);
    return err;
}
