/*
 * tools/metrics.h - a status as metrics in Prometheus' text format, for node_exporter's textfile
 * collector or whatever else runs a command: base units, a name that begins with cairn_, labels of
 * bounded number.
 */
#ifndef CAIRN_TOOLS_METRICS_H
#define CAIRN_TOOLS_METRICS_H

#include "tools/tree.h"

#include <stdio.h>

/* Writes the answer to "status". A number that the agent does not know is left out. */
void cairn_metrics_print(FILE *stream, const struct cairn_tree *status);

#endif
