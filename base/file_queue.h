/*
 * base/file_queue.h - several writes or reads of large files at once.
 *
 * A disk that gets one request at a time stays far below its speed. A queue passes several to the
 * kernel by io_uring, or without it to threads, and gives their results in the order of pushing.
 *
 * If an engine did not finish a request in full, pop makes it again through base/file.h. So errors,
 * their texts and the fallback from direct I/O are the same with each engine. If a test has
 * replaced the table of base/file.h, all requests go through that table.
 *
 * Thread: one per queue. Push and pop may block on the disk.
 */
#ifndef CAIRN_BASE_FILE_QUEUE_H
#define CAIRN_BASE_FILE_QUEUE_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_FILE_QUEUE_DEPTH = 4,           /* requests under way */
    CAIRN_FILE_QUEUE_BYTES_MAX = 64 << 20 /* of one request */
};

enum cairn_file_engine {
    CAIRN_FILE_ENGINE_BEST,    /* the first of the next that works here */
    CAIRN_FILE_ENGINE_RING,    /* io_uring */
    CAIRN_FILE_ENGINE_THREADS, /* one per request */
    CAIRN_FILE_ENGINE_CALLS    /* one request after the other, in the caller's thread */
};

struct cairn_file_queue;

/* "io_uring", "threads" or "calls". */
const char *cairn_file_engine_name(enum cairn_file_engine engine);

/* The engine of this process; why[why_bytes] gets the reason if it is not io_uring, else "". Asks
 * the kernel once. Thread: any. */
enum cairn_file_engine cairn_file_engine_best(char *why, size_t why_bytes);

/* Opens an empty queue; falls back to the next engine if one does not work here. CAIRN_NOMEM. The
 * caller ends it with cairn_file_queue_close. */
CAIRN_MUST_CHECK cairn_err cairn_file_queue_open(enum cairn_file_engine engine,
                                                 struct cairn_file_queue **out);

/* The engine that it has. */
enum cairn_file_engine cairn_file_queue_engine(const struct cairn_file_queue *queue);

/* Waits for pending requests and drops their results. NULL is allowed. */
void cairn_file_queue_close(struct cairn_file_queue *queue);

/* Requests that have not been popped. */
uint32_t cairn_file_queue_count(const struct cairn_file_queue *queue);

/*
 * Begins a request of 1 to CAIRN_FILE_QUEUE_BYTES_MAX bytes at `at`. `bytes` belongs to the queue
 * until the pop. Direct I/O needs multiples of 4096 for length, place and memory. At most
 * CAIRN_FILE_QUEUE_DEPTH requests may be pending.
 */
void cairn_file_queue_write(struct cairn_file_queue *queue, int fd, uint64_t at, const void *bytes,
                            size_t bytes_len);
void cairn_file_queue_read(struct cairn_file_queue *queue, int fd, uint64_t at, void *bytes,
                           size_t bytes_len);

/* Waits for pending requests and drops their results. */
void cairn_file_queue_drop(struct cairn_file_queue *queue);

/* Waits for the oldest request. *got: bytes read (less than its length only at the end of the file)
 * or written. Errors are those of cairn_file_write_at and cairn_file_read_at. */
CAIRN_MUST_CHECK cairn_err cairn_file_queue_pop(struct cairn_file_queue *queue, size_t *got);

#endif
