/*
 * snapshot/reshard_tiling.c - cairn_layout_check_tiling: does a layout hold every tensor whole?
 *
 * Boxes that are pairwise disjoint and inside the tensor cover it exactly if their volumes add up
 * to its own; so one search for an overlap and one sum prove it, without looking at elements. Only
 * where pieces may overlap and do is the uncovered part worked out box by box.
 */
#include "snapshot/layout.h"

#include "snapshot/reshard_boxes.h"
#include "snapshot/reshard_pieces.h"
#include "snapshot/reshard_report.h"

#include <inttypes.h>

struct tiling {
    const struct cairn_layout *layout;
    const char *container; /* what the report calls one */
    struct cairn_piece_table table;
    struct cairn_boxes index;
    struct cairn_box_stack stack;
    struct cairn_report report;
};

/*
 * Puts the distinct boxes of pieces [begin, end) into the index; *doubled gets one that is there
 * twice, or `end`.
 */
static cairn_err
index_pieces(struct tiling *tiling, size_t begin, size_t end, uint32_t dims, size_t *doubled)
{
    size_t twice = end;
    cairn_err err;

    if (end - begin > UINT32_MAX / 4)
        return CAIRN_NOMEM;
    err = cairn_boxes_reset(&tiling->index, dims, (uint32_t)(end - begin));
    if (err)
        return err;
    for (size_t at = begin, next; at < end; at = next) {
        struct cairn_box box;

        next = at + cairn_piece_replicas(&tiling->table, at, end, dims);
        if (next - at > 1 && twice == end)
            twice = at;
        cairn_box_of_piece(tiling->table.piece[at], dims, &box);
        cairn_boxes_add(&tiling->index, &box, (uint32_t)(at - begin));
    }
    cairn_boxes_build(&tiling->index);
    *doubled = twice;
    return CAIRN_OK;
}

static void
report_overlap(struct tiling *tiling, const struct cairn_tensor *tensor,
               const struct cairn_piece *a, const struct cairn_piece *b,
               const struct cairn_box *where)
{
    char text[CAIRN_BOX_TEXT_BYTES];

    cairn_report_add(&tiling->report, "%s: pieces in %ss %" PRIu32 " and %" PRIu32 " both hold %s",
                     tensor->name, tiling->container, a->container, b->container,
                     cairn_box_text(where, tensor->dims, text));
}

static cairn_err
check_tensor(struct tiling *tiling, uint32_t t, bool exactly_once)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(tiling->layout, t);
    size_t begin = tiling->table.begin[t], end = tiling->table.begin[t + 1], doubled;
    const struct cairn_piece **piece = tiling->table.piece + begin;
    struct cairn_box whole, where;
    uint64_t elements, held = 0;
    uint32_t a, b;
    bool overlap, gap = false;
    char text[CAIRN_BOX_TEXT_BYTES];
    cairn_err err;

    cairn_box_of_tensor(tensor, &whole);
    elements = cairn_box_elements(&whole, tensor->dims);
    if (elements == 0)
        return CAIRN_OK;
    err = index_pieces(tiling, begin, end, tensor->dims, &doubled);
    if (err)
        return err;
    overlap = cairn_boxes_find_overlap(&tiling->index, &a, &b, &where);
    if (overlap && exactly_once) {
        report_overlap(tiling, tensor, piece[a], piece[b], &where);
    } else if (doubled < end && exactly_once) {
        cairn_box_of_piece(tiling->table.piece[doubled], tensor->dims, &where);
        report_overlap(tiling, tensor, tiling->table.piece[doubled],
                       tiling->table.piece[doubled + 1], &where);
    }
    for (uint32_t i = 0; i < tiling->index.count; i++)
        held += cairn_box_elements(&tiling->index.boxes[i], tensor->dims);
    if (overlap || held != elements)
        err = cairn_boxes_find_gap(&tiling->index, &whole, &tiling->stack, &gap, &where);
    if (!err && gap && overlap)
        cairn_report_add(&tiling->report, "%s: no piece holds %s", tensor->name,
                         cairn_box_text(&where, tensor->dims, text));
    else if (!err && gap)
        cairn_report_add(
            &tiling->report, "%s: %" PRIu64 " of %" PRIu64 " elements are in no piece, such as %s",
            tensor->name, elements - held, elements, cairn_box_text(&where, tensor->dims, text));
    return err;
}

static cairn_err
check(const struct cairn_layout *layout, bool exactly_once, const char *container, char *report,
      size_t report_bytes)
{
    struct tiling tiling = {.layout = layout, .container = container};
    uint32_t tensor_count = cairn_layout_tensor_count(layout);
    cairn_err err;

    cairn_report_init(&tiling.report, report, report_bytes);
    err = cairn_piece_table_init(&tiling.table, layout);
    for (uint32_t t = 0; t < tensor_count && !err; t++)
        err = check_tensor(&tiling, t, exactly_once);
    cairn_report_finish(&tiling.report);
    if (!err && tiling.report.finding_count > 0)
        err = CAIRN_CORRUPT;
    cairn_box_stack_fini(&tiling.stack);
    cairn_boxes_fini(&tiling.index);
    cairn_piece_table_fini(&tiling.table);
    return err;
}

cairn_err
cairn_layout_check_tiling(const struct cairn_layout *layout, bool exactly_once, char *report,
                          size_t report_bytes)
{
    return check(layout, exactly_once, "container", report, report_bytes);
}

cairn_err
cairn_layout_check_tiling_of(const struct cairn_layout *layout, const char *container, char *report,
                             size_t report_bytes)
{
    return check(layout, true, container, report, report_bytes);
}
