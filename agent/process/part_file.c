/* agent/process/part_file.c - see part_file.h. */
#include "agent/process/part_file.h"

#include "agent/process/memory.h"
#include "base/crc.h"
#include "base/file.h"
#include "base/file_queue.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/wire.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES = 4096,
    NUMBERS_AT = 16,
    RUN_BYTES = 4 << 20, /* of one write or read */
    NAME_BYTES = 96
};
static const char magic[NUMBERS_AT] = "cairn-part 1\n";
static const uint64_t RECORD_BYTES_MAX = UINT64_C(1) << 32;
static const uint64_t BLOCKS_MAX = UINT64_C(1) << 40;

/* ---- names ---- */

static void
name_of(struct cairn_generation_id generation, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "e%" PRIu64 "-r%" PRIu64 "-s%" PRIu64 ".part", generation.epoch,
             generation.run, generation.step);
}

static bool
parse_name(const char *name, struct cairn_generation_id *out)
{
    char again[NAME_BYTES];

    if (sscanf(name, "e%" SCNu64 "-r%" SCNu64 "-s%" SCNu64 ".part", &out->epoch, &out->run,
               &out->step) != 3)
        return false;
    name_of(*out, again);
    return strcmp(name, again) == 0;
}

static int
newest_first(const void *a, const void *b)
{
    return cairn_generation_id_compare(*(const struct cairn_generation_id *)b,
                                       *(const struct cairn_generation_id *)a);
}

static bool
ends_with(const char *name, const char *end)
{
    size_t len = strlen(name), end_len = strlen(end);

    return len > end_len && strcmp(name + len - end_len, end) == 0;
}

/* Lists the complete parts, newest first; the caller frees *list. `clean`: removes leftovers of a
 * dead writer, and parts marked as bad. */
static cairn_err
list_parts(int dir_fd, bool clean, struct cairn_generation_id **list, size_t *count)
{
    char **names = NULL;
    size_t name_count = 0;
    cairn_err err = cairn_dir_list(dir_fd, &names, &name_count);

    *count = 0;
    if (err)
        return err;
    *list = calloc(name_count + 1, sizeof **list);
    for (size_t i = 0; *list && i < name_count; i++) {
        if (parse_name(names[i], &(*list)[*count]))
            ++*count;
        else if (clean && (ends_with(names[i], ".part.new") || ends_with(names[i], ".part.bad")))
            (void)!cairn_file_unlink(dir_fd, names[i]); /* it has said what it met */
    }
    cairn_dir_list_free(names, name_count);
    if (!*list)
        return CAIRN_NOMEM;
    qsort(*list, *count, sizeof **list, newest_first);
    return CAIRN_OK;
}

/* ---- header and record ---- */

/* The bytes before the data: header and record, padded. */
static size_t
head_bytes(uint64_t record_bytes)
{
    return HEADER_BYTES + (size_t)((record_bytes + HEADER_BYTES - 1) / HEADER_BYTES * HEADER_BYTES);
}

static uint8_t *
pack_head(const struct part_file *part)
{
    size_t bytes = head_bytes(part->record_bytes);
    uint8_t *head = aligned_alloc(HEADER_BYTES, bytes);
    struct cairn_writer writer;
    uint64_t crc;

    if (!head)
        return NULL;
    memset(head, 0, bytes);
    memcpy(head, magic, sizeof magic);
    cairn_writer_init(&writer, head + NUMBERS_AT, HEADER_BYTES - NUMBERS_AT);
    cairn_write_u64(&writer, part->job_id);
    cairn_write_u64(&writer, part->generation.epoch);
    cairn_write_u64(&writer, part->generation.run);
    cairn_write_u64(&writer, part->generation.step);
    cairn_write_u64(&writer, part->record_bytes);
    cairn_write_u64(&writer, part->data_blocks);
    cairn_write_u64(&writer, part->parity_blocks);
    memcpy(head + HEADER_BYTES, part->record, part->record_bytes);
    crc = cairn_crc64(cairn_crc64(0, head, NUMBERS_AT + writer.used_bytes), head + HEADER_BYTES,
                      part->record_bytes);
    cairn_write_u64(&writer, crc);
    cairn_write_u64(&writer, 1); /* there are checksums */
    return head;
}

/* The bytes after the parity. */
static size_t
sums_bytes(uint64_t blocks)
{
    return (size_t)((8 * (blocks + 1) + HEADER_BYTES - 1) / HEADER_BYTES * HEADER_BYTES);
}

/* The contents of a header beside the numbers of its part. */
struct head {
    uint64_t numbers_crc; /* as it is */
    uint64_t crc;         /* as it should be, with the record */
    bool sums;            /* there are checksums of the blocks */
};

/* Reads the header, whose numbers only read_head proves. */
static cairn_err
read_numbers(int fd, struct part_file *part, struct head *out)
{
    uint8_t head[HEADER_BYTES];
    struct cairn_reader reader;
    size_t got = 0;
    cairn_err err = cairn_file_read_at(fd, 0, head, sizeof head, &got);

    if (err)
        return err;
    if (got < sizeof head || memcmp(head, magic, sizeof magic) != 0)
        return CAIRN_CORRUPT;
    cairn_reader_init(&reader, head + NUMBERS_AT, sizeof head - NUMBERS_AT);
    part->job_id = cairn_read_u64(&reader);
    part->generation.epoch = cairn_read_u64(&reader);
    part->generation.run = cairn_read_u64(&reader);
    part->generation.step = cairn_read_u64(&reader);
    part->record_bytes = cairn_read_u64(&reader);
    part->data_blocks = cairn_read_u64(&reader);
    part->parity_blocks = cairn_read_u64(&reader);
    out->numbers_crc = cairn_crc64(0, head, (size_t)(reader.at - head));
    out->crc = cairn_read_u64(&reader);
    out->sums = cairn_read_u64(&reader) == 1;
    return part->record_bytes > RECORD_BYTES_MAX || part->data_blocks > BLOCKS_MAX ||
                   part->parity_blocks > BLOCKS_MAX
               ? CAIRN_CORRUPT
               : CAIRN_OK;
}

/* Reads header and record; *record is the caller's. */
static cairn_err
read_head(int fd, struct part_file *part, uint8_t **record, bool *sums)
{
    struct head head;
    size_t got = 0;
    cairn_err err = read_numbers(fd, part, &head);

    if (err)
        return err;
    *sums = head.sums;
    *record = malloc(part->record_bytes + 1);
    if (!*record)
        return CAIRN_NOMEM;
    err = cairn_file_read_at(fd, HEADER_BYTES, *record, part->record_bytes, &got);
    if (!err && (got < part->record_bytes ||
                 cairn_crc64(head.numbers_crc, *record, part->record_bytes) != head.crc))
        err = CAIRN_CORRUPT;
    if (err) {
        free(*record);
        *record = NULL;
    }
    return err;
}

/* ---- runs of blocks, several under way at once ---- */

enum direction { WRITES, COMPARES, LOADS };

struct stream {
    int fd;
    uint64_t at;
    enum direction direction;
    struct cairn_file_queue *queue;
    uint8_t *buffer; /* CAIRN_FILE_QUEUE_DEPTH * RUN_BYTES: what is compared */
    uint64_t *sums;  /* of the blocks that are written; sums_bytes long */
    uint64_t summed; /* so many are known */
    bool summing;    /* what is written is blocks */
    _Atomic uint64_t *progress;
    atomic_bool *stop;
};

static size_t
next_run(uint64_t left)
{
    return left < RUN_BYTES ? (size_t)left : (size_t)RUN_BYTES;
}

/* Where the run at `offset` is read to: a place in the circle of buffers, or its own. */
static uint8_t *
place_of(const struct stream *stream, uint8_t *bytes, uint64_t offset)
{
    return stream->direction == COMPARES
               ? stream->buffer + offset / RUN_BYTES % CAIRN_FILE_QUEUE_DEPTH * RUN_BYTES
               : bytes + offset;
}

static void
begin_run(struct stream *stream, uint8_t *bytes, uint64_t offset, size_t run)
{
    for (size_t at = 0; stream->summing && at < run; at += CAIRN_BLOCK_BYTES)
        stream->sums[stream->summed++] = cairn_crc64(0, bytes + offset + at, CAIRN_BLOCK_BYTES);
    if (stream->direction == WRITES)
        cairn_file_queue_write(stream->queue, stream->fd, stream->at, bytes + offset, run);
    else
        cairn_file_queue_read(stream->queue, stream->fd, stream->at,
                              place_of(stream, bytes, offset), run);
    stream->at += run;
}

static cairn_err
end_run(struct stream *stream, uint8_t *bytes, uint64_t offset, size_t run)
{
    size_t got = 0;
    cairn_err err = cairn_file_queue_pop(stream->queue, &got);

    if (err)
        return err;
    if (got < run || (stream->direction == COMPARES &&
                      memcmp(place_of(stream, bytes, offset), bytes + offset, run) != 0))
        return CAIRN_CORRUPT;
    if (stream->progress)
        atomic_fetch_add(stream->progress, run);
    return CAIRN_OK;
}

/* Writes, compares or loads bytes[count]. On return nothing is pending. */
static cairn_err
stream_runs(struct stream *stream, uint8_t *bytes, uint64_t count)
{
    uint64_t begun = 0, done = 0;
    cairn_err err = CAIRN_OK;

    while (!err && done < count) {
        bool has_room = cairn_file_queue_count(stream->queue) < CAIRN_FILE_QUEUE_DEPTH;
        size_t run = next_run(has_room && begun < count ? count - begun : count - done);

        if (stream->stop && atomic_load(stream->stop)) {
            err = CAIRN_AGAIN;
        } else if (has_room && begun < count) {
            begin_run(stream, bytes, begun, run);
            begun += run;
        } else {
            err = end_run(stream, bytes, done, run);
            done += run;
        }
    }
    cairn_file_queue_drop(stream->queue);
    return err;
}

static cairn_err
stream_part(struct stream *stream, const struct part_file *part, uint8_t *head)
{
    cairn_err err = stream_runs(stream, head, head_bytes(part->record_bytes));
    uint64_t blocks = part->data_blocks + (part->parity ? part->parity_blocks : 0);

    stream->summing = stream->direction == WRITES;
    if (!err)
        err = stream_runs(stream, (uint8_t *)part->data, part->data_blocks * CAIRN_BLOCK_BYTES);
    if (!err && part->parity)
        err = stream_runs(stream, (uint8_t *)part->parity, part->parity_blocks * CAIRN_BLOCK_BYTES);
    stream->summing = false;
    if (!err) {
        stream->sums[blocks] = cairn_crc64(0, stream->sums, 8 * blocks);
        err = stream_runs(stream, (uint8_t *)stream->sums, sums_bytes(blocks));
    }
    return err;
}

/* ---- writing ---- */

static cairn_err
write_new(int dir_fd, const char *name, const struct part_file *part, uint8_t *head,
          struct stream *stream)
{
    cairn_err err = cairn_file_open(dir_fd, name, CAIRN_FILE_CREATE_DIRECT, &stream->fd), closed;

    if (err == CAIRN_INVAL)
        err = cairn_file_open(dir_fd, name, CAIRN_FILE_CREATE, &stream->fd);
    if (!err)
        err = cairn_file_reserve(stream->fd,
                                 head_bytes(part->record_bytes) +
                                     (part->data_blocks + part->parity_blocks) * CAIRN_BLOCK_BYTES +
                                     sums_bytes(part->data_blocks + part->parity_blocks));
    if (!err)
        err = stream_part(stream, part, head);
    if (!err)
        err = cairn_file_sync(stream->fd);
    closed = cairn_file_close(stream->fd);
    stream->fd = -1;
    return err ? err : closed;
}

/* Has the kernel drop its copy first, so that the bytes come from the disk. */
static cairn_err
read_back(int dir_fd, const char *name, const struct part_file *part, uint8_t *head,
          struct stream *stream)
{
    cairn_err err = cairn_file_open(dir_fd, name, CAIRN_FILE_READ_DIRECT, &stream->fd);

    if (err == CAIRN_INVAL)
        err = cairn_file_open(dir_fd, name, CAIRN_FILE_READ, &stream->fd);
    if (err)
        return err;
    stream->at = 0;
    stream->direction = COMPARES;
    (void)posix_fadvise(stream->fd, 0, 0, POSIX_FADV_DONTNEED);
    err = stream_part(stream, part, head);
    (void)cairn_file_close(stream->fd); /* only read */
    return err;
}

static void
remove_old(int dir_fd, uint32_t keep)
{
    struct cairn_generation_id *list = NULL;
    size_t count = 0;

    if (list_parts(dir_fd, true, &list, &count) != CAIRN_OK)
        return;
    for (size_t i = keep; i < count; i++) {
        char name[NAME_BYTES];

        name_of(list[i], name);
        (void)!cairn_file_unlink(dir_fd, name); /* it has said what it met */
    }
    free(list);
}

cairn_err
part_file_write(const char *dir, const struct part_file *part, uint32_t keep,
                _Atomic uint64_t *progress, atomic_bool *stop)
{
    struct stream stream = {.fd = -1,
                            .buffer =
                                aligned_alloc(HEADER_BYTES, CAIRN_FILE_QUEUE_DEPTH * RUN_BYTES),
                            .progress = progress,
                            .stop = stop};
    uint64_t blocks = part->data_blocks + (part->parity ? part->parity_blocks : 0);
    uint8_t *head = pack_head(part);
    char name[NAME_BYTES], new_name[NAME_BYTES + 8];
    int dir_fd = -1;
    cairn_err err;

    stream.sums = aligned_alloc(HEADER_BYTES, sums_bytes(blocks));
    err = head && stream.buffer && stream.sums ? cairn_dir_make(AT_FDCWD, dir) : CAIRN_NOMEM;
    if (stream.sums)
        memset(stream.sums, 0, sums_bytes(blocks));
    name_of(part->generation, name);
    snprintf(new_name, sizeof new_name, "%s.new", name);
    if (!err)
        err = cairn_file_queue_open(CAIRN_FILE_ENGINE_BEST, &stream.queue);
    if (!err)
        err = cairn_file_open(AT_FDCWD, dir, CAIRN_FILE_DIRECTORY_LINKED, &dir_fd);
    if (err)
        goto done;
    err = write_new(dir_fd, new_name, part, head, &stream);
    if (!err)
        err = read_back(dir_fd, new_name, part, head, &stream);
    if (!err)
        err = cairn_file_rename(dir_fd, new_name, name);
    if (err)
        (void)!cairn_file_unlink(dir_fd, new_name); /* it has said what it met */
    else
        err = cairn_file_sync(dir_fd);
    if (!err)
        remove_old(dir_fd, keep);
done:
    (void)cairn_file_close(dir_fd); /* a directory */
    cairn_file_queue_close(stream.queue);
    free(stream.buffer);
    free(stream.sums);
    free(head);
    return err;
}

/* ---- comparing ---- */

/* Opens a file of the directory. */
static cairn_err
open_part(const char *dir, struct cairn_generation_id generation, int *fd)
{
    char name[NAME_BYTES];
    int dir_fd = -1;
    cairn_err err = cairn_file_open(AT_FDCWD, dir, CAIRN_FILE_DIRECTORY_LINKED, &dir_fd);

    name_of(generation, name);
    if (!err)
        err = cairn_file_open(dir_fd, name, CAIRN_FILE_READ, fd);
    (void)cairn_file_close(dir_fd); /* a directory */
    return err;
}

/* Reads the checksums of blocks [first, first + count) of a file of so many blocks. */
static cairn_err
read_sums(int fd, uint64_t at, uint64_t first, uint64_t count, uint64_t *sums)
{
    size_t got = 0;
    cairn_err err = cairn_file_read_at(fd, at + 8 * first, sums, 8 * count, &got);

    return err ? err : got == 8 * count ? CAIRN_OK : CAIRN_CORRUPT;
}

/* The head is good, and all checksums are. */
static cairn_err
check_head(int fd, struct part_file *part, bool *sums)
{
    uint8_t *record = NULL;
    uint64_t *all = NULL, blocks, at;
    cairn_err err = read_head(fd, part, &record, sums);

    free(record);
    if (err || !*sums)
        return err;
    blocks = part->data_blocks + part->parity_blocks;
    at = head_bytes(part->record_bytes) + blocks * CAIRN_BLOCK_BYTES;
    all = blocks <= RECORD_BYTES_MAX / 8 ? malloc(8 * (blocks + 1)) : NULL;
    err = all ? read_sums(fd, at, 0, blocks + 1, all) : CAIRN_NOMEM;
    if (!err && cairn_crc64(0, all, 8 * blocks) != all[blocks])
        err = CAIRN_CORRUPT;
    free(all);
    return err;
}

/* Blocks [first, first + count) of a file whose head is good. */
static cairn_err
check_blocks(int fd, const struct part_file *part, uint64_t first, uint32_t count, uint32_t *bad)
{
    uint64_t sums[PART_FILE_CHECK_MAX] = {0}, at = head_bytes(part->record_bytes);
    uint64_t blocks = part->data_blocks + part->parity_blocks;
    uint8_t *bytes = malloc((size_t)count * CAIRN_BLOCK_BYTES);
    size_t got = 0;
    cairn_err err = bytes ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        err = read_sums(fd, at + blocks * CAIRN_BLOCK_BYTES, first, count, sums);
    if (!err)
        err = cairn_file_read_at(fd, at + first * CAIRN_BLOCK_BYTES, bytes,
                                 (size_t)count * CAIRN_BLOCK_BYTES, &got);
    for (uint32_t i = 0; !err && i < count; i++) {
        size_t from = (size_t)i * CAIRN_BLOCK_BYTES;

        if (got < from + CAIRN_BLOCK_BYTES ||
            cairn_crc64(0, bytes + from, CAIRN_BLOCK_BYTES) != sums[i])
            *bad |= UINT32_C(1) << i;
    }
    free(bytes);
    return err;
}

cairn_err
part_file_check(const char *dir, struct cairn_generation_id generation, uint64_t first,
                uint32_t count, uint32_t *bad)
{
    struct part_file part = {0};
    struct head head;
    bool sums = false;
    int fd = -1;
    uint32_t blocks_bad = 0;
    cairn_err err = open_part(dir, generation, &fd);

    *bad = 0;
    if (err)
        return err;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* so that bytes come from the disk */
    if (first == 0) {
        err = check_head(fd, &part, &sums);
        *bad = err == CAIRN_CORRUPT;
        if (*bad)
            err = CAIRN_OK;
    } else {
        err = read_numbers(fd, &part, &head);
        sums = !err && head.sums;
        if (err == CAIRN_CORRUPT) /* its first unit shows it */
            err = CAIRN_OK;
    }
    if (!err && sums && !*bad && count > (first == 0))
        err = check_blocks(fd, &part, first ? first - 1 : 0, count - (first == 0), &blocks_bad);
    if (!err)
        *bad |= blocks_bad << (first == 0);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* and leave the cache to others */
    (void)cairn_file_close(fd);                         /* only read */
    return err;
}

cairn_err
part_files_list(const char *dir, struct part_file_units out[PART_FILES_MAX], uint32_t *count)
{
    struct cairn_generation_id *list = NULL;
    size_t found = 0;
    int dir_fd = -1;
    cairn_err err = cairn_file_open(AT_FDCWD, dir, CAIRN_FILE_DIRECTORY_LINKED, &dir_fd);

    *count = 0;
    if (!err)
        err = list_parts(dir_fd, false, &list, &found);
    (void)cairn_file_close(dir_fd); /* a directory */
    for (size_t i = 0; !err && i < found && i < PART_FILES_MAX; i++) {
        struct part_file part = {0};
        uint8_t *record = NULL;
        bool sums = false;
        int fd = -1;
        cairn_err head = open_part(dir, list[i], &fd);

        if (!head)
            head = read_head(fd, &part, &record, &sums);
        free(record);
        (void)cairn_file_close(fd); /* only read */
        if (head && head != CAIRN_CORRUPT)
            continue; /* it has gone, or cannot be read now */
        out[(*count)++] =
            (struct part_file_units){list[i], head   ? 1
                                              : sums ? 1 + part.data_blocks + part.parity_blocks
                                                     : 0};
    }
    free(list);
    return err;
}

cairn_err
part_file_mark_bad(const char *dir, struct cairn_generation_id generation)
{
    char name[NAME_BYTES], bad_name[NAME_BYTES + 8];
    int dir_fd = -1;
    cairn_err err = cairn_file_open(AT_FDCWD, dir, CAIRN_FILE_DIRECTORY_LINKED, &dir_fd);

    name_of(generation, name);
    snprintf(bad_name, sizeof bad_name, "%s.bad", name);
    if (!err)
        err = cairn_file_rename(dir_fd, name, bad_name);
    if (!err)
        err = cairn_file_sync(dir_fd);
    (void)cairn_file_close(dir_fd); /* a directory */
    return err;
}

/* ---- loading ---- */

static cairn_err
load_blocks(struct stream *stream, uint8_t *into, uint64_t blocks)
{
    if (blocks == 0)
        return CAIRN_OK;
    return into ? stream_runs(stream, into, blocks * CAIRN_BLOCK_BYTES) : CAIRN_CONFIG;
}

/* CAIRN_CONFIG: written by another job, or by memory of another size. */
static cairn_err
load(int dir_fd, const char *name, uint64_t job_id, struct cairn_memory *memory, uint32_t slot,
     uint64_t parity_blocks)
{
    struct part_file part = {0};
    uint8_t *record = NULL;
    struct stream stream = {.fd = -1, .direction = LOADS};
    bool sums;
    int head_fd = -1;
    cairn_err err = cairn_file_open(dir_fd, name, CAIRN_FILE_READ, &head_fd);

    if (!err)
        err = read_head(head_fd, &part, &record, &sums);
    if (!err)
        err = cairn_file_open(dir_fd, name, CAIRN_FILE_READ_DIRECT, &stream.fd);
    if (err == CAIRN_INVAL)
        err = cairn_file_open(dir_fd, name, CAIRN_FILE_READ, &stream.fd);
    if (!err)
        err = cairn_file_queue_open(CAIRN_FILE_ENGINE_BEST, &stream.queue);
    if (err)
        goto done;
    stream.at = head_bytes(part.record_bytes);
    if (part.job_id != job_id || part.parity_blocks != parity_blocks)
        err = CAIRN_CONFIG;
    if (!err) {
        cairn_memory_write_begin(memory, slot); /* the memory is not blank any more */
        err = load_blocks(&stream, cairn_memory_data(memory, slot, 0, part.data_blocks),
                          part.data_blocks);
        cairn_memory_write_end(memory, slot);
    }
    if (!err)
        err = load_blocks(&stream, cairn_memory_parity(memory, slot, 0, 1, 0, parity_blocks),
                          parity_blocks);
    if (!err)
        err = cairn_memory_record_store(memory, slot, record, part.record_bytes);
done:
    free(record);
    cairn_file_queue_close(stream.queue);
    (void)cairn_file_close(stream.fd); /* only read */
    (void)cairn_file_close(head_fd);   /* the same */
    return err;
}

void
part_files_load(const char *dir, uint64_t job_id, struct cairn_memory *memory, uint32_t slots,
                uint64_t parity_blocks, struct cairn_generation_id *newest)
{
    struct cairn_generation_id *list = NULL;
    uint32_t slot = 0;
    size_t count = 0;
    int dir_fd = -1;
    cairn_err err = cairn_file_open(AT_FDCWD, dir, CAIRN_FILE_DIRECTORY_LINKED, &dir_fd);

    *newest = (struct cairn_generation_id){0};
    if (err == CAIRN_NOT_FOUND)
        return; /* it is made by the first write */
    if (!err)
        err = list_parts(dir_fd, true, &list, &count);
    for (size_t i = 0; !err && i < count && slot < slots; i++) {
        char name[NAME_BYTES];
        cairn_err loaded;

        name_of(list[i], name);
        loaded = load(dir_fd, name, job_id, memory, slot, parity_blocks);
        if (loaded) {
            CAIRN_LOG_AT(WARN, "local: skipped %s/%s: %s", dir, name,
                         loaded == CAIRN_CONFIG
                             ? "written by another job, or with another state_bytes, "
                               "parity or number of nodes"
                             : cairn_err_text(loaded));
            continue;
        }
        CAIRN_LOG_AT(INFO, "local: loaded epoch=%" PRIu64 " step=%" PRIu64 " file=%s/%s",
                     cairn_epoch_number(list[i].epoch), list[i].step, dir, name);
        if (slot++ == 0)
            *newest = list[i];
    }
    free(list);
    (void)cairn_file_close(dir_fd); /* a directory */
}
