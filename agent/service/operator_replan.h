/*
 * agent/service/operator_replan.h - the advice about the plan as JSON. Pure.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_REPLAN_H
#define CAIRN_AGENT_SERVICE_OPERATOR_REPLAN_H

#include "agent/service/operator_view.h"
#include "base/json.h"

/* Writes the status' "replan". */
void operator_replan_report(struct cairn_json_writer *writer, const struct operator_job *job);

#endif
