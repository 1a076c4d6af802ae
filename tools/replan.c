/* tools/replan.c - `cairn replan`: proposals and offers about the plan, and an operator's
 * decision. */
#include "agent/service/proposal.h"
#include "tools/ask.h"
#include "tools/common.h"
#include "tools/find_agent.h"
#include "tools/placement_view.h"
#include "tools/relaunch_note.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 20000, SLOW_SHOWN = 4 };

static const char about[] =
    "Shows which change of the plan waits for approval or was offered to the trainers: micro-"
    "batches and layers per replica, the gain, the price, what moves, and which ranks are slow. "
    "With `plan_policy: approve` in the agents' files, the trainers get no offer before it is "
    "approved.\n"
    "\n"
    "Home is the placement of the plan in `problem`. What was denied is not proposed again until "
    "other ranks are slow for a minute, or the same by another factor; with --for, until that "
    "time is over. A relaunch changes the nodes or the shape of a job whose command `cairn run "
    "--relaunch` starts, and always waits for approval. --now does not wait until slow ranks have "
    "cost as much as the change does.\n"
    "\n"
    "Exits 4 if nothing is proposed and the trainers have the home placement. A decision exits 1 "
    "if it comes too late, 64 if there is no such proposal, 69 if the agent that plans does not "
    "answer, 77 if plan_policy does not ask for approval.";

static const char examples[] = "  cairn replan                # what waits, and why\n"
                               "  cairn replan --approve 3    # offer proposal 3 to the trainers\n"
                               "  cairn replan --deny 3       # go on as before\n"
                               "  cairn replan --deny 3 --for 24h\n"
                               "  cairn replan --now          # offer the best plan at once\n"
                               "  cairn replan --back         # back to the plan of `problem`\n";

/* ---- showing ---- */

static const char *
since(const struct cairn_tree *tree, const struct cairn_tree_value *from, const char *path,
      char out[CAIRN_SHOWN_BYTES])
{
    uint64_t now_ns = cairn_tree_u64(tree, NULL, "wall_ns", 0);
    uint64_t then_ns = cairn_tree_u64(tree, from, path, now_ns);

    return cairn_show_duration(now_ns > then_ns ? now_ns - then_ns : 0, out);
}

static void
print_why(const struct cairn_tree *tree, const struct cairn_tree_value *proposal)
{
    bool is_home = cairn_tree_bool(tree, proposal, "home", false);
    const struct cairn_tree_value *list = cairn_tree_find(tree, proposal, "slow"), *slow = NULL;
    uint64_t count = cairn_tree_u64(tree, proposal, "slow_count", 0), shown = 0;

    printf("  why        ");
    if (count == 0)
        printf("nothing is slow any more");
    while (shown < SLOW_SHOWN && (slow = cairn_tree_next(tree, list, slow)) != NULL) {
        double rate = cairn_tree_double(tree, slow, "rate", 0);
        uint64_t step = cairn_tree_u64(tree, slow, "since_step", UINT64_MAX);

        printf("%srank %" PRIu64, shown++ ? ", " : "", cairn_tree_u64(tree, slow, "rank", 0));
        if (rate <= 0)
            printf(" is dead");
        else
            printf(" is %.3g times slow", rate);
        if (step != UINT64_MAX)
            printf(" since step %" PRIu64, step);
    }
    if (count > shown && shown > 0)
        printf(", and %" PRIu64 " more", count - shown);
    printf("%s\n", is_home && count ? "; no other plan gains enough" : "");
}

static void
print_gain(const struct cairn_tree *tree, const struct cairn_tree_value *proposal)
{
    double step = cairn_tree_double(tree, proposal, "step_ms", NAN);
    double home = cairn_tree_double(tree, proposal, "current_ms", NAN);
    double running = cairn_tree_double(tree, proposal, "running_ms", NAN);
    double bound = cairn_tree_double(tree, proposal, "lower_bound_ms", NAN);
    double before = isnan(running) ? home : running;

    printf("  gain       steps of %.4g ms", step);
    if (!isnan(before))
        printf(" instead of %.4g (%.1f %% less)", before, 100 * (1 - step / before));
    if (!isnan(running) && !isnan(home))
        printf("; %.4g at home", home);
    if (!isnan(bound))
        printf("; no plan takes less than %.4g", bound);
    printf("\n");
}

static void
print_price(const struct cairn_tree *tree, const struct cairn_tree_value *proposal)
{
    uint64_t layers = cairn_tree_u64(tree, proposal, "moved_layers", 0);
    uint64_t bytes = cairn_tree_u64(tree, proposal, "moved_bytes", 0);
    double price = cairn_tree_double(tree, proposal, "price_ms", NAN);
    uint64_t payback = cairn_tree_u64(tree, proposal, "payback_steps", 0);
    char shown[CAIRN_SHOWN_BYTES];

    if (layers == 0) {
        printf("  price      none: no layer moves, and training does not stand still\n");
        return;
    }
    printf("  price      ");
    if (!isnan(price))
        printf("about %.3g s of standing still, paid back after %" PRIu64 " steps", price / 1e3,
               payback);
    else
        printf("training stands still while layers move");
    printf("\n  moves      %" PRIu64 " layer%s to another stage, %s\n", layers,
           layers == 1 ? "" : "s", cairn_show_bytes(bytes, shown));
}

static void
print_proposal(const struct cairn_tree *tree, const struct cairn_tree_value *proposal)
{
    uint64_t number = cairn_tree_u64(tree, proposal, "number", 0);
    char age[CAIRN_SHOWN_BYTES];

    printf("proposal   %" PRIu64 " waits for approval since %s\n  to         ", number,
           since(tree, proposal, "made_wall_ns", age));
    cairn_placement_print(tree, proposal);
    printf("%s\n", cairn_tree_bool(tree, proposal, "home", false) ? " (home)" : "");
    print_why(tree, proposal);
    print_gain(tree, proposal);
    print_price(tree, proposal);
    printf("  do         cairn replan --approve %" PRIu64 ", or cairn replan --deny %" PRIu64 "\n",
           number, number);
}

static void
print_offer(const struct cairn_tree *tree, const struct cairn_tree_value *offer)
{
    bool is_home = cairn_tree_bool(tree, offer, "home", false);
    uint64_t node = cairn_tree_u64(tree, offer, "decided_node", UINT64_MAX);
    char age[CAIRN_SHOWN_BYTES], decided[16];
    bool is_back;

    cairn_tree_text(tree, offer, "decided", decided, sizeof decided);
    is_back = strcmp(decided, "back") == 0;
    printf("offer      %" PRIu64 " since %s, taken by %" PRIu64 " of %" PRIu64 " ranks",
           cairn_tree_u64(tree, offer, "number", 0), since(tree, offer, "made_wall_ns", age),
           cairn_tree_u64(tree, offer, "ranks_taken", 0),
           cairn_tree_u64(tree, offer, "ranks_asking", 0));
    if (node != UINT64_MAX && !is_back)
        printf("; approved at node %" PRIu64, node);
    printf("\n  to         ");
    cairn_placement_print(tree, offer);
    printf("%s\n", is_home ? " (home)" : "");
    if (is_back)
        printf("  why        an operator went back at node %" PRIu64 "\n", node);
    else
        print_why(tree, offer);
    if (is_home)
        return;
    print_gain(tree, offer);
    print_price(tree, offer);
    printf("  do         cairn replan --back, if it is worse than before\n");
}

/* A relaunch that waits for an operator. */
static void
print_relaunch(const struct cairn_tree *tree, const struct cairn_tree_value *relaunch)
{
    uint64_t number = cairn_tree_u64(tree, relaunch, "number", 0);
    double price = cairn_tree_double(tree, relaunch, "price_ms", NAN);
    char age[CAIRN_SHOWN_BYTES], shown[CAIRN_SHOWN_BYTES];

    printf("relaunch   %" PRIu64 " waits for approval since %s\n  to         ", number,
           since(tree, relaunch, "made_wall_ns", age));
    cairn_placement_print(tree, relaunch);
    printf("\n");
    print_why(tree, relaunch);
    print_gain(tree, relaunch);
    printf("  price      about %.3g s from the last step before to the first after, paid back "
           "after %" PRIu64 " steps\n",
           price / 1e3, cairn_tree_u64(tree, relaunch, "payback_steps", 0));
    printf("  moves      the job starts again from a snapshot of its last step; %s are restored\n",
           cairn_show_bytes(cairn_tree_u64(tree, relaunch, "moved_bytes", 0), shown));
    printf("  do         cairn replan --approve %" PRIu64 ", or cairn replan --deny %" PRIu64 "\n",
           number, number);
}

/* The relaunch that was approved last. */
static void
print_shape(const struct cairn_tree *tree, const struct cairn_tree_value *shape)
{
    bool is_home = cairn_tree_bool(tree, shape, "home", false);
    char age[CAIRN_SHOWN_BYTES];

    printf("shape      %" PRIu64 " since %s; approved at node %" PRIu64 "\n  to         ",
           cairn_tree_u64(tree, shape, "number", 0), since(tree, shape, "made_wall_ns", age),
           cairn_tree_u64(tree, shape, "decided_node", 0));
    cairn_placement_print(tree, shape);
    printf("%s\n", is_home ? " (home)" : "");
    if (is_home)
        return;
    print_gain(tree, shape);
    printf("  do         cairn replan --back, to start it again in the home placement\n");
}

static void
print_ended(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *list = cairn_tree_find(tree, NULL, "ended"), *ended = NULL;
    uint64_t offered = cairn_tree_u64(tree, NULL, "offer.number", UINT64_MAX);

    while ((ended = cairn_tree_next(tree, list, ended)) != NULL) {
        uint64_t node = cairn_tree_u64(tree, ended, "node", UINT64_MAX);
        char how[16], age[CAIRN_SHOWN_BYTES];

        if (cairn_tree_u64(tree, ended, "number", 0) == offered)
            continue; /* it is shown above */
        cairn_tree_text(tree, ended, "how", how, sizeof how);
        printf("before     %" PRIu64 " %s %s ago", cairn_tree_u64(tree, ended, "number", 0),
               strcmp(how, "back") == 0 ? "gave way to --back" : how,
               since(tree, ended, "wall_ns", age));
        if (node != UINT64_MAX)
            printf(" at node %" PRIu64, node);
        printf("\n");
    }
}

static void
print_refused(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *refused = cairn_tree_find(tree, NULL, "refused");
    char why[320], age[CAIRN_SHOWN_BYTES];

    printf("refused    since %s: %s\n", since(tree, refused, "since_wall_ns", age),
           cairn_tree_text(tree, refused, "why", why, sizeof why));
}

static void
print_plan(const struct cairn_tree *tree)
{
    const struct cairn_tree_value *proposal = cairn_tree_find(tree, NULL, "proposal");
    const struct cairn_tree_value *offer = cairn_tree_find(tree, NULL, "offer");
    const struct cairn_tree_value *home = cairn_tree_find(tree, NULL, "home");
    const struct cairn_tree_value *relaunch = cairn_tree_find(tree, NULL, "relaunch");
    const struct cairn_tree_value *shape = cairn_tree_find(tree, NULL, "shape");
    uint64_t node = cairn_tree_u64(tree, NULL, "node", UINT64_MAX);
    double measured = cairn_tree_double(tree, NULL, "measured_ms", NAN);
    char text[512];

    printf("policy     %s", cairn_tree_text(tree, NULL, "policy", text, sizeof text));
    if (node != UINT64_MAX)
        printf("; node %" PRIu64 " plans", node);
    if (!isnan(measured))
        printf("; steps take %.4g ms now", measured);
    printf("\n");
    if (home) {
        printf("home       ");
        cairn_placement_print(tree, home);
        printf("\n");
    }
    if (!proposal && cairn_tree_find(tree, NULL, "advice"))
        printf("advice     %s\n", cairn_tree_text(tree, NULL, "advice.what", text, sizeof text));
    if (shape)
        print_shape(tree, shape);
    if (offer)
        print_offer(tree, offer);
    if (proposal)
        print_proposal(tree, proposal);
    if (relaunch)
        print_relaunch(tree, relaunch);
    if (cairn_tree_find(tree, NULL, "refused"))
        print_refused(tree);
    else if (!proposal && !relaunch)
        printf("nothing    waits: %s\n", cairn_tree_text(tree, NULL, "nothing", text, sizeof text));
    print_ended(tree);
}

/* ---- deciding ---- */

static void
print_decided(const struct cairn_tree *tree)
{
    uint64_t number = cairn_tree_u64(tree, NULL, "number", 0);
    bool dry_run = cairn_tree_bool(tree, NULL, "dry_run", false);
    char decision[16], placement[512];

    cairn_tree_text(tree, NULL, "decision", decision, sizeof decision);
    cairn_tree_text(tree, NULL, "placement", placement, sizeof placement);
    if (strcmp(decision, "approve") == 0)
        printf("%s %" PRIu64 "%s: %s\n", dry_run ? "would offer proposal" : "proposal", number,
               dry_run ? " to the trainers" : " is offered to the trainers", placement);
    else if (strcmp(decision, "deny") == 0)
        printf("%s %" PRIu64 "%s\n", dry_run ? "would deny proposal" : "proposal", number,
               dry_run ? "" : " is denied; training goes on as before");
    else if (strcmp(decision, "now") == 0)
        printf("%s %" PRIu64 "%s: %s\n", dry_run ? "would make offer" : "offer", number,
               dry_run ? "" : " is made, without waiting", placement);
    else
        printf("%s %" PRIu64 "%s: %s\n", dry_run ? "would make offer" : "offer", number,
               dry_run ? ", back to the home placement" : " is made, back to the home placement",
               placement);
}

/* False: it is not a whole number above 0. */
static bool
parse_number(const char *text, uint64_t *out)
{
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return *end == '\0' && errno == 0 && *out > 0;
}

/* Launchers whose command runs, and those that stand by; of one agent's answer. */
static void
count_launchers(const struct cairn_tree *tree, uint32_t *run, uint32_t *stand_by)
{
    const struct cairn_tree_value *nodes = cairn_tree_find(tree, NULL, "nodes"), *node = NULL;
    struct cairn_relaunch_note note;
    char text[CAIRN_RELAUNCH_NOTE_BYTES];

    *run = *stand_by = 0;
    while ((node = cairn_tree_next(tree, nodes, node))) {
        cairn_tree_text(tree, node, "note", text, sizeof text);
        if (!cairn_tree_bool(tree, node, "launcher", false) ||
            !cairn_relaunch_note_read(text, &note))
            continue;
        *run += note.state == CAIRN_RELAUNCH_RUNS;
        *stand_by += note.state == CAIRN_RELAUNCH_JOINS;
    }
}

/* Looks whether a command runs that can be relaunched, then asks for it. */
static int
ask_for_relaunch(const char *socket_path, bool dry_run, bool json)
{
    struct cairn_question question = {
        .verb = "launch", .asker = "replan", .socket = socket_path, .timeout_ms = TIMEOUT_MS};
    struct cairn_answer answer;
    uint32_t run = 0, stand_by = 0;
    int exit_code;

    for (uint32_t turn = 0; turn < (dry_run ? 1 : 2); turn++) {
        question.relaunch = turn == 1;
        exit_code = cairn_ask_or_say(&question, &answer);
        if (exit_code)
            return exit_code;
        exit_code = answer.exit_code;
        if (!cairn_answer_refused("replan", &answer))
            count_launchers(&answer.tree, &run, &stand_by);
        cairn_answer_fini(&answer);
        if (exit_code)
            return exit_code;
        if (run == 0) {
            fprintf(stderr, "cairn replan: no command of `cairn run --relaunch` runs; %s\n",
                    stand_by ? "its nodes wait for a round already: their output tells for what"
                             : "start one on each node");
            return CAIRN_EXIT_LOST;
        }
    }
    if (json)
        printf("{\"schema\": 1, \"decision\": \"relaunch\", \"dry_run\": %s, \"running\": %" PRIu32
               ", \"standing_by\": %" PRIu32 "}\n",
               dry_run ? "true" : "false", run, stand_by);
    else
        printf("%s the command of %" PRIu32 " nodes after a snapshot; %" PRIu32 " more stand by\n",
               dry_run ? "would relaunch" : "relaunches", run, stand_by);
    return CAIRN_EXIT_OK;
}

int
cairn_verb_replan(int argc, char **argv)
{
    const char *agent = NULL, *output = NULL, *approve = NULL, *denial = NULL, *wrong;
    const char *duration = NULL;
    bool back = false, now = false, relaunch = false, dry_run = false, json;
    const struct cairn_flag flags[] = {
        {"approve", 0, "N", "offer proposal N to the trainers", &approve, NULL},
        {"deny", 0, "N", "refuse proposal N", &denial, NULL},
        {"for", 0, "DURATION", "with --deny: for 90s, 30m, 24h or 7d", &duration, NULL},
        {"now", 0, NULL, "offer the best plan without waiting until it pays", NULL, &now},
        {"back", 0, NULL, "go back to the home placement", NULL, &back},
        {"relaunch", 0, NULL,
         "take a snapshot, and start the command of `cairn run --relaunch` again, also on nodes "
         "that "
         "stand by",
         NULL, &relaunch},
        {"dry-run", 'n', NULL, "check the decision, and do nothing", NULL, &dry_run},
        {"agent", 'a', "SOCKET", CAIRN_AGENT_HELP, &agent, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {"replan",
                                      "[--approve N | --deny N [--for DURATION] | --now | --back | "
                                      "--relaunch] [--dry-run] [--agent SOCKET] [-o table|json]",
                                      about,
                                      examples,
                                      flags,
                                      sizeof flags / sizeof *flags,
                                      NULL,
                                      NULL};
    struct cairn_question question = {.verb = "replan", .timeout_ms = TIMEOUT_MS};
    struct cairn_found found;
    struct cairn_answer answer;
    int exit_code;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if ((approve != NULL) + (denial != NULL) + back + now + relaunch > 1)
        return cairn_usage_error(
            &usage, "expected only one of --approve, --deny, --now, --back and --relaunch");
    if (duration && !denial)
        return cairn_usage_error(&usage, "--for needs --deny");
    if (duration && !cairn_duration_parse(duration, &question.for_ns))
        return cairn_usage_error(
            &usage, "--for %.40s: expected a duration of up to 365d, as 90s, 30m, 24h or 7d",
            duration);
    wrong = approve ? approve : denial;
    if (wrong && !parse_number(wrong, &question.number))
        return cairn_usage_error(&usage, "%s %.40s: expected the number of a proposal",
                                 approve ? "--approve" : "--deny", wrong);
    question.decision = approve ? "approve" : denial ? "deny" : back ? "back" : now ? "now" : NULL;
    if (dry_run && !question.decision && !relaunch)
        return cairn_usage_error(&usage,
                                 "--dry-run needs --approve, --deny, --now, --back or --relaunch");
    exit_code = cairn_find_agent("replan", agent, NULL, &found);
    if (exit_code)
        return exit_code;
    question.socket = found.socket;
    if (relaunch)
        return ask_for_relaunch(found.socket, dry_run, json);
    question.dry_run = dry_run;
    exit_code = cairn_ask_or_say(&question, &answer);
    if (exit_code)
        return exit_code;
    exit_code = answer.exit_code;
    if (json)
        printf("%s\n", answer.text);
    if (!cairn_answer_refused("replan", &answer) && !json) {
        if (question.decision)
            print_decided(&answer.tree);
        else
            print_plan(&answer.tree);
    }
    cairn_answer_fini(&answer);
    return exit_code;
}
