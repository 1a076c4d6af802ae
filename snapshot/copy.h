/*
 * snapshot/copy.h - copies bytes, computes their CRC-64 and looks for values that are not finite,
 * in one pass over memory.
 *
 * On x86-64 vector kernels load every byte once, fold it into the checksum and store it past the
 * cache (copy_x86.c: AVX-512, AVX2, and 128 bits for older processors); elsewhere small pieces are
 * copied and then checksummed while they are in the first-level cache. All kernels give the same
 * result.
 *
 * A processor's features do not tell which kernel is the fastest. So an agent measures them when it
 * starts (cairn_copy_choose), and its trainers take its choice. Until then a process uses the first
 * that its processor has.
 */
#ifndef CAIRN_SNAPSHOT_COPY_H
#define CAIRN_SNAPSHOT_COPY_H

#include "cairn/err.h"
#include "snapshot/finite.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a copy looks for in the bytes. The first byte of a copy begins an element. */
struct cairn_copy_look {
    const struct cairn_finite *type;
    bool found; /* set, never cleared: an element is not finite */
};

/*
 * Copies `bytes` bytes from source to dest, which do not overlap, and returns
 * cairn_crc64(seed, source, bytes). Any alignment and length; fastest with dest aligned to 64 bytes
 * and 4 KiB or more. `look` NULL: looks for nothing. All stores are ordered before what the caller
 * publishes afterwards with a release store. Cannot fail, never allocates. Thread: any.
 */
uint64_t cairn_copy_crc(uint64_t seed, void *dest, const void *source, size_t bytes,
                        struct cairn_copy_look *look);

/* The portable kernel, on every machine: what all others must agree with. Thread: any. */
uint64_t cairn_copy_crc_portable(uint64_t seed, void *dest, const void *source, size_t bytes,
                                 struct cairn_copy_look *look);

/*
 * A kernel for whole rows: copies the first bytes / row_bytes rows (one at least) from source to
 * dest, which is aligned to 64 bytes, and returns their checksum. `look` as above.
 */
struct cairn_copy_kernel {
    const char *name;
    size_t row_bytes;
    uint64_t (*copy_rows)(uint64_t seed, uint8_t *dest, const uint8_t *source, size_t bytes,
                          struct cairn_copy_look *look);
};

enum { CAIRN_COPY_KERNELS_MAX = 16 };

/* The vector kernels that this processor has, widest first; a kernel without a name ends the list.
 * Static. Thread: any. */
const struct cairn_copy_kernel *cairn_copy_kernels(void);

/* The name of what cairn_copy_crc uses: of one of them, or "portable". Thread: any. */
const char *cairn_copy_name(void);

/* Makes the process use the kernel of this name. False, and nothing changes, if its processor has
 * none; "portable" is there always. Thread: any. */
bool cairn_copy_use(const char *name);

/* The same by a number that means the same kernel in all processes of a node and version, 0 the
 * portable one. Another number changes nothing. Thread: any. */
uint32_t cairn_copy_number(void);
void cairn_copy_use_number(uint32_t number);

/*
 * Measures the kernels on memory that no cache holds, and makes the process use the first that is
 * within 5 % of the fastest. Takes some 20 ms. bytes_per_s (or NULL): what each of
 * cairn_copy_kernels() reached.
 * CAIRN_NOMEM: nothing has changed. Thread: one at a time.
 */
CAIRN_MUST_CHECK cairn_err cairn_copy_choose(double bytes_per_s[CAIRN_COPY_KERNELS_MAX]);

/* Drops memory from all caches if the processor can. Thread: any. */
void cairn_copy_forget(const void *memory, size_t bytes);

/* cairn_copy_crc with one of them. Thread: any. */
uint64_t cairn_copy_crc_with(const struct cairn_copy_kernel *kernel, uint64_t seed, void *dest,
                             const void *source, size_t bytes, struct cairn_copy_look *look);

#endif
