/*
 * tools/explain_event.c - `cairn explain EVENT`: what the agents know of one event of the history,
 * its causes, and what came after.
 *
 * The kinds of events give the causes: a repair answers deaths and starts without memory, an epoch
 * those or an operator's restore, trainers resume in an epoch. The newest such event before it
 * counts as the cause.
 */
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/explain.h"
#include "tools/find_agent.h"
#include "tools/history_view.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 20000, CAUSES_MAX = 4, KIND_BYTES = 32 };

/* Which kinds of events lead to a kind. */
static const struct {
    const char *kind;
    const char *causes[CAUSES_MAX];
} led_to[] = {
    {"death", {"start"}},
    {"return", {"death", "start"}},
    {"repair", {"death", "start"}},
    {"restore", {"operator"}},
    {"verify", {"operator"}},
    {"epoch", {"operator", "start", "death"}},
    {"resume", {"epoch"}},
    {"training", {"resume", "epoch"}},
    {"trainer", {"death", "epoch"}},
    {"skip", {"death", "poison", "trainer"}},
    {"start", {"stop", "death"}},
    {"placement", {"verdict", "operator"}},
    {"cause", {"verdict"}},
    {"stop", {"operator"}},
};

struct events {
    const struct cairn_tree *tree;
    const struct cairn_tree_value **list;
    uint32_t count;
};

static const char *
kind_of(const struct events *events, uint32_t index, char kind[KIND_BYTES])
{
    return cairn_tree_text(events->tree, events->list[index], "kind", kind, KIND_BYTES);
}

static bool
leads_to(const char *cause, const char *kind)
{
    for (size_t i = 0; i < sizeof led_to / sizeof *led_to; i++)
        for (uint32_t c = 0; strcmp(led_to[i].kind, kind) == 0 && c < CAUSES_MAX; c++)
            if (led_to[i].causes[c] && strcmp(led_to[i].causes[c], cause) == 0)
                return true;
    return false;
}

/* Whether an operator's command can have been the cause. */
static bool
is_such_command(const struct events *events, uint32_t cause, const char *kind)
{
    char text[CAIRN_HISTORY_TEXT_BYTES];

    cairn_tree_text(events->tree, events->list[cause], "why", text, sizeof text);
    if (strcmp(kind, "epoch") == 0)
        return strstr(text, "cairn restore") || strstr(text, "cairn node");
    if (strcmp(kind, "placement") == 0)
        return strstr(text, "cairn replan");
    return strncmp(text, "cairn ", 6) == 0 && strncmp(text + 6, kind, strlen(kind)) == 0;
}

/* Deaths, starts and stops lead to what happens to the same node only; a cause that a node finds is
 * of one verdict. */
static bool
is_about_same(const struct events *events, uint32_t cause, uint32_t index)
{
    uint64_t left = cairn_tree_u64(events->tree, events->list[cause], "of_node", UINT64_MAX);
    uint64_t right = cairn_tree_u64(events->tree, events->list[index], "of_node", UINT64_MAX);
    char kind[KIND_BYTES], cause_kind[KIND_BYTES];

    kind_of(events, index, kind);
    kind_of(events, cause, cause_kind);
    if (strcmp(cause_kind, "operator") == 0)
        return is_such_command(events, cause, kind);
    if (strcmp(cause_kind, "start") == 0 || strcmp(cause_kind, "stop") == 0)
        left = cairn_tree_u64(events->tree, events->list[cause], "node", UINT64_MAX);
    if (strcmp(kind, "cause") == 0)
        return cairn_tree_u64(events->tree, events->list[cause], "subject", UINT64_MAX) ==
               cairn_tree_u64(events->tree, events->list[index], "subject", UINT64_MAX);
    if (strcmp(kind, "start") == 0)
        return left == cairn_tree_u64(events->tree, events->list[index], "node", UINT64_MAX);
    return (strcmp(kind, "death") != 0 && strcmp(kind, "return") != 0) || left == right;
}

/* The newest event before `index` that led to it; UINT32_MAX: none is known. */
static uint32_t
cause_of(const struct events *events, uint32_t index)
{
    char kind[KIND_BYTES], cause[KIND_BYTES];

    kind_of(events, index, kind);
    for (uint32_t i = index; i-- > 0;)
        if (leads_to(kind_of(events, i, cause), kind) && is_about_same(events, i, index))
            return i;
    return UINT32_MAX;
}

static void
print_value(const struct events *events, uint32_t index, const char *key, const char *name)
{
    uint64_t value = cairn_tree_u64(events->tree, events->list[index], key, UINT64_MAX);

    if (value != UINT64_MAX)
        printf("  %-10s %" PRIu64 "\n", name, value);
}

static void
print_facts(const struct events *events, uint32_t index)
{
    const struct cairn_tree *tree = events->tree;
    const struct cairn_tree_value *event = events->list[index], *seen = NULL;
    const struct cairn_tree_value *list = cairn_tree_find(tree, event, "seen_by");
    uint64_t now_ns = cairn_tree_u64(tree, NULL, "wall_ns", 0);
    uint64_t then_ns = cairn_tree_u64(tree, event, "wall_ns", 0);
    uint64_t bytes = cairn_tree_u64(tree, event, "bytes", 0);
    uint64_t took_ns = cairn_tree_u64(tree, event, "took_ns", 0);
    char shown[CAIRN_SHOWN_BYTES], text[CAIRN_HISTORY_TEXT_BYTES], *line = text;

    printf("  when       %s ago, on the clock of node %" PRIu64 "\n",
           cairn_show_duration(now_ns > then_ns ? now_ns - then_ns : 0, shown),
           cairn_tree_u64(tree, event, "node", 0));
    printf("  where      the node stood at epoch %" PRIu64 " step %" PRIu64 "\n",
           cairn_tree_u64(tree, event, "epoch", 0), cairn_tree_u64(tree, event, "step", 0));
    printf("  seen by    node");
    while ((seen = cairn_tree_next(tree, list, seen)) != NULL)
        printf(" %" PRIu64, cairn_tree_u64(tree, seen, "", 0));
    printf("\n");
    print_value(events, index, "count", "count");
    print_value(events, index, "rank", "rank");
    print_value(events, index, "subject", "subject");
    if (bytes)
        printf("  bytes      %s\n", cairn_show_bytes(bytes, shown));
    if (took_ns)
        printf("  took       %s\n", cairn_show_duration(took_ns, shown));
    cairn_tree_text(tree, event, "why", text, sizeof text);
    for (char *end; *line; line = end) {
        end = line + strcspn(line, ";");
        if (*end)
            *end++ = '\0';
        while (*line == ' ')
            line++;
        printf("  why        %s\n", line);
    }
}

static void
print_other(const struct events *events, uint32_t index, const char *how)
{
    char id[CAIRN_HISTORY_ID_BYTES], text[CAIRN_HISTORY_TEXT_BYTES];

    printf("  %-10s %s %s\n", how,
           cairn_tree_text(events->tree, events->list[index], "id", id, sizeof id),
           cairn_tree_text(events->tree, events->list[index], "text", text, sizeof text));
}

static void
print_event(const struct events *events, uint32_t index)
{
    char id[CAIRN_HISTORY_ID_BYTES], text[CAIRN_HISTORY_TEXT_BYTES];

    printf("Event %s: %s\n",
           cairn_tree_text(events->tree, events->list[index], "id", id, sizeof id),
           cairn_tree_text(events->tree, events->list[index], "text", text, sizeof text));
    print_facts(events, index);
    for (uint32_t cause = cause_of(events, index), i = 0; cause != UINT32_MAX && i < CAUSES_MAX;
         cause = cause_of(events, cause), i++)
        print_other(events, cause, i ? "before" : "because");
    for (uint32_t i = index + 1, shown = 0; i < events->count && shown < CAUSES_MAX; i++)
        if (cause_of(events, i) == index) {
            print_other(events, i, "led to");
            shown++;
        }
}

static void
print_json_event(const struct events *events, uint32_t index)
{
    const struct cairn_tree_value *event = events->list[index];
    uint32_t cause = cause_of(events, index);
    char id[CAIRN_HISTORY_ID_BYTES];

    printf("{\"schema\":1,\"event\":%.*s,\"because\":", (int)(event->end - event->begin),
           events->tree->text + event->begin);
    if (cause == UINT32_MAX)
        printf("null}\n");
    else
        printf("\"%s\"}\n",
               cairn_tree_text(events->tree, events->list[cause], "id", id, sizeof id));
}

static int
explain(const struct cairn_tree *tree, const char *id, bool json)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, NULL, "events"), *event = NULL;
    struct events events = {.tree = tree};
    char name[CAIRN_HISTORY_ID_BYTES], what[96];
    uint32_t found = UINT32_MAX;

    events.list = calloc((list ? list->count : 0) + 1u, sizeof *events.list);
    if (!events.list) {
        cairn_tool_error("explain", "out of memory", NULL, NULL);
        return CAIRN_EXIT_FAILED;
    }
    while ((event = cairn_tree_next(tree, list, event)) != NULL) {
        if (strcmp(cairn_tree_text(tree, event, "id", name, sizeof name), id) == 0)
            found = events.count;
        events.list[events.count++] = event;
    }
    if (found == UINT32_MAX) {
        snprintf(what, sizeof what, "%.40s: no such event, or it is not kept any more", id);
        cairn_tool_error("explain", what, NULL, "see `cairn history`, which names them");
    } else if (json) {
        print_json_event(&events, found);
    } else {
        print_event(&events, found);
    }
    free(events.list);
    return found == UINT32_MAX ? CAIRN_EXIT_USAGE : CAIRN_EXIT_OK;
}

int
cairn_explain_event(const char *agent, const char *id, bool json)
{
    struct cairn_question question = {
        .verb = "history", .asker = "explain", .timeout_ms = TIMEOUT_MS};
    struct cairn_found found;
    struct cairn_answer answer;
    int exit_code = cairn_find_agent("explain", agent, NULL, &found);

    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    exit_code = answer.exit_code;
    if (!cairn_answer_refused("explain", &answer))
        exit_code = explain(&answer.tree, id, json);
    cairn_answer_fini(&answer);
    return exit_code;
}
