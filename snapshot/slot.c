/*
 * snapshot/slot.c - the store of records, two copies each.
 *
 * Format (native words: the memory never leaves the machine; all offsets in bytes):
 *
 *     store      0  head, 64 bytes, and the same again at 64
 *              128  slot 0: copy 0, copy 1; slot 1: copy 0, copy 1; …
 *     head       0  magic  8 version  12 slot count  16 payload bytes max  24 copy bytes
 *               32  CRC-64 of bytes 0 … 31
 *     copy       0  state: 0 empty, WRITING, or COMPLETE | sequence (48 bits)
 *                8  magic  16 version  20 slot  24 sequence  32 payload bytes
 *               40  CRC-64 of bytes 8 … 39 and then of the payload
 *               64  payload; copies are padded to 64 bytes
 *
 * Invariants:
 *   1. The writer changes only the copy that is not the newest complete one, so the newest record
 *      is intact at every instruction.
 *   2. A copy is marked WRITING before its first byte changes and COMPLETE | sequence after its
 *      last one did (release order), so a copy that is torn never says COMPLETE. A copy that says
 *      COMPLETE and fails its checksum is damaged, which is another thing than unfinished.
 *   3. The three kinds of state differ in more than one byte: no single damaged byte turns a
 *      complete copy into an unfinished or empty one without being noticed.
 *   4. A reader copies first and checks what it copied, so it may run beside a writer.
 */
#include "snapshot/slot.h"

#include "base/crc.h"

#include <stdatomic.h>
#include <string.h>

enum { LINE = 64, VERSION = 1, HEADS = 2, COPIES = 2, READS_MAX = 64 };

static const uint64_t STORE_MAGIC = 0x31544f4c534e5243; /* "CRNSLOT1" */
static const uint64_t COPY_MAGIC = 0x31595043534e5243;  /* "CRNSCPY1" */
static const uint64_t WRITING = 0x5aa5000000000000;
static const uint64_t COMPLETE = 0xc33c000000000000;
static const uint64_t STATE_MASK = 0xffff000000000000;
static const uint64_t PAYLOAD_LIMIT = UINT64_C(1) << 40;

struct store_head {
    uint64_t magic;
    uint32_t version;
    uint32_t slot_count;
    uint64_t payload_bytes_max;
    uint64_t copy_bytes;
    uint64_t crc;
    uint64_t zero[3];
};

struct copy_head {
    _Atomic uint64_t state;
    uint64_t magic;
    uint32_t version;
    uint32_t slot;
    uint64_t sequence;
    uint64_t payload_bytes;
    uint64_t crc;
    uint64_t zero[2];
};

_Static_assert(sizeof(struct store_head) == LINE, "the head of a store is one line");
_Static_assert(sizeof(struct copy_head) == LINE, "the head of a copy is one line");

static uint64_t
store_crc(const struct store_head *head)
{
    return cairn_crc64(0, head, offsetof(struct store_head, crc));
}

static uint64_t
copy_crc(const struct copy_head *head, const void *payload)
{
    uint64_t crc = cairn_crc64(0, &head->magic,
                               offsetof(struct copy_head, crc) - offsetof(struct copy_head, magic));

    return cairn_crc64(crc, payload, head->payload_bytes);
}

/* Bytes of one copy, 0 when out of bounds. */
static uint64_t
bytes_of_copy(uint64_t payload_bytes_max)
{
    if (payload_bytes_max > PAYLOAD_LIMIT)
        return 0;
    return LINE + (payload_bytes_max + LINE - 1) / LINE * LINE;
}

uint64_t
cairn_slot_memory_bytes(uint32_t slot_count, uint64_t payload_bytes_max)
{
    uint64_t copy_bytes = bytes_of_copy(payload_bytes_max);

    if (copy_bytes == 0 || slot_count == 0 || slot_count > CAIRN_SLOTS_MAX)
        return 0;
    return HEADS * LINE + slot_count * COPIES * copy_bytes;
}

static uint8_t *
copy_at(const struct cairn_slots *slots, uint32_t slot, uint32_t copy)
{
    return slots->base + HEADS * LINE + ((uint64_t)slot * COPIES + copy) * slots->copy_bytes;
}

cairn_err
cairn_slot_format(void *memory, uint64_t memory_bytes, uint32_t slot_count,
                  uint64_t payload_bytes_max, struct cairn_slots *out)
{
    uint64_t need = cairn_slot_memory_bytes(slot_count, payload_bytes_max);
    struct cairn_slots slots = {.base = memory,
                                .slot_count = slot_count,
                                .payload_bytes_max = payload_bytes_max,
                                .copy_bytes = bytes_of_copy(payload_bytes_max)};
    struct store_head head = {.magic = STORE_MAGIC,
                              .version = VERSION,
                              .slot_count = slot_count,
                              .payload_bytes_max = payload_bytes_max,
                              .copy_bytes = slots.copy_bytes};

    if (!memory || (uintptr_t)memory % LINE || need == 0 || memory_bytes < need)
        return CAIRN_INVAL;
    head.crc = store_crc(&head);
    /* Not zero: a death in the middle must not look like memory that never held a store. */
    memset(slots.base, 0xff, HEADS * LINE);
    atomic_thread_fence(memory_order_release);
    for (uint32_t slot = 0; slot < slot_count; slot++)
        for (uint32_t copy = 0; copy < COPIES; copy++)
            memset(copy_at(&slots, slot, copy), 0, LINE);
    atomic_thread_fence(memory_order_release);
    memcpy(slots.base, &head, LINE);
    memcpy(slots.base + LINE, &head, LINE);
    *out = slots;
    return CAIRN_OK;
}

static bool
all_zero(const uint8_t *bytes, uint64_t bytes_len)
{
    for (uint64_t i = 0; i < bytes_len; i++)
        if (bytes[i])
            return false;
    return true;
}

/* Checks one head and fills *out from it. */
static cairn_err
read_store_head(void *memory, uint64_t memory_bytes, const void *at, struct cairn_slots *out)
{
    struct store_head head;
    uint64_t need;

    memcpy(&head, at, sizeof head);
    if (head.magic != STORE_MAGIC || head.crc != store_crc(&head) ||
        !all_zero((const uint8_t *)head.zero, sizeof head.zero))
        return CAIRN_CORRUPT;
    if (head.version != VERSION)
        return CAIRN_VERSION;
    need = cairn_slot_memory_bytes(head.slot_count, head.payload_bytes_max);
    if (need == 0 || need > memory_bytes ||
        head.copy_bytes != bytes_of_copy(head.payload_bytes_max))
        return CAIRN_CORRUPT;
    *out = (struct cairn_slots){.base = memory,
                                .slot_count = head.slot_count,
                                .payload_bytes_max = head.payload_bytes_max,
                                .copy_bytes = head.copy_bytes};
    return CAIRN_OK;
}

cairn_err
cairn_slot_attach(void *memory, uint64_t memory_bytes, struct cairn_slots *out)
{
    uint8_t *bytes = memory;
    cairn_err first, second;

    if (!memory || (uintptr_t)memory % LINE || memory_bytes < HEADS * LINE)
        return CAIRN_INVAL;
    first = read_store_head(memory, memory_bytes, bytes, out);
    if (first != CAIRN_CORRUPT)
        return first;
    second = read_store_head(memory, memory_bytes, bytes + LINE, out);
    if (second == CAIRN_OK)
        memcpy(bytes, bytes + LINE, LINE); /* fixed: the next damage finds two heads again */
    else if (second == CAIRN_CORRUPT && all_zero(bytes, memory_bytes))
        return CAIRN_NOT_FOUND;
    return second;
}

static uint64_t
state_of(const struct cairn_slots *slots, uint32_t slot, uint32_t copy)
{
    const struct copy_head *head = (const void *)copy_at(slots, slot, copy);

    atomic_thread_fence(memory_order_acquire); /* reads before stay before */
    return atomic_load_explicit(&head->state, memory_order_acquire);
}

enum copy_kind { EMPTY, UNFINISHED, DAMAGED, COMPLETED };

/*
 * Judges one copy. With `payload` the bytes are copied there first (capacity is payload_bytes_max
 * or what fits), and the copied bytes are checked; a record longer than capacity is checked in
 * place.
 */
static enum copy_kind
judge_copy(const struct cairn_slots *slots, uint32_t slot, uint32_t copy, void *payload,
           uint64_t capacity, struct copy_head *head)
{
    uint8_t *at = copy_at(slots, slot, copy);
    uint64_t state = state_of(slots, slot, copy);
    const void *bytes = at + LINE;

    memcpy(head, at, sizeof *head);
    if (state == 0 && all_zero(at, LINE))
        return EMPTY;
    if (state == WRITING)
        return UNFINISHED;
    if ((state & STATE_MASK) != COMPLETE || (state & ~STATE_MASK) != head->sequence ||
        head->sequence == 0 || head->magic != COPY_MAGIC || head->version != VERSION ||
        head->slot != slot || head->payload_bytes > slots->payload_bytes_max ||
        !all_zero((const uint8_t *)head->zero, sizeof head->zero))
        return DAMAGED;
    if (payload && head->payload_bytes <= capacity) {
        memcpy(payload, bytes, head->payload_bytes);
        bytes = payload;
    }
    return copy_crc(head, bytes) == head->crc ? COMPLETED : DAMAGED;
}

static void
set_state(uint8_t *at, uint64_t state)
{
    atomic_store_explicit(&((struct copy_head *)(void *)at)->state, state, memory_order_release);
}

/* Marks a copy as unfinished, before any of its other bytes change. */
static void
mark_writing(uint8_t *at)
{
    set_state(at, WRITING);
    atomic_thread_fence(memory_order_seq_cst);
}

/* Which copy is the newest complete one (COPIES where there is none), and its sequence (0). */
static uint32_t
find_newest(const struct cairn_slots *slots, uint32_t slot, uint64_t *sequence,
            enum copy_kind kinds[COPIES])
{
    uint32_t newest = COPIES;

    *sequence = 0;
    for (uint32_t copy = 0; copy < COPIES; copy++) {
        struct copy_head head;

        kinds[copy] = judge_copy(slots, slot, copy, NULL, 0, &head);
        if (kinds[copy] == COMPLETED && head.sequence > *sequence) {
            *sequence = head.sequence;
            newest = copy;
        }
    }
    return newest;
}

cairn_err
cairn_slot_store(const struct cairn_slots *slots, uint32_t slot, const void *payload,
                 uint64_t payload_bytes)
{
    struct copy_head head = {.magic = COPY_MAGIC, .version = VERSION, .slot = slot};
    enum copy_kind kinds[COPIES];
    uint64_t sequence;
    uint32_t newest;
    uint8_t *at;

    if (slot >= slots->slot_count || payload_bytes > slots->payload_bytes_max ||
        (!payload && payload_bytes > 0))
        return CAIRN_INVAL;
    newest = find_newest(slots, slot, &sequence, kinds);
    if (sequence >= ~STATE_MASK)
        return CAIRN_INTERNAL; /* 2^48 records: more than any memory lives */
    head.sequence = sequence + 1;
    head.payload_bytes = payload_bytes;
    head.crc = copy_crc(&head, payload_bytes ? payload : &head);
    at = copy_at(slots, slot, newest == 0 ? 1 : 0);
    mark_writing(at);
    if (payload_bytes)
        memcpy(at + LINE, payload, payload_bytes);
    memcpy(at + sizeof head.state, (const uint8_t *)&head + sizeof head.state,
           sizeof head - sizeof head.state);
    set_state(at, COMPLETE | head.sequence);
    if (newest == COPIES && kinds[1] == DAMAGED) /* it has a successor: no damage is left to find */
        mark_writing(copy_at(slots, slot, 1));
    return CAIRN_OK;
}

cairn_err
cairn_slot_load(const struct cairn_slots *slots, uint32_t slot, void *payload,
                uint64_t payload_capacity_bytes, struct cairn_slot_info *out)
{
    if (slot >= slots->slot_count)
        return CAIRN_INVAL;
    for (int reads = 0; reads < READS_MAX; reads++) {
        uint64_t states[COPIES] = {state_of(slots, slot, 0), state_of(slots, slot, 1)};
        enum copy_kind kinds[COPIES];
        struct copy_head head;
        uint64_t sequence;
        uint32_t newest = find_newest(slots, slot, &sequence, kinds);
        enum copy_kind kind = EMPTY;

        if (newest != COPIES)
            kind = judge_copy(slots, slot, newest, payload, payload_capacity_bytes, &head);
        /* What a live writer changed meanwhile is judged again: it is not damage. */
        if (states[0] != state_of(slots, slot, 0) || states[1] != state_of(slots, slot, 1))
            continue;
        if (newest == COPIES)
            return kinds[0] == DAMAGED || kinds[1] == DAMAGED ? CAIRN_CORRUPT : CAIRN_NOT_FOUND;
        if (kind != COMPLETED)
            continue; /* damaged this very moment: the other copy may serve */
        if (head.payload_bytes > payload_capacity_bytes)
            return CAIRN_FULL;
        out->sequence = sequence;
        out->payload_bytes = head.payload_bytes;
        out->damaged = kinds[1 - newest] == DAMAGED;
        return CAIRN_OK;
    }
    return CAIRN_AGAIN;
}

cairn_err
cairn_slot_clear(const struct cairn_slots *slots, uint32_t slot)
{
    enum copy_kind kinds[COPIES];
    uint64_t sequence;
    uint32_t newest;

    if (slot >= slots->slot_count)
        return CAIRN_INVAL;
    newest = find_newest(slots, slot, &sequence, kinds);
    newest = newest == COPIES ? 0 : newest;
    mark_writing(copy_at(slots, slot, 1 - newest));
    mark_writing(copy_at(slots, slot, newest));
    return CAIRN_OK;
}
