/* agent/service/operator_replan.h - advice, proposals and offers about the plan, as JSON. Pure. */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_REPLAN_H
#define CAIRN_AGENT_SERVICE_OPERATOR_REPLAN_H

#include "agent/service/operator_view.h"
#include "base/json.h"

/* Writes the status' "replan". */
void operator_replan_report(struct cairn_json_writer *writer, const struct operator_job *job);

/* Writes the answer of `cairn replan`. Returns its exit code: 0, or 4 if nothing waits for an
 * operator and the trainers have the home placement. */
int operator_replan_write(struct cairn_json_writer *writer, const struct operator_job *job);

#endif
