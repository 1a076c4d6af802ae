/*
 * snapshot/reshard_runs.c - see reshard_runs.h.
 *
 * A box is first seen as nested levels (extent, source stride, target stride). Levels that continue
 * the run on both sides lengthen it; levels that continue each other are folded. The longest
 * remaining level becomes the move's runs, and the others are stepped through. Merging then joins
 * neighbours of the sorted moves, also of different pieces.
 */
#include "snapshot/reshard_runs.h"

#include <stdlib.h>
#include <string.h>

struct level {
    uint64_t count;
    uint64_t source_stride;
    uint64_t target_stride;
};

void
cairn_move_list_fini(struct cairn_move_list *list)
{
    free(list->moves);
    memset(list, 0, sizeof *list);
}

static cairn_err
push(struct cairn_move_list *list, const struct cairn_move *move)
{
    if (list->count == list->limit) {
        size_t limit = list->limit ? 2 * list->limit : 64;
        struct cairn_move *moves;

        if (limit > SIZE_MAX / sizeof *moves)
            return CAIRN_NOMEM;
        moves = realloc(list->moves, limit * sizeof *moves);
        if (!moves)
            return CAIRN_NOMEM;
        list->moves = moves;
        list->limit = limit;
    }
    list->moves[list->count++] = *move;
    return CAIRN_OK;
}

/* Pushes runs [first, first + count) of a move. */
static cairn_err
push_runs(struct cairn_move_list *list, const struct cairn_move *move, uint64_t first,
          uint64_t count)
{
    struct cairn_move part = *move;

    if (count == 0)
        return CAIRN_OK;
    part.source_offset += first * move->source_stride;
    part.target_offset += first * move->target_stride;
    part.run_count = count;
    if (count == 1)
        part.source_stride = part.target_stride = 0;
    return push(list, &part);
}

/* Pushes a move without the runs that are in place: none, one, or (with equal strides) all. */
static cairn_err
push_moving(struct cairn_move_list *list, const struct cairn_move *move)
{
    int64_t offsets = (int64_t)(move->target_offset - move->source_offset);
    int64_t strides = (int64_t)(move->source_stride - move->target_stride);
    int64_t still; /* run number `still` begins at the same byte on both sides */
    cairn_err err;

    if (strides == 0) {
        if (offsets != 0)
            return push_runs(list, move, 0, move->run_count);
        list->in_place_bytes += move->run_bytes * move->run_count;
        return CAIRN_OK;
    }
    still = offsets / strides;
    if (offsets % strides != 0 || (uint64_t)still >= move->run_count)
        return push_runs(list, move, 0, move->run_count);
    list->in_place_bytes += move->run_bytes;
    err = push_runs(list, move, 0, (uint64_t)still);
    if (err)
        return err;
    return push_runs(list, move, (uint64_t)still + 1, move->run_count - (uint64_t)still - 1);
}

/* The levels of a box from the innermost out, without those of extent 1; returns how many. */
static uint32_t
levels_of(const struct cairn_piece *source, const struct cairn_piece *target,
          const struct cairn_box *box, uint32_t dims, struct level *levels)
{
    uint32_t used = 0;

    for (uint32_t d = dims; d-- > 0;) {
        struct level level = {box->high[d] - box->low[d], source->stride_bytes[d],
                              target->stride_bytes[d]};
        uint32_t at = used;

        if (level.count == 1)
            continue;
        for (; at > 0 && levels[at - 1].target_stride > level.target_stride; at--)
            levels[at] = levels[at - 1];
        levels[at] = level;
        used++;
    }
    return used;
}

/* Folds levels into the run and into each other; returns how many are left. */
static uint32_t
fold_levels(struct level *levels, uint32_t used, uint64_t *run_bytes)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < used; i++) {
        struct level *below = kept ? &levels[kept - 1] : NULL;

        if (levels[i].source_stride == *run_bytes && levels[i].target_stride == *run_bytes)
            *run_bytes *= levels[i].count;
        else if (below && levels[i].source_stride == below->source_stride * below->count &&
                 levels[i].target_stride == below->target_stride * below->count)
            below->count *= levels[i].count;
        else
            levels[kept++] = levels[i];
    }
    return kept;
}

uint64_t
cairn_piece_offset(const struct cairn_piece *piece, const uint64_t *at, uint32_t dims)
{
    uint64_t offset = piece->offset_bytes;

    for (uint32_t d = 0; d < dims; d++)
        offset += (at[d] - piece->start[d]) * piece->stride_bytes[d];
    return offset;
}

cairn_err
cairn_moves_emit(struct cairn_move_list *list, const struct cairn_tensor *tensor,
                 const struct cairn_piece *source, const struct cairn_piece *target,
                 const struct cairn_box *box, bool same_containers)
{
    struct cairn_move move = {
        .tensor = target->tensor,
        .source_container = source->container,
        .target_container = target->container,
        .source_offset = cairn_piece_offset(source, box->low, tensor->dims),
        .target_offset = cairn_piece_offset(target, box->low, tensor->dims),
        .run_bytes = cairn_dtype_bytes(tensor->dtype),
        .run_count = 1,
    };
    bool may_be_still = same_containers && source->container == target->container;
    struct level levels[CAIRN_DIMS_MAX];
    uint64_t index[CAIRN_DIMS_MAX] = {0};
    uint32_t used = levels_of(source, target, box, tensor->dims, levels), longest = 0, i;

    used = fold_levels(levels, used, &move.run_bytes);
    for (i = 1; i < used; i++)
        if (levels[i].count > levels[longest].count)
            longest = i;
    if (used > 0) {
        move.run_count = levels[longest].count;
        move.source_stride = levels[longest].source_stride;
        move.target_stride = levels[longest].target_stride;
        levels[longest] = levels[--used];
    }
    do {
        cairn_err err = may_be_still ? push_moving(list, &move) : push(list, &move);

        if (err)
            return err;
        for (i = 0; i < used; i++) {
            move.source_offset += levels[i].source_stride;
            move.target_offset += levels[i].target_stride;
            if (++index[i] < levels[i].count)
                break;
            move.source_offset -= levels[i].source_stride * levels[i].count;
            move.target_offset -= levels[i].target_stride * levels[i].count;
            index[i] = 0;
        }
    } while (i < used);
    return CAIRN_OK;
}

enum { KEYS = 4 };

/* Compares the first key that differs. */
static int
compare_keys(const uint64_t a[KEYS], const uint64_t b[KEYS])
{
    uint32_t i = 0;

    while (i < KEYS - 1 && a[i] == b[i])
        i++;
    return (a[i] > b[i]) - (a[i] < b[i]);
}

static int
compare_in_pairs(const void *left, const void *right)
{
    const struct cairn_move *a = left, *b = right;
    uint64_t keys_a[KEYS] = {a->source_container, a->target_container, a->source_offset,
                             a->target_offset};
    uint64_t keys_b[KEYS] = {b->source_container, b->target_container, b->source_offset,
                             b->target_offset};

    return compare_keys(keys_a, keys_b);
}

static int
compare_in_source(const void *left, const void *right)
{
    const struct cairn_move *a = left, *b = right;
    uint64_t keys_a[KEYS] = {a->source_container, a->source_offset, a->target_container,
                             a->target_offset};
    uint64_t keys_b[KEYS] = {b->source_container, b->source_offset, b->target_container,
                             b->target_offset};

    return compare_keys(keys_a, keys_b);
}

/* Lengthens each run of a by the run of b that follows it on both sides. */
static bool
join_runs(struct cairn_move *a, const struct cairn_move *b)
{
    if (a->run_count != b->run_count || a->source_stride != b->source_stride ||
        a->target_stride != b->target_stride ||
        a->source_offset + a->run_bytes != b->source_offset ||
        a->target_offset + a->run_bytes != b->target_offset)
        return false;
    a->run_bytes += b->run_bytes;
    if (a->run_count > 1 && a->source_stride == a->run_bytes && a->target_stride == a->run_bytes) {
        a->run_bytes *= a->run_count;
        a->run_count = 1;
        a->source_stride = a->target_stride = 0;
    }
    return true;
}

/*
 * Appends the runs of b to those of a if they continue at the same strides. Two single runs have
 * any strides, so they need a third, `next`, to show a pattern: a move must not span two unrelated
 * runs.
 */
static bool
join_strides(struct cairn_move *a, const struct cairn_move *b, const struct cairn_move *next)
{
    uint64_t source_stride = a->source_stride, target_stride = a->target_stride;

    if (a->run_bytes != b->run_bytes)
        return false;
    if (a->run_count == 1) {
        source_stride = b->source_offset - a->source_offset;
        target_stride = b->target_offset - a->target_offset;
        if (b->target_offset < a->target_offset)
            return false;
    }
    if (b->run_count > 1 &&
        (b->source_stride != source_stride || b->target_stride != target_stride))
        return false;
    if (b->source_offset != a->source_offset + a->run_count * source_stride ||
        b->target_offset != a->target_offset + a->run_count * target_stride)
        return false;
    if (a->run_count == 1 && b->run_count == 1 &&
        (!next || next->source_container != b->source_container ||
         next->target_container != b->target_container || next->run_bytes != b->run_bytes ||
         next->source_offset != b->source_offset + source_stride ||
         next->target_offset != b->target_offset + target_stride))
        return false;
    a->run_count += b->run_count;
    a->source_stride = source_stride;
    a->target_stride = target_stride;
    return true;
}

void
cairn_moves_merge(struct cairn_move_list *list, size_t begin)
{
    struct cairn_move *moves = list->moves + begin;
    size_t count = list->count - begin, before;

    if (count < 2)
        return;
    qsort(moves, count, sizeof *moves, compare_in_pairs);
    do { /* each round but the last makes them fewer */
        size_t kept = 1;

        before = count;
        for (size_t i = 1; i < count; i++) {
            struct cairn_move *last = &moves[kept - 1];
            bool pair = last->source_container == moves[i].source_container &&
                        last->target_container == moves[i].target_container;

            if (!pair || (!join_runs(last, &moves[i]) &&
                          !join_strides(last, &moves[i], i + 1 < count ? &moves[i + 1] : NULL)))
                moves[kept++] = moves[i];
        }
        count = kept;
    } while (count > 1 && count < before);
    list->count = begin + count;
}

void
cairn_moves_sort(struct cairn_move_list *list)
{
    if (list->count > 1)
        qsort(list->moves, list->count, sizeof *list->moves, compare_in_source);
}
