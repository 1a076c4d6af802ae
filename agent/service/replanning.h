/*
 * agent/service/replanning.h - advises what to do about the plan while ranks are slow.
 *
 * Invariant: it changes nothing in the job. A worker of low priority, with a time limit, makes the
 * plans.
 */
#ifndef CAIRN_AGENT_SERVICE_REPLANNING_H
#define CAIRN_AGENT_SERVICE_REPLANNING_H

#include "cairn/err.h"

#include <stdint.h>

struct cairn_agent;
struct operator_node;

/* Reads the configured problem, if there is one. CAIRN_CONFIG, and logged: it is wrong. */
CAIRN_MUST_CHECK cairn_err replanning_open(struct cairn_agent *agent);
void replanning_close(struct cairn_agent *agent);

/* How long training stands still when the plan changes or ranks are exchanged, without the time to
 * move state. */
uint64_t replanning_standstill_ns(void);

/* Fills in the advice, for operators. */
void replanning_fill(const struct cairn_agent *agent, struct operator_node *out);

#endif
