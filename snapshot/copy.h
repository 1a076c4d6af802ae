/*
 * snapshot/copy.h - copies bytes and computes their CRC-64 in one pass over memory.
 *
 * On x86-64 vector kernels load every byte once, fold it into the checksum and store it past the
 * cache (copy_x86.c: AVX-512, AVX2, and 128-bit ones for older processors); elsewhere small pieces
 * are copied and then checksummed while they are in the first-level cache. All kernels have one
 * result. The fastest that the processor has is chosen by CPUID at run time.
 */
#ifndef CAIRN_SNAPSHOT_COPY_H
#define CAIRN_SNAPSHOT_COPY_H

#include <stddef.h>
#include <stdint.h>

/*
 * Copies `bytes` bytes from source to dest, which do not overlap, and returns
 * cairn_crc64(seed, source, bytes). Any alignment and length; fastest with dest aligned to 64 bytes
 * and 4 KiB or more. All stores are ordered before what the caller publishes afterwards with a
 * release store. Cannot fail, never allocates. Thread: any.
 */
uint64_t cairn_copy_crc(uint64_t seed, void *dest, const void *source, size_t bytes);

/* The portable kernel, on every machine: what all others must agree with. Thread: any. */
uint64_t cairn_copy_crc_portable(uint64_t seed, void *dest, const void *source, size_t bytes);

/*
 * A kernel for whole rows: copies the first bytes / row_bytes rows (one at least) from source to
 * dest, which is aligned to 64 bytes, and returns the checksum of what it copied.
 */
struct cairn_copy_kernel {
    const char *name;
    size_t row_bytes;
    uint64_t (*copy_rows)(uint64_t seed, uint8_t *dest, const uint8_t *source, size_t bytes);
};

/* The vector kernels that this processor has, fastest first; a kernel without a name ends the list.
 * Thread: any. */
const struct cairn_copy_kernel *cairn_copy_kernels(void);

/* cairn_copy_crc with one of them. Thread: any. */
uint64_t cairn_copy_crc_with(const struct cairn_copy_kernel *kernel, uint64_t seed, void *dest,
                             const void *source, size_t bytes);

#endif
