/*
 * base/file_queue.h - several writes or reads of large files under way at once.
 *
 * A disk answers one request after the other far below its speed. A queue hands several to the
 * kernel by io_uring, or where that lacks to threads that make the calls, and gives their results
 * back in the order in which they were pushed.
 *
 * A request that an engine did not finish in full is made again by base/file.h when it is popped.
 * So errors, their texts and the way round refused direct I/O are the same with each engine. Where
 * tests have replaced the table of base/file.h, all requests go through that table.
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

/* The engine of this process, and in why[why_bytes] the reason where it is not io_uring, else "".
 * Asks the kernel once. Thread: any. */
enum cairn_file_engine cairn_file_engine_best(char *why, size_t why_bytes);

/* Opens an empty queue; an engine that does not work here is replaced by the next one. CAIRN_NOMEM.
 * The caller ends it with cairn_file_queue_close. */
CAIRN_MUST_CHECK cairn_err cairn_file_queue_open(enum cairn_file_engine engine,
                                                 struct cairn_file_queue **out);

/* The engine that it has. */
enum cairn_file_engine cairn_file_queue_engine(const struct cairn_file_queue *queue);

/* Waits for what is under way, whose results are lost. NULL is allowed. */
void cairn_file_queue_close(struct cairn_file_queue *queue);

/* Requests that have not been popped. */
uint32_t cairn_file_queue_count(const struct cairn_file_queue *queue);

/*
 * Begins a request of 1 to CAIRN_FILE_QUEUE_BYTES_MAX bytes at `at`. `bytes` is the queue's until
 * the request is popped, and its length and place are what the file takes (direct I/O: multiples of
 * 4096). The queue must have fewer than CAIRN_FILE_QUEUE_DEPTH requests.
 */
void cairn_file_queue_write(struct cairn_file_queue *queue, int fd, uint64_t at, const void *bytes,
                            size_t bytes_len);
void cairn_file_queue_read(struct cairn_file_queue *queue, int fd, uint64_t at, void *bytes,
                           size_t bytes_len);

/* Waits for what is under way; its results are lost. */
void cairn_file_queue_drop(struct cairn_file_queue *queue);

/* Waits for the oldest request. *got is what it has read, less than its length only at the end of
 * the file, or written. Errors are those of cairn_file_write_at and cairn_file_read_at. */
CAIRN_MUST_CHECK cairn_err cairn_file_queue_pop(struct cairn_file_queue *queue, size_t *got);

#endif
