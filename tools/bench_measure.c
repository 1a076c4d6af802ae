/* tools/bench_measure.c - see bench_measure.h. */
#include "tools/bench_measure.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double
clock_s(clockid_t id)
{
    struct timespec now;

    if (clock_gettime(id, &now) != 0)
        return -1;
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double
cairn_bench_now_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

double
cairn_bench_cpu_s(void)
{
    return clock_s(CLOCK_PROCESS_CPUTIME_ID);
}

double
cairn_bench_thread_cpu_s(void)
{
    return clock_s(CLOCK_THREAD_CPUTIME_ID);
}

double
cairn_bench_process_cpu_s(pid_t pid)
{
    clockid_t id;

    return clock_getcpuclockid(pid, &id) == 0 ? clock_s(id) : -1;
}

static int
compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

double
cairn_bench_median(double *values, uint32_t count)
{
    return cairn_bench_share(values, count, 0.5);
}

double
cairn_bench_share(double *values, uint32_t count, double share)
{
    uint32_t at = (uint32_t)(share * count);

    qsort(values, count, sizeof *values, compare);
    return values[at < count ? at : count - 1];
}

uint8_t *
cairn_bench_map(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    for (uint64_t at = 0; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
        uint64_t value = (at + 1) * UINT64_C(0x9e3779b97f4a7c15);

        memcpy((uint8_t *)memory + at, &value, sizeof value);
    }
    return memory;
}

void
cairn_bench_unmap(uint8_t *memory, uint64_t bytes)
{
    if (memory)
        (void)munmap(memory, bytes);
}
