/*
 * tools/live_trace.h - the trace of a running job: the recordings of all nodes, through one agent,
 * as the lines of a trace file (docs/DETECTION.md).
 *
 * All verbs that read a trace get these lines, so a running job shows the same as the file that
 * `cairn trace` writes.
 */
#ifndef CAIRN_TOOLS_LIVE_TRACE_H
#define CAIRN_TOOLS_LIVE_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { CAIRN_LIVE_STEPS_DEFAULT = 50, CAIRN_LIVE_STEPS_MAX = 1000 };

/*
 * Writes the last `steps` steps of the job to `out`. `agent` is the value of --agent. Returns
 * CAIRN_EXIT_OK, CAIRN_EXIT_WARN if nodes or operations are missing, or another exit code. Messages
 * go to stderr in the name of `verb`.
 */
int cairn_live_trace_write(const char *verb, const char *agent, uint32_t steps, FILE *out);

#endif
