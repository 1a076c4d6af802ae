/* agent/core/receive.h - checks each message at the door, and dispatches it. */
#ifndef CAIRN_AGENT_CORE_RECEIVE_H
#define CAIRN_AGENT_CORE_RECEIVE_H

#include "agent/core/core_state.h"

/* Takes a message, or drops and counts it (R4, R5). */
void receive(struct cairn_core *core, const struct cairn_event_message *event);
void receive_peer_up(struct cairn_core *core, const struct cairn_event_peer *peer);
void receive_peer_down(struct cairn_core *core, const struct cairn_event_peer *peer);

#endif
