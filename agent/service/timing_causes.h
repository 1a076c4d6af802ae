/*
 * agent/service/timing_causes.h - why ranks of this node are slow or hang, as far as the node can
 * tell: read when an open verdict names the node or one of its ranks.
 *
 * While a verdict says that ranks hang, the Python stacks of all ranks are asked for too, once a
 * minute (health_stacks.h). A job without such a verdict is never asked.
 *
 * While ranks are timed and no verdict names the node, it is read once a minute, to compare later
 * readings with. Reading has a thread of its own. Thread: loop.
 */
#ifndef CAIRN_AGENT_SERVICE_TIMING_CAUSES_H
#define CAIRN_AGENT_SERVICE_TIMING_CAUSES_H

#include "cairn/err.h"

#include <stdint.h>

struct cairn_agent;
struct operator_node;

CAIRN_MUST_CHECK cairn_err timing_causes_open(struct cairn_agent *agent);
void timing_causes_close(struct cairn_agent *agent);

/* Reads if that is due. */
void timing_causes_tick(struct cairn_agent *agent, uint64_t now_ns);

/* Fills in the causes, the open verdicts that name this node, and the stacks of its ranks. */
void timing_causes_fill(const struct cairn_agent *agent, struct operator_node *out);

#endif
