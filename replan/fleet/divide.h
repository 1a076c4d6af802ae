/*
 * replan/fleet/divide.h - layers and micro-batches for given groups: exact, without a solver.
 *
 * With the groups of every pipeline and their order given, what is left are two min-max problems
 * with monotone cost. Layers: for a limit o on the slowest stage, each stage may have up to
 * min(floor(o / layer_ms - vocabulary), what fits) layers; the least sum under that limit gives the
 * fastest groups as many as they may have. Only the values o = layer_ms * (l + vocabulary) matter,
 * and (m - 1) * o + sum is tried for them upwards from the least o that holds all layers, until no
 * larger one can be better. Micro-batches: the time of a pipeline grows with their number, so
 * handing each to the pipeline that would then be fastest gives the least longest time.
 */
#ifndef CAIRN_REPLAN_FLEET_DIVIDE_H
#define CAIRN_REPLAN_FLEET_DIVIDE_H

#include "replan/fleet/problem.h"

/* A group of devices as far as dividing is concerned. */
struct cairn_group {
    double layer_ms;
    uint64_t bytes; /* for layers and activations: cairn_cost_group_bytes */
};

struct cairn_divider; /* working memory for one problem; one thread at a time */

CAIRN_MUST_CHECK cairn_err cairn_divider_create(const struct cairn_problem *problem,
                                                /* the problem is borrowed */
                                                struct cairn_divider **out);
uint32_t cairn_divider_microbatches(const struct cairn_divider *divider); /* of the whole problem */
void cairn_divider_destroy(struct cairn_divider *divider);                /* NULL is allowed */

/*
 * The least time of a pipeline with these groups in this order and that many micro-batches (at
 * least 1), INFINITY where its layers do not fit; layers[stage_count] (NULL: not wanted) as they
 * then are, untouched where nothing fits. Never less for more micro-batches.
 */
double cairn_divide_layers(struct cairn_divider *divider, const struct cairn_group *groups,
                           uint32_t stage_count, uint32_t microbatches, uint32_t *layers);

/*
 * About how many layers too few fit into these groups, in this order, if that many micro-batches
 * are to take at most that time: a measure for searches that pass through what does not fit. 0
 * only where all fit. *limit_ms: what the longest stage then takes at most.
 */
double cairn_divide_shortage(struct cairn_divider *divider, const struct cairn_group *groups,
                             uint32_t stage_count, uint32_t microbatches, double step_ms,
                             double *limit_ms);

enum { CAIRN_LINES_MAX = 16 };

/*
 * The least times of a pipeline as a function of m, for m at least its stage count: the least of
 * (m - 1) * slowest_ms + sum_ms over the lines. line_count 0: nothing fits. Of more than
 * CAIRN_LINES_MAX lines those for the fewest micro-batches are left out, which makes the function
 * larger there, never smaller.
 */
struct cairn_pipeline_lines {
    uint32_t stage_count;
    uint32_t line_count;
    double slowest_ms[CAIRN_LINES_MAX]; /* ascending */
    double sum_ms[CAIRN_LINES_MAX];     /* descending */
};
void cairn_divide_lines(struct cairn_divider *divider, const struct cairn_group *groups,
                        uint32_t stage_count, struct cairn_pipeline_lines *out);

/* How many micro-batches a pipeline does in that time, fractions included; at most `most`. 0 where
 * it does not even one. Pipelines that would do fewer than their stages are taken with the memory
 * of m = stages. */
double cairn_lines_microbatches(const struct cairn_pipeline_lines *lines, double step_ms,
                                double most);

/*
 * Divides layers and all micro-batches over pipelines; groups lie flat, pipeline after pipeline.
 * The least step time, INFINITY where some pipeline fits nothing or there are more pipelines than
 * micro-batches. microbatches[pipeline_count] and layers[all stages] are then as they should be.
 */
double cairn_divide(struct cairn_divider *divider, const struct cairn_group *groups,
                    const uint32_t *stage_counts, uint32_t pipeline_count, uint32_t *microbatches,
                    uint32_t *layers);

#endif
