/*
 * base/file_ring.h - io_uring under base/file_queue.h: requests by number, in any order.
 *
 * Without liburing, or if the kernel or a sandbox has no io_uring, open fails. Thread: one per
 * ring.
 */
#ifndef CAIRN_BASE_FILE_RING_H
#define CAIRN_BASE_FILE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct cairn_file_ring;

/* A ring for `depth` requests; NULL with the reason in why[why_bytes]. Ended by close. */
struct cairn_file_ring *cairn_file_ring_open(uint32_t depth, char *why, size_t why_bytes);
void
cairn_file_ring_close(struct cairn_file_ring *ring); /* NULL is allowed; nothing is under way */

/* Begins a read or write; the ring must have room. */
void cairn_file_ring_begin(struct cairn_file_ring *ring, uint32_t number, bool is_write, int fd,
                           uint64_t at, void *bytes, size_t bytes_len);

/* Waits for any request: its number, and in *result bytes or -errno. */
uint32_t cairn_file_ring_wait(struct cairn_file_ring *ring, ssize_t *result);

#endif
