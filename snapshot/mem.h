/*
 * snapshot/mem.h - where a trainer's tensors are: a table of operations with the backends `host`
 * and `cuda`.
 *
 * A cairn_mem copies between a trainer's memory (a "region": host or device addresses) and host
 * memory that both it and the agent map. Copies are issued in batches; each batch gets a ticket,
 * and tickets finish in the order of issue. `host` copies at once. `cuda` opens the driver at run
 * time, uses the device's primary context (the one of the trainer's framework), its own
 * non-blocking stream of the lowest priority, and pins the host memory or, if that is refused, goes
 * through a small pinned ring.
 *
 * Thread: any, one at a time per cairn_mem. It restores the calling thread's current context.
 * Linked into the trainer: never prints, never aborts, and allocates in open and pin alone.
 */
#ifndef CAIRN_SNAPSHOT_MEM_H
#define CAIRN_SNAPSHOT_MEM_H

#include "cairn/client.h"
#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_MEM_BATCH_BYTES_MAX = 8 << 20, /* so that a cancel waits for little */
    CAIRN_MEM_BATCH_COPIES_MAX = 512,
    CAIRN_MEM_BATCHES_MAX = 4, /* issued and not finished; the next is CAIRN_AGAIN */
    CAIRN_MEM_PINS_MAX = 16,
    CAIRN_MEM_HOST = -1 /* the device number of host memory */
};

struct cairn_mem_options {
    const char *driver_path; /* of the CUDA driver; NULL: "libcuda.so.1" */
    cairn_log_fn *log;       /* NULL: silent */
    void *log_context;
    bool never_pin; /* devices: copies go through the ring always, to measure it */
};

/* One run of bytes. `region` is the trainer's address, on the device for cuda. */
struct cairn_mem_copy {
    void *host;
    uint64_t region;
    size_t bytes;
};

struct cairn_mem;

/* Slots of a backend. Errors: CAIRN_NOMEM, CAIRN_DEVICE. Described at the functions below. */
struct cairn_mem_ops {
    const char *name;
    cairn_err (*open)(int device_index, const struct cairn_mem_options *options,
                      struct cairn_mem **out);
    void (*close)(struct cairn_mem *mem);
    cairn_err (*pin)(struct cairn_mem *mem, void *host, size_t bytes);
    void (*unpin)(struct cairn_mem *mem, void *host);
    cairn_err (*after)(struct cairn_mem *mem, void *stream);
    cairn_err (*copy_out)(struct cairn_mem *mem, const struct cairn_mem_copy *copies,
                          uint32_t count, uint64_t *ticket);
    cairn_err (*copy_in)(struct cairn_mem *mem, const struct cairn_mem_copy *copies, uint32_t count,
                         uint64_t *ticket);
    cairn_err (*poll)(struct cairn_mem *mem, uint64_t ticket);
};

extern const struct cairn_mem_ops cairn_mem_host_ops;
extern const struct cairn_mem_ops cairn_mem_cuda_ops;

/* What every backend's object begins with. */
struct cairn_mem {
    const struct cairn_mem_ops *ops;
};

/*
 * Opens the memory of a device: CAIRN_MEM_HOST, or a CUDA ordinal. For a device this loads the
 * driver and takes a reference to the primary context; nothing of CUDA is touched for host memory.
 * CAIRN_DEVICE: no driver, no such device, or the driver refused (the log says its code and text);
 * CAIRN_NOMEM. `options` NULL: all zero. The caller ends *out with cairn_mem_close.
 */
CAIRN_MUST_CHECK cairn_err cairn_mem_open(int32_t device, const struct cairn_mem_options *options,
                                          struct cairn_mem **out);

/*
 * Waits for all copies, unpins, frees. NULL is allowed. A pin serves all devices: if several have
 * pinned the same memory, wait for each before the first is closed or unpins.
 */
void cairn_mem_close(struct cairn_mem *mem);

/*
 * Makes copies from and to host[bytes] (page-aligned, mapped until unpin) asynchronous. If the
 * driver refuses (memlock, container), logs that once and goes through the ring: slower, still
 * CAIRN_OK. CAIRN_NOMEM if even the ring cannot be allocated; CAIRN_FULL with CAIRN_MEM_PINS_MAX
 * pins.
 */
CAIRN_MUST_CHECK cairn_err cairn_mem_pin(struct cairn_mem *mem, void *host, size_t bytes);
/* Undoes a pin of exactly this address; waits for running copies. Unknown addresses are ignored. */
void cairn_mem_unpin(struct cairn_mem *mem, void *host);

/*
 * Later copies wait for the work issued so far on `stream` (a CUstream of this device, NULL: the
 * default one). Call it from the thread that issues that work. CAIRN_AGAIN: the stream is being
 * captured into a graph, so its work does not run now; CAIRN_DEVICE.
 */
CAIRN_MUST_CHECK cairn_err cairn_mem_after(struct cairn_mem *mem, void *stream);

/*
 * Issues a batch of 1 … CAIRN_MEM_BATCH_COPIES_MAX copies of CAIRN_MEM_BATCH_BYTES_MAX bytes in sum
 * (copies[] is borrowed for the call) out of, or into, the trainer's memory. The bytes have arrived
 * when cairn_mem_poll of *ticket returns CAIRN_OK. CAIRN_AGAIN: CAIRN_MEM_BATCHES_MAX are running,
 * poll first; CAIRN_INVAL: over a limit; CAIRN_DEVICE: failed, and every later
 * call fails too: close it and open it again. Never blocks for the copy itself.
 */
CAIRN_MUST_CHECK cairn_err cairn_mem_copy_out(struct cairn_mem *mem,
                                              const struct cairn_mem_copy *copies, uint32_t count,
                                              uint64_t *ticket);
CAIRN_MUST_CHECK cairn_err cairn_mem_copy_in(struct cairn_mem *mem,
                                             const struct cairn_mem_copy *copies, uint32_t count,
                                             uint64_t *ticket);

/*
 * CAIRN_OK: this batch and all before it are done; CAIRN_AGAIN: not yet, or failed and something is
 * still in flight; CAIRN_DEVICE: failed, and nothing is in flight any more. Never blocks.
 */
CAIRN_MUST_CHECK cairn_err cairn_mem_poll(struct cairn_mem *mem, uint64_t ticket);

/* Polls with short sleeps until done or deadline_ns (CLOCK_MONOTONIC): then CAIRN_TIMEOUT. */
CAIRN_MUST_CHECK cairn_err cairn_mem_wait(struct cairn_mem *mem, uint64_t ticket,
                                          uint64_t deadline_ns);

/*
 * Copies any number of bytes into the trainer's memory and waits for their arrival (a restore).
 * CAIRN_TIMEOUT at deadline_ns; the target is then still being written until cairn_mem_close.
 */
CAIRN_MUST_CHECK cairn_err cairn_mem_put(struct cairn_mem *mem, uint64_t region, const void *host,
                                         uint64_t bytes, uint64_t deadline_ns);

#endif
