/* base/crc.c - the only file that includes ISA-L's checksum headers. */
#include "base/crc.h"

#include <isa-l/crc.h>
#include <isa-l/crc64.h>

uint64_t
cairn_crc64(uint64_t seed, const void *bytes, size_t bytes_len)
{
    return crc64_ecma_refl(seed, (const unsigned char *)bytes, bytes_len);
}

uint64_t
cairn_crc64_jones(uint64_t seed, const void *bytes, size_t bytes_len)
{
    return crc64_jones_refl(seed, (const unsigned char *)bytes, bytes_len);
}

uint32_t
cairn_crc32(uint32_t seed, const void *bytes, size_t bytes_len)
{
    return crc32_gzip_refl(seed, (const unsigned char *)bytes, bytes_len);
}
