/*
 * agent/service/proposal_shape.h - relaunches as proposals: which nodes and which shape the command
 * of a job should start again on. Pure.
 *
 * The nodes of the problem's devices are those of the agents' files.
 */
#ifndef CAIRN_AGENT_SERVICE_PROPOSAL_SHAPE_H
#define CAIRN_AGENT_SERVICE_PROPOSAL_SHAPE_H

#include "agent/service/launcher_told.h"
#include "agent/service/proposal.h"
#include "replan/advise/adviser.h"

/*
 * The fastest shape at the settled rates, on all nodes of the current plan, without the slowest, or
 * with nodes that stand by in their places. `reads`: OPERATOR_READS_… of the command. running_ms: a
 * step of what runs; cost_ms: of a relaunch. False: none that the command can take, or none gains
 * PROPOSAL_LEAST_GAIN.
 */
bool proposal_make_relaunch(const struct cairn_adviser *adviser, uint64_t reads,
                            const struct operator_standby *standby, double running_ms,
                            double cost_ms, struct proposal *out);

/* The current plan as a relaunch. False: it is not divided alike. */
bool proposal_make_home_shape(const struct cairn_adviser *adviser, double cost_ms,
                              struct proposal *out);

#endif
