/*
 * tools/explain_plan.c - `cairn explain plan N`: what became of an offer of another placement, as a
 * story with numbers.
 */
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/explain.h"
#include "tools/find_agent.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ANSWER_MS = 20000, TEXT_BYTES = 320 };

struct teller {
    const struct cairn_tree *tree;
    const struct cairn_tree_value *story; /* of the answer's "stories" */
};

static uint64_t
u64_of(const struct teller *teller, const char *key)
{
    return cairn_tree_u64(teller->tree, teller->story, key, 0);
}

static double
ms_of(const struct teller *teller, const char *key)
{
    return cairn_tree_double(teller->tree, teller->story, key, NAN);
}

static const char *
ago(const struct teller *teller, const char *key, char out[CAIRN_SHOWN_BYTES])
{
    uint64_t now_ns = cairn_tree_u64(teller->tree, NULL, "wall_ns", 0);
    uint64_t then_ns = u64_of(teller, key);

    return cairn_show_duration(now_ns > then_ns ? now_ns - then_ns : 0, out);
}

static bool
is_relaunch(const struct teller *teller)
{
    return cairn_tree_bool(teller->tree, teller->story, "relaunch", false);
}

static void
print_evidence(const struct teller *teller)
{
    const struct cairn_tree_value *list = cairn_tree_find(teller->tree, teller->story, "slow");
    const struct cairn_tree_value *slow = NULL;
    const char *before = "";

    printf("evidence     ");
    if (u64_of(teller, "slow_count") == 0)
        printf("nothing was slow");
    while ((slow = cairn_tree_next(teller->tree, list, slow)) != NULL) {
        printf("%srank %" PRIu64 " was %.3g times slow", before,
               cairn_tree_u64(teller->tree, slow, "rank", 0),
               cairn_tree_double(teller->tree, slow, "rate", 0));
        before = ", ";
    }
    printf("\n");
}

/* Steps as the planner had them. */
static void
print_plan(const struct teller *teller)
{
    double running = ms_of(teller, "running_ms"), home = ms_of(teller, "current_ms");
    double bound = ms_of(teller, "lower_bound_ms");

    printf("planned      steps of %.4g ms", ms_of(teller, "step_ms"));
    if (!isnan(running))
        printf(" instead of %.4g", running);
    if (!isnan(home))
        printf("; %.4g at home", home);
    if (!isnan(bound))
        printf("; no plan takes less than %.4g", bound);
    printf("\n");
}

static void
print_alternatives(const struct teller *teller)
{
    static const char *const names[][2] = {{"microbatches", "other micro-batches"},
                                           {"layers", "other layers"},
                                           {"groups", "other groups"},
                                           {"restart", "a restart"}};
    char path[64];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double step, price;

        (void)snprintf(path, sizeof path, "alternatives.%s.step_ms", names[i][0]);
        step = ms_of(teller, path);
        (void)snprintf(path, sizeof path, "alternatives.%s.price_ms", names[i][0]);
        price = ms_of(teller, path);
        if (isnan(step))
            continue;
        printf("alternative  %s: steps of %.4g ms", names[i][1], step);
        if (!isnan(price))
            printf(", for %.3g s of standing still", price / 1e3);
        printf("\n");
    }
}

static void
print_refused(const struct teller *teller)
{
    const struct cairn_tree_value *list = cairn_tree_find(teller->tree, teller->story, "refused");
    const struct cairn_tree_value *gate = NULL;
    char why[TEXT_BYTES];

    while ((gate = cairn_tree_next(teller->tree, list, gate)) != NULL)
        printf("refused      before it was offered, in %.3g s: %s\n",
               ms_of(teller, "refused_ms") / 1e3,
               cairn_tree_text(teller->tree, gate, "why", why, sizeof why));
}

static void
print_price(const struct teller *teller)
{
    double price = ms_of(teller, "price_ms"), measured = ms_of(teller, "standstill_ms");
    uint64_t layers = u64_of(teller, "moved_layers");
    char shown[CAIRN_SHOWN_BYTES];

    if (is_relaunch(teller)) {
        printf("price        the command started again, and %s were restored; %.3g s without a "
               "step were expected",
               cairn_show_bytes(u64_of(teller, "moved_bytes"), shown), price / 1e3);
        if (!isnan(measured))
            printf(", and %.3g s measured", measured / 1e3);
        printf("\n");
        return;
    }
    if (layers == 0) {
        printf("price        none: no layer moves\n");
        return;
    }
    printf("price        %" PRIu64 " layer%s to another stage, %s", layers, layers == 1 ? "" : "s",
           cairn_show_bytes(u64_of(teller, "moved_bytes"), shown));
    if (!isnan(price))
        printf("; %.3g s of standing still were expected", price / 1e3);
    if (!isnan(measured))
        printf(", and %.3g s measured", measured / 1e3);
    printf("\n");
}

static void
print_decided(const struct teller *teller)
{
    uint64_t withdraws = u64_of(teller, "withdraws");
    char decided[16], shown[CAIRN_SHOWN_BYTES];

    cairn_tree_text(teller->tree, teller->story, "decided", decided, sizeof decided);
    printf("offered      %s ago", ago(teller, "offered_wall_ns", shown));
    if (withdraws)
        printf(", to take plan %" PRIu64 " back", withdraws);
    else if (strcmp(decided, "enforced") == 0)
        printf(", by plan_policy");
    else
        printf(", %s at node %" PRIu64,
               strcmp(decided, "back") == 0 ? "as an operator went back" : "approved",
               u64_of(teller, "decided_node"));
    if (u64_of(teller, "taken_wall_ns"))
        printf(is_relaunch(teller) ? "; its first step %s ago" : "; taken by all ranks %s ago",
               ago(teller, "taken_wall_ns", shown));
    printf("\n");
}

static void
print_brought(const struct teller *teller)
{
    double before = ms_of(teller, "before_ms"), after = ms_of(teller, "after_ms");
    double expected = ms_of(teller, "expected_ms");

    printf("brought      ");
    if (isnan(after)) {
        printf("not measured\n");
        return;
    }
    printf("steps of %.4g ms", after);
    if (!isnan(before))
        printf(" instead of %.4g (%.1f %% less)", before, 100 * (1 - after / before));
    if (!isnan(expected))
        printf("; %.4g were expected", expected);
    printf("\n");
}

static void
print_end(const struct teller *teller)
{
    static const char *const ends[][2] = {
        {"offered", "not all ranks have taken it yet"},
        {"taken", "it is on probation: the steps after it are being measured"},
        {"kept", "it was kept"},
        {"left", "a later offer replaced it"},
        {"taken_back", "it was taken back: it brought less than half of what was predicted"},
        {"failed", "it was withdrawn: the ranks entered it and gave it up"},
        {"aged", "it was withdrawn: some ranks never took it"}};
    char fate[16];

    cairn_tree_text(teller->tree, teller->story, "fate", fate, sizeof fate);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(fate, ends[i][0]) == 0)
            printf("end          %s\n", ends[i][1]);
}

static void
print_story(const struct teller *teller)
{
    char placement[TEXT_BYTES];

    printf("plan         %" PRIu64 ": %s%s%s\n", u64_of(teller, "number"),
           is_relaunch(teller) ? "relaunch as " : "micro-batches ",
           cairn_tree_text(teller->tree, teller->story, "placement", placement, sizeof placement),
           cairn_tree_bool(teller->tree, teller->story, "home", false) ? " (home)" : "");
    print_evidence(teller);
    print_plan(teller);
    print_alternatives(teller);
    print_price(teller);
    print_refused(teller);
    print_decided(teller);
    print_brought(teller);
    print_end(teller);
}

static void
say_missing(const struct cairn_tree *tree, uint64_t number)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, NULL, "stories"), *story = NULL;
    const char *before = "; known are ";

    fprintf(stderr, "cairn explain: plan %" PRIu64 ": it was not offered, or is forgotten", number);
    while ((story = cairn_tree_next(tree, list, story)) != NULL) {
        fprintf(stderr, "%s%" PRIu64, before, cairn_tree_u64(tree, story, "number", 0));
        before = ", ";
    }
    fprintf(stderr, "; see `cairn replan`\n");
}

int
cairn_explain_plan(const char *agent, uint64_t number, bool json)
{
    struct cairn_question question = {
        .verb = "replan", .asker = "explain", .timeout_ms = ANSWER_MS};
    const struct cairn_tree_value *list, *story = NULL;
    struct cairn_answer answer;
    int exit_code = cairn_find_and_ask("explain", agent, &question, &answer);

    if (exit_code)
        return exit_code;
    list = cairn_tree_find(&answer.tree, NULL, "stories");
    while ((story = cairn_tree_next(&answer.tree, list, story)) != NULL)
        if (cairn_tree_u64(&answer.tree, story, "number", 0) == number)
            break;
    if (!story) {
        say_missing(&answer.tree, number);
        exit_code = CAIRN_EXIT_USAGE;
    } else if (json) {
        printf("%.*s\n", (int)(story->end - story->begin), answer.text + story->begin);
    } else {
        print_story(&(struct teller){&answer.tree, story});
    }
    cairn_answer_fini(&answer);
    return exit_code;
}
