/* tools/convert/maps/proof.c - see maps/proof.h. */
#include "tools/convert/maps/proof.h"

#define PRIME ((UINT64_C(1) << 61) - 1)

static const uint64_t points[CAIRN_MAP_PROOF_POINTS] = {UINT64_C(0x0a3c59ac2f0136d7),
                                                        UINT64_C(0x17d1f7b3e9a5c48b)};
/* Weights of containers are powers of these. */
static const uint64_t weights[CAIRN_MAP_PROOF_POINTS] = {UINT64_C(0x1b5ad4ce8d97f3c1),
                                                         UINT64_C(0x05c3a69b1f7e42d9)};

static uint64_t
add(uint64_t a, uint64_t b)
{
    uint64_t sum = a + b;

    return sum >= PRIME ? sum - PRIME : sum;
}

static uint64_t
multiply(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;

    return add((uint64_t)(product & PRIME), (uint64_t)(product >> 61));
}

static uint64_t
power(uint64_t base, uint64_t exponent)
{
    uint64_t result = 1;

    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1)
            result = multiply(result, base);
        base = multiply(base, base);
    }
    return result;
}

/* 1 + q + q^2 + … , `count` terms: from the highest bit of count on, doubled and added to. */
static uint64_t
series(uint64_t q, uint64_t count)
{
    uint64_t sum = 0, next = 1; /* of the terms so far; q to their number */

    for (int bit = 63; bit >= 0; bit--) {
        sum = add(sum, multiply(sum, next));
        next = multiply(next, next);
        if (count >> bit & 1) {
            sum = add(sum, next);
            next = multiply(next, q);
        }
    }
    return sum;
}

void
cairn_map_places_add(struct cairn_map_places *places, const struct cairn_piece *piece,
                     uint32_t dims)
{
    for (int i = 0; i < CAIRN_MAP_PROOF_POINTS; i++) {
        uint64_t sum = multiply(power(points[i], piece->offset_bytes),
                                power(weights[i], (uint64_t)piece->container + 1));

        for (uint32_t d = 0; d < dims; d++)
            if (piece->extent[d] > 1)
                sum = multiply(sum,
                               series(power(points[i], piece->stride_bytes[d]), piece->extent[d]));
        places->sums[i] = add(places->sums[i], sum);
    }
}

bool
cairn_map_places_equal(const struct cairn_map_places *a, const struct cairn_map_places *b)
{
    for (int i = 0; i < CAIRN_MAP_PROOF_POINTS; i++)
        if (a->sums[i] != b->sums[i])
            return false;
    return true;
}
