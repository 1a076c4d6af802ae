/*
 * tools/bench_measure.h - clocks, medians and memory that all measurements share.
 */
#ifndef CAIRN_TOOLS_BENCH_MEASURE_H
#define CAIRN_TOOLS_BENCH_MEASURE_H

#include <stdint.h>
#include <sys/types.h>

/* Monotonic time. */
double cairn_bench_now_s(void);

/* CPU time of this process, all of its threads. */
double cairn_bench_cpu_s(void);

/* CPU time of this thread. */
double cairn_bench_thread_cpu_s(void);

/* CPU time of another process, all of its threads that live or have ended; negative if it is
 * gone. */
double cairn_bench_process_cpu_s(pid_t pid);

/* The median of values[count], which are sorted in place; count >= 1. */
double cairn_bench_median(double *values, uint32_t count);

/* The value below which `share` (0 … 1) of the sorted values lie. */
double cairn_bench_share(double *values, uint32_t count, double share);

/* Anonymous memory, in huge pages if the system gives them, filled with a pattern; NULL if short.
 * Ended by cairn_bench_unmap. */
uint8_t *cairn_bench_map(uint64_t bytes);
void cairn_bench_unmap(uint8_t *memory, uint64_t bytes);

#endif
