/*
 * replan/search/deal.h - which pipeline each group is dealt to at first; moves make it better
 * afterwards (pipelines.h).
 */
#ifndef CAIRN_REPLAN_SEARCH_DEAL_H
#define CAIRN_REPLAN_SEARCH_DEAL_H

#include "replan/search/pipelines.h"

/* Deals units[unit_count], fastest first, to pipeline_count pipelines, at least one and at most
 * unit_count; owner[unit_count] gets the pipeline of each. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_deal_units(const struct cairn_problem *problem,
                                            const struct cairn_unit *units, uint32_t unit_count,
                                            uint32_t pipeline_count, enum cairn_deal deal,
                                            uint32_t *owner);

#endif
