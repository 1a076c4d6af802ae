/* base/array.h - arrays that grow by one element at a time; comparing elements to sort them, and
 * binary search in sorted arrays. */
#ifndef CAIRN_BASE_ARRAY_H
#define CAIRN_BASE_ARRAY_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Makes room for one more element behind the `count` elements of an array. `array` points to the
 * array's pointer, NULL at first; only this function may allocate it, and the owner frees it. The
 * room is the next power of two, at least 8, so no field keeps it. False if memory is short; the
 * array is unchanged then.
 */
CAIRN_MUST_CHECK bool cairn_array_grow(void *array, size_t count, size_t element_bytes);

/* The order of two numbers for qsort: -1, 0 or 1. Several in a row, most important first:
 * CAIRN_COMPARE(…) ?: CAIRN_COMPARE(…). */
#define CAIRN_COMPARE(a, b) (((a) > (b)) - ((a) < (b)))

/*
 * Moves the variable `low` to the first index in [low, high) at which `is_before` is false, or to
 * `high`. `is_before` is an expression of the index `middle`; once false it stays false.
 */
#define CAIRN_BISECT(low, high, middle, is_before)                                                 \
    do {                                                                                           \
        __typeof__(low) bisect_end = (high);                                                       \
                                                                                                   \
        while ((low) < bisect_end) {                                                               \
            __typeof__(low) middle = (low) + (bisect_end - (low)) / 2;                             \
                                                                                                   \
            if (is_before)                                                                         \
                (low) = middle + 1;                                                                \
            else                                                                                   \
                bisect_end = middle;                                                               \
        }                                                                                          \
    } while (0)

#endif
