/*
 * agent/service/operator_report.h - the JSON of the answers. Pure.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_REPORT_H
#define CAIRN_AGENT_SERVICE_OPERATOR_REPORT_H

#include "agent/service/operator_view.h"
#include "base/json.h"

void operator_write_status(struct cairn_json_writer *writer, const struct operator_job *job,
                           const struct operator_health *health, uint32_t self);
void operator_write_snapshots(struct cairn_json_writer *writer, const struct operator_job *job);
void operator_write_restore(struct cairn_json_writer *writer,
                            const struct operator_restored *restored);
void operator_write_verify(struct cairn_json_writer *writer,
                           const struct operator_verified *verified);

#endif
