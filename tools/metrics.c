/* tools/metrics.c - a status as metrics in Prometheus' text format. */
#include "tools/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { RATES_MAX = 512 };

struct page {
    FILE *stream;
    const struct cairn_tree *status;
    char job[256]; /* escaped */
};

static void
begin(const struct page *page, const char *name, const char *type, const char *help)
{
    fprintf(page->stream, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* One sample; `label` NULL: that of the job alone. Labels but the job's need no escaping: they are
 * ours. */
static void
put(const struct page *page, const char *name, const char *label, const char *value, double number)
{
    if (!isfinite(number))
        return;
    if (label)
        fprintf(page->stream, "%s{job=\"%s\",%s=\"%s\"} %.17g\n", name, page->job, label, value,
                number);
    else
        fprintf(page->stream, "%s{job=\"%s\"} %.17g\n", name, page->job, number);
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

/* The findings of a check's code, by the first of them: a page that says a sample twice is refused
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
    put(page, "cairn_check", "code", code, count);
}

static void
put_health(const struct page *page)
{
    const struct cairn_tree_value *checks = cairn_tree_find(page->status, NULL, "checks"),
                                  *check = NULL;
    char health[16];

    cairn_tree_text(page->status, NULL, "health", health, sizeof health);
    begin(page, "cairn_health", "gauge", "0 OK, 1 WARN, 2 CRITICAL, as cairn status says.");
    put(page, "cairn_health", NULL, NULL,
        strcmp(health, "OK") == 0     ? 0
        : strcmp(health, "WARN") == 0 ? 1
                                      : 2);
    begin(page, "cairn_check", "gauge", "How many findings of each kind cairn status has.");
    while ((check = cairn_tree_next(page->status, checks, check)))
        put_check(page, checks, check);
}

static void
put_generation(const struct page *page)
{
    static const char *const results[] = {"captured", "skipped", "failed"};
    static const char *const paths[] = {"stall.snapshots_captured", "stall.snapshots_skipped",
                                        "stall.snapshots_failed"};

    begin(page, "cairn_newest_step", "gauge", "Step of the newest committed generation.");
    put(page, "cairn_newest_step", NULL, NULL, number_at(page, "newest.step"));
    begin(page, "cairn_newest_age_seconds", "gauge", "Age of the newest committed generation.");
    put(page, "cairn_newest_age_seconds", NULL, NULL, number_at(page, "newest.age_ns") / 1e9);
    begin(page, "cairn_lost_now_steps", "gauge",
          "Steps that would be lost if all trainers died now.");
    put(page, "cairn_lost_now_steps", NULL, NULL, number_at(page, "lost_now.steps"));
    begin(page, "cairn_survives_nodes", "gauge",
          "Further nodes of every group that may be lost now.");
    put(page, "cairn_survives_nodes", NULL, NULL,
        number_at(page, "protection.survives_nodes_per_group"));
    begin(page, "cairn_snapshots_total", "counter", "Snapshots of the trainers that are attached.");
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        put(page, "cairn_snapshots_total", "result", results[i], number_at(page, paths[i]));
}

static void
put_protocol(const struct page *page)
{
    begin(page, "cairn_dropped_messages_total", "counter",
          "Messages between agents that were dropped: malformed, or of another session or epoch.");
    put(page, "cairn_dropped_messages_total", NULL, NULL, number_at(page, "dropped_messages"));
    begin(page, "cairn_commit_blocked_seconds", "gauge",
          "How long the generation that is due has waited for a member.");
    put(page, "cairn_commit_blocked_seconds", NULL, NULL, number_at(page, "blocked_ms") / 1e3);
    begin(page, "cairn_spills_given_up_total", "counter",
          "Spills given up because a disk did not answer.");
    put(page, "cairn_spills_given_up_total", NULL, NULL, number_at(page, "spills_given_up"));
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
put_coverage(const struct page *page)
{
    static const char *const kinds[] = {"parameter", "optimizer", "buffer", "opaque"};
    static const char *const ranks[] = {"known", "reporting", "refusing"};
    char path[64];

    begin(page, "cairn_covered_bytes", "gauge", "Bytes that the ranks capture of a snapshot.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(path, sizeof path, "coverage.bytes.%s", kinds[i]);
        put(page, "cairn_covered_bytes", "kind", kinds[i], number_at(page, path));
    }
    begin(page, "cairn_covered_tensors", "gauge",
          "Tensors that are registered, summed up over the ranks.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(path, sizeof path, "coverage.tensors.%s", kinds[i]);
        put(page, "cairn_covered_tensors", "kind", kinds[i], number_at(page, path));
    }
    begin(page, "cairn_uncovered", "gauge", "Things that no snapshot holds, as the trainers tell.");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        put(page, "cairn_uncovered", "kind", kinds[i], uncovered_of(page, kinds[i]));
    put(page, "cairn_uncovered", "kind", "not listed", number_at(page, "coverage.left_out"));
    begin(page, "cairn_ranks", "gauge",
          "Ranks that are known, that tell what they do not cover, that refuse snapshots.");
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        snprintf(path, sizeof path, "coverage.ranks_%s", ranks[i]);
        put(page, "cairn_ranks", "state", ranks[i], number_at(page, path));
    }
}

/* The rate of each rank that a verdict calls slow; once, where several do. */
static void
put_rates(const struct page *page, const struct cairn_tree_value *list)
{
    const struct cairn_tree_value *item = NULL, *each;
    uint64_t said[RATES_MAX];
    uint32_t count = 0;

    begin(page, "cairn_straggling_rate", "gauge",
          "How many times longer than normal a rank computes, while a verdict says so.");
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
            put(page, "cairn_straggling_rate", "rank", text,
                cairn_tree_double(page->status, item, "rate", NAN));
        }
    }
}

/* Open verdicts by kind, and how far the analysis sees. */
static void
put_detection(const struct page *page)
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
        put(page, "cairn_verdicts_open", "kind", kinds[i], count);
    }
    put_rates(page, list);
    begin(page, "cairn_analysed_ranks", "gauge", "Ranks whose timing is analysed.");
    put(page, "cairn_analysed_ranks", NULL, NULL, number_at(page, "detection.ranks_seen"));
    begin(page, "cairn_timing_records_total", "counter",
          "Timing records read, since the agents' start.");
    put(page, "cairn_timing_records_total", NULL, NULL, number_at(page, "detection.records"));
    begin(page, "cairn_timing_records_lost_total", "counter",
          "Timing records lost in full rings, or beyond what is kept apart.");
    put(page, "cairn_timing_records_lost_total", NULL, NULL,
        number_at(page, "detection.records_lost"));
    begin(page, "cairn_timing_reports_dropped_total", "counter",
          "Parcels of reports of ranks that the analysis had no room for, or did not take in time, "
          "since the agents' start.");
    put(page, "cairn_timing_reports_dropped_total", NULL, NULL,
        number_at(page, "detection.reports_dropped"));
    begin(page, "cairn_enforcements_total", "counter",
          "How the operator's command ended that verdict_policy enforce runs.");
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        char path[64];

        snprintf(path, sizeof path, "detection.enforcements.%s", results[i]);
        put(page, "cairn_enforcements_total", "result", results[i], number_at(page, path));
    }
}

/* What is advised about the plan that runs. */
static void
put_replan(const struct page *page)
{
    static const char *const actions[] = {"microbatches", "layers", "groups", "restart"};
    char action[24] = "";

    cairn_tree_text(page->status, NULL, "replan.advice.action", action, sizeof action);
    begin(page, "cairn_replan_advised", "gauge", "Whether an action on the plan is advised now.");
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        put(page, "cairn_replan_advised", "action", actions[i], strcmp(action, actions[i]) == 0);
    begin(page, "cairn_replan_plans_total", "counter",
          "Plans made for changes of rates, since the analysing agent's start.");
    put(page, "cairn_replan_plans_total", NULL, NULL, number_at(page, "replan.plans_made"));
    begin(page, "cairn_replan_proposal_waiting", "gauge",
          "Whether a change of the plan waits for an operator's approval now.");
    put(page, "cairn_replan_proposal_waiting", NULL, NULL,
        cairn_tree_find(page->status, NULL, "replan.proposal") != NULL);
    if (!action[0])
        return;
    begin(page, "cairn_replan_step_seconds", "gauge",
          "Predicted step of the plan that runs (none: it cannot go on), and as advised.");
    put(page, "cairn_replan_step_seconds", "plan", "current",
        cairn_tree_double(page->status, NULL, "replan.advice.current_ms", NAN) / 1e3);
    put(page, "cairn_replan_step_seconds", "plan", "advised",
        cairn_tree_double(page->status, NULL, "replan.advice.step_ms", NAN) / 1e3);
    begin(page, "cairn_replan_cost_seconds", "gauge",
          "How long training would stand still for it.");
    put(page, "cairn_replan_cost_seconds", NULL, NULL,
        cairn_tree_double(page->status, NULL, "replan.advice.cost_ms", NAN) / 1e3);
}

void
cairn_metrics_print(FILE *stream, const struct cairn_tree *status)
{
    struct page page = {.stream = stream, .status = status};
    char job[sizeof page.job];

    escape(cairn_tree_text(status, NULL, "job", job, sizeof job), page.job, sizeof page.job);
    put_health(&page);
    put_generation(&page);
    put_protocol(&page);
    if (cairn_tree_find(status, NULL, "coverage"))
        put_coverage(&page);
    if (cairn_tree_find(status, NULL, "detection"))
        put_detection(&page);
    if (cairn_tree_find(status, NULL, "replan"))
        put_replan(&page);
}
