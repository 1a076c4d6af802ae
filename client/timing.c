/*
 * client/timing.c - the trainer's end of the ring of timing records.
 *
 * The memfd is sealed before anybody can find it, so that no reader's access ends in SIGBUS. A
 * forked child shares the ring and may write too: the ring takes any number of writers.
 */
#include "cairn/timing.h"

#include "base/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(sizeof(struct cairn_timing_record) == CAIRN_RING_RECORD_BYTES,
               "a record fills a slot of the ring");

struct cairn_timing {
    struct cairn_ring ring;
    void *memory;
    size_t memory_bytes;
    int fd; /* kept open: a reader finds the ring by it */
};

cairn_err
cairn_timing_open(uint32_t record_count, struct cairn_timing **out)
{
    struct cairn_timing *timing;
    size_t memory_bytes = cairn_ring_bytes(record_count);
    cairn_err err = CAIRN_IO;
    int failed;

    if (memory_bytes == 0 || !out)
        return CAIRN_INVAL;
    timing = calloc(1, sizeof *timing);
    if (!timing)
        return CAIRN_NOMEM;
    timing->memory_bytes = memory_bytes;
    timing->memory = MAP_FAILED;
    timing->fd = memfd_create("cairn-timing", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (timing->fd < 0)
        goto fail;
    /* Allocated now, so that a write never fails for lack of memory. A signal interrupts the call
     * and undoes it. */
    do
        failed = posix_fallocate(timing->fd, 0, (off_t)memory_bytes);
    while (failed == EINTR);
    if (failed) {
        err = CAIRN_NOMEM;
        goto fail;
    }
    if (fcntl(timing->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        goto fail;
    timing->memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, timing->fd, 0);
    if (timing->memory == MAP_FAILED) {
        err = CAIRN_NOMEM;
        goto fail;
    }
    err = cairn_ring_format(timing->memory, memory_bytes, record_count);
    if (!err)
        err = cairn_ring_open(timing->memory, memory_bytes, &timing->ring);
    if (err)
        goto fail;
    *out = timing;
    return CAIRN_OK;
fail:
    cairn_timing_close(timing);
    return err;
}

bool
cairn_timing_write(struct cairn_timing *timing, const struct cairn_timing_record *record)
{
    return cairn_ring_write(&timing->ring, record);
}

uint64_t
cairn_timing_wanted_until_ns(const struct cairn_timing *timing)
{
    return cairn_ring_wish(&timing->ring);
}

void
cairn_timing_close(struct cairn_timing *timing)
{
    if (!timing)
        return;
    if (timing->memory != MAP_FAILED)
        munmap(timing->memory, timing->memory_bytes);
    if (timing->fd >= 0)
        close(timing->fd);
    free(timing);
}
