/*
 * agent/service/operator_restore.h - the stages of a restore, of its export, and of a verify.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_RESTORE_H
#define CAIRN_AGENT_SERVICE_OPERATOR_RESTORE_H

#include "agent/service/operator_state.h"

/* Take the request to its next stage. */
void request_restore_advance(struct cairn_agent *agent, struct request *request);
void request_verify_advance(struct cairn_agent *agent, struct request *request);

/*
 * Begins the export of the ready generation, if all its holders live and it is the wanted one. Then
 * no restore is needed, which would end the running trainers. False: nothing was begun.
 */
bool request_export_ready(struct cairn_agent *agent, struct request *request);

#endif
