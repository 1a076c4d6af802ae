/*
 * base/clock.h - monotonic time for every decision, wall time for display alone.
 *
 * Code that decides takes `now_ns` as an argument. Only the loop and the outermost callers read a
 * clock, through the table here, which tests and the simulator replace. Monotonic time starts
 * anywhere, never goes back, and means nothing on another machine.
 */
#ifndef CAIRN_BASE_CLOCK_H
#define CAIRN_BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_NS_PER_US UINT64_C(1000)
#define CAIRN_NS_PER_MS UINT64_C(1000000)
#define CAIRN_NS_PER_S UINT64_C(1000000000)

enum { CAIRN_CLOCK_TEXT_BYTES = 32 }; /* of a formatted wall time, NUL included */

struct cairn_clock_ops {
    const char *name;                   /* "system" */
    uint64_t (*now_ns)(void *context);  /* monotonic */
    uint64_t (*wall_ns)(void *context); /* since 1970 in UTC, for display alone */
};

/* A plain value; copied freely. `context` is the table's own and must outlive every copy. */
struct cairn_clock {
    const struct cairn_clock_ops *ops;
    void *context;
};

/* The machine's clocks. Thread: any. */
struct cairn_clock cairn_clock_system(void);

/* Monotonic time of a clock. Thread: any, for the system clock. Never blocks. */
uint64_t cairn_clock_now_ns(const struct cairn_clock *clock);

/* Wall time of a clock, for display alone: it jumps. Thread: any, for the system clock. */
uint64_t cairn_clock_wall_ns(const struct cairn_clock *clock);

/* CPU time of the calling thread: it limits work, not waiting. Thread: any. */
uint64_t cairn_clock_thread_cpu_ns(void);

/* Writes a wall time as "2026-01-31T23:59:59.123Z" into out[out_bytes]; cut short if it does not
 * fit. */
void cairn_clock_format(uint64_t wall_ns, char *out, size_t out_bytes);

#endif
