/* agent/process/ring.c - see ring.h. */
#include "agent/process/ring.h"

#include "base/limits.h"

#include <string.h>
#include <sys/mman.h>

cairn_err
ring_open(struct ring *ring, uint64_t lines, uint64_t bytes_len)
{
    void *bytes;

    *ring = (struct ring){.lines = lines, .bytes_len = bytes_len};
    if (bytes_len == 0)
        return CAIRN_OK;
    bytes = mmap(NULL, bytes_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED)
        return CAIRN_NOMEM;
    (void)madvise(bytes, bytes_len, MADV_HUGEPAGE);
    (void)madvise(bytes, bytes_len, MADV_DONTDUMP); /* the job's state stays out of core files */
    memset(bytes, 0, bytes_len);                    /* it has its pages before it is needed */
    ring->bytes = bytes;
    return CAIRN_OK;
}

void
ring_close(struct ring *ring)
{
    if (ring->bytes)
        munmap(ring->bytes, ring->bytes_len);
    *ring = (struct ring){0};
}

uint8_t *
ring_blocks(const struct ring *ring, uint32_t row, uint64_t line, uint32_t count)
{
    uint64_t row_bytes = ring->lines * CAIRN_BLOCK_BYTES, place;

    if (!ring->bytes || row == 0 || row * row_bytes > ring->bytes_len)
        return NULL;
    place = line % ring->lines;
    return count <= ring->lines - place
               ? ring->bytes + (row - 1) * row_bytes + place * CAIRN_BLOCK_BYTES
               : NULL;
}
