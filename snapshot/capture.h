/*
 * snapshot/capture.h - the capture engine: a thread in the trainer that copies a rank's tensors
 * into its region of the agent's memory while training goes on.
 *
 * A capture gets a list of runs (where bytes are, and where in the region they go), copies them
 * block by block in region order, fills the gaps with zeros, and computes the CRC-64 of every block
 * of CAIRN_BLOCK_BYTES in the same pass. A watermark says up to where the sources have been read:
 * the trainer may overwrite what is below it. Reading it is an acquire, moving it a release, so a
 * trainer that waits for its bytes before it writes has no data race with the copy.
 *
 * One capture at a time per engine. start, wait, cancel, prepare, forget and destroy belong to one
 * trainer thread, order may come from another; the callbacks run on the engine's own thread (all
 * signals blocked there). Nothing here prints or aborts; between prepare and forget nothing is
 * allocated.
 */
#ifndef CAIRN_SNAPSHOT_CAPTURE_H
#define CAIRN_SNAPSHOT_CAPTURE_H

#include "base/limits.h"
#include "cairn/client.h"
#include "cairn/err.h"
#include "snapshot/finite.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct cairn_capture;

struct cairn_capture_options {
    const char *driver_path; /* of the CUDA driver; NULL: "libcuda.so.1" */
    cairn_log_fn *log;       /* NULL: silent */
    void *log_context;
    bool never_pin;       /* devices: copies go through the ring always, to measure it */
    int checksum_threads; /* of device bytes, besides the engine's own; 0: by this host's cores,
                           * below: none */
};

struct cairn_capture_run {
    const void *source;              /* host or device address */
    uint64_t bytes;                  /* 0 is allowed and ignored */
    uint64_t offset;                 /* in the region; runs are sorted by it and do not overlap */
    int32_t device;                  /* -1 host, else a CUDA ordinal that was prepared */
    uint32_t reserved;               /* 0 */
    const struct cairn_finite *type; /* looked at for values that are not finite; NULL: not */
};

/* Blocks [first_block, first_block + count), count <= CAIRN_MESSAGE_BLOCKS_MAX, lie complete in the
 * region; crcs[count] is borrowed for the call. In order, without gaps. Must not block for long. */
typedef void cairn_capture_blocks_fn(void *context, uint64_t first_block, uint32_t count,
                                     const uint64_t *crcs);

/* The capture has ended: CAIRN_OK complete, CAIRN_AGAIN cancelled, CAIRN_DEVICE the copy failed.
 * The last callback of a capture, and the sources are no longer read. */
typedef void cairn_capture_done_fn(void *context, cairn_err err);

struct cairn_capture_job {
    const struct cairn_capture_run *runs; /* borrowed until the capture has ended */
    uint32_t run_count;
    uint8_t *region;       /* 64-byte aligned, borrowed until the capture has ended */
    uint64_t region_bytes; /* a multiple of CAIRN_BLOCK_BYTES, > 0 */
    bool region_is_new;    /* not written through this mapping yet: mapped ahead */
    uint32_t helpers;      /* threads that copy beside the engine's, since training stands still;
                       * with runs of a device: none */
    cairn_capture_blocks_fn *on_blocks; /* may be NULL */
    cairn_capture_done_fn *on_done;     /* may be NULL */
    void *context;                      /* of both */
    atomic_bool
        *failing; /* [run_count], borrowed likewise, or NULL: set when a run with a type holds
                           * a value that is not finite; final when on_done is called */
};

struct cairn_capture_stats {
    uint64_t captures;       /* ended with CAIRN_OK */
    uint64_t captured_bytes; /* of those, region bytes */
    uint64_t capture_ns;     /* from start to end of those */
    uint64_t failed;         /* cancelled or failed */
};

/* Makes an engine and starts its thread. CAIRN_NOMEM. The caller ends *out with destroy. */
CAIRN_MUST_CHECK cairn_err cairn_capture_create(const struct cairn_capture_options *options,
                                                struct cairn_capture **out);

/* Cancels what runs, ends the thread, closes the devices, frees. NULL is allowed. */
void cairn_capture_destroy(struct cairn_capture *capture);

/*
 * Opens a device (once) and pins memory[bytes], so that captures of that device into it are
 * asynchronous. Needed before a job has runs with device >= 0; with device -1 it does nothing.
 * May block and allocate. CAIRN_AGAIN while a capture runs; else as cairn_mem_open and
 * cairn_mem_pin. After a capture ended with CAIRN_DEVICE, prepare all memory of the device
 * again.
 */
CAIRN_MUST_CHECK cairn_err cairn_capture_prepare(struct cairn_capture *capture, int32_t device,
                                                 void *memory, uint64_t bytes);

/*
 * Maps the region of a capture to come while no capture runs. It is new, as region_is_new says, and
 * its pages exist. Replaces the one before; ends with forget. Thread: that of start.
 */
void cairn_capture_map_next(struct cairn_capture *capture, uint8_t *region, uint64_t bytes);

/*
 * Lets go of memory before it is unmapped, and unpins it on all devices. Cancels a running
 * capture, and waits for the devices' copies. False when that was given up: a device may still
 * write there, so it must stay mapped.
 */
bool cairn_capture_forget(struct cairn_capture *capture, void *memory);

/*
 * After this many ns, no device is waited for any more, by forget and destroy too: a process that
 * ends must not hang with a device. The device's buffers stay allocated then. NULL is allowed.
 * Thread: any.
 */
void cairn_capture_give_up(struct cairn_capture *capture, uint64_t after_ns);

/*
 * The next captures of a device wait for the work issued so far on `stream` (a CUstream of that
 * device, NULL: its default one). Call it from the thread that issues that work, at the instant of
 * the wanted state, and not while a capture runs. Never blocks for the work. CAIRN_AGAIN: the
 * stream is being captured into a graph, or the devices are being opened or closed; CAIRN_INVAL: a
 * device that was not prepared; CAIRN_DEVICE: the device failed, now or before, and was not
 * prepared again.
 */
CAIRN_MUST_CHECK cairn_err cairn_capture_order(struct cairn_capture *capture, int32_t device,
                                               void *stream);

/*
 * Begins a capture and returns at once. CAIRN_AGAIN: one is running; CAIRN_INVAL: the job breaks a
 * rule above (runs unsorted, overlapping, past the region; a device that was not prepared);
 * CAIRN_DEVICE: a device failed before and was not prepared again. After an error no callback
 * comes.
 */
CAIRN_MUST_CHECK cairn_err cairn_capture_start(struct cairn_capture *capture,
                                               const struct cairn_capture_job *job);

/*
 * Waits until the sources of region bytes [0, until_bytes) have been read, at most until
 * deadline_ns (CLOCK_MONOTONIC). until_bytes past the region means its end. CAIRN_OK: they have,
 * also of the last capture that ended with CAIRN_OK; CAIRN_TIMEOUT; CAIRN_AGAIN: no capture was
 * started, or it was cancelled; CAIRN_DEVICE: it failed. Only OK and, after an error, the end of
 * the capture (cairn_capture_cancel) allow the trainer to write.
 */
CAIRN_MUST_CHECK cairn_err cairn_capture_wait(struct cairn_capture *capture, uint64_t until_bytes,
                                              uint64_t deadline_ns);

/* Region bytes below which the sources have been read (acquire). 0 before the first capture. */
uint64_t cairn_capture_watermark(const struct cairn_capture *capture);

/* A capture was started and its on_done has not returned yet. */
bool cairn_capture_running(const struct cairn_capture *capture);

/*
 * Waits until the capture has ended and on_done has returned, at most until deadline_ns; the result
 * is that of the capture, or CAIRN_TIMEOUT; CAIRN_AGAIN also when none was ever started.
 */
CAIRN_MUST_CHECK cairn_err cairn_capture_finish(struct cairn_capture *capture,
                                                uint64_t deadline_ns);

/*
 * Gives up the running capture and waits until nobody reads the sources or writes the region any
 * more, and on_done has returned: within a block of each thread on the host, a few 4 MiB copies on
 * a device. A device that hangs is not waited for after 10 s. Not from a callback. Does nothing
 * without a capture.
 */
void cairn_capture_cancel(struct cairn_capture *capture);

/* Reads the counters. Thread: the trainer's. */
void cairn_capture_stats_read(const struct cairn_capture *capture, struct cairn_capture_stats *out);

#endif
