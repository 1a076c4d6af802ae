/* snapshot/copy.c - copy-and-checksum: the portable kernel, and the choice of a faster one. */
#include "snapshot/copy.h"

#include "base/crc.h"

#include <string.h>

enum {
    PIECE_BYTES = 4096, /* a piece and its copy fit the first-level cache */
    LINE_BYTES = 64
};

uint64_t
cairn_copy_crc_portable(uint64_t seed, void *dest, const void *source, size_t bytes)
{
    uint8_t *to = dest;
    const uint8_t *from = source;

    while (bytes > 0) {
        size_t piece = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;

        memcpy(to, from, piece);
        seed = cairn_crc64(seed, to, piece); /* of what was written, not of what was read */
        to += piece;
        from += piece;
        bytes -= piece;
    }
    return seed;
}

uint64_t
cairn_copy_crc_with(const struct cairn_copy_kernel *kernel, uint64_t seed, void *dest,
                    const void *source, size_t bytes)
{
    size_t head = (LINE_BYTES - ((uintptr_t)dest & (LINE_BYTES - 1))) & (LINE_BYTES - 1);
    const uint8_t *from = source;
    uint8_t *to = dest;
    size_t rows_bytes;

    if (bytes < head + kernel->row_bytes)
        return cairn_copy_crc_portable(seed, dest, source, bytes);
    rows_bytes = (bytes - head) / kernel->row_bytes * kernel->row_bytes;
    seed = cairn_copy_crc_portable(seed, to, from, head);
    seed = kernel->copy_rows(seed, to + head, from + head, rows_bytes);
    return cairn_copy_crc_portable(seed, to + head + rows_bytes, from + head + rows_bytes,
                                   bytes - head - rows_bytes);
}

uint64_t
cairn_copy_crc(uint64_t seed, void *dest, const void *source, size_t bytes)
{
    const struct cairn_copy_kernel *kernel = cairn_copy_kernels();

    if (!kernel->name)
        return cairn_copy_crc_portable(seed, dest, source, bytes);
    return cairn_copy_crc_with(kernel, seed, dest, source, bytes);
}
