/*
 * replan/bound/few.h - a lower bound on the step time where memory allows few pipelines:
 * docs/PLANNER.md, (G).
 */
#ifndef CAIRN_REPLAN_BOUND_FEW_H
#define CAIRN_REPLAN_BOUND_FEW_H

#include "replan/fleet/group.h"
#include "replan/fleet/stop.h"

enum { CAIRN_BOUND_FEW_PIPELINES = 6 };

struct cairn_few;

/*
 * CAIRN_NOT_FOUND: memory allows more than CAIRN_BOUND_FEW_PIPELINES, or nodes have too many kinds
 * of groups. CAIRN_NOMEM. Borrows the fleet; ended by cairn_few_destroy.
 */
CAIRN_MUST_CHECK cairn_err cairn_few_create(const struct cairn_fleet *fleet,
                                            struct cairn_few **out);
void cairn_few_destroy(struct cairn_few *few); /* NULL is allowed */

/*
 * Raises *bound_ms, which no plan beats, towards the time of a plan, which must not be slower than
 * that of the last call: each call goes on where the last one ended. `stop` ends it, and so do
 * `cuts_max` cuts: what it has then holds.
 */
void cairn_few_raise(struct cairn_few *few, double plan_ms, uint32_t cuts_max,
                     const struct cairn_stop *stop, double *bound_ms);

/* Groups that the bound's prices favour, where plans may be fastest. They need not fit: a start for
 * a search. */
struct cairn_few_guess {
    uint32_t pipeline_count;
    uint32_t microbatches[CAIRN_BOUND_FEW_PIPELINES];
    uint32_t group_count;
    struct cairn_few_group {
        uint32_t size; /* its index */
        uint32_t pipeline;
        uint32_t place; /* the last stage is 0; groups may share one */
    } * groups;         /* owned; [group_count] */
    uint32_t *group_of; /* owned; by place in the fleet's order; UINT32_MAX: in none */
};

/* Another guess with every seed. CAIRN_NOT_FOUND: no plan is faster than the one that the bound was
 * last raised towards, or nothing was raised; CAIRN_NOMEM. Ended by cairn_few_guess_fini. */
CAIRN_MUST_CHECK cairn_err cairn_few_guess(struct cairn_few *few, uint64_t seed,
                                           struct cairn_few_guess *out);
void cairn_few_guess_fini(struct cairn_few_guess *guess);

#endif
