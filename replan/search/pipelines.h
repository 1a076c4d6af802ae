/*
 * replan/search/pipelines.h - groups divided over pipelines, and moves that make the division
 * better.
 *
 * A division is judged at a target time: how many micro-batches all its pipelines can do within it.
 * The groups of a pipeline stand slowest first, since early stages hold more activations per layer
 * and slow groups get fewer layers. Where groups differ in memory four more orders are tried:
 * slowest first with most memory last among equals, most memory first, for stages of equal layers,
 * most memory last, which holds most layers altogether, and most time to fill the memory first: a
 * group with memory to spare loses least where many micro-batches are in flight. A division may
 * bring an order of its own, too.
 */
#ifndef CAIRN_REPLAN_SEARCH_PIPELINES_H
#define CAIRN_REPLAN_SEARCH_PIPELINES_H

#include "replan/fleet/divide.h"
#include "replan/fleet/stop.h"

/* A group that may become a stage. Units of one kind are the same as far as time and memory go. */
struct cairn_unit {
    struct cairn_group group;
    uint32_t kind;
    const uint32_t *devices; /* [size] indices of devices; in the memory of a fleet */
    uint32_t size;
};

enum cairn_order {
    CAIRN_ORDER_SPEED,             /* of equal speed most memory first */
    CAIRN_ORDER_SPEED_MEMORY_LAST, /* of equal speed least memory first */
    CAIRN_ORDER_MEMORY_FIRST,
    CAIRN_ORDER_MEMORY_LAST,
    CAIRN_ORDER_ROOM_FIRST, /* most time to fill the memory first */
    CAIRN_ORDER_GIVEN,      /* by the division's ranks, if it has any */
    CAIRN_ORDER_COUNT
};

struct cairn_pipeline {
    uint32_t *members; /* units, slowest first; in the division's memory */
    uint32_t member_count;
    uint32_t room;
    uint64_t name;          /* of the members' kinds: pipelines that differ in it are not alike */
    enum cairn_order order; /* of the stages */
    struct cairn_pipeline_lines lines;
    double microbatches; /* within the target, fractions included */
};

struct cairn_division {
    const struct cairn_problem *problem; /* borrowed, as are divider and units */
    struct cairn_divider *divider;
    const struct cairn_unit *units;
    uint32_t unit_count;
    uint32_t pipeline_count;
    struct cairn_pipeline *pipelines; /* [pipeline_count + 1]; the last are the unused units */
    uint32_t *members;                /* memory of all pipelines */
    const uint32_t *ranks;            /* borrowed: of each unit, the first stages first; or NULL */
    double target_ms;
};

/* How units are dealt to pipelines at first. */
enum cairn_deal {
    CAIRN_DEAL_SPEED,  /* each to the slowest pipeline so far: pipelines of equal speed */
    CAIRN_DEAL_MEMORY, /* each to the one with least memory: for when that is what lacks */
    CAIRN_DEAL_EVEN,   /* as many to each, slow devices to where they slow least */
    CAIRN_DEAL_ALIKE,  /* in order of speed: slow units together, pipelines of different speed */
    CAIRN_DEAL_APART,  /* what holds the model alone by itself, the others as few together as hold
                        * it */
    CAIRN_DEAL_TURN,   /* back and forth, the fastest first */
    CAIRN_DEAL_TURN_MEMORY /* the same, those with most memory first */
};

/* Deals `dealt` of units[unit_count], which stand fastest first, to at most as many pipelines; the
 * others are unused at first. All are dealt but by the last two deals. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_division_create(const struct cairn_problem *problem,
                                                 struct cairn_divider *divider,
                                                 const struct cairn_unit *units,
                                                 uint32_t unit_count, uint32_t dealt,
                                                 uint32_t pipeline_count, enum cairn_deal deal,
                                                 double target_ms, struct cairn_division **out);

/* The same with a pipeline given for each unit: pipeline_of[unit_count], pipeline_count where it is
 * unused; and with ranks[unit_count], one more order of stages, borrowed. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_division_create_given(
    const struct cairn_problem *problem, struct cairn_divider *divider,
    const struct cairn_unit *units, uint32_t unit_count, const uint32_t *pipeline_of,
    const uint32_t *ranks, uint32_t pipeline_count, double target_ms, struct cairn_division **out);
void cairn_division_destroy(struct cairn_division *division); /* NULL is allowed */

/* The whole micro-batches that all pipelines do within a time. */
uint64_t cairn_division_microbatches(struct cairn_division *division, double step_ms);

/* The least time between `low_ms` and `high_ms` in which all micro-batches are done, to 1e-7 of
 * itself; high_ms must be enough. */
double cairn_division_step_ms(struct cairn_division *division, double low_ms, double high_ms);

/* Judges all pipelines at another target. */
void cairn_division_set_target(struct cairn_division *division, double target_ms);

/*
 * Moves and swaps units between pipelines until the target is reached (true), no move helps,
 * `moves_max` were tried, or `stop` stops it.
 */
bool cairn_division_improve(struct cairn_division *division, uint32_t moves_max,
                            const struct cairn_stop *stop);

/* The groups of a pipeline in the order of its stages, and the units they are; both
 * [member_count], `units` may be NULL. */
void cairn_division_stages(const struct cairn_division *division,
                           const struct cairn_pipeline *pipeline, struct cairn_group *groups,
                           uint32_t *units);

#endif
