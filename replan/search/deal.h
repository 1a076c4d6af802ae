/*
 * replan/search/deal.h - which pipeline each group is dealt to at first; moves make it better
 * afterwards (pipelines.h).
 */
#ifndef CAIRN_REPLAN_SEARCH_DEAL_H
#define CAIRN_REPLAN_SEARCH_DEAL_H

#include "replan/search/pipelines.h"

/* Deals units[unit_count], fastest first, to pipeline_count pipelines, at least one and at most
 * `dealt`; pipeline_of[unit_count] gets the pipeline of each. CAIRN_DEAL_TURN and
 * CAIRN_DEAL_TURN_MEMORY deal only the first `dealt` of their order; the others get pipeline_count.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_deal_units(const struct cairn_problem *problem,
                                            const struct cairn_unit *units, uint32_t unit_count,
                                            uint32_t dealt, uint32_t pipeline_count,
                                            enum cairn_deal deal, uint32_t *pipeline_of);

#endif
