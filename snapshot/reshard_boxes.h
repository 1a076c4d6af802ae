/*
 * snapshot/reshard_boxes.h - an index over N-d boxes: which of them meet a given one.
 *
 * A bounding volume hierarchy: boxes are halved by their centres along the dimension in which
 * they are most spread relative to their size, until few are left. So slabs, grids, and the
 * heads, blocks and tails of flat ranges are all found in O(log n + hits), along any
 * dimension. Internal to layout and reshard. Pure.
 */
#ifndef CAIRN_SNAPSHOT_RESHARD_BOXES_H
#define CAIRN_SNAPSHOT_RESHARD_BOXES_H

#include "snapshot/layout.h"

/* Half-open on every used dimension. Scalars are boxes of one dimension, [0, 1). */
struct cairn_box {
    uint64_t low[CAIRN_DIMS_MAX];
    uint64_t high[CAIRN_DIMS_MAX];
};

/* All zero is the empty index. */
struct cairn_boxes {
    uint32_t dims; /* at least 1 */
    uint32_t count;
    uint32_t limit;
    uint32_t node_limit;
    struct cairn_box *boxes; /* in leaf order after cairn_boxes_build */
    uint32_t *keys;          /* keys[i] is the caller's number of boxes[i] */
    struct cairn_box *nodes; /* hulls, children of i at 2i + 1 and 2i + 2 */
};

struct cairn_boxes_query {
    const struct cairn_boxes *index;
    struct cairn_box box;
    uint32_t leaf_at, leaf_end; /* boxes of the current leaf still to be looked at */
    uint32_t depth;             /* used entries of the stack */
    struct {
        uint32_t node, begin, end;
    } stack[66]; /* two per level at most, 32 levels */
};

/*
 * Empties the index for boxes of `dims` dimensions (0 counts as 1) and makes room for `limit`.
 * CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_boxes_reset(struct cairn_boxes *index, uint32_t dims,
                                             uint32_t limit);
void cairn_boxes_fini(struct cairn_boxes *index);

/* Adds a box under the caller's number; there is room for it. Then build once, then query. */
void cairn_boxes_add(struct cairn_boxes *index, const struct cairn_box *box, uint32_t key);
void cairn_boxes_build(struct cairn_boxes *index);

/* Steps through the boxes that meet `box`, in no order: next gives false when there are no more. */
void cairn_boxes_query_init(struct cairn_boxes_query *query, const struct cairn_boxes *index,
                            const struct cairn_box *box);
bool cairn_boxes_query_next(struct cairn_boxes_query *query, uint32_t *key,
                            const struct cairn_box **hit);

/* Finds two boxes that meet; false where all are disjoint. */
bool cairn_boxes_find_overlap(const struct cairn_boxes *index, uint32_t *key_a, uint32_t *key_b,
                              struct cairn_box *overlap);

/* The box of a piece, and of the whole tensor. */
void cairn_box_of_piece(const struct cairn_piece *piece, uint32_t dims, struct cairn_box *out);
void cairn_box_of_tensor(const struct cairn_tensor *tensor, struct cairn_box *out);

uint64_t cairn_box_elements(const struct cairn_box *box, uint32_t dims);
/* Whether a and b meet; *out then is what they share. */
bool cairn_box_intersect(const struct cairn_box *a, const struct cairn_box *b, uint32_t dims,
                         struct cairn_box *out);

/* A stack of boxes that grows. All zero is the empty one. */
struct cairn_box_stack {
    struct cairn_box *boxes;
    size_t count;
    size_t limit;
};

void cairn_box_stack_fini(struct cairn_box_stack *stack);
CAIRN_MUST_CHECK cairn_err cairn_box_push(struct cairn_box_stack *stack,
                                          const struct cairn_box *box);
/* Pushes what is left of `box` without `hole`, which lies inside it: at most 2 * dims boxes. */
CAIRN_MUST_CHECK cairn_err cairn_box_push_rest(struct cairn_box_stack *stack,
                                               const struct cairn_box *box,
                                               const struct cairn_box *hole, uint32_t dims);

/*
 * Looks for a part of `box` that no box of the index covers: *found says whether there is one,
 * *gap is the first met. `stack` is working memory. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_boxes_find_gap(const struct cairn_boxes *index,
                                                const struct cairn_box *box,
                                                struct cairn_box_stack *stack, bool *found,
                                                struct cairn_box *gap);
#endif
