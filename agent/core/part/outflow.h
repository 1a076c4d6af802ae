/*
 * agent/core/part/outflow.h - the flows of the own part to the other members of its group: to each
 * the chunk that it encodes, the parity row that it keeps, and the seal.
 *
 * A flow goes to one member, who says how far it may be sent. Its session keeps order and loses
 * nothing; when a new session begins, the flow goes back to what was acknowledged, and the receiver
 * skips what it has. Where blocks arrive damaged, or a piece is missing, the receiver says from
 * where it wants them again.
 */
#ifndef CAIRN_AGENT_CORE_PART_OUTFLOW_H
#define CAIRN_AGENT_CORE_PART_OUTFLOW_H

#include "agent/core/part/encode.h"

/* Sets how far everyone may send, of a part that is prepared for a save. */
void outflow_prepare(const struct env *env, struct part *part);
/* Sends what is ready, as far as the receivers have room. */
void outflow_send(struct env *env, struct part *part, enum flow_kind kind);
/* Sends the piece at piece.offset of the seal of piece.member, which is of the part's group;
 * returns its bytes, 0 if there is none. The caller fills in whom it is for and the attempt. */
uint32_t outflow_send_seal(struct env *env, const struct part *part, uint32_t to,
                           struct cairn_message_seal piece);
/* The first position that has not reported all that flows to it; UINT32_MAX: there is none. */
uint32_t outflow_waits_for(const struct part *part);
/*
 * Takes what a position of the group has received, sends more, and lets members go on. False: it
 * asks for lines that have left the ring.
 */
CAIRN_MUST_CHECK bool outflow_received(struct env *env, struct part *part, uint32_t position,
                                       const struct cairn_message_received *received);

#endif
