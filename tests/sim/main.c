/*
 * tests/sim/main.c - runs many schedules, proves that planted bugs are caught, counts messages, and
 * prints the result.
 *
 *   sim [--seeds N] [--first S]   N schedules from seed S on, over all cores; then the planted
 *                                 bugs; then message counts
 *   sim --seed S                  that schedule alone, event by event
 *   sim --seed S --bug B          the same with planted bug B (agent/core/core_state.h)
 *
 * With --hard 1 each schedule has more of everything (setup_harden), so a seed means something else
 * than without it.
 *
 * The last line is the result. Exits 0 only if
 *  - nothing was lost or torn, and no other check failed,
 *  - every planted bug was caught,
 *  - messages grow no faster than log2 of the nodes, and
 *  - memory does not grow with the generations.
 */
#include "agent/core/core_state.h"
#include "base/log.h"
#include "tests/sim/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SEEDS_DEFAULT = 10000,
    WORKERS_MAX = 64,
    BUG_SEEDS_MAX = 2000, /* a planted bug must be caught within so many schedules */
    REPORTED_MAX = 20,
    SCALE_GENERATIONS = 6
};

struct tally {
    uint64_t schedules, lost, torn, other, first_failing; /* first_failing 0: none */
    uint64_t events, commits, restores, refused, repairs;
};

static void
log_nothing(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void
log_line(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    (void)level;
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
    if (result->verdict == VERDICT_GOOD)
        return;
    if (tally->lost + tally->torn + tally->other <= REPORTED_MAX)
        fprintf(stderr, "sim: seed %llu failed: %s\n", (unsigned long long)seed, result->why);
    if (tally->first_failing == 0 || seed < tally->first_failing)
        tally->first_failing = seed;
}

/* Every `stride`-th seed from `first` on, in a process of its own. */
static void
work(uint64_t first, uint64_t end, uint64_t stride, bool hard, struct tally *tally)
{
    for (uint64_t seed = first; seed < end; seed += stride) {
        struct setup setup;
        struct run_result result;

        setup_from_seed(seed, &setup);
        if (hard)
            setup_harden(&setup);
        run_schedule(&setup, BUG_NONE, false, &result);
        add_result(tally, seed, &result);
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
    if (from->first_failing && (!into->first_failing || from->first_failing < into->first_failing))
        into->first_failing = from->first_failing;
}

/* Spreads the seeds over the cores. A worker that dies has failed: its seeds are run again one by
 * one to find which. */
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
            fprintf(stderr,
                    "sim: a worker died (seeds %llu, %llu, …): an assertion does not hold\n",
                    (unsigned long long)(first + w), (unsigned long long)(first + w + workers));
            tally.other++;
            tally.first_failing = first + w;
        }
        close(pipes[w][0]);
        waitpid(pids[w], &status, 0);
        merge(total, &tally);
    }
}

/* True when some schedule fails with the bug planted; a crash of the code under test counts. */
static bool
bug_is_caught(uint32_t bug, uint64_t *at_seed)
{
    for (uint64_t seed = 1; seed <= BUG_SEEDS_MAX; seed++) {
        struct setup setup;
        struct run_result result;
        int status = 0;
        pid_t pid;

        setup_from_seed(seed, &setup);
        if (setup.agent_count > 64)
            continue;
        fflush(NULL);
        pid = fork();
        if (pid == 0) {
            if (!freopen("/dev/null", "w", stderr))
                _exit(2);
            run_schedule(&setup, bug, false, &result);
            _exit(result.verdict != VERDICT_GOOD);
        }
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
            return false;
        *at_seed = seed;
        if (!WIFEXITED(status) || WEXITSTATUS(status) == 1)
            return true;
    }
    return false;
}

/* A job without faults that ends after so many committed generations. */
static struct setup
calm(uint32_t agent_count, uint64_t generations)
{
    struct setup setup;

    setup_from_seed(1, &setup);
    setup.agent_count = agent_count;
    setup.spare_count = 0;
    setup.parity = 2;
    setup.group_size = 8;
    setup.domain_count = 16;
    setup.ranks = 1;
    setup.rank_blocks_max = 6;
    setup.slot_blocks = 6;
    setup.parity_blocks = 12;
    setup.slots = 2;
    setup.every_steps = 1;
    setup.step_ns = 4 * SECOND_NS;
    setup.fault_count = 0;
    setup.crash_within_step = 0;
    setup.beyond = setup.spills = setup.exam = setup.untiled = false;
    setup.repair_after_ns = 0;
    setup.generations_wanted = generations;
    return setup;
}

/* What cores and their memory take does not grow with the generations. */
static bool
memory_is_bounded(void)
{
    struct setup few = calm(64, SCALE_GENERATIONS), many = calm(64, 10 * SCALE_GENERATIONS);
    struct run_result after_few, after_many;

    run_schedule(&few, BUG_NONE, false, &after_few);
    run_schedule(&many, BUG_NONE, false, &after_many);
    printf("sim: 64 nodes: %llu KiB per node after %d generations, %llu KiB after %d\n",
           (unsigned long long)(after_few.heap_bytes / 64 / 1024), SCALE_GENERATIONS,
           (unsigned long long)(after_many.heap_bytes / 64 / 1024), 10 * SCALE_GENERATIONS);
    return after_few.verdict == VERDICT_GOOD && after_many.verdict == VERDICT_GOOD &&
           (after_few.heap_bytes == 0 || /* a sanitizer's heap does not count */
            after_many.heap_bytes < after_few.heap_bytes + after_few.heap_bytes / 10);
}

/* Control messages per node and committed generation, without faults, at growing sizes. */
static bool
count_messages(void)
{
    static const uint32_t sizes[] = {64, 256, 1024};
    double per_log[3] = {0};

    for (uint32_t i = 0; i < 3; i++) {
        struct setup setup = calm(sizes[i], SCALE_GENERATIONS);
        struct run_result result;
        double per_node;

        run_schedule(&setup, BUG_NONE, false, &result);
        if (result.verdict != VERDICT_GOOD || result.counters.commits == 0) {
            printf("sim: %u nodes without faults: %s\n", sizes[i], result.why);
            return false;
        }
        per_node = (double)result.counters.control_messages /
                   ((double)sizes[i] * (double)result.counters.commits);
        per_log[i] = per_node / log2(sizes[i]);
        printf(
            "sim: %u nodes: %.1f control messages per node and generation, %.2f per log2(nodes)\n",
            sizes[i], per_node, per_log[i]);
    }
    return per_log[1] <= 1.1 * per_log[0] && per_log[2] <= 1.1 * per_log[0];
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
run_all(uint64_t first, uint64_t seeds, bool hard)
{
    struct tally total = {0};
    uint32_t caught = 0;
    bool scales, bounded;
    char failing[32] = "none";

    cairn_log_setup(CAIRN_LOG_ERROR, log_nothing, NULL);
    run_seeds(first, seeds, hard, &total);
    printf("sim: %llu events, %llu generations committed, %llu restores ended in data, %llu in a "
           "refusal, %llu repairs by "
           "themselves\n",
           (unsigned long long)total.events, (unsigned long long)total.commits,
           (unsigned long long)total.restores, (unsigned long long)total.refused,
           (unsigned long long)total.repairs);
    for (uint32_t bug = 1; bug < BUG_LAST; bug++) {
        uint64_t seed = 0;

        if (bug_is_caught(bug, &seed))
            caught++;
        else
            printf("sim: planted bug %u is not caught within %d schedules\n", bug, BUG_SEEDS_MAX);
    }
    scales = count_messages();
    bounded = memory_is_bounded();
    if (total.lost + total.torn + total.other == 0)
        printf("sim: no failure in %llu independent schedules bounds the rate of failing ones "
               "below %.2g (95 %%), of "
               "schedules drawn from this generator\n",
               (unsigned long long)total.schedules, 3.0 / (double)total.schedules);
    if (total.other)
        printf("sim: %llu schedules failed another check\n", (unsigned long long)total.other);
    if (!scales)
        printf("sim: control messages grow faster than log2 of the nodes\n");
    if (!bounded)
        printf("sim: memory grows with the generations\n");
    if (total.first_failing)
        snprintf(failing, sizeof failing, "%llu", (unsigned long long)total.first_failing);
    printf("sim: %llu schedules, %llu lost, %llu torn, %u planted bugs caught of %u, first failing "
           "seed %s\n",
           (unsigned long long)total.schedules, (unsigned long long)total.lost,
           (unsigned long long)total.torn, caught, (uint32_t)BUG_LAST - 1, failing);
    return total.lost || total.torn || total.other || caught != BUG_LAST - 1 || !scales || !bounded;
}

int
main(int argc, char **argv)
{
    uint64_t seeds = SEEDS_DEFAULT, first = 1, seed = 0;
    uint32_t bug = BUG_NONE;
    bool hard = false;

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
        else if (strcmp(argv[i], "--bug") == 0 && value < BUG_LAST)
            bug = (uint32_t)value;
        else {
            fprintf(
                stderr,
                "usage: sim [--seeds N] [--first S] [--hard 1] | --seed S [--bug B] [--hard 1]\n");
            return 64;
        }
    }
    return seed ? replay(seed, bug, hard) : run_all(first, seeds, hard);
}
