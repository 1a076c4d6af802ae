/*
 * snapshot/slot.h - self-describing records in shared memory that survive the death of their
 * writer.
 *
 * A store divides a piece of an arena into slots; a slot holds one record (opaque bytes: the
 * agent's own packed header and manifest) in two copies. The writer always replaces the older one,
 * so a reader finds the newest complete record, even if a kill -9 hit the writer. slot.c has the
 * exact format and the invariants.
 *
 * One writer per store at a time; readers may be in other processes, also while it writes.
 */
#ifndef CAIRN_SNAPSHOT_SLOT_H
#define CAIRN_SNAPSHOT_SLOT_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAIRN_SLOTS_MAX = 1024 };

/* A mapped store: a plain value that borrows the memory. */
struct cairn_slots {
    uint8_t *base;
    uint32_t slot_count;
    uint32_t reserved;
    uint64_t payload_bytes_max; /* of one record */
    uint64_t copy_bytes;        /* of one copy, its header and padding included */
};

struct cairn_slot_info {
    uint64_t sequence; /* 1 for the first record of a slot, then growing by 1 */
    uint64_t payload_bytes;
    bool damaged; /* the other copy was complete and fails its checksum: it may have been newer */
};

/* Bytes of memory that a store needs; 0 when the arguments are out of bounds. Pure. */
uint64_t cairn_slot_memory_bytes(uint32_t slot_count, uint64_t payload_bytes_max);

/*
 * Makes an empty store in memory[memory_bytes] (64-byte aligned, borrowed as long as the store is
 * used), which loses its contents. CAIRN_INVAL if it is too small or misaligned or an argument is
 * out of bounds. If the maker dies half-way, cairn_slot_attach refuses the memory.
 */
CAIRN_MUST_CHECK cairn_err cairn_slot_format(void *memory, uint64_t memory_bytes,
                                             uint32_t slot_count, uint64_t payload_bytes_max,
                                             struct cairn_slots *out);

/*
 * Finds the store that another process made in memory[memory_bytes]. CAIRN_NOT_FOUND: all zero, no
 * store was ever made; CAIRN_VERSION: made by another version; CAIRN_CORRUPT: anything else.
 */
CAIRN_MUST_CHECK cairn_err cairn_slot_attach(void *memory, uint64_t memory_bytes,
                                             struct cairn_slots *out);

/*
 * Replaces the record of slot `slot` by payload[payload_bytes] (0 is allowed). The old record stays
 * readable until the new one is complete, and its bytes one record longer. A damaged copy is
 * replaced first; if both are damaged, no trace of them is left. CAIRN_INVAL: no such slot, or too
 * long. Does not allocate.
 */
CAIRN_MUST_CHECK cairn_err cairn_slot_store(const struct cairn_slots *slots, uint32_t slot,
                                            const void *payload, uint64_t payload_bytes);

/*
 * Reads the newest complete record of a slot into payload[payload_capacity_bytes] and checks it;
 * payload NULL only checks it, in place. CAIRN_NOT_FOUND: nothing was ever stored (or only a first
 * store begun, or the slot was cleared); CAIRN_CORRUPT: no copy passes its check; CAIRN_FULL: the
 * record is longer than the buffer; CAIRN_AGAIN: a live writer replaced both copies during the
 * read, several times over. *out is written on success alone; the buffer's contents are undefined
 * after a failure.
 */
CAIRN_MUST_CHECK cairn_err cairn_slot_load(const struct cairn_slots *slots, uint32_t slot,
                                           void *payload, uint64_t payload_capacity_bytes,
                                           struct cairn_slot_info *out);

/*
 * Empties a slot: both copies are marked, the older first, so that a death between leaves the
 * newest record. CAIRN_INVAL: no such slot.
 */
CAIRN_MUST_CHECK cairn_err cairn_slot_clear(const struct cairn_slots *slots, uint32_t slot);

#endif
