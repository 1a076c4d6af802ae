/*
 * replan/views/heatmap.h - who computes how long, as a field of pipeline stages (rows) by pipelines
 * (columns), and what that field looks like in words.
 *
 * A cell holds the ranks of a stage in a pipeline (those of its tensor parallelism) and shows the
 * slowest of them. A long stage is a hot row, a slow device a hot cell, a node that is a whole
 * pipeline or longer sequences a hot column.
 */
#ifndef CAIRN_REPLAN_VIEWS_HEATMAP_H
#define CAIRN_REPLAN_VIEWS_HEATMAP_H

#include "replan/trace/load.h"
#include "replan/trace/topology.h"

enum {
    CAIRN_HEATMAP_CELLS_MAX = 1 << 24,
    CAIRN_HEATMAP_WORDS_BYTES = 1024,
    CAIRN_HEATMAP_NAMED_MAX = 4
};

struct cairn_heat_cell {
    double compute_ns; /* of the slowest rank; NaN: none is known */
    double heat;       /* over the median of all cells */
    uint32_t rank;     /* the slowest */
};

enum cairn_heat_pattern {
    CAIRN_HEAT_UNKNOWN, /* nothing to compare */
    CAIRN_HEAT_EVEN,
    CAIRN_HEAT_CELL,
    CAIRN_HEAT_ROW,
    CAIRN_HEAT_COLUMN,
    CAIRN_HEAT_SEVERAL
};

struct cairn_heatmap {
    uint32_t stages, pipelines;
    struct cairn_heat_cell *cells; /* [stages][pipelines] */
    double middle_ns;              /* the median of all cells; 0 where none is known */
    double threshold;              /* what counts as hot: this much more than is normal there (0.08:
                                    * 8 %) */
    uint32_t hot_rows, hot_columns, hot_cells;
    enum cairn_heat_pattern pattern;
    char words[CAIRN_HEATMAP_WORDS_BYTES]; /* sentences, the hottest things first */
};

/* Makes the field of loads[world]. The caller ends it with cairn_heatmap_fini, also after an error.
 * CAIRN_FULL beyond CAIRN_HEATMAP_CELLS_MAX cells, CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_heatmap_make(const struct cairn_topology *topology,
                                              const struct cairn_load *loads,
                                              struct cairn_heatmap *out);
void cairn_heatmap_fini(struct cairn_heatmap *heatmap);

/* "one hot cell", "a hot row", … */
const char *cairn_heat_pattern_text(enum cairn_heat_pattern pattern);

#endif
