/* tests/traces/random.h - the numbers that jobs and their noise are drawn from: splitmix64. */
#ifndef CAIRN_TESTS_TRACES_RANDOM_H
#define CAIRN_TESTS_TRACES_RANDOM_H

#include <stdint.h>

struct random {
    uint64_t state;
};
uint64_t random_next(struct random *random);
double random_unit(struct random *random); /* 0 … 1 */
double random_between(struct random *random, double low, double high);
uint32_t random_below(struct random *random, uint32_t limit);
double random_normal(struct random *random);

#endif
