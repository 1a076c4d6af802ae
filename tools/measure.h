/* tools/measure.h - a planning problem with the times, rates, links and memory of a trace. */
#ifndef CAIRN_TOOLS_MEASURE_H
#define CAIRN_TOOLS_MEASURE_H

#include "replan/fleet/problem.h"
#include "tools/trace_source.h"

/* Changes the problem to what the trace shows, and reports on stderr how well it is known. Returns
 * the exit code; errors are printed in the name of `verb`. */
int cairn_measure_problem(const char *verb, const struct cairn_trace_from *from,
                          struct cairn_problem *problem);

#endif
