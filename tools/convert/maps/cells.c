/* tools/convert/maps/cells.c - see maps/cells.h. */
#include "tools/convert/maps/cells.h"

#include <string.h>

#include "tools/convert/maps/sizes.h"

enum { AXES_MAX = CAIRN_MAP_OUTER_MAX };

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
place(const struct cairn_map_tensor *tensor, uint32_t part, const uint64_t *values,
      const uint64_t *fixed, const bool *is_fixed, struct placement *out)
{
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

                if (is_fixed[symbol]) {
                    out->base[d] += inner * fixed[symbol];
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

/* Joins both placements axis by axis, in the target's order: dimension by dimension, innermost
 * first. */
static bool
join(const struct placement *source, const struct placement *target, const uint64_t *values,
     struct cairn_map_stride *axes)
{
    for (uint32_t i = 0; i < target->count; i++) {
        const struct placed *to = &target->axes[i], *from = NULL;

        for (uint32_t k = 0; k < source->count; k++)
            if (source->axes[k].symbol == to->symbol)
                from = &source->axes[k];
        if (!from)
            return false;
        axes[i] =
            (struct cairn_map_stride){values[to->symbol], from->dim, to->dim, from->step, to->step};
    }
    return source->count == target->count;
}

/* Puts axes into the runs of their target dimensions where they go on from what is there. */
static void
make_runs(const struct cairn_map_stride *axes, uint32_t count, struct cairn_map_cells *cells,
          bool *inner)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_map_stride *axis = &axes[i];
        struct cairn_map_stride *run = &cells->runs[axis->target_dim];

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

/* A source dimension is in one run only: of two the longer stays, and the axes of the other are
 * counted through. */
static void
part_runs(const struct cairn_map_stride *axes, uint32_t count, struct cairn_map_cells *cells,
          bool *inner)
{
    for (uint32_t a = 0; a < cells->target_dims; a++)
        for (uint32_t b = a + 1; b < cells->target_dims; b++) {
            struct cairn_map_stride *one = &cells->runs[a], *other = &cells->runs[b];
            uint32_t shorter = one->size < other->size ? a : b;

            if (one->size == 1 || other->size == 1 || one->source_dim != other->source_dim)
                continue;
            cells->runs[shorter] = (struct cairn_map_stride){.size = 1};
            for (uint32_t i = 0; i < count; i++)
                if (axes[i].target_dim == shorter)
                    inner[i] = false;
        }
}

bool
cairn_map_cells_init(const struct cairn_map_tensor *source, const struct cairn_map_tensor *target,
                     uint32_t part, const uint64_t *values, const uint64_t *fixed,
                     const bool *is_fixed, struct cairn_map_cells *out)
{
    struct cairn_map_stride axes[AXES_MAX];
    struct placement from, to;
    bool inner[AXES_MAX];

    memset(out, 0, sizeof(*out));
    if (!place(source, part, values, fixed, is_fixed, &from) ||
        !place(target, part, values, fixed, is_fixed, &to) || !join(&from, &to, values, axes))
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
        if (axes[i].size > CAIRN_MAP_CELLS_MAX || out->count > CAIRN_MAP_CELLS_MAX / axes[i].size)
            return false;
        out->count *= axes[i].size;
    }
    return true;
}

bool
cairn_map_cells_next(struct cairn_map_cells *cells, struct cairn_map_cell *cell)
{
    if (cells->done == cells->count)
        return false;
    memcpy(cell->source_start, cells->source_base, sizeof(cell->source_start));
    memcpy(cell->target_start, cells->target_base, sizeof(cell->target_start));
    for (uint32_t i = 0; i < cells->outer_count; i++) {
        const struct cairn_map_stride *axis = &cells->outer[i];

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
