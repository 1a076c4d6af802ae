/*
 * tools/bench_scrub.c - what the scrub of an agent takes: its share of a processor and of the
 * memory's bandwidth.
 *
 *   case   share: processor time per time of a scrub that is bounded by its share alone, over
 *          memory that is larger than any cache; bandwidth: the bytes that it reads per time
 *   floor  what it may take: 1 % of a processor; 1 % of what memcpy on all processors, at most
 *          COPIERS_MAX, reads and writes
 */
#include "tools/bench.h"
#include "tools/bench_measure.h"

#include "agent/service/scrub_plan.h"
#include "base/clock.h"
#include "base/crc.h"
#include "base/limits.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BYTES_DEFAULT = 512 << 20,
    SLICE_BLOCKS = 64,
    COPIERS_MAX = 16,
    COPIES = 8,
    COPY_ROUNDS = 5
};

static const uint64_t lasts_ns = 5 * CAIRN_NS_PER_S;

static void
sleep_until(uint64_t due_ns)
{
    const struct timespec due = {.tv_sec = (time_t)(due_ns / CAIRN_NS_PER_S),
                                 .tv_nsec = (long)(due_ns % CAIRN_NS_PER_S)};

    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due,
                          NULL); /* woken early: looks again */
}

/* Copies its half of its share of the memory to the other half, again and again. */
struct copier {
    pthread_t thread;
    uint8_t *memory;
    uint64_t bytes; /* of both halves */
    double cpu_s;   /* it took; other programs may have the processor in between */
};

static void *
copy(void *context)
{
    struct copier *copier = context;

    copier->cpu_s = cairn_bench_thread_cpu_s();
    for (int i = 0; i < COPIES; i++) {
        memcpy(copier->memory + copier->bytes / 2, copier->memory, copier->bytes / 2);
        __asm__ volatile("" ::: "memory"); /* each of them is made */
    }
    copier->cpu_s = cairn_bench_thread_cpu_s() - copier->cpu_s;
    return NULL;
}

/* Bytes per second that memcpy on all processors reads and writes: the best of some rounds. */
static double
measure_bandwidth(uint8_t *memory, uint64_t bytes)
{
    struct copier copiers[COPIERS_MAX];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t count = cores < 1 ? 1 : cores > COPIERS_MAX ? COPIERS_MAX : (uint32_t)cores;
    uint64_t share = bytes / count / 128 * 128;
    double best = 0;

    for (int round = 0; round < COPY_ROUNDS; round++) {
        uint32_t started = 0;
        double rate = 0;

        for (; started < count; started++) {
            copiers[started] = (struct copier){.memory = memory + started * share, .bytes = share};
            if (pthread_create(&copiers[started].thread, NULL, copy, &copiers[started]) != 0)
                break;
        }
        for (uint32_t i = 0; i < started; i++) {
            pthread_join(copiers[i].thread, NULL);
            rate += (double)share * COPIES / copiers[i].cpu_s;
        }
        best = rate > best ? rate : best;
    }
    return best;
}

cairn_err
cairn_bench_scrub(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    struct cairn_clock clock = cairn_clock_system();
    uint64_t blocks = (options->bytes ? options->bytes : BYTES_DEFAULT) / CAIRN_BLOCK_BYTES + 1;
    uint64_t begun_ns, now_ns, cpu_ns, due_ns, read_blocks = 0;
    volatile uint64_t sum = 0; /* or the compiler leaves the checksums out */
    uint8_t *bytes = malloc(blocks * CAIRN_BLOCK_BYTES);
    struct scrub_course course;
    struct scrub_run run;
    double seconds, bandwidth, rate;

    if (!bytes)
        return CAIRN_NOMEM;
    report->stage = "scrub";
    memset(bytes, 1, blocks * CAIRN_BLOCK_BYTES);
    bandwidth = measure_bandwidth(bytes, blocks * CAIRN_BLOCK_BYTES);
    begun_ns = now_ns = cairn_clock_now_ns(&clock);
    cpu_ns = cairn_clock_thread_cpu_ns();
    scrub_course_init(&course, now_ns);
    while (now_ns - begun_ns < lasts_ns) {
        uint64_t slice_ns = cairn_clock_thread_cpu_ns();

        if (scrub_course_next(&course, &blocks, 1, SLICE_BLOCKS, 0, now_ns, &run, &due_ns)) {
            for (uint32_t i = 0; i < run.count; i++)
                sum ^=
                    cairn_crc64(0, bytes + (run.first + i) * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES);
            read_blocks += run.count;
            scrub_course_took(&course, cairn_clock_thread_cpu_ns() - slice_ns,
                              cairn_clock_now_ns(&clock));
        } else {
            sleep_until(due_ns);
        }
        now_ns = cairn_clock_now_ns(&clock);
    }
    cpu_ns = cairn_clock_thread_cpu_ns() - cpu_ns;
    seconds = (double)(now_ns - begun_ns) / 1e9;
    cairn_bench_add(report,
                    &(struct cairn_bench_case){.name = "share",
                                               .value = (double)cpu_ns / 1e9 / seconds,
                                               .floor = 0.01,
                                               .unit = "processors",
                                               .command = "1 % of a processor",
                                               .bound = 1,
                                               .at_most = true,
                                               .bytes = read_blocks * CAIRN_BLOCK_BYTES,
                                               .threads = 1,
                                               .cpu_seconds_per_gib = (double)cpu_ns / 1e9 * 16384 /
                                                                      (double)read_blocks});
    rate = (double)(read_blocks * CAIRN_BLOCK_BYTES) / seconds;
    cairn_bench_add(report, &(struct cairn_bench_case){.name = "bandwidth",
                                                       .value = rate / 1e9,
                                                       .floor = bandwidth / 100 / 1e9,
                                                       .unit = "GB/s",
                                                       .command = "1 % of memcpy on all processors",
                                                       .bound = 1,
                                                       .at_most = true,
                                                       .bytes = read_blocks * CAIRN_BLOCK_BYTES,
                                                       .threads = 1});
    cairn_bench_note(report, "mib_per_s", rate / (1 << 20));
    cairn_bench_note(report, "minutes_per_100_gib", 102400.0 / (rate / (1 << 20)) / 60.0);
    free(bytes);
    return CAIRN_OK;
}
