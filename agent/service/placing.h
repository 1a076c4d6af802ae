/*
 * agent/service/placing.h - offers other shares of micro-batches to the trainers (plan_policy:
 * enforce).
 *
 * An offer is a number and one share per replica. The analyst makes it, stores it and tells every
 * agent; each agent stores the one with the highest number and tells it to its trainers that have
 * asked for their share. Whether it is taken, the trainers decide among themselves
 * (client/placement.h).
 *
 * Invariants:
 *  1. An offer is stored before a trainer or another agent hears of it, so no number comes twice
 *     from one agent. Two agents that give one number differ in the shares, and then no trainer
 *     changes.
 *  2. Within 24 hours at most plans_per_day offers leave the plan of `problem`, whichever agent
 *     makes them: what is spent is stored and told with each offer. Going back to it is always
 *     offered.
 */
#ifndef CAIRN_AGENT_SERVICE_PLACING_H
#define CAIRN_AGENT_SERVICE_PLACING_H

#include "client/session.h"

struct cairn_agent;
struct cairn_service_message;
struct cairn_session_frame;
struct operator_node;
struct session;

/* Nothing is done, and agent->placing stays NULL, unless plan_policy is enforce. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err placing_open(struct cairn_agent *agent);
void placing_close(struct cairn_agent *agent);

/* The newest offer; count 0: there was none. NULL: plan_policy is not enforce. */
const struct cairn_session_shares *placing_newest(const struct cairn_agent *agent);

/*
 * Offers shares under the next number, `why` for the log. `home`: they are those of the problem's
 * plan. False if the day's budget is spent, which is logged once. placing_newest is not NULL.
 */
bool placing_offer(struct cairn_agent *agent, const struct cairn_session_shares *shares, bool home,
                   const char *why);

/* How many stages of each replica this node's trainer can move layers between; 0: none. While no
 * trainer has asked, as many as in the newest offer. */
uint32_t placing_stages(const struct cairn_agent *agent);

/* Tells the newest offer again, for agents that were away. */
void placing_repeat(struct cairn_agent *agent);

/* Fills in what this node has of the newest offer, for operators. */
void placing_fill(struct cairn_agent *agent, struct operator_node *out);

/* A SHARES of a trainer. False: close the session. */
bool placing_frame(struct cairn_agent *agent, struct session *session,
                   const struct cairn_session_frame *frame);
/* An OFFER of another agent. */
void placing_message(struct cairn_agent *agent, const struct cairn_service_message *message);

#endif
