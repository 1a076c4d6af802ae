/*
 * agent/service/operator_fleet.h - `cairn node`: another machine in place of a dead node, or one
 * node less. Checks the change and hands it to the core, which spreads it with an epoch.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_FLEET_H
#define CAIRN_AGENT_SERVICE_OPERATOR_FLEET_H

#include "agent/service/operator_state.h"

/* Begins the request's change; refuses it if it is wrong. */
void request_fleet_begin(struct cairn_agent *agent, struct request *request);

/* Answers once the core has replied. */
void request_fleet_answer(struct cairn_agent *agent, struct request *request);

#endif
