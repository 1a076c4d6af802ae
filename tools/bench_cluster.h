/*
 * tools/bench_cluster.h - real agents on loopback, and one synthetic trainer beside each.
 *
 * Agents are this program's own `cairn agent`, each with a configuration in a temporary directory;
 * trainers are forked from the caller, use the public API alone, and obey one command at a time.
 * Rank r's state depends on r, the step and the place, so that a restore can be checked bit by bit.
 */
#ifndef CAIRN_TOOLS_BENCH_CLUSTER_H
#define CAIRN_TOOLS_BENCH_CLUSTER_H

#include "cairn/client.h"
#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_BENCH_NODES_MAX = 24, CAIRN_BENCH_MOVED_TENSORS = 16 };

struct cairn_bench_cluster;

struct cairn_bench_cluster_options {
    uint32_t nodes;       /* 1 … CAIRN_BENCH_NODES_MAX, all in one erasure group */
    uint32_t parity;      /* < nodes */
    uint64_t state_bytes; /* per node, a multiple of 16 blocks */
    bool moves;           /* two nodes; see cairn_bench_cluster_move */
    bool authenticate;    /* agents have a key and authenticate the state between them */
    bool keep;            /* leave the directory when it is closed */
};

/* What a trainer says after a command. */
struct cairn_bench_answer {
    cairn_err err;
    bool right; /* a restore: every byte is what it should be; a step: it was captured */
    double seconds;
    struct cairn_client_stats stats;
    struct cairn_restored restored;
};

/* CPU seconds spent so far. Of a process that has ended nothing is counted. */
struct cairn_bench_cpu {
    double agents;
    double trainers;
};

/*
 * Starts the agents and waits until each listens; no trainers. Forks, so the caller must have no
 * other thread. CAIRN_IO, CAIRN_NOMEM; CAIRN_TIMEOUT when an agent does not come up, with its
 * last line on stderr. The caller ends *out with cairn_bench_cluster_close.
 */
CAIRN_MUST_CHECK cairn_err cairn_bench_cluster_open(
    const struct cairn_bench_cluster_options *options, struct cairn_bench_cluster **out);

/* Ends all processes and removes the directory. NULL is allowed. */
void cairn_bench_cluster_close(struct cairn_bench_cluster *cluster);

/* Starts a trainer on every node and waits until they have registered. */
CAIRN_MUST_CHECK cairn_err cairn_bench_cluster_train(struct cairn_bench_cluster *cluster);

/*
 * Has every trainer write the state of the step after *step, begin a snapshot, train on for step_ns
 * and fence; waits until every agent has committed the generation. Agents skip a step that begins
 * before all of them know that they must capture it, so steps are tried until one is captured
 * everywhere: *step is that one; earlier steps do not count. *seconds: the longest time of an agent
 * from its trainer's begin to the commit. *cpu: of all processes, from before the first begin to
 * after the last commit. CAIRN_TIMEOUT.
 */
CAIRN_MUST_CHECK cairn_err cairn_bench_cluster_step(struct cairn_bench_cluster *cluster,
                                                    uint64_t *step, uint64_t step_ns,
                                                    struct cairn_bench_cpu *cpu, double *seconds);

/*
 * Has the trainers write the state of a step and move all movable tensors from their rank to the
 * other one: CAIRN_BENCH_MOVED_TENSORS of equal size. Each rank has one further tensor of that
 * size, which stays; state_bytes is that of the rank that has all. The answers' `seconds` are the
 * ranks' standstills. *cpu: of all processes. CAIRN_CORRUPT if a byte is wrong afterwards.
 */
CAIRN_MUST_CHECK cairn_err cairn_bench_cluster_move(struct cairn_bench_cluster *cluster,
                                                    uint64_t step, struct cairn_bench_cpu *cpu);

/* Kills all trainers, and the agents of the nodes in `lost` (a set) with their memory; starts blank
 * agents in their place and waits until node 0 is connected to all others. A blank agent repairs
 * itself two heartbeats later at the earliest: restore before. */
CAIRN_MUST_CHECK cairn_err cairn_bench_cluster_lose(struct cairn_bench_cluster *cluster,
                                                    uint64_t lost);

/* Restores through the agent of node 0; *cpu and *seconds as above, from the request to its
 * answer. */
CAIRN_MUST_CHECK cairn_err cairn_bench_cluster_restore(struct cairn_bench_cluster *cluster,
                                                       struct cairn_bench_cpu *cpu, double *seconds,
                                                       uint64_t *rebuilt_bytes);

/* New trainers restore the state of `step` and compare it. CAIRN_CORRUPT if a byte is wrong. */
CAIRN_MUST_CHECK cairn_err cairn_bench_cluster_check(struct cairn_bench_cluster *cluster,
                                                     uint64_t step);

/* The last answer of a rank. */
const struct cairn_bench_answer *
cairn_bench_cluster_answer(const struct cairn_bench_cluster *cluster, uint32_t rank);

/* The most resident memory that an agent had so far, its keeper's descriptors included; 0 if
 * unknown. */
uint64_t cairn_bench_cluster_agent_bytes(const struct cairn_bench_cluster *cluster, uint32_t node);

#endif
