/*
 * agent/service/timing.h - detection in the agent: reads the timing records of this node's
 * trainers, and keeps the job's verdicts.
 *
 * One agent, the analyst, analyses the reports of all nodes (watch.h). Every agent keeps the ledger
 * of verdicts and stores it, so that the next analyst continues it. Thread: loop.
 */
#ifndef CAIRN_AGENT_SERVICE_TIMING_H
#define CAIRN_AGENT_SERVICE_TIMING_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_agent;
struct cairn_ledger;
struct cairn_service_message;
struct cairn_session_frame;
struct operator_node;
struct session;

CAIRN_MUST_CHECK cairn_err timing_open(struct cairn_agent *agent);
void timing_close(struct cairn_agent *agent);

/* A trainer's TIMING, which hands over a ring of timing records. False: malformed, or not from a
 * trainer. */
bool timing_frame(struct cairn_agent *agent, struct session *session,
                  struct cairn_session_frame *frame);

/* A trainer's connection has ended. */
void timing_session_ended(struct cairn_agent *agent, const struct session *session);

/* A TIMING, TIMING_ACK or VERDICTS of another agent. */
void timing_message(struct cairn_agent *agent, const struct cairn_service_message *message);

/* Fills in this node's numbers, for operators. */
void timing_fill(const struct cairn_agent *agent, struct operator_node *out);

/*
 * Packs the last `steps` steps of this node's ranks, up to step `until` (0: all), as
 * replan/live/recording.h has it. The caller frees *out, which is NULL if there is nothing.
 * CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err timing_pack_recordings(const struct cairn_agent *agent, uint32_t steps,
                                                  uint32_t until, uint8_t **out, size_t *out_len);

/* The verdicts as this agent knows them; NULL before timing_open. Borrowed until the next event. */
const struct cairn_ledger *timing_ledger(const struct cairn_agent *agent);

#endif
