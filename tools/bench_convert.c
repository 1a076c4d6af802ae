/*
 * tools/bench_convert.c - conversions of files against copying as many bytes, in one run.
 *
 *   case     a BF16 matrix in 8 files, one for each tensor-parallel rank, to 2 files: cut in rows
 *            (long runs), or in columns (each row of a shard is a run of its own)
 *   value    bytes per second of a whole conversion: metadata, plan, reading, fingerprints of both
 *            sides, writing, syncing, commit
 *   floor    pread and pwrite of the source's files into new ones, 256 KiB at a time (longer writes
 *            are slower), as many threads (one file each at a time), and the same sync
 * Medians over the rounds, which alternate; the source is in the page cache.
 *
 *   case     planning: small matrices, each in 8 files, to 2 files, nothing written
 *   value    pieces of both sides planned per second, of a million
 *   floor    the same of a quarter of them: the ratio is 1 where the time grows as the pieces do
 */
#include "tools/convert/core/format.h"
#include "tools/bench.h"
#include "tools/bench_measure.h"

#include "base/file.h"
#include "tools/convert/engine/conversion.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SOURCE_FILES = 8,
    TARGET_FILES = 2,
    BYTES_DEFAULT = 512 << 20,
    COPY_BYTES = 256 << 10,
    THREADS = 2,
    PATH_BYTES = 512,
    MARGIN_BYTES = 1 << 20, /* what rounding to whole rows takes away, and more */
    PLAN_COLUMNS = 16,
    PLAN_TENSORS = 1000000 / (SOURCE_FILES + TARGET_FILES)
};

/* What the format below reads and writes: matrices of one shape, cut along one dimension. */
static struct {
    uint64_t shape[2];
    uint32_t cut_dim;
    uint32_t count;
} matrix = {.count = 1};

/* Bytes of all parts in one of so many files. */
static uint64_t
part_bytes(uint32_t parts)
{
    return matrix.shape[0] * matrix.shape[1] * 2 / parts * matrix.count;
}

static void
cut(uint32_t part, uint32_t parts, uint64_t start[2], uint64_t extent[2])
{
    for (uint32_t d = 0; d < 2; d++) {
        start[d] = d == matrix.cut_dim ? matrix.shape[d] * part / parts : 0;
        extent[d] = d == matrix.cut_dim ? matrix.shape[d] / parts : matrix.shape[d];
    }
}

static bool
probe(const struct cairn_place *place)
{
    (void)place;
    return false;
}

static cairn_err
read_shards(struct cairn_checkpoint *checkpoint)
{
    uint32_t tensor = 0, containers[SOURCE_FILES];
    uint64_t start[2], extent[2];
    char name[32];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < SOURCE_FILES; i++) {
        (void)snprintf(name, sizeof(name), "rank%" PRIu32, i);
        err = cairn_checkpoint_add_file(checkpoint, name, &containers[i]);
    }
    for (uint32_t t = 0; !err && t < matrix.count; t++) {
        (void)snprintf(name, sizeof(name), "layers.%" PRIu32 ".weight", t);
        err = cairn_checkpoint_add_tensor(checkpoint, name, CAIRN_BF16, CAIRN_PARAM, 2,
                                          matrix.shape, &tensor);
        for (uint32_t i = 0; !err && i < SOURCE_FILES; i++) {
            cut(i, SOURCE_FILES, start, extent);
            err = cairn_checkpoint_add_box(checkpoint, tensor, containers[i], start, extent,
                                           t * extent[0] * extent[1] * 2, NULL);
        }
    }
    return err;
}

static cairn_err
plan_shards(const struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options,
            struct cairn_output *output)
{
    uint32_t tensor = 0, files[TARGET_FILES];
    uint64_t start[2], extent[2];
    char name[32];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < TARGET_FILES; i++) {
        (void)snprintf(name, sizeof(name), "rank%" PRIu32, i);
        err = cairn_output_add_file(output, name, &files[i]);
        if (!err)
            cairn_output_set_bytes(output, files[i], part_bytes(TARGET_FILES));
    }
    for (uint32_t t = 0; !err && t < matrix.count; t++) {
        err = cairn_output_add_tensor(output, options, cairn_layout_tensor(checkpoint->layout, t),
                                      &tensor);
        for (uint32_t i = 0; !err && i < TARGET_FILES; i++) {
            cut(i, TARGET_FILES, start, extent);
            err = cairn_output_add_box(output, tensor, files[i], start, extent,
                                       t * extent[0] * extent[1] * 2, NULL);
        }
    }
    return err;
}

static cairn_err
finish(const struct cairn_checkpoint *checkpoint, struct cairn_output *output)
{
    (void)checkpoint;
    (void)output;
    return CAIRN_OK;
}

static const struct cairn_format shards = {.name = "shards",
                                           .about = "a matrix in files, for measuring",
                                           .probe = probe,
                                           .read = read_shards,
                                           .plan = plan_shards,
                                           .finish = finish};

/* ---- the floor ---- */

struct copying {
    int from_fd, to_fd; /* directories */
    uint32_t next;      /* atomic: the next file */
    cairn_err err;      /* atomic */
};

static cairn_err
copy_file(const struct copying *copying, uint32_t file, uint8_t *buffer)
{
    char name[32];
    uint64_t at = 0;
    size_t got = 0;
    int from = -1, to = -1;
    cairn_err err;

    (void)snprintf(name, sizeof(name), "rank%" PRIu32, file);
    err = cairn_file_open(copying->from_fd, name, CAIRN_FILE_READ, &from);
    if (!err)
        err = cairn_file_open(copying->to_fd, name, CAIRN_FILE_CREATE, &to);
    do {
        if (!err)
            err = cairn_file_read_at(from, at, buffer, COPY_BYTES, &got);
        if (!err)
            err = cairn_file_write_at(to, at, buffer, got);
        at += got;
    } while (!err && got == COPY_BYTES);
    if (!err)
        err = cairn_file_sync(to);
    (void)cairn_file_close(from); /* only read */
    if (cairn_file_close(to) && !err)
        err = CAIRN_IO;
    return err;
}

static void *
copy_files(void *argument)
{
    struct copying *copying = argument;
    uint8_t *buffer = malloc(COPY_BYTES);
    cairn_err err = buffer ? CAIRN_OK : CAIRN_NOMEM;

    while (!err) {
        uint32_t file = __atomic_fetch_add(&copying->next, 1, __ATOMIC_RELAXED);

        if (file >= SOURCE_FILES)
            break;
        err = copy_file(copying, file, buffer);
    }
    free(buffer);
    if (err)
        __atomic_store_n(&copying->err, err, __ATOMIC_RELAXED);
    return NULL;
}

static cairn_err
copy_all(int from_fd, int to_fd)
{
    struct copying copying = {.from_fd = from_fd, .to_fd = to_fd};
    pthread_t threads[THREADS];
    uint32_t started = 0;

    while (started < THREADS && pthread_create(&threads[started], NULL, copy_files, &copying) == 0)
        started++;
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    return started == 0 ? CAIRN_AGAIN : copying.err;
}

/* ---- one case ---- */

struct bench {
    char base[PATH_BYTES];
    int base_fd;
    int source_fd;
    uint32_t rounds;
    struct cairn_bench_report *report;
};

static cairn_err
remove_files(const struct bench *bench, const char *directory, uint32_t count)
{
    char path[PATH_BYTES];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < count; i++) {
        (void)snprintf(path, sizeof(path), "%s/rank%" PRIu32, directory, i);
        err = cairn_file_unlink(bench->base_fd, path);
    }
    return err ? err : cairn_dir_remove(bench->base_fd, directory);
}

static cairn_err
convert_once(const struct bench *bench, double *seconds, double *cpu_seconds)
{
    char source[PATH_BYTES + 16], target[PATH_BYTES + 16];
    struct cairn_conversion_options options = {.source = source,
                                               .target = target,
                                               .from = &shards,
                                               .to = &shards,
                                               .thread_count = THREADS,
                                               .memory_limit_bytes = 1 << 30};
    double began_s = cairn_bench_now_s(), began_cpu_s = cairn_bench_cpu_s();
    struct cairn_complaint complaint = {""};
    struct cairn_conversion conversion;
    cairn_err err;

    (void)snprintf(source, sizeof(source), "%s/source", bench->base);
    (void)snprintf(target, sizeof(target), "%s/target", bench->base);
    err = cairn_conversion_open(&options, &conversion, &complaint);
    if (!err)
        err = cairn_conversion_run(&conversion, &complaint);
    cairn_conversion_close(&conversion);
    *seconds = cairn_bench_now_s() - began_s;
    *cpu_seconds = cairn_bench_cpu_s() - began_cpu_s;
    if (err)
        (void)fprintf(stderr, "cairn bench: convert: %s\n", complaint.text);
    return err ? err : remove_files(bench, "target", TARGET_FILES);
}

static cairn_err
copy_once(const struct bench *bench, double *seconds)
{
    double began_s = cairn_bench_now_s();
    int copy_fd = -1;
    cairn_err err;

    err = cairn_dir_make(bench->base_fd, "copy");
    if (!err)
        err = cairn_file_open(bench->base_fd, "copy", CAIRN_FILE_DIRECTORY, &copy_fd);
    if (!err)
        err = copy_all(bench->source_fd, copy_fd);
    (void)cairn_file_close(copy_fd); /* a directory */
    *seconds = cairn_bench_now_s() - began_s;
    return err ? err : remove_files(bench, "copy", SOURCE_FILES);
}

static cairn_err
measure(struct bench *bench, const char *name, uint32_t cut_dim, double bound)
{
    double convert_s[CAIRN_BENCH_ROUNDS_MAX], copy_s[CAIRN_BENCH_ROUNDS_MAX];
    double cpu_s[CAIRN_BENCH_ROUNDS_MAX];
    uint64_t bytes = matrix.shape[0] * matrix.shape[1] * 2;
    struct cairn_bench_case value = {.unit = "GB/s",
                                     .threads = THREADS,
                                     .bound = bound,
                                     .bytes = bytes,
                                     .command = "pread and pwrite of the same files, synced"};
    cairn_err err = CAIRN_OK;

    matrix.cut_dim = cut_dim;
    for (uint32_t round = 0; !err && round < bench->rounds; round++) {
        err = convert_once(bench, &convert_s[round], &cpu_s[round]);
        if (!err)
            err = copy_once(bench, &copy_s[round]);
    }
    if (err)
        return err;
    value.value = (double)bytes / cairn_bench_median(convert_s, bench->rounds) / 1e9;
    value.floor = (double)bytes / cairn_bench_median(copy_s, bench->rounds) / 1e9;
    value.cpu_seconds_per_gib =
        cairn_bench_median(cpu_s, bench->rounds) / ((double)bytes / 1073741824.0);
    (void)snprintf(value.name, sizeof value.name, "%s", name);
    cairn_bench_add(bench->report, &value);
    return CAIRN_OK;
}

/* The source's files, each filled with a pattern. */
static cairn_err
make_source(struct bench *bench, uint64_t file_bytes)
{
    uint8_t *buffer = cairn_bench_map(COPY_BYTES);
    char name[32];
    cairn_err err = buffer ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        err = cairn_dir_make(bench->base_fd, "source");
    if (!err)
        err = cairn_file_open(bench->base_fd, "source", CAIRN_FILE_DIRECTORY, &bench->source_fd);
    for (uint32_t i = 0; !err && i < SOURCE_FILES; i++) {
        int fd = -1;

        (void)snprintf(name, sizeof(name), "rank%" PRIu32, i);
        err = cairn_file_open(bench->source_fd, name, CAIRN_FILE_CREATE, &fd);
        for (uint64_t at = 0; !err && at < file_bytes; at += COPY_BYTES)
            err = cairn_file_write_at(fd, at, buffer,
                                      file_bytes - at < COPY_BYTES ? (size_t)(file_bytes - at)
                                                                   : (size_t)COPY_BYTES);
        if (cairn_file_close(fd) && !err)
            err = CAIRN_IO;
    }
    cairn_bench_unmap(buffer, COPY_BYTES);
    return err;
}

/* ---- planning ---- */

static cairn_err
plan_once(const struct bench *bench, uint32_t tensors, double *seconds)
{
    char source[PATH_BYTES + 16], target[PATH_BYTES + 16];
    struct cairn_conversion_options options = {.source = source,
                                               .target = target,
                                               .from = &shards,
                                               .to = &shards,
                                               .thread_count = THREADS,
                                               .memory_limit_bytes = UINT64_C(1) << 40};
    struct cairn_complaint complaint = {""};
    struct cairn_conversion conversion;
    double began_s = cairn_bench_now_s();
    cairn_err err;

    matrix.count = tensors;
    (void)snprintf(source, sizeof(source), "%s/source", bench->base);
    (void)snprintf(target, sizeof(target), "%s/target", bench->base);
    err = cairn_conversion_open(&options, &conversion, &complaint);
    *seconds = cairn_bench_now_s() - began_s;
    cairn_conversion_close(&conversion);
    if (err)
        (void)fprintf(stderr, "cairn bench: convert: %s\n", complaint.text);
    return err;
}

static cairn_err
measure_plans(struct bench *bench)
{
    double whole_s[CAIRN_BENCH_ROUNDS_MAX], quarter_s[CAIRN_BENCH_ROUNDS_MAX];
    uint32_t pieces = PLAN_TENSORS * (SOURCE_FILES + TARGET_FILES);
    struct cairn_bench_case value = {
        .unit = "M/s", .threads = 1, .bound = 0.80, .command = "a quarter of the pieces"};
    cairn_err err = CAIRN_OK;

    matrix.shape[0] = SOURCE_FILES;
    matrix.shape[1] = PLAN_COLUMNS;
    matrix.cut_dim = 0;
    for (uint32_t round = 0; !err && round < bench->rounds; round++) {
        err = plan_once(bench, PLAN_TENSORS, &whole_s[round]);
        if (!err)
            err = plan_once(bench, PLAN_TENSORS / 4, &quarter_s[round]);
    }
    matrix.count = 1;
    if (err)
        return err;
    value.value = pieces / cairn_bench_median(whole_s, bench->rounds) / 1e6;
    value.floor = pieces / 4.0 / cairn_bench_median(quarter_s, bench->rounds) / 1e6;
    (void)snprintf(value.name, sizeof value.name, "planning %" PRIu32 " pieces", pieces);
    cairn_bench_add(bench->report, &value);
    return CAIRN_OK;
}

cairn_err
cairn_bench_convert(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    const char *temporary = getenv("TMPDIR");
    struct bench bench = {.base_fd = -1,
                          .source_fd = -1,
                          .rounds = options->rounds ? options->rounds : 5,
                          .report = report};
    uint64_t bytes = options->bytes ? options->bytes : BYTES_DEFAULT;
    cairn_err err = CAIRN_OK;

    report->stage = "convert";
    (void)snprintf(bench.base, sizeof bench.base, "%s/cairn-bench-XXXXXX",
                   temporary && temporary[0] ? temporary : "/tmp");
    if (!mkdtemp(bench.base))
        return CAIRN_IO;
    matrix.shape[1] = 28672; /* columns of 7 kB in each of 8 shards */
    if (bytes < (uint64_t)PLAN_TENSORS * SOURCE_FILES * PLAN_COLUMNS * 2 + MARGIN_BYTES)
        bytes = (uint64_t)PLAN_TENSORS * SOURCE_FILES * PLAN_COLUMNS * 2 + MARGIN_BYTES;
    matrix.shape[0] = bytes / 2 / matrix.shape[1] / SOURCE_FILES * SOURCE_FILES;
    err = cairn_file_open(AT_FDCWD, bench.base, CAIRN_FILE_DIRECTORY, &bench.base_fd);
    if (!err)
        err = make_source(&bench, matrix.shape[0] * matrix.shape[1] * 2 / SOURCE_FILES);
    if (!err)
        err = measure(&bench, "rows tp8 to tp2", 0, 0.70);
    if (!err)
        err = measure(&bench, "columns tp8 to tp2, runs of 7168 bytes", 1, 0.50);
    if (!err)
        err = measure_plans(&bench);
    /* what is left is in the temporary folder */
    (void)remove_files(&bench, "source", SOURCE_FILES);
    (void)cairn_file_close(bench.source_fd); /* directories */
    (void)cairn_file_close(bench.base_fd);
    (void)rmdir(bench.base);
    return err;
}
