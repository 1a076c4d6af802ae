/* tools/convert/engine/cast.c - see cast.h. Each element goes by way of a float; the compiler makes
 * the common pairs into straight loops. */
#include "tools/convert/engine/cast.h"

#include <string.h>

static bool
is_known(enum cairn_dtype dtype)
{
    return dtype == CAIRN_F64 || dtype == CAIRN_F32 || dtype == CAIRN_F16 || dtype == CAIRN_BF16;
}

bool
cairn_cast_knows(enum cairn_dtype from, enum cairn_dtype to)
{
    return is_known(from) && is_known(to);
}

static float
float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint32_t
bits_of_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float
from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31;
    uint32_t mantissa = half & 1023;

    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent > 0)
        return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    /* Subnormal: mantissa * 2^-24, which a float holds exactly. */
    return float_of_bits(sign | bits_of_float((float)mantissa * 0x1p-24f));
}

static uint16_t
to_half(float value)
{
    uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffffu;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);

    if (magnitude > 0x7f800000u) /* NaN: quiet, with as much of its payload as fits */
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    if (magnitude >= 0x47800000u) /* 65536 and more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000u) { /* below 2^-14: a multiple of 2^-24 */
        /* Adding 0.5 puts the unit of the last place of a float at 2^-24, and the adder rounds. */
        float shifted = float_of_bits(magnitude) + 0.5f;

        return (uint16_t)(sign | (bits_of_float(shifted) - 0x3f000000u));
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude >> 13) - (112 << 10)));
}

static uint16_t
to_brain(float value)
{
    uint32_t bits = bits_of_float(value);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float
load(const uint8_t *from, enum cairn_dtype dtype)
{
    uint16_t half;
    double wide;
    float value;

    switch (dtype) {
    case CAIRN_F64:
        memcpy(&wide, from, sizeof(wide));
        return (float)wide;
    case CAIRN_F32:
        memcpy(&value, from, sizeof(value));
        return value;
    case CAIRN_F16:
        memcpy(&half, from, sizeof(half));
        return from_half(half);
    default:
        memcpy(&half, from, sizeof(half));
        return float_of_bits((uint32_t)half << 16);
    }
}

static void
store(uint8_t *to, enum cairn_dtype dtype, float value)
{
    uint16_t half;
    double wide;

    switch (dtype) {
    case CAIRN_F64:
        wide = (double)value;
        memcpy(to, &wide, sizeof(wide));
        break;
    case CAIRN_F32:
        memcpy(to, &value, sizeof(value));
        break;
    case CAIRN_F16:
        half = to_half(value);
        memcpy(to, &half, sizeof(half));
        break;
    default:
        half = to_brain(value);
        memcpy(to, &half, sizeof(half));
    }
}

static inline __attribute__((always_inline)) void
cast_all(const uint8_t *from, enum cairn_dtype from_dtype, uint8_t *to, enum cairn_dtype to_dtype,
         uint64_t count)
{
    size_t from_bytes = cairn_dtype_bytes(from_dtype), to_bytes = cairn_dtype_bytes(to_dtype);

    for (uint64_t i = 0; i < count; i++)
        store(to + i * to_bytes, to_dtype, load(from + i * from_bytes, from_dtype));
}

void
cairn_cast(const uint8_t *from, enum cairn_dtype from_dtype, uint8_t *to, enum cairn_dtype to_dtype,
           uint64_t count)
{
    if (from_dtype == CAIRN_F32 && to_dtype == CAIRN_BF16)
        cast_all(from, CAIRN_F32, to, CAIRN_BF16, count);
    else if (from_dtype == CAIRN_BF16 && to_dtype == CAIRN_F32)
        cast_all(from, CAIRN_BF16, to, CAIRN_F32, count);
    else if (from_dtype == CAIRN_F32 && to_dtype == CAIRN_F16)
        cast_all(from, CAIRN_F32, to, CAIRN_F16, count);
    else
        cast_all(from, from_dtype, to, to_dtype, count);
}
