/*
 * replan/advise/shapes.h - the shape of a job that is started again on some nodes: how many
 * pipelines and stages, and the layers and micro-batches of each.
 *
 * All pipelines of a shape are divided alike, and its groups have the size of the current plan's.
 * Ranks are numbered as in the current plan, over the devices of the nodes in the given order:
 * either those of a pipeline follow one another, or those of a stage. Pure.
 */
#ifndef CAIRN_REPLAN_ADVISE_SHAPES_H
#define CAIRN_REPLAN_ADVISE_SHAPES_H

#include "replan/fleet/plan.h"

enum {
    CAIRN_SHAPE_NODES_MAX = 256,
    CAIRN_SHAPE_PARTS_MAX = 256, /* pipelines, and stages of each */
    CAIRN_SHAPE_TEXT_BYTES = 256
};

/* What the command of the job can be told, and what it allows. */
struct cairn_shape_rules {
    bool has_stages;       /* the number of stages; else it stays the current plan's */
    bool has_layers;       /* layers per stage; else all stages have as many */
    bool has_shares;       /* micro-batches per pipeline; else all pipelines have as many */
    bool batch_may_change; /* if nothing else fits: pipelines keep the micro-batches of the current
                            * plan's, so the global batch changes with the number of pipelines */
};

struct cairn_shape {
    uint32_t dp, pp, tp;
    uint32_t layers[CAIRN_SHAPE_PARTS_MAX]; /* [pp] */
    uint32_t shares[CAIRN_SHAPE_PARTS_MAX]; /* [dp], micro-batches */
    double step_ms;
};

/*
 * The shape with the shortest time per micro-batch on nodes[node_count], in the order of ranks;
 * one that keeps the global batch comes before all others. CAIRN_NOT_FOUND: none fits;
 * CAIRN_INVAL: there is no current plan, or its groups differ in size; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_shape_find(const struct cairn_problem *problem,
                                            const uint64_t *nodes, uint32_t node_count,
                                            const struct cairn_shape_rules *rules,
                                            struct cairn_shape *out);

/* The current plan as a shape. False: its pipelines are not divided alike. */
bool cairn_shape_current(const struct cairn_problem *problem, struct cairn_shape *out);

/* The nodes of the current plan's devices in the order of their ranks, which are their ids; returns
 * how many, 0: more than CAIRN_SHAPE_NODES_MAX, or there is no current plan. */
uint32_t cairn_shape_nodes(const struct cairn_problem *problem,
                           uint64_t nodes[CAIRN_SHAPE_NODES_MAX]);

#endif
