/*
 * snapshot/copy.c - the two kernels of copy-and-checksum.
 *
 * The AVX-512 kernel keeps eight 64-byte remainders R0 … R7, congruent (as polynomials modulo the
 * CRC's) to all 512-byte rows read so far. A step multiplies each of their 128-bit lanes by x^4096
 * and adds the next row:
 *
 *     lane' = low(lane) * FOLD_LOW + high(lane) * FOLD_HIGH + next lane        (carry-less)
 *
 * with FOLD_LOW = reflect(x^(4096 + 63) mod P) and FOLD_HIGH = reflect(x^(4096 - 1) mod P),
 * P = x^64 + 0x42f0e1eba9ea3693; the -1 makes up for the product of two reflected factors being one
 * bit short. What remains is a 512-byte message with the same checksum as all that went in, which
 * the ordinary CRC finishes. Method: V. Gopal et al., "Fast CRC Computation for Generic Polynomials
 * Using PCLMULQDQ Instruction", Intel, 2009. Eight rows hide the latency of the multiplication; the
 * kernel runs at the speed of memory.
 *
 * Stores go past the cache: the destination is not read back by this core, a write-allocate would
 * cost a third of the bandwidth, and the trainer's working set stays where it is.
 */
#include "snapshot/copy.h"

#include "base/crc.h"

#include <stdbool.h>
#include <string.h>

enum { PIECE_BYTES = 4096 }; /* a piece and its copy fit the first-level cache */

uint64_t
cairn_copy_crc_portable(uint64_t seed, void *dest, const void *source, size_t bytes)
{
    uint8_t *to = dest;
    const uint8_t *from = source;

    while (bytes > 0) {
        size_t piece = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;

        memcpy(to, from, piece);
        seed = cairn_crc64(seed, to, piece); /* of what was written, not of what was read */
        to += piece;
        from += piece;
        bytes -= piece;
    }
    return seed;
}

/* ThreadSanitizer does not see streaming stores, so it gets the kernel that it can check. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <immintrin.h>

enum { LINE = 64, ROWS = 8, ROW_BYTES = LINE * ROWS };

static const long long FOLD_LOW = 0x6b6563c31e5df640;
static const long long FOLD_HIGH = 0x430af18f45bfec70;

/* dest is 64-byte aligned, bytes >= ROW_BYTES. */
__attribute__((target("avx512f,vpclmulqdq"))) static uint64_t
copy_crc_avx512(uint64_t seed, uint8_t *dest, const uint8_t *source, size_t bytes)
{
    const __m512i fold = _mm512_set_epi64(FOLD_HIGH, FOLD_LOW, FOLD_HIGH, FOLD_LOW, FOLD_HIGH,
                                          FOLD_LOW, FOLD_HIGH, FOLD_LOW);
    uint8_t rest[ROW_BYTES] __attribute__((aligned(LINE)));
    __m512i remainder[ROWS];
    size_t at = ROW_BYTES;

    for (int i = 0; i < ROWS; i++) {
        remainder[i] = _mm512_loadu_si512(source + i * LINE);
        _mm512_stream_si512((void *)(dest + i * LINE), remainder[i]);
    }
    /* The CRC starts from the complement of the seed: added to the first 64 bits of the message. */
    remainder[0] =
        _mm512_xor_si512(remainder[0], _mm512_zextsi128_si512(_mm_cvtsi64_si128((long long)~seed)));
    for (; bytes - at >= ROW_BYTES; at += ROW_BYTES) {
        for (int i = 0; i < ROWS; i++) {
            __m512i next = _mm512_loadu_si512(source + at + (size_t)i * LINE);
            __m512i low = _mm512_clmulepi64_epi128(remainder[i], fold, 0x00);
            __m512i high = _mm512_clmulepi64_epi128(remainder[i], fold, 0x11);

            _mm512_stream_si512((void *)(dest + at + (size_t)i * LINE), next);
            remainder[i] = _mm512_ternarylogic_epi64(low, high, next, 0x96); /* a ^ b ^ c */
        }
    }
    _mm_sfence(); /* streaming stores are not ordered by a release store */
    for (int i = 0; i < ROWS; i++)
        _mm512_store_si512((void *)(rest + i * LINE), remainder[i]);
    seed = cairn_crc64(~UINT64_C(0), rest, ROW_BYTES); /* the complement of a start from zero */
    return cairn_copy_crc_portable(seed, dest + at, source + at, bytes - at);
}

static bool
has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

uint64_t
cairn_copy_crc(uint64_t seed, void *dest, const void *source, size_t bytes)
{
    size_t head = (LINE - ((uintptr_t)dest & (LINE - 1))) & (LINE - 1);

    if (bytes < head + ROW_BYTES || !has_avx512())
        return cairn_copy_crc_portable(seed, dest, source, bytes);
    seed = cairn_copy_crc_portable(seed, dest, source, head);
    return copy_crc_avx512(seed, (uint8_t *)dest + head, (const uint8_t *)source + head,
                           bytes - head);
}
#else
static bool
has_avx512(void)
{
    return false;
}

uint64_t
cairn_copy_crc(uint64_t seed, void *dest, const void *source, size_t bytes)
{
    return cairn_copy_crc_portable(seed, dest, source, bytes);
}
#endif

const char *
cairn_copy_kernel(void)
{
    return has_avx512() ? "avx512" : "portable";
}
