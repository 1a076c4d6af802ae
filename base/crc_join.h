/*
 * base/crc_join.h - the CRC of a whole from the CRCs of its parts, in any order.
 *
 * A CRC (seed 0, of base/crc.h) is a polynomial over GF(2): the CRC of A followed by B is that of A
 * times x^(8 * bytes of B), plus that of B. So the CRC of a whole is the exclusive or over its
 * parts of the part's CRC, shifted by the bytes that follow the part in the whole.
 */
#ifndef CAIRN_BASE_CRC_JOIN_H
#define CAIRN_BASE_CRC_JOIN_H

#include <stddef.h>
#include <stdint.h>

enum cairn_crc_kind { CAIRN_CRC_ECMA = 0, CAIRN_CRC_JONES = 1, CAIRN_CRC_ZIP = 2 };

/* The CRC of bytes, continued from `seed`. Thread: any. */
uint64_t cairn_crc_of(enum cairn_crc_kind kind, uint64_t seed, const void *bytes, size_t bytes_len);

/* What a part with this CRC adds to the CRC of a whole if `bytes` follow it. Thread: any. */
uint64_t cairn_crc_shift(enum cairn_crc_kind kind, uint64_t crc, uint64_t bytes);

/* The factor for `bytes` more bytes: x^(8 * bytes). Thread: any. */
uint64_t cairn_crc_factor(enum cairn_crc_kind kind, uint64_t bytes);

/* The product of a CRC and a factor. Thread: any. */
uint64_t cairn_crc_multiply(enum cairn_crc_kind kind, uint64_t crc, uint64_t factor);

#endif
