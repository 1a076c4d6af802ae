/*
 * base/crc.h - the checksum of every run of bytes: CRC-64 (ECMA-182, reflected), by ISA-L.
 *
 * cairn_crc64_jones is the same with another polynomial, for where 64 bits are not enough.
 * cairn_crc32 is that of zip and gzip.
 *
 * Costs no more than CRC32C on machines with carry-less multiplication. The value of an empty run
 * with seed 0 is 0; cairn_crc64(cairn_crc64(0, a), b) is the checksum of a followed by b.
 */
#ifndef CAIRN_BASE_CRC_H
#define CAIRN_BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

uint64_t cairn_crc64(uint64_t seed, const void *bytes, size_t bytes_len);
uint64_t cairn_crc64_jones(uint64_t seed, const void *bytes, size_t bytes_len);
uint32_t cairn_crc32(uint32_t seed, const void *bytes, size_t bytes_len);

#endif
