/*
 * base/crc.h - the checksum of every run of bytes: CRC-64 (ECMA-182, reflected); cairn_crc64_jones,
 * a second one, where 64 bits are not enough; and the CRC-32 of ZIP archives.
 *
 * Long runs take our own wide kernels (crc_x86.c) if the processor has them; ISA-L does the rest.
 * The cost is that of CRC32C on machines with carry-less multiplication. An empty run with seed 0
 * gives 0; cairn_crc64(cairn_crc64(0, a), b) is the checksum of a followed by b.
 */
#ifndef CAIRN_BASE_CRC_H
#define CAIRN_BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

uint64_t cairn_crc64(uint64_t seed, const void *bytes, size_t bytes_len);
uint64_t cairn_crc64_jones(uint64_t seed, const void *bytes, size_t bytes_len);

/* The CRC-32 of ZIP and zlib, continued the same way. */
uint32_t cairn_crc32(uint32_t seed, const void *bytes, size_t bytes_len);

#endif
