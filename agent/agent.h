/*
 * agent/agent.h - one node's agent: starts from a configuration, serves until it is told to stop.
 */
#ifndef CAIRN_AGENT_AGENT_H
#define CAIRN_AGENT_AGENT_H

#include "agent/process/config.h"

/*
 * Runs an agent in this process until SIGTERM or SIGINT. Its memory stays with the keeper, so that
 * the next agent goes on with it. `executable` is this program's path, for starting the keeper.
 * Returns the exit code of the contract: 0 stopped, 1 failed, 69 a peer or port problem, 74 I/O, 75
 * another agent serves this node, 77 not allowed, 78 wrong configuration; the reason was logged.
 */
int cairn_agent_run(const struct cairn_config *config, const char *executable);

#endif
