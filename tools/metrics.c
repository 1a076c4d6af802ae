/* tools/metrics.c - a status as metrics; see metrics.h. */
#include "tools/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { RATES_MAX = 512 };

struct page {
    FILE *stream;
    const struct cairn_tree *status;
    enum cairn_metrics_format format;
    char job[256];      /* escaped */
    const char *family; /* that put adds samples to */
    const char *suffix; /* of their names */
};

/* Begins a family. OpenMetrics gives a counter's family a name without the suffix of its samples;
 * Prometheus' older format has no families, and gives each name a type. */
static void
begin(struct page *page, const char *family, const char *type, const char *help)
{
    page->family = family;
    page->suffix = strcmp(type, "counter") == 0 ? "_total" : "";
    for (uint32_t i = 0; i < 2; i++)
        fprintf(page->stream, "# %s %s%s %s\n", i ? "TYPE" : "HELP", family,
                page->format == CAIRN_METRICS_OPENMETRICS ? "" : page->suffix, i ? type : help);
}

/* One sample; `label` NULL: that of the job alone. Labels but the job's need no escaping: they are
 * ours. */
static void
put(const struct page *page, const char *label, const char *value, double number)
{
    if (!isfinite(number))
        return;
    fprintf(page->stream, "%s%s{job=\"%s\"", page->family, page->suffix, page->job);
    if (label)
        fprintf(page->stream, ",%s=\"%s\"", label, value);
    fprintf(page->stream, "} %.17g\n", number);
}

/* The number at a path, NaN where there is none. */
static double
number_at(const struct page *page, const char *path)
{
    return cairn_tree_double(page->status, NULL, path, NAN);
}

static void
escape(const char *text, char *out, size_t out_bytes)
{
    size_t used = 0;

    for (; *text && used + 3 < out_bytes; text++) {
        if (*text == '"' || *text == '\\' || *text == '\n')
            out[used++] = '\\';
        out[used++] = *text == '\n' ? 'n' : *text;
    }
    out[used] = '\0';
}

/* The findings of a check's code, at the first of them: a page with a duplicate sample is refused
 * as a whole. */
static void
put_check(const struct page *page, const struct cairn_tree_value *checks,
          const struct cairn_tree_value *check)
{
    const struct cairn_tree_value *each = NULL;
    bool before = true;
    uint32_t count = 0;
    char code[64], other[64];

    cairn_tree_text(page->status, check, "code", code, sizeof code);
    while ((each = cairn_tree_next(page->status, checks, each))) {
        before &= each != check;
        if (strcmp(cairn_tree_text(page->status, each, "code", other, sizeof other), code) != 0)
            continue;
        if (before)
            return;
        count++;
    }
    put(page, "code", code, count);
}

static void
put_health(struct page *page)
{
    const struct cairn_tree_value *checks = cairn_tree_find(page->status, NULL, "checks"),
                                  *check = NULL;
    char health[16];

    cairn_tree_text(page->status, NULL, "health", health, sizeof health);
    begin(page, "cairn_health", "gauge", "0 OK, 1 WARN, 2 CRITICAL, as cairn status says.");
    put(page, NULL, NULL, strcmp(health, "OK") == 0 ? 0 : strcmp(health, "WARN") == 0 ? 1 : 2);
    begin(page, "cairn_check", "gauge", "How many findings of each kind cairn status has.");
    while ((check = cairn_tree_next(page->status, checks, check)))
        put_check(page, checks, check);
}

/* A number of the status, or of one of its nodes. */
struct number {
    const char *family, *type, *path;
    double unit; /* of the status, in the metric's base unit */
    const char *help;
};

static void
put_numbers(struct page *page)
{
    static const struct number numbers[] = {
        {"cairn_newest_step", "gauge", "newest.step", 1,
         "Step of the newest committed generation."},
        {"cairn_newest_age_seconds", "gauge", "newest.age_ns", 1e-9,
         "Age of the newest committed generation."},
        {"cairn_protect_seconds", "gauge", "newest.protect_ns", 1e-9,
         "From the first copy of the newest committed generation until it was committed."},
        {"cairn_restore_estimate_seconds", "gauge", "restore_estimate_seconds", 1,
         "How long a restore would take, roughly."},
        {"cairn_lost_now_steps", "gauge", "lost_now.steps", 1,
         "Steps that would be lost if all trainers died now."},
        {"cairn_survives_nodes", "gauge", "protection.survives_nodes_per_group", 1,
         "Further nodes of every group that may be lost now."},
        {"cairn_missing_parts", "gauge", "protection.missing_parts", 1,
         "Parts of the newest generation that are lost and not rebuilt yet."},
        {"cairn_nodes", "gauge", "nodes_configured", 1, "Nodes of the job, spares included."},
        {"cairn_nodes_answering", "gauge", "nodes_answering", 1,
         "Nodes whose agents answered for this page."},
        {"cairn_trainers", "gauge", "trainers", 1, "Trainers that are attached."},
        {"cairn_memory_reserved_bytes", "gauge", "memory.reserved_bytes", 1,
         "Memory of all agents, for the state, its parity and buffers."},
        {"cairn_state_bytes", "gauge", "memory.state_bytes", 1, "Bytes of a generation."},
        {"cairn_dropped_messages", "counter", "dropped_messages", 1,
         "Messages between agents that were dropped: malformed, or of another session or epoch."},
        {"cairn_commit_blocked_seconds", "gauge", "blocked_ms", 1e-3,
         "How long the generation that is due has waited for a member."},
        {"cairn_spills_given_up", "counter", "spills_given_up", 1,
         "Spills given up because a disk did not answer."},
        {"cairn_analysed_ranks", "gauge", "detection.ranks_seen", 1,
         "Ranks whose timing is analysed."},
        {"cairn_timing_records", "counter", "detection.records", 1,
         "Timing records read, since the agents' start."},
        {"cairn_timing_records_lost", "counter", "detection.records_lost", 1,
         "Timing records lost in full rings, or beyond what is kept apart."},
        {"cairn_timing_reports_dropped", "counter", "detection.reports_dropped", 1,
         "Parcels of reports of ranks that the analysis had no room for, or did not take in time, "
         "since the agents' start."},
        {"cairn_replan_plans", "counter", "replan.plans_made", 1,
         "Plans made for changes of rates, since the analysing agent's start."},
        {"cairn_replan_cost_seconds", "gauge", "replan.advice.cost_ms", 1e-3,
         "How long training would stand still for the advised plan."},
    };

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double number = number_at(page, numbers[i].path);

        if (isnan(number))
            continue;
        begin(page, numbers[i].family, numbers[i].type, numbers[i].help);
        put(page, NULL, NULL, number * numbers[i].unit);
    }
}

/* Each node's agent about itself. Silent agents have `up` alone. */
static void
put_nodes(struct page *page)
{
    static const struct number numbers[] = {
        {"cairn_node_up", "gauge", "answers", 1, "Whether the node's agent answers."},
        {"cairn_node_uptime_seconds", "gauge", "uptime_ns", 1e-9, "Since the agent's start."},
        {"cairn_node_trainers", "gauge", "trainers", 1, "Trainers that are attached there."},
        {"cairn_node_peers", "gauge", "peers", 1, "Other agents that it has a session with."},
        {"cairn_node_sent_bytes", "counter", "sent_bytes", 1,
         "Sent to other agents since its start."},
        {"cairn_node_received_bytes", "counter", "received_bytes", 1,
         "Received from other agents since its start."},
        {"cairn_node_sent_messages", "counter", "sent_messages", 1,
         "Messages sent to other agents since its start."},
        {"cairn_node_sent_block_bytes", "counter", "sent_block_bytes", 1,
         "State and parity sent to other agents since its start."},
        {"cairn_node_refused_connections", "counter", "refused_connections", 1,
         "Connections that proved no key and no certificate, since the agent's start."},
        {"cairn_node_ignored_connections", "counter", "ignored_connections", 1,
         "Tries to connect from ignored addresses, since the agent's start."},
        {"cairn_node_ignored_addresses", "gauge", "ignored_addresses", 1,
         "Addresses that are ignored now: their connections cost much and proved nothing."},
        {"cairn_node_memory_reserved_bytes", "gauge", "reserved_bytes", 1, "Memory of the agent."},
        {"cairn_node_disk_free_bytes", "gauge", "disk_free_bytes", 1,
         "Free for the agent's own directory."},
        {"cairn_node_scrubbed_bytes", "counter", "scrub.bytes", 1,
         "Compared with their checksums by the scrub since the agent's start."},
        {"cairn_node_scrub_passes", "counter", "scrub.passes", 1,
         "Passes of the scrub over all that the node holds."},
        {"cairn_node_scrub_pass_age_seconds", "gauge", "scrub.pass_age_ns", 1e-9,
         "Since the scrub's last full pass ended."},
        {"cairn_node_scrub_found_blocks", "counter", "scrub.found", 1,
         "Damaged blocks and records that the scrub found."},
        {"cairn_node_scrub_repaired_blocks", "counter", "scrub.repaired", 1,
         "Of these, what was repaired."},
        {"cairn_node_scrub_unrepairable_blocks", "gauge", "scrub.unrepairable", 1,
         "Damage that is there now and that repairs have left."},
        {"cairn_node_spill_failing_seconds", "gauge", "spill_failed_ms", 1e-3,
         "Since when the spills that it leads fail; 0: the last one did not."},
        {"cairn_node_spill_stuck_seconds", "gauge", "spill_stuck_ms", 1e-3,
         "Since when its spill directory does not answer; 0: it does."},
    };
    const struct cairn_tree_value *nodes = cairn_tree_find(page->status, NULL, "nodes");

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const struct cairn_tree_value *node = NULL;

        begin(page, numbers[i].family, numbers[i].type, numbers[i].help);
        while ((node = cairn_tree_next(page->status, nodes, node))) {
            bool answers = cairn_tree_bool(page->status, node, "answers", false);
            char name[24];

            snprintf(name, sizeof name, "%" PRIu64, cairn_tree_u64(page->status, node, "node", 0));
            put(page, "node", name,
                i == 0 ? answers
                       : numbers[i].unit *
                             cairn_tree_double(page->status, node, numbers[i].path, NAN));
        }
    }
}

static void
put_trainers(struct page *page)
{
    static const char *const results[] = {"captured", "skipped", "failed"};
    static const char *const quantiles[] = {"p50", "p99", "max"};
    char path[64];

    begin(page, "cairn_snapshots", "counter", "Snapshots of the trainers that are attached.");
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        snprintf(path, sizeof path, "stall.snapshots_%s", results[i]);
        put(page, "result", results[i], number_at(page, path));
    }
    begin(page, "cairn_fence_seconds", "gauge",
          "How long the slowest trainer waited at its fences for a copy.");
    for (size_t i = 0; i < sizeof quantiles / sizeof *quantiles; i++) {
        snprintf(path, sizeof path, "stall.fence_ns_%s", quantiles[i]);
        put(page, "of", quantiles[i], number_at(page, path) / 1e9);
    }
}

/* Things by kind, each once however many ranks have it. */
static double
uncovered_of(const struct page *page, const char *kind)
{
    const struct cairn_tree_value *list = cairn_tree_find(page->status, NULL, "coverage.uncovered"),
                                  *item = NULL;
    uint32_t count = 0;
    char its[16];

    while ((item = cairn_tree_next(page->status, list, item)))
        count += strcmp(cairn_tree_text(page->status, item, "kind", its, sizeof its), kind) == 0;
    return count;
}

static void
put_coverage(struct page *page)
{
    static const char *const kinds[] = {"parameter", "optimizer", "buffer", "opaque"};
    static const char *const ranks[] = {"known", "reporting", "refusing"};
    char path[64];

    begin(page, "cairn_covered_bytes", "gauge", "Bytes that the ranks capture of a snapshot.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(path, sizeof path, "coverage.bytes.%s", kinds[i]);
        put(page, "kind", kinds[i], number_at(page, path));
    }
    begin(page, "cairn_covered_tensors", "gauge",
          "Tensors that are registered, summed up over the ranks.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(path, sizeof path, "coverage.tensors.%s", kinds[i]);
        put(page, "kind", kinds[i], number_at(page, path));
    }
    begin(page, "cairn_uncovered", "gauge", "Things that no snapshot holds, as the trainers tell.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        put(page, "kind", kinds[i], uncovered_of(page, kinds[i]));
    put(page, "kind", "not listed", number_at(page, "coverage.left_out"));
    begin(page, "cairn_ranks", "gauge",
          "Ranks that are known, that tell what they do not cover, that refuse snapshots.");
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        snprintf(path, sizeof path, "coverage.ranks_%s", ranks[i]);
        put(page, "state", ranks[i], number_at(page, path));
    }
}

/* The rate of each rank that a verdict calls slow; once per rank. */
static void
put_rates(struct page *page, const struct cairn_tree_value *list)
{
    const struct cairn_tree_value *item = NULL, *each;
    uint64_t said[RATES_MAX];
    uint32_t count = 0;

    begin(page, "cairn_straggling_rate", "gauge",
          "How many times longer than normal a rank computes, while a verdict is open.");
    while ((item = cairn_tree_next(page->status, list, item))) {
        const struct cairn_tree_value *ranks = cairn_tree_find(page->status, item, "ranks");
        char kind[24], text[24];

        cairn_tree_text(page->status, item, "kind", kind, sizeof kind);
        if (!cairn_tree_bool(page->status, item, "open", false) ||
            (strcmp(kind, "slow_compute") != 0 && strcmp(kind, "slow_node") != 0))
            continue;
        for (each = NULL;
             (each = cairn_tree_next(page->status, ranks, each)) && count < RATES_MAX;) {
            uint64_t rank = cairn_tree_u64(page->status, each, "", UINT64_MAX);
            uint32_t at = 0;

            while (at < count && said[at] != rank)
                at++;
            if (at < count)
                continue;
            said[count++] = rank;
            snprintf(text, sizeof text, "%" PRIu64, rank);
            put(page, "rank", text, cairn_tree_double(page->status, item, "rate", NAN));
        }
    }
}

/* Open verdicts by kind, and how far the analysis sees. */
static void
put_detection(struct page *page)
{
    static const char *const kinds[] = {"slow_compute", "slow_node", "slow_link", "hang_compute",
                                        "hang_link",    "crash",     "structural"};
    static const char *const results[] = {"succeeded", "failed", "timeout", "not_started",
                                          "unknown"};
    const struct cairn_tree_value *list = cairn_tree_find(page->status, NULL, "detection.verdicts"),
                                  *item = NULL;
    char kind[24];

    begin(page, "cairn_verdicts_open", "gauge", "Verdicts on slow or hanging ranks that last.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        uint32_t count = 0;

        for (item = NULL; (item = cairn_tree_next(page->status, list, item));)
            count += cairn_tree_bool(page->status, item, "open", false) &&
                     strcmp(cairn_tree_text(page->status, item, "kind", kind, sizeof kind),
                            kinds[i]) == 0;
        put(page, "kind", kinds[i], count);
    }
    put_rates(page, list);
    begin(page, "cairn_enforcements", "counter",
          "How the operator's command ended that verdict_policy enforce runs.");
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        char path[64];

        snprintf(path, sizeof path, "detection.enforcements.%s", results[i]);
        put(page, "result", results[i], number_at(page, path));
    }
}

/* What is advised about the plan that runs. */
static void
put_replan(struct page *page)
{
    static const char *const actions[] = {"microbatches", "layers", "groups", "restart"};
    char action[24] = "";

    cairn_tree_text(page->status, NULL, "replan.advice.action", action, sizeof action);
    begin(page, "cairn_replan_advised", "gauge", "Whether an action on the plan is advised now.");
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        put(page, "action", actions[i], strcmp(action, actions[i]) == 0);
    begin(page, "cairn_replan_proposal_waiting", "gauge",
          "Whether a change of the plan waits for an operator's approval now.");
    put(page, NULL, NULL, cairn_tree_find(page->status, NULL, "replan.proposal") != NULL);
    if (!action[0])
        return;
    begin(page, "cairn_replan_step_seconds", "gauge",
          "Predicted step of the plan that runs (none: it cannot go on), and as advised.");
    put(page, "plan", "current",
        cairn_tree_double(page->status, NULL, "replan.advice.current_ms", NAN) / 1e3);
    put(page, "plan", "advised",
        cairn_tree_double(page->status, NULL, "replan.advice.step_ms", NAN) / 1e3);
}

void
cairn_metrics_print(FILE *stream, const struct cairn_tree *status, enum cairn_metrics_format format)
{
    struct page page = {.stream = stream, .status = status, .format = format};
    char job[sizeof page.job];

    escape(cairn_tree_text(status, NULL, "job", job, sizeof job), page.job, sizeof page.job);
    put_health(&page);
    put_numbers(&page);
    put_nodes(&page);
    put_trainers(&page);
    if (cairn_tree_find(status, NULL, "coverage"))
        put_coverage(&page);
    if (cairn_tree_find(status, NULL, "detection"))
        put_detection(&page);
    if (cairn_tree_find(status, NULL, "replan"))
        put_replan(&page);
    if (format == CAIRN_METRICS_OPENMETRICS)
        fprintf(stream, "# EOF\n");
}
