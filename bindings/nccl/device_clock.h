/*
 * bindings/nccl/device_clock.h - the time of a device's clock as time of this machine's.
 *
 * NCCL's proxy thread says "the device's timer stood at D" a while after that happened, so now - D
 * is at least the distance of the two clocks, and its minimum over many events is near it: late by
 * the shortest delay of that thread. Clocks drift, so the minimum is that of the last two windows
 * of CAIRN_DEVICE_CLOCK_WINDOW_NS; what was known before a longer silence than that is forgotten.
 * Times on one device keep their distances whatever the estimate. Wait-free; a value may be shared
 * by threads.
 */
#ifndef CAIRN_NCCL_DEVICE_CLOCK_H
#define CAIRN_NCCL_DEVICE_CLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CAIRN_DEVICE_CLOCK_WINDOW_NS (2 * UINT64_C(1000000000))

struct cairn_device_clock {
    _Atomic int64_t distance_ns;      /* host - device, the least of this window */
    _Atomic int64_t before_ns;        /* of the one before */
    _Atomic uint64_t window_began_ns; /* 0: nothing is known */
};

static inline void
cairn_device_clock_reset(struct cairn_device_clock *clock)
{
    atomic_store_explicit(&clock->window_began_ns, 0, memory_order_relaxed);
}

/* An event at device_ns was heard of at host_ns. */
static inline void
cairn_device_clock_observe(struct cairn_device_clock *clock, uint64_t device_ns, uint64_t host_ns)
{
    int64_t distance_ns = (int64_t)(host_ns - device_ns);
    uint64_t began_ns = atomic_load_explicit(&clock->window_began_ns, memory_order_relaxed);
    int64_t least_ns = atomic_load_explicit(&clock->distance_ns, memory_order_relaxed);
    /* negative where another thread was quicker */
    int64_t since_ns = (int64_t)(host_ns - began_ns);

    if (began_ns == 0 || since_ns > (int64_t)CAIRN_DEVICE_CLOCK_WINDOW_NS) {
        bool silent = began_ns == 0 || since_ns > 2 * (int64_t)CAIRN_DEVICE_CLOCK_WINDOW_NS;

        atomic_store_explicit(&clock->before_ns, silent ? distance_ns : least_ns,
                              memory_order_relaxed);
        atomic_store_explicit(&clock->distance_ns, distance_ns, memory_order_relaxed);
        atomic_store_explicit(&clock->window_began_ns, host_ns, memory_order_relaxed);
    } else if (distance_ns < least_ns) {
        atomic_store_explicit(&clock->distance_ns, distance_ns, memory_order_relaxed);
    }
}

/* The host's time of device_ns, as far as the distance is known. */
static inline uint64_t
cairn_device_clock_host_ns(const struct cairn_device_clock *clock, uint64_t device_ns)
{
    int64_t least_ns = atomic_load_explicit(&clock->distance_ns, memory_order_relaxed);
    int64_t before_ns = atomic_load_explicit(&clock->before_ns, memory_order_relaxed);

    return device_ns + (uint64_t)(before_ns < least_ns ? before_ns : least_ns);
}

#endif
