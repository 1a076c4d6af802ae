/* tools/history.c - `cairn history`: what happened to the job, in causal order. */
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/find_agent.h"
#include "tools/history_view.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TIMEOUT_MS = 20000 };

static const char about[] =
    "Shows what happened to the job: commits, skipped generations and who blocked them, deaths, "
    "repairs and restores with their reasons, verdicts and their causes, placements, operators' "
    "commands, changes "
    "of "
    "the configuration, starts and stops of agents, poison, and failed spills. The agents' "
    "histories are merged in causal order: by epoch and step and each agent's own order. Clocks "
    "only "
    "decide between events that nothing else orders.\n"
    "\n"
    "Each agent keeps about a thousand events on its disk. Old commits thin out first. An event's "
    "name (NODE.NUMBER) goes to `cairn explain`.\n"
    "\n"
    "Exits 2 if an agent's history is damaged: it is shown as far as it is readable.";

static const char examples[] = "  cairn history                # everything that is kept\n"
                               "  cairn history --since 2h     # the last two hours\n"
                               "  cairn history --kind death,repair,restore\n"
                               "  cairn history -o json | jq '.events[].text'\n";

/* True if a comma-separated list has the word; NULL has all. */
static bool
has_word(const char *list, const char *word)
{
    size_t word_bytes = strlen(word);

    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, word, word_bytes) == 0 && (at[word_bytes] == ',' || !at[word_bytes]))
            return true;
    return !list;
}

static void
print_events(const struct cairn_tree *tree, const char *kinds)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, NULL, "events"), *event = NULL;
    struct cairn_history_days days = {0};
    uint32_t shown = 0;
    char kind[32];

    while ((event = cairn_tree_next(tree, list, event)) != NULL) {
        if (!has_word(kinds, cairn_tree_text(tree, event, "kind", kind, sizeof kind)))
            continue;
        cairn_history_print_line(tree, event, &days);
        shown++;
    }
    if (shown == 0)
        printf("the agents know no events\n");
}

int
cairn_verb_history(int argc, char **argv)
{
    const char *agent = NULL, *output = NULL, *since = NULL, *kinds = NULL;
    bool json;
    const struct cairn_flag flags[] = {
        {"since", 0, "DURATION", "begin 90s, 30m, 24h or 7d ago", &since, NULL},
        {"kind", 0, "KIND,...", "show only these kinds of events", &kinds, NULL},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "history", "[--since DURATION] [--kind KIND,...] [--agent SOCKET] [-o table|json]",
        about,     examples,
        flags,     sizeof flags / sizeof *flags,
        NULL,      NULL};
    struct cairn_question question = {.verb = "history", .timeout_ms = TIMEOUT_MS};
    struct cairn_found found;
    struct cairn_answer answer;
    int exit_code;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if (since && !cairn_duration_parse(since, &question.since_ns))
        return cairn_usage_error(
            &usage, "--since %.40s: expected a duration of up to 365d, as 90s, 30m, 24h or 7d",
            since);
    if (json && kinds)
        return cairn_usage_error(&usage, "--kind is for tables; JSON has all kinds");
    exit_code = cairn_find_agent("history", agent, NULL, &found);
    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    exit_code = answer.exit_code;
    if (json)
        printf("%s\n", answer.text);
    if (!cairn_answer_refused("history", &answer)) {
        if (!json)
            print_events(&answer.tree, kinds);
        if (cairn_history_warn("history", &answer.tree))
            exit_code = CAIRN_EXIT_WARN;
    }
    cairn_answer_fini(&answer);
    return exit_code;
}
