/* base/file_ring.c - see file_ring.h. */
#include "base/file_ring.h"

#include "base/assert.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef CAIRN_HAS_LIBURING
#include <liburing.h>

struct cairn_file_ring {
    struct io_uring uring;
};

struct cairn_file_ring *
cairn_file_ring_open(uint32_t depth, char *why, size_t why_bytes)
{
    struct cairn_file_ring *ring = calloc(1, sizeof *ring);
    struct io_uring_probe *probe = NULL;
    int failed = ring ? io_uring_queue_init(depth, &ring->uring, 0) : -ENOMEM;

    if (!failed) {
        probe = io_uring_get_probe_ring(&ring->uring);
        if (!probe || !io_uring_opcode_supported(probe, IORING_OP_READ) ||
            !io_uring_opcode_supported(probe, IORING_OP_WRITE)) {
            io_uring_queue_exit(&ring->uring);
            failed = -EOPNOTSUPP; /* Linux before 5.6 */
        }
        io_uring_free_probe(probe);
    }
    if (!failed)
        return ring;
    snprintf(why, why_bytes, "the kernel refuses io_uring: %s", strerror(-failed));
    free(ring);
    return NULL;
}

void
cairn_file_ring_close(struct cairn_file_ring *ring)
{
    if (ring)
        io_uring_queue_exit(&ring->uring);
    free(ring);
}

void
cairn_file_ring_begin(struct cairn_file_ring *ring, uint32_t number, bool is_write, int fd,
                      uint64_t at, void *bytes, size_t bytes_len)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
    int submitted;

    CAIRN_ASSERT(sqe); /* there are as many as requests */
    if (is_write)
        io_uring_prep_write(sqe, fd, bytes, (unsigned)bytes_len, at);
    else
        io_uring_prep_read(sqe, fd, bytes, (unsigned)bytes_len, at);
    sqe->user_data = number;
    do
        submitted = io_uring_submit(&ring->uring);
    while (submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
    CAIRN_ASSERT(submitted == 1); /* else the entry would be sent with the next one */
}

uint32_t
cairn_file_ring_wait(struct cairn_file_ring *ring, ssize_t *result)
{
    struct io_uring_cqe *cqe;
    uint32_t number;
    int failed;

    do
        failed = io_uring_wait_cqe(&ring->uring, &cqe);
    while (failed == -EINTR || failed == -EAGAIN);
    CAIRN_ASSERT(!failed); /* the kernel may still use the request's bytes */
    number = (uint32_t)cqe->user_data;
    *result = cqe->res;
    io_uring_cqe_seen(&ring->uring, cqe);
    return number;
}

#else

struct cairn_file_ring *
cairn_file_ring_open(uint32_t depth, char *why, size_t why_bytes)
{
    (void)depth;
    snprintf(why, why_bytes, "cairn was built without liburing");
    return NULL;
}

void
cairn_file_ring_close(struct cairn_file_ring *ring)
{
    (void)ring;
}

void
cairn_file_ring_begin(struct cairn_file_ring *ring, uint32_t number, bool is_write, int fd,
                      uint64_t at, void *bytes, size_t bytes_len)
{
    (void)ring, (void)number, (void)is_write, (void)fd, (void)at, (void)bytes, (void)bytes_len;
}

uint32_t
cairn_file_ring_wait(struct cairn_file_ring *ring, ssize_t *result)
{
    (void)ring;
    *result = -ENOSYS;
    return 0;
}

#endif
