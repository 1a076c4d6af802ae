/*
 * agent/service/operator_coverage.h - what the ranks cover of the job, and what not, with reasons.
 *
 * A node's coverage is owned by its struct operator_node.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_COVERAGE_H
#define CAIRN_AGENT_SERVICE_OPERATOR_COVERAGE_H

#include "agent/service/operator_view.h"
#include "base/json.h"

struct cairn_agent;

/* Fills in what this node's trainers registered and reported. */
void operator_coverage_fill(const struct cairn_agent *agent, struct operator_node *out);

/* The coverage as one JSON value between agents, and back; a reading that fails is the reader's
 * failure. */
void operator_coverage_write(struct cairn_json_writer *writer,
                             const struct operator_coverage *coverage);
void operator_coverage_read(struct cairn_json_reader *reader, struct operator_node *node);

/* Sums up all nodes. */
void operator_coverage_sum(const struct operator_job *job, struct operator_health *health);

/* Writes the status' "coverage". */
void operator_coverage_report(struct cairn_json_writer *writer, const struct operator_job *job,
                              const struct operator_health *health);

#endif
