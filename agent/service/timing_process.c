/* agent/service/timing_process.c - reads /proc/PID/stat: whether a trainer's process runs. */
#include "agent/service/timing_process.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STAT_BYTES = 1024 };

/* Finds a process' state letter and its start in the text of its stat file. */
static bool
parse_stat(const char *text, char *state, uint64_t *start_ticks)
{
    const char *at = strrchr(text, ')'); /* the name before it may hold anything */

    return at && sscanf(at + 1,
                        " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                        "%*d %" SCNu64,
                        state, start_ticks) == 2;
}

/* Reads a process's state letter and its start, in ticks since the machine's start. False: no such
 * process. */
static bool
read_stat(int64_t pid, char *state, uint64_t *start_ticks)
{
    char path[48], text[STAT_BYTES];
    ssize_t got;
    int fd;

    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return false;
    text[got] = '\0';
    return parse_stat(text, state, start_ticks);
}

bool
timing_process_find(int64_t pid, struct timing_process *out)
{
    struct timing_process process = {.pid = pid};
    char state;

    if (pid <= 0 || !read_stat(pid, &state, &process.start_ticks))
        return false;
    *out = process;
    return true;
}

enum cairn_presence
timing_process_look(const struct timing_process *process)
{
    uint64_t start_ticks;
    char state;

    if (!read_stat(process->pid, &state, &start_ticks) || start_ticks != process->start_ticks)
        return CAIRN_PRESENCE_GONE;
    switch (state) {
    case 'Z':
    case 'X':
        return CAIRN_PRESENCE_GONE;
    case 'T':
    case 't':
        return CAIRN_PRESENCE_STOPPED;
    default:
        return CAIRN_PRESENCE_RUNS;
    }
}
