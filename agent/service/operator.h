/*
 * agent/service/operator.h - answers the requests of `cairn status`, `snapshots`, `snapshot`,
 * `restore`, `verify`, `node` and `replan`, and of launchers ("launch").
 *
 *   operator.c          requests: parsed, begun, taken through their stages
 *   operator_restore.c  the stages of a restore, its export, and a verify
 *   operator_fleet.c    the nodes of the job: one replaced, one removed
 *   operator_plan.c     what is proposed about the plan, and an operator's decision
 *   operator_gather.c   asks the other agents, and has a worker read the spill directory
 *   operator_request.c  a request's table, its operation in the core, its answer
 *   operator_report.c   the answers' JSON. Pure
 *   operator_health.c   what all nodes' views say together: protected against what, what is wrong.
 *                       Pure
 *   operator_launcher.c the launcher of this node's trainers and its note. Pure
 *   operator_node.c     one node's view of itself, and its JSON between agents
 *   operator_coverage.c what the ranks cover of the job and what not: of a node, and of the job
 *   operator_replan.c   what is advised, proposed and offered about the plan. Pure
 *   operator_verdicts.c the verdicts of detection, and which node analyses. Pure
 *   operator_files.c    reads the directory of spilled generations, in a worker
 *
 * Each file calls only those below it. Thread: loop, but for operator_files.c.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_H
#define CAIRN_AGENT_SERVICE_OPERATOR_H

#include <stdbool.h>
#include <stdint.h>

struct cairn_action_reply;
struct cairn_agent;
struct cairn_service_message;
struct cairn_session_frame;
struct session;

/* An OPERATOR frame. False: malformed, or sent by a trainer. */
bool operator_frame(struct cairn_agent *agent, struct session *session,
                    struct cairn_session_frame *frame);

/* The core answers an operation that a request started. */
void operator_reply(struct cairn_agent *agent, const struct cairn_action_reply *reply);

/* A SERVICE message of another agent; messages of other services are ignored. */
void operator_message(struct cairn_agent *agent, const struct cairn_service_message *message);

/* The session with this serial gets no more answers. */
void operator_forget(struct cairn_agent *agent, uint64_t serial);

void operator_tick(struct cairn_agent *agent);
void operator_close(struct cairn_agent *agent);

#endif
