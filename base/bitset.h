/* base/bitset.h - a set of members or agents of one job, as 64-bit words sized by the
 * caller. */
#ifndef CAIRN_BASE_BITSET_H
#define CAIRN_BASE_BITSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline size_t
cairn_bitset_words(uint32_t count)
{
    return (count + 63u) / 64u;
}

static inline bool
cairn_bitset_has(const uint64_t *set, uint32_t index)
{
    return (set[index / 64] >> (index % 64)) & 1u;
}

static inline void
cairn_bitset_add(uint64_t *set, uint32_t index)
{
    set[index / 64] |= UINT64_C(1) << (index % 64);
}

static inline uint32_t
cairn_bitset_count(const uint64_t *set, uint32_t count)
{
    uint32_t total = 0;

    for (size_t w = 0; w < cairn_bitset_words(count); w++)
        total += (uint32_t)__builtin_popcountll(set[w]);
    return total;
}

static inline void
cairn_bitset_remove(uint64_t *set, uint32_t index)
{
    set[index / 64] &= ~(UINT64_C(1) << (index % 64));
}

/* True when all of 0 … count-1 are in the set. */
static inline bool
cairn_bitset_full(const uint64_t *set, uint32_t count)
{
    return cairn_bitset_count(set, count) == count;
}

#endif
