/*
 * tests/support/failing_calls.h - the n-th allocation or file operation of a program fails. For
 * fault tests, for which the linker wraps malloc, calloc and realloc.
 */
#ifndef CAIRN_TESTS_FAILING_CALLS_H
#define CAIRN_TESTS_FAILING_CALLS_H

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NONE, MEMORY, FILES };

/* Call fail_at of the kind fails, and with for_good all later ones; files with this errno. Workers
 * count, too. */
static enum kind failing_kind;
static int64_t fail_at, calls;
static bool for_good;
static int file_errno;

static bool
fails(enum kind kind)
{
    int64_t call;

    if (kind != failing_kind)
        return false;
    call = __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    return call == fail_at || (for_good && call > fail_at);
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

void *
__wrap_malloc(size_t bytes)
{
    return fails(MEMORY) ? NULL : __real_malloc(bytes);
}

void *
__wrap_calloc(size_t count, size_t bytes)
{
    return fails(MEMORY) ? NULL : __real_calloc(count, bytes);
}

void *
__wrap_realloc(void *old, size_t bytes)
{
    return fails(MEMORY) ? NULL : __real_realloc(old, bytes);
}

static bool
file_fails(void)
{
    bool failing = fails(FILES);

    if (failing)
        errno = file_errno;
    return failing;
}

static int
fault_open(int dir_fd, const char *name, int flags, mode_t mode)
{
    return file_fails() ? -1 : openat(dir_fd, name, flags, mode);
}

static ssize_t
fault_readv(int fd, const struct iovec *parts, int count, off_t at)
{
    return file_fails() ? -1 : preadv(fd, parts, count, at);
}

static ssize_t
fault_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    if (file_fails()) { /* half of it is there all the same */
        (void)!pwrite(fd, bytes, bytes_len / 2, at);
        errno = file_errno;
        return -1;
    }
    return pwrite(fd, bytes, bytes_len, at);
}

static int
fault_resize(int fd, off_t bytes, bool reserve)
{
    return file_fails() ? -1 : cairn_file_ops_os.resize(fd, bytes, reserve);
}

static int
fault_sync(int fd)
{
    (void)fd;
    return file_fails() ? -1 : 0;
}

static int
fault_close(int fd)
{
    int result = close(fd); /* the descriptor is gone either way */

    return file_fails() ? -1 : result;
}

static int
fault_rename(int dir_fd, const char *from, const char *to)
{
    return file_fails() ? -1 : renameat(dir_fd, from, dir_fd, to);
}

static int
fault_unlink(int dir_fd, const char *name, bool directory)
{
    return file_fails() ? -1 : unlinkat(dir_fd, name, directory ? AT_REMOVEDIR : 0);
}

/* For cairn_file_setup. */
static const struct cairn_file_ops fault_ops = {
    .name = "fault",
    .open = fault_open,
    .readv = fault_readv,
    .write = fault_write,
    .resize = fault_resize,
    .sync = fault_sync,
    .close = fault_close,
    .rename = fault_rename,
    .unlink = fault_unlink,
};

#endif
