/*
 * bindings/nccl/probe.h - turns NCCL's events into timing records: communicators, pending
 * operations, the device's clock.
 *
 * Knows nothing of versions of NCCL's interface (plugin.c) or of other plugins (chain.c). All state
 * is static and is never freed: NCCL calls back after an operation's stop, after finalize, and
 * after the library is closed.
 *
 * Apart from open and join, which NCCL calls while it makes a communicator, nothing here locks,
 * allocates, makes a system call or logs. (The clock is read without a system call where the
 * kernel's clock source allows that, as it does on all machines with a usable TSC or an arm64
 * counter.)
 *
 * An operation whose kernels may be timed has a slot; slots are taken in turn. The operation's
 * number gives the slot and its generation, so that late events for the slot's former operation are
 * ignored. A thread sets a bit in the slot's owner word before it uses the slot. If the bit is set
 * already, the thread drops its event: nobody waits, and one operation loses its times.
 */
#ifndef CAIRN_NCCL_PROBE_H
#define CAIRN_NCCL_PROBE_H

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_PROBE_COMMS_MAX = 4096, CAIRN_PROBE_SLOTS = 1024, CAIRN_PROBE_RING_RECORDS = 1 << 14 };

struct cairn_probe_comm; /* one membership in a communicator */

struct cairn_probe_options {
    uint32_t kernel_percent; /* of the operations, 0 to 100: sampler.h */
    uint32_t rank;           /* of this process in the job; UINT32_MAX: that in its first
                              * communicator */
};

/* An operation, as NCCL describes it. Strings are borrowed for the call. */
struct cairn_probe_task {
    const char *func;     /* "AllReduce" … "Recv" */
    const char *datatype; /* "ncclFloat32" … */
    uint64_t comm_hash;   /* 0: that of the membership */
    uint64_t seq;         /* counts from 0, per func; not of point-to-point */
    uint64_t count;       /* of elements */
    int32_t rank;         /* in the communicator */
    int32_t peer;         /* in the communicator, of point-to-point */
    uint32_t channels;    /* how many will be timed; 0: not known */
    bool point_to_point;
};

/* Makes the ring, once; later calls change nothing. False: there is no memory for it. May block.
 * Thread: any. */
bool cairn_probe_open(const struct cairn_probe_options *options);

/*
 * A membership; ranks and rank are -1 and hash 0 if this version of NCCL does not pass them.
 * NULL if CAIRN_PROBE_COMMS_MAX are in use or the values are impossible. The caller ends it with
 * cairn_probe_leave.
 */
struct cairn_probe_comm *cairn_probe_join(uint64_t hash, int32_t ranks, int32_t rank);
void cairn_probe_leave(struct cairn_probe_comm *comm);

/* True if the next operation's kernels should be timed. */
bool cairn_probe_wants_kernels(void);

/*
 * An operation was enqueued: one record. Returns its number, never 0, for the calls below; 0 if its
 * kernels are not timed, or records cannot name the operation. Wait-free.
 */
uint64_t cairn_probe_enter(struct cairn_probe_comm *comm, const struct cairn_probe_task *task);

/*
 * A channel of the operation's kernel has started or stopped, at device_ns of the device's clock
 * (0: not known, then now). Repeated calls, and calls for operations that are over, change nothing.
 * The last expected stop writes the operation's last record. Thread: any; wait-free.
 */
void cairn_probe_kernel_start(uint64_t operation, uint32_t channel, uint64_t device_ns);
void cairn_probe_kernel_stop(uint64_t operation, uint32_t channel, uint64_t device_ns);

/* From here on nothing is recorded. Thread: any. */
void cairn_probe_disable(void);
bool cairn_probe_enabled(void);

#endif
