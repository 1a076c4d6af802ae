/*
 * agent/service/enforcing.h - runs the operator's command for verdicts that propose an exchange, if
 * verdict_policy is enforce and this agent is the analyst.
 *
 * Invariant: a run is stored and announced to the other agents before the command starts, so that
 * no agent runs it a second time after a crash.
 */
#ifndef CAIRN_AGENT_SERVICE_ENFORCING_H
#define CAIRN_AGENT_SERVICE_ENFORCING_H

#include "cairn/err.h"

#include <stdbool.h>

struct cairn_agent;

/* CAIRN_CONFIG, and logged: the configured command cannot be run. */
CAIRN_MUST_CHECK cairn_err enforcing_open(struct cairn_agent *agent);

/* Kills the command if it runs, and waits for its end. */
void enforcing_close(struct cairn_agent *agent);

/* A turn of the analysis is done, and the ledger is up to date: runs the command if it is due. */
void enforcing_turn(struct cairn_agent *agent);

/*
 * The agent has just taken another agent's ledger. If that has the command that ran here last
 * without its end, adds the end and returns true: the ledger is a newer version then.
 */
bool enforcing_add_end(struct cairn_agent *agent);

#endif
