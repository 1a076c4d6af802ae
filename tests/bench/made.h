/*
 * tests/bench/made.h - problems made from seeds: the same seed is the same problem on every
 * machine.
 */
#ifndef CAIRN_TESTS_BENCH_MADE_H
#define CAIRN_TESTS_BENCH_MADE_H

#include "replan/assign/assign.h"
#include "replan/fleet/problem.h"

/* A number below `bound`, which is at least 1. */
uint32_t cairn_made_below(uint64_t *state, uint32_t bound);
/* A number in [0, 1). */
double cairn_made_part(uint64_t *state);

/* What a random cluster is like. Nodes of 8 devices of 80 GiB, 80 layers, groups of 1, 2, 4 or
 * 8. */
struct cairn_made_cluster {
    uint32_t devices;
    uint32_t microbatches;
    uint64_t layer_bytes;
    uint64_t activation_bytes;
    double slow_share; /* of devices, with rates from 1.1 to 5.5 */
    double dead_share;
};

/* The caller ends *out with cairn_problem_fini. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_made_problem(const struct cairn_made_cluster *cluster,
                                              uint64_t seed, struct cairn_problem *out);

/*
 * A problem whose memory is tight: the devices together hold 1.1 to 3.5 times the model with four
 * micro-batches in flight. Nodes of 8; a fifth of the devices is slow (1.1 to 5.5), a fiftieth
 * dead, a quarter of the nodes has half the memory, and in every other problem a quarter of the
 * devices has half of what its node has. 24 to 96 layers, 16 to 128 micro-batches, groups of 1, 2,
 * 4 or 8. The caller ends *out with cairn_problem_fini. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_made_tight(uint32_t devices, uint64_t seed,
                                            struct cairn_problem *out);

/* Sets the rates of a problem's devices back to 1. */
void cairn_made_heal(struct cairn_problem *problem);

/* Sequences with a long tail, 512 to 262,144 tokens, for pipelines of mixed speed, length and room.
 * `square` is the cost's a: the larger, the more a few long sequences decide. The caller ends *out
 * with cairn_assign_problem_fini. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_made_sequences(uint32_t sequence_count, uint32_t pipeline_count,
                                                double square, uint64_t seed,
                                                struct cairn_assign_problem *out);

#endif
