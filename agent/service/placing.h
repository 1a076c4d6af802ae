/*
 * agent/service/placing.h - offers other placements to the trainers (plan_policy: approve and
 * enforce): stores the book of placements (proposal.h), and announces it.
 *
 * A placement is a number, one share of the micro-batches per replica, and maybe the layers of each
 * stage. The analyst (analyst.h) decides about it; each agent stores the newest book and tells its
 * offer to the trainers that have asked for their share. The trainers decide among themselves
 * whether they take it (client/placement.h).
 *
 * Invariants:
 *  1. A book is stored before it is announced to a trainer or another agent, so no number comes
 *     twice from one agent. If two agents give one number, the placements differ, and then no
 *     trainer changes.
 *  2. Without approval, at most plans_per_day offers leave the plan of `problem` within 24 hours,
 *     from all agents together: the book counts them. Going back is always offered.
 */
#ifndef CAIRN_AGENT_SERVICE_PLACING_H
#define CAIRN_AGENT_SERVICE_PLACING_H

#include "agent/service/proposal.h"

struct analyst_actions;
struct cairn_agent;
struct cairn_service_message;
struct cairn_session_frame;
struct operator_node;
struct session;

/* Nothing is done, and agent->placing stays NULL, unless plan_policy is approve or enforce. After
 * replanning_open. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err placing_open(struct cairn_agent *agent);
void placing_close(struct cairn_agent *agent);

/* The newest book; NULL: plan_policy is neither approve nor enforce. */
const struct proposal_book *placing_book(const struct cairn_agent *agent);

/* Carries out what analyst_step wants, but for plans and advice. `sender`: of ANALYST_HEARD. False:
 * the book could not be stored, and is as before. */
bool placing_carry_out(struct cairn_agent *agent, const struct analyst_actions *actions,
                       uint32_t sender);

/* Whether a trainer of this node asks for its share. Not without placing_book, as the next. */
bool placing_is_asked(const struct cairn_agent *agent);

/* How many stages of each replica this node's trainer can move layers between; 0: none. While no
 * trainer has asked, as many as in the newest offer. */
uint32_t placing_stages(const struct cairn_agent *agent);

/* Tells the book again, for agents that were away. */
void placing_repeat(struct cairn_agent *agent);

/* Fills in what this node has of the newest offer, for operators. */
void placing_fill(struct cairn_agent *agent, struct operator_node *out);

/* A SHARES or MOVED of a trainer. False: close the session. */
bool placing_frame(struct cairn_agent *agent, struct session *session,
                   const struct cairn_session_frame *frame);
/* An OFFER of another agent: its book. */
void placing_message(struct cairn_agent *agent, const struct cairn_service_message *message);

#endif
