/*
 * snapshot/reshard_boxes.c - see reshard_boxes.h. The tree is implicit: a node's range of boxes
 * is halved by index.
 */
#include "snapshot/reshard_boxes.h"

#include <stdlib.h>
#include <string.h>

enum { LEAF_BOXES = 8 };

cairn_err
cairn_boxes_reset(struct cairn_boxes *index, uint32_t dims, uint32_t limit)
{
    uint32_t node_count = 1;

    index->dims = dims ? dims : 1;
    index->count = 0;
    if (limit > UINT32_MAX / 4)
        return CAIRN_NOMEM;
    for (uint32_t left = limit; left > LEAF_BOXES; left -= left / 2)
        node_count = 2 * node_count + 1;
    if (limit > index->limit) {
        cairn_boxes_fini(index);
        index->dims = dims ? dims : 1;
        index->boxes = malloc(limit * sizeof *index->boxes);
        index->keys = malloc(limit * sizeof *index->keys);
        index->nodes = malloc(node_count * sizeof *index->nodes);
        if (!index->boxes || !index->keys || !index->nodes) {
            cairn_boxes_fini(index);
            return CAIRN_NOMEM;
        }
        index->limit = limit;
    }
    return CAIRN_OK;
}

void
cairn_boxes_fini(struct cairn_boxes *index)
{
    free(index->boxes);
    free(index->keys);
    free(index->nodes);
    memset(index, 0, sizeof *index);
}

void
cairn_boxes_add(struct cairn_boxes *index, const struct cairn_box *box, uint32_t key)
{
    index->boxes[index->count] = *box;
    index->keys[index->count++] = key;
}

static void
hull_of(const struct cairn_boxes *index, uint32_t begin, uint32_t end, struct cairn_box *hull)
{
    *hull = index->boxes[begin];
    for (uint32_t i = begin + 1; i < end; i++) {
        for (uint32_t d = 0; d < index->dims; d++) {
            if (index->boxes[i].low[d] < hull->low[d])
                hull->low[d] = index->boxes[i].low[d];
            if (index->boxes[i].high[d] > hull->high[d])
                hull->high[d] = index->boxes[i].high[d];
        }
    }
}

/* Twice the centre, so that it stays whole; bounds are below 2^63. */
static uint64_t
centre_of(const struct cairn_box *box, uint32_t d)
{
    return box->low[d] + box->high[d];
}

/*
 * The dimension in which the centres lie furthest apart, measured in average extents; UINT32_MAX:
 * in none.
 */
static uint32_t
spread_dim(const struct cairn_boxes *index, uint32_t begin, uint32_t end)
{
    uint32_t best_dim = UINT32_MAX;
    double best = 0;

    for (uint32_t d = 0; d < index->dims; d++) {
        uint64_t low = UINT64_MAX, high = 0;
        double extents = 0, spread;

        for (uint32_t i = begin; i < end; i++) {
            uint64_t centre = centre_of(&index->boxes[i], d);

            low = centre < low ? centre : low;
            high = centre > high ? centre : high;
            extents += (double)(index->boxes[i].high[d] - index->boxes[i].low[d]);
        }
        spread = (double)(high - low) / extents;
        if (spread > best) {
            best = spread;
            best_dim = d;
        }
    }
    return best_dim;
}

static void
swap_boxes(struct cairn_boxes *index, uint32_t a, uint32_t b)
{
    struct cairn_box box = index->boxes[a];
    uint32_t key = index->keys[a];

    index->boxes[a] = index->boxes[b];
    index->keys[a] = index->keys[b];
    index->boxes[b] = box;
    index->keys[b] = key;
}

static bool
box_before(const struct cairn_boxes *index, uint32_t d, uint32_t a, uint32_t b)
{
    return centre_of(&index->boxes[a], d) < centre_of(&index->boxes[b], d);
}

/* Moves boxes[at] down the heap over [begin, begin + count) to its place. */
static void
heap_sink(struct cairn_boxes *index, uint32_t d, uint32_t begin, uint32_t at, uint32_t count)
{
    for (uint32_t child = 2 * at + 1; child < count; at = child, child = 2 * at + 1) {
        if (child + 1 < count && box_before(index, d, begin + child, begin + child + 1))
            child++;
        if (!box_before(index, d, begin + at, begin + child))
            return;
        swap_boxes(index, begin + at, begin + child);
    }
}

/*
 * Sorts the boxes of [begin, end) by their centres: heap sort, which needs no memory and is never
 * quadratic, for hostile layouts too. Most are sorted already, which is checked first.
 */
static void
sort_boxes(struct cairn_boxes *index, uint32_t d, uint32_t begin, uint32_t end)
{
    uint32_t count = end - begin;
    uint32_t sorted = begin + 1;

    while (sorted < end && !box_before(index, d, sorted, sorted - 1))
        sorted++;
    if (sorted >= end)
        return;
    for (uint32_t i = count / 2; i-- > 0;)
        heap_sink(index, d, begin, i, count);
    for (uint32_t left = count - 1; left > 0; left--) {
        swap_boxes(index, begin, begin + left);
        heap_sink(index, d, begin, 0, left);
    }
}

void
cairn_boxes_build(struct cairn_boxes *index)
{
    struct {
        uint32_t node, begin, end;
    } stack[66], top;
    uint32_t depth = 0;

    if (index->count == 0)
        return;
    stack[depth].node = 0;
    stack[depth].begin = 0;
    stack[depth++].end = index->count;
    while (depth > 0) {
        uint32_t dim, middle;

        top = stack[--depth];
        hull_of(index, top.begin, top.end, &index->nodes[top.node]);
        if (top.end - top.begin <= LEAF_BOXES)
            continue;
        dim = spread_dim(index, top.begin, top.end);
        if (dim != UINT32_MAX)
            sort_boxes(index, dim, top.begin, top.end);
        middle = top.begin + (top.end - top.begin) / 2;
        stack[depth].node = 2 * top.node + 1;
        stack[depth].begin = top.begin;
        stack[depth++].end = middle;
        stack[depth].node = 2 * top.node + 2;
        stack[depth].begin = middle;
        stack[depth++].end = top.end;
    }
}

static bool
boxes_meet(const struct cairn_box *a, const struct cairn_box *b, uint32_t dims)
{
    for (uint32_t d = 0; d < dims; d++)
        if (a->low[d] >= b->high[d] || b->low[d] >= a->high[d])
            return false;
    return true;
}

void
cairn_boxes_query_init(struct cairn_boxes_query *query, const struct cairn_boxes *index,
                       const struct cairn_box *box)
{
    query->index = index;
    query->box = *box;
    query->leaf_at = 0;
    query->leaf_end = 0;
    query->depth = 0;
    if (index->count > 0) {
        query->stack[0].node = 0;
        query->stack[0].begin = 0;
        query->stack[0].end = index->count;
        query->depth = 1;
    }
}

bool
cairn_boxes_query_next(struct cairn_boxes_query *query, uint32_t *key, const struct cairn_box **hit)
{
    const struct cairn_boxes *index = query->index;

    for (;;) {
        uint32_t node, begin, end, middle;

        for (; query->leaf_at < query->leaf_end; query->leaf_at++) {
            if (boxes_meet(&query->box, &index->boxes[query->leaf_at], index->dims)) {
                *key = index->keys[query->leaf_at];
                *hit = &index->boxes[query->leaf_at++];
                return true;
            }
        }
        if (query->depth == 0)
            return false;
        query->depth--;
        node = query->stack[query->depth].node;
        begin = query->stack[query->depth].begin;
        end = query->stack[query->depth].end;
        if (!boxes_meet(&query->box, &index->nodes[node], index->dims))
            continue;
        if (end - begin <= LEAF_BOXES) {
            query->leaf_at = begin;
            query->leaf_end = end;
            continue;
        }
        middle = begin + (end - begin) / 2;
        query->stack[query->depth].node = 2 * node + 2; /* the left half is looked at first */
        query->stack[query->depth].begin = middle;
        query->stack[query->depth++].end = end;
        query->stack[query->depth].node = 2 * node + 1;
        query->stack[query->depth].begin = begin;
        query->stack[query->depth++].end = middle;
    }
}

bool
cairn_boxes_find_overlap(const struct cairn_boxes *index, uint32_t *key_a, uint32_t *key_b,
                         struct cairn_box *overlap)
{
    for (uint32_t i = 0; i < index->count; i++) {
        struct cairn_boxes_query query;
        const struct cairn_box *hit;
        uint32_t key;

        cairn_boxes_query_init(&query, index, &index->boxes[i]);
        while (cairn_boxes_query_next(&query, &key, &hit)) {
            if (hit == &index->boxes[i])
                continue;
            *key_a = index->keys[i];
            *key_b = key;
            (void)cairn_box_intersect(&index->boxes[i], hit, index->dims, overlap);
            return true;
        }
    }
    return false;
}

void
cairn_box_of_piece(const struct cairn_piece *piece, uint32_t dims, struct cairn_box *out)
{
    memset(out, 0, sizeof *out);
    out->high[0] = 1;
    for (uint32_t d = 0; d < dims; d++) {
        out->low[d] = piece->start[d];
        out->high[d] = piece->start[d] + piece->extent[d];
    }
}

void
cairn_box_of_tensor(const struct cairn_tensor *tensor, struct cairn_box *out)
{
    memset(out, 0, sizeof *out);
    out->high[0] = 1;
    for (uint32_t d = 0; d < tensor->dims; d++)
        out->high[d] = tensor->shape[d];
}

uint64_t
cairn_box_elements(const struct cairn_box *box, uint32_t dims)
{
    uint64_t elements = 1;

    for (uint32_t d = 0; d < dims; d++)
        elements *= box->high[d] - box->low[d];
    return elements;
}

bool
cairn_box_intersect(const struct cairn_box *a, const struct cairn_box *b, uint32_t dims,
                    struct cairn_box *out)
{
    if (!boxes_meet(a, b, dims))
        return false;
    memset(out, 0, sizeof *out);
    for (uint32_t d = 0; d < dims; d++) {
        out->low[d] = a->low[d] > b->low[d] ? a->low[d] : b->low[d];
        out->high[d] = a->high[d] < b->high[d] ? a->high[d] : b->high[d];
    }
    return true;
}

void
cairn_box_stack_fini(struct cairn_box_stack *stack)
{
    free(stack->boxes);
    memset(stack, 0, sizeof *stack);
}

cairn_err
cairn_box_push(struct cairn_box_stack *stack, const struct cairn_box *box)
{
    if (stack->count == stack->limit) {
        size_t limit = stack->limit ? 2 * stack->limit : 16;
        struct cairn_box *boxes = realloc(stack->boxes, limit * sizeof *boxes);

        if (!boxes)
            return CAIRN_NOMEM;
        stack->boxes = boxes;
        stack->limit = limit;
    }
    stack->boxes[stack->count++] = *box;
    return CAIRN_OK;
}

cairn_err
cairn_box_push_rest(struct cairn_box_stack *stack, const struct cairn_box *box,
                    const struct cairn_box *hole, uint32_t dims)
{
    struct cairn_box rest = *box;
    cairn_err err = CAIRN_OK;

    /*
     * Dimension by dimension: what is before and after the hole is pushed, the middle is cut
     * further.
     */
    for (uint32_t d = 0; d < dims && !err; d++) {
        struct cairn_box side = rest;

        if (rest.low[d] < hole->low[d]) {
            side.high[d] = hole->low[d];
            err = cairn_box_push(stack, &side);
        }
        if (hole->high[d] < rest.high[d] && !err) {
            side.low[d] = hole->high[d];
            side.high[d] = rest.high[d];
            err = cairn_box_push(stack, &side);
        }
        rest.low[d] = hole->low[d];
        rest.high[d] = hole->high[d];
    }
    return err;
}

/*
 * The largest intersection of `box` with one of the boxes; false where none meets it.
 */
static bool
largest_hit(const struct cairn_boxes *index, const struct cairn_box *box, struct cairn_box *out)
{
    uint64_t whole = cairn_box_elements(box, index->dims), best = 0;
    struct cairn_boxes_query query;
    const struct cairn_box *hit;
    uint32_t key;

    cairn_boxes_query_init(&query, index, box);
    while (best < whole && cairn_boxes_query_next(&query, &key, &hit)) {
        struct cairn_box shared;
        uint64_t elements;

        (void)cairn_box_intersect(box, hit, index->dims, &shared);
        elements = cairn_box_elements(&shared, index->dims);
        if (elements > best) {
            best = elements;
            *out = shared;
        }
    }
    return best > 0;
}

cairn_err
cairn_boxes_find_gap(const struct cairn_boxes *index, const struct cairn_box *box,
                     struct cairn_box_stack *stack, bool *found, struct cairn_box *gap)
{
    cairn_err err;

    stack->count = 0;
    err = cairn_box_push(stack, box);
    while (!err && stack->count > 0) {
        struct cairn_box open = stack->boxes[--stack->count], covered;

        if (!largest_hit(index, &open, &covered)) {
            *gap = open;
            *found = true;
            return CAIRN_OK;
        }
        err = cairn_box_push_rest(stack, &open, &covered, index->dims);
    }
    if (!err)
        *found = false;
    return err;
}
