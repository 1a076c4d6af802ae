/*
 * agent/service/history.h - records the course of verdicts, proposals and offers of placements, and
 * operators' requests (agent/process/recorder.h).
 *
 * All agents hear of verdicts and placements, so each records them. Thread: loop.
 */
#ifndef CAIRN_AGENT_SERVICE_HISTORY_H
#define CAIRN_AGENT_SERVICE_HISTORY_H

#include "cairn/err.h"

struct cairn_agent;
struct session;

CAIRN_MUST_CHECK cairn_err history_open(struct cairn_agent *agent);
void history_close(struct cairn_agent *agent);
void history_tick(struct cairn_agent *agent);

/* An operator's command that changes something, as people write it: "restore --fresh". */
void history_operator(struct cairn_agent *agent, const struct session *session, const char *text);

#endif
