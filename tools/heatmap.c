/* tools/heatmap.c - `cairn heatmap`: how long each rank computes, as a field of pipeline stages by
 * pipelines. */
#include "replan/views/heatmap.h"
#include "base/json.h"
#include "replan/detect/detect.h"
#include "tools/common.h"
#include "tools/live_trace.h"
#include "tools/png.h"
#include "tools/trace_source.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLUMNS_SHOWN = 64,
    ROWS_SHOWN = 32,
    PICTURE_PIXELS = 1024,
    CELL_PIXELS_MAX = 24,
    COLOURS = 64
};

/* Shades by heat; the last one for all that is above. An unknown cell is '?'. */
static const struct {
    double heat_max;
    const char *glyph, *colour;
} shades[] = {{0.95, "-", "38;5;39"},      {1.05, "\u00b7", "38;5;250"},
              {1.1, "\u2591", "38;5;229"}, {1.2, "\u2592", "38;5;214"},
              {1.4, "\u2593", "38;5;202"}, {INFINITY, "\u2588", "38;5;196"}};
static const double coldest = 0.8, hottest = 1.6; /* the ends of the picture's colours */

static const char about[] = "Draws the compute time of each rank over the last 16 steps, pipeline "
                            "stages down and pipelines across, and describes the pattern in words. "
                            "One hot cell is a slow device, a hot row a long stage, a hot column "
                            "longer sequences or a slow node. A cell shows its slowest rank.";
static const char examples[] =
    "  cairn heatmap --agent /run/cairn/agent.sock   # of the running job\n"
    "  cairn heatmap --trace job.jsonl\n"
    "  cairn heatmap --trace job.jsonl --png heat.png -o json | jq -r .words\n";

/* ---- terminal ---- */

/* The hottest cell of one character; NaN if none is known. */
static double
hottest_of(const struct cairn_heatmap *map, uint32_t row, uint32_t rows, uint32_t column,
           uint32_t columns)
{
    double heat = (double)NAN;

    for (uint32_t r = row; r < row + rows && r < map->stages; r++)
        for (uint32_t c = column; c < column + columns && c < map->pipelines; c++)
            heat = fmax(heat, map->cells[r * map->pipelines + c].heat); /* NaN is passed over */
    return heat;
}

static void
print_shade(double heat)
{
    size_t i = 0;

    if (isnan(heat)) {
        putchar('?');
        return;
    }
    while (heat > shades[i].heat_max)
        i++;
    cairn_print_coloured(stdout, shades[i].colour, shades[i].glyph);
}

static void
print_field(const struct cairn_heatmap *map)
{
    uint32_t rows = (map->stages + ROWS_SHOWN - 1) / ROWS_SHOWN;
    uint32_t columns = (map->pipelines + COLUMNS_SHOWN - 1) / COLUMNS_SHOWN;

    printf("%" PRIu32 " stage%s by %" PRIu32 " pipeline%s", map->stages,
           map->stages == 1 ? "" : "s", map->pipelines, map->pipelines == 1 ? "" : "s");
    if (rows > 1 || columns > 1)
        printf("; a character is the hottest of %" PRIu32 " by %" PRIu32 " cells", rows, columns);
    printf("; 1.00 is %.1f ms of computation a step\n", map->middle_ns / 1e6);
    for (uint32_t row = 0; row < map->stages; row += rows) {
        printf("stage %4" PRIu32 " |", row);
        for (uint32_t column = 0; column < map->pipelines; column += columns)
            print_shade(hottest_of(map, row, rows, column, columns));
        printf("|\n");
    }
    printf("           ");
    for (size_t i = 0; i < sizeof shades / sizeof *shades; i++) {
        printf("%s", i > 0 ? "  " : "");
        cairn_print_coloured(stdout, shades[i].colour, shades[i].glyph);
        if (isinf(shades[i].heat_max))
            printf(" more");
        else
            printf(" to %.2f", shades[i].heat_max);
    }
    printf("\n%s\n", map->words);
}

/* ---- picture ---- */

static void
make_colours(uint8_t colours[COLOURS + 2][3])
{
    for (int i = 0; i < COLOURS; i++) { /* blue, over white in the middle, to red */
        double place = 2.0 * i / (COLOURS - 1) - 1, away = fabs(place);

        colours[i][0] = (uint8_t)(place > 0 ? 245 : 245 - 185 * away);
        colours[i][1] = (uint8_t)(245 - (place > 0 ? 205 : 120) * away);
        colours[i][2] = (uint8_t)(place > 0 ? 245 - 205 * away : 245);
    }
    memset(colours[COLOURS], 160, 3);    /* nothing is known */
    memset(colours[COLOURS + 1], 60, 3); /* between cells */
}

static uint8_t
colour_of(double heat)
{
    double middle = (COLOURS - 1) / 2.0;
    double place = heat < 1 ? (heat - coldest) / (1 - coldest) * middle
                            : middle + (heat - 1) / (hottest - 1) * middle;

    if (isnan(heat))
        return COLOURS;
    return (uint8_t)fmin(fmax(place, 0), COLOURS - 1);
}

/* The side of a cell: as large as fits, and of thousands of cells one pixel for several. */
static cairn_err
draw(const struct cairn_heatmap *map, const char *path)
{
    uint32_t most = map->pipelines > map->stages ? map->pipelines : map->stages;
    uint32_t joined = (most + CAIRN_PNG_SIDE_MAX - 1) / CAIRN_PNG_SIDE_MAX;
    uint32_t side = PICTURE_PIXELS / most;
    uint32_t rows = (map->stages + joined - 1) / joined,
             columns = (map->pipelines + joined - 1) / joined;
    uint8_t colours[COLOURS + 2][3], *pixels;
    cairn_err err;

    side = side < 1 ? 1 : side > CELL_PIXELS_MAX ? CELL_PIXELS_MAX : side;
    pixels = malloc((size_t)rows * side * columns * side);
    if (!pixels)
        return CAIRN_NOMEM;
    for (uint32_t y = 0; y < rows * side; y++)
        for (uint32_t x = 0; x < columns * side; x++) {
            bool edge = side >= 4 && (x % side == side - 1 || y % side == side - 1);

            pixels[(size_t)y * columns * side + x] =
                edge ? COLOURS + 1
                     : colour_of(
                           hottest_of(map, y / side * joined, joined, x / side * joined, joined));
        }
    make_colours(colours);
    err = cairn_png_write(path, pixels, columns * side, rows * side, (const uint8_t(*)[3])colours,
                          COLOURS + 2);
    free(pixels);
    return err;
}

/* ---- JSON ---- */

static void
write_field(struct cairn_json_writer *writer, const struct cairn_heatmap *map, bool heat)
{
    cairn_json_put_array(writer, heat ? "heat" : "compute_ms");
    for (uint32_t row = 0; row < map->stages; row++) {
        cairn_json_write_line(writer);
        cairn_json_write_array_begin(writer);
        for (uint32_t column = 0; column < map->pipelines; column++) {
            const struct cairn_heat_cell *cell = &map->cells[row * map->pipelines + column];

            /* NaN: null */
            cairn_json_write_double(writer, heat ? cell->heat : cell->compute_ns / 1e6);
        }
        cairn_json_write_array_end(writer);
    }
    cairn_json_write_array_end(writer);
}

static cairn_err
print_json(const struct cairn_heatmap *map)
{
    struct cairn_json_writer writer;

    cairn_json_begin(&writer);
    cairn_json_put_u64(&writer, "stages", map->stages);
    cairn_json_put_u64(&writer, "pipelines", map->pipelines);
    cairn_json_put_string(&writer, "pattern", cairn_heat_pattern_text(map->pattern));
    cairn_json_put_string(&writer, "words", map->words);
    cairn_json_put_double(&writer, "median_ms", map->middle_ns / 1e6);
    cairn_json_put_double(&writer, "threshold", map->threshold);
    write_field(&writer, map, false);
    write_field(&writer, map, true);
    cairn_json_write_object_end(&writer);
    return cairn_json_print(&writer);
}

/* ---- the whole ---- */

/* The field of what a whole trace says in the end. */
static cairn_err
make_field(struct cairn_trace_source *source, int *exit_code, struct cairn_heatmap *map)
{
    const struct cairn_topology *topology = cairn_trace_source_topology(source);
    struct cairn_load *loads = calloc(topology->world, sizeof *loads);
    struct cairn_detector *detector = NULL;
    const struct cairn_record *records;
    uint32_t count;
    cairn_err err = loads ? cairn_detector_create(topology, 0, &detector) : CAIRN_NOMEM;

    while (!err && cairn_trace_source_next(source, &records, &count))
        for (uint32_t i = 0; !err && i < count; i++)
            err = cairn_detector_feed(detector, &records[i]);
    *exit_code = err ? CAIRN_EXIT_OK : cairn_trace_source_result(source);
    if (!err && *exit_code == CAIRN_EXIT_OK)
        err = cairn_detector_finish(detector);
    for (uint32_t rank = 0; !err && rank < topology->world; rank++)
        cairn_detector_load(detector, rank, &loads[rank]);
    if (!err)
        err = cairn_heatmap_make(topology, loads, map);
    cairn_detector_destroy(detector);
    free(loads);
    return err;
}

static int
run(const struct cairn_trace_from *from, const char *picture, bool json)
{
    struct cairn_trace_source *source = NULL;
    struct cairn_heatmap map = {0};
    int exit_code = cairn_trace_source_open("heatmap", from, CAIRN_LIVE_STEPS_DEFAULT, &source);
    cairn_err err;

    if (exit_code != CAIRN_EXIT_OK)
        return exit_code;
    err = make_field(source, &exit_code, &map);
    if (!err && exit_code == CAIRN_EXIT_OK) {
        if (json)
            err = print_json(&map);
        else
            print_field(&map);
    }
    if (err == CAIRN_FULL)
        cairn_tool_error("heatmap", "the field has too many cells",
                         "stages times pipelines are above 16,777,216",
                         "see the communicators that begin with pp and dp in the trace's header");
    else if (err)
        cairn_tool_error("heatmap", cairn_err_text(err), NULL, NULL);
    if (err)
        exit_code = err == CAIRN_FULL ? CAIRN_EXIT_INPUT : cairn_exit_code(err);
    if (exit_code == CAIRN_EXIT_OK && picture) {
        err = draw(&map, picture);
        if (err) {
            cairn_tool_error("heatmap", "the picture could not be written",
                             err == CAIRN_IO ? strerror(errno) : cairn_err_text(err),
                             "see --png FILE");
            exit_code = cairn_exit_code(err);
        }
    }
    cairn_heatmap_fini(&map);
    cairn_trace_source_close(source);
    return exit_code;
}

int
cairn_verb_heatmap(int argc, char **argv)
{
    const char *picture = NULL, *output = NULL;
    struct cairn_trace_from from = {NULL};
    const struct cairn_flag flags[] = {
        CAIRN_TRACE_FLAGS(from),
        CAIRN_TRACE_STEPS_FLAG(from, "50"),
        {"png", 0, "FILE", "draw a picture into this file too", &picture, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "heatmap", "--trace FILE | --agent SOCKET [--steps N] [--png FILE] [-o table|json]",
        about,     examples,
        flags,     sizeof flags / sizeof *flags,
        NULL,      NULL};
    int exit_code;
    bool json;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!cairn_trace_from_check(&usage, &from, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    return run(&from, picture, json);
}
