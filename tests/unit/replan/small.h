/* tests/unit/replan/small.h - small problems from a seed, and the cost formulas written again,
 * plainly, for the tests alone. */
#ifndef CAIRN_TESTS_REPLAN_SMALL_H
#define CAIRN_TESTS_REPLAN_SMALL_H

#include "replan/fleet/plan.h"
#include "replan/fleet/problem.h"

#include <math.h>
#include <stdlib.h>

static inline uint32_t
random_below(uint64_t *state, uint32_t bound)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % bound);
}

/* Up to 8 devices, 6 layers, 6 micro-batches; memory is tight in half of them. */
static inline struct cairn_problem
small_problem(uint64_t seed)
{
    uint64_t state = seed * 7919 + 17;
    static const double rates[] = {1, 1, 1, 1.5, 2.6, 5.4, 0};
    struct cairn_problem problem = {.layer_ms = 1 + random_below(&state, 10),
                                    .layers = 1 + random_below(&state, 6),
                                    .microbatches = 1 + random_below(&state, 6),
                                    .tp = 2,
                                    .sizes = {{1, 2}, {2, 1}, {4, 0.7}},
                                    .size_count = 1 + random_below(&state, 3),
                                    .layer_bytes = 10 + random_below(&state, 20),
                                    .activation_bytes = random_below(&state, 12),
                                    .reserved_bytes = random_below(&state, 5),
                                    .intra_gbps = 1000,
                                    .inter_gbps = 100};
    bool tight = seed % 2;
    uint32_t nodes = 1 + random_below(&state, 3);

    if (random_below(&state, 2))
        problem.embed_layers = random_below(&state, 3) * 0.5;
    if (random_below(&state, 2))
        problem.head_layers = random_below(&state, 5) * 0.7;
    problem.device_count = 1 + random_below(&state, 8);
    problem.devices = calloc(problem.device_count, sizeof(*problem.devices));
    for (uint32_t i = 0; i < problem.device_count; i++)
        problem.devices[i] =
            (struct cairn_device){i, random_below(&state, nodes), rates[random_below(&state, 7)],
                                  tight ? 20 + random_below(&state, 120) : 100000};
    return problem;
}

static inline double
plain_layer_ms(const struct cairn_problem *problem, uint32_t size, double rate)
{
    for (uint32_t i = 0; i < problem->size_count; i++)
        if (problem->sizes[i].size == size)
            return problem->layer_ms * problem->sizes[i].cost * rate;
    return INFINITY;
}

/* The time of a pipeline of given layers; INFINITY where a stage does not fit. bytes: beyond the
 * reserve, of the whole group. */
static inline double
plain_pipeline_ms(const struct cairn_problem *problem, uint32_t stages, const double *layer_ms,
                  const uint64_t *bytes, const uint32_t *layers, uint32_t microbatches)
{
    double slowest = 0, sum = 0;

    for (uint32_t j = 0; j < stages; j++) {
        uint32_t flight = stages - j < microbatches ? stages - j : microbatches;
        double weight = layers[j], ms;

        if (j == 0)
            weight += problem->embed_layers;
        if (j == stages - 1)
            weight += problem->head_layers;
        ms = weight * layer_ms[j];
        if (layers[j] * (problem->layer_bytes + flight * problem->activation_bytes) > bytes[j])
            return INFINITY;
        slowest = ms > slowest ? ms : slowest;
        sum += ms;
    }
    return (microbatches - 1) * slowest + sum;
}

/* The least over all ways to cut the layers: an odometer over the stages' counts. */
static inline double
exhaustive_layers_ms(const struct cairn_problem *problem, uint32_t stages, const double *layer_ms,
                     const uint64_t *bytes, uint32_t microbatches)
{
    uint32_t layers[8];
    double best = INFINITY;

    if (stages > problem->layers)
        return INFINITY;
    for (uint32_t j = 0; j < stages; j++)
        layers[j] = 1;
    for (;;) {
        uint32_t sum = 0, j = 0;

        for (uint32_t i = 0; i < stages; i++)
            sum += layers[i];
        if (sum == problem->layers)
            best = fmin(best,
                        plain_pipeline_ms(problem, stages, layer_ms, bytes, layers, microbatches));
        while (j < stages && layers[j] == problem->layers)
            layers[j++] = 1;
        if (j == stages)
            return best;
        layers[j]++;
    }
}

#endif
