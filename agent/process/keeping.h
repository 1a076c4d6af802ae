/*
 * agent/process/keeping.h - watches the keeper that holds the agent's memory, and replaces it when
 * it dies.
 *
 * Invariant: agent->unkept is true exactly while no keeper holds the memory. The memory is then
 * lost if the agent dies.
 */
#ifndef CAIRN_AGENT_PROCESS_KEEPING_H
#define CAIRN_AGENT_PROCESS_KEEPING_H

#include "cairn/err.h"

#include <stdbool.h>

struct cairn_agent;
struct keeping; /* owned by the agent, from keeping_open to keeping_close */

/* Starts and connects the keeper, and watches it from then on. Does nothing with `keeper: false` in
 * the configuration. Logs failures. */
CAIRN_MUST_CHECK cairn_err keeping_open(struct cairn_agent *agent);

/* The loop starts: from now on a call to the keeper must return within half a second. */
void keeping_started(struct cairn_agent *agent);
void keeping_tick(struct cairn_agent *agent);
void keeping_close(struct cairn_agent *agent);

/*
 * Marks in the catalog that new memory is coming, which no epoch's record knows yet. *was_marked is
 * true if an earlier start left the mark: do not trust its memory.
 */
CAIRN_MUST_CHECK cairn_err keeping_mark_memory(struct cairn_agent *agent, bool *was_marked);

/* Removes the mark: a stored record of the epoch knows the memory. */
CAIRN_MUST_CHECK cairn_err keeping_memory_is_known(struct cairn_agent *agent);

#endif
