/*
 * agent/process/keeper_spawn.c - starts a keeper that is not a child of the agent.
 *
 * Fork, new session, fork again, exec: the keeper's parent is init, so killing the agent or its
 * process group, or closing its terminal, does not reach it. The agent has threads, so only
 * async-signal-safe functions are called between fork and exec. The keeper reports the outcome of
 * its start on its stdout, our pipe.
 */
#include "agent/process/keeper.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

_Static_assert(CAIRN_NOT_FOUND == 8 && CAIRN_IO == 4, "the child's lines name these errors");

/* In the child: becomes the keeper, or reports why not. */
static _Noreturn void
become_keeper(const char *executable, char *const arguments[], int null_fd, int report_fd)
{
    static const char not_found[] = "failed 8\n", failed[] = "failed 4\n"; /* cairn_err values */
    sigset_t none;
    ssize_t put;

    if (setsid() < 0 || dup2(null_fd, 0) < 0 || dup2(report_fd, 1) < 0)
        _exit(1);
    fcntl(1, F_SETFD, 0); /* dup2 onto itself would have kept close-on-exec */
    switch (fork()) {
    case -1:
        put = write(1, failed, sizeof failed - 1);
        break;
    case 0:
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execv(executable, arguments);
        put = errno == ENOENT || errno == ENOTDIR ? write(1, not_found, sizeof not_found - 1)
                                                  : write(1, failed, sizeof failed - 1);
        break;
    default:
        _exit(0);
    }
    (void)put;
    _exit(1);
}

/* What the line on the pipe means. */
static cairn_err
read_line(const char *line)
{
    unsigned long value;
    char *end;

    if (strcmp(line, "ready\n") == 0)
        return CAIRN_OK;
    if (strncmp(line, "failed ", 7) != 0)
        return CAIRN_PEER;
    value = strtoul(line + 7, &end, 10);
    return *end == '\n' && value > 0 && value <= CAIRN_INTERNAL ? (cairn_err)value : CAIRN_PEER;
}

/* Waits for the keeper's line. CAIRN_PEER: it ended without one. */
static cairn_err
await_line(int fd, uint32_t timeout_ms)
{
    struct cairn_clock clock = cairn_clock_system();
    uint64_t deadline_ns = cairn_clock_now_ns(&clock) + timeout_ms * CAIRN_NS_PER_MS;
    char line[32] = "";
    size_t used = 0;

    while (used < sizeof line - 1 && !strchr(line, '\n')) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        uint64_t now_ns = cairn_clock_now_ns(&clock);
        uint64_t left_ms = now_ns < deadline_ns ? (deadline_ns - now_ns) / CAIRN_NS_PER_MS + 1 : 0;
        int ready = poll(&poll_fd, 1, left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);
        ssize_t got;

        if (ready == 0 || (ready < 0 && errno == EINTR)) {
            if (now_ns >= deadline_ns)
                return CAIRN_TIMEOUT;
            continue;
        }
        got = read(fd, line + used, sizeof line - 1 - used);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    return read_line(line);
}

static cairn_err
start_process(const char *executable, const char *socket_path, uint32_t linger_s,
              uint32_t timeout_ms)
{
    char linger_text[16];
    char *arguments[] = {(char *)executable,
                         (char *)"keeper",
                         (char *)socket_path,
                         linger_text,
                         cairn_log_is_json() ? (char *)"json" : NULL,
                         NULL};
    int pipe_fds[2] = {-1, -1}, null_fd = -1;
    cairn_err err = CAIRN_IO;
    pid_t child;

    snprintf(linger_text, sizeof linger_text, "%u", linger_s);
    null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd < 0 || pipe2(pipe_fds, O_CLOEXEC)) {
        CAIRN_LOG_AT(ERROR, "keeper: cannot open a pipe to start it: %m");
        goto done;
    }
    child = fork();
    if (child == 0)
        become_keeper(executable, arguments, null_fd, pipe_fds[1]);
    if (child < 0) {
        CAIRN_LOG_AT(ERROR, "keeper: cannot fork: %m");
        goto done;
    }
    close(pipe_fds[1]);
    pipe_fds[1] = -1;
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        continue; /* it ends at once; ECHILD if the process ignores its children */
    err = await_line(pipe_fds[0], timeout_ms);
    if (err && err != CAIRN_AGAIN)
        CAIRN_LOG_AT(ERROR, "keeper: %s did not start on path=%s: %s", executable, socket_path,
                     cairn_err_text(err));
done:
    for (int i = 0; i < 2; i++)
        if (pipe_fds[i] >= 0)
            close(pipe_fds[i]);
    if (null_fd >= 0)
        close(null_fd);
    return err;
}

/* CAIRN_OK when a keeper answers. */
static cairn_err
probe(const char *socket_path, uint32_t timeout_ms)
{
    struct cairn_keeper *keeper = NULL;
    cairn_err err = cairn_keeper_connect(socket_path, timeout_ms, &keeper);

    cairn_keeper_close(keeper);
    return err;
}

cairn_err
cairn_keeper_spawn(const char *executable, const char *socket_path, uint32_t linger_s,
                   uint32_t timeout_ms, bool *started)
{
    const struct timespec pause = {.tv_nsec = 10 * (long)CAIRN_NS_PER_MS};
    struct cairn_clock clock = cairn_clock_system();
    uint64_t deadline_ns = cairn_clock_now_ns(&clock) + timeout_ms * CAIRN_NS_PER_MS;
    cairn_err err = probe(socket_path, timeout_ms);
    bool ours = false;

    while (err == CAIRN_PEER) {
        err = start_process(executable, socket_path, linger_s, timeout_ms);
        ours = !err;
        if (err != CAIRN_AGAIN)
            break;
        err = probe(socket_path, timeout_ms); /* another one was quicker, or is about to end */
        if (err == CAIRN_PEER && cairn_clock_now_ns(&clock) >= deadline_ns)
            err = CAIRN_TIMEOUT;
        if (err == CAIRN_PEER)
            nanosleep(&pause, NULL);
    }
    if (!err && started)
        *started = ours;
    return err;
}
