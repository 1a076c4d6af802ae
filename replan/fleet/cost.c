/* replan/fleet/cost.c - the cost formulas. */
#include "replan/fleet/cost.h"

double
cairn_cost_of_size(const struct cairn_problem *problem, uint32_t size)
{
    for (uint32_t i = 0; i < problem->size_count; i++)
        if (problem->sizes[i].size == size)
            return problem->sizes[i].cost;
    return 0;
}

uint64_t
cairn_cost_group_bytes(const struct cairn_problem *problem, uint32_t size,
                       uint64_t memory_bytes_min)
{
    /* Layers of no bytes need the reserve alone. */
    if (problem->layer_bytes == 0 && problem->activation_bytes == 0)
        return memory_bytes_min >= problem->reserved_bytes;
    /* At most 2^50 bytes and 2^10 devices: no overflow. */
    return memory_bytes_min > problem->reserved_bytes
               ? (memory_bytes_min - problem->reserved_bytes) * size
               : 0;
}

/* Bytes of a layer with its activations; saturates. */
static uint64_t
layer_bytes(const struct cairn_problem *problem, uint32_t in_flight)
{
    uint64_t bytes;

    if (__builtin_mul_overflow(problem->activation_bytes, (uint64_t)in_flight, &bytes) ||
        __builtin_add_overflow(bytes, problem->layer_bytes, &bytes))
        return UINT64_MAX;
    return bytes;
}

uint32_t
cairn_cost_layers_max(const struct cairn_problem *problem, uint64_t group_bytes, uint32_t in_flight)
{
    uint64_t bytes = layer_bytes(problem, in_flight);
    uint64_t layers = bytes > 0 ? group_bytes / bytes : group_bytes > 0 ? problem->layers : 0;

    return layers < problem->layers ? (uint32_t)layers : problem->layers;
}

uint64_t
cairn_cost_device_bytes(const struct cairn_problem *problem, uint32_t size, uint32_t layers,
                        uint32_t in_flight)
{
    uint64_t bytes;

    if (__builtin_mul_overflow(layer_bytes(problem, in_flight), (uint64_t)layers, &bytes))
        return UINT64_MAX;
    bytes = bytes / size + (bytes % size != 0);
    return bytes > UINT64_MAX - problem->reserved_bytes ? UINT64_MAX
                                                        : bytes + problem->reserved_bytes;
}

double
cairn_cost_vocabulary_layers(const struct cairn_problem *problem, uint32_t stage,
                             uint32_t stage_count)
{
    return (stage == 0 ? problem->embed_layers : 0) +
           (stage + 1 == stage_count ? problem->head_layers : 0);
}

uint32_t
cairn_cost_in_flight(uint32_t stage, uint32_t stage_count, uint32_t microbatches)
{
    uint32_t depth = stage_count - stage;

    return depth < microbatches ? depth : microbatches;
}
