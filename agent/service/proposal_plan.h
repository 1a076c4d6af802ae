/* agent/service/proposal_plan.h - proposals from the planner's plans. Pure. */
#ifndef CAIRN_AGENT_SERVICE_PROPOSAL_PLAN_H
#define CAIRN_AGENT_SERVICE_PROPOSAL_PLAN_H

#include "agent/service/proposal.h"
#include "replan/advise/adviser.h"

/*
 * The placement of a plan, by the replicas of the current one; with layers if trainers can move
 * them between `stages` stages. False if the plan has other replicas, or stages.
 */
bool proposal_place(const struct cairn_plan *current, const struct cairn_plan *plan,
                    uint32_t stages, struct cairn_session_shares *out);

/* The ranks that are slow at the adviser's settled rates. */
void proposal_find_slow(const struct cairn_adviser *adviser, struct proposal_slow *out);

/* The home placement as a proposal. False: it has too many replicas or stages. */
bool proposal_make_home(const struct cairn_adviser *adviser, uint32_t stages, struct proposal *out);

/* A step of a placement at the adviser's settled rates; INFINITY: impossible, or no memory to
 * compute it. */
double proposal_step_ms(const struct cairn_adviser *adviser,
                        const struct cairn_session_shares *placement);

/* The best that the trainers can do at the settled rates, whether or not the losses justify it;
 * among nearly equal placements the cheapest. False: nothing gains enough over what runs. */
bool proposal_make_best(const struct cairn_adviser *adviser, const struct proposal *running,
                        uint32_t stages, struct proposal *out);

/* The placement that the advice leads to. False: nothing that the trainers can do. */
bool proposal_make(const struct cairn_adviser *adviser, const struct cairn_advice *advice,
                   uint32_t stages, struct proposal *out);

/* The most state on one node, and the state of some ranks, both without state outside layers: the
 * planner's layer_bytes. UINT64_MAX: no memory to compute it. */
uint64_t proposal_largest_node_bytes(const struct cairn_adviser *adviser,
                                     const struct cairn_session_shares *placement);
uint64_t proposal_ranks_bytes(const struct cairn_adviser *adviser,
                              const struct cairn_session_shares *placement, const uint32_t *ranks,
                              uint32_t count);

/* Compares a proposal with what runs: how many layers change their stage, their bytes, a step of
 * what runs now, and when the price is paid back. */
void proposal_compare(const struct cairn_adviser *adviser, const struct proposal *running,
                      struct proposal *to);

#endif
