/* tools/demo_job.c - starts the ranks of a training job and follows their events. */
#include "tools/demo_job.h"

#include "tools/demo.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ARGUMENTS_MAX = 40,
    NUMBER_BYTES = 24,
    PEERS_BYTES = DEMO_NODES_MAX * 24,
    PORT_FIRST = 12000,
    PORT_LAST = 31000, /* outgoing connections get those from 32768 on */
    PORT_TRIES_MAX = 20000
};

/* A model that is learnt in seconds, and one for tests that need many jobs. */
static const char *const quick_model[] = {
    "--d-model", "32", "--heads", "2", "--context", "32", "--micro-batch-size", "4", NULL};

/* ---- ports ---- */

static bool
port_is_free(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_free;

    if (fd < 0)
        return false;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    is_free = bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 1) == 0;
    close(fd);
    return is_free;
}

cairn_err
demo_ports_find(uint16_t *ports, uint32_t count)
{
    uint32_t found = 0;

    for (int tries = 0; found < count && tries < PORT_TRIES_MAX; tries++) {
        uint16_t random = 0;
        uint16_t port;
        bool taken = false;

        if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
            return CAIRN_AGAIN;
        port = (uint16_t)(PORT_FIRST + random % (PORT_LAST - PORT_FIRST));
        for (uint32_t i = 0; i < found; i++)
            taken = taken || ports[i] == port;
        if (!taken && port_is_free(port))
            ports[found++] = port;
    }
    return found == count ? CAIRN_OK : CAIRN_AGAIN;
}

/* ---- starting ---- */

void
demo_job_init(struct demo *demo, struct demo_job *job, const char *name, bool protect)
{
    char path[DEMO_PATH_BYTES + 64];

    memset(job, 0, sizeof *job);
    job->name = name;
    job->protect = protect;
    job->count = demo->options.nodes;
    snprintf(path, sizeof path, "%s/%s-events.jsonl", demo->dir, name);
    demo_tail_init(&job->events, path);
    for (uint32_t r = 0; r < job->count; r++) {
        snprintf(path, sizeof path, "%s/%s-rank%u.log", demo->dir, name, r);
        demo_tail_init(&job->ranks[r].log, path);
    }
}

void
demo_job_fini(struct demo_job *job)
{
    demo_tail_fini(&job->events);
    for (uint32_t r = 0; r < job->count; r++)
        demo_tail_fini(&job->ranks[r].log);
}

struct command {
    char numbers[8][NUMBER_BYTES];
    uint32_t number_count;
    char *words[ARGUMENTS_MAX];
    uint32_t count;
};

static void
add(struct command *command, const char *option, const char *value)
{
    command->words[command->count++] = (char *)(uintptr_t)option; /* execv reads them only */
    if (value)
        command->words[command->count++] = (char *)(uintptr_t)value;
}

static void
add_number(struct command *command, const char *option, uint64_t value)
{
    char *text = command->numbers[command->number_count++];

    snprintf(text, NUMBER_BYTES, "%" PRIu64, value);
    add(command, option, text);
}

/* The job of --slow; the reference computes the same, as fast as it can. */
static void
add_emulation(const struct demo *demo, const struct demo_job *job, uint32_t rank,
              struct command *command)
{
    for (size_t i = 0; demo_slow_model[i]; i++)
        add(command, demo_slow_model[i], NULL);
    add_number(command, "--layers", demo_slow_layers(demo));
    add(command, "--micro-batches", demo->slow.home_words);
    if (!job->protect)
        return;
    add_number(command, "--emulate-layer-ms", DEMO_LAYER_MS);
    add(command, "--emulate-slow", demo->options.slow.text);
    for (uint32_t i = 0; i < demo->options.fault_count; i++)
        if (!demo->options.faults[i].done && demo->options.faults[i].target == rank)
            add(command, "--emulate-death", demo->options.faults[i].point);
}

static cairn_err
start_rank(struct demo *demo, struct demo_job *job, uint32_t rank, const char *peers, bool resume)
{
    struct command command = {.count = 0};

    add(&command, demo->trainer, NULL);
    add_number(&command, "--rank", rank);
    add_number(&command, "--dp", demo->dp);
    add_number(&command, "--pp", demo->pp);
    add_number(&command, "--steps", demo->options.steps);
    add_number(&command, "--log-every", 0);
    /* The reference stands still while the job recovers. */
    add_number(&command, "--peer-timeout-s", job->protect ? 120 : 86400);
    add(&command, "--peers", peers);
    add(&command, "--events", job->events.path);
    add(&command, "--job", "demo");
    if (demo->options.text)
        add(&command, "--text", demo->options.text);
    for (size_t i = 0; demo->options.quick && quick_model[i]; i++)
        add(&command, quick_model[i], NULL);
    if (demo->options.slow.text)
        add_emulation(demo, job, rank, &command);
    if (job->protect)
        add(&command, "--agent", demo->nodes[rank].socket);
    if (resume)
        add(&command, "--resume", NULL);
    return demo_process_start(&job->ranks[rank].process, command.words, NULL,
                              job->ranks[rank].log.path);
}

int
demo_job_start(struct demo *demo, struct demo_job *job, bool resume)
{
    uint16_t ports[DEMO_NODES_MAX];
    char peers[PEERS_BYTES];
    size_t used = 0;

    /* New ports for every start: connections of the start before may still hold theirs. */
    if (demo_ports_find(ports, job->count) != CAIRN_OK) {
        demo_say(&demo->view, DEMO_BAD, "no %u free ports are found on loopback between %d and %d",
                 job->count, PORT_FIRST, PORT_LAST);
        return 1;
    }
    for (uint32_t r = 0; r < job->count; r++)
        used += (size_t)snprintf(peers + used, sizeof peers - used, "%s127.0.0.1:%u", r ? "," : "",
                                 ports[r]);
    if (demo->options.slow.text && setenv("CAIRN_TIMING", job->protect ? "1" : "0", 1) != 0)
        return 1;
    job->started = true;
    job->stopped = false;
    job->fresh = false;
    job->step = 0;
    job->skip_step = UINT64_MAX; /* the first step is not measured */
    job->resumed_ns = 0;
    for (uint32_t r = 0; r < job->count; r++) {
        job->ranks[r].step = 0;
        job->ranks[r].done = false;
        if (start_rank(demo, job, r, peers, resume) != CAIRN_OK)
            return 1;
    }
    return 0;
}

/* ---- following ---- */

static void
add_sample(struct demo_samples *samples, uint64_t ns)
{
    if (samples->count < DEMO_SAMPLES_MAX)
        samples->ns[samples->count++] = ns;
}

static void
take_step(struct demo *demo, struct demo_job *job, struct demo_rank *rank, const char *line)
{
    uint64_t step, step_ns, fence_ns;
    double loss;

    if (!demo_json_u64(line, "step", &step) || !demo_json_u64(line, "step_ns", &step_ns))
        return;
    rank->step = step;
    if (job->resumed_ns == 0)
        job->resumed_ns = demo_now_ns(demo);
    if (step > job->step)
        job->step = step;
    if (demo_json_double(line, "loss", &loss))
        job->loss = loss;
    if (demo_json_u64(line, "fence_ns", &fence_ns))
        add_sample(&job->fence_times, fence_ns);
    if (rank != &job->ranks[0])
        return;
    if (job->protect)
        demo_slow_take_step(demo, step, step_ns);
    if (job->skip_step == UINT64_MAX || job->skip_step == step) {
        job->skip_step = 0;
        return;
    }
    add_sample(&job->step_times, step_ns);
}

static void
take_done(struct demo_job *job, struct demo_rank *rank, const char *line)
{
    rank->done = true;
    if (rank != &job->ranks[0])
        return;
    (void)demo_json_double(line, "loss_first", &job->loss_first);
    (void)demo_json_double(line, "loss_last", &job->loss_last);
    (void)demo_json_text(line, "loss_sha256", job->loss_sha256, sizeof job->loss_sha256);
    (void)demo_json_text(line, "state_sha256", job->state_sha256, sizeof job->state_sha256);
}

static void
take_event(struct demo *demo, struct demo_job *job, const char *line)
{
    char event[32];
    uint64_t rank;

    if (!demo_json_text(line, "event", event, sizeof event) ||
        !demo_json_u64(line, "rank", &rank) || rank >= job->count)
        return;
    if (strcmp(event, "step") == 0)
        take_step(demo, job, &job->ranks[rank], line);
    else if (strcmp(event, "done") == 0)
        take_done(job, &job->ranks[rank], line);
    else if (strcmp(event, "shares") == 0 && rank == 0)
        demo_slow_take_shares(demo, line);
    else if (strcmp(event, "move") == 0)
        demo_slow_take_move(demo, line);
    else if (strcmp(event, "fresh") == 0)
        job->fresh = true;
}

void
demo_job_look(struct demo *demo, struct demo_job *job)
{
    const char *line;

    if (!job->started)
        return;
    while ((line = demo_tail_line(&job->events)))
        take_event(demo, job, line);
    for (uint32_t r = 0; r < job->count; r++) {
        struct demo_rank *rank = &job->ranks[r];

        (void)demo_process_ended(&rank->process);
        while ((line = demo_tail_line(&rank->log))) {
            snprintf(rank->last, sizeof rank->last, "%s", line);
            if (job->protect)
                demo_fault_notice(demo, "rank", r, line);
        }
    }
}

void
demo_job_pause(struct demo_job *job, bool pause)
{
    if (job->stopped == pause)
        return;
    for (uint32_t r = 0; r < job->count; r++)
        demo_process_signal(&job->ranks[r].process, pause ? SIGSTOP : SIGCONT);
    job->stopped = pause;
    if (!pause && job->skip_step != UINT64_MAX)
        job->skip_step = job->ranks[0].step + 1;
}

void
demo_job_kill(struct demo_job *job)
{
    for (uint32_t r = 0; r < job->count; r++)
        demo_process_kill(&job->ranks[r].process);
    job->stopped = false;
}

/* ---- asking ---- */

bool
demo_job_running(const struct demo_job *job)
{
    for (uint32_t r = 0; r < job->count; r++)
        if (job->ranks[r].process.running)
            return true;
    return false;
}

bool
demo_job_done(const struct demo_job *job)
{
    for (uint32_t r = 0; r < job->count; r++)
        if (!job->started || job->ranks[r].process.running ||
            job->ranks[r].process.exit_code != 0 || !job->ranks[r].done)
            return false;
    return true;
}

uint32_t
demo_job_failed(const struct demo_job *job)
{
    uint32_t failed = UINT32_MAX;

    /* Ranks that only lost another one (75) are not the cause. */
    for (uint32_t r = 0; r < job->count && job->started; r++)
        if (!job->ranks[r].process.running && job->ranks[r].process.exit_code != 0 &&
            (failed == UINT32_MAX || job->ranks[failed].process.exit_code == 75))
            failed = r;
    return failed;
}

uint64_t
demo_job_step_least(const struct demo_job *job)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t r = 0; r < job->count; r++)
        if (job->ranks[r].step < least)
            least = job->ranks[r].step;
    return least;
}

static int
compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

uint64_t
demo_samples_quantile_ns(const struct demo_samples *samples, double share)
{
    static uint64_t sorted[DEMO_SAMPLES_MAX];
    uint32_t n = samples->count;

    if (n == 0)
        return 0;
    memcpy(sorted, samples->ns, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare_u64);
    return sorted[(uint32_t)((double)(n - 1) * share + 0.5)];
}
