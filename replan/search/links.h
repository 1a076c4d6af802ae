/*
 * replan/search/links.h - keeps the reduction over pipelines off links that are known to be slow.
 *
 * All pipelines add up the gradients of a layer: much data, every step. Stages of one pipeline hand
 * on activations: little. So two nodes with a slow link between them should hold different layers,
 * as stages of one pipeline do. Groups that are alike in time and memory change places until that
 * is so; the time that the formula gives stays as it is.
 */
#ifndef CAIRN_REPLAN_SEARCH_LINKS_H
#define CAIRN_REPLAN_SEARCH_LINKS_H

#include "replan/fleet/plan.h"

/* How many layers of the model have a reduction that joins two nodes with a slow link between them.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_links_slow_layers(const struct cairn_problem *problem,
                                                   const struct cairn_plan *plan, uint32_t *layers);

/* Exchanges groups that are alike, as long as less is reduced over slow links. Plans of more than
 * 2048 stages stay as they are. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_links_settle(const struct cairn_problem *problem,
                                              struct cairn_plan *plan);

#endif
