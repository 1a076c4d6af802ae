/*
 * replan/fleet/cost.h - the cost formulas, each in one place: a group's time per layer, the layers
 * that fit, a pipeline's time. docs/PLANNER.md states them; nothing else computes them again.
 */
#ifndef CAIRN_REPLAN_FLEET_COST_H
#define CAIRN_REPLAN_FLEET_COST_H

#include "replan/fleet/problem.h"

/* tp_cost of a size; 0 where a group may not have that size. */
double cairn_cost_of_size(const struct cairn_problem *problem, uint32_t size);

/* Bytes that a whole group has for layers and activations: `size` times what its smallest device
 * has beyond the reserve; 0 where it has not even that. Where layers take none, 1 if it has the
 * reserve. */
uint64_t cairn_cost_group_bytes(const struct cairn_problem *problem, uint32_t size,
                                uint64_t memory_bytes_min);

/* Layers that fit in group_bytes with the activations of `in_flight` micro-batches; at most
 * problem->layers. */
uint32_t cairn_cost_layers_max(const struct cairn_problem *problem, uint64_t group_bytes,
                               uint32_t in_flight);

/* What one device of a stage holds, rounded up: layers, activations, the reserve. */
uint64_t cairn_cost_device_bytes(const struct cairn_problem *problem, uint32_t size,
                                 uint32_t layers, uint32_t in_flight);

/* The vocabulary's weight in layers on a stage. */
double cairn_cost_vocabulary_layers(const struct cairn_problem *problem, uint32_t stage,
                                    uint32_t stage_count);

/* Micro-batches whose activations a stage holds at once under 1F1B. */
uint32_t cairn_cost_in_flight(uint32_t stage, uint32_t stage_count, uint32_t microbatches);

#endif
