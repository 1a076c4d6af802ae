/* base/crc.c - the checksums: ISA-L does short runs and remainders, vector kernels the rows of both
 * CRC-64. Only this file and crc_x86.c include ISA-L's checksum headers. */
#include "base/crc.h"

#include "base/crc_x86.h"

#include <isa-l/crc.h>
#include <isa-l/crc64.h>

/* From this length on a wide kernel is faster, with ISA-L's checksum of its last row. More than a
 * row. */
enum { WIDE_BYTES_MIN = 1024 };

uint64_t
cairn_crc64(uint64_t seed, const void *bytes, size_t bytes_len)
{
    const struct cairn_crc_kernel *kernel = cairn_crc_kernels();
    const uint8_t *from = bytes;

    if (bytes_len >= WIDE_BYTES_MIN && kernel->name) {
        size_t rest = bytes_len % kernel->row_bytes;

        seed = kernel->fold_rows(seed, from, bytes_len - rest);
        from += bytes_len - rest;
        bytes_len = rest;
    }
    return crc64_ecma_refl(seed, from, bytes_len);
}

uint64_t
cairn_crc64_jones(uint64_t seed, const void *bytes, size_t bytes_len)
{
    const struct cairn_crc_kernel *kernel = cairn_crc_kernels();
    const uint8_t *from = bytes;

    if (bytes_len >= WIDE_BYTES_MIN && kernel->name) {
        size_t rest = bytes_len % kernel->row_bytes;

        seed = kernel->fold_rows_jones(seed, from, bytes_len - rest);
        from += bytes_len - rest;
        bytes_len = rest;
    }
    return crc64_jones_refl(seed, from, bytes_len);
}

uint32_t
cairn_crc32(uint32_t seed, const void *bytes, size_t bytes_len)
{
    return crc32_gzip_refl(seed, (const unsigned char *)bytes, bytes_len);
}
