/*
 * agent/service/operator_gather.h - questions of a request to others: the other agents' views, and
 * a worker's reading of the spill directory.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_GATHER_H
#define CAIRN_AGENT_SERVICE_OPERATOR_GATHER_H

#include "agent/service/operator_files.h"
#include "agent/service/operator_state.h"

struct cairn_service_message;

/* Notes this agent's own view and which others are alive, without asking them. False: no memory. */
CAIRN_MUST_CHECK bool request_see_peers(struct cairn_agent *agent, struct request *request);

/* Asks all agents for their views, and waits for those that are alive. False: no memory. */
CAIRN_MUST_CHECK bool request_gather(struct cairn_agent *agent, struct request *request);

/* True if all live agents have answered, or the time is over. */
bool request_gathered(const struct cairn_agent *agent, const struct request *request);

/* Another agent's question for this one's view, or its answer. */
void request_gather_message(struct cairn_agent *agent, const struct cairn_service_message *message);

/* Has a worker read the spill directory. False: no worker takes the job now. */
CAIRN_MUST_CHECK bool request_read_files(struct cairn_agent *agent, struct request *request,
                                         enum operator_look look);

#endif
