/*
 * bindings/nccl/device_clock.h - converts device times to the host's clock.
 *
 * NCCL's proxy thread reports a device time D some time after the event. So `now - D` exceeds the
 * offset of the two clocks by that thread's delay, and the minimum over many events estimates the
 * offset. Clocks drift, so the minimum covers the last two windows of CAIRN_DEVICE_CLOCK_WINDOW_NS;
 * a longer silence discards it. An error of the estimate shifts all times of a device alike, and
 * leaves durations exact. Wait-free; threads may share a value.
 */
#ifndef CAIRN_NCCL_DEVICE_CLOCK_H
#define CAIRN_NCCL_DEVICE_CLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CAIRN_DEVICE_CLOCK_WINDOW_NS (2 * UINT64_C(1000000000))

struct cairn_device_clock {
    _Atomic int64_t distance_ns;      /* host - device, the least of this window */
    _Atomic int64_t before_ns;        /* of the previous window */
    _Atomic uint64_t window_began_ns; /* 0: nothing is known */
};

static inline void
cairn_device_clock_reset(struct cairn_device_clock *clock)
{
    atomic_store_explicit(&clock->window_began_ns, 0, memory_order_relaxed);
}

/* NCCL reported at host_ns an event at device_ns. */
static inline void
cairn_device_clock_observe(struct cairn_device_clock *clock, uint64_t device_ns, uint64_t host_ns)
{
    int64_t distance_ns = (int64_t)(host_ns - device_ns);
    uint64_t began_ns = atomic_load_explicit(&clock->window_began_ns, memory_order_relaxed);
    int64_t least_ns = atomic_load_explicit(&clock->distance_ns, memory_order_relaxed);
    /* negative if another thread was faster */
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

/* Converts device_ns to the host's clock, by the current estimate. */
static inline uint64_t
cairn_device_clock_host_ns(const struct cairn_device_clock *clock, uint64_t device_ns)
{
    int64_t least_ns = atomic_load_explicit(&clock->distance_ns, memory_order_relaxed);
    int64_t before_ns = atomic_load_explicit(&clock->before_ns, memory_order_relaxed);

    return device_ns + (uint64_t)(before_ns < least_ns ? before_ns : least_ns);
}

#endif
