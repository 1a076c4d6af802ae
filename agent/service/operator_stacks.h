/*
 * agent/service/operator_stacks.h - Python stacks of ranks while the job hangs: in a node's view of
 * itself, and grouped over all nodes in the status. Pure.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_STACKS_H
#define CAIRN_AGENT_SERVICE_OPERATOR_STACKS_H

#include "agent/service/operator_view.h"
#include "base/json.h"

/* Makes room for the stacks of `count` ranks; 0, or no memory: there will be none. */
void operator_stacks_begin(struct operator_node *node, uint32_t count);

/* Adds a rank's stack, to an equal one if possible. */
void operator_stacks_add(struct operator_node *node, uint32_t rank, const char *text);

/* Between agents: a list of {"ranks": [R, …], "text": "…"}. Values out of bounds fail the
 * reader. */
void operator_stacks_write(struct cairn_json_writer *writer, const struct operator_stacks *stacks);
void operator_stacks_read(struct cairn_json_reader *reader, struct operator_node *node);

/* Of all nodes: a list of {"rank_count": N, "ranks": [R, …], "lines": ["…", …]}, the fewest ranks
 * first: a hanging rank is seldom where the others wait. */
void operator_stacks_report(struct cairn_json_writer *writer, const struct operator_job *job);

#endif
