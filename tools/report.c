/* tools/report.c - `cairn report`: where the job's time went, and the best interval between
 * snapshots. */
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/find_agent.h"
#include "tools/history_view.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { TIMEOUT_MS = 20000 };

static const char about[] =
    "Shows the goodput of the job: how much of the wall time was productive, how much went into "
    "steps that were done before, into waiting for snapshots and for stragglers, and how long the "
    "job was down. The parts add up to the wall time.\n"
    "\n"
    "The best interval between snapshots is Daly's estimate (FGCS 22(3), 2006) from what a "
    "snapshot "
    "made training wait and from the time between faults, as both were measured. It is never less "
    "than the time that protecting a generation takes. Before the first fault it is a lower "
    "bound.\n"
    "\n"
    "Exits 4 if nothing was trained.";

static const char examples[] = "  cairn report\n"
                               "  cairn report --since 24h\n"
                               "  cairn report -o json | jq .productive_seconds\n";

static void
print_part(const struct cairn_tree *tree, const char *name, const char *key, double wall)
{
    double seconds = cairn_tree_double(tree, NULL, key, 0);
    char shown[CAIRN_SHOWN_BYTES];

    printf("  %-24s %8.2f %%  %s\n", name, wall > 0 ? 100 * seconds / wall : 0,
           cairn_show_duration((uint64_t)(seconds * 1e9), shown));
}

static void
print_interval(const struct cairn_tree *tree)
{
    uint64_t best = cairn_tree_u64(tree, NULL, "best_every_steps", 0);
    uint64_t configured = cairn_tree_u64(tree, NULL, "configured_every_steps", 0);
    uint64_t faults = cairn_tree_u64(tree, NULL, "faults", 0);
    double seconds = cairn_tree_double(tree, NULL, "best_interval_seconds", 0);
    char between[CAIRN_SHOWN_BYTES], every[CAIRN_SHOWN_BYTES];

    cairn_show_duration(
        (uint64_t)(cairn_tree_double(tree, NULL, "between_faults_seconds", 0) * 1e9), between);
    printf("faults       %" PRIu64, faults);
    if (faults)
        printf(", one per %s of training\n", between);
    else
        printf(" in %s of training\n", between);
    printf("snapshots    each made training wait %.3g ms; protecting one took %.3g ms\n",
           cairn_tree_double(tree, NULL, "snapshot_cost_ms", 0),
           cairn_tree_double(tree, NULL, "protect_ms", 0));
    printf("interval     configured: ");
    if (configured)
        printf("every %" PRIu64 " step%s", configured, configured == 1 ? "" : "s");
    else
        printf("none");
    if (best == 0)
        printf("; best: unknown, no snapshot was measured\n");
    else
        printf("; best: %severy %" PRIu64 " step%s (%s)\n", faults ? "" : "at least ", best,
               best == 1 ? "" : "s", cairn_show_duration((uint64_t)(seconds * 1e9), every));
}

static void
print_report(const struct cairn_tree *tree, double wall)
{
    char shown[CAIRN_SHOWN_BYTES];

    printf("wall time    %s, %" PRIu64 " steps (%" PRIu64 " of them redone), of %.4g ms each\n",
           cairn_show_duration((uint64_t)(wall * 1e9), shown),
           cairn_tree_u64(tree, NULL, "steps", 0), cairn_tree_u64(tree, NULL, "redone_steps", 0),
           cairn_tree_double(tree, NULL, "step_ms", 0));
    print_part(tree, "productive", "productive_seconds", wall);
    print_part(tree, "redone", "redone_seconds", wall);
    print_part(tree, "waiting for snapshots", "snapshot_wait_seconds", wall);
    print_part(tree, "waiting for stragglers", "straggler_wait_seconds", wall);
    print_part(tree, "down", "down_seconds", wall);
    print_interval(tree);
}

int
cairn_verb_report(int argc, char **argv)
{
    const char *agent = NULL, *output = NULL, *since = NULL;
    bool json;
    const struct cairn_flag flags[] = {
        {"since", 0, "DURATION", "begin 90s, 30m, 24h or 7d ago", &since, NULL},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "report", "[--since DURATION] [--agent SOCKET] [-o table|json]",
        about,    examples,
        flags,    sizeof flags / sizeof *flags,
        NULL,     NULL};
    struct cairn_question question = {.verb = "report", .timeout_ms = TIMEOUT_MS};
    struct cairn_found found;
    struct cairn_answer answer;
    double wall;
    int exit_code;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if (since && !cairn_duration_parse(since, &question.since_ns))
        return cairn_usage_error(
            &usage, "--since %.40s: expected a duration of up to 365d, as 90s, 30m, 24h or 7d",
            since);
    exit_code = cairn_find_agent("report", agent, NULL, &found);
    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    exit_code = answer.exit_code;
    if (json)
        printf("%s\n", answer.text);
    if (!cairn_answer_refused("report", &answer)) {
        wall = cairn_tree_double(&answer.tree, NULL, "wall_seconds", 0);
        if (wall <= 0)
            exit_code = CAIRN_EXIT_LOST;
        if (!json && wall <= 0)
            printf("nothing was trained, as far as the agents know\n");
        else if (!json)
            print_report(&answer.tree, wall);
        (void)cairn_history_warn("report", &answer.tree);
    }
    cairn_answer_fini(&answer);
    return exit_code;
}
