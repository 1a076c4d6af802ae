/* tests/support/random.h - the generators of the tests: the same draws for the same seed. */
#ifndef CAIRN_TESTS_RANDOM_H
#define CAIRN_TESTS_RANDOM_H

#include <stdint.h>

static inline uint64_t
splitmix(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The state is not 0. */
static inline uint64_t
xorshift(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* 0 to limit - 1, of a linear congruential generator. */
static inline uint64_t
lcg_below(uint64_t *state, uint64_t limit)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % limit;
}

#endif
