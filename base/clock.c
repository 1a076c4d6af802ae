/* base/clock.c - the machine's clocks. */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static uint64_t
read_clock(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now); /* cannot fail for the clocks used here */
    return (uint64_t)now.tv_sec * CAIRN_NS_PER_S + (uint64_t)now.tv_nsec;
}

static uint64_t
system_now(void *context)
{
    (void)context;
    return read_clock(CLOCK_MONOTONIC);
}

static uint64_t
system_wall(void *context)
{
    (void)context;
    return read_clock(CLOCK_REALTIME);
}

static const struct cairn_clock_ops system_ops = {
    .name = "system",
    .now_ns = system_now,
    .wall_ns = system_wall,
};

struct cairn_clock
cairn_clock_system(void)
{
    return (struct cairn_clock){.ops = &system_ops, .context = NULL};
}

uint64_t
cairn_clock_now_ns(const struct cairn_clock *clock)
{
    return clock->ops->now_ns(clock->context);
}

uint64_t
cairn_clock_wall_ns(const struct cairn_clock *clock)
{
    return clock->ops->wall_ns(clock->context);
}

uint64_t
cairn_clock_thread_cpu_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

void
cairn_clock_format(uint64_t wall_ns, char *out, size_t out_bytes)
{
    time_t seconds = (time_t)(wall_ns / CAIRN_NS_PER_S);
    unsigned milliseconds = (unsigned)(wall_ns % CAIRN_NS_PER_S / CAIRN_NS_PER_MS);
    struct tm utc;

    gmtime_r(&seconds, &utc); /* 64-bit ns end in the year 2554: every value has a date */
    snprintf(out, out_bytes, "%04d-%02d-%02dT%02d:%02d:%02d.%03uZ", utc.tm_year + 1900,
             utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, milliseconds);
}
