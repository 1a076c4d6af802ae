/*
 * snapshot/finite.h - finds values that are not finite (infinity or NaN) in memory of a
 * floating-point type.
 *
 * An element of the interchange formats (IEEE 754-2019, 3.4), of bfloat16 and of E5M2 is not finite
 * if all bits of its exponent are set. E4M3 has no infinity, and its NaN is all bits but the sign
 * (OCP 8-bit Floating Point Specification, 2023). With these bits as `exponent` and the lowest of
 * them as `unit`,
 *
 *     (element & exponent) + unit
 *
 * carries into the sign bit for exactly such an element, and never further. So 64 bits, of 1 to 8
 * elements, take one AND, one ADD and one OR. The copy kernels (copy.h) keep the largest exponent
 * of each 16 or 8 bits instead, and add `unit` once at the end.
 */
#ifndef CAIRN_SNAPSHOT_FINITE_H
#define CAIRN_SNAPSHOT_FINITE_H

#include "cairn/types.h"

/* One type's bits, repeated over 64 bits. */
struct cairn_finite {
    uint64_t exponent;
    uint64_t unit;
    uint64_t sign;
    uint32_t element_bytes;
};

/* The bits of a data type; NULL: all its values are finite. Static. Thread: any. */
const struct cairn_finite *cairn_finite_of(enum cairn_dtype dtype);

/* True if an element of bytes[bytes_len] is not finite. The first byte begins an element, at any
 * address; an element that is cut off at the end is not looked at. Thread: any. */
bool cairn_finite_fails(const struct cairn_finite *type, const void *bytes, size_t bytes_len);

#endif
