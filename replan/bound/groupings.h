/*
 * replan/bound/groupings.h - the groups that nodes can form, as kinds of equal time and memory, and
 * the groupings of the highest gain at given prices of kinds.
 *
 * Other than replan/fleet/group.h it tells devices of a node apart by memory: of two amounts, the
 * most and the next, to which less counts up. Within one amount a best grouping may be taken to
 * form its groups in order of rate, for the same reason.
 */
#ifndef CAIRN_REPLAN_BOUND_GROUPINGS_H
#define CAIRN_REPLAN_BOUND_GROUPINGS_H

#include "replan/fleet/group.h"

struct cairn_group_kind {
    double layer_ms;
    uint64_t bytes; /* cairn_cost_group_bytes */
};

struct cairn_groupings {
    struct cairn_group_kind *kinds; /* no two alike; groups that hold no layer are left out */
    uint32_t kind_count;
    uint32_t size_count;             /* as the problem's */
    uint32_t sort_count;             /* of nodes: those that are alike are one sort */
    struct cairn_node_groups *sorts; /* private from here on */
    struct cairn_node_step *steps;
    uint32_t step_count;
    uint32_t *sort_of; /* by node of the fleet */
    uint32_t room;     /* the devices of the largest node, and one more */
    uint32_t *chosen;  /* [sort_count * room]: steps of the best grouping of each sort of nodes, as
                        * of the last call; then UINT32_MAX */
    double *total;     /* scratch, by state of a node */
    uint32_t *last;
};

/* A group of a node: devices from `first` up to `end` of those with most memory, and of the others,
 * each in the fleet's order. */
struct cairn_group_span {
    uint32_t first[2], end[2];
    uint32_t kind;
    uint32_t size; /* its index */
};

/* CAIRN_NOT_FOUND: the nodes have too many kinds of groups; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_groupings_create(const struct cairn_fleet *fleet,
                                                  struct cairn_groupings **out);
void cairn_groupings_destroy(struct cairn_groupings *groupings); /* NULL is allowed */

/*
 * The highest total gain of the groups of all nodes: gain[kind_count] of each group of a kind, and
 * more[sort_count * size_count] of each group of a size in a sort of nodes. Sets used[kind_count],
 * the groups of each kind, and formed[sort_count * size_count], those of each size. The total is
 * the highest if `gain` is never less for a faster kind with as much memory and size, nor for one
 * with more memory that is as fast.
 */
double cairn_groupings_best(struct cairn_groupings *groupings, const double *gain,
                            const double *more, uint32_t *used, uint32_t *formed);

struct cairn_group_span cairn_groupings_span(const struct cairn_groupings *groupings, uint32_t sort,
                                             uint32_t step);

#endif
