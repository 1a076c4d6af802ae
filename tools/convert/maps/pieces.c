/*
 * tools/convert/maps/pieces.c - the pieces of a rule's targets: the source's pieces cut by the
 * boxes of each part, padding, and the proof that every element went somewhere once.
 */
#include "tools/convert/maps/instance.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/maps/sizes.h"
#include "cairn/types.h"
#include "tools/convert/maps/language.h"

/*
 * ---- one part of a rule as boxes of the target tensor ----
 *
 * Each is an affine image of elements of the source tensor. Every axis of a part has a dimension
 * and a step in both tensors. Axes that run along one dimension of the target without gaps, and
 * evenly along one of the source, make the box; the others are counted through. So a query group is
 * a box of rows, and a transposed matrix is one box. Pure.
 */

enum { OUTER_MAX = 32, CELLS_MAX = 1 << 22 };

/* Along one axis: which dimension of each tensor, and how many of its elements a step is. */
struct stride_pair {
    uint64_t size;
    uint32_t source_dim, target_dim;
    uint64_t source_step, target_step;
};

struct cells {
    uint32_t source_dims, target_dims;
    uint64_t source_base[CAIRN_DIMS_MAX], target_base[CAIRN_DIMS_MAX];
    struct stride_pair runs[CAIRN_DIMS_MAX]; /* by target dimension; target_step is 1 */
    struct stride_pair outer[OUTER_MAX];
    uint64_t at[OUTER_MAX];
    uint32_t outer_count;
    uint64_t count, done;
};

struct cell {
    uint64_t target_start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX];
    uint64_t source_start[CAIRN_DIMS_MAX];
};

enum { AXES_MAX = OUTER_MAX };

/* Where one axis of a part runs in one tensor. */
struct placed {
    uint32_t symbol, dim;
    uint64_t step;
};

struct placement {
    struct placed axes[AXES_MAX];
    uint32_t count;
    uint64_t base[CAIRN_DIMS_MAX];
};

/* Places the axes of a tensor's part; those of size 1 are nowhere. False: too many. */
static bool
place(const struct cairn_map_instance *instance, const struct cairn_map_tensor *tensor,
      uint32_t part, struct placement *out)
{
    const uint64_t *values = instance->values;

    memset(out, 0, sizeof(*out));
    for (uint32_t d = 0; d < tensor->dims; d++) {
        uint64_t step = 1;

        for (uint32_t f = tensor->dim[d].count; f-- > 0;) {
            const struct cairn_map_factor *factor = &tensor->dim[d].factors[f];
            uint32_t chosen = factor->count > 1 ? part : 0;
            const struct cairn_map_term *term = &factor->terms[chosen];
            uint64_t inner = step;

            for (uint32_t t = 0; t < chosen; t++)
                out->base[d] += step * cairn_map_term_size(&factor->terms[t], values);
            for (uint32_t i = term->count; i-- > 0;) {
                uint32_t symbol = term->axes[i];

                if (symbol == instance->gathered || symbol == instance->spread) {
                    out->base[d] += inner * instance->captures[symbol];
                } else if (values[symbol] > 1) {
                    if (out->count == AXES_MAX)
                        return false;
                    out->axes[out->count++] = (struct placed){symbol, d, inner};
                }
                inner *= values[symbol];
            }
            step *= cairn_map_factor_size(factor, values);
        }
    }
    return true;
}

/* Joins both placements axis by axis, in the target's order, innermost dimension first. */
static bool
join(const struct placement *source, const struct placement *target, const uint64_t *values,
     struct stride_pair *axes)
{
    for (uint32_t i = 0; i < target->count; i++) {
        const struct placed *to = &target->axes[i], *from = NULL;

        for (uint32_t k = 0; k < source->count; k++)
            if (source->axes[k].symbol == to->symbol)
                from = &source->axes[k];
        if (!from)
            return false;
        axes[i] =
            (struct stride_pair){values[to->symbol], from->dim, to->dim, from->step, to->step};
    }
    return source->count == target->count;
}

/* Puts axes into the runs of their target dimensions where they go on from what is there. */
static void
make_runs(const struct stride_pair *axes, uint32_t count, struct cells *cells, bool *inner)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct stride_pair *axis = &axes[i];
        struct stride_pair *run = &cells->runs[axis->target_dim];

        inner[i] = false;
        if (run->size == 1 && axis->target_step == 1) {
            *run = *axis;
            inner[i] = true;
        } else if (run->size > 1 && axis->target_step == run->size &&
                   axis->source_dim == run->source_dim &&
                   axis->source_step == run->source_step * run->size) {
            run->size *= axis->size;
            inner[i] = true;
        }
    }
}

/* Only one run has a source dimension: the longer stays, the other's axes are counted through. */
static void
part_runs(const struct stride_pair *axes, uint32_t count, struct cells *cells, bool *inner)
{
    for (uint32_t a = 0; a < cells->target_dims; a++)
        for (uint32_t b = a + 1; b < cells->target_dims; b++) {
            struct stride_pair *one = &cells->runs[a], *other = &cells->runs[b];
            uint32_t shorter = one->size < other->size ? a : b;

            if (one->size == 1 || other->size == 1 || one->source_dim != other->source_dim)
                continue;
            cells->runs[shorter] = (struct stride_pair){.size = 1};
            for (uint32_t i = 0; i < count; i++)
                if (axes[i].target_dim == shorter)
                    inner[i] = false;
        }
}

/* Begins with part `part` of a rule: from source to target, both shaped, with all sizes known.
 * Captures that are axes of the other tensor are fixed. False: more boxes than CELLS_MAX, or too
 * many axes. */
static bool
cells_init(const struct cairn_map_instance *instance, const struct cairn_map_tensor *target,
           uint32_t part, struct cells *out)
{
    const struct cairn_map_tensor *source =
        &instance->source->tensors[instance->source->count > 1 ? part : 0];
    struct stride_pair axes[AXES_MAX];
    struct placement from, to;
    bool inner[AXES_MAX];

    memset(out, 0, sizeof(*out));
    if (!place(instance, source, part, &from) || !place(instance, target, part, &to) ||
        !join(&from, &to, instance->values, axes))
        return false;
    out->source_dims = source->dims;
    out->target_dims = target->dims;
    memcpy(out->source_base, from.base, sizeof(from.base));
    memcpy(out->target_base, to.base, sizeof(to.base));
    for (uint32_t d = 0; d < CAIRN_DIMS_MAX; d++)
        out->runs[d].size = 1;
    make_runs(axes, to.count, out, inner);
    part_runs(axes, to.count, out, inner);
    out->count = 1;
    for (uint32_t i = 0; i < to.count; i++) {
        if (inner[i])
            continue;
        out->outer[out->outer_count++] = axes[i];
        if (axes[i].size > CELLS_MAX || out->count > CELLS_MAX / axes[i].size)
            return false;
        out->count *= axes[i].size;
    }
    return true;
}

/* The next box; false behind the last. */
static bool
cells_next(struct cells *cells, struct cell *cell)
{
    if (cells->done == cells->count)
        return false;
    memcpy(cell->source_start, cells->source_base, sizeof(cell->source_start));
    memcpy(cell->target_start, cells->target_base, sizeof(cell->target_start));
    for (uint32_t i = 0; i < cells->outer_count; i++) {
        const struct stride_pair *axis = &cells->outer[i];

        cell->source_start[axis->source_dim] += cells->at[i] * axis->source_step;
        cell->target_start[axis->target_dim] += cells->at[i] * axis->target_step;
    }
    for (uint32_t d = 0; d < cells->target_dims; d++)
        cell->extent[d] = cells->runs[d].size;
    cells->done++;
    for (uint32_t i = 0; i < cells->outer_count && ++cells->at[i] == cells->outer[i].size; i++)
        cells->at[i] = 0;
    return true;
}

enum { ZERO_BYTES = 16 };

/* The part of a piece of the source that is in a cell, as a piece of the target. */
static bool
cut_piece(const struct cells *cells, const struct cell *cell, const struct cairn_piece *piece,
          uint64_t element_bytes, struct cairn_piece *out)
{
    bool runs[CAIRN_DIMS_MAX] = {false}; /* source dimensions along which the cell runs */

    memset(out, 0, sizeof(*out));
    out->container = piece->container;
    out->offset_bytes = piece->offset_bytes;
    for (uint32_t d = 0; d < cells->target_dims; d++) {
        const struct stride_pair *run = &cells->runs[d];
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
                   const struct cairn_map_tensor *target)
{
    struct cairn_map_stage *stage = instance->stage;
    const struct cairn_tensor *tensor = cairn_layout_tensor(stage->from, source);
    const struct cairn_piece **pieces;
    struct cells cells;
    struct cell cell;
    struct cairn_piece cut;
    size_t count;
    cairn_err err = CAIRN_OK;

    if (!cells_init(instance, target, part, &cells))
        return cairn_complain(stage->checkpoint->complaint, CAIRN_INVAL,
                              "%s: the map cuts it into more than %d boxes (%s, line %" PRIu32 ")",
                              tensor->name, CELLS_MAX, instance->rule->file, instance->rule->line);
    pieces = cairn_map_pieces_of(stage, source, &count);
    while (!err && cells_next(&cells, &cell)) {
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

/* A box for each padded dimension; those of earlier dimensions take the corners. */
cairn_err
cairn_map_padding_add(struct cairn_map_instance *instance, const struct cairn_map_tensor *target,
                      const uint64_t *shape)
{
    static const uint8_t zeros[ZERO_BYTES];
    cairn_err err = CAIRN_OK;

    for (uint32_t d = 0; d < target->dims && !err; d++) {
        struct cairn_piece piece = {0};
        uint64_t length = 0;

        if (!cairn_map_length(&target->dim[d], instance->values, &length) || length == shape[d])
            continue;
        if (instance->stage->zeros == UINT32_MAX)
            err = cairn_checkpoint_add_bytes(instance->stage->checkpoint, zeros, sizeof(zeros),
                                             &instance->stage->zeros);
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
