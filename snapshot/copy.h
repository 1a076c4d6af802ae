/*
 * snapshot/copy.h - copies bytes and computes their CRC-64 in one pass over memory.
 *
 * Two kernels with one result: on x86-64 with AVX-512 and VPCLMULQDQ every 64 bytes are loaded
 * once, folded into the checksum and stored past the cache; elsewhere small pieces are copied and
 * then checksummed while they are in the first-level cache. The kernel is chosen by CPUID at run
 * time.
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

/* The kernel that cairn_copy_crc uses on this machine: "avx512" or "portable". Static. Thread: any.
 */
const char *cairn_copy_kernel(void);

/* The portable kernel, on every machine: what cairn_copy_crc must agree with. Thread: any. */
uint64_t cairn_copy_crc_portable(uint64_t seed, void *dest, const void *source, size_t bytes);

#endif
