/*
 * tools/metrics.h - a status as metrics: base units, names that begin with cairn_, a bounded number
 * of labels.
 */
#ifndef CAIRN_TOOLS_METRICS_H
#define CAIRN_TOOLS_METRICS_H

#include "tools/tree.h"

#include <stdio.h>

enum cairn_metrics_format {
    CAIRN_METRICS_PROMETHEUS, /* text format 0.0.4: node_exporter's textfile collector reads it */
    CAIRN_METRICS_OPENMETRICS /* OpenMetrics 1.0 */
};

/* Writes the answer to "status". A number that the agent does not know is left out. */
void cairn_metrics_print(FILE *stream, const struct cairn_tree *status,
                         enum cairn_metrics_format format);

#endif
