/*
 * tools/bench_disk.c - the engines of base/file_queue.h, on a file in the working directory.
 *
 *   case   write: 4 MiB runs past the page cache, then fsync; read: the same runs. By io_uring and
 *          by threads, with as many under way as the agent has
 *   floor  one run after the other in one thread
 *   GB/s   10^9 bytes per second, the median of all rounds, which alternate
 * What is read is compared. A file system without direct I/O is written through the page cache.
 */
#include "tools/bench.h"
#include "tools/bench_measure.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/file_queue.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUN_BYTES = 4 << 20, BYTES_DEFAULT = 256 << 20, ALIGN_BYTES = 4096, ENGINES = 3 };

static const enum cairn_file_engine engines[ENGINES] = {
    CAIRN_FILE_ENGINE_CALLS, CAIRN_FILE_ENGINE_THREADS, CAIRN_FILE_ENGINE_RING};
static const char file_name[] = "cairn-bench-disk.tmp";

struct disk {
    uint64_t bytes; /* whole runs */
    uint8_t *from;  /* one run, written again and again */
    uint8_t *into;  /* CAIRN_FILE_QUEUE_DEPTH runs */
};

static double
now_s(void)
{
    struct cairn_clock clock = cairn_clock_system();

    return (double)cairn_clock_now_ns(&clock) / 1e9;
}

/* Moves the file's runs. */
static cairn_err
move(const struct disk *disk, struct cairn_file_queue *queue, int fd, bool writes)
{
    uint64_t begun = 0, ended = 0;
    cairn_err err = CAIRN_OK;

    while (!err && ended < disk->bytes) {
        uint8_t *into = disk->into + begun / RUN_BYTES % CAIRN_FILE_QUEUE_DEPTH * RUN_BYTES;
        size_t got = 0;

        if (begun < disk->bytes && cairn_file_queue_count(queue) < CAIRN_FILE_QUEUE_DEPTH) {
            if (writes)
                cairn_file_queue_write(queue, fd, begun, disk->from, RUN_BYTES);
            else
                cairn_file_queue_read(queue, fd, begun, into, RUN_BYTES);
            begun += RUN_BYTES;
            continue;
        }
        err = cairn_file_queue_pop(queue, &got);
        into = disk->into + ended / RUN_BYTES % CAIRN_FILE_QUEUE_DEPTH * RUN_BYTES;
        if (!err && (got != RUN_BYTES || (!writes && memcmp(into, disk->from, RUN_BYTES) != 0)))
            err = CAIRN_CORRUPT;
        ended += RUN_BYTES;
    }
    cairn_file_queue_drop(queue);
    return err;
}

/* Writes the file or reads it, by an engine: seconds. */
static cairn_err
time_pass(const struct disk *disk, enum cairn_file_engine engine, bool writes, double *seconds)
{
    struct cairn_file_queue *queue = NULL;
    int fd = -1;
    double begin;
    cairn_err err = cairn_file_queue_open(engine, &queue), closed;

    if (!err && cairn_file_queue_engine(queue) != engine)
        err = CAIRN_AGAIN; /* its threads could not be started, say */
    if (!err)
        err = cairn_file_open(AT_FDCWD, file_name,
                              writes ? CAIRN_FILE_CREATE_DIRECT : CAIRN_FILE_READ_DIRECT, &fd);
    if (err == CAIRN_INVAL)
        err =
            cairn_file_open(AT_FDCWD, file_name, writes ? CAIRN_FILE_CREATE : CAIRN_FILE_READ, &fd);
    if (!err && writes)
        err = cairn_file_reserve(fd, disk->bytes);
    if (!err && !writes)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    begin = now_s();
    if (!err)
        err = move(disk, queue, fd, writes);
    if (!err && writes)
        err = cairn_file_sync(fd);
    *seconds = now_s() - begin;
    cairn_file_queue_close(queue);
    closed = cairn_file_close(fd);
    return err ? err : closed;
}

static void
add_cases(const struct disk *disk, double seconds[2][ENGINES][CAIRN_BENCH_ROUNDS_MAX],
          const double cpu_s[2][ENGINES], uint32_t rounds, struct cairn_bench_report *report)
{
    for (int writes = 1; writes >= 0; writes--) {
        double floor = cairn_bench_median(seconds[writes][0], rounds);

        for (int e = 1; e < ENGINES; e++) {
            double median = cairn_bench_median(seconds[writes][e], rounds);
            struct cairn_bench_case value = {.value = (double)disk->bytes / median / 1e9,
                                             .floor = (double)disk->bytes / floor / 1e9,
                                             .unit = "GB/s",
                                             .command = "one request after the other",
                                             .bytes = disk->bytes,
                                             .threads = 1,
                                             .cpu_seconds_per_gib =
                                                 cpu_s[writes][e] / rounds /
                                                 ((double)disk->bytes / 1073741824.0)};

            (void)snprintf(value.name, sizeof value.name, "%s %s", writes ? "write" : "read",
                           cairn_file_engine_name(engines[e]));
            cairn_bench_add(report, &value);
        }
    }
}

cairn_err
cairn_bench_disk(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    static double seconds[2][ENGINES][CAIRN_BENCH_ROUNDS_MAX];
    double cpu_s[2][ENGINES] = {{0}};
    uint32_t rounds = options->rounds ? options->rounds : 7;
    struct disk disk = {.bytes = (options->bytes ? options->bytes : BYTES_DEFAULT) / RUN_BYTES *
                                 RUN_BYTES,
                        .from = aligned_alloc(ALIGN_BYTES, RUN_BYTES),
                        .into = aligned_alloc(ALIGN_BYTES, CAIRN_FILE_QUEUE_DEPTH * RUN_BYTES)};
    cairn_err err = disk.from && disk.into ? CAIRN_OK : CAIRN_NOMEM;
    static char why[128];

    report->stage = "disk";
    if (cairn_file_engine_best(why, sizeof why) != CAIRN_FILE_ENGINE_RING)
        report->skipped = why;
    for (size_t i = 0; !err && i < RUN_BYTES; i++)
        disk.from[i] = (uint8_t)(i * 2654435761u >> 13);
    for (uint32_t round = 0; !err && !report->skipped && round < rounds; round++)
        for (int e = 0; !err && e < ENGINES; e++)
            for (int writes = 1; !err && writes >= 0; writes--) {
                double begin = cairn_bench_cpu_s();

                err = time_pass(&disk, engines[e], writes, &seconds[writes][e][round]);
                cpu_s[writes][e] += cairn_bench_cpu_s() - begin;
            }
    if (!err && !report->skipped)
        add_cases(&disk, seconds, cpu_s, rounds, report);
    (void)unlink(file_name);
    free(disk.into);
    free(disk.from);
    return err;
}
