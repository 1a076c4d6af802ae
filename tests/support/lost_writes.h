/*
 * tests/support/lost_writes.h - while lost_writes is above 0, each write() of the program fails
 * with EIO and counts it down. The linker prefers this definition to libc's.
 */
#ifndef CAIRN_TESTS_LOST_WRITES_H
#define CAIRN_TESTS_LOST_WRITES_H

#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int lost_writes;

ssize_t
write(int fd, const void *bytes, size_t bytes_len)
{
    int left = atomic_load(&lost_writes);

    while (left > 0)
        if (atomic_compare_exchange_weak(&lost_writes, &left, left - 1)) {
            errno = EIO;
            return -1;
        }
    return syscall(SYS_write, fd, bytes, bytes_len);
}

#endif
