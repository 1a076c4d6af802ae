/*
 * tests/placements/main.c - runs many schedules of the placements' two state machines, then plants
 * bugs and counts in how many schedules each is caught; see world.h.
 *
 *   placements [--seeds N]            N schedules over all cores; then the planted bugs
 *   placements --seed S [--bug B]     that schedule alone, tick by tick (client/placement_bugs.h)
 *
 * The last line is the result. Exits 0 only if no schedule broke anything, everything that should
 * happen did happen, and every planted bug was caught.
 */
#include "tests/placements/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SEEDS_DEFAULT = 10000,
    BUG_SEEDS = 300,
    SHOWN_MAX = 10 /* of each worker */,
    WORKERS_MAX = 64
};

enum placement_bug placement_bug;
static int outputs[WORKERS_MAX]; /* of the workers */
static uint32_t worker_count;

struct tally {
    uint64_t schedules, broken, first; /* first: the lowest seed that broke, and 1 */
    struct counters counters;
    char why[WHY_BYTES];
};

static void
add(struct counters *into, const struct counters *from)
{
    uint64_t *to = (uint64_t *)into;
    const uint64_t *more = (const uint64_t *)from;

    for (size_t i = 0; i < sizeof *into / sizeof *to; i++)
        to[i] += more[i];
}

static void
merge(struct tally *into, const struct tally *from)
{
    into->schedules += from->schedules;
    into->broken += from->broken;
    add(&into->counters, &from->counters);
    if (from->first && (!into->first || from->first < into->first)) {
        into->first = from->first;
        memcpy(into->why, from->why, sizeof into->why);
    }
}

/* Every `stride`-th seed from `first` on. */
static void
run_some(uint64_t first, uint64_t end, uint64_t stride, struct tally *tally)
{
    static struct world world;

    for (uint64_t seed = first; seed < end; seed += stride) {
        bool holds = world_run(&world, seed, false);

        tally->schedules++;
        add(&tally->counters, &world.counters);
        if (holds)
            continue;
        if (tally->broken++ < SHOWN_MAX && placement_bug == PLACEMENT_BUG_NONE)
            fprintf(stderr, "placements: --seed %llu: %s\n", (unsigned long long)seed, world.why);
        if (!tally->first) {
            tally->first = seed + 1;
            memcpy(tally->why, world.why, sizeof tally->why);
        }
    }
}

/* Reads the next tally of a worker. */
static struct tally
read_tally(int from)
{
    struct tally tally = {0};

    if (read(from, &tally, sizeof tally) != sizeof tally)
        tally = (struct tally){.broken = 1, .first = 1, .why = "a worker died"};
    return tally;
}

static void
write_tally(int to, const struct tally *tally)
{
    if (write(to, tally, sizeof *tally) != sizeof *tally)
        _exit(1);
}

/* Starts a process that writes to *from what it finds. */
static pid_t
start(int *from, int *to)
{
    int ends[2];
    pid_t pid;

    fflush(NULL);
    if (pipe(ends) != 0 || (pid = fork()) < 0) {
        perror("placements: cannot start a worker");
        exit(1);
    }
    close(ends[pid == 0 ? 0 : 1]);
    *from = ends[0];
    *to = ends[1];
    return pid;
}

/* In a process of its own, with all plans that this one has made: a crash of the code under test
 * breaks all of its schedules. */
static struct tally
run_apart(uint64_t first, uint64_t end, uint64_t stride)
{
    struct tally tally = {0};
    int from, to;
    pid_t pid = start(&from, &to);

    if (pid == 0) {
        run_some(first, end, stride, &tally);
        write_tally(to, &tally);
        _exit(0);
    }
    tally = read_tally(from);
    close(from);
    (void)waitpid(pid, NULL, 0);
    return tally;
}

/* A worker's share of all schedules, and of those with each planted bug. */
static _Noreturn void
work(uint32_t worker, uint32_t workers, uint64_t seeds, int to)
{
    struct tally tally = {0};

    run_some(worker, seeds, workers, &tally);
    write_tally(to, &tally);
    for (int bug = PLACEMENT_BUG_NONE + 1; bug < PLACEMENT_BUG_LAST; bug++) {
        placement_bug = (enum placement_bug)bug;
        tally = run_apart(worker, BUG_SEEDS, workers);
        write_tally(to, &tally);
    }
    _exit(0);
}

/* Spreads the seeds over the cores: one worker each. */
static void
start_workers(uint64_t seeds)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    worker_count = cores < 1 ? 1 : cores > WORKERS_MAX ? WORKERS_MAX : (uint32_t)cores;
    for (uint32_t w = 0; w < worker_count; w++) {
        int to;

        if (start(&outputs[w], &to) == 0)
            work(w, worker_count, seeds, to);
    }
}

/* What all workers have found next. */
static struct tally
collect(void)
{
    struct tally total = {0};

    for (uint32_t w = 0; w < worker_count; w++) {
        struct tally tally = read_tally(outputs[w]);

        merge(&total, &tally);
    }
    return total;
}

static bool
report_schedules(const struct tally *tally)
{
    const struct counters *c = &tally->counters;

    printf("%llu schedules, %llu events of analysts, %llu steps\n",
           (unsigned long long)tally->schedules, (unsigned long long)c->events,
           (unsigned long long)c->steps);
    printf("offers %llu, taken %llu; moves %llu, given up %llu; kept %llu, taken back %llu, failed "
           "%llu, aged %llu; home %llu; days spent %llu\n",
           (unsigned long long)c->offers, (unsigned long long)c->taken,
           (unsigned long long)c->moves, (unsigned long long)c->abandoned,
           (unsigned long long)c->kept, (unsigned long long)c->taken_back,
           (unsigned long long)c->failed, (unsigned long long)c->aged, (unsigned long long)c->homes,
           (unsigned long long)c->spent);
    printf("approvals %llu, denials %llu, --back %llu, --now %llu; agents died %llu, takeovers "
           "%llu, restarts of the job %llu\n",
           (unsigned long long)c->approvals, (unsigned long long)c->denials,
           (unsigned long long)c->backs, (unsigned long long)c->nows, (unsigned long long)c->deaths,
           (unsigned long long)c->takeovers, (unsigned long long)c->restarts);
    printf("rounds that a gate refused: gain %llu, commit %llu, slots %llu\n",
           (unsigned long long)c->refused_gain, (unsigned long long)c->refused_commit,
           (unsigned long long)c->refused_slots);
    printf("relaunches proposed %llu, approved %llu, carried out %llu, home again %llu, kept %llu, "
           "aged %llu\n",
           (unsigned long long)c->relaunches_proposed, (unsigned long long)c->relaunches_approved,
           (unsigned long long)c->relaunches, (unsigned long long)c->relaunches_home,
           (unsigned long long)c->relaunches_kept, (unsigned long long)c->relaunches_aged);
    if (tally->broken)
        printf("BROKEN in %llu schedules, first in --seed %llu: %s\n",
               (unsigned long long)tally->broken, (unsigned long long)tally->first - 1, tally->why);
    return !tally->broken;
}

/* Everything that the machines can do has been done. */
static bool
has_covered(const struct tally *tally)
{
    const uint64_t *counters = (const uint64_t *)&tally->counters;

    for (size_t i = 0; i < sizeof tally->counters / sizeof *counters; i++)
        if (counters[i] == 0) {
            printf("counter %zu is 0: something never happens\n", i);
            return false;
        }
    return true;
}

static uint32_t
plant(void)
{
    static const char *const names[] = {[PLACEMENT_BUG_FREES_EARLY] = "frees old early",
                                        [PLACEMENT_BUG_ENTERS_ALONE] = "enters without the MIN",
                                        [PLACEMENT_BUG_IGNORES_EPOCH] = "ignores the epoch",
                                        [PLACEMENT_BUG_FILLS_UNVERIFIED] = "fills unverified",
                                        [PLACEMENT_BUG_LOSES_ONE] = "shares lose one",
                                        [PLACEMENT_BUG_ABORT_KEEPS_NEW] = "abort keeps new",
                                        [PLACEMENT_BUG_VOTES_LATE] = "votes late after timeout",
                                        [PLACEMENT_BUG_REGISTER_DROPS] = "register drops S",
                                        [PLACEMENT_BUG_NUMBER_TWICE] = "number used twice",
                                        [PLACEMENT_BUG_NEVER_WITHDRAWN] = "offer never withdrawn",
                                        [PLACEMENT_BUG_FORGETS_DENIAL] = "forgets a denial",
                                        [PLACEMENT_BUG_DECIDES_TWICE] = "decides twice",
                                        [PLACEMENT_BUG_OVERSPENDS] = "overspends",
                                        [PLACEMENT_BUG_NO_PROBATION] = "no probation",
                                        [PLACEMENT_BUG_HASTY_HOME] = "goes home too early",
                                        [PLACEMENT_BUG_OFFERS_UNSTORED] = "tells before it stores",
                                        [PLACEMENT_BUG_SMALL_GAIN] = "gains next to nothing",
                                        [PLACEMENT_BUG_OLD_COMMIT] = "moves without a new commit",
                                        [PLACEMENT_BUG_OVERFILLS] = "overfills a node's slots",
                                        [PLACEMENT_BUG_RELAUNCH_UNASKED] = "relaunch unasked",
                                        [PLACEMENT_BUG_BLIND_TO_SHAPE] = "blind to the shape"};
    uint32_t missed = 0;

    for (int bug = PLACEMENT_BUG_NONE + 1; bug < PLACEMENT_BUG_LAST; bug++) {
        struct tally tally = collect();

        printf("bug %2d %-24s caught by %4llu of %llu schedules%s%s\n", bug, names[bug],
               (unsigned long long)tally.broken, (unsigned long long)tally.schedules,
               tally.broken ? ": " : ": MISSED", tally.why);
        missed += tally.broken == 0;
    }
    return missed;
}

static int
run_one(uint64_t seed)
{
    static struct world world;
    bool holds = world_run(&world, seed, true);

    printf("seed %llu: %s\n", (unsigned long long)seed, holds ? "holds" : world.why);
    return holds ? 0 : 1;
}

int
main(int argc, char **argv)
{
    uint64_t seeds = SEEDS_DEFAULT, seed = UINT64_MAX;
    struct tally tally;
    uint32_t missed;
    bool holds;

    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t value = strtoull(argv[i + 1], NULL, 10);

        if (strcmp(argv[i], "--seeds") == 0)
            seeds = value;
        else if (strcmp(argv[i], "--seed") == 0)
            seed = value;
        else if (strcmp(argv[i], "--bug") == 0)
            placement_bug = (enum placement_bug)value;
    }
    if (seed != UINT64_MAX)
        return run_one(seed);
    start_workers(seeds);
    tally = collect();
    holds = report_schedules(&tally) && has_covered(&tally);
    missed = plant();
    for (uint32_t w = 0; w < worker_count; w++)
        (void)wait(NULL);
    printf("placements: %s, %u planted bugs missed\n", holds ? "everything held" : "BROKEN",
           missed);
    return holds && missed == 0 ? 0 : 1;
}
