/*
 * agent/service/operator_plan.h - the requests of `cairn replan`: proposals and offers, and an
 * operator's decision about them.
 *
 * One agent decides: the one that plans (the analyst). Another agent that an operator asks sends it
 * the decision, repeatedly until it answers; a token identifies a decision that arrives twice. So
 * two operators at once get two answers, and one may be a refusal.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_PLAN_H
#define CAIRN_AGENT_SERVICE_OPERATOR_PLAN_H

#include "agent/service/operator_state.h"

struct cairn_service_message;

/* True if a request may want this ("approve", "deny", "back" or "now"); sets its decision. */
bool request_plan_parse(struct request *request, const char *word);

/* Begins the request. False: no memory. */
CAIRN_MUST_CHECK bool request_plan_begin(struct cairn_agent *agent, struct request *request);

/* Sends the decision again, or gives up. */
void request_plan_tick(struct cairn_agent *agent, struct request *request);

/* Answers a request that waits for nothing. */
void request_plan_answer(struct cairn_agent *agent, struct request *request);

/* An OPERATOR message of another agent. False: not about decisions. */
bool request_plan_message(struct cairn_agent *agent, const struct cairn_service_message *message);

#endif
