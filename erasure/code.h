/*
 * erasure/code.h - systematic Reed-Solomon code over equal-sized shards.
 *
 * A stripe is `data_count` (k) data shards followed by `parity_count` (m) parity shards. Shard j
 * below k is data index j, shard k + r is parity row r. Any k of the k + m shards give all the
 * others. Pure computation: no I/O, no clock, no threads, and no allocation after create.
 *
 * Maths. Parity row r is the sum over j of G[r][j] * data[j] in GF(2^8) with the polynomial 0x11d
 * (ISA-L's field). G is a Cauchy matrix 1 / ((k + r) ^ j), its columns and then its rows divided by
 * constants so that row 0 and column 0 are all ones; that keeps every square submatrix invertible
 * (Blomer et al., ICSI TR-95-048). So parity row 0 is the plain XOR of the data, one parity shard
 * (m = 1) is XOR, and with k = 1 every parity shard is a copy of the data. The matrix depends on
 * (k, m) alone. Parity in memory outlives the agent's version, so the matrix has a number:
 * CAIRN_CODE_MATRIX.
 *
 * A NULL among the shards that are read means "all zero bytes": it pads a chunk shorter than the
 * stripe, without memory and without reading.
 */
#ifndef CAIRN_ERASURE_CODE_H
#define CAIRN_ERASURE_CODE_H

#include "base/limits.h"
#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAIRN_CODE_MATRIX = 1 }; /* the generator described above; another one gets another number */

struct cairn_code;

/*
 * Makes a code. Needs data_count >= 1 and data_count + parity_count <= CAIRN_SHARDS_MAX, else
 * CAIRN_INVAL; parity_count = 0 is a code that protects nothing. CAIRN_NOMEM if memory runs out. On
 * success the caller owns *out and ends it with cairn_code_destroy. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_code_create(uint32_t data_count, uint32_t parity_count,
                                             struct cairn_code **out);

/* Frees a code; NULL is allowed. No call on the code may be running. */
void cairn_code_destroy(struct cairn_code *code);

/* G[parity_row][data_index]. */
uint8_t cairn_code_coefficient(const struct cairn_code *code, uint32_t parity_row,
                               uint32_t data_index);

/*
 * Computes all parity shards. shards[k + m] are borrowed for the call, each shard_bytes long, host
 * memory; data is read (NULL: zeros), parity is overwritten and may not overlap the data. Any
 * alignment and any length; multiples of 64 bytes are fastest. Cannot fail. Thread: any,
 * concurrently on one code (it is immutable).
 */
void cairn_code_encode(const struct cairn_code *code, size_t shard_bytes, uint8_t *const shards[]);

/*
 * Folds one data shard into one parity shard: parity (+)= coefficient * source, over `bytes` bytes.
 * With `first` parity is overwritten instead, so that it needs no zeroing before. Folding every
 * data shard once, in any order, gives exactly the bytes of cairn_code_encode; a shard of zeros may
 * be left out. Folding the same bytes twice (without `first`) takes them out again. Thread: any,
 * concurrently on different parity bytes.
 */
void cairn_code_fold(const struct cairn_code *code, uint32_t parity_row, uint32_t data_index,
                     size_t bytes, const uint8_t *source, uint8_t *parity, bool first);

/*
 * The same for several parity rows, reading the source once. parity[m]: NULL where the row is not
 * wanted.
 */
void cairn_code_fold_rows(const struct cairn_code *code, uint32_t data_index, size_t bytes,
                          const uint8_t *source, uint8_t *const parity[], bool first);

/*
 * Rebuilds in place the shards whose bit is set in `lost`; all others of shards[k + m] must be
 * valid (NULL: zeros). CAIRN_LOST if more than m are lost; CAIRN_INVAL if `lost` has a bit of k + m
 * or above, or a lost shard is NULL; both with nothing written. Uses about 40 KiB of stack. Thread:
 * any.
 */
CAIRN_MUST_CHECK cairn_err cairn_code_rebuild(const struct cairn_code *code, size_t shard_bytes,
                                              uint64_t lost, uint8_t *const shards[]);

/*
 * Rebuilds the shards in `wanted` from exactly the k shards in `sources`; shards in neither set are
 * not looked at. Sources may be NULL (zeros). CAIRN_LOST if `sources` has fewer than k bits;
 * CAIRN_INVAL if it has more, if it and `wanted` share a bit, if either has a bit of k + m or
 * above, or if a wanted shard is NULL; nothing is written then. Uses about 40 KiB of stack. Thread:
 * any.
 */
CAIRN_MUST_CHECK cairn_err cairn_code_rebuild_some(const struct cairn_code *code,
                                                   size_t shard_bytes, uint64_t sources,
                                                   uint64_t wanted, uint8_t *const shards[]);

#endif
