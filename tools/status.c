/* tools/status.c - `cairn status` on one screen, and `cairn snapshots`. */
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/find_agent.h"
#include "tools/metrics.h"
#include "tools/placement_view.h"
#include "tools/stack_view.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    STACKS_SHOWN = 4,
    STACK_BYTES = 512,
    SCREEN_LINES = 24,
    CHECKS_SHOWN = 4,
    UNCOVERED_SHOWN = 3,
    NODE_LINES_MIN = 2,
    ANSWER_MS = 10000
};

/* ---- status ---- */

static const char *
show_age(const struct cairn_tree *tree, const char *path, char out[CAIRN_SHOWN_BYTES])
{
    uint64_t age_ns = cairn_tree_u64(tree, NULL, path, UINT64_MAX);
    char shown[CAIRN_SHOWN_BYTES];

    if (age_ns == UINT64_MAX)
        snprintf(out, CAIRN_SHOWN_BYTES, "of unknown age");
    else
        snprintf(out, CAIRN_SHOWN_BYTES, "%.26s old", cairn_show_duration(age_ns, shown));
    return out;
}

static void
print_newest(const struct cairn_tree *tree)
{
    char bytes[CAIRN_SHOWN_BYTES], age[CAIRN_SHOWN_BYTES], from[16];
    uint64_t steps = cairn_tree_u64(tree, NULL, "lost_now.steps", 0);

    if (!cairn_tree_find(tree, NULL, "newest")) {
        printf("newest     none: no generation is committed yet\n");
        printf("lost now   everything since the start (step %" PRIu64 ")\n",
               cairn_tree_u64(tree, NULL, "lost_now.last_step", 0));
        return;
    }
    printf("newest     epoch %" PRIu64 " step %" PRIu64 ", %s in %s, %s\n",
           cairn_tree_u64(tree, NULL, "newest.epoch", 0),
           cairn_tree_u64(tree, NULL, "newest.step", 0),
           cairn_show_bytes(cairn_tree_u64(tree, NULL, "newest.bytes", 0), bytes),
           cairn_tree_text(tree, NULL, "newest.from", from, sizeof from),
           show_age(tree, "newest.age_ns", age));
    printf("lost now   %" PRIu64 " step%s, if all trainers died this moment\n", steps,
           steps == 1 ? "" : "s");
}

static void
print_protection(const struct cairn_tree *tree)
{
    int64_t survives = cairn_tree_i64(tree, NULL, "protection.survives_nodes_per_group", 0);
    uint64_t groups = cairn_tree_u64(tree, NULL, "protection.groups", 0);

    if (!cairn_tree_find(tree, NULL, "protection")) {
        printf("protected  against nothing in memory\n");
        return;
    }
    if (survives < 0)
        printf("protected  no longer: more parts are gone than the parity covers");
    else if (survives == 0)
        printf("protected  against dead trainers and agents, not against a lost node");
    else
        printf("protected  against dead trainers and agents, and any %" PRId64 " lost node%s%s",
               survives, survives == 1 ? "" : "s", groups == 1 ? "" : " of each group");
    if (survives > 0)
        printf("; any one failure domain: %s",
               cairn_tree_bool(tree, NULL, "protection.survives_any_one_domain", false) ? "yes"
                                                                                        : "no");
    printf("\n");
}

static void
print_numbers(const struct cairn_tree *tree)
{
    char a[CAIRN_SHOWN_BYTES], b[CAIRN_SHOWN_BYTES], c[CAIRN_SHOWN_BYTES];
    uint64_t reserved = cairn_tree_u64(tree, NULL, "memory.reserved_bytes", 0);
    uint64_t state = cairn_tree_u64(tree, NULL, "memory.state_bytes", 0);
    double seconds = cairn_tree_double(tree, NULL, "restore_estimate_seconds", -1);

    if (cairn_tree_u64(tree, NULL, "stall.fence_count", 0))
        printf("stall      of training per step: p50 %s, p99 %s, worst %s\n",
               cairn_show_duration(cairn_tree_u64(tree, NULL, "stall.fence_ns_p50", 0), a),
               cairn_show_duration(cairn_tree_u64(tree, NULL, "stall.fence_ns_p99", 0), b),
               cairn_show_duration(cairn_tree_u64(tree, NULL, "stall.fence_ns_max", 0), c));
    else
        printf("stall      not measured yet\n");
    printf("snapshots  %" PRIu64 " taken, %" PRIu64 " skipped, %" PRIu64
           " failed; one is due every %" PRIu64 " steps\n",
           cairn_tree_u64(tree, NULL, "stall.snapshots_captured", 0),
           cairn_tree_u64(tree, NULL, "stall.snapshots_skipped", 0),
           cairn_tree_u64(tree, NULL, "stall.snapshots_failed", 0),
           cairn_tree_u64(tree, NULL, "stall.every_steps", 0));
    printf("memory     %s reserved", cairn_show_bytes(reserved, a));
    if (state)
        printf(" for %s of state (%.2f x)", cairn_show_bytes(state, b),
               (double)reserved / (double)state);
    printf("\nspilled    ");
    if (cairn_tree_find(tree, NULL, "spilled"))
        printf("epoch %" PRIu64 " step %" PRIu64 ", %s, %s\n",
               cairn_tree_u64(tree, NULL, "spilled.epoch", 0),
               cairn_tree_u64(tree, NULL, "spilled.step", 0),
               cairn_show_bytes(cairn_tree_u64(tree, NULL, "spilled.bytes", 0), a),
               show_age(tree, "spilled.age_ns", b));
    else
        printf("none\n");
    if (seconds >= 0)
        printf("restore    about %.1f s to rebuild one lost node's part (from the measured protect "
               "time)\n",
               seconds);
}

static void
print_covered(const struct cairn_tree *tree)
{
    static const struct {
        const char *tensors, *bytes, *name;
    } kinds[] = {{"coverage.tensors.parameter", "coverage.bytes.parameter", "parameters"},
                 {"coverage.tensors.optimizer", "coverage.bytes.optimizer", "optimizer state"},
                 {"coverage.tensors.buffer", "coverage.bytes.buffer", "buffers"},
                 {"coverage.tensors.opaque", "coverage.bytes.opaque", "other"}};
    uint64_t ranks = cairn_tree_u64(tree, NULL, "coverage.ranks_known", 0);
    bool any = false;

    printf("covered   ");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        uint64_t tensors = cairn_tree_u64(tree, NULL, kinds[i].tensors, 0);
        char bytes[CAIRN_SHOWN_BYTES];

        if (tensors == 0)
            continue;
        printf("%s %s %" PRIu64 " (%s)", any ? "," : "", kinds[i].name, tensors,
               cairn_show_bytes(cairn_tree_u64(tree, NULL, kinds[i].bytes, 0), bytes));
        any = true;
    }
    printf("%s on %" PRIu64 " rank%s\n", any ? "" : " nothing", ranks, ranks == 1 ? "" : "s");
}

/* One thing; `label` is "uncovered" on the first line. */
static void
print_uncovered_item(const struct cairn_tree *tree, const struct cairn_tree_value *item,
                     const char *label)
{
    uint64_t ranks = cairn_tree_u64(tree, item, "ranks", 1);
    char kind[16], name[256], reason[256], where[48];

    if (ranks == 1)
        snprintf(where, sizeof where, "rank %" PRIu64, cairn_tree_u64(tree, item, "rank", 0));
    else
        snprintf(where, sizeof where, "%" PRIu64 " ranks", ranks);
    cairn_tree_text(tree, item, "reason", reason, sizeof reason);
    if (!cairn_tree_find(tree, item, "kind"))
        printf("%-10s everything on %s, no snapshots are taken: %s\n", label, where, reason);
    else
        printf("%-10s %s %s (%s): %s\n", label,
               cairn_tree_text(tree, item, "kind", kind, sizeof kind),
               cairn_tree_text(tree, item, "name", name, sizeof name), where, reason);
}

/* What the job's snapshots hold and lack, in at most `room` (3 or more) lines; returns their
 * number. */
static uint32_t
print_coverage(const struct cairn_tree *tree, uint32_t room)
{
    const struct cairn_tree_value *refusals = cairn_tree_find(tree, NULL, "coverage.refusals");
    const struct cairn_tree_value *uncovered = cairn_tree_find(tree, NULL, "coverage.uncovered");
    const struct cairn_tree_value *lists[] = {refusals, uncovered}, *item;
    uint64_t ranks = cairn_tree_u64(tree, NULL, "coverage.ranks_known", 0);
    uint64_t reporting = cairn_tree_u64(tree, NULL, "coverage.ranks_reporting", 0);
    uint64_t more = cairn_tree_u64(tree, NULL, "coverage.left_out", 0);
    uint32_t shown = 0, most = room - 2 < UNCOVERED_SHOWN ? room - 2 : UNCOVERED_SHOWN;

    if (ranks == 0)
        return 0;
    print_covered(tree);
    for (size_t i = 0; i < 2; i++)
        for (item = NULL; (item = cairn_tree_next(tree, lists[i], item)) != NULL;)
            if (shown < most)
                print_uncovered_item(tree, item, shown++ ? "" : "uncovered");
            else
                more++;
    if (more) {
        printf("%-10s %" PRIu64 " more: cairn status -o json\n", shown ? "" : "uncovered", more);
        return shown + 2;
    }
    if (shown)
        return shown + 1;
    if (reporting == ranks)
        printf("uncovered  nothing that the trainers know of\n");
    else
        printf("uncovered  unknown: %" PRIu64 " of %" PRIu64 " ranks do not say\n",
               ranks - reporting, ranks);
    return 2;
}

/* How fast the job goes, by which node; returns the number of lines. */
static uint32_t
print_speed(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, NULL, "detection.verdicts"),
                                  *item = NULL;
    uint64_t world = cairn_tree_u64(tree, NULL, "detection.world", 0);
    uint64_t step_ns = cairn_tree_u64(tree, NULL, "detection.step_ns", 0);
    uint32_t open = 0;
    char shown[CAIRN_SHOWN_BYTES];

    while ((item = cairn_tree_next(tree, list, item)))
        open += cairn_tree_bool(tree, item, "open", false);
    if (world == 0 && open == 0)
        return 0;
    printf("speed      ");
    if (step_ns)
        printf("steps of %s, ", cairn_show_duration(step_ns, shown));
    printf("seen on %" PRIu64 " of %" PRIu64 " ranks: ",
           cairn_tree_u64(tree, NULL, "detection.ranks_seen", 0), world);
    if (open)
        printf("%" PRIu32 " verdict%s below\n", open, open == 1 ? "" : "s");
    else
        printf("%s\n", cairn_tree_bool(tree, NULL, "detection.calibrated", false)
                           ? "nothing is slow"
                           : "the normal is being learned");
    return 1;
}

/* Where the ranks of a hanging job are, by their Python stacks; returns the number of lines. */
static uint32_t
print_stacks(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, NULL, "detection.stacks"),
                                  *item = NULL;
    char text[STACK_BYTES];
    uint32_t lines = 0;

    while (lines < STACKS_SHOWN && (item = cairn_tree_next(tree, list, item))) {
        printf("%-10s %s\n", lines == 0 ? "stacks" : "",
               cairn_stack_describe(tree, item, text, sizeof text));
        lines++;
    }
    return lines;
}

/* The advice about the plan; returns the number of lines. */
static uint32_t
print_advice(const struct cairn_tree *tree)
{
    char what[512];

    if (!cairn_tree_find(tree, NULL, "replan.advice.what"))
        return 0;
    printf("plan       advice: %s\n",
           cairn_tree_text(tree, NULL, "replan.advice.what", what, sizeof what));
    return 1;
}

/* The last offered placement, and the one that waits for approval; returns the number of lines. */
static uint32_t
print_offer(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *offer = cairn_tree_find(tree, NULL, "replan.offer");
    const struct cairn_tree_value *waiting = cairn_tree_find(tree, NULL, "replan.proposal");
    uint64_t number;

    if (offer) {
        printf("plan       offer %" PRIu64 ": ", cairn_tree_u64(tree, offer, "number", 0));
        cairn_placement_print(tree, offer);
        printf(", taken by %" PRIu64 " of %" PRIu64 " ranks; %" PRIu64 " of %" PRIu64
               " changes today\n",
               cairn_tree_u64(tree, offer, "ranks_taken", 0),
               cairn_tree_u64(tree, offer, "ranks_asking", 0),
               cairn_tree_u64(tree, offer, "changes_today", 0),
               cairn_tree_u64(tree, offer, "changes_per_day", 0));
    }
    if (waiting) {
        number = cairn_tree_u64(tree, waiting, "number", 0);
        printf("plan       proposal %" PRIu64 ": ", number);
        cairn_placement_print(tree, waiting);
        printf("; waits for `cairn replan --approve %" PRIu64 "`\n", number);
    }
    return (offer ? 1u : 0u) + (waiting ? 1u : 0u);
}

/* What the scrubs of all nodes found; returns the number of lines. */
static uint32_t
print_scrub(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *nodes = cairn_tree_find(tree, NULL, "nodes"), *node = NULL;
    uint64_t age_ns = 0, found = 0, repaired = 0;
    bool all = true;
    char age[CAIRN_SHOWN_BYTES];

    while ((node = cairn_tree_next(tree, nodes, node))) {
        if (!cairn_tree_bool(tree, node, "answers", false))
            continue;
        found += cairn_tree_u64(tree, node, "scrub.found", 0);
        repaired += cairn_tree_u64(tree, node, "scrub.repaired", 0);
        if (cairn_tree_u64(tree, node, "scrub.passes", 0) == 0)
            all = false;
        else if (cairn_tree_u64(tree, node, "scrub.pass_age_ns", 0) > age_ns)
            age_ns = cairn_tree_u64(tree, node, "scrub.pass_age_ns", 0);
    }
    if (!found && (!all || !age_ns))
        return 0;
    printf("scrub      ");
    if (all)
        printf("every node compared all that it holds with its checksums within the last %s; ",
               cairn_show_duration(age_ns, age));
    printf("%" PRIu64 " damaged blocks found, %" PRIu64 " repaired\n", found, repaired);
    return 1;
}

static void
print_checks(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *checks = cairn_tree_find(tree, NULL, "checks"), *check = NULL;
    uint32_t shown = 0;

    while ((check = cairn_tree_next(tree, checks, check)) && shown < CHECKS_SHOWN) {
        char level[16], code[32], what[512], fix[256];

        cairn_tree_text(tree, check, "level", level, sizeof level);
        cairn_print_coloured(stdout, strcmp(level, "CRITICAL") == 0 ? "1;31" : "33", level);
        printf(" %s: %s\n  do: %s\n", cairn_tree_text(tree, check, "code", code, sizeof code),
               cairn_tree_text(tree, check, "what", what, sizeof what),
               cairn_tree_text(tree, check, "fix", fix, sizeof fix));
        shown++;
    }
    if (checks && checks->count > shown)
        printf("%" PRIu32 " more: cairn status -o json\n", checks->count - shown);
}

static void
print_node(const struct cairn_tree *tree, const struct cairn_tree_value *node)
{
    char complete[48] = "-", trainers[32], bytes[CAIRN_SHOWN_BYTES], address[64];
    bool answers = cairn_tree_bool(tree, node, "answers", false);

    cairn_tree_text(tree, node, "address", address, sizeof address);
    if (!answers) {
        printf("%5" PRIu64 "  %-21.21s  %s\n", cairn_tree_u64(tree, node, "node", 0), address,
               cairn_tree_bool(tree, node, "removed", false) ? "removed"
               : cairn_tree_bool(tree, node, "alive", false) ? "no answer"
                                                             : "silent");
        return;
    }
    if (cairn_tree_find(tree, node, "complete"))
        snprintf(complete, sizeof complete, "%" PRIu64 ":%" PRIu64,
                 cairn_tree_u64(tree, node, "complete.epoch", 0),
                 cairn_tree_u64(tree, node, "complete.step", 0));
    snprintf(trainers, sizeof trainers, "%" PRIu64 "/%" PRIu64,
             cairn_tree_u64(tree, node, "trainers", 0),
             cairn_tree_u64(tree, node, "local_ranks", 0));
    printf("%5" PRIu64 "  %-21.21s  %-9s  %-8s  %-14s  %s%s\n",
           cairn_tree_u64(tree, node, "node", 0), address, "alive", trainers, complete,
           cairn_show_bytes(cairn_tree_u64(tree, node, "reserved_bytes", 0), bytes),
           cairn_tree_bool(tree, node, "spare", false) ? "  spare" : "");
}

/* Silent nodes first, then as many as fit the screen. */
static void
print_nodes(const struct cairn_tree *tree, uint32_t lines)
{
    const struct cairn_tree_value *nodes = cairn_tree_find(tree, NULL, "nodes"), *node;
    uint32_t shown = 0, total = nodes ? nodes->count : 0;

    if (total > lines)
        lines--; /* for the line that tells how many are left out */
    printf(" node  address                state      trainers  newest         memory\n");
    for (int answers = 0; answers < 2; answers++) {
        node = NULL;
        while ((node = cairn_tree_next(tree, nodes, node)) && shown < lines)
            if (cairn_tree_bool(tree, node, "answers", false) == (answers == 1)) {
                print_node(tree, node);
                shown++;
            }
    }
    if (total > shown)
        printf("       and %" PRIu32 " more: cairn status -o json\n", total - shown);
}

static void
print_status(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *checks = cairn_tree_find(tree, NULL, "checks");
    uint32_t count = checks ? checks->count : 0;
    uint32_t taken =
        10 + 2 * (count < CHECKS_SHOWN ? count : CHECKS_SHOWN) + (count > CHECKS_SHOWN);
    char health[16], job[64];

    cairn_tree_text(tree, NULL, "health", health, sizeof health);
    cairn_print_coloured(stdout,
                         strcmp(health, "OK") == 0     ? "32"
                         : strcmp(health, "WARN") == 0 ? "33"
                                                       : "1;31",
                         health);
    printf("  job %s, epoch %" PRIu64 ", step %" PRIu64 "; %" PRIu64 " of %" PRIu64
           " nodes answer, %" PRIu64 " trainers\n",
           cairn_tree_text(tree, NULL, "job", job, sizeof job),
           cairn_tree_u64(tree, NULL, "epoch", 0),
           cairn_tree_u64(tree, NULL, "lost_now.last_step", 0),
           cairn_tree_u64(tree, NULL, "nodes_answering", 0),
           cairn_tree_u64(tree, NULL, "nodes_configured", 0),
           cairn_tree_u64(tree, NULL, "trainers", 0));
    print_newest(tree);
    print_protection(tree);
    print_numbers(tree);
    taken += print_speed(tree);
    taken += print_stacks(tree);
    taken += print_scrub(tree);
    taken += print_advice(tree);
    taken += print_offer(tree);
    taken += print_coverage(tree, SCREEN_LINES - taken - NODE_LINES_MIN);
    print_checks(tree);
    print_nodes(tree, SCREEN_LINES - taken);
}

static const char status_about[] =
    "Shows on one screen what the job is protected against, how old the newest generation is, what "
    "a failure would lose now, what protection costs, which ranks are slow, and what to do.\n"
    "\n"
    "Exits 0 for OK, 2 for WARN, 3 for CRITICAL.";

int
cairn_verb_status(int argc, char **argv)
{
    const char *agent = NULL, *job = NULL, *output = NULL;
    const struct cairn_flag flags[] = {
        {"job", 'j', "JOB", "ask the agent of this job, and fail if there is none", &job, NULL},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json|metrics",
         "print a table (default), JSON, or text for Prometheus", &output, NULL},
    };
    const struct cairn_usage usage = {
        "status",
        "[--job JOB] [--agent SOCKET] [-o table|json|metrics]",
        status_about,
        "  cairn status\n  cairn status -o json | python3 -m json.tool\n"
        "  cairn status -o metrics > /var/lib/node_exporter/cairn.prom\n",
        flags,
        sizeof flags / sizeof *flags,
        NULL,
        NULL};
    struct cairn_question question = {.verb = "status", .timeout_ms = ANSWER_MS};
    struct cairn_found found;
    struct cairn_answer answer;
    char served[128];
    int exit_code;
    bool json = false, metrics;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    metrics = output && strcmp(output, "metrics") == 0;
    if (!metrics && !cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table, json or metrics", output);
    exit_code = cairn_find_agent("status", agent, job, &found);
    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    cairn_tree_text(&answer.tree, NULL, "job", served, sizeof served);
    exit_code = answer.exit_code;
    if (cairn_answer_refused("status", &answer)) {
        ;
    } else if (job && strcmp(job, served) != 0) {
        fprintf(stderr,
                "cairn status: %s: the agent serves job %s, not %s; name that job's agent with "
                "--agent\n",
                found.socket, served, job);
        exit_code = CAIRN_EXIT_PEER;
    } else if (metrics) {
        cairn_metrics_print(stdout, &answer.tree, CAIRN_METRICS_PROMETHEUS);
    } else if (json) {
        printf("%s\n", answer.text);
    } else {
        print_status(&answer.tree);
    }
    cairn_answer_fini(&answer);
    return exit_code;
}

/* ---- snapshots ---- */

static void
print_snapshots(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, NULL, "generations"), *entry = NULL;

    if (!list || list->count == 0) {
        printf("no generation yet\n");
        return;
    }
    printf("%-16s %-11s %12s %14s  %s\n", "generation", "state", "bytes", "age", "where");
    while ((entry = cairn_tree_next(tree, list, entry))) {
        char name[48], state[16], where[512], why[512], bytes[CAIRN_SHOWN_BYTES],
            age[CAIRN_SHOWN_BYTES] = "-";
        uint64_t age_ns = cairn_tree_u64(tree, entry, "age_ns", UINT64_MAX);
        uint64_t parts = cairn_tree_u64(tree, entry, "parts", UINT64_MAX);

        if (age_ns != UINT64_MAX)
            cairn_show_duration(age_ns, age);
        snprintf(name, sizeof name, "%" PRIu64 ":%" PRIu64, cairn_tree_u64(tree, entry, "epoch", 0),
                 cairn_tree_u64(tree, entry, "step", 0));
        printf("%-16s %-11s %12s %14s  %s", name,
               cairn_tree_text(tree, entry, "state", state, sizeof state),
               cairn_show_bytes(cairn_tree_u64(tree, entry, "bytes", 0), bytes), age,
               cairn_tree_text(tree, entry, "where", where, sizeof where));
        if (parts != UINT64_MAX)
            printf(", %" PRIu64 " complete part%s", parts, parts == 1 ? "" : "s");
        if (cairn_tree_find(tree, entry, "why"))
            printf(": %s", cairn_tree_text(tree, entry, "why", why, sizeof why));
        printf("\n");
    }
}

static const char snapshots_about[] =
    "Lists the job's generations, newest first: epoch:step, state (open, complete, committed, "
    "rebuilding, spilled, incomplete, poisoned), bytes, age, and location. A poisoned generation "
    "holds infinities or NaN, or a rank rejected it; it is given up unless `on_poison` is allow.";

int
cairn_verb_snapshots(int argc, char **argv)
{
    const char *agent = NULL, *output = NULL;
    const struct cairn_flag flags[] = {
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {"snapshots",
                                      "[--agent SOCKET] [-o table|json]",
                                      snapshots_about,
                                      "  cairn snapshots\n  cairn snapshots -o json\n",
                                      flags,
                                      sizeof flags / sizeof *flags,
                                      NULL,
                                      NULL};
    struct cairn_question question = {.verb = "snapshots", .timeout_ms = ANSWER_MS};
    struct cairn_found found;
    struct cairn_answer answer;
    int exit_code;
    bool json;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    exit_code = cairn_find_agent("snapshots", agent, NULL, &found);
    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    exit_code = answer.exit_code;
    if (cairn_answer_refused("snapshots", &answer)) {
        ;
    } else if (json) {
        printf("%s\n", answer.text);
    } else {
        print_snapshots(&answer.tree);
    }
    cairn_answer_fini(&answer);
    return exit_code;
}
