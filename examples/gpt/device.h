/*
 * examples/gpt/device.h - the pace of this rank's device: how long computation takes, as emulated,
 * and its records.
 *
 * With --emulate-layer-ms, each layer's forward and backward for one micro-batch takes that long:
 * the arithmetic is done, then the rank sleeps until its device would be through. A third of the
 * time is the forward's. With --emulate-slow a device takes FACTOR times as long in some steps.
 * Neither changes a bit of the results.
 *
 * With CAIRN_TIMING=1 each computation, transfer and sum is recorded (cairn/timing.h), so that the
 * agents can tell which rank is slow. A unit of work is a third of a layer for one micro-batch.
 */
#ifndef GPT_DEVICE_H
#define GPT_DEVICE_H

#include <stdint.h>

#include "cairn/err.h"
#include "cairn/timing.h"
#include "plan.h"

enum { GPT_SLOW_MAX = 16, GPT_UNITS_FORWARD = 1, GPT_UNITS_BACKWARD = 2 };

/* Steps from `first` to `last` in which this rank's device takes `factor` times as long. */
struct gpt_slow {
    double factor;
    uint64_t first, last;
};

struct gpt_device_options {
    uint64_t layer_ns; /* 0: nothing is emulated */
    struct gpt_slow slow[GPT_SLOW_MAX];
    uint32_t slow_count;
};

/*
 * Reads --emulate-slow, keeps what is about this rank. `slow` may be NULL. CAIRN_INVAL, printed,
 * where it is not a list of RANK:FACTOR@FROM-TO, names a rank that does not exist, or nothing is
 * emulated.
 */
CAIRN_MUST_CHECK cairn_err gpt_device_parse(uint32_t layer_ms, const char *slow,
                                            const struct gpt_plan *plan,
                                            struct gpt_device_options *out);

struct gpt_device {
    struct gpt_device_options options;
    struct cairn_timing *timing; /* NULL: nothing is recorded */
    uint64_t pipeline, replicas; /* the communicators of this rank, as records name them */
    uint32_t rank, pp, dp;
    uint64_t reductions;
    uint64_t step;
};

/* Opens the ring of records if CAIRN_TIMING=1 asks for it. CAIRN_NOMEM and CAIRN_IO, said. The
 * caller ends *out with gpt_device_fini, which accepts a zeroed struct. */
CAIRN_MUST_CHECK cairn_err gpt_device_init(const struct gpt_device_options *options,
                                           const struct gpt_plan *plan, struct gpt_device *out);
void gpt_device_fini(struct gpt_device *device);

/* Returns the time at which something begins, for the calls below. */
uint64_t gpt_device_now_ns(void);

/* `layers` layers of one micro-batch were computed since begin_ns: sleeps until the device is
 * through, and records it. `units` is GPT_UNITS_FORWARD or _BACKWARD per layer. */
void gpt_device_computed(struct gpt_device *device, uint64_t begin_ns, uint32_t layers,
                         uint32_t units);

/* Records a transfer with another rank of the pipeline (CAIRN_SEND, CAIRN_RECV), which has just
 * ended. */
void gpt_device_transferred(struct gpt_device *device, uint64_t begin_ns,
                            enum cairn_collective operation, uint32_t peer, uint64_t bytes);

/* Records the sum of the stage's gradients over the replicas, which has just ended. */
void gpt_device_reduced(struct gpt_device *device, uint64_t begin_ns, uint64_t bytes);

#endif
