/*
 * agent/service/operator_drill.h - the requests of `cairn drill`: is the loss of these nodes
 * survivable?
 *
 * The asked agent finds the erasure groups that lose a part, and for each a surviving member. That
 * one runs the drill (drill.h), and reports its progress whenever it is asked again.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_DRILL_H
#define CAIRN_AGENT_SERVICE_OPERATOR_DRILL_H

#include "agent/service/operator_state.h"

struct cairn_service_message;

void request_drill_begin(struct cairn_agent *agent, struct request *request);

/* Asks again, or gives up. */
void request_drill_tick(struct cairn_agent *agent, struct request *request);

/* Goes on to the next group, or answers. */
void request_drill_advance(struct cairn_agent *agent, struct request *request);

/* An OPERATOR message of another agent. False: not about drills. */
bool request_drill_message(struct cairn_agent *agent, const struct cairn_service_message *message);

#endif
