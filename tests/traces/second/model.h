/*
 * tests/traces/second/model.h - a simulated job of the second trace generator.
 *
 * The model is written from the contract of traces and from the literature, independently of the
 * detector and of the first generator:
 *
 * - A rank has three streams (computation, gradients, sends). A step is a list of items; an item
 *   starts when its stream is free and the item that it waits for has ended. Collectives and pairs
 *   end when the last member has started and the data has moved (max-plus algebra).
 * - Noise: each rank's speed is the sum of an AR(1) process, a slow drift, a common mode of the
 *   job and one of the node, with normal or Student-t innovations. Channels wander likewise.
 * - Causes and their sizes: Wu et al., "FALCON" (fail-slow GPUs, hosts and links); Lin et al.,
 *   "Understanding Stragglers in Large Model Training Using What-if Analysis" (uneven stages,
 *   sequence lengths, garbage collection).
 * - Clocks: offsets, drift, steps, a replaced node whose clock is ahead or behind.
 */
#ifndef CAIRN_TESTS_TRACES_SECOND_MODEL_H
#define CAIRN_TESTS_TRACES_SECOND_MODEL_H

#include "tests/traces/random.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
    MODEL_FAULTS_MAX = 4,
    MODEL_CLOCK_STEPS_MAX = 4,
    MODEL_RANKS_MAX = 256,
    MODEL_TICKS_MAX = 4000
};

enum model_layout {
    LAYOUT_DATA,    /* replicas alone: gradients in buckets */
    LAYOUT_SHARDED, /* FSDP: parameters gathered per layer, gradients scattered */
    LAYOUT_TENSOR,  /* tensor-parallel groups times replicas */
    LAYOUT_STAGES,  /* 1F1B pipelines, with tensor parallelism and replicas */
    LAYOUT_EXPERTS  /* two all-to-alls per layer, within expert-parallel groups of the replicas */
};

enum model_sends {
    SENDS_BUFFERED, /* a send ends when its data is out, whether the receiver is there or not */
    SENDS_MEET,     /* a send ends with its receive; computation goes on meanwhile */
    SENDS_BLOCK     /* computation waits for sends and receives of a batch, as Megatron-LM does */
};

enum model_cause {
    CAUSE_RANK,
    CAUSE_NODE,
    CAUSE_LINK,
    CAUSE_NIC,
    CAUSE_THROTTLE, /* a rank; its factor rises linearly over `ramp` steps */
    CAUSE_HANG,
    CAUSE_HANG_LINK,
    CAUSE_CRASH,
    CAUSE_STAGE,
    CAUSE_LENGTHS,
    CAUSE_COLLECTOR,
    CAUSE_EXPERT, /* uneven work: `rank` gets `factor` times the tokens; no device is at fault */
    CAUSE_PAUSE   /* one pause of one rank; no fault */
};

/* since and until are ticks: steps as they ran, where a restart runs some steps again. */
struct model_fault {
    enum model_cause cause;
    uint32_t rank, peer, node, stage, ramp;
    uint32_t since, until; /* half-open; UINT32_MAX: never ends */
    double factor;
};

struct model_clock_step {
    uint32_t node, tick;
    double ns;
};

struct model {
    enum model_layout layout;
    enum model_sends sends;
    uint32_t tp, pp, dp, ep, world, ranks_per_node, layers, microbatches, ticks;
    bool stages_outside; /* rank = tp + TP * (dp + DP * pp), else tp + TP * (pp + PP * dp) */
    bool overlapped;     /* gradients move behind the backward computation */
    bool norm;           /* one small all_reduce of all ranks before the optimizer */
    double layer_ns, optimizer_ns, tensor_ns, pair_ns, gradients_ns, expert_ns, shuffle_ns;

    /* noise, as shares of the time */
    double spread, correlation, drift, common, node_common, freedom; /* freedom 0: normal */
    double micro, channel_near, channel_far, channel_wander, spikes;
    double lengths; /* of the replicas' sequences */

    /* what a source records */
    bool steps_named, work_named, bytes_named, pair_seqs, op_seqs, enters, enters_alone, by_end;
    bool life, rank_by_rank;
    double lost;               /* share of single records */
    uint32_t lost_runs;        /* times that a rank's ring overflows */
    uint32_t missing;          /* rank that reports nothing; UINT32_MAX: none */
    uint32_t checkpoint_every; /* ticks; 0: never */
    double checkpoint_ns;
    uint32_t restart, back;   /* tick at which all start again, so many steps before; 0: never */
    uint32_t replaced;        /* node that is another machine since then; UINT32_MAX: none */
    double replaced_clock_ns; /* of the new machine less that of the old one */

    struct model_clock_step clock_steps[MODEL_CLOCK_STEPS_MAX];
    uint32_t clock_step_count;
    struct model_fault faults[MODEL_FAULTS_MAX];
    uint32_t fault_count;
};

/* The step that a tick carries in the trace. */
uint32_t model_step(const struct model *model, uint32_t tick);
uint32_t model_rank(const struct model *model, uint32_t tp, uint32_t pp, uint32_t dp);
uint32_t model_stage(const struct model *model, uint32_t rank);
uint32_t model_replica(const struct model *model, uint32_t rank);

/* The numbers of a seed. */
struct random model_seed(uint64_t seed);
/* Draws a job of a case (generate.c lists them) into *model, whose `ticks` are kept if they are 120
 * or more. drift: the slow drift of each rank's speed, < 0: as drawn. False: there is no such
 * case. */
bool model_draw(struct model *model, struct random *random, const char *name, double drift);

/* Simulates the job and writes its trace to out. */
void model_run(const struct model *model, struct random *random, FILE *out);

#endif
