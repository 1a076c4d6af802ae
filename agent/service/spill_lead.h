/*
 * agent/service/spill_lead.h - the leader of a spill: begins it, gathers checksums, commits, gives
 * up.
 *
 * State: agent->spill->lead.
 */
#ifndef CAIRN_AGENT_SERVICE_SPILL_LEAD_H
#define CAIRN_AGENT_SERVICE_SPILL_LEAD_H

#include "agent/service/spill_state.h"

/* A generation is due to be spilled: begins, if this agent is the leader. */
void spill_lead_committed(struct cairn_agent *agent, struct cairn_generation_id generation);

/* A PROGRESS, CRCS or ENDED arrived. */
void spill_lead_message(struct cairn_agent *agent, const struct cairn_service_message *message);

/* The own part has written its files, or failed. */
void spill_lead_own(struct cairn_agent *agent, cairn_err err, const char *text);

void spill_lead_tick(struct cairn_agent *agent);
void spill_lead_fini(struct cairn_agent *agent);

#endif
