/*
 * replan/search/regroup.h - simulated annealing over groups and pipelines at once, for a few
 * hundred devices. For replan/search/ alone.
 *
 * The other ways to search choose groups first and deal them to pipelines then. Where memory is
 * tight the two depend on each other: which devices form a group decides how many layers it holds.
 */
#ifndef CAIRN_REPLAN_SEARCH_REGROUP_H
#define CAIRN_REPLAN_SEARCH_REGROUP_H

#include "replan/bound/few.h"
#include "replan/fleet/group.h"
#include "replan/search/pipelines.h"

enum { CAIRN_REGROUP_DEVICES_MAX = 256 };

/* Groups, the pipeline of each, and its rank among the stages of that. */
struct cairn_regrouped {
    struct cairn_unit *units; /* owned; [unit_count] the fastest first */
    uint32_t unit_count;
    uint32_t *pipeline_of; /* owned; pipeline_count: unused */
    uint32_t *ranks;       /* owned */
    uint32_t *devices;     /* owned: what units refer to */
    uint32_t pipeline_count;
};

/*
 * Changes the groups of a division for about so many moves; or those of a guess, where there is one
 * (else NULL). *step_ms, the division's time, or for a guess the time to beat, becomes that of the
 * best that was found, *out, which the caller ends with cairn_regrouped_fini. It may be the same.
 * The same seed leads to the same; seeds that follow each other aim nearer to, or less near, the
 * bound. CAIRN_NOT_FOUND: too many devices; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_regroup(const struct cairn_fleet *fleet,
                                         const struct cairn_division *division,
                                         const struct cairn_few_guess *guess, uint32_t moves,
                                         double bound_ms, uint64_t seed,
                                         const struct cairn_stop *stop, double *step_ms,
                                         struct cairn_regrouped *out);
void cairn_regrouped_fini(struct cairn_regrouped *regrouped);

#endif
