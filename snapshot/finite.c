/* snapshot/finite.c - see finite.h. */
#include "snapshot/finite.h"

#include <string.h>

/* The compiler uses the vectors that the processor has. */
typedef uint64_t vector __attribute__((vector_size(32)));

enum { WORDS = sizeof(vector) / sizeof(uint64_t) };

#define REPEAT_8(bits) (UINT64_C(0x0101010101010101) * (bits))
#define REPEAT_16(bits) (UINT64_C(0x0001000100010001) * (bits))
#define REPEAT_32(bits) (UINT64_C(0x0000000100000001) * (bits))

static const struct cairn_finite f8_e5m2 = {REPEAT_8(0x7c), REPEAT_8(0x04), REPEAT_8(0x80), 1};
static const struct cairn_finite f8_e4m3 = {REPEAT_8(0x7f), REPEAT_8(0x01), REPEAT_8(0x80), 1};
static const struct cairn_finite f16 = {REPEAT_16(0x7c00), REPEAT_16(0x0400), REPEAT_16(0x8000), 2};
static const struct cairn_finite bf16 = {REPEAT_16(0x7f80), REPEAT_16(0x0080), REPEAT_16(0x8000),
                                         2};
static const struct cairn_finite f32 = {REPEAT_32(0x7f800000), REPEAT_32(0x00800000),
                                        REPEAT_32(0x80000000), 4};
static const struct cairn_finite f64 = {UINT64_C(0x7ff0000000000000), UINT64_C(0x0010000000000000),
                                        UINT64_C(0x8000000000000000), 8};

const struct cairn_finite *
cairn_finite_of(enum cairn_dtype dtype)
{
    switch (dtype) {
    case CAIRN_F8_E5M2:
        return &f8_e5m2;
    case CAIRN_F8_E4M3:
        return &f8_e4m3;
    case CAIRN_F16:
        return &f16;
    case CAIRN_BF16:
        return &bf16;
    case CAIRN_F32:
    case CAIRN_C64: /* two of them */
        return &f32;
    case CAIRN_F64:
        return &f64;
    default:
        return NULL;
    }
}

/* Inlined, so that each of its callers has it for its own vectors. */
__attribute__((always_inline)) static inline uint64_t
carries(const struct cairn_finite *type, const uint8_t *bytes, size_t bytes_len)
{
    const vector exponent = type->exponent - (vector){0}, unit = type->unit - (vector){0};
    vector first, second, seen = {0}, seen_too = {0};
    uint64_t all = 0, word;
    size_t at = 0;

    for (; at + 2 * sizeof(vector) <= bytes_len; at += 2 * sizeof(vector)) {
        memcpy(&first, bytes + at, sizeof first);
        memcpy(&second, bytes + at + sizeof first, sizeof second);
        seen |= (first & exponent) + unit;
        seen_too |= (second & exponent) + unit;
    }
    seen |= seen_too;
    for (size_t i = 0; i < WORDS; i++)
        all |= seen[i];
    bytes_len -= bytes_len % type->element_bytes;
    for (; at < bytes_len; at += sizeof word) {
        word = 0;
        memcpy(&word, bytes + at, bytes_len - at < sizeof word ? bytes_len - at : sizeof word);
        all |= (word & type->exponent) + type->unit;
    }
    return all & type->sign;
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static uint64_t
carries_avx2(const struct cairn_finite *type, const uint8_t *bytes, size_t bytes_len)
{
    return carries(type, bytes, bytes_len);
}

static uint64_t
carries_here(const struct cairn_finite *type, const uint8_t *bytes, size_t bytes_len)
{
    return __builtin_cpu_supports("avx2") ? carries_avx2(type, bytes, bytes_len)
                                          : carries(type, bytes, bytes_len);
}
#else
static uint64_t
carries_here(const struct cairn_finite *type, const uint8_t *bytes, size_t bytes_len)
{
    return carries(type, bytes, bytes_len);
}
#endif

bool
cairn_finite_fails(const struct cairn_finite *type, const void *bytes, size_t bytes_len)
{
    return carries_here(type, bytes, bytes_len) != 0;
}
