/*
 * tools/trace.c - `cairn trace`: the last steps of all ranks, as a trace or as a timeline for a
 * viewer.
 *
 * With --agent the output is the running job's trace, in lines that all verbs read. With --trace it
 * is the JSON of trace events that Perfetto and chrome://tracing read. A node is a process; a rank
 * has one track of what it did and, below it, one of what it would do with nothing slow. Slices of
 * one track must nest or not overlap, so sends that go on by themselves, and other operations that
 * begin inside another, have tracks of their own. Arrows join the parts of a collective, or of a
 * pair, from the first that arrived to the last, for which the others wait.
 */
#include "replan/views/timeline.h"
#include "tools/common.h"
#include "tools/live_trace.h"
#include "tools/trace_source.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_DEFAULT = 4, LANES = 4, TRACKS = 2 * LANES, LABEL_BYTES = 192 };

/* Lanes of a rank, measured; the same again for the ideal. */
enum lane { LANE_MAIN, LANE_SENDS, LANE_OVERLAP, LANE_OVERLAP_SENDS };
static const char *const lane_names[LANES] = {"", " sends", " overlapping", " overlapping sends"};
static const char *const op_names[CAIRN_OPS] = {
#define OP_NAME(symbol, value, text) [symbol] = text,
    CAIRN_COLLECTIVE_LIST(OP_NAME)
#undef OP_NAME
};
static const double rounding_ns = 1; /* by which a gap may seem to begin before the end of what it
                                      * follows */

static const char about[] =
    "With --agent, prints the trace of the running job's last steps: the lines that --trace of all "
    "verbs reads. Exits 2 if ranks are missing.\n"
    "\n"
    "With --trace, exports the last steps of all ranks as a timeline for "
    "https://ui.perfetto.dev: each rank's "
    "operations and computation, below it the same with nothing slow, and an arrow through each "
    "operation from the first rank that arrived to the last. Clocks are aligned by the ends of "
    "operations.";
static const char examples[] =
    "  cairn trace --agent /run/cairn/agent.sock --steps 50 > job.jsonl\n"
    "  cairn trace --trace job.jsonl > steps.json\n"
    "  cairn trace --trace job.jsonl --steps 10 | gzip > steps.json.gz\n";

/* A rank's part in an operation, to be sorted. */
struct part {
    uint32_t operation;
    double start_ns;
    size_t span;
};

struct view {
    const struct cairn_topology *topology;
    const struct cairn_span *spans;
    size_t count;
    uint8_t *lanes[2];  /* [count] of each span, measured and ideal */
    double *least_ns;   /* [operations] of the last to arrive */
    struct part *parts; /* [count] by operation, in the order of their starts */
    bool sends_aside, comma;
};

static double
begin_of(const struct cairn_span *span, bool ideal)
{
    return ideal ? span->ideal_start_ns : span->start_ns;
}

static double
end_of(const struct cairn_span *span, bool ideal)
{
    return ideal ? span->ideal_end_ns : span->end_ns;
}

/* ---- lanes ---- */

/* Puts each span into a lane where it does not overlap the one before. A span that fits nowhere
 * (three at a time) stays in the overlap lane, where the viewer cuts it. */
static void
choose_lanes(struct view *view, bool ideal)
{
    double free_ns[LANES] = {0};

    for (size_t i = 0; i < view->count; i++) {
        const struct cairn_span *span = &view->spans[i];
        uint8_t lane = view->sends_aside && span->op == CAIRN_SEND ? LANE_SENDS : LANE_MAIN;

        if (i == 0 || span->rank != span[-1].rank)
            memset(free_ns, 0, sizeof free_ns);
        if (begin_of(span, ideal) < free_ns[lane])
            lane = (uint8_t)(lane + LANE_OVERLAP);
        view->lanes[ideal][i] = lane;
        if (end_of(span, ideal) > free_ns[lane])
            free_ns[lane] = end_of(span, ideal);
    }
}

/* ---- events ---- */

static void
begin_event(struct view *view)
{
    fputs(view->comma ? ",\n" : "\n", stdout);
    view->comma = true;
}

/* A text of a trace as JSON: names of communicators may hold anything. */
static void
print_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        if ((unsigned char)*text < 0x20)
            printf("\\u%04x", (unsigned)(unsigned char)*text);
        else
            putchar(*text);
    }
}

static uint64_t
process_of(const struct view *view, uint32_t rank)
{
    uint32_t node = view->topology->node[rank];

    return node == CAIRN_NODE_UNKNOWN ? 0 : (uint64_t)node + 1;
}

static uint64_t
track_of(uint32_t rank, uint32_t lane, bool ideal)
{
    return (uint64_t)rank * TRACKS + (ideal ? LANES : 0) + lane + 1;
}

static void
name_tracks(struct view *view, uint32_t rank, uint32_t used)
{
    const struct cairn_topology *topology = view->topology;

    for (uint32_t track = 0; track < TRACKS; track++) {
        if (!(used >> track & 1))
            continue;
        begin_event(view);
        printf("{\"ph\":\"M\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu64
               ",\"name\":\"thread_name\",\"args\":{\"name\":"
               "\"rank %" PRIu32 "%s%s (stage %" PRIu32 ", pipeline %" PRIu32 ")\"}}",
               process_of(view, rank), track_of(rank, track % LANES, track >= LANES), rank,
               track >= LANES ? " ideal" : "", lane_names[track % LANES], topology->stage[rank],
               topology->pipeline[rank]);
        begin_event(view);
        printf("{\"ph\":\"M\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu64
               ",\"name\":\"thread_sort_index\",\"args\":"
               "{\"sort_index\":%" PRIu64 "}}",
               process_of(view, rank), track_of(rank, track % LANES, track >= LANES),
               track_of(rank, track % LANES, track >= LANES));
    }
}

/* The names of processes and tracks, of the lanes that are used. */
static cairn_err
print_names(struct view *view)
{
    bool *named = calloc((size_t)view->topology->node_count + 1, sizeof *named);

    if (!named)
        return CAIRN_NOMEM;
    for (size_t i = 0, next; i < view->count; i = next) {
        uint32_t rank = view->spans[i].rank, used = 1 | 1u << LANES;
        uint64_t process = process_of(view, rank);

        for (next = i; next < view->count && view->spans[next].rank == rank; next++)
            used |= 1u << view->lanes[0][next] | 1u << (LANES + view->lanes[1][next]);
        if (!named[process]) {
            named[process] = true;
            begin_event(view);
            printf("{\"ph\":\"M\",\"pid\":%" PRIu64
                   ",\"name\":\"process_name\",\"args\":{\"name\":\"",
                   process);
            if (process > 0)
                printf("node %" PRIu64, process - 1);
            else
                printf("nodes that are not known");
            printf("\"}}");
        }
        name_tracks(view, rank, used);
    }
    free(named);
    return CAIRN_OK;
}

static void
print_slice(struct view *view, const struct cairn_span *span, uint32_t lane, bool ideal)
{
    double begin_ns = begin_of(span, ideal), end_ns = end_of(span, ideal);
    bool pair = span->op == CAIRN_SEND || span->op == CAIRN_RECV;

    begin_event(view);
    printf("{\"ph\":\"X\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu64
           ",\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\",\"name\":\"%s ",
           process_of(view, span->rank), track_of(span->rank, lane, ideal), begin_ns / 1e3,
           (end_ns - begin_ns) / 1e3, pair ? "pair" : "collective", op_names[span->op]);
    if (pair)
        printf("%s %" PRIu32, span->op == CAIRN_SEND ? "to" : "from", span->peer);
    else
        print_text(view->topology->comms[span->comm].name);
    printf("%s\",\"args\":{\"step\":%" PRIu32 ",\"bytes\":%" PRIu64,
           span->open ? ", not ended" : "", span->step, span->bytes);
    if (!ideal && !span->open)
        printf(",\"waits_ms\":%.3f", (end_ns - begin_ns - view->least_ns[span->operation]) / 1e6);
    printf("}}");
}

static void
print_computation(struct view *view, const struct cairn_span *span, bool ideal, double gap_ns)
{
    begin_event(view);
    printf("{\"ph\":\"X\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu64
           ",\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"computation\","
           "\"name\":\"computes\",\"args\":{\"step\":%" PRIu32 "}}",
           process_of(view, span->rank), track_of(span->rank, LANE_MAIN, ideal),
           (begin_of(span, ideal) - gap_ns) / 1e3, gap_ns / 1e3, span->step);
}

static void
print_track(struct view *view, bool ideal)
{
    double free_ns = 0;

    for (size_t i = 0; i < view->count; i++) {
        const struct cairn_span *span = &view->spans[i];
        double gap_ns = ideal ? span->ideal_gap_ns : span->gap_ns;

        if (i == 0 || span->rank != span[-1].rank)
            free_ns = 0;
        if (isnan(begin_of(span, ideal)) || isnan(end_of(span, ideal)))
            continue;
        if (span->before != UINT32_MAX && gap_ns > 0 &&
            begin_of(span, ideal) - gap_ns + rounding_ns >= free_ns)
            print_computation(view, span, ideal, gap_ns);
        print_slice(view, span, view->lanes[ideal][i], ideal);
        if (view->lanes[ideal][i] == LANE_MAIN)
            free_ns = end_of(span, ideal);
        else if (begin_of(span, ideal) > free_ns)
            free_ns = begin_of(span, ideal); /* what is computed up to here has been drawn */
    }
}

/* Arrows leave and reach slices in their middle, where no neighbour is. */
static void
print_flow(struct view *view, const struct part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct cairn_span *span = &view->spans[parts[i].span];

        begin_event(view);
        printf("{\"ph\":\"%s\",\"id\":%" PRIu32 ",\"pid\":%" PRIu64 ",\"tid\":%" PRIu64
               ",\"ts\":%.3f,\"cat\":\"flow\",\"name\":\"waits for\"%s}",
               i == 0          ? "s"
               : i + 1 < count ? "t"
                               : "f",
               span->operation, process_of(view, span->rank),
               track_of(span->rank, view->lanes[0][parts[i].span], false),
               (span->start_ns + span->end_ns) / 2e3, i > 0 ? ",\"bp\":\"e\"" : "");
    }
}

static int
compare_parts(const void *left, const void *right)
{
    const struct part *a = left, *b = right;

    if (a->operation != b->operation)
        return a->operation > b->operation ? 1 : -1;
    return a->start_ns > b->start_ns ? 1 : a->start_ns < b->start_ns ? -1 : 0;
}

static void
print_flows(struct view *view)
{
    for (size_t i = 0; i < view->count; i++)
        view->parts[i] = (struct part){view->spans[i].operation, view->spans[i].start_ns, i};
    qsort(view->parts, view->count, sizeof *view->parts, compare_parts);
    for (size_t i = 0, next; i < view->count; i = next) {
        for (next = i + 1;
             next < view->count && view->parts[next].operation == view->parts[i].operation;)
            next++;
        if (next - i > 1)
            print_flow(view, view->parts + i, next - i);
    }
}

/* ---- the whole ---- */

static void
find_least(struct view *view, uint32_t operation_count)
{
    for (uint32_t i = 0; i < operation_count; i++)
        view->least_ns[i] = INFINITY;
    for (size_t i = 0; i < view->count; i++) {
        const struct cairn_span *span = &view->spans[i];

        if (!span->open)
            view->least_ns[span->operation] =
                fmin(view->least_ns[span->operation], span->end_ns - span->start_ns);
    }
}

static void
say_summary(const struct view *view)
{
    double measured_ns = 0, ideal_ns = 0;
    uint32_t first = UINT32_MAX, last = 0;

    for (size_t i = 0; i < view->count; i++) {
        measured_ns = fmax(measured_ns, view->spans[i].end_ns);
        ideal_ns = fmax(ideal_ns, view->spans[i].ideal_end_ns); /* NaN is passed over */
        first = view->spans[i].step < first ? view->spans[i].step : first;
        last = view->spans[i].step > last ? view->spans[i].step : last;
    }
    if (view->count == 0)
        fprintf(stderr, "cairn trace: the trace has no operations\n");
    else
        fprintf(stderr,
                "cairn trace: steps %" PRIu32 " to %" PRIu32
                ", %zu operations: %.1f ms, and %.1f ms with nothing slow\n",
                first, last, view->count, measured_ns / 1e6, ideal_ns / 1e6);
}

static cairn_err
print_timeline(const struct cairn_topology *topology, const struct cairn_timeline *timeline)
{
    uint32_t operation_count = cairn_timeline_operation_count(timeline);
    struct view view = {.topology = topology, .sends_aside = cairn_timeline_sends_aside(timeline)};
    cairn_err err = CAIRN_NOMEM;

    view.spans = cairn_timeline_spans(timeline, &view.count);
    view.lanes[0] = calloc(view.count + 1, 1);
    view.lanes[1] = calloc(view.count + 1, 1);
    view.least_ns = calloc((size_t)operation_count + 1, sizeof *view.least_ns);
    view.parts = calloc(view.count + 1, sizeof *view.parts);
    if (!view.lanes[0] || !view.lanes[1] || !view.least_ns || !view.parts)
        goto done;
    choose_lanes(&view, false);
    choose_lanes(&view, true);
    find_least(&view, operation_count);
    printf("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    err = print_names(&view);
    print_track(&view, false);
    print_track(&view, true);
    print_flows(&view);
    printf("\n]}\n");
    say_summary(&view);
done:
    free(view.lanes[0]);
    free(view.lanes[1]);
    free(view.least_ns);
    free(view.parts);
    return err;
}

static int
run(const char *path, uint32_t steps)
{
    struct cairn_trace_source *source = NULL;
    struct cairn_timeline *timeline = NULL;
    const struct cairn_record *records;
    uint32_t count;
    cairn_err err;
    int exit_code =
        cairn_trace_source_open("trace", &(struct cairn_trace_from){.path = path}, 0, &source);

    if (exit_code != CAIRN_EXIT_OK)
        return exit_code;
    err = cairn_timeline_create(cairn_trace_source_topology(source), steps, &timeline);
    while (!err && cairn_trace_source_next(source, &records, &count))
        for (uint32_t i = 0; !err && i < count; i++)
            err = cairn_timeline_feed(timeline, &records[i]);
    if (!err) {
        exit_code = cairn_trace_source_result(source);
        if (exit_code != CAIRN_EXIT_OK)
            goto done;
        err = cairn_timeline_finish(timeline);
    }
    if (!err)
        err = print_timeline(cairn_trace_source_topology(source), timeline);
    if (err)
        cairn_tool_error("trace", cairn_err_text(err), NULL, NULL);
    exit_code = cairn_exit_code(err);
done:
    cairn_timeline_destroy(timeline);
    cairn_trace_source_close(source);
    return exit_code;
}

int
cairn_verb_trace(int argc, char **argv)
{
    const char *output = NULL;
    struct cairn_trace_from from = {NULL};
    const struct cairn_flag flags[] = {
        CAIRN_TRACE_FLAGS(from),
        {"steps", 0, "N",
         "take the last N steps: with --agent 1 to 1000 (default: 50), with --trace 1 to 64 "
         "(default: 4)",
         &from.steps, NULL},
        {"output", 'o', "json", "accepted for scripts: the output is always JSON", &output, NULL},
    };
    const struct cairn_usage usage = {"trace", "--agent SOCKET | --trace FILE [--steps N]",
                                      about,   examples,
                                      flags,   sizeof flags / sizeof *flags,
                                      NULL,    NULL};
    unsigned long steps, steps_max;
    int exit_code;
    char *end;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (output && strcmp(output, "json") != 0)
        return cairn_usage_error(&usage, "-o %s: expected json; a trace viewer draws it", output);
    if (!cairn_trace_from_check(&usage, &(struct cairn_trace_from){from.path, from.agent, NULL},
                                &exit_code))
        return exit_code;
    steps = from.agent ? CAIRN_LIVE_STEPS_DEFAULT : STEPS_DEFAULT;
    steps_max = from.agent ? CAIRN_LIVE_STEPS_MAX : CAIRN_TIMELINE_STEPS_MAX;
    if (from.steps) {
        steps = strtoul(from.steps, &end, 10);
        if (*from.steps < '0' || *from.steps > '9' || *end != '\0' || steps < 1 ||
            steps > steps_max)
            return cairn_usage_error(&usage, "--steps %s: expected a number from 1 to %lu",
                                     from.steps, steps_max);
    }
    return from.agent ? cairn_live_trace_write("trace", from.agent, (uint32_t)steps, stdout)
                      : run(from.path, (uint32_t)steps);
}
