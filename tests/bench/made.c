/* tests/bench/made.c - problems made from seeds. */
#include "tests/bench/made.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { NODE_DEVICES = 8, TOKENS_MIN = 512, TOKENS_MAX = 262144 };
#define GIB (UINT64_C(1) << 30)

/* splitmix64: neighbouring seeds have nothing to do with each other. */
static uint64_t
next(uint64_t *state)
{
    uint64_t mixed = *state += UINT64_C(0x9e3779b97f4a7c15);

    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

uint32_t
cairn_made_below(uint64_t *state, uint32_t bound)
{
    return (uint32_t)((next(state) >> 32) * bound >> 32);
}

double
cairn_made_part(uint64_t *state)
{
    return (double)(next(state) >> 11) * 0x1p-53;
}

cairn_err
cairn_made_problem(const struct cairn_made_cluster *cluster, uint64_t seed,
                   struct cairn_problem *out)
{
    struct cairn_problem problem = {.layers = 80,
                                    .layer_ms = 10,
                                    .head_layers = 5.4,
                                    .microbatches = cluster->microbatches,
                                    .tp = 8,
                                    .sizes = {{1, 8}, {2, 4}, {4, 2}, {8, 1}},
                                    .size_count = 4,
                                    .layer_bytes = cluster->layer_bytes,
                                    .activation_bytes = cluster->activation_bytes,
                                    .reserved_bytes = 4 * GIB,
                                    .device_count = cluster->devices,
                                    .intra_gbps = 3600,
                                    .inter_gbps = 400};

    problem.devices = calloc((size_t)cluster->devices + 1, sizeof(*problem.devices));
    if (!problem.devices)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < cluster->devices; i++) {
        double lot = cairn_made_part(&seed), slow = 1.1 + 4.4 * cairn_made_part(&seed);

        problem.devices[i] = (struct cairn_device){i, i / NODE_DEVICES, 1, 80 * GIB};
        if (lot < cluster->dead_share)
            problem.devices[i].rate = 0;
        else if (lot < cluster->dead_share + cluster->slow_share)
            problem.devices[i].rate = floor(slow * 100) / 100;
    }
    *out = problem;
    return CAIRN_OK;
}

cairn_err
cairn_made_tight(uint32_t devices, uint64_t seed, struct cairn_problem *out)
{
    const struct cairn_made_cluster cluster = {devices, 1, GIB, GIB, 0.2, 0.02};
    bool mixed = seed % 2;
    double bytes = 0, share;
    struct cairn_problem problem;
    cairn_err err = cairn_made_problem(&cluster, seed, &problem);

    if (err)
        return err;
    seed = ~seed;
    problem.layers = 24 + cairn_made_below(&seed, 73);
    problem.microbatches = 16 + cairn_made_below(&seed, 113);
    share = 0.05 + 0.2 * cairn_made_part(&seed); /* of a layer, per micro-batch in flight */
    for (uint32_t i = 0, halved = 0; i < devices; i++) {
        struct cairn_device *device = &problem.devices[i];

        if (i % NODE_DEVICES == 0)
            halved = cairn_made_part(&seed) < 0.25;
        device->memory_bytes >>= halved + (mixed && cairn_made_part(&seed) < 0.25);
        if (device->rate > 0)
            bytes += (double)(device->memory_bytes - problem.reserved_bytes);
    }
    bytes /= problem.layers * (1.1 + 2.4 * cairn_made_part(&seed)) * (1 + 4 * share);
    problem.layer_bytes = (uint64_t)bytes;
    problem.activation_bytes = (uint64_t)(bytes * share);
    *out = problem;
    return CAIRN_OK;
}

void
cairn_made_heal(struct cairn_problem *problem)
{
    for (uint32_t i = 0; i < problem->device_count; i++)
        problem->devices[i].rate = 1;
}

cairn_err
cairn_made_sequences(uint32_t sequence_count, uint32_t pipeline_count, double square, uint64_t seed,
                     struct cairn_assign_problem *out)
{
    static const double scales[] = {1, 1, 1, 1.3, 2, 0.5};
    static const uint32_t stages[] = {1, 2, 4, 4, 8};
    static const uint64_t rooms[] = {TOKENS_MAX, TOKENS_MAX / 2, TOKENS_MAX / 4};
    struct cairn_assign_problem problem = {.sequence_count = sequence_count,
                                           .square = square,
                                           .linear = 0.18,
                                           .pipeline_count = pipeline_count};

    problem.tokens = calloc((size_t)sequence_count + 1, sizeof(*problem.tokens));
    problem.pipelines = calloc((size_t)pipeline_count + 1, sizeof(*problem.pipelines));
    if (!problem.tokens || !problem.pipelines) {
        cairn_assign_problem_fini(&problem);
        return CAIRN_NOMEM;
    }
    for (uint32_t i = 0; i < sequence_count; i++) {
        /* Pareto, cut at both ends. */
        double tokens = TOKENS_MIN * pow(1 - cairn_made_part(&seed), -1 / 0.9);

        problem.tokens[i] = tokens < TOKENS_MAX ? (uint64_t)tokens : TOKENS_MAX;
    }
    for (uint32_t i = 0; i < pipeline_count; i++) {
        struct cairn_assign_pipeline *pipeline = &problem.pipelines[i];

        pipeline->time_scale = scales[cairn_made_below(&seed, 6)];
        pipeline->stages = stages[cairn_made_below(&seed, 5)];
        pipeline->max_tokens = rooms[cairn_made_below(&seed, 3)];
    }
    if (pipeline_count > 0)
        problem.pipelines[0].max_tokens = TOKENS_MAX; /* some pipeline takes every sequence */
    *out = problem;
    return CAIRN_OK;
}
