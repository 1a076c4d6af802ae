/*
 * agent/service/operator_health.h - what all nodes' views say together: the job's protection, what
 * would be lost now, what is wrong and what to do. Pure.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_HEALTH_H
#define CAIRN_AGENT_SERVICE_OPERATOR_HEALTH_H

#include "agent/service/operator_view.h"

/* The newest generation that any node knows as committed or ready. */
struct cairn_generation_id operator_newest(const struct operator_node *nodes, uint32_t node_count,
                                           bool *from_files);

void operator_health_find(const struct operator_job *job, struct operator_health *out);

#endif
