/*
 * base/ring.h - a bounded queue of 64-byte records in memory shared by processes.
 *
 * One reader, one or many writers. A writer never waits, locks, allocates, makes a system call or
 * aborts: a full ring drops and counts the new record. Records of one writer are read in their
 * order.
 *
 * Memory (little-endian, 64-byte aligned; ring.c specifies the bytes): a header with magic,
 * version, record count and the reader's wish; the writers' position; the reader's position; the
 * count of drops; one 64-bit turn per slot; the slots. Each side reads the record count once, at
 * open, checks it against the size of its own mapping, and uses its private copy: so later writes
 * by the other side cannot lead outside the mapping. The mapping must not be able to shrink (a
 * memfd sealed with F_SEAL_SHRINK).
 *
 * A writer killed between claiming and publishing a slot leaves a hole that stops the reader. Once
 * the reader knows that all writers are dead it goes on with cairn_ring_skip.
 */
#ifndef CAIRN_BASE_RING_H
#define CAIRN_BASE_RING_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAIRN_RING_RECORD_BYTES = 64, CAIRN_RING_RECORDS_MIN = 2, CAIRN_RING_RECORDS_MAX = 1 << 24 };

struct cairn_ring_header; /* the shared bytes */

/* One opening of a ring, by a writer or the reader. A plain value without an end function; fields
 * are private. */
struct cairn_ring {
    struct cairn_ring_header *header;
    void *turns;
    uint8_t *slots;
    uint64_t mask;     /* record count - 1 */
    uint64_t position; /* the reader's */
};

/* Bytes that a ring of record_count records needs; 0 unless it is a power of two within the bounds.
 */
size_t cairn_ring_bytes(uint32_t record_count);

/* Makes an empty ring in memory_bytes of zeroed or used memory that nobody has open. CAIRN_INVAL
 * for a wrong count, memory that is too small or not aligned to 64 bytes. */
CAIRN_MUST_CHECK cairn_err cairn_ring_format(void *memory, size_t memory_bytes,
                                             uint32_t record_count);

/* Opens a ring for writing or reading. The mapping is borrowed while the ring is used. A reader
 * goes on where the last one stopped. CAIRN_CORRUPT if header and mapping disagree, CAIRN_VERSION.
 * Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_ring_open(void *memory, size_t memory_bytes,
                                           struct cairn_ring *out);

/*
 * Appends record[CAIRN_RING_RECORD_BYTES]. False: dropped and counted, because the ring was full
 * or, beyond 64 lost races, contended. Thread: any number of writers, in any processes; one `struct
 * cairn_ring` may be shared by the threads of a process. Wait-free.
 */
bool cairn_ring_write(struct cairn_ring *ring, const void *record);

/* Takes up to records_max records out into records[records_max * 64 bytes] and returns their
 * number. The contents are the writers' and are not to be trusted. Thread: the one reader.
 * Wait-free. */
uint32_t cairn_ring_read(struct cairn_ring *ring, void *records, uint32_t records_max);

/* Records claimed and not yet read, published or not; never above the record count. Thread: the
 * reader. */
uint64_t cairn_ring_waiting(const struct cairn_ring *ring);

/* True until this reader, or one before it, has taken a record. Thread: the reader. */
bool cairn_ring_is_unread(const struct cairn_ring *ring);

/* Steps over an unpublished slot at the reader's position; false if there is none. Only when every
 * writer is dead: a live one would later publish into a slot that is no longer its own. */
bool cairn_ring_skip(struct cairn_ring *ring);

/* Records dropped since the ring was formatted. Thread: any. */
uint64_t cairn_ring_dropped(const struct cairn_ring *ring);

/*
 * A word in the other direction: the reader's wish, which writers read when they like. Its meaning
 * is theirs; 0 in a new ring. Thread: any. Wait-free.
 */
void cairn_ring_set_wish(struct cairn_ring *ring, uint64_t wish);
uint64_t cairn_ring_wish(const struct cairn_ring *ring);

#endif
