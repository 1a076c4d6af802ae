/*
 * tests/traces/job.h - the simulated job of the trace generator: its shape, its faults, its clocks.
 *
 * An independent model: it shares nothing with the detector but the format of the trace.
 */
#ifndef CAIRN_TESTS_TRACES_JOB_H
#define CAIRN_TESTS_TRACES_JOB_H

#include "tests/traces/random.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { FAULTS_MAX = 4, RANKS_MAX = 16384 };

enum fault_kind {
    FAULT_SLOW_RANK,
    FAULT_SLOW_NODE,
    FAULT_SLOW_LINK, /* a pair of ranks, both ways or one */
    FAULT_SLOW_NIC,
    FAULT_HANG_RANK,
    FAULT_HANG_LINK,
    FAULT_CRASH,
    FAULT_PAUSE, /* not to be reported */
    FAULT_LONG_STAGE,
    FAULT_LENGTHS,
    FAULT_PAUSES /* of a garbage collector */
};

struct fault {
    enum fault_kind kind;
    uint32_t rank, peer, node, stage;
    uint32_t since, until; /* steps, half-open */
    double factor;
};

/* Transfers that now and then take much longer, with nothing wrong: congestion. */
struct spikes {
    double share;   /* of the transfers; 0: none */
    double most;    /* times as long as else, at most */
    uint32_t steps; /* 0: each transfer by itself; else a channel's transfers for so many steps in
                     * the mean */
    bool near;      /* within nodes too */
};

struct job {
    uint32_t tp, pp, dp, world, ranks_per_node, steps, microbatches;
    bool data_before_stages; /* rank = tp + TP * (dp + DP * pp), else tp + TP * (pp + PP * dp) */
    bool tree;               /* gradients in trees, else rings */
    bool sharded;            /* reduce_scatter and all_gather instead of all_reduce */
    bool steps_named, work_named, sends_block;
    double forward_ns, optimizer_ns, tp_ns, pair_ns, dp_ns; /* normal times */
    double noise, noise_near, noise_far; /* coefficients of variation: computation, links */
    double length_spread;                /* of the sequences of a step, per pipeline */
    double length_kept;                  /* of a pipeline's length from one step to the next: their
                                          * correlation */
    struct spikes spikes;
    struct fault faults[FAULTS_MAX];
    uint32_t fault_count;
};

/* Simulates the job and writes its trace. Spikes have random numbers of their own: without them a
 * seed's job is the same. */
void job_simulate(const struct job *job, struct random *random, struct random *spikes, FILE *out);

uint32_t job_rank(const struct job *job, uint32_t tp, uint32_t pp, uint32_t dp);
uint32_t job_stage(const struct job *job, uint32_t rank);
uint32_t job_pipeline(const struct job *job, uint32_t rank);

#endif
