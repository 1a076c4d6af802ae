/*
 * tests/unit/examples/gpt/job.h - jobs of real processes that talk over loopback, for tests.
 *
 * Every rank is a process of its own that runs gpt_run(). What a job computes is read from the
 * events of rank 0: the hash of its losses and that of its final state.
 */
#ifndef CAIRN_TESTS_UNIT_EXAMPLES_GPT_JOB_H
#define CAIRN_TESTS_UNIT_EXAMPLES_GPT_JOB_H

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "examples/gpt/run.h"
#include "tests/support/cmocka.h"

enum { RANKS_MAX = 8, WORDS_MAX = 48, WAIT_S = 240 };

static const char *const small_model =
    "--layers 6 --d-model 32 --heads 2 --context 32 --micro-batch-size 2 --log-every 0";

struct job {
    uint32_t ranks;
    pid_t pids[RANKS_MAX];
    int status[RANKS_MAX]; /* exit status, 256 + signal, or -1 while running */
    char dir[64];
    char peers[256];
};

struct result {
    char loss_sha256[65];
    char state_sha256[65];
    char loss_first[32];
    char loss_last[32];
};

static inline uint64_t
now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Ports that are free now: the kernel's choice, held until all are chosen. */
static inline void
choose_ports(struct job *job)
{
    int fds[RANKS_MAX];
    size_t at = 0;

    for (uint32_t i = 0; i < job->ranks; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof address;

        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_true(fds[i] >= 0);
        assert_int_equal(bind(fds[i], (struct sockaddr *)&address, sizeof address), 0);
        assert_int_equal(getsockname(fds[i], (struct sockaddr *)&address, &length), 0);
        at += (size_t)snprintf(job->peers + at, sizeof job->peers - at, "%s127.0.0.1:%u",
                               i ? "," : "", ntohs(address.sin_port));
    }
    for (uint32_t i = 0; i < job->ranks; i++)
        close(fds[i]);
}

static inline void
job_init(struct job *job, uint32_t ranks)
{
    *job = (struct job){.ranks = ranks};
    snprintf(job->dir, sizeof job->dir, "/tmp/gpt-job-XXXXXX");
    assert_non_null(mkdtemp(job->dir));
    choose_ports(job);
}

static inline void
job_fini(struct job *job)
{
    char path[128];

    for (uint32_t i = 0; i < job->ranks; i++) {
        snprintf(path, sizeof path, "%s/%u", job->dir, i);
        unlink(path);
        snprintf(path, sizeof path, "%s/%u.log", job->dir, i);
        unlink(path);
    }
    assert_int_equal(rmdir(job->dir), 0);
}

/* Starts one rank with the arguments, which are words with one space between them. */
static inline void
start_rank(struct job *job, uint32_t rank, const char *arguments)
{
    char line[1024];
    char *argv[WORDS_MAX + 1] = {0};
    char log[128];
    int argc = 0;
    int fd;

    snprintf(line, sizeof line, "gpt --rank %u --peers %s --events %s/%u %s", rank, job->peers,
             job->dir, rank, arguments);
    snprintf(log, sizeof log, "%s/%u.log", job->dir, rank);
    job->status[rank] = -1;
    job->pids[rank] = fork();
    assert_true(job->pids[rank] >= 0);
    if (job->pids[rank] > 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves no process behind */
    fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, STDERR_FILENO);
    for (char *word = strtok(line, " "); word && argc < WORDS_MAX; word = strtok(NULL, " "))
        argv[argc++] = word;
    unsetenv("CAIRN_AGENT");
    _exit(gpt_run(argc, argv));
}

static inline void
start_all(struct job *job, const char *arguments)
{
    for (uint32_t i = 0; i < job->ranks; i++)
        start_rank(job, i, arguments);
}

/* Waits until no rank runs; ends them and fails when they take too long. */
static inline void
wait_all(struct job *job)
{
    uint64_t deadline_ms = now_ms() + WAIT_S * 1000;
    uint32_t running = job->ranks;

    while (running) {
        running = 0;
        for (uint32_t i = 0; i < job->ranks; i++) {
            int status;

            if (job->status[i] != -1)
                continue;
            if (now_ms() > deadline_ms)
                kill(job->pids[i], SIGKILL);
            if (waitpid(job->pids[i], &status, WNOHANG) != job->pids[i])
                running++;
            else
                job->status[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    assert_true(now_ms() <= deadline_ms);
}

/* The contents of a rank's events (suffix "") or of what it said (".log"). */
static inline char *
slurp(const struct job *job, uint32_t rank, const char *suffix)
{
    static char text[1 << 20];
    char path[128];
    ssize_t length;
    int fd;

    snprintf(path, sizeof path, "%s/%u%s", job->dir, rank, suffix);
    fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    length = read(fd, text, sizeof text - 1);
    assert_true(length >= 0);
    close(fd);
    text[length] = 0;
    return text;
}

/* The value of a key in a line of JSON, without quotes. */
static inline void
value_of(const char *line, const char *key, char *out, size_t out_bytes)
{
    char quoted[64];
    const char *at;
    size_t length;

    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    at = strstr(line, quoted);
    assert_non_null(at);
    at += strlen(quoted);
    at += *at == '"';
    length = strcspn(at, "\",}");
    assert_true(length > 0 && length < out_bytes);
    memcpy(out, at, length);
    out[length] = 0;
}

static inline void
run_job(uint32_t ranks, const char *arguments, struct result *out)
{
    char line[512];
    struct job job;
    const char *done;

    job_init(&job, ranks);
    snprintf(line, sizeof line, "%s %s", small_model, arguments);
    start_all(&job, line);
    wait_all(&job);
    for (uint32_t i = 0; i < ranks; i++) {
        if (job.status[i] != 0)
            fail_msg("rank %u: status %d: %s", i, job.status[i], slurp(&job, i, ".log"));
    }
    done = strstr(slurp(&job, 0, ""), "{\"event\":\"done\"");
    assert_non_null(done);
    value_of(done, "loss_sha256", out->loss_sha256, sizeof out->loss_sha256);
    value_of(done, "state_sha256", out->state_sha256, sizeof out->state_sha256);
    value_of(done, "loss_first", out->loss_first, sizeof out->loss_first);
    value_of(done, "loss_last", out->loss_last, sizeof out->loss_last);
    job_fini(&job);
}

#endif
