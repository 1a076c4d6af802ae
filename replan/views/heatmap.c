/*
 * replan/views/heatmap.c - cells, then rows, then columns, then what is left.
 *
 * What a row has in common is its lower median, which one hot cell does not move, nor half of the
 * cells; a row is hot where that is above the rows' own low quantile. Rows are divided out, then
 * the same is done with columns, and a cell is hot by what is left. Hot means more than the noise
 * explains.
 */
#include "replan/views/heatmap.h"

#include "replan/detect/shift.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double threshold_least = 0.08;
static const double threshold_errors = 5; /* standard errors of a cell's mean */
static const double rows_share = 0.35;    /* the quantile of rows, and of columns, that is
                                            * normal */

const char *
cairn_heat_pattern_text(enum cairn_heat_pattern pattern)
{
    static const char *const texts[] = {
        [CAIRN_HEAT_UNKNOWN] = "nothing to compare", [CAIRN_HEAT_EVEN] = "an even field",
        [CAIRN_HEAT_CELL] = "one hot cell",          [CAIRN_HEAT_ROW] = "a hot row",
        [CAIRN_HEAT_COLUMN] = "a hot column",        [CAIRN_HEAT_SEVERAL] = "several hot things"};

    return texts[pattern];
}

void
cairn_heatmap_fini(struct cairn_heatmap *heatmap)
{
    free(heatmap->cells);
    *heatmap = (struct cairn_heatmap){0};
}

/* The values that are known, moved to the front; how many. */
static uint32_t
keep_known(float *values, uint32_t count)
{
    uint32_t known = 0;

    for (uint32_t i = 0; i < count; i++)
        if (!isnan(values[i]))
            values[known++] = values[i];
    return known;
}

/* The lower median of values[count], which are changed; NaN where none is known. */
static double
lower_median(float *values, uint32_t count)
{
    uint32_t known = keep_known(values, count);

    if (known == 0)
        return (double)NAN;
    (void)cairn_quantile(values, known, 0.5); /* sorts */
    return (double)values[(known - 1) / 2];
}

/* What is normal of the rows, or of the columns: a low quantile, the least of two. */
static double
normal_of(float *values, uint32_t count)
{
    uint32_t known = keep_known(values, count);

    if (known == 0)
        return 1;
    return (double)cairn_quantile(values, known, known == 2 ? 0 : rows_share);
}

struct field {
    struct cairn_heatmap *map;
    const struct cairn_topology *topology;
    double *rows, *columns; /* factors; NaN where unknown */
    double row_normal, column_normal;
    float *scratch; /* as many as cells, rows and columns */
};

static void
fill_cells(struct field *field, const struct cairn_load *loads)
{
    struct cairn_heatmap *map = field->map;
    uint32_t cells = map->stages * map->pipelines, known = 0;

    for (uint32_t i = 0; i < cells; i++)
        map->cells[i] = (struct cairn_heat_cell){(double)NAN, (double)NAN, UINT32_MAX};
    for (uint32_t rank = 0; rank < field->topology->world; rank++) {
        struct cairn_heat_cell *cell = &map->cells[field->topology->stage[rank] * map->pipelines +
                                                   field->topology->pipeline[rank]];

        if (isnan(loads[rank].compute_ns) || loads[rank].compute_ns <= 0)
            continue;
        field->scratch[known++] = (float)(loads[rank].error_ns / loads[rank].compute_ns);
        if (isnan(cell->compute_ns) || loads[rank].compute_ns > cell->compute_ns) {
            cell->compute_ns = loads[rank].compute_ns;
            cell->rank = rank;
        }
    }
    map->threshold = threshold_least;
    if (known > 0)
        map->threshold =
            fmax(threshold_least, threshold_errors * lower_median(field->scratch, known));
    for (uint32_t i = 0; i < cells; i++)
        field->scratch[i] = (float)map->cells[i].compute_ns;
    map->middle_ns = lower_median(field->scratch, cells);
    if (isnan(map->middle_ns))
        map->middle_ns = 0;
    for (uint32_t i = 0; i < cells; i++)
        map->cells[i].heat = map->cells[i].compute_ns / map->middle_ns;
}

/* Rows, and what of them is left in columns. Of a field of one row or one column there is but
 * cells. */
static void
find_rows_and_columns(struct field *field)
{
    struct cairn_heatmap *map = field->map;

    for (uint32_t row = 0; row < map->stages; row++) {
        for (uint32_t i = 0; i < map->pipelines; i++)
            field->scratch[i] = (float)map->cells[row * map->pipelines + i].heat;
        field->rows[row] = lower_median(field->scratch, map->pipelines);
    }
    for (uint32_t row = 0; row < map->stages; row++)
        field->scratch[row] = (float)field->rows[row];
    field->row_normal = normal_of(field->scratch, map->stages);
    for (uint32_t column = 0; column < map->pipelines; column++) {
        for (uint32_t row = 0; row < map->stages; row++)
            field->scratch[row] =
                (float)(map->cells[row * map->pipelines + column].heat / field->rows[row]);
        field->columns[column] = map->stages > 1 ? lower_median(field->scratch, map->stages) : 1;
    }
    for (uint32_t column = 0; column < map->pipelines; column++)
        field->scratch[column] = (float)field->columns[column];
    field->column_normal = normal_of(field->scratch, map->pipelines);
}

/* ---- words ---- */

static void
add_words(struct cairn_heatmap *map, const char *text)
{
    size_t used = strlen(map->words);

    if (used + strlen(text) + 1 < sizeof map->words)
        snprintf(map->words + used, sizeof map->words - used, "%s%s", used > 0 ? " " : "", text);
}

static void
say_row(struct field *field, uint32_t row)
{
    char text[256];

    if (field->map->hot_rows++ >= CAIRN_HEATMAP_NAMED_MAX)
        return;
    snprintf(
        text, sizeof text, "A hot row: stage %u of %u computes %.2f times as long as the others%s.",
        row, field->map->stages, field->rows[row] / field->row_normal,
        field->map->pipelines > 1 ? ", in all pipelines: the plan is uneven, not a device"
                                  : "; of one pipeline a long stage and a slow device look alike");
    add_words(field->map, text);
}

/* The node that all ranks of a pipeline run on; CAIRN_NODE_UNKNOWN where there is no such. */
static uint32_t
node_of_pipeline(const struct cairn_topology *topology, uint32_t pipeline)
{
    const uint32_t *ranks = topology->ranks_of_pipeline;
    uint32_t first = topology->pipeline_begin[pipeline],
             end = topology->pipeline_begin[pipeline + 1];

    for (uint32_t i = first; i < end; i++)
        if (topology->node[ranks[i]] != topology->node[ranks[first]])
            return CAIRN_NODE_UNKNOWN;
    return topology->node[ranks[first]];
}

static void
say_column(struct field *field, uint32_t column)
{
    uint32_t node = node_of_pipeline(field->topology, column);
    char text[256], where[64] = "its sequences are longer, or what its stages share is slow";

    if (field->map->hot_columns++ >= CAIRN_HEATMAP_NAMED_MAX)
        return;
    if (node != CAIRN_NODE_UNKNOWN)
        snprintf(where, sizeof where, "node %u, which it is all of, or longer sequences", node);
    snprintf(text, sizeof text,
             "A hot column: pipeline %u of %u computes %.2f times as long as the others, in all "
             "stages: %s.",
             column, field->map->pipelines, field->columns[column] / field->column_normal, where);
    add_words(field->map, text);
}

static void
say_cell(struct field *field, uint32_t row, uint32_t column, double excess)
{
    const struct cairn_heat_cell *cell = &field->map->cells[row * field->map->pipelines + column];
    uint32_t node = field->topology->node[cell->rank];
    char text[256], on[32] = "";

    if (field->map->hot_cells++ >= CAIRN_HEATMAP_NAMED_MAX)
        return;
    if (node != CAIRN_NODE_UNKNOWN)
        snprintf(on, sizeof on, " on node %u", node);
    snprintf(text, sizeof text,
             "A hot cell: stage %u of pipeline %u, rank %u%s, computes %.2f times as long as its "
             "row and "
             "column say: a device or its host.",
             row, column, cell->rank, on, excess);
    add_words(field->map, text);
}

static void
say_more(struct cairn_heatmap *map, uint32_t count, const char *what)
{
    char text[64];

    if (count <= CAIRN_HEATMAP_NAMED_MAX)
        return;
    snprintf(text, sizeof text, "%u more hot %s.", count - CAIRN_HEATMAP_NAMED_MAX, what);
    add_words(map, text);
}

static void
find_pattern(struct field *field)
{
    struct cairn_heatmap *map = field->map;
    double hot = 1 + map->threshold;
    uint32_t kinds, known = 0;
    char text[128];

    for (uint32_t i = 0; i < map->stages * map->pipelines; i++)
        known += isnan(map->cells[i].heat) ? 0 : 1;
    if (known < 2) {
        add_words(map, "Nothing to compare: of fewer than two cells anything is known.");
        return;
    }

    for (uint32_t row = 0; row < map->stages; row++)
        if (field->rows[row] > hot * field->row_normal)
            say_row(field, row);
    say_more(map, map->hot_rows, "rows");
    for (uint32_t column = 0; column < map->pipelines; column++)
        if (field->columns[column] > hot * field->column_normal)
            say_column(field, column);
    say_more(map, map->hot_columns, "columns");
    for (uint32_t row = 0; row < map->stages; row++)
        for (uint32_t column = 0; column < map->pipelines; column++) {
            double excess = map->cells[row * map->pipelines + column].heat /
                            (field->rows[row] * field->columns[column]);

            if (excess > hot)
                say_cell(field, row, column, excess);
        }
    say_more(map, map->hot_cells, "cells");
    kinds = map->hot_rows + map->hot_columns + map->hot_cells;
    map->pattern = kinds == 0         ? CAIRN_HEAT_EVEN
                   : kinds > 1        ? CAIRN_HEAT_SEVERAL
                   : map->hot_rows    ? CAIRN_HEAT_ROW
                   : map->hot_columns ? CAIRN_HEAT_COLUMN
                                      : CAIRN_HEAT_CELL;
    if (kinds > 0)
        return;
    snprintf(text, sizeof text,
             "An even field: nothing is more than %.0f %% above what is normal in its place.",
             100 * map->threshold);
    add_words(map, text);
}

cairn_err
cairn_heatmap_make(const struct cairn_topology *topology, const struct cairn_load *loads,
                   struct cairn_heatmap *out)
{
    struct field field = {.map = out, .topology = topology};
    uint64_t cells = (uint64_t)topology->stage_count * topology->pipeline_count;
    cairn_err err = CAIRN_NOMEM;

    *out = (struct cairn_heatmap){.stages = topology->stage_count,
                                  .pipelines = topology->pipeline_count};
    if (cells > CAIRN_HEATMAP_CELLS_MAX)
        return CAIRN_FULL;
    out->cells = calloc(cells, sizeof *out->cells);
    field.rows = calloc(out->stages, sizeof *field.rows);
    field.columns = calloc(out->pipelines, sizeof *field.columns);
    field.scratch = calloc(cells + topology->world, sizeof *field.scratch);
    if (!out->cells || !field.rows || !field.columns || !field.scratch)
        goto done;
    fill_cells(&field, loads);
    find_rows_and_columns(&field);
    find_pattern(&field);
    err = CAIRN_OK;
done:
    free(field.rows);
    free(field.columns);
    free(field.scratch);
    return err;
}
