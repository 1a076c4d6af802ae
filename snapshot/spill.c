/*
 * snapshot/spill.c - the writer of one spilled file, and the checked reader; spill_dir.c has their
 * directory.
 *
 * The caller and the thread share, under `lock`, everything in the second part of struct
 * cairn_spill. A buffer belongs to the caller while FREE or FILLING and to the thread while QUEUED.
 * Buffers are used in turn. All QUEUED buffers may be under way to the disk at once, and become
 * FREE in the order of queueing.
 *
 * The header is written before the first buffer. Direct writes need lengths and offsets that are
 * multiples of 4096: the header and every full buffer are; the last buffer is padded with zeros and
 * the file cut to its size before it is synced. If a file system refuses direct I/O, at open or at
 * the first write, the same goes through the page cache.
 *
 * The struct lives until both the caller and the thread have released it, so that giving up never
 * waits for a disk that hangs.
 */
#include "snapshot/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/file.h"
#include "base/file_queue.h"
#include "base/limits.h"
#include "base/log.h"

enum buffer_state { BUFFER_FREE, BUFFER_FILLING, BUFFER_QUEUED };
_Static_assert((int)CAIRN_SPILL_BUFFERS <= (int)CAIRN_FILE_QUEUE_DEPTH, "all may be under way");
enum { DIRECT_ALIGN_BYTES = 4096, PART_NAME_BYTES = CAIRN_UNIVERSAL_NAME_BYTES_MAX + 8 };

struct cairn_spill {
    /* Set by open, then read only; the thread alone uses fd and block_crcs until it is done. */
    int dir_fd;
    int fd;
    int event_fd;
    char name[CAIRN_UNIVERSAL_NAME_BYTES_MAX];
    char part_name[PART_NAME_BYTES];
    uint8_t *header; /* aligned */
    size_t header_bytes;
    uint64_t data_bytes;
    uint64_t *block_crcs;
    uint64_t block_count;
    uint8_t *buffers[CAIRN_SPILL_BUFFERS]; /* aligned */
    uint64_t committed_bytes;              /* the caller's */
    bool taken;                            /* the checksums are the caller's */

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t work;  /* a buffer was queued, or the writer given up */
    enum buffer_state states[CAIRN_SPILL_BUFFERS];
    size_t bytes[CAIRN_SPILL_BUFFERS];
    bool given_up;
    bool done; /* the thread has ended its work, well or not */
    cairn_err err;
    int os_error; /* errno behind err, or 0 */
    int holders;  /* the caller and the thread */
};

static void
spill_free(struct cairn_spill *spill)
{
    (void)cairn_file_close(spill->dir_fd);
    if (spill->event_fd >= 0)
        (void)close(spill->event_fd);
    for (int b = 0; b < CAIRN_SPILL_BUFFERS; b++)
        free(spill->buffers[b]);
    free(spill->header);
    free(spill->block_crcs);
    (void)pthread_cond_destroy(&spill->work);
    (void)pthread_mutex_destroy(&spill->lock);
    free(spill);
}

static void
wake_caller(const struct cairn_spill *spill)
{
    uint64_t one = 1;

    (void)!write(spill->event_fd, &one, sizeof(one)); /* full means that it is readable already */
}

/* Empties the event, so that it becomes readable only by what happens from now on. */
static void
clear_event(const struct cairn_spill *spill)
{
    uint64_t count;

    (void)!read(spill->event_fd, &count, sizeof(count));
}

/* ---- the thread ---- */

/* The bytes of a write: direct writes have whole lengths. */
static size_t
whole_bytes(size_t bytes)
{
    return (bytes + DIRECT_ALIGN_BYTES - 1) / DIRECT_ALIGN_BYTES * DIRECT_ALIGN_BYTES;
}

static void
begin_buffer(struct cairn_spill *spill, struct cairn_file_queue *queue, int b, uint64_t at,
             size_t bytes)
{
    uint8_t *buffer = spill->buffers[b];

    for (size_t done = 0; done < bytes; done += CAIRN_BLOCK_BYTES) {
        size_t run = bytes - done < CAIRN_BLOCK_BYTES ? bytes - done : (size_t)CAIRN_BLOCK_BYTES;

        spill->block_crcs[(at + done) / CAIRN_BLOCK_BYTES] = cairn_crc64(0, buffer + done, run);
    }
    memset(buffer + bytes, 0, whole_bytes(bytes) - bytes);
    cairn_file_queue_write(queue, spill->fd, spill->header_bytes + at, buffer, whole_bytes(bytes));
}

/* Ends the write of buffer b, the oldest. *bytes: how much data that was. */
static cairn_err
end_buffer(struct cairn_spill *spill, struct cairn_file_queue *queue, int b, size_t *bytes)
{
    cairn_err err = cairn_file_queue_pop(queue, bytes);

    (void)pthread_mutex_lock(&spill->lock);
    *bytes = spill->bytes[b];
    spill->states[b] = BUFFER_FREE;
    (void)pthread_mutex_unlock(&spill->lock);
    wake_caller(spill);
    return err;
}

enum buffer_wait { WAIT_QUEUED, WAIT_EMPTY, WAIT_GIVEN_UP };

/* Whether buffer b is queued, with its bytes; waits for that if it must. */
static enum buffer_wait
next_buffer(struct cairn_spill *spill, int b, bool must_wait, size_t *bytes)
{
    enum buffer_wait result;

    (void)pthread_mutex_lock(&spill->lock);
    while (must_wait && !spill->given_up && spill->states[b] != BUFFER_QUEUED)
        (void)pthread_cond_wait(&spill->work, &spill->lock);
    result = spill->given_up                     ? WAIT_GIVEN_UP
             : spill->states[b] == BUFFER_QUEUED ? WAIT_QUEUED
                                                 : WAIT_EMPTY;
    *bytes = spill->bytes[b];
    (void)pthread_mutex_unlock(&spill->lock);
    return result;
}

/* Writes the buffers as they come. Pending buffers are still QUEUED, so the next one is looked at
 * only while another of the circle is not. */
static cairn_err
write_data(struct cairn_spill *spill, struct cairn_file_queue *queue, bool *given_up)
{
    uint64_t begun = 0, ended = 0;
    int next = 0, oldest = 0;
    cairn_err err = CAIRN_OK;

    while (!err && ended < spill->data_bytes) {
        uint32_t under_way = cairn_file_queue_count(queue);
        enum buffer_wait found = WAIT_EMPTY;
        size_t bytes = 0;

        if (begun < spill->data_bytes && under_way < CAIRN_SPILL_BUFFERS)
            found = next_buffer(spill, next, under_way == 0, &bytes);
        if (found == WAIT_GIVEN_UP) {
            *given_up = true;
            break;
        }
        if (found == WAIT_QUEUED) {
            begin_buffer(spill, queue, next, begun, bytes);
            begun += bytes;
            next = (next + 1) % CAIRN_SPILL_BUFFERS;
        } else {
            err = end_buffer(spill, queue, oldest, &bytes);
            ended += bytes;
            oldest = (oldest + 1) % CAIRN_SPILL_BUFFERS;
        }
    }
    return err;
}

static cairn_err
write_all(struct cairn_spill *spill, bool *given_up)
{
    struct cairn_file_queue *queue = NULL;
    cairn_err err = cairn_file_write_at(spill->fd, 0, spill->header, spill->header_bytes);

    if (!err)
        err = cairn_file_queue_open(CAIRN_FILE_ENGINE_BEST, &queue);
    if (!err)
        err = write_data(spill, queue, given_up);
    cairn_file_queue_close(queue);
    if (err || *given_up)
        return err;
    return cairn_file_resize(spill->fd, spill->header_bytes + spill->data_bytes);
}

static bool
is_given_up(struct cairn_spill *spill)
{
    bool given_up;

    (void)pthread_mutex_lock(&spill->lock);
    given_up = spill->given_up;
    (void)pthread_mutex_unlock(&spill->lock);
    return given_up;
}

/* Reads `bytes` bytes at `offset` into the first buffer. CAIRN_CORRUPT: the file is cut. */
static cairn_err
read_back(struct cairn_spill *spill, int fd, uint64_t offset, size_t bytes)
{
    size_t got = 0;
    cairn_err err = cairn_file_read_at(fd, offset, spill->buffers[0], bytes, &got);

    return err ? err : got == bytes ? CAIRN_OK : CAIRN_CORRUPT;
}

/* Compares a run of the data section, which lies in a buffer, with its checksums. */
static bool
is_right(const struct cairn_spill *spill, const uint8_t *buffer, uint64_t at, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += CAIRN_BLOCK_BYTES) {
        size_t run = bytes - done < CAIRN_BLOCK_BYTES ? bytes - done : (size_t)CAIRN_BLOCK_BYTES;

        if (cairn_crc64(0, buffer + done, run) !=
            spill->block_crcs[(at + done) / CAIRN_BLOCK_BYTES])
            return false;
    }
    return true;
}

static size_t
next_run(uint64_t left)
{
    return left < CAIRN_SPILL_BUFFER_BYTES ? (size_t)left : (size_t)CAIRN_SPILL_BUFFER_BYTES;
}

/* Reads the data section with several runs under way, and compares each. */
static cairn_err
compare_data(struct cairn_spill *spill, struct cairn_file_queue *queue, int fd, bool *given_up)
{
    uint64_t begun = 0, ended = 0;
    int next = 0, oldest = 0;
    cairn_err err = CAIRN_OK;

    while (!err && !*given_up && ended < spill->data_bytes) {
        size_t bytes, got = 0;

        if (begun < spill->data_bytes && cairn_file_queue_count(queue) < CAIRN_SPILL_BUFFERS) {
            bytes = next_run(spill->data_bytes - begun);
            cairn_file_queue_read(queue, fd, spill->header_bytes + begun, spill->buffers[next],
                                  whole_bytes(bytes));
            begun += bytes;
            next = (next + 1) % CAIRN_SPILL_BUFFERS;
            continue;
        }
        bytes = next_run(spill->data_bytes - ended);
        err = cairn_file_queue_pop(queue, &got);
        if (!err && (got < bytes || !is_right(spill, spill->buffers[oldest], ended, bytes)))
            err = CAIRN_CORRUPT;
        ended += bytes;
        oldest = (oldest + 1) % CAIRN_SPILL_BUFFERS;
        *given_up = is_given_up(spill);
        wake_caller(spill);
    }
    return err;
}

/* Compares the whole file with what was written. Has the kernel drop its copy first, so that the
 * bytes come from the disk; all buffers are free by now. */
static cairn_err
verify_part(struct cairn_spill *spill, bool *given_up)
{
    struct cairn_file_queue *queue = NULL;
    int fd = -1;
    cairn_err err = cairn_file_open(spill->dir_fd, spill->part_name, CAIRN_FILE_READ_DIRECT, &fd);

    if (err == CAIRN_INVAL)
        err = cairn_file_open(spill->dir_fd, spill->part_name, CAIRN_FILE_READ, &fd);
    if (err)
        return err == CAIRN_NOT_FOUND ? CAIRN_IO : err;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    for (size_t at = 0; err == CAIRN_OK && at < spill->header_bytes;) {
        size_t bytes = next_run(spill->header_bytes - at);

        err = read_back(spill, fd, at, bytes);
        if (err == CAIRN_OK && memcmp(spill->buffers[0], spill->header + at, bytes) != 0)
            err = CAIRN_CORRUPT;
        at += bytes;
    }
    if (!err)
        err = cairn_file_queue_open(CAIRN_FILE_ENGINE_BEST, &queue);
    if (!err)
        err = compare_data(spill, queue, fd, given_up);
    cairn_file_queue_close(queue);
    (void)cairn_file_close(fd); /* only read */
    if (err == CAIRN_CORRUPT)
        CAIRN_LOG_AT(ERROR,
                     "spill: %s: the disk returns other bytes than were written; replace it, or "
                     "set another spill_dir",
                     spill->name);
    return err;
}

static void *
run(void *context)
{
    struct cairn_spill *spill = context;
    bool given_up = false, renamed = false, last;
    cairn_err err = write_all(spill, &given_up), close_err;

    if (err == CAIRN_OK && !given_up)
        err = cairn_file_sync(spill->fd);
    close_err = cairn_file_close(spill->fd);
    spill->fd = -1;
    if (err == CAIRN_OK && !given_up)
        err = close_err;
    if (err == CAIRN_OK && !given_up)
        given_up = is_given_up(spill);
    if (err == CAIRN_OK && !given_up)
        err = verify_part(spill, &given_up);
    if (err == CAIRN_OK && !given_up) {
        err = cairn_file_rename(spill->dir_fd, spill->part_name, spill->name);
        renamed = err == CAIRN_OK;
    }
    if (renamed)
        err = cairn_file_sync(spill->dir_fd);
    else
        (void)!cairn_file_unlink(spill->dir_fd, spill->part_name); /* it has said what it met */
    /* Done and released in one step: a caller that has seen the end is the one that frees. */
    (void)pthread_mutex_lock(&spill->lock);
    spill->err = err;
    spill->os_error = err ? cairn_file_errno_take() : 0;
    spill->done = true;
    wake_caller(spill);
    last = --spill->holders == 0;
    (void)pthread_mutex_unlock(&spill->lock);
    if (last)
        spill_free(spill);
    return NULL;
}

/* ---- the caller ---- */

/* Makes the temporary file and reserves its space. */
static cairn_err
create_part(struct cairn_spill *spill, int *fd)
{
    uint64_t padded =
        (spill->data_bytes + DIRECT_ALIGN_BYTES - 1) / DIRECT_ALIGN_BYTES * DIRECT_ALIGN_BYTES;
    cairn_err err, close_err;

    err = cairn_file_open(spill->dir_fd, spill->part_name, CAIRN_FILE_CREATE_DIRECT, fd);
    if (err == CAIRN_INVAL)
        err = cairn_file_open(spill->dir_fd, spill->part_name, CAIRN_FILE_CREATE, fd);
    if (err == CAIRN_NOT_FOUND)
        return CAIRN_IO; /* the directory itself was removed */
    if (err)
        return err;
    err = cairn_file_reserve(*fd, spill->header_bytes + padded);
    if (err == CAIRN_OK)
        return CAIRN_OK;
    close_err = cairn_file_close(*fd);
    (void)close_err; /* the reserve has failed already */
    *fd = -1;
    (void)!cairn_file_unlink(spill->dir_fd, spill->part_name);
    return err;
}

/* Memory, event and names: all that needs no disk. */
static cairn_err
prepare(struct cairn_spill *spill, int dir_fd, const void *header)
{
    spill->header = aligned_alloc(DIRECT_ALIGN_BYTES, spill->header_bytes);
    spill->block_crcs = calloc((size_t)spill->block_count + 1, sizeof(*spill->block_crcs));
    if (!spill->header || !spill->block_crcs)
        return CAIRN_NOMEM;
    for (int b = 0; b < CAIRN_SPILL_BUFFERS; b++) {
        spill->buffers[b] = aligned_alloc(DIRECT_ALIGN_BYTES, CAIRN_SPILL_BUFFER_BYTES);
        if (!spill->buffers[b])
            return CAIRN_NOMEM;
    }
    memcpy(spill->header, header, spill->header_bytes);
    spill->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    spill->dir_fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
    if (spill->event_fd < 0 || spill->dir_fd < 0) {
        CAIRN_LOG_AT(
            ERROR, "spill: cannot open another descriptor errno=%d; raise the limit of open files",
            errno);
        return CAIRN_IO;
    }
    return CAIRN_OK;
}

/* Starts the thread, detached, with all signals blocked: they belong to the caller's threads. */
static cairn_err
start_thread(struct cairn_spill *spill)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    int failed;

    (void)sigfillset(&all);
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, &attributes, run, spill);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attributes);
    if (failed)
        CAIRN_LOG_AT(ERROR, "spill: cannot start a thread errno=%d; raise the limit of processes",
                     failed);
    return failed ? CAIRN_NOMEM : CAIRN_OK;
}

cairn_err
cairn_spill_open(int dir_fd, const char *name, const void *header, size_t header_bytes,
                 uint64_t data_bytes, struct cairn_spill **out)
{
    struct cairn_spill *spill;
    cairn_err err;

    if (header_bytes == 0 || header_bytes % CAIRN_UNIVERSAL_ALIGN_BYTES != 0 ||
        header_bytes > CAIRN_UNIVERSAL_HEADER_BYTES_MAX + 8 || data_bytes > INT64_MAX / 2 ||
        name[0] == '\0' || strchr(name, '/') || strlen(name) >= CAIRN_UNIVERSAL_NAME_BYTES_MAX)
        return CAIRN_INVAL;
    spill = calloc(1, sizeof(*spill));
    if (!spill)
        return CAIRN_NOMEM;
    spill->dir_fd = spill->fd = spill->event_fd = -1;
    spill->header_bytes = header_bytes;
    spill->data_bytes = data_bytes;
    spill->block_count = data_bytes / CAIRN_BLOCK_BYTES + (data_bytes % CAIRN_BLOCK_BYTES != 0);
    spill->holders = 2;
    memcpy(spill->name, name, strlen(name) + 1);
    (void)snprintf(spill->part_name, sizeof(spill->part_name), "%s.part", name);
    (void)pthread_mutex_init(&spill->lock, NULL);
    (void)pthread_cond_init(&spill->work, NULL);
    err = prepare(spill, dir_fd, header);
    if (err == CAIRN_OK)
        err = create_part(spill, &spill->fd);
    if (err)
        goto failed;
    err = start_thread(spill);
    if (err)
        goto failed;
    *out = spill;
    return CAIRN_OK;
failed:
    if (spill->fd >= 0) {
        (void)cairn_file_close(spill->fd);
        (void)!cairn_file_unlink(spill->dir_fd, spill->part_name);
    }
    spill_free(spill);
    return err;
}

int
cairn_spill_event_fd(const struct cairn_spill *spill)
{
    return spill->event_fd;
}

cairn_err
cairn_spill_acquire(struct cairn_spill *spill, uint8_t **buffer, uint64_t *offset, size_t *bytes)
{
    int b = (int)(spill->committed_bytes / CAIRN_SPILL_BUFFER_BYTES % CAIRN_SPILL_BUFFERS);
    uint64_t left = spill->data_bytes - spill->committed_bytes;
    cairn_err err;

    clear_event(spill);
    (void)pthread_mutex_lock(&spill->lock);
    err = spill->err;
    if (err == CAIRN_OK && left == 0)
        err = CAIRN_NOT_FOUND;
    else if (err == CAIRN_OK && spill->states[b] == BUFFER_QUEUED)
        err = CAIRN_AGAIN;
    if (err == CAIRN_OK)
        spill->states[b] = BUFFER_FILLING;
    (void)pthread_mutex_unlock(&spill->lock);
    if (err)
        return err;
    *buffer = spill->buffers[b];
    *offset = spill->committed_bytes;
    *bytes = left < CAIRN_SPILL_BUFFER_BYTES ? (size_t)left : (size_t)CAIRN_SPILL_BUFFER_BYTES;
    return CAIRN_OK;
}

cairn_err
cairn_spill_commit(struct cairn_spill *spill)
{
    int b = (int)(spill->committed_bytes / CAIRN_SPILL_BUFFER_BYTES % CAIRN_SPILL_BUFFERS);
    uint64_t left = spill->data_bytes - spill->committed_bytes;
    size_t bytes =
        left < CAIRN_SPILL_BUFFER_BYTES ? (size_t)left : (size_t)CAIRN_SPILL_BUFFER_BYTES;
    cairn_err err;

    (void)pthread_mutex_lock(&spill->lock);
    err = spill->err;
    if (err == CAIRN_OK && spill->states[b] != BUFFER_FILLING)
        err = CAIRN_INVAL;
    if (err == CAIRN_OK) {
        spill->states[b] = BUFFER_QUEUED;
        spill->bytes[b] = bytes;
        (void)pthread_cond_signal(&spill->work);
    }
    (void)pthread_mutex_unlock(&spill->lock);
    if (err == CAIRN_OK)
        spill->committed_bytes += bytes;
    return err;
}

cairn_err
cairn_spill_finish(struct cairn_spill *spill, uint64_t **block_crcs, uint64_t *block_count)
{
    cairn_err err;

    clear_event(spill);
    (void)pthread_mutex_lock(&spill->lock);
    err = spill->err;
    if (err == CAIRN_OK && (spill->committed_bytes < spill->data_bytes || spill->taken))
        err = CAIRN_INVAL;
    else if (err == CAIRN_OK && !spill->done)
        err = CAIRN_AGAIN;
    (void)pthread_mutex_unlock(&spill->lock);
    if (err)
        return err;
    spill->taken = true;
    *block_crcs = spill->block_count > 0 ? spill->block_crcs : NULL;
    *block_count = spill->block_count;
    if (spill->block_count > 0)
        spill->block_crcs = NULL;
    return CAIRN_OK;
}

int
cairn_spill_os_error(struct cairn_spill *spill)
{
    int code;

    (void)pthread_mutex_lock(&spill->lock);
    code = spill->os_error;
    (void)pthread_mutex_unlock(&spill->lock);
    return code;
}

void
cairn_spill_close(struct cairn_spill *spill)
{
    bool last;

    if (!spill)
        return;
    (void)pthread_mutex_lock(&spill->lock);
    spill->given_up = true;
    (void)pthread_cond_signal(&spill->work);
    last = --spill->holders == 0;
    (void)pthread_mutex_unlock(&spill->lock);
    if (last)
        spill_free(spill);
}

/* ---- reading ---- */

static size_t
block_bytes(const struct cairn_universal_file *file, uint64_t block)
{
    uint64_t left = file->data_bytes - block * CAIRN_BLOCK_BYTES;

    return left < CAIRN_BLOCK_BYTES ? (size_t)left : (size_t)CAIRN_BLOCK_BYTES;
}

cairn_err
cairn_spill_check(int dir_fd, const struct cairn_universal_file *file, uint64_t first,
                  uint32_t count, uint32_t *bad)
{
    uint8_t *bytes;
    int fd = -1;
    cairn_err err;

    *bad = 0;
    if (count > CAIRN_SPILL_CHECK_MAX || first > file->block_count ||
        count > file->block_count - first || (count && !file->block_crcs))
        return CAIRN_INVAL;
    bytes = malloc(CAIRN_BLOCK_BYTES);
    err = bytes ? cairn_file_open(dir_fd, file->name, CAIRN_FILE_READ, &fd) : CAIRN_NOMEM;
    if (!err)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    for (uint32_t i = 0; !err && i < count; i++) {
        size_t got = 0, wanted = block_bytes(file, first + i);

        err = cairn_file_read_at(fd, file->data_offset + (first + i) * CAIRN_BLOCK_BYTES, bytes,
                                 wanted, &got);
        if (!err && (got != wanted || cairn_crc64(0, bytes, wanted) != file->block_crcs[first + i]))
            *bad |= UINT32_C(1) << i;
    }
    if (!err)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* leave the cache to others */
    (void)cairn_file_close(fd);                             /* only read */
    free(bytes);
    return err;
}

/* Reads one block whole and checks it. */
static cairn_err
read_block(int dir_fd, int fd, const struct cairn_universal_file *file, uint64_t block,
           uint8_t *bytes, size_t bytes_len)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    size_t got = 0;
    cairn_err err = cairn_file_read_at(fd, file->data_offset + block * CAIRN_BLOCK_BYTES, bytes,
                                       bytes_len, &got);

    if (err)
        return err;
    if (got == bytes_len && cairn_crc64(0, bytes, bytes_len) == file->block_crcs[block])
        return CAIRN_OK;
    cairn_file_path(dir_fd, file->name, path);
    CAIRN_LOG_AT(ERROR,
                 "spill: damaged path=%s block=%" PRIu64 " byte=%" PRIu64
                 ": %s; use another generation",
                 path, block, file->data_offset + block * CAIRN_BLOCK_BYTES,
                 got < bytes_len ? "the file is cut" : "the checksum differs");
    return CAIRN_CORRUPT;
}

cairn_err
cairn_spill_read(int dir_fd, const struct cairn_universal_file *file, uint64_t offset, void *out,
                 size_t bytes_len)
{
    uint8_t *partial = NULL, *to = out;
    uint64_t end = offset + bytes_len;
    int fd = -1;
    cairn_err err;

    if (offset > file->data_bytes || bytes_len > file->data_bytes - offset ||
        (bytes_len > 0 && !file->block_crcs))
        return CAIRN_INVAL;
    if (bytes_len == 0)
        return CAIRN_OK;
    err = cairn_file_open(dir_fd, file->name, CAIRN_FILE_READ, &fd);
    for (uint64_t at = offset; err == CAIRN_OK && at < end;) {
        uint64_t block = at / CAIRN_BLOCK_BYTES, start = block * CAIRN_BLOCK_BYTES;
        size_t bytes = block_bytes(file, block);
        size_t skip = (size_t)(at - start);
        size_t wanted = end - start < bytes ? (size_t)(end - start) - skip : bytes - skip;

        if (wanted == bytes) {
            err = read_block(dir_fd, fd, file, block, to, bytes);
        } else { /* the ends may cut a block: it is checked as a whole all the same */
            if (!partial)
                partial = malloc(CAIRN_BLOCK_BYTES);
            err = partial ? read_block(dir_fd, fd, file, block, partial, bytes) : CAIRN_NOMEM;
            if (err == CAIRN_OK)
                memcpy(to, partial + skip, wanted);
        }
        to += wanted;
        at += wanted;
    }
    (void)cairn_file_close(fd); /* only read */
    free(partial);
    return err;
}
