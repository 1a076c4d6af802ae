/*
 * agent/service/operator_causes.h - the causes of verdicts that nodes report: in a node's view of
 * itself, and beside the verdicts that they belong to. Pure.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_CAUSES_H
#define CAIRN_AGENT_SERVICE_OPERATOR_CAUSES_H

#include "agent/service/operator_view.h"
#include "base/json.h"

/* A node's causes and the verdicts that they are for, between agents: {"verdicts": [N, …], "facts":
 * [{…}, …]}. Reading skips kinds of a newer version, and what is out of bounds fails the reader. */
void operator_causes_write(struct cairn_json_writer *writer, const struct operator_node *node);
void operator_causes_read(struct cairn_json_reader *reader, struct operator_node *node);

/* The causes of a verdict, of all nodes that have one: an array. */
void operator_causes_report(struct cairn_json_writer *writer, const struct operator_job *job,
                            uint64_t verdict);

/* The first cause of a verdict and its node; NULL: none is known. */
const struct cause *operator_causes_first(const struct operator_job *job, uint64_t verdict,
                                          uint32_t *node);

#endif
