/*
 * tests/support/failing_calls.h - the n-th allocation or file operation of a program fails. For
 * fault tests, for which the linker wraps malloc, calloc and realloc (failing_allocations.h).
 */
#ifndef CAIRN_TESTS_FAILING_CALLS_H
#define CAIRN_TESTS_FAILING_CALLS_H

#include "base/file.h"
#include "tests/support/failing_allocations.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NONE, MEMORY, FILES };

/* Call fail_at of the kind fails, and with for_good all later calls; files with this errno. Workers
 * count, too. */
static _Atomic enum kind failing_kind;
static _Atomic int64_t fail_at, calls, failures; /* calls and failures: since they were set to 0 */
static _Atomic bool for_good;
static int file_errno;

static bool
fails(enum kind kind)
{
    int64_t call;

    if (kind != failing_kind)
        return false;
    call = calls++;
    if (call != fail_at && !(for_good && call > fail_at))
        return false;
    failures++;
    return true;
}

static bool
memory_fails(void)
{
    return fails(MEMORY);
}

static bool (*allocation_fails)(void) = memory_fails;

static inline void
arm(enum kind kind, int64_t call, bool ever)
{
    calls = failures = 0;
    fail_at = call;
    for_good = ever;
    failing_kind = kind;
}

static inline void
disarm(void)
{
    failing_kind = NONE;
}

/* Bytes in use on the heap, with those that the allocator keeps for reuse. */
static inline size_t
heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
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
    size_t half = bytes_len / 2;

    if (file_fails()) { /* half of it is there all the same; whole blocks, for O_DIRECT */
        (void)!pwrite(fd, bytes, half < 4096 ? half : half / 4096 * 4096, at);
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
