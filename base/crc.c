/* base/crc.c - the only file that includes ISA-L's checksum header. */
#include "base/crc.h"

#include <isa-l/crc64.h>

uint64_t
cairn_crc64(uint64_t seed, const void *bytes, size_t bytes_len)
{
    return crc64_ecma_refl(seed, (const unsigned char *)bytes, bytes_len);
}
