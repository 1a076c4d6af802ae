/*
 * tests/cluster/trainer.c - a trainer whose state after every step is known beforehand.
 *
 * Element i of tensor t after step s is value(s, t, i). So a restore can tell at once
 * whether all bytes, of all ranks, are those of one and the same step. The ranks hold uneven parts
 * of one tensor, and replicas of another; they keep step through a shared file. It uses
 * include/cairn/ and nothing else of ours.
 *
 *   trainer --rank R --world W --parts P --agent SOCKET --barrier FILE [--elements N] [--steps N]
 * [--step-us T]
 *           [--restore-ms T] [--resume | --check] [--timing] [--salt N] [--wait-us T]
 *           [--launch N] [--weights | --rejects] [--slow-storage | --slow-loader]
 *
 * P is the number of ranks that train: the size of the tensor follows from it, and with W = P the
 * uneven parts. --check restores, compares, and ends. Lines on stdout: "begun S" after a snapshot
 * was begun, "restored E S" (the epoch as people name it), "fresh", "torn …". Exit: 0 done, 3 torn,
 * 75 an error of the client, 64 wrong usage. SIGTERM ends it in good order. With --timing the wait
 * for the others is timed as a collective; SIGUSR1 makes the rank's steps four times as long,
 * SIGUSR2 as long as before. With --slow-storage it spends the longer steps in the state of a
 * process that waits for a disk; with --slow-loader a child process does, for which it waits.
 * All values of two jobs with different salts differ. --wait-us is the
 * pause between two looks at the others. With --weights or --rejects the ranks also hold parts of a
 * tensor of bfloat16, and a mask of infinities. From a SIGHUP on a weight of that rank is NaN, or
 * it rejects its steps. "finite" or "not finite", of the weights, follows "restored". Where the
 * agent asks for it, a rank prints "stopped" and ends with 1.
 */
#include "cairn/client.h"
#include "cairn/timing.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    RANKS_MAX = 64,
    SHARED_ELEMENTS = 5000,
    SLICES = 5,
    SLICES_WITHOUT_WEIGHTS = 3,
    WEIGHTS = 3000, /* of a rank */
    BF16_ONE = 0x3f80,
    BF16_INFINITY = 0x7f80,
    BF16_NAN = 0x7fc0,
    EPOCH_CLAIMANT_BITS = 16,
    RING_RECORDS = 1 << 12,
    NAP_MAX_US = 5000,  /* of a rank that waits for others */
    TRANSFER_US = 1000, /* of a timed collective, from the last arrival on */
    COMMUNICATOR = 0xc1
};

enum { EXIT_TORN = 3, EXIT_USAGE = 64, EXIT_CLIENT = 75 };

struct progress {
    uint64_t step;
    uint64_t check; /* value(step, 2, 0) */
};

struct trainer {
    uint32_t rank, world, parts;
    const char *agent;
    const char *barrier;
    uint64_t elements; /* of a part, about */
    uint64_t steps;
    uint64_t step_us;
    uint64_t restore_ms;
    uint64_t wait_us;
    uint64_t launch;
    bool resume, check, timed, has_weights, rejects;
    bool misplaced; /* it registers its part of the divided tensor as the first rank's; a SIGHUP
                     * ends that */

    uint64_t total, begin, count; /* of the divided tensor: all, and this rank's part */
    uint64_t *divided;
    uint64_t shared[SHARED_ELEMENTS];
    struct progress progress;
    uint16_t weights[WEIGHTS], mask[WEIGHTS];
    struct cairn_client *client;
    struct cairn_timing *timing; /* NULL: nothing is timed */
    _Atomic uint64_t *board;     /* [RANKS_MAX]: the step that each rank has done */
};

static volatile sig_atomic_t ended, slow, mended, bad;

static void
on_signal(int number)
{
    if (number == SIGTERM)
        ended = number;
    else if (number == SIGHUP)
        mended = bad = number;
    else
        slow = number == SIGUSR1;
}

static uint64_t salt;

/* splitmix64 over the three */
static uint64_t
value(uint64_t step, uint64_t tensor, uint64_t index)
{
    uint64_t z =
        step * UINT64_C(0x9e3779b97f4a7c15) + tensor * UINT64_C(0xd1342543de82ef95) + index + salt;

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* ---- the parts ---- */

static uint64_t
part_elements(const struct trainer *trainer, uint32_t part)
{
    return trainer->elements + trainer->elements / 4 * (part % 3);
}

static void
divide(struct trainer *trainer)
{
    trainer->total = 0;
    trainer->begin = 0;
    for (uint32_t p = 0; p < trainer->parts; p++) {
        if (p < trainer->rank)
            trainer->begin += part_elements(trainer, p);
        trainer->total += part_elements(trainer, p);
    }
    trainer->count = part_elements(trainer, trainer->rank);
    if (trainer->world == trainer->parts)
        return;
    trainer->begin = trainer->total * trainer->rank / trainer->world;
    trainer->count = trainer->total * (trainer->rank + 1) / trainer->world - trainer->begin;
}

static void
update(struct trainer *trainer, uint64_t step)
{
    for (uint64_t i = 0; i < trainer->count; i++)
        trainer->divided[i] = value(step, 0, trainer->begin + i);
    for (uint64_t i = 0; i < SHARED_ELEMENTS; i++)
        trainer->shared[i] = value(step, 1, i);
    trainer->progress = (struct progress){step, value(step, 2, 0)};
    for (uint32_t i = 0; i < WEIGHTS; i++) {
        trainer->weights[i] = BF16_ONE;
        trainer->mask[i] = BF16_INFINITY;
    }
    if (bad && !trainer->rejects)
        trainer->weights[WEIGHTS - 1] = BF16_NAN;
}

static bool
is_finite(const struct trainer *trainer)
{
    for (uint32_t i = 0; i < WEIGHTS; i++)
        if ((trainer->weights[i] & BF16_INFINITY) == BF16_INFINITY)
            return false;
    return true;
}

static bool
torn(const struct trainer *trainer, uint64_t step)
{
    uint64_t wrong = 0, first = 0;

    for (uint64_t i = 0; i < trainer->count; i++)
        if (trainer->divided[i] != value(step, 0, trainer->begin + i) && wrong++ == 0)
            first = trainer->begin + i;
    for (uint64_t i = 0; i < SHARED_ELEMENTS; i++)
        if (trainer->shared[i] != value(step, 1, i) && wrong++ == 0)
            first = i;
    if (trainer->progress.step != step || trainer->progress.check != value(step, 2, 0))
        wrong++;
    if (wrong)
        printf("torn step %" PRIu64 " wrong %" PRIu64 " first %" PRIu64 " progress %" PRIu64 "\n",
               step, wrong, first, trainer->progress.step);
    return wrong > 0;
}

static cairn_err
register_all(struct trainer *trainer)
{
    const struct cairn_slice slices[SLICES] = {
        {CAIRN_SLICE_INIT, .name = "divided", .dtype = CAIRN_U64, .kind = CAIRN_PARAM, .dims = 1,
         .shape = {trainer->total}, .offset = {trainer->misplaced ? 0 : trainer->begin},
         .extent = {trainer->count}, .replica_count = 1, .address = trainer->divided, .device = -1},
        {CAIRN_SLICE_INIT, .name = "shared", .dtype = CAIRN_U64, .kind = CAIRN_OPTIMIZER, .dims = 2,
         .shape = {SHARED_ELEMENTS / 100, 100}, .extent = {SHARED_ELEMENTS / 100, 100},
         .replica_index = trainer->rank, .replica_count = trainer->world,
         .address = trainer->shared, .device = -1},
        {CAIRN_SLICE_INIT, .name = "progress", .dtype = CAIRN_U8, .kind = CAIRN_OPAQUE, .dims = 1,
         .shape = {sizeof trainer->progress}, .extent = {sizeof trainer->progress},
         .replica_index = trainer->rank, .replica_count = trainer->world,
         .address = &trainer->progress, .device = -1},
        {CAIRN_SLICE_INIT, .name = "weights", .dtype = CAIRN_BF16, .kind = CAIRN_PARAM, .dims = 1,
         .shape = {(uint64_t)WEIGHTS * trainer->world},
         .offset = {(uint64_t)WEIGHTS * trainer->rank}, .extent = {WEIGHTS}, .replica_count = 1,
         .address = trainer->weights, .device = -1},
        {CAIRN_SLICE_INIT, .name = "mask", .dtype = CAIRN_BF16, .kind = CAIRN_BUFFER, .dims = 1,
         .shape = {WEIGHTS}, .extent = {WEIGHTS}, .replica_index = trainer->rank,
         .replica_count = trainer->world, .address = trainer->mask, .device = -1},
    };

    return cairn_client_register(trainer->client, slices,
                                 trainer->has_weights ? SLICES : SLICES_WITHOUT_WEIGHTS);
}

/* ---- keeping step ---- */

static bool
open_board(struct trainer *trainer)
{
    size_t bytes = RANKS_MAX * sizeof *trainer->board;
    int fd = open(trainer->barrier, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *map = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (map == MAP_FAILED)
        return false;
    trainer->board = map;
    return true;
}

enum { WAITS_NOT, WAITS_FOR_STORAGE, WAITS_FOR_LOADER };
static int waits;
static int loader_ask = -1, loader_answer = -1;

static void
nap(uint64_t us)
{
    struct timespec time = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    (void)nanosleep(&time, NULL);
}

static uint64_t
now_ns(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Nobody begins step s + 1 before all have done s. Who waits longer looks less often: ranks whose
 * peer is dead wait until they are killed. */
static void
wait_others(struct trainer *trainer, uint64_t step)
{
    uint64_t nap_us = trainer->wait_us;

    atomic_store(&trainer->board[trainer->rank], step);
    for (uint32_t r = 0; r < trainer->world && !ended; r++)
        while (atomic_load(&trainer->board[r]) < step && !ended) {
            nap(nap_us);
            if (!trainer->timing && nap_us < NAP_MAX_US)
                nap_us += nap_us / 8 + 1;
        }
}

/* The same as a collective of all ranks, with its records. */
static void
wait_timed(struct trainer *trainer, uint64_t step)
{
    struct cairn_timing_record record = {.comm = COMMUNICATOR,
                                         .seq = step,
                                         .bytes = sizeof step,
                                         .enter_ns = now_ns(),
                                         .rank = trainer->rank,
                                         .peer = CAIRN_PEER_NONE,
                                         .step = (uint32_t)step,
                                         .ranks = (uint16_t)trainer->world,
                                         .op = CAIRN_BARRIER};

    if (trainer->timing)
        (void)cairn_timing_write(trainer->timing, &record);
    wait_others(trainer, step);
    if (trainer->timing)
        nap(TRANSFER_US);
    record.end_ns = now_ns();
    if (trainer->timing)
        (void)cairn_timing_write(trainer->timing, &record);
}

/* Waits in state D, "disk sleep", as the kernel has the parent of a vfork wait. */
static void
nap_as_for_disk(uint64_t us)
{
    pid_t child = vfork();

    if (child == 0) {
        nap(us);
        _exit(0);
    }
    if (child > 0)
        (void)waitpid(child, NULL, 0);
}

/* A process that makes batches: the trainer sends how long each takes. It ends with its trainer,
 * whose end of the pipe closes. */
static bool
start_loader(void)
{
    int ask[2], answer[2];
    uint64_t us;
    pid_t child;

    if (pipe(ask) != 0 || pipe(answer) != 0)
        return false;
    child = fork();
    if (child != 0) {
        close(ask[0]);
        close(answer[1]);
        loader_ask = ask[1];
        loader_answer = answer[0];
        return child > 0;
    }
    close(ask[1]);
    close(answer[0]);
    while (read(ask[0], &us, sizeof us) == sizeof us) {
        nap_as_for_disk(us);
        if (write(answer[1], &us, sizeof us) != sizeof us)
            break;
    }
    _exit(0);
}

static void
load_batch(uint64_t us)
{
    if (write(loader_ask, &us, sizeof us) == sizeof us)
        while (read(loader_answer, &us, sizeof us) < 0 && errno == EINTR && !ended)
            ;
}

/* Computes, in a way that leaves the processor to others. Signals do not make it shorter. */
static void
compute(const struct trainer *trainer)
{
    uint64_t until_ns = now_ns() + trainer->step_us * (slow && !waits ? 4000 : 1000);

    if (slow && waits == WAITS_FOR_STORAGE)
        nap_as_for_disk(3 * trainer->step_us);
    else if (slow && waits == WAITS_FOR_LOADER)
        load_batch(3 * trainer->step_us);
    for (uint64_t at_ns = now_ns(); at_ns < until_ns && !ended; at_ns = now_ns())
        nap((until_ns - at_ns) / 1000 + 1);
}

/* ---- the run ---- */

static void
say(void *context, enum cairn_log_level level, const char *line)
{
    fprintf(stderr, "%s\n", line);
}

static int
restore(struct trainer *trainer, uint64_t *step)
{
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    cairn_err err;

    memset(trainer->divided, 0xa5, trainer->count * sizeof *trainer->divided);
    err = cairn_client_restore(trainer->client, &restored);
    if (err == CAIRN_NOT_FOUND) {
        printf("fresh\n");
        return 0;
    }
    if (err) {
        fprintf(stderr, "restore: %s\n", cairn_err_text(err));
        return EXIT_CLIENT;
    }
    *step = restored.generation.step;
    if (torn(trainer, *step))
        return EXIT_TORN;
    printf("restored %" PRIu64 " %" PRIu64 "\n", restored.generation.epoch >> EPOCH_CLAIMANT_BITS,
           restored.generation.step);
    if (trainer->has_weights)
        printf("%s\n", is_finite(trainer) ? "finite" : "not finite");
    return 0;
}

/* It restores in its own place, then registers in another's. */
static cairn_err
misplace(struct trainer *trainer)
{
    trainer->misplaced = !trainer->misplaced;
    return register_all(trainer);
}

static int
run(struct trainer *trainer)
{
    const char *job = getenv("CAIRN_JOB");
    const struct cairn_client_options options = {CAIRN_CLIENT_OPTIONS_INIT,
                                                 .agent_socket = trainer->agent,
                                                 .job = job ? job : "cluster",
                                                 .rank = trainer->rank,
                                                 .world = trainer->world,
                                                 .fence_timeout_ms = 20000,
                                                 .restore_timeout_ms =
                                                     (uint32_t)trainer->restore_ms,
                                                 .log = say,
                                                 .launch = trainer->launch};
    bool misplaced = trainer->misplaced;
    uint64_t step = 0;
    cairn_err err;
    int code = 0;

    trainer->misplaced = false;
    if (waits == WAITS_FOR_LOADER && !start_loader())
        return EXIT_CLIENT;
    divide(trainer);
    trainer->divided = malloc(trainer->count * sizeof *trainer->divided);
    if (!trainer->divided || !open_board(trainer))
        return EXIT_CLIENT;
    if (trainer->timed && cairn_timing_open(RING_RECORDS, &trainer->timing) != CAIRN_OK)
        return EXIT_CLIENT;
    update(trainer, 0);
    err = cairn_client_open(&options, &trainer->client);
    if (!err)
        err = register_all(trainer);
    if (!err)
        /* that is all there is */
        err = cairn_client_report_coverage(trainer->client, NULL, NULL, 0);
    if (err == CAIRN_NOMEM && trainer->check)
        err = CAIRN_OK; /* it wants to read, not to be protected */
    if (err) {
        fprintf(stderr, "start: %s\n", cairn_err_text(err));
        return EXIT_CLIENT;
    }
    if (trainer->resume || trainer->check)
        code = restore(trainer, &step);
    if (code || trainer->check)
        return code;
    if (misplaced && misplace(trainer) != CAIRN_OK)
        return EXIT_CLIENT;
    wait_others(trainer, step);
    while (step < trainer->steps && !ended) {
        compute(trainer);
        (void)cairn_snapshot_fence(trainer->client,
                                   CAIRN_FENCE_ALL); /* the client says and counts failures */
        if (trainer->misplaced && mended && misplace(trainer) != CAIRN_OK)
            return EXIT_CLIENT;
        if (cairn_client_stop_wanted(trainer->client)) {
            printf("stopped\n");
            return EXIT_FAILURE;
        }
        update(trainer, ++step);
        if (trainer->rejects && bad)
            (void)cairn_snapshot_reject(trainer->client, step, "loss spike");
        if (cairn_snapshot_begin(trainer->client, step) == CAIRN_OK)
            printf("begun %" PRIu64 "\n", step);
        wait_timed(trainer, step);
    }
    (void)cairn_snapshot_fence(trainer->client, CAIRN_FENCE_ALL);
    return 0;
}

static bool
parse(int argc, char **argv, struct trainer *trainer)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        const char *text = i + 1 < argc ? argv[i + 1] : "";
        uint64_t number = strtoull(text, NULL, 10);

        if (strcmp(name, "--resume") == 0)
            trainer->resume = true;
        else if (strcmp(name, "--check") == 0)
            trainer->check = true;
        else if (strcmp(name, "--timing") == 0)
            trainer->timed = true;
        else if (strcmp(name, "--slow-storage") == 0)
            waits = WAITS_FOR_STORAGE;
        else if (strcmp(name, "--slow-loader") == 0)
            waits = WAITS_FOR_LOADER;
        else if (strcmp(name, "--misplaced") == 0)
            trainer->misplaced = true;
        else if (strcmp(name, "--weights") == 0)
            trainer->has_weights = true;
        else if (strcmp(name, "--rejects") == 0)
            trainer->has_weights = trainer->rejects = true;
        else if (++i >= argc)
            return false;
        else if (strcmp(name, "--rank") == 0)
            trainer->rank = (uint32_t)number;
        else if (strcmp(name, "--world") == 0)
            trainer->world = (uint32_t)number;
        else if (strcmp(name, "--parts") == 0)
            trainer->parts = (uint32_t)number;
        else if (strcmp(name, "--agent") == 0)
            trainer->agent = text;
        else if (strcmp(name, "--barrier") == 0)
            trainer->barrier = text;
        else if (strcmp(name, "--elements") == 0)
            trainer->elements = number;
        else if (strcmp(name, "--steps") == 0)
            trainer->steps = number;
        else if (strcmp(name, "--step-us") == 0)
            trainer->step_us = number;
        else if (strcmp(name, "--restore-ms") == 0)
            trainer->restore_ms = number;
        else if (strcmp(name, "--salt") == 0)
            salt = number;
        else if (strcmp(name, "--wait-us") == 0)
            trainer->wait_us = number;
        else if (strcmp(name, "--launch") == 0)
            trainer->launch = number;
        else
            return false;
    }
    return trainer->barrier && trainer->parts > 0 && trainer->parts <= RANKS_MAX &&
           trainer->rank < trainer->world && trainer->world <= RANKS_MAX && trainer->elements > 0;
}

int
main(int argc, char **argv)
{
    static struct trainer trainer = {.elements = 20000,
                                     .steps = UINT64_MAX,
                                     .step_us = 2000,
                                     .restore_ms = 60000,
                                     .wait_us = 100};
    struct sigaction action = {.sa_handler = on_signal};
    int code;

    setvbuf(stdout, NULL, _IOLBF, 0);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    if (!parse(argc, argv, &trainer)) {
        fprintf(stderr,
                "usage: trainer --rank R --world W --parts P --barrier FILE [--agent SOCKET] …\n");
        return EXIT_USAGE;
    }
    code = run(&trainer);
    cairn_client_close(trainer.client);
    cairn_timing_close(trainer.timing);
    free(trainer.divided);
    return code;
}
