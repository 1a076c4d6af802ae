/*
 * tests/sim/random.h - the simulator's random numbers: splitmix64 (Steele, Lea and Flood, 2014).
 * All choices of a schedule come from one state, so a seed replays exactly.
 */
#ifndef CAIRN_SIM_RANDOM_H
#define CAIRN_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

static inline uint64_t
mix64(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static inline uint64_t
random_next(struct random *random)
{
    random->state += UINT64_C(0x9e3779b97f4a7c15);
    return mix64(random->state);
}

/* 0 … limit-1; limit >= 1. */
static inline uint64_t
random_below(struct random *random, uint64_t limit)
{
    return random_next(random) % limit;
}

/* first … last. */
static inline uint64_t
random_between(struct random *random, uint64_t first, uint64_t last)
{
    return first + random_below(random, last - first + 1);
}

static inline bool
random_chance(struct random *random, uint32_t per_thousand)
{
    return random_below(random, 1000) < per_thousand;
}

#endif
