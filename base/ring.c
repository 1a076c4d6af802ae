/*
 * base/ring.c - the ring of 64-byte records in shared memory.
 *
 * Shared bytes, little-endian (the only machines we run on), each group on a cache line of its own:
 *     0  magic "CAIRNRNG"   8  version u32   12  record bytes u32   16  record count u32 (n)
 *    24  the reader's wish u64
 *    64  head u64: the next position that a writer claims
 *   128  tail u64: the next position that the reader takes, for a later reader
 *   192  dropped u64
 *   256  turn u64 [n]
 *   256 + 8 n, rounded up to 64: slot [n] of 64 bytes
 * Positions grow for ever. Position p uses slot p mod n, and the slot's turn gives its state:
 *   turn = p        free: the writer that moves head from p to p + 1 has claimed it and fills it
 *   turn = p + 1    published: the reader may take it
 *   turn = p + n    taken: free for position p + n
 * The ring is full, and drops the newest record, while the turn is older than the head that would
 * claim its slot. The algorithm is Vyukov's bounded multi-producer queue, with one consumer and
 * bounded retries.
 */
#include "base/ring.h"

#include <stdatomic.h>
#include <string.h>

enum { VERSION = 1, LINE_BYTES = 64, RACES_MAX = 64 };
#define MAGIC UINT64_C(0x474e524e52494143) /* "CAIRNRNG" */

struct cairn_ring_header {
    uint64_t magic;
    uint32_t version;
    uint32_t record_bytes;
    uint32_t record_count;
    uint32_t unused;
    _Atomic uint64_t wish;
    uint8_t room[32];
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint64_t dropped;
};

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "atomics in shared memory must be free of locks");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "an atomic word is a word");
_Static_assert(sizeof(struct cairn_ring_header) == 256, "the header is four cache lines");

static size_t
turns_bytes(uint32_t record_count)
{
    return ((size_t)record_count * sizeof(uint64_t) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

size_t
cairn_ring_bytes(uint32_t record_count)
{
    if (record_count < CAIRN_RING_RECORDS_MIN || record_count > CAIRN_RING_RECORDS_MAX ||
        (record_count & (record_count - 1)) != 0)
        return 0;
    return sizeof(struct cairn_ring_header) + turns_bytes(record_count) +
           (size_t)record_count * CAIRN_RING_RECORD_BYTES;
}

static bool
is_aligned(const void *memory)
{
    return memory && (uintptr_t)memory % LINE_BYTES == 0;
}

static _Atomic uint64_t *
turn_of(const struct cairn_ring *ring, uint64_t position)
{
    return (_Atomic uint64_t *)ring->turns + (position & ring->mask);
}

static uint8_t *
slot_of(const struct cairn_ring *ring, uint64_t position)
{
    return ring->slots + (position & ring->mask) * CAIRN_RING_RECORD_BYTES;
}

static void
place(void *memory, uint32_t record_count, struct cairn_ring *ring)
{
    uint8_t *bytes = memory;

    ring->header = memory;
    ring->turns = bytes + sizeof(struct cairn_ring_header);
    ring->slots = bytes + sizeof(struct cairn_ring_header) + turns_bytes(record_count);
    ring->mask = record_count - 1;
    ring->position = 0;
}

cairn_err
cairn_ring_format(void *memory, size_t memory_bytes, uint32_t record_count)
{
    size_t needed_bytes = cairn_ring_bytes(record_count);
    struct cairn_ring ring;

    if (needed_bytes == 0 || memory_bytes < needed_bytes || !is_aligned(memory))
        return CAIRN_INVAL;
    memset(memory, 0, sizeof(struct cairn_ring_header));
    place(memory, record_count, &ring);
    for (uint64_t i = 0; i < record_count; i++)
        atomic_store_explicit(turn_of(&ring, i), i, memory_order_relaxed);
    ring.header->version = VERSION;
    ring.header->record_bytes = CAIRN_RING_RECORD_BYTES;
    ring.header->record_count = record_count;
    atomic_thread_fence(memory_order_release);
    ring.header->magic = MAGIC;
    return CAIRN_OK;
}

/* Finds where reading goes on. The last reader may have died between taking a record and moving
 * tail, and the header is not trusted: searches at most one round. */
static void
find_position(struct cairn_ring *ring)
{
    uint64_t count = ring->mask + 1;
    uint64_t head = atomic_load_explicit(&ring->header->head, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&ring->header->tail, memory_order_acquire);

    if (head - tail > count)
        tail = head - count;
    while (tail != head) {
        uint64_t turn = atomic_load_explicit(turn_of(ring, tail), memory_order_acquire);

        if ((int64_t)(turn - tail) < (int64_t)count)
            break;
        tail++;
    }
    ring->position = tail;
}

cairn_err
cairn_ring_open(void *memory, size_t memory_bytes, struct cairn_ring *out)
{
    struct cairn_ring_header *header = memory;
    uint32_t record_count;
    size_t needed_bytes;

    if (!is_aligned(memory) || memory_bytes < sizeof *header || header->magic != MAGIC)
        return CAIRN_CORRUPT;
    if (header->version != VERSION)
        return CAIRN_VERSION;
    record_count = *(volatile uint32_t *)&header->record_count; /* read once, then checked */
    needed_bytes = cairn_ring_bytes(record_count);
    if (needed_bytes == 0 || needed_bytes > memory_bytes ||
        header->record_bytes != CAIRN_RING_RECORD_BYTES)
        return CAIRN_CORRUPT;
    place(memory, record_count, out);
    find_position(out);
    return CAIRN_OK;
}

static void
publish(struct cairn_ring *ring, uint64_t position, const void *record)
{
    memcpy(slot_of(ring, position), record, CAIRN_RING_RECORD_BYTES);
    atomic_store_explicit(turn_of(ring, position), position + 1, memory_order_release);
}

bool
cairn_ring_write(struct cairn_ring *ring, const void *record)
{
    struct cairn_ring_header *header = ring->header;
    uint64_t head = atomic_load_explicit(&header->head, memory_order_relaxed);

    for (int races = 0; races < RACES_MAX; races++) {
        uint64_t turn = atomic_load_explicit(turn_of(ring, head), memory_order_acquire);

        if (turn == head) {
            if (atomic_compare_exchange_weak_explicit(&header->head, &head, head + 1,
                                                      memory_order_relaxed, memory_order_relaxed)) {
                publish(ring, head, record);
                return true;
            }
        } else if ((int64_t)(turn - head) < 0) {
            break; /* full */
        } else {
            head = atomic_load_explicit(&header->head, memory_order_relaxed);
        }
    }
    atomic_fetch_add_explicit(&header->dropped, 1, memory_order_relaxed);
    return false;
}

/* Gives the slot at the reader's position back to the writers. */
static void
release_slot(struct cairn_ring *ring)
{
    atomic_store_explicit(turn_of(ring, ring->position), ring->position + ring->mask + 1,
                          memory_order_release);
    ring->position++;
}

uint32_t
cairn_ring_read(struct cairn_ring *ring, void *records, uint32_t records_max)
{
    uint32_t count = 0;

    while (count < records_max &&
           atomic_load_explicit(turn_of(ring, ring->position), memory_order_acquire) ==
               ring->position + 1) {
        memcpy((uint8_t *)records + (size_t)count * CAIRN_RING_RECORD_BYTES,
               slot_of(ring, ring->position), CAIRN_RING_RECORD_BYTES);
        release_slot(ring);
        count++;
    }
    if (count)
        atomic_store_explicit(&ring->header->tail, ring->position, memory_order_release);
    return count;
}

uint64_t
cairn_ring_waiting(const struct cairn_ring *ring)
{
    uint64_t waiting =
        atomic_load_explicit(&ring->header->head, memory_order_acquire) - ring->position;

    return waiting > ring->mask + 1 ? ring->mask + 1 : waiting;
}

bool
cairn_ring_is_unread(const struct cairn_ring *ring)
{
    return ring->position == 0;
}

bool
cairn_ring_skip(struct cairn_ring *ring)
{
    if (cairn_ring_waiting(ring) == 0 ||
        atomic_load_explicit(turn_of(ring, ring->position), memory_order_acquire) ==
            ring->position + 1)
        return false;
    release_slot(ring);
    atomic_store_explicit(&ring->header->tail, ring->position, memory_order_release);
    return true;
}

uint64_t
cairn_ring_dropped(const struct cairn_ring *ring)
{
    return atomic_load_explicit(&ring->header->dropped, memory_order_relaxed);
}

void
cairn_ring_set_wish(struct cairn_ring *ring, uint64_t wish)
{
    atomic_store_explicit(&ring->header->wish, wish, memory_order_relaxed);
}

uint64_t
cairn_ring_wish(const struct cairn_ring *ring)
{
    return atomic_load_explicit(&ring->header->wish, memory_order_relaxed);
}
