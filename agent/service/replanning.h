/*
 * agent/service/replanning.h - advises what to do about the plan while ranks are slow, and has it
 * proposed or offered to trainers as plan_policy allows (placing.h).
 *
 * A worker of low priority, with a time limit, makes the plans.
 */
#ifndef CAIRN_AGENT_SERVICE_REPLANNING_H
#define CAIRN_AGENT_SERVICE_REPLANNING_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>

struct cairn_agent;
struct operator_node;
struct proposal;
struct proposal_answer;
struct proposal_decision;

/* Reads the configured problem, if there is one. CAIRN_CONFIG, logged: it is wrong. */
CAIRN_MUST_CHECK cairn_err replanning_open(struct cairn_agent *agent);
void replanning_close(struct cairn_agent *agent);

/* How long training stands still when the plan changes or ranks are exchanged, without the time to
 * move state. */
uint64_t replanning_standstill_ns(void);

/* The home placement: that of the plan in `problem`. False: nothing is offered to trainers here. */
bool replanning_home(const struct cairn_agent *agent, struct proposal *out);

/* A turn of the analysis is done, and the ledger is up to date: weighs its steps. */
void replanning_turn(struct cairn_agent *agent);

/* Carries out an operator's decision if this agent plans, or only checks it. */
void replanning_decide(struct cairn_agent *agent, const struct proposal_decision *decision,
                       bool dry_run, struct proposal_answer *out);

/* Fills in the advice, for operators. */
void replanning_fill(const struct cairn_agent *agent, struct operator_node *out);

#endif
