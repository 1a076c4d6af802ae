/*
 * agent/service/timing_analysis.h - the analysis of the job, in a thread of its own, if this agent
 * is the analyst.
 *
 * Invariant: while a turn runs, the worker owns the analysis and its copy of the ledger. The copy
 * becomes the agent's ledger only if that has not changed meanwhile.
 */
#ifndef CAIRN_AGENT_SERVICE_TIMING_ANALYSIS_H
#define CAIRN_AGENT_SERVICE_TIMING_ANALYSIS_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_agent;
struct cairn_live_view;

/* A turn is done, and the agent's ledger is up to date. */
typedef void timing_turned_fn(struct cairn_agent *agent);

/* CAIRN_NOMEM; CAIRN_AGAIN: no thread. timing_analysis_close is called in both cases. */
CAIRN_MUST_CHECK cairn_err timing_analysis_open(struct cairn_agent *agent,
                                                timing_turned_fn *turned);
void timing_analysis_close(struct cairn_agent *agent);

/* This agent becomes the analyst, or is it no longer. */
void timing_analysis_begin(struct cairn_agent *agent);
void timing_analysis_end(struct cairn_agent *agent);

/* Takes packed reports of an agent (copied). Reports beyond 64 MiB that no turn has taken are
 * dropped, and all agents are asked to begin again. */
void timing_analysis_take(struct cairn_agent *agent, uint32_t from, const uint8_t *bytes,
                          size_t bytes_len);

/* Hands the reports to the worker, unless it still runs the turn before. */
void timing_analysis_turn(struct cairn_agent *agent, uint64_t now_ns);

/* What the last turn saw. False: this agent does not analyse. */
bool timing_analysis_look(const struct cairn_agent *agent, struct cairn_live_view *out);

/* Deliveries that were dropped for lack of room. */
uint64_t timing_analysis_dropped(const struct cairn_agent *agent);

/* The node that a rank runs on; UINT32_MAX unknown. Called inside `turned` only: no turn runs
 * then. */
uint32_t timing_analysis_node_of(const struct cairn_agent *agent, uint32_t rank);

#endif
