/*
 * agent/service/timing_ledger.h - the agent's copy of the ledger of verdicts: logged, told to the
 * other agents, stored.
 *
 * The ledger is in agent->timing, and the same on all agents, apart from moments. The analyst
 * changes it and announces each change.
 */
#ifndef CAIRN_AGENT_SERVICE_TIMING_LEDGER_H
#define CAIRN_AGENT_SERVICE_TIMING_LEDGER_H

#include "replan/live/ledger.h"

#include <stdbool.h>
#include <stdint.h>

struct cairn_agent;

/* Reads the stored ledger, or begins an empty one. */
void timing_load(struct cairn_agent *agent);

/* Stores the ledger now. False, logged: not stored. */
bool timing_store(struct cairn_agent *agent);

/* Sends the ledger to the agents that live. */
void timing_tell(struct cairn_agent *agent, uint64_t now_ns);

/* The same, if it has changed since it was sent last. */
void timing_tell_changes(struct cairn_agent *agent);

/* Logs what has become of a verdict. */
void timing_log_change(const struct cairn_agent *agent, const struct cairn_ledger_entry *entry,
                       enum cairn_ledger_change change);

#endif
