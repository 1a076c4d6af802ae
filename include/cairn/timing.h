/*
 * cairn/timing.h - timing records of collectives: what a source (hooks on torch.distributed, the
 * NCCL profiler plugin, a trainer itself) writes for a detector to read.
 *
 *   cairn_timing_open    a ring of records in shared memory, one per source and process
 *   cairn_timing_write   when a collective is entered, and when it has ended
 *   cairn_timing_close
 *
 * A process has as many rings as sources: the hooks on torch.distributed and NCCL's plugin, each
 * with its own names for communicators. A ring is a memfd named "cairn-timing", sealed against
 * changes of its size and laid out as base/ring.c says. A process that has an open client
 * (cairn/client.h) hands its rings to the agent by itself; otherwise whoever knows its pid and runs
 * as its user finds them among /proc/PID/fd. Writing never waits, locks, allocates or makes a
 * system call: when the ring is full the new record is dropped and counted.
 */
#ifndef CAIRN_TIMING_H
#define CAIRN_TIMING_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Operations, by the names of NCCL. X(symbol, value, text) */
#define CAIRN_COLLECTIVE_LIST(X)                                                                   \
    X(CAIRN_ALL_REDUCE, 1, "all_reduce")                                                           \
    X(CAIRN_BROADCAST, 2, "broadcast")                                                             \
    X(CAIRN_REDUCE, 3, "reduce")                                                                   \
    X(CAIRN_ALL_GATHER, 4, "all_gather")                                                           \
    X(CAIRN_REDUCE_SCATTER, 5, "reduce_scatter")                                                   \
    X(CAIRN_ALL_TO_ALL, 6, "all_to_all")                                                           \
    X(CAIRN_GATHER, 7, "gather")                                                                   \
    X(CAIRN_SCATTER, 8, "scatter")                                                                 \
    X(CAIRN_BARRIER, 9, "barrier")                                                                 \
    X(CAIRN_SEND, 10, "send")                                                                      \
    X(CAIRN_RECV, 11, "recv")

enum cairn_collective {
#define CAIRN_COLLECTIVE_ENUM(symbol, value, text) symbol = value,
    CAIRN_COLLECTIVE_LIST(CAIRN_COLLECTIVE_ENUM)
#undef CAIRN_COLLECTIVE_ENUM
};

enum { CAIRN_PEER_NONE = 0xffffffffu, CAIRN_COMM_RANKS_MAX = 0xffff };

/*
 * In place of an operation: a rank says which place it has in a communicator (`peer`), before it
 * uses it and now and then again. Where a source writes such records, and only there, the peers of
 * send and recv are such places, and seq counts every operation of a communicator for itself, as
 * NCCL does.
 */
enum { CAIRN_TIMING_MEMBER = 0x100 };

/*
 * In place of an operation: how much this rank has to compute in the step, in `bytes`, in any unit
 * that is the same on all ranks (tokens, FLOPs); with rank and step. Several in one step add up. A
 * rank is then called slow for what it takes per unit, and not judged in a step of which it says
 * none, having done so before.
 */
enum { CAIRN_TIMING_WORK = 0x101 };

/*
 * One rank's part in one collective; 64 bytes, little-endian. It is written with the same comm, op
 * and seq when it is entered, with end_ns 0; by a source that sees the device once more when it
 * starts there, with start_ns; and when it has ended, whole. Each replaces the one before it. A
 * source that cannot see the end, or did not look, writes the first alone. Of send and recv, which
 * have no seq, the same enter_ns tells. Times are CLOCK_MONOTONIC of this machine, 0 where unknown.
 */
struct cairn_timing_record {
    uint64_t comm;     /* a hash that names the communicator, equal on all its ranks */
    uint64_t seq;      /* counts the collectives of the communicator from 1; 0 for send and recv */
    uint64_t bytes;    /* that this rank gives; of broadcast, scatter and recv has or gets */
    uint64_t enter_ns; /* the host called it */
    uint64_t start_ns; /* the device's stream reached it */
    uint64_t end_ns;
    uint32_t rank;  /* global */
    uint32_t peer;  /* global, of send and recv; CAIRN_PEER_NONE */
    uint32_t step;  /* updates done by then, 0 where unknown */
    uint16_t ranks; /* of the communicator, CAIRN_COMM_RANKS_MAX for that or more, 0 where
                        * unknown */
    uint16_t op;    /* enum cairn_collective, CAIRN_TIMING_MEMBER, CAIRN_TIMING_WORK */
};

struct cairn_timing;

/*
 * Makes a ring of record_count records (a power of two from 2 to 2^24). The caller owns *out and
 * ends it with cairn_timing_close. CAIRN_INVAL for another count; CAIRN_NOMEM, CAIRN_IO without
 * memory or descriptors.
 */
CAIRN_MUST_CHECK cairn_err cairn_timing_open(uint32_t record_count, struct cairn_timing **out);

/* Appends a record; false when it was dropped. Thread: any number of them at once. Wait-free. */
bool cairn_timing_write(struct cairn_timing *timing, const struct cairn_timing_record *record);

/*
 * Until when (CLOCK_MONOTONIC) the reader wishes every operation to be seen in full, by a source
 * that otherwise looks at the device only now and then; 0: it has no wish. The reader writes it
 * into the ring (base/ring.h). Thread: any. Wait-free.
 */
uint64_t cairn_timing_wanted_until_ns(const struct cairn_timing *timing);

/* Ends the ring: a reader that has it mapped keeps what was written. No write may be under way.
 * NULL is allowed. */
void cairn_timing_close(struct cairn_timing *timing);

#ifdef __cplusplus
}
#endif
#endif
