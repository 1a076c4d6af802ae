/*
 * agent/service/operator_peers.h - the request of `cairn doctor` about the other agents: what a
 * probe (probe.h) finds, and which options they set differently.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_PEERS_H
#define CAIRN_AGENT_SERVICE_OPERATOR_PEERS_H

#include "agent/service/operator_state.h"

/* Begins the request; the answer comes when the probe has ended. */
void request_peers_begin(struct cairn_agent *agent, struct request *request);

#endif
