/*
 * agent/core/conduct.h - joins the nouns: tells each what another has returned.
 *
 * A member's outcome goes to the leader, here or along the tree; the leader's decision goes to this
 * member's run, and on to its children. conduct_settle applies decisions of this agent's own leader
 * until there is none, so nothing here calls itself.
 */
#ifndef CAIRN_AGENT_CORE_CONDUCT_H
#define CAIRN_AGENT_CORE_CONDUCT_H

#include "agent/core/core_state.h"

struct inventory_self conduct_inventory(const struct cairn_core *core);
/* True if this agent is a member of its epoch and may act in it (R4); and if it is the first. */
bool conduct_acts(const struct cairn_core *core);
bool conduct_leads(const struct cairn_core *core);
/* Where messages for the leader go first: to the parent in the tree, or, from an agent that is not
 * a member, to the leader itself. Not of the leader, nor without an epoch. */
uint32_t conduct_above(const struct cairn_core *core);

/* REPORT, or the answer to AUDIT, of this agent or from below: to the leader, here or above. */
void conduct_to_leader(struct cairn_core *core, const struct cairn_message *message);
/* Sends a message for an agent further down on along the tree; false: it is for this one. */
bool conduct_pass_down(struct cairn_core *core, const struct cairn_message *message,
                       uint32_t agent);
/* A decision from above, or one that rides on a group's message. An agent that is not a member
 * learns from it what a restore gets. */
void conduct_decision(struct cairn_core *core, const struct cairn_decision *decision,
                      const char *refusal);
/* Reports what has changed to the leader, applies this agent's own decisions, drops parts that may
 * go, and answers ranks that wait. After every event, so that the code that changes something need
 * not report it, nor drop the part that it kept. */
void conduct_settle(struct cairn_core *core);
/* True if decisions, reports or parts of a save go between this agent and that member; UINT32_MAX:
 * an agent that is none. Needs an epoch. */
bool conduct_is_neighbour(const struct cairn_core *core, uint32_t member);
/* An agent has entered the same epoch: sends it what it may have missed. */
void conduct_greet(struct cairn_core *core, uint32_t agent);
/* Enters the active epoch: new tree, new sessions. */
void conduct_enter(struct cairn_core *core, bool restart);
/* A restore or repair is called for. */
void conduct_watch(struct cairn_core *core);

#endif
