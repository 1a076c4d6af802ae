/*
 * cairn/timing.h - timing records of collectives. A source (hooks on torch.distributed, the NCCL
 * profiler plugin, a trainer itself) writes them and a detector reads them.
 *
 *   cairn_timing_open    a ring of records in shared memory, one per source and process
 *   cairn_timing_write   when a collective is entered, and when it has ended
 *   cairn_timing_close
 *
 * A process has one ring per source, for example the hooks on torch.distributed and NCCL's plugin.
 * Each source names communicators in its own way. A ring is a memfd named "cairn-timing", sealed
 * against changes of its size; base/ring.c specifies its bytes. A process with an open client
 * (cairn/client.h) hands its rings to the agent by itself. Otherwise a reader that runs as the same
 * user finds them among /proc/PID/fd.
 *
 * Writing never waits, locks, allocates or makes a system call. If the ring is full the new record
 * is dropped and counted.
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
 * In place of an operation: the record tells the place of this rank in a communicator (`peer`). A
 * source writes it before it uses the communicator, and repeats it from time to time. In a source
 * that writes such records, and only there, the peers of send and recv are such places, and seq
 * counts every operation of a communicator separately, as NCCL does.
 */
enum { CAIRN_TIMING_MEMBER = 0x100 };

/*
 * In place of an operation: the record tells how much this rank computes in a step (`rank`,
 * `step`), in `bytes`, in any unit that is the same on all ranks (tokens, FLOPs). Several records
 * of one step add up. The detector then judges a rank by its time per unit. If a rank has written
 * such records, a step without one is not judged.
 */
enum { CAIRN_TIMING_WORK = 0x101 };

/*
 * In place of an operation: this rank (`rank`) has computed from start_ns, or else enter_ns, to
 * end_ns for step `step`. `bytes` is the amount of work done, in any unit that is the same on all
 * ranks and in every plan (layers times micro-batches, FLOPs); 0 if unknown. Several records of one
 * step add up. In a step with such records the detector takes a rank's computation from them, and
 * not from the gaps between its operations. So a rank that was given more or less work is judged by
 * its time per unit, before and after the change. `comm` is not looked at.
 */
enum { CAIRN_TIMING_COMPUTE = 0x102 };

/*
 * One rank's part in one collective. A fixed format of 64 bytes, little-endian, in shared memory:
 * it has no struct_bytes and never grows. The version in the ring's header (base/ring.c) would
 * change with it.
 *
 * A source writes the record up to three times with the same comm, op and seq, and each replaces
 * the one before: on entry, with end_ns 0; when the device starts, with start_ns, if the source
 * sees that; and at the end, complete. A source that cannot see the end writes the first one only.
 * Send and recv have no seq: there enter_ns identifies the operation. Times are CLOCK_MONOTONIC of
 * this machine in ns, 0 if unknown.
 */
struct cairn_timing_record {
    uint64_t comm;     /* a hash that names the communicator, equal on all its ranks */
    uint64_t seq;      /* counts the collectives of the communicator from 1; 0 for send and recv */
    uint64_t bytes;    /* sent by this rank; for broadcast, scatter and recv: held or received */
    uint64_t enter_ns; /* the host called it */
    uint64_t start_ns; /* the device's stream reached it */
    uint64_t end_ns;
    uint32_t rank;  /* global */
    uint32_t peer;  /* global, of send and recv; CAIRN_PEER_NONE */
    uint32_t step;  /* updates done by then, 0 if unknown */
    uint16_t ranks; /* in the communicator; CAIRN_COMM_RANKS_MAX for that or more, 0 if unknown */
    uint16_t op;    /* enum cairn_collective, or CAIRN_TIMING_MEMBER, _WORK or _COMPUTE */
};

struct cairn_timing;

/*
 * Makes a ring of record_count records (a power of two from 2 to 2^24). The caller owns *out and
 * ends it with cairn_timing_close. CAIRN_INVAL for another count; CAIRN_NOMEM or CAIRN_IO if memory
 * or descriptors are short.
 */
CAIRN_MUST_CHECK cairn_err cairn_timing_open(uint32_t record_count, struct cairn_timing **out);

/*
 * Appends a record; false if it was dropped. Thread: any number at once. Wait-free.
 */
bool cairn_timing_write(struct cairn_timing *timing, const struct cairn_timing_record *record);

/*
 * Returns until when (CLOCK_MONOTONIC, ns) the reader wants every operation in full from a source
 * that otherwise looks at the device only now and then; 0: no wish. The reader writes the wish into
 * the ring (base/ring.h). Thread: any. Wait-free.
 */
uint64_t cairn_timing_wanted_until_ns(const struct cairn_timing *timing);

/*
 * Ends the ring. A reader that has it mapped keeps the written records. No write may be running.
 * NULL is allowed.
 */
void cairn_timing_close(struct cairn_timing *timing);

#ifdef __cplusplus
}
#endif
#endif
