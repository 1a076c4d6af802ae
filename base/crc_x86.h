/*
 * base/crc_x86.h - what the vector kernels of checksums share: the factors that fold a row, and the
 * choice of a kernel.
 *
 * A kernel keeps eight vectors R0 … R7, together one row: a message that is congruent (as a
 * polynomial modulo the CRC's) to all rows read so far. A step multiplies each of their 128-bit
 * lanes by x^(row bits) and adds the next row:
 *
 *     lane' = low(lane) * FOLD_LOW + high(lane) * FOLD_HIGH + next lane        (carry-less)
 *
 * with FOLD_LOW = reflect(x^(bits + 63) mod P) and FOLD_HIGH = reflect(x^(bits - 1) mod P),
 * bits = 8 * row_bytes, P = x^64 + 0x42f0e1eba9ea3693 (Jones': x^64 + 0xad93d23594c935a9); the -1
 * makes up for the product of two reflected factors being one bit short. What remains is one row
 * with the same checksum as all that went in, which the ordinary CRC finishes. Method: V. Gopal et
 * al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.
 * Eight vectors hide the latency of the multiplication. The loops over them are unrolled by pragma,
 * since the remainders stay in registers only then.
 */
#ifndef CAIRN_BASE_CRC_X86_H
#define CAIRN_BASE_CRC_X86_H

#include <stddef.h>
#include <stdint.h>

enum { CAIRN_FOLD_VECTORS = 8 };

/* The factors by the bits of a row: eight vectors of 512, 256 or 128. */
#define CAIRN_FOLD_4096_LOW ((long long)0x6b6563c31e5df640)
#define CAIRN_FOLD_4096_HIGH ((long long)0x430af18f45bfec70)
#define CAIRN_FOLD_2048_LOW ((long long)0x8260adf2381ad81c)
#define CAIRN_FOLD_2048_HIGH ((long long)0xf31fd9271e228b79)
#define CAIRN_FOLD_1024_LOW ((long long)0x8757d71d4fcc1000)
#define CAIRN_FOLD_1024_HIGH ((long long)0xd7d86b2af73de740)
#define CAIRN_FOLD_JONES_4096_LOW ((long long)0x5f76ba258de12275)
#define CAIRN_FOLD_JONES_4096_HIGH ((long long)0x517c365ad57671f6)
#define CAIRN_FOLD_JONES_2048_LOW ((long long)0x9a8908341a6d6d52)
#define CAIRN_FOLD_JONES_2048_HIGH ((long long)0x9471a5389095fe44)

/* The CRC starts from the complement of the seed, which is added to the first 64 bits of the
 * message, and the row that is left is a message that starts from zero. */
#define CAIRN_FOLD_START(seed) ((long long)~(seed))
#define CAIRN_FOLD_ROW_SEED (~UINT64_C(0))

/* Each gives the checksum of the first bytes / row_bytes rows (one at least). */
struct cairn_crc_kernel {
    const char *name;
    size_t row_bytes;
    uint64_t (*fold_rows)(uint64_t seed, const uint8_t *source, size_t bytes);
    uint64_t (*fold_rows_jones)(uint64_t seed, const uint8_t *source, size_t bytes);
};

/* The vector kernels that this processor has, fastest first; a kernel without a name ends the list:
 * there ISA-L's is the fastest. Static. Thread: any. */
const struct cairn_crc_kernel *cairn_crc_kernels(void);

#endif
