/* tests/traces/random.c - the numbers that jobs and their noise are drawn from; see random.h. */
#include "tests/traces/random.h"

#include <math.h>

uint64_t
random_next(struct random *random) /* splitmix64 */
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15ull;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

double
random_unit(struct random *random)
{
    return (double)(random_next(random) >> 11) * 0x1p-53;
}

double
random_between(struct random *random, double low, double high)
{
    return low + (high - low) * random_unit(random);
}

uint32_t
random_below(struct random *random, uint32_t limit)
{
    return (uint32_t)(random_next(random) % limit);
}

double
random_normal(struct random *random)
{
    double radius = sqrt(-2 * log(1 - random_unit(random)));

    return radius * cos(6.283185307179586 * random_unit(random));
}
