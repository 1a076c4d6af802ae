/*
 * agent/service/operator_verdicts.h - the verdicts of detection as JSON, and which node analyses.
 * Pure.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_VERDICTS_H
#define CAIRN_AGENT_SERVICE_OPERATOR_VERDICTS_H

#include "agent/service/operator_view.h"
#include "base/json.h"

/* The node whose agent analyses the timing of the job, and its index; NULL: no such node
 * answered. */
const struct operator_node *operator_analyst(const struct operator_job *job, uint32_t *index);

/* Writes one verdict as the status has it. Reads only the configuration and the ledger of `job`. */
void operator_verdict_write(struct cairn_json_writer *writer, const struct operator_job *job,
                            const struct cairn_ledger_entry *entry);

/* Writes the status' "detection". */
void operator_verdicts_report(struct cairn_json_writer *writer, const struct operator_job *job);

#endif
