/*
 * replan/search/search.h - a good plan: groups, their division over pipelines, and the exact
 * division of layers and micro-batches for the best of them.
 *
 * Sets of groups come from replan/fleet/group.h: those of the highest gain at times near the bound,
 * for several choices of sizes. Each set is dealt to every promising number of pipelines in four
 * ways and judged; moving groups improves the best few. Counts bound the work, so the same problem
 * has the same plan unless `stop` ends the search earlier.
 */
#ifndef CAIRN_REPLAN_SEARCH_SEARCH_H
#define CAIRN_REPLAN_SEARCH_SEARCH_H

#include "replan/fleet/group.h"
#include "replan/search/pipelines.h"
#include "replan/fleet/plan.h"

/* Searches the best plan, given a lower bound on its time, and raises that bound on the way
 * (replan/bound/raise.h). *complete: no plan is better, since all have been tried (the bound is
 * then the plan's time), or by more than 0.05 %, since the bound is that near. CAIRN_NOT_FOUND if
 * nothing that was tried fits; CAIRN_NOMEM. The caller owns *out. `stop` is ignored until there is
 * a plan. */
CAIRN_MUST_CHECK cairn_err cairn_search(const struct cairn_fleet *fleet, double *bound_ms,
                                        const struct cairn_stop *stop, struct cairn_plan **out,
                                        double *step_ms, bool *complete);

#endif
