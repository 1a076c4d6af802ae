/*
 * tests/support/nccl/fake_nccl.h - NCCL as a profiler plugin sees it: opens the plugin and calls it
 * in NCCL's order.
 *
 * One `struct fake_nccl` is an NCCL of one version of the interface: up to 2.27 (3 and 4) or later
 * (5 and 6). Operations go the way of NCCL's user thread (API call, group, task); kernels of their
 * channels that of its proxy thread, which the caller is. What NCCL leaves undefined in a
 * descriptor is filled with garbage.
 */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include "bindings/nccl/profiler_abi.h"
#include "cairn/timing.h"
#include "base/ring.h"

/* Fails the program, with the line. */
#define CHECK(condition) fake_nccl_check((condition), #condition, __FILE__, __LINE__)
void fake_nccl_check(bool condition, const char *text, const char *file, int line);

struct fake_nccl {
    int version; /* the newest that it knows, and the plugin has: 3 to 6 */
    void *library;
    const void *table;
    int mask;
    char said[512]; /* the last thing the plugin logged */
};

struct fake_comm {
    struct fake_nccl *nccl;
    void *context;
    uint64_t hash;
    int ranks, rank;
    uint64_t seq[5]; /* as NCCL counts: per function */
};

/* An operation that has been enqueued. */
struct fake_operation {
    struct fake_comm *comm;
    void *handle;
    bool timed; /* NCCL's mask asked for its kernels */
};

/* How an operation differs from an ordinary one. */
struct fake_task {
    const char *func;
    const char *datatype;
    size_t count;
    int peer; /* of Send and Recv */
    int channels;
    bool replayed; /* by a CUDA graph */
    int rank;      /* said in the descriptor; -1: the communicator's */
};

/* The plugin's path in the build folder; `name` such as "cairn". */
const char *fake_nccl_path(const char *name);

/* Opens a plugin as an NCCL that knows `version` and older versions. */
void fake_nccl_open(struct fake_nccl *nccl, const char *path, int version);
void fake_nccl_close(struct fake_nccl *nccl);

void fake_comm_init(struct fake_comm *comm, struct fake_nccl *nccl, uint64_t hash, int ranks,
                    int rank);
void fake_comm_finalize(struct fake_comm *comm);

/* All that NCCL calls when an operation is enqueued. */
struct fake_operation fake_enqueue(struct fake_comm *comm, const struct fake_task *task);

/* One channel of an operation's kernel, where it is timed. NULL where the plugin does not care. */
void *fake_kernel_start(const struct fake_operation *operation, int channel, uint64_t device_ns);
void fake_kernel_stop(struct fake_comm *comm, void *handle, uint64_t device_ns);

/* Both for `channels` channels from start_ns to stop_ns of the device's clock, which is the host's
 * plus a constant. */
void fake_kernel(const struct fake_operation *operation, int channels, uint64_t start_ns,
                 uint64_t stop_ns);

/* The plugin's five calls, of any version. */
void *fake_start(const struct fake_nccl *nccl, void *context, void *descriptor);
void fake_stop(const struct fake_nccl *nccl, void *handle);
void fake_record(const struct fake_nccl *nccl, void *handle, int state, void *arguments);

/* The plugin's ring, found among this process's descriptors as a detector finds it; it must be the
 * only one. */
struct cairn_ring fake_reader(void);

/* Reads what there is into records[records_max] and returns how many there are. */
uint32_t fake_read(struct cairn_ring *ring, struct cairn_timing_record *records,
                   uint32_t records_max);

/* The records that there are, without those of membership. */
uint32_t fake_read_operations(struct cairn_ring *ring, struct cairn_timing_record *records,
                              uint32_t records_max);

/* Opens the plugin and one communicator: 0xabc, the sixth of 8 ranks. */
void fake_open_one(struct fake_nccl *nccl, struct fake_comm *comm, int version);

/* Runs a body in a process of its own, as rank 37 of a job, since the plugin's state lives as long
 * as the process; false where it fails. percent: CAIRN_NCCL_KERNEL_PERCENT. each_version: for the
 * versions 3 to 6. */
bool fake_in_child(void (*body)(int version), int version, const char *percent);
bool fake_each_version(void (*body)(int version), const char *percent);

uint64_t fake_now_ns(void);

#endif
