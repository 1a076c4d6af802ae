/*
 * snapshot/copy_x86.c - the vector kernels of copy-and-checksum.
 *
 * base/crc_x86.h describes how a row is folded. The wide kernels run at the speed of memory. They
 * differ in two choices; the best one depends on the processor, so cairn_copy_choose measures:
 *
 * - Stores go past the cache ("stream"), which spares reading the destination, a third of the
 *   traffic, and leaves the trainer's working set where it is; or into it ("store").
 * - The source is asked for ahead of its use ("ahead"), because some processors' prefetchers stop
 *   at every page. On others it costs nearly half of the speed, as on an Intel Xeon with AVX-512
 *   (docs/PERFORMANCE.md).
 *
 * Each has two more bodies that look for values that are not finite as well (finite.h): they keep
 * the largest exponent of each 16 bits, or of each 8 for types of 8 bits, which is two instructions
 * per vector. An exponent of all ones is the largest there is.
 */
#include "snapshot/copy.h"

#include "base/crc.h"
#include "base/crc_x86.h"

#include <stdbool.h>
#include <string.h>

static const struct cairn_copy_kernel none = {0};

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <immintrin.h>

enum { VECTORS = CAIRN_FOLD_VECTORS, LINE_BYTES = 64, AHEAD_BYTES = 3072 };
enum looks { NO_LOOK, BY_8_BITS, BY_16_BITS };

/*
 * Asks for the line that the kernel reads AHEAD_BYTES later. It is read once, so it need not
 * displace what the caches hold.
 */
static inline __attribute__((always_inline)) void
prefetch_line(const uint8_t *source, size_t offset_in_row, bool ahead)
{
    if (ahead && offset_in_row % LINE_BYTES == 0)
        _mm_prefetch((const char *)source + AHEAD_BYTES, _MM_HINT_NTA);
}

/* What the largest exponents say: see finite.h. */
static bool
is_failing(const struct cairn_finite *type, const uint8_t *largest, size_t bytes)
{
    uint64_t carries = 0, word;

    for (size_t at = 0; at < bytes; at += sizeof word) {
        memcpy(&word, largest + at, sizeof word);
        carries |= word + type->unit;
    }
    return (carries & type->sign) != 0;
}

__attribute__((target("avx512bw,vpclmulqdq"), always_inline)) static inline __m512i
larger_avx512(__m512i largest, __m512i exponents, enum looks looks)
{
    return looks == BY_8_BITS ? _mm512_max_epu8(largest, exponents)
                              : _mm512_max_epi16(largest, exponents);
}

__attribute__((target("avx512bw,vpclmulqdq"), always_inline)) static inline void
put_avx512(uint8_t *dest, __m512i vector, bool stream)
{
    if (stream)
        _mm512_stream_si512((void *)dest, vector);
    else
        _mm512_store_si512((void *)dest, vector);
}

/* Inlined, so that `stream`, `ahead` and `looks` are constants. */
__attribute__((target("avx512bw,vpclmulqdq"), always_inline)) static inline uint64_t
copy_rows_avx512(uint64_t seed, uint8_t *dest, const uint8_t *source, size_t bytes,
                 struct cairn_copy_look *look, bool stream, bool ahead, enum looks looks)
{
    const long long low_factor = CAIRN_FOLD_4096_LOW, high_factor = CAIRN_FOLD_4096_HIGH;
    const __m512i factors = _mm512_set_epi64(high_factor, low_factor, high_factor, low_factor,
                                             high_factor, low_factor, high_factor, low_factor);
    const __m512i exponent = _mm512_set1_epi64(looks ? (long long)look->type->exponent : 0);
    __m512i remainder[VECTORS], largest = _mm512_setzero_si512();
    uint8_t row[sizeof remainder] __attribute__((aligned(LINE_BYTES)));

    for (size_t i = 0; i < VECTORS; i++) {
        remainder[i] = _mm512_loadu_si512((source + i * sizeof(__m512i)));
        put_avx512(dest + i * sizeof(__m512i), remainder[i], stream);
        if (looks)
            largest = larger_avx512(largest, _mm512_and_si512(remainder[i], exponent), looks);
    }
    remainder[0] = _mm512_xor_si512(
        remainder[0], _mm512_zextsi128_si512(_mm_cvtsi64_si128(CAIRN_FOLD_START(seed))));
    for (size_t at = sizeof row; at + sizeof row <= bytes; at += sizeof row) {
#pragma GCC unroll 8
        for (size_t i = 0; i < VECTORS; i++) {
            const uint8_t *from = source + at + i * sizeof(__m512i);
            __m512i next = _mm512_loadu_si512(from);
            __m512i low = _mm512_clmulepi64_epi128(remainder[i], factors, 0x00);
            __m512i high = _mm512_clmulepi64_epi128(remainder[i], factors, 0x11);

            prefetch_line(from, i * sizeof(__m512i), ahead);
            put_avx512(dest + at + i * sizeof(__m512i), next, stream);
            if (looks)
                largest = larger_avx512(largest, _mm512_and_si512(next, exponent), looks);
            remainder[i] = _mm512_ternarylogic_epi64(low, high, next, 0x96); /* a ^ b ^ c */
        }
    }
    if (looks) {
        _mm512_store_si512((void *)row, largest);
        look->found |= is_failing(look->type, row, sizeof largest);
    }
    if (stream)
        _mm_sfence(); /* streaming stores are not ordered by a release store */
    for (size_t i = 0; i < VECTORS; i++)
        _mm512_store_si512((void *)(row + i * sizeof(__m512i)), remainder[i]);
    return cairn_crc64(CAIRN_FOLD_ROW_SEED, row, sizeof row);
}

__attribute__((target("avx2,vpclmulqdq"), always_inline)) static inline __m256i
larger_avx2(__m256i largest, __m256i exponents, enum looks looks)
{
    return looks == BY_8_BITS ? _mm256_max_epu8(largest, exponents)
                              : _mm256_max_epi16(largest, exponents);
}

__attribute__((target("avx2,vpclmulqdq"), always_inline)) static inline void
put_avx2(uint8_t *dest, __m256i vector, bool stream)
{
    if (stream)
        _mm256_stream_si256((void *)dest, vector);
    else
        _mm256_store_si256((void *)dest, vector);
}

/* Inlined, so that `stream`, `ahead` and `looks` are constants. */
__attribute__((target("avx2,vpclmulqdq"), always_inline)) static inline uint64_t
copy_rows_avx2(uint64_t seed, uint8_t *dest, const uint8_t *source, size_t bytes,
               struct cairn_copy_look *look, bool stream, bool ahead, enum looks looks)
{
    const long long low_factor = CAIRN_FOLD_2048_LOW, high_factor = CAIRN_FOLD_2048_HIGH;
    const __m256i factors = _mm256_set_epi64x(high_factor, low_factor, high_factor, low_factor);
    const __m256i exponent = _mm256_set1_epi64x(looks ? (long long)look->type->exponent : 0);
    __m256i remainder[VECTORS], largest = _mm256_setzero_si256();
    uint8_t row[sizeof remainder] __attribute__((aligned(LINE_BYTES)));

    for (size_t i = 0; i < VECTORS; i++) {
        remainder[i] = _mm256_loadu_si256((const void *)(source + i * sizeof(__m256i)));
        put_avx2(dest + i * sizeof(__m256i), remainder[i], stream);
        if (looks)
            largest = larger_avx2(largest, _mm256_and_si256(remainder[i], exponent), looks);
    }
    remainder[0] = _mm256_xor_si256(
        remainder[0], _mm256_zextsi128_si256(_mm_cvtsi64_si128(CAIRN_FOLD_START(seed))));
    for (size_t at = sizeof row; at + sizeof row <= bytes; at += sizeof row) {
#pragma GCC unroll 8
        for (size_t i = 0; i < VECTORS; i++) {
            const uint8_t *from = source + at + i * sizeof(__m256i);
            __m256i next = _mm256_loadu_si256((const void *)from);
            __m256i low = _mm256_clmulepi64_epi128(remainder[i], factors, 0x00);
            __m256i high = _mm256_clmulepi64_epi128(remainder[i], factors, 0x11);

            prefetch_line(from, i * sizeof(__m256i), ahead);
            put_avx2(dest + at + i * sizeof(__m256i), next, stream);
            if (looks)
                largest = larger_avx2(largest, _mm256_and_si256(next, exponent), looks);
            remainder[i] = _mm256_xor_si256(_mm256_xor_si256(low, high), next);
        }
    }
    if (looks) {
        _mm256_store_si256((void *)row, largest);
        look->found |= is_failing(look->type, row, sizeof largest);
    }
    if (stream)
        _mm_sfence(); /* streaming stores are not ordered by a release store */
    for (size_t i = 0; i < VECTORS; i++)
        _mm256_store_si256((void *)(row + i * sizeof(__m256i)), remainder[i]);
    return cairn_crc64(CAIRN_FOLD_ROW_SEED, row, sizeof row);
}

__attribute__((target("pclmul"), always_inline)) static inline __m128i
larger_sse(__m128i largest, __m128i exponents, enum looks looks)
{
    return looks == BY_8_BITS ? _mm_max_epu8(largest, exponents)
                              : _mm_max_epi16(largest, exponents);
}

__attribute__((target("pclmul"), always_inline)) static inline void
put_sse(uint8_t *dest, __m128i vector, bool stream)
{
    if (stream)
        _mm_stream_si128((void *)dest, vector);
    else
        _mm_store_si128((void *)dest, vector);
}

/* Inlined, so that `stream`, `ahead` and `looks` are constants. */
__attribute__((target("pclmul"), always_inline)) static inline uint64_t
copy_rows_sse(uint64_t seed, uint8_t *dest, const uint8_t *source, size_t bytes,
              struct cairn_copy_look *look, bool stream, bool ahead, enum looks looks)
{
    const long long low_factor = CAIRN_FOLD_1024_LOW, high_factor = CAIRN_FOLD_1024_HIGH;
    const __m128i factors = _mm_set_epi64x(high_factor, low_factor);
    const __m128i exponent = _mm_set1_epi64x(looks ? (long long)look->type->exponent : 0);
    __m128i remainder[VECTORS], largest = _mm_setzero_si128();
    uint8_t row[sizeof remainder] __attribute__((aligned(LINE_BYTES)));

    for (size_t i = 0; i < VECTORS; i++) {
        remainder[i] = _mm_loadu_si128((const void *)(source + i * sizeof(__m128i)));
        put_sse(dest + i * sizeof(__m128i), remainder[i], stream);
        if (looks)
            largest = larger_sse(largest, _mm_and_si128(remainder[i], exponent), looks);
    }
    remainder[0] = _mm_xor_si128(remainder[0], _mm_cvtsi64_si128(CAIRN_FOLD_START(seed)));
    for (size_t at = sizeof row; at + sizeof row <= bytes; at += sizeof row) {
#pragma GCC unroll 8
        for (size_t i = 0; i < VECTORS; i++) {
            const uint8_t *from = source + at + i * sizeof(__m128i);
            __m128i next = _mm_loadu_si128((const void *)from);
            __m128i low = _mm_clmulepi64_si128(remainder[i], factors, 0x00);
            __m128i high = _mm_clmulepi64_si128(remainder[i], factors, 0x11);

            prefetch_line(from, i * sizeof(__m128i), ahead);
            put_sse(dest + at + i * sizeof(__m128i), next, stream);
            if (looks)
                largest = larger_sse(largest, _mm_and_si128(next, exponent), looks);
            remainder[i] = _mm_xor_si128(_mm_xor_si128(low, high), next);
        }
    }
    if (looks) {
        _mm_store_si128((void *)row, largest);
        look->found |= is_failing(look->type, row, sizeof largest);
    }
    if (stream)
        _mm_sfence(); /* streaming stores are not ordered by a release store */
    for (size_t i = 0; i < VECTORS; i++)
        _mm_store_si128((void *)(row + i * sizeof(__m128i)), remainder[i]);
    return cairn_crc64(CAIRN_FOLD_ROW_SEED, row, sizeof row);
}

/* Widest first, and of each width first the one that is best on most processors. */
#define KERNELS(K)                                                                                 \
    K(avx512, "avx512bw,vpclmulqdq", __m512i, stream, true, false)                                 \
    K(avx512, "avx512bw,vpclmulqdq", __m512i, stream_ahead, true, true)                            \
    K(avx512, "avx512bw,vpclmulqdq", __m512i, store, false, false)                                 \
    K(avx2, "avx2,vpclmulqdq", __m256i, stream, true, false)                                       \
    K(avx2, "avx2,vpclmulqdq", __m256i, stream_ahead, true, true)                                  \
    K(avx2, "avx2,vpclmulqdq", __m256i, store, false, false)                                       \
    K(sse, "pclmul", __m128i, stream, true, false)                                                 \
    K(sse, "pclmul", __m128i, stream_ahead, true, true)                                            \
    K(sse, "pclmul", __m128i, store, false, false)

#define FUNCTION(width, isa, vector, how, streams, ahead)                                          \
    __attribute__((target(isa))) static uint64_t copy_##width##_##how(                             \
        uint64_t seed, uint8_t *dest, const uint8_t *source, size_t bytes,                         \
        struct cairn_copy_look *look)                                                              \
    {                                                                                              \
        if (!look)                                                                                 \
            return copy_rows_##width(seed, dest, source, bytes, NULL, streams, ahead, NO_LOOK);    \
        if (look->type->element_bytes == 1)                                                        \
            return copy_rows_##width(seed, dest, source, bytes, look, streams, ahead, BY_8_BITS);  \
        return copy_rows_##width(seed, dest, source, bytes, look, streams, ahead, BY_16_BITS);     \
    }
KERNELS(FUNCTION)

#define ENTRY(width, isa, vector, how, streams, ahead)                                             \
    {#width "_" #how, VECTORS * sizeof(vector), copy_##width##_##how},
static const struct cairn_copy_kernel kernels[] = {KERNELS(ENTRY){0}};
enum { FIRST_AVX2 = 3, FIRST_SSE = 6 };

const struct cairn_copy_kernel *
cairn_copy_kernels(void)
{
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("vpclmulqdq"))
        return &kernels[0];
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq"))
        return &kernels[FIRST_AVX2];
    if (__builtin_cpu_supports("pclmul"))
        return &kernels[FIRST_SSE];
    return &none;
}

void
cairn_copy_forget(const void *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE_BYTES)
        _mm_clflush((const uint8_t *)memory + at);
    _mm_mfence();
}
#else
const struct cairn_copy_kernel *
cairn_copy_kernels(void)
{
    return &none;
}

void
cairn_copy_forget(const void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
}
#endif
