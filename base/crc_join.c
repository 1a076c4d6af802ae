/*
 * base/crc_join.c - see crc_join.h.
 *
 * All three CRCs are reflected: the highest bit is the coefficient of x^0. A product walks the bits
 * of one factor from x^0 on, and multiplies the other by x at each. CRC-32 uses the same code with
 * its 32 bits at the bottom.
 */
#include "base/crc_join.h"

#include "base/crc.h"

static const struct {
    uint64_t polynomial; /* reflected, without its highest term */
    uint64_t one;        /* x^0 */
} kinds[] = {
    [CAIRN_CRC_ECMA] = {0xc96c5795d7870f42u, UINT64_C(1) << 63},
    [CAIRN_CRC_JONES] = {0x95ac9329ac4bc9b5u, UINT64_C(1) << 63},
    [CAIRN_CRC_ZIP] = {0xedb88320u, UINT64_C(1) << 31},
};

uint64_t
cairn_crc_multiply(enum cairn_crc_kind kind, uint64_t crc, uint64_t factor)
{
    uint64_t polynomial = kinds[kind].polynomial, product = 0;

    for (uint64_t bit = kinds[kind].one; bit; bit >>= 1) {
        product ^= crc & (UINT64_C(0) - ((factor & bit) != 0));
        crc = (crc >> 1) ^ (polynomial & (UINT64_C(0) - (crc & 1)));
    }
    return product;
}

uint64_t
cairn_crc_factor(enum cairn_crc_kind kind, uint64_t bytes)
{
    uint64_t power = kinds[kind].one >> 8; /* x^8: one byte */
    uint64_t factor = kinds[kind].one;

    for (; bytes; bytes >>= 1) {
        if (bytes & 1)
            factor = cairn_crc_multiply(kind, factor, power);
        power = cairn_crc_multiply(kind, power, power);
    }
    return factor;
}

uint64_t
cairn_crc_of(enum cairn_crc_kind kind, uint64_t seed, const void *bytes, size_t bytes_len)
{
    switch (kind) {
    case CAIRN_CRC_ZIP:
        return cairn_crc32((uint32_t)seed, bytes, bytes_len);
    case CAIRN_CRC_JONES:
        return cairn_crc64_jones(seed, bytes, bytes_len);
    default:
        return cairn_crc64(seed, bytes, bytes_len);
    }
}

uint64_t
cairn_crc_shift(enum cairn_crc_kind kind, uint64_t crc, uint64_t bytes)
{
    return bytes > 0 ? cairn_crc_multiply(kind, crc, cairn_crc_factor(kind, bytes)) : crc;
}
