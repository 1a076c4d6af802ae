/*
 * examples/gpt/random.h - random numbers as a pure function of what they are for.
 */
#ifndef GPT_RANDOM_H
#define GPT_RANDOM_H

#include <stdint.h>

/*
 * Mixes one more word into a key (the finaliser of SplitMix64 over their sum). Start with a seed.
 */
static inline uint64_t
gpt_random(uint64_t key, uint64_t word)
{
    uint64_t z = key * 0x9e3779b97f4a7c15u + word + 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
