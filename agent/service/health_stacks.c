/* agent/service/health_stacks.c - the Python stacks of a trainer; see health_stacks.h. */
#include "agent/service/health_stacks.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 500, POLL_MS = 10, SETTLED_POLLS = 3, DUMP_BYTES = 16 << 10, STATUS_BYTES = 4096 };

static const char link_begin[] = "/memfd:cairn-stacks-";

/* ---- the process ---- */

/* Opens the memfd for reading; *number is the signal's. -1: the process has none. */
static int
find_memfd(int64_t pid, int *number)
{
    char folder[64], path[128], target[64];
    const struct dirent *entry;
    DIR *entries;
    int fd = -1;

    (void)snprintf(folder, sizeof folder, "/proc/%" PRId64 "/fd", pid);
    entries = opendir(folder);
    while (entries && fd < 0 && (entry = readdir(entries))) {
        ssize_t got = readlinkat(dirfd(entries), entry->d_name, target, sizeof target - 1);

        if (got < (ssize_t)sizeof link_begin - 1 ||
            memcmp(target, link_begin, sizeof link_begin - 1) != 0)
            continue;
        target[got] = '\0';
        *number = (int)strtol(target + sizeof link_begin - 1, NULL, 10);
        (void)snprintf(path, sizeof path, "%s/%.20s", folder, entry->d_name);
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    if (entries)
        closedir(entries);
    return fd;
}

/* True if the process runs and has a handler for the signal; without one the signal ends it. */
static bool
catches(int64_t pid, int number)
{
    char path[64], text[STATUS_BYTES];
    const char *caught, *state;
    ssize_t got;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%" PRId64 "/status", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return false;
    text[got] = '\0';
    caught = strstr(text, "\nSigCgt:");
    state = strstr(text, "\nState:\t");
    return caught && state && !strchr("TtZX", state[8]) && number >= SIGRTMIN &&
           number <= SIGRTMAX && (strtoull(caught + 8, NULL, 16) >> (number - 1) & 1);
}

/* Waits until something was written after `before` and nothing more follows. Returns its end;
 * `before`: nothing came. */
static off_t
wait_for_end(int fd, off_t before)
{
    const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
    off_t last = before;
    int settled = 0;

    for (int waited_ms = 0; waited_ms < WAIT_MS && settled < SETTLED_POLLS; waited_ms += POLL_MS) {
        struct stat status;

        (void)nanosleep(&pause, NULL);
        if (fstat(fd, &status) != 0)
            return before;
        settled = status.st_size > before && status.st_size == last ? settled + 1 : 0;
        last = status.st_size;
    }
    return last;
}

/* ---- the text ---- */

/* Copies a line without addresses and characters that are not plain. */
static size_t
copy_line(char *out, size_t room, const char *line, size_t len)
{
    size_t used = 0;

    for (size_t i = 0; i < len && used + 2 < room; i++) {
        if (len - i > 2 && line[i] == '0' && line[i + 1] == 'x') {
            while (i + 2 < len && strchr("0123456789abcdefABCDEF", line[i + 2]))
                i++;
            i += 1;
            continue;
        }
        out[used++] = line[i] >= 0x20 && line[i] < 0x7f ? line[i] : '?';
    }
    out[used++] = '\n';
    return used;
}

/* Copies lines until one is empty, or the text ends. */
static size_t
copy_lines(char *out, size_t room, const char *text)
{
    size_t used = 0;

    while (*text && *text != '\n' && used + 2 < room) {
        size_t len = strcspn(text, "\n");

        used += copy_line(out + used, room - used, text, len);
        text += len + (text[len] == '\n');
    }
    return used;
}

/* The interrupted thread comes first: the main thread, or the running one. */
static void
tidy(const char *dump, char *out, size_t out_bytes)
{
    const char *current = strstr(dump, "Current thread");
    size_t used = current ? copy_lines(out, out_bytes, current) : 0;

    for (const char *at = dump; *at && used + 2 < out_bytes;) {
        const char *end = strstr(at, "\n\n");

        if (at != current)
            used += copy_lines(out + used, out_bytes - used, at);
        if (!end)
            break;
        at = end + 2;
    }
    out[used < out_bytes ? used : out_bytes - 1] = '\0';
}

bool
health_stacks_ask(int64_t pid, char *out, size_t out_bytes)
{
    char *dump = NULL;
    struct stat status;
    int number = 0, fd = find_memfd(pid, &number);
    bool has_come = false;
    ssize_t got;
    off_t end;

    if (fd < 0)
        return false;
    dump = malloc(DUMP_BYTES);
    if (!dump || fstat(fd, &status) != 0 || !catches(pid, number) || kill((pid_t)pid, number) != 0)
        goto done;
    end = wait_for_end(fd, status.st_size);
    if (end <= status.st_size)
        goto done;
    got = pread(fd, dump, DUMP_BYTES - 1, status.st_size);
    if (got <= 0)
        goto done;
    dump[got] = '\0';
    tidy(dump, out, out_bytes);
    has_come = true;
done:
    close(fd);
    free(dump);
    return has_come;
}
