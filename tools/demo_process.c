/*
 * tools/demo_process.c - starts and ends children; the guard that ends and removes what is left.
 */
#include "tools/demo_process.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REMOVE_DEPTH = 16, SWEEPS_MAX = 100, SWEEP_WAIT_MS = 10, ARGUMENTS_BYTES = 16384 };

/* In the child: never returns. */
static void
become(char *const argv[], const char *out_path, const char *log_path, pid_t parent)
{
    sigset_t none;
    int in = open("/dev/null", O_RDONLY);
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    int out = out_path ? open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : log;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || in < 0 || log < 0 || out < 0)
        _exit(126);
    (void)setpgid(0, 0); /* a Ctrl-C is for the demo, which ends the others in order */
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(log, 2) < 0)
        _exit(126);
    (void)close_range(3, ~0U, 0);
    execv(argv[0], argv);
    fprintf(stderr, "%s cannot be started: %s\n", argv[0], strerror(errno));
    _exit(127);
}

cairn_err
demo_process_start(struct demo_process *process, char *const argv[], const char *out_path,
                   const char *log_path)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid < 0) {
        fprintf(stderr, "cairn demo: no process can be started: %s\n", strerror(errno));
        return CAIRN_IO;
    }
    if (pid == 0)
        become(argv, out_path, log_path, parent);
    *process = (struct demo_process){.pid = pid, .running = true};
    return CAIRN_OK;
}

static void
note_end(struct demo_process *process, int status)
{
    process->running = false;
    process->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool
demo_process_ended(struct demo_process *process)
{
    int status;

    if (process->running && waitpid(process->pid, &status, WNOHANG) == process->pid)
        note_end(process, status);
    return !process->running;
}

void
demo_process_signal(const struct demo_process *process, int number)
{
    if (process->running)
        (void)kill(process->pid, number);
}

void
demo_process_kill(struct demo_process *process)
{
    int status;

    if (!process->running)
        return;
    (void)kill(process->pid, SIGKILL);
    while (waitpid(process->pid, &status, 0) < 0)
        if (errno != EINTR) {
            process->running = false;
            return;
        }
    note_end(process, status);
}

/* ---- processes that are not our children ---- */

static bool
runs_program(const char *pid, const char *const programs[2])
{
    char link[64], path[DEMO_PATH_BYTES];
    ssize_t len;

    snprintf(link, sizeof link, "/proc/%.16s/exe", pid);
    len = readlink(link, path, sizeof path - 1);
    if (len <= 0)
        return false;
    path[len] = '\0';
    return strcmp(path, programs[0]) == 0 || strcmp(path, programs[1]) == 0;
}

static bool
argument_below(const char *pid, const char *dir)
{
    static char bytes[ARGUMENTS_BYTES + 1];
    char name[64];
    size_t dir_len = strlen(dir);
    ssize_t len;
    int fd;

    snprintf(name, sizeof name, "/proc/%.16s/cmdline", pid);
    fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    len = read(fd, bytes, ARGUMENTS_BYTES);
    close(fd);
    if (len <= 0)
        return false;
    bytes[len] = '\0';
    for (const char *at = bytes; at < bytes + len; at += strlen(at) + 1)
        if (strncmp(at, dir, dir_len) == 0 && at[dir_len] == '/')
            return true;
    return false;
}

uint32_t
demo_kill_below(const char *const programs[2], const char *dir)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    uint32_t count = 0;

    while (proc && (entry = readdir(proc))) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);

        if (pid <= 1 || pid == getpid() || !runs_program(entry->d_name, programs) ||
            !argument_below(entry->d_name, dir))
            continue;
        (void)kill(pid, SIGKILL);
        count++;
    }
    if (proc)
        closedir(proc);
    return count;
}

static int
remove_one(const char *path, const struct stat *status, int type, struct FTW *place)
{
    (void)status;
    (void)type;
    (void)place;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

cairn_err
demo_remove(const char *dir)
{
    if (nftw(dir, remove_one, REMOVE_DEPTH, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT)
        return CAIRN_OK;
    return CAIRN_IO;
}

/* ---- the guard ---- */

static void
guard(int fd, const char *const programs[2], const char *dir, bool remove)
{
    char byte;

    (void)setsid();
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    while (read(fd, &byte, 1) < 0 && errno == EINTR)
        continue;
    /* Something may have been starting just now, so look again until nothing is left. */
    for (int i = 0; i < SWEEPS_MAX && demo_kill_below(programs, dir) > 0; i++)
        (void)poll(NULL, 0, SWEEP_WAIT_MS);
    for (int i = 0; remove && i < SWEEPS_MAX && demo_remove(dir) != CAIRN_OK; i++)
        (void)poll(NULL, 0, SWEEP_WAIT_MS);
    _exit(0);
}

cairn_err
demo_guard_start(struct demo_guard *out, const char *const programs[2], const char *dir,
                 bool remove)
{
    int ends[2];
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        fprintf(stderr, "cairn demo: no pipe can be made: %s\n", strerror(errno));
        return CAIRN_IO;
    }
    pid = fork();
    if (pid < 0) {
        fprintf(stderr, "cairn demo: no process can be started: %s\n", strerror(errno));
        close(ends[0]);
        close(ends[1]);
        return CAIRN_IO;
    }
    if (pid == 0) {
        close(ends[1]);
        guard(ends[0], programs, dir, remove);
    }
    close(ends[0]);
    *out = (struct demo_guard){.pid = pid, .fd = ends[1]};
    return CAIRN_OK;
}

void
demo_guard_end(struct demo_guard *guard)
{
    if (guard->pid == 0)
        return;
    close(guard->fd);
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    guard->pid = 0;
}
