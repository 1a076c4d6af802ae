/*
 * tests/sim/main.c - runs many schedules, proves that planted bugs are caught, counts messages
 * (scale.c), and prints the result.
 *
 *   sim [--seeds N] [--first S]   N schedules from seed S on, over all cores; then the planted
 *                                 bugs; then message counts
 *   sim --seed S                  that schedule alone, event by event
 *   sim --seed S --bug B          the same with planted bug B (agent/core/env/planted.h)
 *   sim --alone 1 [--seeds N] …   only the schedules
 *   sim --agents N                message counts alone, with up to N agents
 *
 * With --hard 1 each schedule has more of everything (setup_harden), so a seed means something else
 * than without it.
 *
 * The last line is the result. Exits 0 only if
 *  - nothing was lost or torn, and no other check failed,
 *  - every planted bug was caught, but for those that are left to tests/explore,
 *  - messages of any node grow no faster than the square root of the nodes, and
 *  - memory does not grow with the generations.
 */
#include "agent/core/env/planted.h"
#include "base/log.h"
#include "tests/sim/sim.h"
#include "tests/support/quiet_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SEEDS_DEFAULT = 10000,
    WORKERS_MAX = 64,
    BUG_SEEDS_MAX = 2000, /* a planted bug must be caught within so many schedules */
    REPORTED_MAX = 40,
    AGENTS_DEFAULT = 1024
};

struct tally {
    uint64_t schedules, lost, torn, other, first_failing; /* first_failing 0: none */
    uint64_t events, commits, restores, refused, repairs, runs, breaks, leaves, views;
};

static void
log_line(void *context, enum cairn_log_level level, const char *line)
{
    printf("              log: %s\n", line);
}

static void
add_result(struct tally *tally, uint64_t seed, const struct run_result *result)
{
    tally->schedules++;
    tally->lost += result->verdict == VERDICT_LOST;
    tally->torn += result->verdict == VERDICT_TORN;
    tally->other += result->verdict == VERDICT_OTHER;
    tally->events += result->counters.events;
    tally->commits += result->counters.commits;
    tally->restores += result->counters.restores;
    tally->refused += result->counters.restores_lost;
    tally->repairs += result->counters.repairs;
    tally->runs += result->counters.runs;
    tally->breaks += result->counters.breaks;
    tally->leaves += result->counters.leaves;
    tally->views += result->counters.views;
    if (result->verdict == VERDICT_GOOD)
        return;
    if (tally->lost + tally->torn + tally->other <= REPORTED_MAX)
        fprintf(stderr, "sim: seed %llu failed: %s\n", (unsigned long long)seed, result->why);
    if (tally->first_failing == 0 || seed < tally->first_failing)
        tally->first_failing = seed;
}

/* Runs every `stride`-th seed from `first` on, and writes the results. */
static void
run_some(uint64_t first, uint64_t end, uint64_t stride, bool hard, int out)
{
    for (uint64_t seed = first; seed < end; seed += stride) {
        struct setup setup;
        struct run_result result;

        setup_from_seed(seed, &setup);
        if (hard)
            setup_harden(&setup);
        run_schedule(&setup, BUG_NONE, false, &result);
        if (write(out, &result, sizeof result) != sizeof result)
            _exit(1);
    }
    _exit(0);
}

/* The same in a process of its own, which is replaced after a schedule that it dies of. */
static void
work(uint64_t first, uint64_t end, uint64_t stride, bool hard, struct tally *tally)
{
    uint64_t seed = first;

    while (seed < end) {
        struct run_result result;
        int results[2];
        pid_t pid;

        fflush(NULL);
        if (pipe(results) != 0 || (pid = fork()) < 0) {
            perror("sim: cannot start a worker");
            exit(1);
        }
        if (pid == 0)
            run_some(seed, end, stride, hard, results[1]);
        close(results[1]);
        for (; seed < end && read(results[0], &result, sizeof result) == sizeof result;
             seed += stride)
            add_result(tally, seed, &result);
        close(results[0]);
        waitpid(pid, NULL, 0);
        if (seed < end) {
            result = (struct run_result){.verdict = VERDICT_OTHER, .why = "an assertion fails"};
            add_result(tally, seed, &result);
            seed += stride;
        }
    }
}

static void
merge(struct tally *into, const struct tally *from)
{
    into->schedules += from->schedules;
    into->lost += from->lost;
    into->torn += from->torn;
    into->other += from->other;
    into->events += from->events;
    into->commits += from->commits;
    into->restores += from->restores;
    into->refused += from->refused;
    into->repairs += from->repairs;
    into->runs += from->runs;
    into->breaks += from->breaks;
    into->leaves += from->leaves;
    into->views += from->views;
    if (from->first_failing && (!into->first_failing || from->first_failing < into->first_failing))
        into->first_failing = from->first_failing;
}

/* Spreads the seeds over the cores. */
static void
run_seeds(uint64_t first, uint64_t count, bool hard, struct tally *total)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t workers = cores < 1 ? 1 : cores > WORKERS_MAX ? WORKERS_MAX : (uint32_t)cores;
    int pipes[WORKERS_MAX][2];
    pid_t pids[WORKERS_MAX];

    for (uint32_t w = 0; w < workers; w++) {
        fflush(NULL);
        if (pipe(pipes[w]) != 0 || (pids[w] = fork()) < 0) {
            perror("sim: cannot start a worker");
            exit(1);
        }
        if (pids[w] == 0) {
            struct tally tally = {0};

            work(first + w, first + count, workers, hard, &tally);
            _exit(write(pipes[w][1], &tally, sizeof tally) == sizeof tally ? 0 : 1);
        }
        close(pipes[w][1]);
    }
    for (uint32_t w = 0; w < workers; w++) {
        struct tally tally = {0};
        int status = 0;

        if (read(pipes[w][0], &tally, sizeof tally) != sizeof tally) {
            fprintf(stderr, "sim: a worker died\n");
            tally.other++;
            tally.first_failing = first + w;
        }
        close(pipes[w][0]);
        waitpid(pids[w], &status, 0);
        merge(total, &tally);
    }
}

/* True when the schedule fails; a crash of the code under test counts. */
static bool
fails(const struct setup *setup, uint32_t bug)
{
    struct run_result result;
    int status = 0;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(2);
        run_schedule(setup, bug, false, &result);
        _exit(result.verdict != VERDICT_GOOD);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid &&
           (!WIFEXITED(status) || WEXITSTATUS(status) == 1);
}

/* What takes one order of events of a few agents: tests/explore finds it, and no seed in time. */
static bool
is_left_to_explorer(uint32_t bug)
{
    return bug == BUG_ACCEPT_OLD_EPOCH || bug == BUG_HASTY_REBUILD || bug == BUG_FORGETFUL_MEMBER ||
           bug == BUG_STALE_CLAIM || bug == BUG_FORGET_PROMISE || bug == BUG_KNOWS_EARLY ||
           bug == BUG_CLAIM_OUTLIVES;
}

/* True when some schedule fails with the bug planted, and only then. */
static bool
bug_is_caught(uint32_t bug, uint64_t *at_seed)
{
    for (uint64_t seed = 1; seed <= BUG_SEEDS_MAX; seed++) {
        struct setup setup;

        *at_seed = seed;
        setup_from_seed(seed, &setup);
        if (setup.agent_count <= 64 && fails(&setup, bug) && !fails(&setup, BUG_NONE))
            return true;
    }
    return false;
}

static int
replay(uint64_t seed, uint32_t bug, bool hard)
{
    struct setup setup;
    struct run_result result;

    cairn_log_setup(CAIRN_LOG_DEBUG, log_line, NULL);
    setup_from_seed(seed, &setup);
    if (hard)
        setup_harden(&setup);
    setup_print(&setup);
    run_schedule(&setup, bug, true, &result);
    printf("sim: seed %llu: %s (events %llu, hash %016llx)\n", (unsigned long long)seed,
           result.verdict == VERDICT_GOOD ? "good" : result.why,
           (unsigned long long)result.counters.events, (unsigned long long)result.hash);
    return result.verdict != VERDICT_GOOD;
}

static int
run_all(uint64_t first, uint64_t seeds, bool hard, uint32_t agents_max)
{
    struct tally total = {0};
    uint32_t caught = 0, planted = 0;
    bool scales, bounded;
    char failing[32] = "none";

    run_seeds(first, seeds, hard, &total);
    printf("sim: %llu events, %llu runs, %llu generations committed, %llu sessions broken, %llu "
           "left, %llu "
           "restores ended in data, %llu in a refusal, %llu repairs by themselves, %llu statements "
           "of protection compared\n",
           (unsigned long long)total.events, (unsigned long long)total.runs,
           (unsigned long long)total.commits, (unsigned long long)total.breaks,
           (unsigned long long)total.leaves, (unsigned long long)total.restores,
           (unsigned long long)total.refused, (unsigned long long)total.repairs,
           (unsigned long long)total.views);
    if (!agents_max) {
        printf("sim: %llu schedules, %llu lost, %llu torn, %llu other\n",
               (unsigned long long)total.schedules, (unsigned long long)total.lost,
               (unsigned long long)total.torn, (unsigned long long)total.other);
        return total.first_failing != 0;
    }
    for (uint32_t bug = 1; bug < BUG_LAST; bug++) {
        uint64_t seed = 0;

        if (is_left_to_explorer(bug))
            continue;
        planted++;
        if (bug_is_caught(bug, &seed)) {
            caught++;
            printf("sim: planted bug %u is caught by seed %llu\n", bug, (unsigned long long)seed);
        } else
            printf("sim: planted bug %u is not caught within %d schedules\n", bug, BUG_SEEDS_MAX);
    }
    scales = scale_is_good(agents_max);
    bounded = memory_is_bounded();
    if (total.lost + total.torn + total.other == 0)
        printf("sim: no failure in %llu independent schedules bounds the rate of failures "
               "below %.2g (95 %%), of "
               "schedules drawn from this generator\n",
               (unsigned long long)total.schedules, 3.0 / (double)total.schedules);
    if (total.other)
        printf("sim: %llu schedules failed another check\n", (unsigned long long)total.other);
    if (!scales)
        printf("sim: messages or sessions of a node grow too fast\n");
    if (!bounded)
        printf("sim: memory grows with the generations\n");
    if (total.first_failing)
        snprintf(failing, sizeof failing, "%llu", (unsigned long long)total.first_failing);
    printf("sim: %llu schedules, %llu lost, %llu torn, %u planted bugs caught of %u, first failing "
           "seed %s\n",
           (unsigned long long)total.schedules, (unsigned long long)total.lost,
           (unsigned long long)total.torn, caught, planted, failing);
    return total.lost || total.torn || total.other || caught != planted || !scales || !bounded;
}

int
main(int argc, char **argv)
{
    uint64_t seeds = SEEDS_DEFAULT, first = 1, seed = 0;
    uint32_t bug = BUG_NONE;
    uint32_t agents_max = AGENTS_DEFAULT;
    bool hard = false, scale_only = false;

    for (int i = 1; i < argc; i += 2) {
        uint64_t value = i + 1 < argc ? strtoull(argv[i + 1], NULL, 0) : 0;

        if (strcmp(argv[i], "--seeds") == 0 && value)
            seeds = value;
        else if (strcmp(argv[i], "--first") == 0 && value)
            first = value;
        else if (strcmp(argv[i], "--seed") == 0 && value)
            seed = value;
        else if (strcmp(argv[i], "--hard") == 0 && value)
            hard = value == 1;
        else if (strcmp(argv[i], "--alone") == 0 && value == 1)
            agents_max = 0;
        else if (strcmp(argv[i], "--agents") == 0 && value) {
            agents_max = (uint32_t)value;
            scale_only = true;
        } else if (strcmp(argv[i], "--bug") == 0 && value < BUG_LAST)
            bug = (uint32_t)value;
        else {
            fprintf(
                stderr,
                "usage: sim [--seeds N] [--first S] [--hard 1] [--alone 1] | --seed S [--bug B] "
                "[--hard 1] | --agents N\n");
            return 64;
        }
    }
    if (seed)
        return replay(seed, bug, hard);
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    if (scale_only)
        return !scale_is_good(agents_max);
    return run_all(first, seeds, hard, agents_max);
}
