/*
 * tests/support/faults/faults.c - makes a real agent's calls hang or fail while a file exists;
 * loaded with LD_PRELOAD.
 *
 * CAIRN_FAULTS names a directory:
 *   <dir>/workers   threads other than the main one hang when they compute a checksum or decode:
 *                   the agent beats and talks, and completes nothing
 *   <dir>/memory    threads other than the main one hang when they allocate a file's pages
 *   <dir>/wakes     what other threads than the main one write to an eventfd fails with EIO: the
 *                   main one hears of nothing that they have finished
 *   <dir>/blocks    a byte is changed in what comes straight into a trainer's window; each time the
 *                   file gets a byte shorter, until it is gone
 *   <dir>/files     calls that touch files below CAIRN_FAULT_FILES hang, as on a dead file server
 *
 * A call that hangs goes on once its file is gone.
 *
 * CAIRN_FAULT_THREADS is the most threads that the process may have, as with pids.max of a cgroup.
 * With CAIRN_FAULT_THREAD=n the n-th start of a thread fails, once. With CAIRN_FAULT_SIGNALS all
 * threads get signals all the time, which interrupt the calls that they wait in (EINTR), futexes
 * too.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* The function of this name that the program would call without us. */
#define NEXT(name)                                                                                 \
    static __typeof__(&name) next;                                                                 \
    if (!next)                                                                                     \
    *(void **)&next = dlsym(RTLD_NEXT, #name)

static bool
is_set(const char *fault)
{
    const char *directory = getenv("CAIRN_FAULTS");
    char path[PATH_BYTES];

    if (!directory)
        return false;
    snprintf(path, sizeof path, "%s/%s", directory, fault);
    return syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0;
}

static bool
in_main_thread(void)
{
    return syscall(SYS_gettid) == getpid();
}

static void
hang_while(const char *fault)
{
    while (is_set(fault))
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* ---- workers ---- */

static void
worker(void)
{
    if (!in_main_thread())
        hang_while("workers");
}

uint64_t crc64_ecma_refl(uint64_t seed, const unsigned char *bytes, uint64_t bytes_len);
uint64_t
crc64_ecma_refl(uint64_t seed, const unsigned char *bytes, uint64_t bytes_len)
{
    NEXT(crc64_ecma_refl);
    worker();
    return next(seed, bytes, bytes_len);
}

void ec_encode_data(int len, int k, int rows, unsigned char *tables, unsigned char **data,
                    unsigned char **coding);
void
ec_encode_data(int len, int k, int rows, unsigned char *tables, unsigned char **data,
               unsigned char **coding)
{
    NEXT(ec_encode_data);
    worker();
    next(len, k, rows, tables, data, coding);
}

/* ---- memory ---- */

int
fallocate(int fd, int mode, off_t begin, off_t bytes)
{
    NEXT(fallocate);
    if (!in_main_thread())
        hang_while("memory");
    return next(fd, mode, begin, bytes);
}

/* ---- blocks ---- */

static bool
is_in_window(const void *at)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[PATH_BYTES];
    bool found = false;

    while (maps && !found && fgets(line, sizeof line, maps)) {
        char *end;
        uintptr_t begin = strtoul(line, &end, 16);

        found = strstr(line, "memfd:cairn-window") && begin <= (uintptr_t)at &&
                (uintptr_t)at < strtoul(end + 1, NULL, 16);
    }
    if (maps)
        fclose(maps);
    return found;
}

/* Takes a byte off a fault's file. */
static void
use_up(const char *fault)
{
    char path[PATH_BYTES];
    struct stat status;

    snprintf(path, sizeof path, "%s/%s", getenv("CAIRN_FAULTS"), fault);
    if (stat(path, &status) == 0 && status.st_size > 1)
        (void)!truncate(path, status.st_size - 1);
    else
        (void)unlink(path);
}

ssize_t
recvmsg(int fd, struct msghdr *message, int flags)
{
    NEXT(recvmsg);
    ssize_t got = next(fd, message, flags);

    if (got > 0 && is_set("blocks") && is_in_window(message->msg_iov[0].iov_base)) {
        *(uint8_t *)message->msg_iov[0].iov_base ^= 1;
        use_up("blocks");
    }
    return got;
}

/* ---- threads ---- */

static int
count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;

    for (struct dirent *task; tasks && (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    if (tasks)
        closedir(tasks);
    return count;
}

int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
               void *context)
{
    const char *limit = getenv("CAIRN_FAULT_THREADS"), *fails = getenv("CAIRN_FAULT_THREAD");
    static atomic_int calls;

    NEXT(pthread_create);
    if (limit && count_threads() >= atoi(limit))
        return EAGAIN;
    if (fails && atomic_fetch_add(&calls, 1) + 1 == atoi(fails))
        return EAGAIN;
    return next(thread, attributes, run, context);
}

/* ---- signals ---- */

enum { STORM_PAUSE_NS = 2000000 };

static void
ignore(int number)
{
}

static void *
storm(void *context)
{
    const struct timespec pause = {.tv_nsec = STORM_PAUSE_NS};

    for (;;) {
        DIR *tasks = opendir("/proc/self/task");

        for (struct dirent *task; tasks && (task = readdir(tasks)) != NULL;)
            if (task->d_name[0] != '.' && atoi(task->d_name) != (int)syscall(SYS_gettid))
                (void)syscall(SYS_tgkill, getpid(), atoi(task->d_name), SIGURG);
        if (tasks)
            closedir(tasks);
        (void)nanosleep(&pause, NULL);
    }
    return context;
}

__attribute__((constructor)) static void
begin_storm(void)
{
    const struct sigaction action = {.sa_handler = ignore}; /* without SA_RESTART */
    pthread_t thread;

    if (!getenv("CAIRN_FAULT_SIGNALS"))
        return;
    (void)sigaction(SIGURG, &action, NULL);
    (void)pthread_create(&thread, NULL, storm, NULL);
}

/* No thread blocks the signal. */
int
pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    sigset_t without;

    NEXT(pthread_sigmask);
    if (!set || how == SIG_UNBLOCK || !getenv("CAIRN_FAULT_SIGNALS"))
        return next(how, set, old);
    without = *set;
    (void)sigdelset(&without, SIGURG);
    return next(how, &without, old);
}

/* ---- files ---- */

static void
file(int dir_fd, const char *name)
{
    const char *prefix = getenv("CAIRN_FAULT_FILES");
    char link[64], path[PATH_BYTES] = "";
    ssize_t len;

    if (!prefix)
        return;
    if (!name || name[0] != '/') {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir_fd);
        len = readlink(link, path, sizeof path - 1);
        path[len > 0 ? len : 0] = '\0';
        name = path;
    }
    if (strncmp(name, prefix, strlen(prefix)) == 0)
        hang_while("files");
}

ssize_t
pwrite(int fd, const void *bytes, size_t bytes_len, off_t offset)
{
    NEXT(pwrite);
    file(fd, NULL);
    return next(fd, bytes, bytes_len, offset);
}

static bool
is_eventfd(int fd)
{
    char link[64], name[64];
    ssize_t len;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    len = readlink(link, name, sizeof name - 1);
    name[len > 0 ? len : 0] = '\0';
    return strcmp(name, "anon_inode:[eventfd]") == 0;
}

ssize_t
write(int fd, const void *bytes, size_t bytes_len)
{
    NEXT(write);
    file(fd, NULL);
    if (bytes_len == sizeof(uint64_t) && !in_main_thread() && is_set("wakes") && is_eventfd(fd)) {
        errno = EIO;
        return -1;
    }
    return next(fd, bytes, bytes_len);
}

int
fsync(int fd)
{
    NEXT(fsync);
    file(fd, NULL);
    return next(fd);
}

int
renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    NEXT(renameat);
    file(from_fd, from);
    return next(from_fd, from, to_fd, to);
}

int
mkdirat(int dir_fd, const char *name, mode_t mode)
{
    NEXT(mkdirat);
    file(dir_fd, name);
    return next(dir_fd, name, mode);
}

static mode_t
mode_of(int flags, va_list list)
{
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;
}

int
openat(int dir_fd, const char *name, int flags, ...)
{
    NEXT(openat);
    va_list list;
    mode_t mode;

    va_start(list, flags);
    mode = mode_of(flags, list);
    va_end(list);
    file(dir_fd, name);
    return next(dir_fd, name, flags, mode);
}

int
open(const char *name, int flags, ...)
{
    NEXT(open);
    va_list list;
    mode_t mode;

    va_start(list, flags);
    mode = mode_of(flags, list);
    va_end(list);
    file(AT_FDCWD, name);
    return next(name, flags, mode);
}
