/*
 * replan/search/exhaust.h - the best plan of a handful of devices: all groups, orders and
 * divisions.
 *
 * For a time to beat, the most micro-batches of a pipeline of each subset of the devices are found
 * over all sequences of groups, then the most of disjoint subsets; as long as that is enough the
 * time of what was found is the next one to beat. Devices that are alike are taken in one order
 * only.
 */
#ifndef CAIRN_REPLAN_SEARCH_EXHAUST_H
#define CAIRN_REPLAN_SEARCH_EXHAUST_H

#include "replan/fleet/group.h"
#include "replan/search/pipelines.h"
#include "replan/fleet/plan.h"

enum { CAIRN_EXHAUST_DEVICES_MAX = 8 };

/*
 * Replaces *plan (NULL: none yet) and *step_ms (then INFINITY) by the best plan there is, and sets
 * *complete, unless `stop` ends the search first: then *plan is the best so far. For at most
 * CAIRN_EXHAUST_DEVICES_MAX live devices. CAIRN_NOMEM, with all as they were.
 */
CAIRN_MUST_CHECK cairn_err cairn_exhaust(const struct cairn_fleet *fleet,
                                         const struct cairn_stop *stop, struct cairn_plan **plan,
                                         double *step_ms, bool *complete);

#endif
