/*
 * tests/fuzz/fuzz_slot.c - the record store of adopted memory (snapshot/slot.h) over damaged bytes:
 * it is refused, or every record is loaded whole or not at all, and a new one can be stored.
 *
 *     byte 0    bit 0: make the heads' checksums right; bit 1: those of the copies, and their
 *               states
 *     byte 1    bytes of the buffer that records are loaded into, × 4
 *     byte 2, 3 where the rest is laid over a store that holds records
 */
#include "base/crc.h"
#include "snapshot/slot.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 2, PAYLOAD_BYTES = 200, MEMORY_BYTES = 4096, LINE = 64, COPIES = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
put_u64(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, sizeof value);
}

/* As the store's format in snapshot/slot.c has it. */
static void
mend_copies(uint8_t *memory)
{
    uint64_t copy_bytes = (cairn_slot_memory_bytes(1, PAYLOAD_BYTES) - 2 * LINE) / COPIES;

    for (uint32_t i = 0; i < SLOTS * COPIES; i++) {
        uint8_t *copy = memory + 2 * LINE + i * copy_bytes;
        uint64_t payload_bytes, sequence, crc;

        memcpy(&sequence, copy + 24, sizeof sequence);
        memcpy(&payload_bytes, copy + 32, sizeof payload_bytes);
        put_u64(copy, UINT64_C(0xc33c000000000000) | (sequence & 0xffffffffffff));
        crc = cairn_crc64(0, copy + 8, 32);
        if (payload_bytes <= copy_bytes - LINE)
            crc = cairn_crc64(crc, copy + LINE, payload_bytes);
        put_u64(copy + 40, crc);
    }
}

static void
try_slot(const struct cairn_slots *slots, uint32_t slot, uint64_t capacity)
{
    uint8_t *payload = malloc(capacity ? capacity : 1), loaded[PAYLOAD_BYTES];
    struct cairn_slot_info info = {0};
    cairn_err err;

    require(payload != NULL);
    err = cairn_slot_load(slots, slot, payload, capacity, &info);
    require(err == CAIRN_OK || err == CAIRN_CORRUPT || err == CAIRN_NOT_FOUND || err == CAIRN_FULL);
    if (!err)
        require(info.payload_bytes <= capacity && info.payload_bytes <= slots->payload_bytes_max);
    if (slots->payload_bytes_max >= 4) {
        err = cairn_slot_store(slots, slot, "new", 4);
        require(err == CAIRN_OK || err == CAIRN_INTERNAL); /* the last sequence is used up */
        if (!err) {
            require(cairn_slot_load(slots, slot, loaded, sizeof loaded, &info) == CAIRN_OK);
            require(info.payload_bytes == 4 && memcmp(loaded, "new", 4) == 0);
        }
    }
    require(cairn_slot_clear(slots, slot) == CAIRN_OK);
    require(cairn_slot_load(slots, slot, loaded, sizeof loaded, &info) == CAIRN_NOT_FOUND);
    free(payload);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t record[PAYLOAD_BYTES] = {1, 2, 3};
    struct cairn_slots slots;
    uint8_t *memory;
    size_t at;

    if (size < 4)
        return 0;
    memory = aligned_alloc(LINE, MEMORY_BYTES);
    require(memory != NULL);
    memset(memory, 0, MEMORY_BYTES);
    if (data[0] & 4) { /* else the memory never held a store */
        require(cairn_slot_format(memory, MEMORY_BYTES, SLOTS, PAYLOAD_BYTES, &slots) == CAIRN_OK);
        for (uint32_t i = 0; i < 3; i++)
            require(cairn_slot_store(&slots, i % SLOTS, record, PAYLOAD_BYTES - i) == CAIRN_OK);
    }
    at = (size_t)(data[2] | data[3] << 8) % MEMORY_BYTES;
    memcpy(memory + at, data + 4, size - 4 < MEMORY_BYTES - at ? size - 4 : MEMORY_BYTES - at);
    if (data[0] & 1) {
        put_u64(memory + 32, cairn_crc64(0, memory, 32));
        put_u64(memory + LINE + 32, cairn_crc64(0, memory + LINE, 32));
    }
    if (data[0] & 2)
        mend_copies(memory);
    if (cairn_slot_attach(memory, MEMORY_BYTES, &slots) == CAIRN_OK) {
        require(cairn_slot_memory_bytes(slots.slot_count, slots.payload_bytes_max) <= MEMORY_BYTES);
        for (uint32_t slot = 0; slot < slots.slot_count; slot++)
            try_slot(&slots, slot, 4 * (uint64_t)data[1]);
    }
    free(memory);
    return 0;
}
