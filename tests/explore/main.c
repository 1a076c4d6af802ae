/*
 * tests/explore/main.c - explores small worlds, or hunts a planted bug.
 *
 *   explore [--seconds N] [--states N] [--least N] [--bound N] [--world NAME] [--bug N | --bugs]
 *           [--seed N] [--list]
 *
 * Without --world all worlds are explored, each with its share of the time, which is that of the
 * processor, and with at most --states. Prints one line per world, and the schedule of a violation.
 * The exit status is 1 if there was one, or if all worlds together had fewer than --least states.
 * --bugs plants each bug of planted.h in turn, except those left to the simulator, and prints how
 * many states it took to find it; the exit status is 1 if one is not found.
 */
#include "tests/explore/explore.h"

#include "agent/core/env/planted.h"
#include "cairn/client.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

static const struct setup worlds[] = {
    {"start", 3, 1, .from_start = true},
    {"run", 3, 1, .late = 0},
    {"crash", 3, 1, .faults = {[FAULT_CRASH] = 1}},
    {"cut", 3, 1, .faults = {[FAULT_CUT] = 1}},
    {"long", 3, 1, .faults = {[FAULT_LONG] = 1}},
    {"memory", 3, 1, .faults = {[FAULT_MEMORY] = 1}},
    {"away", 3, 1, .faults = {[FAULT_AWAY] = 1}},
    {"disk", 3, 1, .faults = {[FAULT_DISK] = 1}},
    {"break", 3, 1, .faults = {[FAULT_BREAK] = 1}},
    {"split", 3, 1, .faults = {[FAULT_SPLIT] = 1}},
    {"restart", 3, 1, .faults = {[FAULT_RESTART] = 1}},
    {"restore", 3, 1, .faults = {[FAULT_RESTORE] = 1}},
    {"stop", 3, 1, .faults = {[FAULT_STOP] = 1}},
    {"pause", 3, 1, .faults = {[FAULT_PAUSE] = 1}},
    {"cancel", 3, 1, .faults = {[FAULT_CANCEL] = 1}},
    {"damage", 3, 1, .faults = {[FAULT_DAMAGE] = 1}},
    {"late", 3, 1, .late = 1},
    {"untiled", 3, 1, .untiled = true},
    {"asked", 3, 1, .asked = true, .faults = {[FAULT_SNAPSHOT] = 1, [FAULT_CANCEL] = 1}},
    {"crash in the start", 3, 1, .from_start = true, .faults = {[FAULT_CRASH] = 1}},
    {"disk in the start", 3, 1, .from_start = true, .faults = {[FAULT_DISK] = 1}},
    {"crash and break", 3, 1, .faults = {[FAULT_CRASH] = 1, [FAULT_BREAK] = 1}},
    {"memory and restore", 3, 1, .faults = {[FAULT_MEMORY] = 1, [FAULT_RESTORE] = 1}},
    {"away and crash", 3, 1, .faults = {[FAULT_AWAY] = 1, [FAULT_CRASH] = 1}},
    {"two restores", 3, 1, .faults = {[FAULT_RESTORE] = 2}},
    {"crash and restore", 3, 1, .faults = {[FAULT_CRASH] = 1, [FAULT_RESTORE] = 1}},
    {"break and restore", 3, 1, .faults = {[FAULT_BREAK] = 1, [FAULT_RESTORE] = 1}},
    {"restore and restart", 3, 1, .faults = {[FAULT_RESTORE] = 1, [FAULT_RESTART] = 1}},
    {"disk and restore", 3, 1, .faults = {[FAULT_DISK] = 1, [FAULT_RESTORE] = 1}},
    {"disk and two restores", 3, 1, .faults = {[FAULT_DISK] = 1, [FAULT_RESTORE] = 2}},
    {"disk and long", 3, 1, .faults = {[FAULT_DISK] = 1, [FAULT_LONG] = 1}},
    {"memory and damage", 3, 1, .faults = {[FAULT_MEMORY] = 1, [FAULT_DAMAGE] = 1}},
    {"memory and cut", 3, 1, .faults = {[FAULT_MEMORY] = 1, [FAULT_CUT] = 1}},
    {"long and restart", 3, 1, .faults = {[FAULT_LONG] = 1, [FAULT_RESTART] = 1}},
    {"fresh", 3, 1, .faults = {[FAULT_FRESH] = 1}},
    {"split and fresh, a spare", 3, 1, .spares = 1,
     .faults = {[FAULT_SPLIT] = 1, [FAULT_FRESH] = 1}},
    {"run of four", 4, 1, .late = 0},
    {"crash of four", 4, 1, .faults = {[FAULT_CRASH] = 1}},
    {"memory of four", 4, 1, .faults = {[FAULT_MEMORY] = 1}},
    {"break of four", 4, 1, .faults = {[FAULT_BREAK] = 1}},
    {"restore of four", 4, 1, .faults = {[FAULT_RESTORE] = 1}},
    {"two and two", 4, 2, .late = 0},
    {"crash of two and two", 4, 2, .faults = {[FAULT_CRASH] = 1}},
    {"break of two and two", 4, 2, .faults = {[FAULT_BREAK] = 1}},
    {"damage of two and two", 4, 2, .faults = {[FAULT_DAMAGE] = 1}},
    {"disk of five", 5, 2, .faults = {[FAULT_DISK] = 1}},
    {"disk and crash of five", 5, 2, .spares = 3, .faults = {[FAULT_DISK] = 1, [FAULT_CRASH] = 1}},
};

enum { WORLD_COUNT = sizeof worlds / sizeof worlds[0] };

static const char *const bug_names[BUG_LAST] = {
    [BUG_DROP_EARLY] = "drop early",
    [BUG_DONE_BEFORE_FINISH] = "done before finish",
    [BUG_FOLD_TWICE] = "fold twice",
    [BUG_ACCEPT_OLD_EPOCH] = "accept old epoch",
    [BUG_PROMISE_TWICE] = "promise twice",
    [BUG_COUNT_ONE_LESS] = "count one less",
    [BUG_FOLD_DAMAGED] = "fold damaged",
    [BUG_REBUILD_UNVERIFIED] = "rebuild unverified",
    [BUG_CLAIM_EARLY] = "claim early",
    [BUG_REUSE_SLOT] = "reuse slot",
    [BUG_STORE_LATE] = "store late",
    [BUG_HASTY_REBUILD] = "hasty rebuild",
    [BUG_NEVER_JOINS] = "never joins",
    [BUG_JOIN_RESTARTS] = "join restarts",
    [BUG_LAYOUT_UNSEEN] = "layout unseen",
    [BUG_ASKS_ONCE] = "asks once",
    [BUG_RUN_REUSED] = "run reused",
    [BUG_STALE_CLAIM] = "stale claim",
    [BUG_FORGETFUL_MEMBER] = "forgetful member",
    [BUG_OWNER_DROPS] = "owner drops",
    [BUG_CAPTURE_BEHIND] = "capture behind",
    [BUG_FORGET_PROMISE] = "forget promise",
    [BUG_FORWARD_EARLY] = "forward early",
    [BUG_ROWS_UNSEEN] = "rows unseen",
    [BUG_RING_REUSED] = "ring reused",
    [BUG_NONCE_OF_PLACE] = "nonce of place",
    [BUG_KEY_OF_NODES] = "key of nodes",
    [BUG_LEADER_LEFT] = "leader left",
    [BUG_PLACE_WRITTEN] = "place written",
    [BUG_KNOWS_EARLY] = "knows early",
    [BUG_CLAIM_OUTLIVES] = "claim outlives",
    [BUG_UNREAD_UNSEEN] = "unread unseen",
    [BUG_UNSEEN_AGAIN] = "unseen again",
};

struct arguments {
    double seconds;
    uint64_t states, least;
    uint32_t bound;
    uint64_t seed;
    const char *world;
    uint32_t bug;
    bool bugs, list;
};

static void
print_result(const char *name, const struct search_result *result)
{
    printf("%-24s %9llu states %10llu events, depth %4llu, %s%u deviations, %.1f s%s\n", name,
           (unsigned long long)result->states, (unsigned long long)result->events,
           (unsigned long long)result->depth_max,
           result->complete ? "whole, at most " : "all schedules with at most ", result->bound,
           result->seconds, result->found ? ": VIOLATION" : "");
    fflush(stdout);
}

/* Explores the worlds that are asked for; false: there are violations, or too few states. */
static bool
explore_worlds(const struct arguments *arguments)
{
    uint64_t states = 0, events = 0;
    uint32_t violations = 0, chosen = 0, left = 0;
    double spent = 0;

    for (uint32_t i = 0; i < WORLD_COUNT; i++)
        left += !arguments->world || strcmp(arguments->world, worlds[i].name) == 0;
    for (uint32_t i = 0; i < WORLD_COUNT; i++) {
        struct search_limits limits = {.seconds = (arguments->seconds - spent) / left,
                                       .states = arguments->states,
                                       .bound_max = arguments->bound,
                                       .seed = arguments->seed};
        struct search_result result;

        if (arguments->world && strcmp(arguments->world, worlds[i].name) != 0)
            continue;
        chosen++;
        left--;
        search(&worlds[i], &limits, &result);
        print_result(worlds[i].name, &result);
        if (result.found) {
            violations++;
            search_print_failure();
        }
        states += result.states;
        events += result.events;
        spent += result.seconds;
        if (left == 0)
            break;
    }
    printf("explore: %u worlds, %llu distinct states, %llu events, %.0f s, %u violations\n", chosen,
           (unsigned long long)states, (unsigned long long)events, spent, violations);
    if (states < arguments->least)
        printf("explore: %llu distinct states are too few: expected %llu\n",
               (unsigned long long)states, (unsigned long long)arguments->least);
    return chosen > 0 && violations == 0 && states >= arguments->least;
}

/* Worlds that show a bug, where that is not one of the first. */
static const char *const shown_in[BUG_LAST] = {
    [BUG_ACCEPT_OLD_EPOCH] = "stop",
    [BUG_FORGET_PROMISE] = "disk and long",
    [BUG_KNOWS_EARLY] = "disk of five",
    [BUG_CLAIM_OUTLIVES] = "two restores",
};

/* How a bug is hunted: in every world, ever longer and with ever more deviations; or
 * in the world that is known to show it. */
/* What worlds of so few blocks and ticks cannot show is left to tests/sim. */
static const bool is_for_simulator[BUG_LAST] = {
    [BUG_JOIN_RESTARTS] = true, [BUG_FORWARD_EARLY] = true,  [BUG_RING_REUSED] = true,
    [BUG_LEADER_LEFT] = true,   [BUG_NONCE_OF_PLACE] = true, [BUG_KEY_OF_NODES] = true,
    [BUG_PLACE_WRITTEN] = true, [BUG_UNREAD_UNSEEN] = true,  [BUG_UNSEEN_AGAIN] = true};

static const struct round {
    uint32_t share; /* of the time */
    uint32_t bound;
    uint64_t seed; /* 0: systematic */
} rounds[] = {{1, 0, 0}, {1, 0, 1}, {2, 1, 0}, {4, 0, 2}, {8, 7, 0}};

static bool
hunt(const struct arguments *arguments, uint32_t bug, bool print)
{
    const char *only = arguments->world ? arguments->world : shown_in[bug];
    uint64_t states = 0;
    double spent = 0;

    planted_bug = bug;
    for (uint32_t round = 0; round < sizeof rounds / sizeof rounds[0]; round++)
        for (uint32_t i = 0; i < WORLD_COUNT; i++) {
            struct search_limits limits = {.seconds = arguments->seconds * rounds[round].share /
                                                      16 / (only ? 1 : WORLD_COUNT),
                                           .states = arguments->states,
                                           .bound_max = rounds[round].bound,
                                           .seed = rounds[round].seed};
            struct search_result result;

            if (only && strcmp(only, worlds[i].name) != 0)
                continue;
            search(&worlds[i], &limits, &result);
            states += result.states;
            spent += result.seconds;
            if (!result.found)
                continue;
            printf("bug %2u %-20s found in \"%s\" after %llu states, %.1f s: %.90s\n", bug,
                   bug_names[bug], worlds[i].name, (unsigned long long)states, spent, failure);
            if (print)
                search_print_failure();
            fflush(stdout);
            return true;
        }
    printf("bug %2u %-20s NOT FOUND in %llu states, %.1f s\n", bug, bug_names[bug],
           (unsigned long long)states, spent);
    fflush(stdout);
    return false;
}

static bool
parse(int argc, char **argv, struct arguments *out)
{
    *out = (struct arguments){.seconds = 60, .states = UINT64_C(1) << 26, .bound = 7};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (strcmp(argv[i], "--bugs") == 0) {
            out->bugs = true;
            continue;
        }
        if (strcmp(argv[i], "--list") == 0) {
            out->list = true;
            continue;
        }
        if (strcmp(argv[i], "--seconds") == 0)
            out->seconds = atof(value);
        else if (strcmp(argv[i], "--states") == 0)
            out->states = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--least") == 0)
            out->least = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--bound") == 0)
            out->bound = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            out->seed = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--world") == 0)
            out->world = value;
        else if (strcmp(argv[i], "--bug") == 0)
            out->bug = (uint32_t)strtoul(value, NULL, 10);
        else
            return false;
        i++;
    }
    return out->bug < BUG_LAST;
}

static void
quiet(void *context, enum cairn_log_level level, const char *line)
{
    say("%s", line);
}

int
main(int argc, char **argv)
{
    struct arguments arguments;
    bool all = true;

    if (!parse(argc, argv, &arguments)) {
        fprintf(stderr, "usage: explore [--seconds N] [--states N] [--least N] [--bound N] "
                        "[--world NAME] [--bug N | --bugs] [--seed N] [--list]\n");
        return 2;
    }
    if (arguments.list) {
        for (uint32_t i = 0; i < WORLD_COUNT; i++)
            printf("%s\n", worlds[i].name);
        return 0;
    }
    arenas_open(AGENTS_MAX + 2);
    cairn_log_setup(CAIRN_LOG_DEBUG, quiet, NULL);
    code_open();
    if (arguments.bug != 0)
        return hunt(&arguments, arguments.bug, true) ? 0 : 1;
    if (!arguments.bugs)
        return explore_worlds(&arguments) ? 0 : 1;
    for (uint32_t bug = 1; bug < BUG_LAST; bug++)
        all &= is_for_simulator[bug] || hunt(&arguments, bug, false);
    return all ? 0 : 1;
}
