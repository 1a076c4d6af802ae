/*
 * tools/explain_live.c - `cairn explain VERDICT` of a running job: what the agents have kept of one
 * of their verdicts, as a story.
 *
 * Seconds count from when the agents knew; before that, steps times the present length of a step.
 */
#include "replan/detect/verdict.h"
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/explain.h"
#include "tools/find_agent.h"
#include "tools/verb.h"
#include "tools/stack_view.h"
#include "tools/verdict_view.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ANSWER_MS = 10000, LINES_MAX = 16, LINE_BYTES = 640, TEXT_BYTES = 400 };

struct story {
    const struct cairn_tree *tree;
    const struct cairn_tree_value *verdict; /* of the status' "detection.verdicts" */
    uint64_t now_ns;                        /* of the wall clock, as the next two */
    uint64_t known_ns, closed_ns;           /* closed: 0 while it lasts */
    double length_s; /* of the time from its begin until it was known; negative: unknown */
    char lines[LINES_MAX][LINE_BYTES];
    uint32_t line_count;
};

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

static uint64_t
number_of(const struct story *story, const char *key, uint64_t fallback)
{
    return cairn_tree_u64(story->tree, story->verdict, key, fallback);
}

static const char *
text_of(const struct story *story, const char *key, char out[TEXT_BYTES])
{
    return cairn_tree_text(story->tree, story->verdict, key, out, TEXT_BYTES);
}

/* How long ago; clocks of nodes may differ, so a future time counts as now. */
static const char *
ago(const struct story *story, uint64_t then_ns, char out[CAIRN_SHOWN_BYTES])
{
    return cairn_show_duration(story->now_ns > then_ns ? story->now_ns - then_ns : 0, out);
}

static void
say_when(struct story *story)
{
    uint64_t since = number_of(story, "since_step", 0),
             known = number_of(story, "detected_step", 0);
    uint64_t returns = number_of(story, "returns", 0);
    char shown[CAIRN_SHOWN_BYTES], why[TEXT_BYTES];

    if (story->length_s >= 0)
        add_line(story,
                 "%s ago (step %" PRIu64
                 ") it was known, about %.1f s after it began (step %" PRIu64 "); confidence %.2f.",
                 ago(story, story->known_ns, shown), known, story->length_s, since,
                 cairn_tree_double(story->tree, story->verdict, "confidence", 0));
    else
        add_line(story,
                 "%s ago (step %" PRIu64 ") it was known; it began with step %" PRIu64
                 "; confidence %.2f.",
                 ago(story, story->known_ns, shown), known, since,
                 cairn_tree_double(story->tree, story->verdict, "confidence", 0));
    if (returns > 0)
        add_line(story, "It has ended and come back %" PRIu64 " time%s since.", returns,
                 returns == 1 ? "" : "s");
    if (story->closed_ns == 0) {
        add_line(story, "It lasts, and %" PRIu64 " rank%s for it.",
                 number_of(story, "victim_count", 0),
                 number_of(story, "victim_count", 0) == 1 ? " waits" : "s wait");
        return;
    }
    text_of(story, "closed_why", why);
    if (cairn_tree_find(story->tree, story->verdict, "until_step"))
        add_line(story, "%s ago it was closed: %s, with step %" PRIu64 ".",
                 ago(story, story->closed_ns, shown), why, number_of(story, "until_step", 0));
    else
        add_line(story, "%s ago it was closed: %s.", ago(story, story->closed_ns, shown), why);
}

static void
say_evidence(struct story *story)
{
    const struct cairn_tree_value *list = cairn_tree_find(story->tree, story->verdict,
                                                          "evidence_kinds"),
                                  *item = NULL;
    char evidence[TEXT_BYTES], kinds[128] = "", kind[32];
    size_t used = 0;

    while ((item = cairn_tree_next(story->tree, list, item)) != NULL && used < sizeof kinds) {
        int len = snprintf(kinds + used, sizeof kinds - used, "%s%s", used ? ", " : "",
                           cairn_tree_text(story->tree, item, "", kind, sizeof kind));

        used += len > 0 ? (size_t)len : 0;
    }
    add_line(story, "Evidence (%s): %s.", kinds, text_of(story, "evidence", evidence));
}

/* The outcome of the operator's command, if it ran for this verdict. */
static void
say_command(struct story *story)
{
    uint64_t begun_ns = number_of(story, "enforcement.begun_wall_ns", 0);
    char what[TEXT_BYTES], shown[CAIRN_SHOWN_BYTES];

    if (!cairn_tree_find(story->tree, story->verdict, "enforcement.what"))
        return;
    add_line(story,
             "The exchange was proposed, and %s ago the operator's command was started for it: %s.",
             ago(story, begun_ns, shown), text_of(story, "enforcement.what", what));
}

static void
tell(struct story *story)
{
    uint64_t step_ns = cairn_tree_u64(story->tree, NULL, "detection.step_ns", 0);
    uint64_t since = number_of(story, "since_step", 0),
             known = number_of(story, "detected_step", 0);
    char what[TEXT_BYTES], kind[TEXT_BYTES], advice[TEXT_BYTES];

    story->known_ns = number_of(story, "opened_wall_ns", 0);
    story->closed_ns = number_of(story, "closed_wall_ns", 0);
    text_of(story, "kind", kind);
    /* in a hang steps stand still: the evidence has the waiting times */
    story->length_s =
        step_ns > 0 && known >= since && strncmp(kind, "hang", 4) != 0 && strcmp(kind, "crash") != 0
            ? (double)(known - since + 1) * (double)step_ns / 1e9
            : -1;
    text_of(story, "what", what);
    add_line(story, "%s.", what);
    say_when(story);
    say_evidence(story);
    say_command(story);
    if (cairn_tree_find(story->tree, story->verdict, "advice"))
        add_line(story, "What to do: %s.", text_of(story, "advice", advice));
    else if (story->closed_ns > 0)
        add_line(story, "What to do: nothing any more.");
    else
        add_line(story, "What to do: nothing is proposed, since the agents only observe "
                        "(verdict_policy: advise says what to do).");
}

/* What the nodes know about the cause, beside the verdict. */
static void
say_causes(struct story *story)
{
    const struct cairn_tree_value *list = cairn_tree_find(story->tree, story->verdict, "causes"),
                                  *item = NULL;
    char what[TEXT_BYTES];

    while ((item = cairn_tree_next(story->tree, list, item)))
        add_line(story, "Cause, as node %" PRIu64 " sees it: %s.",
                 cairn_tree_u64(story->tree, item, "node", 0),
                 cairn_tree_text(story->tree, item, "what", what, sizeof what));
}

/* Where the hanging and the waiting ranks are. */
static void
say_stacks(struct story *story)
{
    const struct cairn_tree_value *list = cairn_tree_find(story->tree, NULL, "detection.stacks"),
                                  *item = NULL;
    char kind[TEXT_BYTES], text[TEXT_BYTES];

    text_of(story, "kind", kind);
    if (story->closed_ns > 0 || (strncmp(kind, "hang", 4) != 0 && strcmp(kind, "crash") != 0))
        return;
    while ((item = cairn_tree_next(story->tree, list, item)))
        add_line(story, "Python stack of %s.",
                 cairn_stack_describe(story->tree, item, text, sizeof text));
}

/* The advice about the plan: it counts everything slow, not this verdict alone. */
static void
say_plan(struct story *story)
{
    char what[TEXT_BYTES], policy[32];
    uint64_t given_ns = cairn_tree_u64(story->tree, NULL, "replan.advice.given_wall_ns", 0);
    char shown[CAIRN_SHOWN_BYTES];

    if (story->closed_ns > 0 || !cairn_tree_find(story->tree, NULL, "replan.advice.what"))
        return;
    add_line(story,
             "About the plan, for all that is slow, %s ago: %s. replan.json in the directory of "
             "node %" PRIu64 "'s agent is the problem to plan with.%s",
             ago(story, given_ns, shown),
             cairn_tree_text(story->tree, NULL, "replan.advice.what", what, sizeof what),
             cairn_tree_u64(story->tree, NULL, "replan.node", 0),
             strcmp(cairn_tree_text(story->tree, NULL, "detection.policy", policy, sizeof policy),
                    "enforce") == 0
                 ? " enforce_command is not run for plans: do it yourself."
                 : "");
}

static bool
print_json(const struct story *story, uint32_t number)
{
    struct cairn_json_writer writer;
    char kind[TEXT_BYTES];

    cairn_json_begin(&writer);
    cairn_json_put_u64(&writer, "number", number);
    cairn_json_put_string(&writer, "kind", text_of(story, "kind", kind));
    cairn_json_put_bool(&writer, "open", story->closed_ns == 0);
    cairn_json_write_key(&writer, "begin_to_known_seconds");
    if (story->length_s >= 0)
        cairn_json_write_double(&writer, story->length_s);
    else
        cairn_json_write_null(&writer);
    cairn_json_put_u64(&writer, "opened_wall_ns", story->known_ns);
    cairn_json_write_key(&writer, "closed_wall_ns");
    if (story->closed_ns > 0)
        cairn_json_write_u64(&writer, story->closed_ns);
    else
        cairn_json_write_null(&writer);
    cairn_json_put_array(&writer, "story");
    for (uint32_t i = 0; i < story->line_count; i++) {
        cairn_json_write_line(&writer);
        cairn_json_write_string(&writer, story->lines[i]);
    }
    cairn_json_write_array_end(&writer);
    cairn_json_write_object_end(&writer);
    return cairn_json_print(&writer) == CAIRN_OK;
}

static void
print_text(const struct story *story, uint32_t number)
{
    char kind[TEXT_BYTES];

    printf("Verdict %" PRIu32 ": %s%s\n", number, text_of(story, "kind", kind),
           story->closed_ns ? ", over" : "");
    for (uint32_t i = 0; i < story->line_count; i++)
        printf("  %s\n", story->lines[i]);
}

/* Says which verdicts there are instead. */
static void
say_missing(const struct cairn_tree *tree, uint32_t number)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, NULL, "detection.verdicts"),
                                  *item = NULL;
    uint64_t first = 0, last = 0;
    char what[160];

    while ((item = cairn_tree_next(tree, list, item)) != NULL) {
        last = cairn_tree_u64(tree, item, "verdict", 0);
        first = first ? first : last;
    }
    if (last == 0)
        snprintf(what, sizeof what, "the agents have no verdict %" PRIu32 ", and none at all",
                 number);
    else
        snprintf(what, sizeof what,
                 "the agents have no verdict %" PRIu32 " (any more): they keep some from %" PRIu64
                 " to %" PRIu64,
                 number, first, last);
    cairn_tool_error("explain", what, NULL,
                     "see `cairn status -o json`, or name a trace with --trace");
}

int
cairn_explain_live(const char *agent, uint32_t number, bool json)
{
    struct cairn_question question = {
        .verb = "status", .asker = "explain", .timeout_ms = ANSWER_MS};
    const struct cairn_tree_value *list, *verdict = NULL;
    struct cairn_answer answer;
    struct timespec now;
    struct story story;
    int exit_code = cairn_find_and_ask("explain", agent, &question, &answer);

    if (exit_code)
        return exit_code;
    list = cairn_tree_find(&answer.tree, NULL, "detection.verdicts");
    while ((verdict = cairn_tree_next(&answer.tree, list, verdict)) != NULL)
        if (cairn_tree_u64(&answer.tree, verdict, "verdict", 0) == number)
            break;
    if (!verdict) {
        say_missing(&answer.tree, number);
        cairn_answer_fini(&answer);
        return CAIRN_EXIT_USAGE;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    story = (struct story){.tree = &answer.tree,
                           .verdict = verdict,
                           .now_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec};
    tell(&story);
    say_causes(&story);
    say_stacks(&story);
    say_plan(&story);
    if (!json)
        print_text(&story, number);
    else if (!print_json(&story, number))
        exit_code = CAIRN_EXIT_FAILED;
    cairn_answer_fini(&answer);
    return exit_code;
}
