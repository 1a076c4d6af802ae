/*
 * agent/service/spill_export.h - messages and ticks of an export; spill.h begins and forgets one.
 *
 * State: agent->spill->export, owned by spill_export.c.
 */
#ifndef CAIRN_AGENT_SERVICE_SPILL_EXPORT_H
#define CAIRN_AGENT_SERVICE_SPILL_EXPORT_H

#include "agent/service/spill_state.h"

/* A PINNED arrived. */
void spill_export_message(struct cairn_agent *agent, const struct cairn_service_message *message);
void spill_export_tick(struct cairn_agent *agent);
void spill_export_close(struct cairn_agent *agent);

#endif
