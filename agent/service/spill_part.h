/*
 * agent/service/spill_part.h - the part of a member in a spill: it writes its own files and tells
 * the leader their checksums.
 *
 * State: agent->spill->part.
 */
#ifndef CAIRN_AGENT_SERVICE_SPILL_PART_H
#define CAIRN_AGENT_SERVICE_SPILL_PART_H

#include "agent/service/spill_state.h"

/* A START arrived, or this agent leads and starts its own part. */
void spill_part_start(struct cairn_agent *agent, const struct cairn_service_message *message);

/* Ends the part, in any state. */
void spill_part_end(struct cairn_agent *agent);

/* A CRCS_ACK and an END arrived. */
void spill_part_ack(struct cairn_agent *agent, const struct cairn_service_message *message);
void spill_part_ended(struct cairn_agent *agent, const struct cairn_service_message *message);

/* Leaves a spill whose leader or generation is gone, and tells the leader again. */
void spill_part_tick(struct cairn_agent *agent);

#endif
