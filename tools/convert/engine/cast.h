/*
 * tools/convert/engine/cast.h - floating-point elements of one type as another: F64, F32, F16,
 * BF16.
 *
 * Rounds to nearest, ties to even, as PyTorch does (F64 goes by way of F32). What is too large
 * becomes infinite; NaN stays NaN. Pure. Thread: any.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_CAST_H
#define CAIRN_TOOLS_CONVERT_ENGINE_CAST_H

#include "cairn/types.h"

/* True where both types are of the four. */
bool cairn_cast_knows(enum cairn_dtype from, enum cairn_dtype to);

/* Casts `count` elements; the buffers do not overlap and need no alignment. Types that
 * cairn_cast_knows. */
void cairn_cast(const uint8_t *from, enum cairn_dtype from_dtype, uint8_t *to,
                enum cairn_dtype to_dtype, uint64_t count);

#endif
