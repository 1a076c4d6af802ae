/*
 * tools/explain.c - `cairn explain`: a verdict as a story in seconds, with its evidence.
 *
 * Seconds are on the clock of the first rank in the trace that names its steps; without one, steps
 * times the period. The cost of a verdict is how much longer steps take while it lasts than steps
 * without a verdict.
 */
#include "base/array.h"
#include "base/json.h"
#include "replan/detect/detect.h"
#include "replan/detect/shift.h"
#include "tools/common.h"
#include "tools/checkpoint_verbs.h"
#include "tools/explain.h"
#include "tools/find_agent.h"
#include "tools/trace_source.h"
#include "tools/usage.h"
#include "tools/verb.h"
#include "tools/verdict_view.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_MAX = 12, LINE_BYTES = 512, LIST_SHOWN = 16, STEPS_CLEAN_MIN = 4 };

static const char about[] =
    "Explains one verdict: what is slow or has stopped, when it began and was detected, how many "
    "seconds it cost, which ranks wait for it, the evidence, and what to do.\n"
    "\n"
    "VERDICT is the number that `cairn detect` prints or, without --trace, the number that "
    "`cairn status` prints for the running job.\n"
    "\n"
    "`plan N` explains one of the last offers of another placement: the evidence, the "
    "alternatives, the price, and the measured gain.\n"
    "\n"
    "EVENT is an event of the history by the name that `cairn history` prints, such as 2.17: its "
    "details, what led to it, and what came after.";
static const char examples[] = "  cairn explain 3                       # of the running job\n"
                               "  cairn explain plan 2                  # an offer of `cairn "
                               "replan`\n"
                               "  cairn explain 2.17                    # an event of `cairn "
                               "history`\n"
                               "  cairn explain 1 --trace job.jsonl\n"
                               "  cairn explain 1 --trace job.jsonl -o json | jq .lost_seconds\n";

/* When a rank was through with a step, on its own clock. */
struct step_end {
    uint32_t step;
    uint64_t end_ns;
};

/* The steps of one rank. */
struct steps {
    uint32_t rank; /* UINT32_MAX: none has named a step yet */
    uint64_t begin_ns;
    struct step_end *ends; /* in the order of steps */
    size_t count;
};

struct story {
    const struct cairn_topology *topology;
    const struct cairn_verdict *verdict;
    uint32_t number, of;
    struct cairn_detector_summary summary;
    double begin_s, known_s, end_s; /* since the trace's begin; end_s NaN while it lasts; all NaN:
                                     * unknown */
    double trace_s;
    double normal_ms, slow_ms, lost_s; /* NaN where it is unknown */
    uint32_t slow_steps;
    char lines[LINES_MAX][LINE_BYTES];
    uint32_t line_count;
};

/* ---- the time of steps ---- */

static cairn_err
take_step(struct steps *steps, const struct cairn_record *record)
{
    if (record->op == 0 || !record->has_step || record->end_ns == 0)
        return CAIRN_OK;
    if (steps->rank == UINT32_MAX) {
        steps->rank = record->rank;
        steps->begin_ns = record->start_ns;
    }
    if (record->rank != steps->rank ||
        (steps->count > 0 && record->step < steps->ends[steps->count - 1].step))
        return CAIRN_OK;
    if (steps->count == 0 || record->step > steps->ends[steps->count - 1].step) {
        if (!cairn_array_grow(&steps->ends, steps->count, sizeof *steps->ends))
            return CAIRN_NOMEM;
        steps->ends[steps->count++] = (struct step_end){record->step, record->end_ns};
    } else if (record->end_ns > steps->ends[steps->count - 1].end_ns) {
        steps->ends[steps->count - 1].end_ns = record->end_ns;
    }
    return CAIRN_OK;
}

/* Seconds from the begin to the end of a step, or of the last one before it. */
static double
end_of(const struct steps *steps, const struct cairn_detector_summary *summary, uint32_t step)
{
    size_t low = 0, high = steps->count;

    if (steps->count == 0)
        return summary->period_ms > 0 ? (step + 1.0) * summary->period_ms / 1e3 : (double)NAN;
    /* The first that is later */
    CAIRN_BISECT(low, high, middle, steps->ends[middle].step <= step);
    return low > 0 && steps->ends[low - 1].end_ns > steps->begin_ns
               ? (double)(steps->ends[low - 1].end_ns - steps->begin_ns) / 1e9
               : 0;
}

static double
begin_of(const struct steps *steps, const struct cairn_detector_summary *summary, uint32_t step)
{
    return step > 0 ? end_of(steps, summary, step - 1) : 0;
}

/* ---- what it costs ---- */

static bool
lasts_in(const struct cairn_verdict *verdict, uint32_t step)
{
    /* while it lasts: the largest number */
    return step >= verdict->since_step && step <= verdict->until_step;
}

/* Step i (from 1) took this long; times of operations that overlap steps never make it negative. */
static double
length_ms(const struct steps *steps, size_t i)
{
    return steps->ends[i].end_ns > steps->ends[i - 1].end_ns
               ? (double)(steps->ends[i].end_ns - steps->ends[i - 1].end_ns) / 1e6
               : 0;
}

static cairn_err
find_cost(struct story *story, const struct steps *steps, const struct cairn_verdicts *verdicts)
{
    float *clean = malloc((steps->count + 1) * sizeof *clean);
    uint32_t clean_count = 0;
    double slow_ms = 0;

    if (!clean)
        return CAIRN_NOMEM;
    for (size_t i = 1; i < steps->count; i++) {
        bool touched = false;

        for (uint32_t v = 0; v < verdicts->count && !touched; v++)
            touched = lasts_in(&verdicts->items[v], steps->ends[i].step);
        if (!touched)
            clean[clean_count++] = (float)length_ms(steps, i);
        if (!lasts_in(story->verdict, steps->ends[i].step))
            continue;
        slow_ms += length_ms(steps, i);
        story->slow_steps++;
    }
    if (clean_count >= STEPS_CLEAN_MIN && story->slow_steps > 0) {
        story->normal_ms = (double)cairn_quantile(clean, clean_count, 0.5);
        story->slow_ms = slow_ms / story->slow_steps;
        story->lost_s = fmax(slow_ms - story->slow_steps * story->normal_ms, 0) / 1e3;
    }
    free(clean);
    return CAIRN_OK;
}

/* ---- the lines ---- */

static void __attribute__((format(printf, 2, 3)))
add_line(struct story *story, const char *format, ...)
{
    va_list arguments;

    if (story->line_count == LINES_MAX)
        return;
    va_start(arguments, format);
    vsnprintf(story->lines[story->line_count++], LINE_BYTES, format, arguments);
    va_end(arguments);
}

/* "rank 3 on node 0, stage 1 of pipeline 2", or "ranks 2 and 3", or "4 ranks". */
static void
name_ranks(const struct story *story, char *out, size_t out_bytes)
{
    const struct cairn_u32_list *ranks = &story->verdict->ranks;
    const struct cairn_topology *topology = story->topology;

    if (ranks->count == 1 && topology->node[ranks->items[0]] != CAIRN_NODE_UNKNOWN)
        snprintf(out, out_bytes,
                 "rank %" PRIu32 " on node %" PRIu32 ", stage %" PRIu32 " of pipeline %" PRIu32,
                 ranks->items[0], topology->node[ranks->items[0]], topology->stage[ranks->items[0]],
                 topology->pipeline[ranks->items[0]]);
    else if (ranks->count == 1)
        snprintf(out, out_bytes, "rank %" PRIu32, ranks->items[0]);
    else if (ranks->count == 2)
        snprintf(out, out_bytes, "ranks %" PRIu32 " and %" PRIu32, ranks->items[0],
                 ranks->items[1]);
    else
        snprintf(out, out_bytes, "%" PRIu32 " ranks, the first of them %" PRIu32, ranks->count,
                 ranks->count > 0 ? ranks->items[0] : 0);
}

static void
say_what(struct story *story)
{
    const struct cairn_verdict *verdict = story->verdict;
    char who[160];

    name_ranks(story, who, sizeof who);
    switch (verdict->kind) {
    case CAIRN_SLOW_COMPUTE:
        add_line(story, "%s, computes %.2f times as long as is normal for it.", who, verdict->rate);
        break;
    case CAIRN_SLOW_NODE:
        add_line(story,
                 "All ranks of node %" PRIu32 " compute %.2f times as long as is normal for them.",
                 verdict->nodes.count > 0 ? verdict->nodes.items[0] : 0, verdict->rate);
        break;
    case CAIRN_SLOW_LINK:
        if (verdict->nodes.count > 0)
            add_line(story,
                     "The network of node %" PRIu32 " carries data in %.2f times its normal time.",
                     verdict->nodes.items[0], verdict->rate);
        else if (verdict->links.count <= 4) /* a pair, one way or both */
            add_line(story,
                     "The link from rank %" PRIu32 " to rank %" PRIu32
                     " carries data in %.2f times its normal time.",
                     verdict->links.count > 1 ? verdict->links.items[0] : 0,
                     verdict->links.count > 1 ? verdict->links.items[1] : 0, verdict->rate);
        else
            add_line(story,
                     "One of %" PRIu32
                     " links, or several, carries data in %.2f times the normal time.",
                     verdict->links.count / 2, verdict->rate);
        break;
    case CAIRN_HANG_COMPUTE:
        add_line(story, "The job hangs: %s, never came to an operation that others wait in.", who);
        break;
    case CAIRN_HANG_LINK:
        add_line(story,
                 "The job hangs: %s, are all in one operation, and its transfer does not end.",
                 who);
        break;
    case CAIRN_CRASH:
        add_line(story, "The job hangs: %s, gave the last sign of life long before the others.",
                 who);
        break;
    case CAIRN_STRUCTURAL:
        add_line(story, "No device is at fault; the work is uneven (%s).",
                 verdict->pattern ? verdict->pattern : "unknown");
        break;
    }
}

static void
say_when(struct story *story)
{
    const struct cairn_verdict *verdict = story->verdict;
    bool hang = verdict->kind >= CAIRN_HANG_COMPUTE && verdict->kind <= CAIRN_CRASH;

    if (isnan(story->begin_s))
        return;
    add_line(story, "+0.0 s: the trace begins; it has %" PRIu32 " steps and lasts %.1f s.",
             story->summary.steps, story->trace_s);
    add_line(story, "+%.1f s (step %" PRIu32 "): it begins.", story->begin_s, verdict->since_step);
    if (hang)
        return; /* how long others have waited is in the evidence */
    add_line(story, "+%.1f s (step %" PRIu32 "): known, %.1f s later; confidence %.2f.",
             story->known_s, verdict->detected_step, fmax(story->known_s - story->begin_s, 0),
             verdict->confidence);
    if (isnan(story->end_s))
        add_line(story, "+%.1f s: the trace ends, and it lasts.", story->trace_s);
    else
        add_line(story, "+%.1f s (step %" PRIu32 "): it ends.", story->end_s, verdict->until_step);
}

static void
say_cost(struct story *story, const struct cairn_verdicts *verdicts)
{
    uint32_t others = 0;

    if (isnan(story->lost_s)) {
        if (story->verdict->kind <= CAIRN_SLOW_LINK)
            add_line(story, "What it costs cannot be read from this trace: too few of its steps "
                            "are without a verdict.");
        return;
    }
    for (uint32_t v = 0; v < verdicts->count; v++)
        others += &verdicts->items[v] != story->verdict &&
                  verdicts->items[v].since_step <= story->verdict->until_step &&
                  verdicts->items[v].until_step >= story->verdict->since_step;
    add_line(story,
             "Lost so far: %.1f s in %" PRIu32
             " steps, which take %.1f ms instead of %.1f ms (%.0f %% more)%s.",
             story->lost_s, story->slow_steps, story->slow_ms, story->normal_ms,
             100 * fmax(story->slow_ms / story->normal_ms - 1, 0),
             others > 0 ? "; other verdicts of the same time have their part in it" : "");
}

static cairn_err
tell(struct story *story, const struct steps *steps, const struct cairn_verdicts *verdicts)
{
    const struct cairn_verdict *verdict = story->verdict;
    cairn_err err;

    story->trace_s = end_of(steps, &story->summary, UINT32_MAX - 1);
    if (steps->count == 0)
        story->trace_s = story->summary.steps * story->summary.period_ms / 1e3;
    story->begin_s = begin_of(steps, &story->summary, verdict->since_step);
    story->known_s = end_of(steps, &story->summary, verdict->detected_step);
    story->end_s = verdict->until_step == CAIRN_STEP_NONE
                       ? (double)NAN
                       : end_of(steps, &story->summary, verdict->until_step);
    story->normal_ms = story->slow_ms = story->lost_s = (double)NAN;
    err = verdict->kind <= CAIRN_SLOW_LINK ? find_cost(story, steps, verdicts) : CAIRN_OK;
    say_what(story);
    say_when(story);
    say_cost(story, verdicts);
    add_line(story, "Evidence: %s.", verdict->evidence);
    add_line(story, "What to do: %s.",
             cairn_verdict_advice(verdict->kind, verdict->pattern, verdict->victims.count > 0));
    return err;
}

/* ---- output ---- */

static void
write_number(struct cairn_json_writer *writer, const char *key, double value)
{
    cairn_json_put_double(writer, key, value); /* NaN: null */
}

static cairn_err
print_json(const struct story *story)
{
    struct cairn_json_writer writer;

    cairn_json_begin(&writer);
    cairn_json_put_u64(&writer, "number", story->number);
    cairn_json_put_u64(&writer, "of", story->of);
    write_number(&writer, "begin_seconds", story->begin_s);
    write_number(&writer, "known_seconds", story->known_s);
    write_number(&writer, "end_seconds", story->end_s);
    write_number(&writer, "trace_seconds", story->trace_s);
    write_number(&writer, "normal_step_ms", story->normal_ms);
    write_number(&writer, "slow_step_ms", story->slow_ms);
    write_number(&writer, "lost_seconds", story->lost_s);
    cairn_json_put_array(&writer, "story");
    for (uint32_t i = 0; i < story->line_count; i++) {
        cairn_json_write_line(&writer);
        cairn_json_write_string(&writer, story->lines[i]);
    }
    cairn_json_write_array_end(&writer);
    cairn_json_write_key(&writer, "verdict");
    cairn_verdict_write(&writer, story->verdict);
    cairn_json_write_object_end(&writer);
    return cairn_json_print(&writer);
}

static void
print_text(const struct story *story)
{
    const struct cairn_verdict *verdict = story->verdict;

    printf("Verdict %" PRIu32 " of %" PRIu32 ": %s\n", story->number, story->of,
           cairn_verdict_kind_text(verdict->kind));
    for (uint32_t i = 0; i < story->line_count; i++)
        printf("  %s\n", story->lines[i]);
    if (verdict->victims.count > 0) {
        printf("  Who waits for it:");
        cairn_verdict_print_list(stdout, "rank", &verdict->victims, LIST_SHOWN);
        printf(".\n");
    }
}

/* ---- the whole ---- */

static cairn_err
read_all(struct cairn_trace_source *source, struct cairn_detector **detector, struct steps *steps,
         int *exit_code)
{
    const struct cairn_record *records;
    uint32_t count;
    cairn_err err = cairn_detector_create(cairn_trace_source_topology(source), 0, detector);

    while (!err && cairn_trace_source_next(source, &records, &count))
        for (uint32_t i = 0; !err && i < count; i++) {
            err = cairn_detector_feed(*detector, &records[i]);
            if (!err)
                err = take_step(steps, &records[i]);
        }
    *exit_code = err ? CAIRN_EXIT_OK : cairn_trace_source_result(source);
    return err || *exit_code != CAIRN_EXIT_OK ? err : cairn_detector_finish(*detector);
}

/* False, with a message: unknown verdict. */
static bool
check_number(uint32_t number, uint32_t count)
{
    char what[96];

    if (number <= count)
        return true;
    snprintf(what, sizeof what,
             count == 0 ? "this trace has no verdicts"
                        : "there is no verdict %" PRIu32 ", the last is %" PRIu32,
             number, count);
    cairn_tool_error("explain", what, NULL, "see `cairn detect --trace FILE`, which numbers them");
    return false;
}

static int
run(uint32_t number, const char *path, bool json)
{
    struct cairn_trace_source *source = NULL;
    struct cairn_detector *detector = NULL;
    struct steps steps = {.rank = UINT32_MAX};
    struct story *story = calloc(1, sizeof *story);
    const struct cairn_verdicts *verdicts;
    int exit_code = CAIRN_EXIT_OK;
    cairn_err err = story ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        exit_code = cairn_trace_source_open("explain", &(struct cairn_trace_from){.path = path}, 0,
                                            &source);
    if (!err && exit_code == CAIRN_EXIT_OK)
        err = read_all(source, &detector, &steps, &exit_code);
    if (err || exit_code != CAIRN_EXIT_OK)
        goto done;
    verdicts = cairn_detector_verdicts(detector);
    if (!check_number(number, verdicts->count)) {
        exit_code = CAIRN_EXIT_USAGE;
        goto done;
    }
    *story = (struct story){.topology = cairn_trace_source_topology(source),
                            .verdict = &verdicts->items[number - 1],
                            .number = number,
                            .of = verdicts->count};
    cairn_detector_summarize(detector, &story->summary);
    err = tell(story, &steps, verdicts);
    if (!err && json)
        err = print_json(story);
    else if (!err)
        print_text(story);
done:
    if (err) {
        cairn_tool_error("explain", cairn_err_text(err), NULL, NULL);
        exit_code = cairn_exit_code(err);
    }
    free(story);
    free(steps.ends);
    cairn_detector_destroy(detector);
    cairn_trace_source_close(source);
    return exit_code;
}

int
cairn_verb_explain(int argc, char **argv)
{
    const char *path = NULL, *agent = NULL, *output = NULL, *words[2] = {NULL, NULL}, *word;
    const struct cairn_flag flags[] = {
        {"trace", 0, "FILE", "read the trace from this file, \"-\" for stdin", &path, NULL},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "explain",
        "VERDICT [--trace FILE | --agent SOCKET] | plan N [--agent SOCKET] | EVENT [--agent "
        "SOCKET] [-o table|json]",
        about,
        examples,
        flags,
        sizeof flags / sizeof *flags,
        "VERDICT",
        NULL};
    unsigned long number = 0;
    int exit_code;
    char *end;
    bool json, is_plan = false;

    for (int i = 1; i < argc; i++)
        is_plan |= strcmp(argv[i], "plan") == 0;
    if (!cairn_words_parse(&usage, argc, argv, words, is_plan ? 2 : 1,
                           is_plan ? "`plan` and the number of an offer, as `cairn replan` has it"
                                   : "a verdict by the number that `cairn detect` or `cairn "
                                     "status` gives it",
                           &exit_code))
        return exit_code;
    word = words[is_plan];
    if (!is_plan && strchr(word, '.')) {
        if (path)
            return cairn_usage_error(&usage, "--trace FILE has no events");
        if (!cairn_output_parse(output, &json))
            return cairn_usage_error(&usage, "-o %s: expected table or json", output);
        return cairn_explain_event(agent, word, json);
    }
    errno = 0;
    number = strtoul(word, &end, 10);
    if (*word < '0' || *word > '9' || *end != '\0' || errno != 0 || number < 1 ||
        number > UINT32_MAX)
        return cairn_usage_error(&usage,
                                 is_plan ? "%s: expected a plan's number, as `cairn replan` prints"
                                         : "%s: expected a verdict's number, as `cairn detect` "
                                           "and `cairn status` print, or an event's name",
                                 word);
    if (path && agent)
        return cairn_usage_error(&usage, "--trace conflicts with --agent; omit one");
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if (is_plan && path)
        return cairn_usage_error(&usage, "--trace FILE has no plans");
    if (is_plan)
        return cairn_explain_plan(agent, number, json);
    return path ? run((uint32_t)number, path, json)
                : cairn_explain_live(agent, (uint32_t)number, json);
}
