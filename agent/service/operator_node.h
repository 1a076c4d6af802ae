/*
 * agent/service/operator_node.h - one node's view of itself, and its JSON between agents.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_NODE_H
#define CAIRN_AGENT_SERVICE_OPERATOR_NODE_H

#include "agent/service/operator_view.h"
#include "base/json.h"

struct cairn_agent;

/* Fills in this node's view, which operator_node_fini ends. */
void operator_node_fill(struct cairn_agent *agent, struct operator_node *out);
void operator_node_fini(struct operator_node *node); /* all zero is allowed */

/* Writes the view as one object. */
void operator_node_write(struct cairn_json_writer *writer, const struct operator_node *node);

/*
 * Reads a view that operator_node_write made; end it with operator_node_fini. False, and *out
 * untouched: malformed. Skips numbers that this version does not know.
 */
bool operator_node_read(struct cairn_json_reader *reader, struct operator_node *out);

#endif
