/*
 * agent/service/operator_poison.h - describes the newest poisoned generation to operators
 * (agent/process/poison.h), from all nodes' views. Pure.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_POISON_H
#define CAIRN_AGENT_SERVICE_OPERATOR_POISON_H

#include "agent/service/operator_view.h"

enum { OPERATOR_POISON_BYTES = 448 };

/*
 * The node that knows the newest poisoned generation, and most of its past. It matters until a
 * later one is committed. NULL: none matters. Borrowed from the job.
 */
const struct operator_node *operator_poison_find(const struct operator_job *job);

/* The newest poisoned generation that the node knows. */
struct cairn_generation_id operator_poison_of(const struct operator_node *node);

/* Describes the poisoned steps, whether they are kept, and the first finding. */
void operator_poison_describe(const struct operator_node *node, char out[OPERATOR_POISON_BYTES]);

#endif
