/*
 * snapshot/reshard_bytes.c - see reshard_bytes.h.
 *
 * Three tests, each for the cases that the one before leaves open:
 *   1. hulls: sorted by their first byte, pieces with hulls that do not meet share nothing;
 *   2. rows: pieces with one outer stride in common (columns of one matrix) are rectangles of (row,
 *      byte in the row), and disjoint if those are;
 *   3. runs: the pieces are walked side by side in the order of their bytes, O(runs log pieces).
 *      Exact.
 */
#include "snapshot/reshard_bytes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/*
 * The bytes of one piece: runs of run_bytes, in nested levels, level 0 the outermost. Nested
 * means that runs come in order.
 */
struct footprint {
    const struct cairn_piece *piece;
    uint64_t begin, end; /* the hull */
    uint64_t run_bytes;
    uint32_t level_count;
    uint64_t count[CAIRN_DIMS_MAX];
    uint64_t stride_bytes[CAIRN_DIMS_MAX];
};

/* One walk over the runs of a footprint. */
struct walk {
    const struct footprint *footprint;
    uint64_t at; /* first byte of the current run */
    uint64_t index[CAIRN_DIMS_MAX];
};

struct check {
    const struct cairn_layout *layout;
    struct cairn_report *report;
    struct cairn_boxes index;
};

/* False where the strides do not nest, so that elements might share bytes. */
static bool
footprint_init(struct footprint *footprint, const struct cairn_piece *piece,
               const struct cairn_tensor *tensor)
{
    uint32_t by_stride[CAIRN_DIMS_MAX], used = 0, levels = 0;
    uint64_t span = cairn_dtype_bytes(tensor->dtype), run = span;
    uint64_t count[CAIRN_DIMS_MAX], stride[CAIRN_DIMS_MAX];

    for (uint32_t d = 0; d < tensor->dims; d++) {
        uint32_t at = used;

        if (piece->extent[d] == 1)
            continue;
        for (; at > 0 && piece->stride_bytes[by_stride[at - 1]] > piece->stride_bytes[d]; at--)
            by_stride[at] = by_stride[at - 1];
        by_stride[at] = d;
        used++;
    }
    for (uint32_t i = 0; i < used; i++) { /* from the innermost out */
        uint64_t step = piece->stride_bytes[by_stride[i]], times = piece->extent[by_stride[i]];

        if (step < span)
            return false;
        if (levels == 0 && step == run) {
            run *= times;
        } else if (levels > 0 && step == stride[levels - 1] * count[levels - 1]) {
            count[levels - 1] *= times;
        } else {
            count[levels] = times;
            stride[levels++] = step;
        }
        span += step * (times - 1);
    }
    memset(footprint, 0, sizeof *footprint);
    footprint->piece = piece;
    footprint->begin = piece->offset_bytes;
    footprint->end = piece->offset_bytes + span;
    footprint->run_bytes = run;
    footprint->level_count = levels;
    for (uint32_t i = 0; i < levels; i++) {
        footprint->count[i] = count[levels - 1 - i];
        footprint->stride_bytes[i] = stride[levels - 1 - i];
    }
    return true;
}

static int
compare_footprints(const void *left, const void *right)
{
    const struct footprint *a = left, *b = right;

    if (a->piece->container != b->piece->container)
        return a->piece->container < b->piece->container ? -1 : 1;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->piece > b->piece) - (a->piece < b->piece);
}

static void
report_shared(struct check *check, const struct footprint *a, const struct footprint *b,
              uint64_t at)
{
    cairn_report_add(check->report, "%s and %s share byte %" PRIu64 " of container %" PRIu32,
                     cairn_layout_tensor(check->layout, a->piece->tensor)->name,
                     cairn_layout_tensor(check->layout, b->piece->tensor)->name, at,
                     a->piece->container);
}

/* The rectangle of a footprint in rows of row_bytes counted from `base`; false if it has another
 * shape. */
static bool
row_box(const struct footprint *footprint, uint64_t base, uint64_t row_bytes, struct cairn_box *box)
{
    uint64_t row = (footprint->begin - base) / row_bytes;
    uint64_t column = (footprint->begin - base) % row_bytes;
    uint64_t rows = 1, span = footprint->end - footprint->begin;

    if (footprint->level_count > 0 && footprint->stride_bytes[0] == row_bytes) {
        rows = footprint->count[0];
        span -= (rows - 1) * row_bytes;
    } else if (footprint->level_count == 0 && column == 0 && span % row_bytes == 0) {
        rows = span / row_bytes;
        span = row_bytes;
    }
    if (span > row_bytes - column)
        return false;
    memset(box, 0, sizeof *box);
    box->low[0] = row;
    box->high[0] = row + rows;
    box->low[1] = column;
    box->high[1] = column + span;
    return true;
}

/* Test 2: sets *proved where the rectangles of footprints[count] are disjoint. */
static cairn_err
check_rows(struct check *check, const struct footprint *footprints, size_t count, bool *proved)
{
    uint64_t row_bytes = 0;
    struct cairn_box overlap;
    uint32_t a, b;
    cairn_err err;

    *proved = false;
    for (size_t i = 0; i < count && row_bytes == 0; i++)
        if (footprints[i].level_count > 0)
            row_bytes = footprints[i].stride_bytes[0];
    if (row_bytes == 0 || count > UINT32_MAX / 4)
        return CAIRN_OK;
    err = cairn_boxes_reset(&check->index, 2, (uint32_t)count);
    if (err)
        return err;
    for (size_t i = 0; i < count; i++) {
        struct cairn_box box;

        if (!row_box(&footprints[i], footprints[0].begin, row_bytes, &box))
            return CAIRN_OK;
        cairn_boxes_add(&check->index, &box, (uint32_t)i);
    }
    cairn_boxes_build(&check->index);
    *proved = !cairn_boxes_find_overlap(&check->index, &a, &b, &overlap);
    return CAIRN_OK;
}

/* Steps to the next run; false after the last. */
static bool
walk_next(struct walk *walk)
{
    const struct footprint *footprint = walk->footprint;

    for (uint32_t level = footprint->level_count; level-- > 0;) {
        walk->at += footprint->stride_bytes[level];
        if (++walk->index[level] < footprint->count[level])
            return true;
        walk->at -= footprint->stride_bytes[level] * footprint->count[level];
        walk->index[level] = 0;
    }
    return false;
}

static void
heap_sink(struct walk *heap, size_t count)
{
    size_t at = 0;

    for (size_t child = 1; child < count; child = 2 * at + 1) {
        struct walk held;

        if (child + 1 < count && heap[child + 1].at < heap[child].at)
            child++;
        if (heap[at].at <= heap[child].at)
            return;
        held = heap[at];
        heap[at] = heap[child];
        heap[child] = held;
        at = child;
    }
}

/* Test 3. The footprints come sorted by their first byte, which is a heap already. */
static cairn_err
check_runs(struct check *check, const struct footprint *footprints, size_t count)
{
    struct walk *heap = calloc(count, sizeof *heap);
    const struct footprint *last = NULL;
    uint64_t end = 0;

    if (!heap)
        return CAIRN_NOMEM;
    for (size_t i = 0; i < count; i++) {
        heap[i].footprint = &footprints[i];
        heap[i].at = footprints[i].begin;
    }
    while (count > 0) {
        if (last && heap[0].at < end) {
            report_shared(check, last, heap[0].footprint, heap[0].at);
            break;
        }
        last = heap[0].footprint;
        end = heap[0].at + last->run_bytes;
        if (!walk_next(&heap[0]))
            heap[0] = heap[--count];
        heap_sink(heap, count);
    }
    free(heap);
    return CAIRN_OK;
}

/* Checks footprints of one container whose hulls form one chain. */
static cairn_err
check_chain(struct check *check, const struct footprint *footprints, size_t count)
{
    bool proved;
    cairn_err err;

    if (count < 2)
        return CAIRN_OK;
    err = check_rows(check, footprints, count, &proved);
    if (!err && !proved)
        err = check_runs(check, footprints, count);
    return err;
}

static cairn_err
check_chains(struct check *check, const struct footprint *footprints, size_t count)
{
    size_t chain = 0; /* where the current one begins */
    uint64_t end = 0; /* of its hulls */
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < count && !err; i++) {
        if (i > chain && (footprints[i].piece->container != footprints[chain].piece->container ||
                          footprints[i].begin >= end)) {
            err = check_chain(check, footprints + chain, i - chain);
            chain = i;
        }
        if (i == chain || footprints[i].end > end)
            end = footprints[i].end;
    }
    return err ? err : check_chain(check, footprints + chain, count - chain);
}

cairn_err
cairn_bytes_check_disjoint(const struct cairn_layout *layout, struct cairn_report *report)
{
    size_t piece_count = cairn_layout_piece_count(layout), count = 0;
    uint64_t findings = report->finding_count;
    struct footprint *footprints = malloc((piece_count + 1) * sizeof *footprints);
    struct check check = {.layout = layout, .report = report};
    cairn_err err = CAIRN_NOMEM;

    if (!footprints)
        goto done;
    for (size_t i = 0; i < piece_count; i++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, i);
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, piece->tensor);

        if (footprint_init(&footprints[count], piece, tensor))
            count++;
        else
            cairn_report_add(report,
                             "%s: the strides of a piece in container %" PRIu32 " do not nest",
                             tensor->name, piece->container);
    }
    qsort(footprints, count, sizeof *footprints, compare_footprints);
    err = check_chains(&check, footprints, count);
    if (!err && report->finding_count > findings)
        err = CAIRN_CORRUPT;
done:
    cairn_boxes_fini(&check.index);
    free(footprints);
    return err;
}
