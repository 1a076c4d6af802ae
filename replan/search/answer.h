/*
 * replan/search/answer.h - the planner's whole answer to a problem: a plan, its price, and how good
 * it can be at most; or why there is none.
 */
#ifndef CAIRN_REPLAN_SEARCH_ANSWER_H
#define CAIRN_REPLAN_SEARCH_ANSWER_H

#include "replan/search/infeasible.h"
#include "replan/search/migrate.h"
#include "replan/search/search.h"

struct cairn_answer_plan {
    struct cairn_plan *plan; /* owned; NULL: nothing fits, and `infeasible` says why */
    double step_ms;          /* by the formula */
    double schedule_ms;      /* by the schedule; never more */
    double bound_ms;         /* no plan for these devices takes less */
    double healthy_ms;       /* the best found with every device at rate 1; INFINITY: nothing fits
                              * then either */
    double current_ms;       /* of the current plan as it is; INFINITY: there is none, or it cannot
                              * go on */
    struct cairn_migration migration; /* from the current plan; nothing where there is none */
    uint64_t payback_steps; /* until the move has paid for itself; 0: nothing moves, or there is no
                              * choice */
    uint32_t slow_layers;   /* whose reduction over pipelines joins two nodes with a slow link
                              * between them */
    bool complete;          /* no plan is better: all were tried, or the bound is within 0.05 % */
    bool cut_short; /* `stop` ended the search, or the bound: with more time the answer may be
                             * better */
    struct cairn_infeasible infeasible;
};

/* Plans. Of plans within half a per cent of the best found, the current one comes first, then its
 * stages with other numbers of micro-batches, since they move nothing; then its groups divided
 * again, which move layers, where that is not more than the best plan moves. `stop` ends the search
 * early, `stop_healthy` that of the healthy plan after it; never before there is a plan. The caller
 * ends *out with cairn_answer_plan_fini. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_answer_plan_make(const struct cairn_problem *problem,
                                                  const struct cairn_stop *stop,
                                                  const struct cairn_stop *stop_healthy,
                                                  struct cairn_answer_plan *out);

/* The same without the healthy plan (healthy_ms is that of this one). CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_answer_plan_best(const struct cairn_problem *problem,
                                                  const struct cairn_stop *stop,
                                                  struct cairn_answer_plan *out);
void cairn_answer_plan_fini(struct cairn_answer_plan *answer);

#endif
