/*
 * snapshot/reshard.c - cairn_reshard_plan: the moves that fill one layout from another.
 *
 * For each tensor of the target: the distinct boxes of the source go into an index (replicas are
 * one box with several holders), and every target piece asks it for the boxes that it meets.
 *   - If the source's boxes are pairwise disjoint, so are the parts that the target piece shares
 *     with them: they fill it exactly once if and only if their volumes add up to its own.
 *   - If some overlap (partial replicas), the best box that meets the piece is taken, the rest of
 *     the piece is cut into boxes, and each of those is asked for again until nothing is left.
 *
 * reshard_bytes checks first that no byte of a target container is written twice. At the end the
 * bytes of all moves are counted again against the bytes of all target pieces.
 */
#include "snapshot/reshard.h"
#include "base/array.h"

#include "snapshot/reshard_boxes.h"
#include "snapshot/reshard_bytes.h"
#include "snapshot/reshard_pieces.h"
#include "snapshot/reshard_report.h"
#include "snapshot/reshard_runs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/*
 * Holders to look at if all cost the same and there are more: enough to spread the load, and never
 * quadratic.
 */
enum { HOLDERS_LOOKED_AT = 32 };

struct plan {
    const struct cairn_layout *source;
    const struct cairn_layout *target;
    struct cairn_reshard_options options;
    struct cairn_piece_table source_table;
    struct cairn_piece_table target_table;
    struct cairn_boxes index; /* keys are group numbers */
    struct cairn_box_stack stack;
    struct cairn_move_list list;
    struct cairn_report report;
    uint32_t *containers; /* of the source, ascending and distinct */
    uint64_t *load_bytes; /* read from each so far */
    size_t container_count;
    size_t turn; /* where the next look at many equal holders starts */
    /* the tensor at hand */
    const struct cairn_tensor *tensor;
    const struct cairn_piece **holders; /* source pieces, replicas side by side */
    size_t *group_begin; /* holders of box g: holders[group_begin[g]] to holders[group_begin[g + 1]
                            - 1] */
    size_t group_limit;
    bool disjoint; /* its distinct boxes are */
};

/* The cost of a source piece, best first in this order. */
struct offer {
    const struct cairn_piece *piece;
    bool in_place;
    uint32_t cost;
    uint64_t elements;
    uint64_t load_bytes;
};

static int
compare_containers(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    return (a > b) - (a < b);
}

static cairn_err
init_loads(struct plan *plan)
{
    size_t piece_count = cairn_layout_piece_count(plan->source), kept = 0;

    plan->containers = malloc((piece_count + 1) * sizeof *plan->containers);
    if (!plan->containers)
        return CAIRN_NOMEM;
    for (size_t i = 0; i < piece_count; i++) {
        uint32_t container = cairn_layout_piece(plan->source, i)->container;

        if (kept == 0 || plan->containers[kept - 1] != container)
            plan->containers[kept++] = container;
    }
    piece_count = kept;
    if (piece_count > 1)
        qsort(plan->containers, piece_count, sizeof *plan->containers, compare_containers);
    kept = 0;
    for (size_t i = 0; i < piece_count; i++)
        if (kept == 0 || plan->containers[kept - 1] != plan->containers[i])
            plan->containers[kept++] = plan->containers[i];
    plan->container_count = kept;
    plan->load_bytes = calloc(kept + 1, sizeof *plan->load_bytes);
    return plan->load_bytes ? CAIRN_OK : CAIRN_NOMEM;
}

static uint64_t *
load_of(struct plan *plan, uint32_t container)
{
    size_t low = 0, high = plan->container_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (plan->containers[middle] <= container)
            low = middle;
        else
            high = middle;
    }
    return &plan->load_bytes[low];
}

/* Whether every element of the box lies at the same bytes of the same container on both sides. */
static bool
is_in_place(const struct plan *plan, const struct cairn_piece *source,
            const struct cairn_piece *target, const struct cairn_box *box)
{
    uint32_t dims = plan->tensor->dims;

    if (!plan->options.same_containers || source->container != target->container ||
        cairn_piece_offset(source, box->low, dims) != cairn_piece_offset(target, box->low, dims))
        return false;
    for (uint32_t d = 0; d < dims; d++)
        if (box->high[d] - box->low[d] > 1 && source->stride_bytes[d] != target->stride_bytes[d])
            return false;
    return true;
}

static bool
is_better(const struct offer *a, const struct offer *b)
{
    if (!b->piece)
        return true;
    if (a->in_place != b->in_place)
        return a->in_place;
    if (a->cost != b->cost)
        return a->cost < b->cost;
    if (a->elements != b->elements)
        return a->elements > b->elements;
    return a->load_bytes < b->load_bytes;
}

static void
consider(struct plan *plan, const struct cairn_piece *source, const struct cairn_piece *target,
         const struct cairn_box *box, struct offer *best)
{
    struct offer offer = {.piece = source, .in_place = is_in_place(plan, source, target, box)};

    if (plan->options.cost)
        offer.cost =
            plan->options.cost(plan->options.cost_context, source->container, target->container);
    offer.elements = cairn_box_elements(box, plan->tensor->dims);
    offer.load_bytes = *load_of(plan, source->container);
    if (is_better(&offer, best))
        *best = offer;
}

/* Considers the holders of group `group`, for the part `box` of the target piece. */
static void
consider_holders(struct plan *plan, uint32_t group, const struct cairn_piece *target,
                 const struct cairn_box *box, struct offer *best)
{
    const struct cairn_piece **holder = plan->holders + plan->group_begin[group];
    size_t count = plan->group_begin[group + 1] - plan->group_begin[group];
    size_t low = 0, high = count;

    if (plan->options.cost || count <= HOLDERS_LOOKED_AT) {
        for (size_t i = 0; i < count; i++)
            consider(plan, holder[i], target, box, best);
        return;
    }
    for (size_t i = 0; i < HOLDERS_LOOKED_AT; i++)
        consider(plan, holder[plan->turn++ % count], target, box, best);
    /* The holders are sorted by container: find the target's own */
    CAIRN_BISECT(low, high, middle, holder[middle]->container < target->container);
    for (; low < count && holder[low]->container == target->container; low++)
        consider(plan, holder[low], target, box, best);
}

static cairn_err
emit(struct plan *plan, const struct cairn_piece *source, const struct cairn_piece *target,
     const struct cairn_box *box)
{
    uint64_t in_place_bytes = plan->list.in_place_bytes;
    cairn_err err;

    err = cairn_moves_emit(&plan->list, plan->tensor, source, target, box,
                           plan->options.same_containers);
    *load_of(plan, source->container) +=
        cairn_box_elements(box, plan->tensor->dims) * cairn_dtype_bytes(plan->tensor->dtype) -
        (plan->list.in_place_bytes - in_place_bytes);
    return err;
}

/* Reports that no source piece holds `gap`, which a target piece needs. */
static void
report_gap(struct plan *plan, const struct cairn_piece *target, const struct cairn_box *gap)
{
    char text[CAIRN_BOX_TEXT_BYTES];

    cairn_report_add(&plan->report, "%s: the source lacks %s, needed by container %" PRIu32,
                     plan->tensor->name, cairn_box_text(gap, plan->tensor->dims, text),
                     target->container);
}

/* Fills a target piece from disjoint source boxes; *filled says whether they filled it. */
static cairn_err
fill_from_disjoint(struct plan *plan, const struct cairn_piece *target, const struct cairn_box *box,
                   bool *filled)
{
    uint64_t left = cairn_box_elements(box, plan->tensor->dims);
    struct cairn_boxes_query query;
    const struct cairn_box *hit;
    uint32_t group;

    cairn_boxes_query_init(&query, &plan->index, box);
    while (cairn_boxes_query_next(&query, &group, &hit)) {
        struct offer best = {0};
        struct cairn_box shared;
        cairn_err err;

        (void)cairn_box_intersect(box, hit, plan->index.dims, &shared);
        consider_holders(plan, group, target, &shared, &best);
        err = emit(plan, best.piece, target, &shared);
        if (err)
            return err;
        left -= cairn_box_elements(&shared, plan->tensor->dims);
    }
    *filled = left == 0;
    return CAIRN_OK;
}

/* Fills a target piece from source boxes that may overlap, best offer first. */
static cairn_err
fill_from_overlapping(struct plan *plan, const struct cairn_piece *target,
                      const struct cairn_box *box, bool *filled)
{
    cairn_err err;

    plan->stack.count = 0;
    *filled = true;
    err = cairn_box_push(&plan->stack, box);
    while (!err && plan->stack.count > 0) {
        struct cairn_box open = plan->stack.boxes[--plan->stack.count], shared, taken = open;
        struct cairn_boxes_query query;
        const struct cairn_box *hit;
        struct offer best = {0};
        uint32_t group;

        cairn_boxes_query_init(&query, &plan->index, &open);
        while (cairn_boxes_query_next(&query, &group, &hit)) {
            const struct cairn_piece *before = best.piece;

            (void)cairn_box_intersect(&open, hit, plan->index.dims, &shared);
            consider_holders(plan, group, target, &shared, &best);
            if (best.piece != before)
                taken = shared;
        }
        if (!best.piece) {
            *filled = false;
            return CAIRN_OK;
        }
        err = emit(plan, best.piece, target, &taken);
        if (!err)
            err = cairn_box_push_rest(&plan->stack, &open, &taken, plan->index.dims);
    }
    return err;
}

static cairn_err
fill_piece(struct plan *plan, const struct cairn_piece *target)
{
    struct cairn_box box, gap;
    bool filled = false, found = false;
    cairn_err err;

    cairn_box_of_piece(target, plan->tensor->dims, &box);
    err = plan->disjoint ? fill_from_disjoint(plan, target, &box, &filled)
                         : fill_from_overlapping(plan, target, &box, &filled);
    if (!err && !filled)
        err = cairn_boxes_find_gap(&plan->index, &box, &plan->stack, &found, &gap);
    if (!err && found)
        report_gap(plan, target, &gap);
    if (!err && !filled && !found)
        err = CAIRN_INTERNAL;
    return err;
}

/* Makes the source's tensor the one at hand: its holders, and the index of their distinct boxes. */
static cairn_err
take_source(struct plan *plan, uint32_t source_tensor)
{
    size_t begin = plan->source_table.begin[source_tensor];
    size_t count = plan->source_table.begin[source_tensor + 1] - begin;
    struct cairn_piece_table table = {.piece = plan->source_table.piece + begin};
    struct cairn_box overlap;
    uint32_t a, b, group = 0;
    size_t at = 0;
    cairn_err err;

    if (count > UINT32_MAX / 4)
        return CAIRN_NOMEM;
    if (count >= plan->group_limit) {
        free(plan->group_begin);
        plan->group_limit = 0;
        plan->group_begin = malloc((count + 1) * sizeof *plan->group_begin);
        if (!plan->group_begin)
            return CAIRN_NOMEM;
        plan->group_limit = count + 1;
    }
    plan->holders = table.piece;
    err = cairn_boxes_reset(&plan->index, plan->tensor->dims, (uint32_t)count);
    if (err)
        return err;
    for (; at < count; group++) {
        struct cairn_box box;

        plan->group_begin[group] = at;
        cairn_box_of_piece(table.piece[at], plan->tensor->dims, &box);
        cairn_boxes_add(&plan->index, &box, group);
        at += cairn_piece_replicas(&table, at, count, plan->tensor->dims);
    }
    plan->group_begin[group] = at;
    cairn_boxes_build(&plan->index);
    plan->disjoint = !cairn_boxes_find_overlap(&plan->index, &a, &b, &overlap);
    return CAIRN_OK;
}

static cairn_err
plan_tensor(struct plan *plan, uint32_t t)
{
    size_t begin = plan->target_table.begin[t], end = plan->target_table.begin[t + 1];
    size_t first_move = plan->list.count;
    uint64_t findings = plan->report.finding_count;
    cairn_err err;

    if (begin == end)
        return CAIRN_OK;
    plan->tensor = cairn_layout_tensor(plan->target, t);
    err = take_source(plan, cairn_layout_tensor_find(plan->source, plan->tensor->name));
    for (size_t i = begin; i < end && !err && plan->report.finding_count == findings; i++)
        err = fill_piece(plan, plan->target_table.piece[i]);
    if (!err)
        cairn_moves_merge(&plan->list, first_move);
    return err;
}

/* Finds each tensor of the target in the source, with the same dtype and shape. */
static cairn_err
match_tensors(struct plan *plan)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t t = 0; t < cairn_layout_tensor_count(plan->target); t++) {
        const struct cairn_tensor *wanted = cairn_layout_tensor(plan->target, t);
        uint32_t index = cairn_layout_tensor_find(plan->source, wanted->name);
        const struct cairn_tensor *found;

        if (index == UINT32_MAX) {
            cairn_report_add(&plan->report, "%s: not in the source", wanted->name);
            err = err ? err : CAIRN_NOT_FOUND;
            continue;
        }
        found = cairn_layout_tensor(plan->source, index);
        if (found->dtype != wanted->dtype) {
            cairn_report_add(&plan->report, "%s: %s in the source, %s in the target", wanted->name,
                             cairn_dtype_name(found->dtype), cairn_dtype_name(wanted->dtype));
            err = err ? err : CAIRN_INVAL;
        } else if (found->dims != wanted->dims ||
                   memcmp(found->shape, wanted->shape, sizeof found->shape) != 0) {
            char has[CAIRN_BOX_TEXT_BYTES], needs[CAIRN_BOX_TEXT_BYTES];
            struct cairn_box a, b;

            cairn_box_of_tensor(found, &a);
            cairn_box_of_tensor(wanted, &b);
            cairn_report_add(&plan->report, "%s: shape %s in the source, %s in the target",
                             wanted->name, cairn_box_text(&a, found->dims, has),
                             cairn_box_text(&b, wanted->dims, needs));
            err = err ? err : CAIRN_INVAL;
        }
    }
    return err;
}

/* Counts again: every byte of every target piece is moved or in place. */
static cairn_err
check_bytes(const struct plan *plan, uint64_t *moved_bytes)
{
    uint64_t wanted = 0, moved = 0;

    for (size_t i = 0; i < cairn_layout_piece_count(plan->target); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(plan->target, i);
        const struct cairn_tensor *tensor = cairn_layout_tensor(plan->target, piece->tensor);
        struct cairn_box box;

        cairn_box_of_piece(piece, tensor->dims, &box);
        wanted += cairn_box_elements(&box, tensor->dims) * cairn_dtype_bytes(tensor->dtype);
    }
    for (size_t i = 0; i < plan->list.count; i++)
        moved += plan->list.moves[i].run_bytes * plan->list.moves[i].run_count;
    *moved_bytes = moved;
    return moved + plan->list.in_place_bytes == wanted ? CAIRN_OK : CAIRN_INTERNAL;
}

cairn_err
cairn_reshard_plan(const struct cairn_layout *source, const struct cairn_layout *target,
                   const struct cairn_reshard_options *options, struct cairn_moves *out,
                   char *report, size_t report_bytes)
{
    struct plan plan = {.source = source, .target = target};
    uint32_t tensor_count = cairn_layout_tensor_count(target);
    uint64_t moved_bytes = 0;
    cairn_err err;

    if (options)
        plan.options = *options;
    cairn_report_init(&plan.report, report, report_bytes);
    err = match_tensors(&plan);
    if (!err)
        err = cairn_bytes_check_disjoint(target, &plan.report);
    if (!err)
        err = init_loads(&plan);
    if (!err)
        err = cairn_piece_table_init(&plan.source_table, source);
    if (!err)
        err = cairn_piece_table_init(&plan.target_table, target);
    for (uint32_t t = 0; t < tensor_count && !err; t++)
        err = plan_tensor(&plan, t);
    if (!err && plan.report.finding_count > 0)
        err = CAIRN_CORRUPT;
    if (!err)
        err = check_bytes(&plan, &moved_bytes);
    if (!err) {
        cairn_moves_sort(&plan.list);
        out->moves = plan.list.moves;
        out->count = plan.list.count;
        out->bytes = moved_bytes;
        out->in_place_bytes = plan.list.in_place_bytes;
        plan.list.moves = NULL;
    }
    cairn_report_finish(&plan.report);
    cairn_move_list_fini(&plan.list);
    free(plan.containers);
    free(plan.load_bytes);
    free(plan.group_begin);
    cairn_piece_table_fini(&plan.source_table);
    cairn_piece_table_fini(&plan.target_table);
    cairn_boxes_fini(&plan.index);
    cairn_box_stack_fini(&plan.stack);
    return err;
}

void
cairn_moves_fini(struct cairn_moves *moves)
{
    free(moves->moves);
    memset(moves, 0, sizeof *moves);
}
