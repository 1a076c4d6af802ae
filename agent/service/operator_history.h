/*
 * agent/service/operator_history.h - the requests "history" and "report": gathers the histories of
 * all agents, merges them, and writes the answer.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_HISTORY_H
#define CAIRN_AGENT_SERVICE_OPERATOR_HISTORY_H

#include "agent/service/operator_state.h"

struct cairn_service_message;

/* Asks the other agents. False: too busy. */
bool request_history_begin(struct cairn_agent *agent, struct request *request);

/* A message of another agent. False: about something else. */
bool request_history_message(struct cairn_agent *agent,
                             const struct cairn_service_message *message);

/* Ends the wait when all that live have answered, or have had a second to. */
void request_history_tick(struct cairn_agent *agent, struct request *request);

void request_history_answer(struct cairn_agent *agent, struct request *request);

#endif
