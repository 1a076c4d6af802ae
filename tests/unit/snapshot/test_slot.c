/* tests/unit/snapshot/test_slot.c - records are old or new, never torn, and every damage is
 * found. */
#include "snapshot/slot.h"

#include "tests/support/cases.h"
#include "tests/support/cmocka.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { SLOTS = 3, PAYLOAD_BYTES = 5000, MEMORY_BYTES = 64 * 1024, KILLS = 3000 / CASE_STRIDE };

static uint8_t *memory;
static struct cairn_slots slots;

/* Shared with the children that are killed. */
static struct progress {
    _Atomic bool started;
    _Atomic uint64_t begun, ended;
} * progress;

/* Lets a child run for a random while, from the moment it has started, and kills it. */
static void
kill_at_random(pid_t child, int while_ns_max)
{
    struct timespec pause = {0, rand() % while_ns_max};

    assert_true(child > 0);
    while (!progress->started)
        sched_yield();
    for (int spins = rand() % 5000; spins > 0; spins--)
        atomic_signal_fence(memory_order_seq_cst);
    if (rand() % 2)
        nanosleep(&pause, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    progress->started = false;
}

static int
setup(void **state)
{
    progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED)
        return 1;
    memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    return cairn_slot_format(memory, MEMORY_BYTES, SLOTS, PAYLOAD_BYTES, &slots) != CAIRN_OK;
}

static int
teardown(void **state)
{
    return munmap(memory, MEMORY_BYTES) || munmap(progress, 4096);
}

/* A record whose length and bytes follow from its number. */
static uint64_t
make_record(uint64_t number, uint8_t payload[PAYLOAD_BYTES])
{
    uint64_t bytes = number * 7919 % (PAYLOAD_BYTES + 1);

    for (uint64_t i = 0; i < bytes; i++)
        payload[i] = (uint8_t)(number + i * 13 + (number >> 8));
    return bytes;
}

static void
store(uint32_t slot, uint64_t number)
{
    uint8_t payload[PAYLOAD_BYTES];
    uint64_t bytes = make_record(number, payload);

    assert_int_equal(cairn_slot_store(&slots, slot, payload, bytes), CAIRN_OK);
}

static void
expect(uint32_t slot, uint64_t number, uint64_t sequence, bool damaged)
{
    uint8_t expected[PAYLOAD_BYTES], payload[PAYLOAD_BYTES];
    uint64_t bytes = make_record(number, expected);
    struct cairn_slot_info info;

    assert_int_equal(cairn_slot_load(&slots, slot, payload, sizeof payload, &info), CAIRN_OK);
    assert_int_equal(info.sequence, sequence);
    assert_int_equal(info.payload_bytes, bytes);
    assert_memory_equal(payload, expected, bytes);
    assert_int_equal(info.damaged, damaged);
}

static cairn_err
load_error(uint32_t slot)
{
    uint8_t payload[PAYLOAD_BYTES];
    struct cairn_slot_info info;

    return cairn_slot_load(&slots, slot, payload, sizeof payload, &info);
}

static void
test_store_and_load(void **state)
{
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        assert_int_equal(load_error(slot), CAIRN_NOT_FOUND);
    for (uint64_t number = 1; number < 200; number++)
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            store(slot, number * SLOTS + slot);
            expect(slot, number * SLOTS + slot, number, false);
            if (slot + 1 < SLOTS && number > 1)
                expect(slot + 1, (number - 1) * SLOTS + slot + 1, number - 1, false);
        }
}

static void
test_bounds(void **state)
{
    uint8_t payload[PAYLOAD_BYTES + 1] = {0};
    struct cairn_slot_info info;
    struct cairn_slots other;

    assert_int_equal(cairn_slot_store(&slots, SLOTS, payload, 1), CAIRN_INVAL);
    assert_int_equal(cairn_slot_store(&slots, 0, payload, PAYLOAD_BYTES + 1), CAIRN_INVAL);
    assert_int_equal(cairn_slot_store(&slots, 0, NULL, 1), CAIRN_INVAL);
    assert_int_equal(cairn_slot_load(&slots, SLOTS, payload, 1, &info), CAIRN_INVAL);
    assert_int_equal(cairn_slot_clear(&slots, SLOTS), CAIRN_INVAL);
    assert_int_equal(cairn_slot_store(&slots, 0, payload, PAYLOAD_BYTES), CAIRN_OK);
    assert_int_equal(cairn_slot_load(&slots, 0, payload, PAYLOAD_BYTES - 1, &info), CAIRN_FULL);
    assert_int_equal(cairn_slot_load(&slots, 0, payload, PAYLOAD_BYTES, &info), CAIRN_OK);
    assert_int_equal(cairn_slot_store(&slots, 1, NULL, 0), CAIRN_OK);
    assert_int_equal(cairn_slot_load(&slots, 1, NULL, 0, &info), CAIRN_OK);
    assert_int_equal(info.payload_bytes, 0);
    assert_int_equal(cairn_slot_memory_bytes(0, 1), 0);
    assert_int_equal(cairn_slot_memory_bytes(CAIRN_SLOTS_MAX + 1, 1), 0);
    assert_int_equal(cairn_slot_memory_bytes(1, UINT64_MAX), 0);
    assert_int_equal(cairn_slot_format(memory, MEMORY_BYTES, 64, PAYLOAD_BYTES, &other),
                     CAIRN_INVAL);
    assert_int_equal(cairn_slot_format(memory + 8, MEMORY_BYTES - 8, 1, 8, &other), CAIRN_INVAL);
}

static void
test_clear(void **state)
{
    for (uint64_t stores = 0; stores < 4; stores++) {
        for (uint64_t i = 0; i < stores; i++)
            store(0, i);
        store(1, 9);
        assert_int_equal(cairn_slot_clear(&slots, 0), CAIRN_OK);
        assert_int_equal(load_error(0), CAIRN_NOT_FOUND);
        expect(1, 9, stores + 1, false);
    }
    store(0, 5);
    expect(0, 5, 1, false);
}

static void
test_attach(void **state)
{
    struct cairn_slots other;

    store(1, 77);
    assert_int_equal(cairn_slot_attach(memory, MEMORY_BYTES, &other), CAIRN_OK);
    assert_memory_equal(&other, &slots, sizeof slots);
    slots = other;
    expect(1, 77, 1, false);
    assert_int_equal(
        cairn_slot_attach(memory, cairn_slot_memory_bytes(SLOTS, PAYLOAD_BYTES), &other), CAIRN_OK);
    assert_int_equal(
        cairn_slot_attach(memory, cairn_slot_memory_bytes(SLOTS, PAYLOAD_BYTES) - 1, &other),
        CAIRN_CORRUPT);
    memset(memory, 0, MEMORY_BYTES);
    assert_int_equal(cairn_slot_attach(memory, MEMORY_BYTES, &other), CAIRN_NOT_FOUND);
    memory[MEMORY_BYTES - 1] = 1;
    assert_int_equal(cairn_slot_attach(memory, MEMORY_BYTES, &other), CAIRN_CORRUPT);
}

/* One damaged head is mended from the other, two are refused. */
static void
test_damaged_heads(void **state)
{
    struct cairn_slots other;

    for (int byte = 0; byte < 64; byte++) {
        memory[byte] ^= 0x10;
        assert_int_equal(cairn_slot_attach(memory, MEMORY_BYTES, &other), CAIRN_OK);
        assert_memory_equal(&other, &slots, sizeof slots);
        assert_memory_equal(memory, memory + 64, 64);
        memory[byte] ^= 0x10;
        memory[64 + byte] ^= 0x10;
        assert_int_equal(cairn_slot_attach(memory, MEMORY_BYTES, &other), CAIRN_CORRUPT);
        memory[byte] ^= 0x10;
        memory[64 + byte] ^= 0x10;
    }
}

/* Every byte of both complete copies, flipped to several values, is noticed. */
static void
test_every_flipped_byte_is_found(void **state)
{
    static const uint8_t flips[] = {0x01, 0x80, 0xff};
    enum { HEAD_BYTES = 64 };
    uint8_t *copies[2];
    uint64_t numbers[2] = {7, 8}, bytes[2];
    uint8_t scratch[PAYLOAD_BYTES];

    store(2, numbers[0]); /* the first store goes to copy 0 */
    store(2, numbers[1]);
    for (int i = 0; i < 2; i++) {
        bytes[i] = HEAD_BYTES + make_record(numbers[i], scratch);
        copies[i] = memory + 128 + (2 * 2 + (uint64_t)i) * slots.copy_bytes;
    }
    for (int i = 0; i < 2; i++)
        for (uint64_t byte = 0; byte < bytes[i]; byte++)
            for (size_t f = 0; f <= sizeof flips; f++) {
                uint8_t old = copies[i][byte];
                uint8_t new = f < sizeof flips ? old ^ flips[f] : 0;

                if (new == old)
                    continue;
                copies[i][byte] = new;
                expect(2, numbers[1 - i], 2 - (uint64_t)i, true);
                copies[i][byte] = old;
            }
    expect(2, numbers[1], 2, false);
    copies[0][70] ^= 1;
    copies[1][70] ^= 1;
    assert_int_equal(load_error(2), CAIRN_CORRUPT);
}

/* The damaged copy is the one that is replaced: the good one is never given up for it. */
static void
test_store_replaces_the_damaged_copy(void **state)
{
    for (uint64_t newest = 0; newest < 2; newest++) {
        uint8_t *copy = memory + 128 + newest * slots.copy_bytes;

        assert_int_equal(cairn_slot_clear(&slots, 0), CAIRN_OK);
        store(0, 10);
        store(0, 11);
        copy[64 + 3] ^= 4;
        expect(0, newest ? 10 : 11, newest ? 1 : 2, true);
        store(0, 12);
        expect(0, 12, newest ? 2 : 3, false);
        copy[64 + 3] ^= 4; /* what was just stored is there and nowhere else */
        expect(0, newest ? 10 : 11, newest ? 1 : 2, true);
    }
}

/* Where both copies are damaged the next store leaves one that is whole, and nothing to complain
 * of. */
static void
test_store_after_both_are_damaged(void **state)
{
    struct cairn_slot_info info;

    assert_int_equal(cairn_slot_clear(&slots, 0), CAIRN_OK);
    store(0, 10);
    store(0, 11);
    /* checked where it lies */
    assert_int_equal(cairn_slot_load(&slots, 0, NULL, PAYLOAD_BYTES, &info), CAIRN_OK);
    for (uint64_t copy = 0; copy < 2; copy++)
        memory[128 + copy * slots.copy_bytes + 64 + 3] ^= 4;
    assert_int_equal(load_error(0), CAIRN_CORRUPT);
    assert_int_equal(cairn_slot_load(&slots, 0, NULL, PAYLOAD_BYTES, &info), CAIRN_CORRUPT);
    store(0, 12);
    expect(0, 12, 1, false);
}

/* A format that is killed leaves nothing that could be taken for a store. */
static void
test_format_is_killed(void **state)
{
    struct cairn_slots other;
    cairn_err err;

    store(0, 1);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();

        if (child == 0)
            for (uint64_t bytes = PAYLOAD_BYTES;; bytes = bytes == 100 ? PAYLOAD_BYTES : 100) {
                if (cairn_slot_format(memory, MEMORY_BYTES, SLOTS, bytes, &other))
                    _exit(1);
                progress->started = true;
            }
        kill_at_random(child, 300000);
        err = cairn_slot_attach(memory, MEMORY_BYTES, &slots);
        if (err == CAIRN_OK)
            assert_int_equal(load_error(0), CAIRN_NOT_FOUND);
        else
            assert_int_equal(err, CAIRN_CORRUPT);
    }
}

/*
 * A writer is killed at random instants, thousands of times. `begun` and `ended` (shared with it)
 * bound what the reader may find: the last store that ended, or the one that was begun.
 */
static void
test_writer_is_killed(void **state)
{
    uint8_t expected[PAYLOAD_BYTES], payload[PAYLOAD_BYTES];
    unsigned between = 0;

    for (int i = 0; i < KILLS; i++) {
        struct cairn_slot_info info = {0};
        uint64_t bytes;
        pid_t child = fork();

        if (child == 0)
            for (uint64_t number = progress->ended + 1;; number++) {
                bytes = make_record(number, payload);
                progress->begun = number;
                progress->started = true;
                if (cairn_slot_store(&slots, 1, payload, bytes))
                    _exit(1);
                progress->ended = number;
            }
        kill_at_random(child, 60000);
        if (progress->ended == 0 && load_error(1) == CAIRN_NOT_FOUND)
            continue;
        assert_int_equal(cairn_slot_load(&slots, 1, payload, sizeof payload, &info), CAIRN_OK);
        assert_true(info.sequence == progress->ended || info.sequence == progress->begun);
        assert_false(info.damaged);
        bytes = make_record(info.sequence, expected);
        assert_int_equal(info.payload_bytes, bytes);
        assert_memory_equal(payload, expected, bytes);
        between += progress->begun != progress->ended;
        progress->begun = progress->ended = info.sequence;
    }
    assert_true(between > KILLS / 20); /* the kills did hit stores */
}

/* A reader in another process runs beside the writer and never sees a torn or a going-back
 * record. */
static void
test_read_beside_a_writer(void **state)
{
    uint8_t expected[PAYLOAD_BYTES], payload[PAYLOAD_BYTES];
    uint64_t last = 0;
    pid_t child;

    store(0, 1);
    child = fork();
    if (child == 0)
        for (uint64_t number = 2;; number++)
            if (cairn_slot_store(&slots, 0, expected, make_record(number, expected)))
                _exit(1);
    for (int i = 0; i < 20000; i++) {
        struct cairn_slot_info info;
        cairn_err err = cairn_slot_load(&slots, 0, payload, sizeof payload, &info);

        if (err == CAIRN_AGAIN)
            continue;
        assert_int_equal(err, CAIRN_OK);
        assert_false(info.damaged);
        assert_true(info.sequence >= last);
        last = info.sequence;
        assert_int_equal(info.payload_bytes, make_record(info.sequence, expected));
        assert_memory_equal(payload, expected, info.payload_bytes);
    }
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_true(last > 1);
}

int
main(void)
{
#define FRESH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {FRESH(test_store_and_load),
                                       FRESH(test_bounds),
                                       FRESH(test_clear),
                                       FRESH(test_attach),
                                       FRESH(test_damaged_heads),
                                       FRESH(test_every_flipped_byte_is_found),
                                       FRESH(test_store_replaces_the_damaged_copy),
                                       FRESH(test_store_after_both_are_damaged),
                                       FRESH(test_format_is_killed),
                                       FRESH(test_writer_is_killed),
                                       FRESH(test_read_beside_a_writer)};

    srand(20240607);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
