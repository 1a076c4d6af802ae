/* tests/unit/base/test_ring.c - the ring: order, overflow, hostile headers, threads, processes. */
#include "base/ring.h"
#include "tests/support/cmocka.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WRITERS = 4, RECORDS_PER_WRITER = 20000, READ_BATCH = 32 };

/* All words are derived from writer and number, so a torn record cannot pass for a whole one. */
struct record {
    uint64_t writer;
    uint64_t number;
    uint64_t words[6];
};

_Static_assert(sizeof(struct record) == CAIRN_RING_RECORD_BYTES, "a record fills a slot");

static struct record
make_record(uint64_t writer, uint64_t number)
{
    struct record record = {.writer = writer, .number = number};

    for (uint64_t i = 0; i < 6; i++)
        record.words[i] = (writer * 1000003 + number + i) * UINT64_C(0x9e3779b97f4a7c15);
    return record;
}

static bool
is_whole(const struct record *record)
{
    struct record expected = make_record(record->writer, record->number);

    return memcmp(&expected, record, sizeof expected) == 0;
}

static void *
map_ring(uint32_t count, struct cairn_ring *ring)
{
    void *memory = mmap(NULL, cairn_ring_bytes(count), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(memory, MAP_FAILED);
    assert_int_equal(cairn_ring_format(memory, cairn_ring_bytes(count), count), CAIRN_OK);
    assert_int_equal(cairn_ring_open(memory, cairn_ring_bytes(count), ring), CAIRN_OK);
    return memory;
}

static bool
put(struct cairn_ring *ring, uint64_t writer, uint64_t number)
{
    struct record record = make_record(writer, number);

    return cairn_ring_write(ring, &record);
}

static void
sizes_are_bounded_and_powers_of_two(void **state)
{
    assert_int_equal(cairn_ring_bytes(0), 0);
    assert_int_equal(cairn_ring_bytes(1), 0);
    assert_int_equal(cairn_ring_bytes(3), 0);
    assert_int_equal(cairn_ring_bytes(2), 256 + 64 + 128);
    assert_int_equal(cairn_ring_bytes(1024), 256 + 8192 + 65536);
    assert_int_equal(cairn_ring_bytes(CAIRN_RING_RECORDS_MAX * 2u), 0);
    assert_true(cairn_ring_bytes(CAIRN_RING_RECORDS_MAX) > 0);
}

static void
overflow_drops_the_newest_and_counts(void **state)
{
    struct record records[16];
    struct cairn_ring ring;
    void *memory = map_ring(8, &ring);
    uint64_t next = 0, dropped = 0;

    for (int round = 0; round < 100; round++) {
        uint64_t first = next;

        for (int i = 0; i < 11; i++, next++)
            assert_int_equal(put(&ring, 1, next), i < 8);
        dropped += 3;
        assert_int_equal(cairn_ring_waiting(&ring), 8);
        assert_int_equal(cairn_ring_dropped(&ring), dropped);
        assert_int_equal(cairn_ring_read(&ring, records, 3), 3);
        assert_int_equal(cairn_ring_read(&ring, records + 3, 13), 5);
        assert_int_equal(cairn_ring_read(&ring, records, 0), 0);
        for (uint64_t i = 0; i < 8; i++) {
            assert_true(is_whole(&records[i]));
            assert_int_equal(records[i].number, first + i);
        }
        assert_int_equal(cairn_ring_waiting(&ring), 0);
    }
    munmap(memory, cairn_ring_bytes(8));
}

/* What the reader wishes reaches every opening, and no record. */
static void
wish_goes_to_the_writers(void **state)
{
    struct cairn_ring ring, writer;
    struct record record;
    void *memory = map_ring(8, &ring);

    assert_int_equal(cairn_ring_open(memory, cairn_ring_bytes(8), &writer), CAIRN_OK);
    assert_int_equal(cairn_ring_wish(&writer), 0);
    cairn_ring_set_wish(&ring, UINT64_MAX);
    assert_int_equal(cairn_ring_wish(&writer), UINT64_MAX);
    assert_true(put(&writer, 1, 0));
    assert_int_equal(cairn_ring_read(&ring, &record, 1), 1);
    assert_true(is_whole(&record));
    assert_int_equal(cairn_ring_wish(&writer), UINT64_MAX);
    munmap(memory, cairn_ring_bytes(8));
}

static void
later_reader_goes_on_where_the_last_one_stopped(void **state)
{
    struct cairn_ring writer, reader;
    struct record record;
    void *memory = map_ring(8, &writer);

    for (uint64_t i = 0; i < 50; i++) {
        assert_true(put(&writer, 1, i));
        if (i % 5 != 4)
            continue;
        for (uint64_t j = i - 4; j <= i; j++) {
            assert_int_equal(cairn_ring_open(memory, cairn_ring_bytes(8), &reader), CAIRN_OK);
            assert_int_equal(cairn_ring_read(&reader, &record, 1), 1);
            assert_int_equal(record.number, j);
        }
    }
    munmap(memory, cairn_ring_bytes(8));
}

/* The reader gives a slot back before it reports that: a death in between must not stop the next
 * one. */
static void
reader_that_died_before_saying_so_is_survived(void **state)
{
    struct cairn_ring writer, reader;
    struct record record;
    void *memory = map_ring(8, &writer);
    uint64_t old_tail;

    for (uint64_t i = 0; i < 6; i++)
        assert_true(put(&writer, 1, i));
    memcpy(&old_tail, (uint8_t *)memory + 128, 8);
    assert_int_equal(cairn_ring_open(memory, cairn_ring_bytes(8), &reader), CAIRN_OK);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(cairn_ring_read(&reader, &record, 1), 1);
    memcpy((uint8_t *)memory + 128, &old_tail, 8);
    for (uint64_t i = 6; i < 9; i++)
        assert_true(put(&writer, 1, i)); /* one slot is already used again */
    assert_int_equal(cairn_ring_open(memory, cairn_ring_bytes(8), &reader), CAIRN_OK);
    for (uint64_t i = 4; i < 9; i++) {
        assert_int_equal(cairn_ring_read(&reader, &record, 1), 1);
        assert_int_equal(record.number, i);
    }
    munmap(memory, cairn_ring_bytes(8));
}

static void
wrong_memory_is_refused(void **state)
{
    _Alignas(64) uint8_t memory[4096] = {0};
    size_t bytes = cairn_ring_bytes(8);
    struct cairn_ring ring;

    assert_int_equal(cairn_ring_format(memory, bytes - 1, 8), CAIRN_INVAL);
    assert_int_equal(cairn_ring_format(memory + 8, bytes, 8), CAIRN_INVAL);
    assert_int_equal(cairn_ring_format(NULL, bytes, 8), CAIRN_INVAL);
    assert_int_equal(cairn_ring_format(memory, bytes, 7), CAIRN_INVAL);
    assert_int_equal(cairn_ring_open(memory, bytes, &ring), CAIRN_CORRUPT);
    assert_int_equal(cairn_ring_format(memory, bytes, 8), CAIRN_OK);
    assert_int_equal(cairn_ring_open(memory, 255, &ring), CAIRN_CORRUPT);
    assert_int_equal(cairn_ring_open(memory, bytes - 1, &ring), CAIRN_CORRUPT);
    assert_int_equal(cairn_ring_open(memory, bytes, &ring), CAIRN_OK);
    for (size_t at = 0; at < 20; at++)
        for (int bit = 0; bit < 8; bit++) {
            cairn_err err;

            memory[at] ^= (uint8_t)(1 << bit);
            err = cairn_ring_open(memory, bytes, &ring);
            /* a smaller power of two fits into the mapping too, but no single flip makes one */
            if (at < 8 || at >= 12)
                assert_int_equal(err, CAIRN_CORRUPT);
            else
                assert_int_equal(err, CAIRN_VERSION);
            memory[at] ^= (uint8_t)(1 << bit);
        }
}

/* The other side may write anything into the shared words: both sides stay inside the mapping. */
static void
hostile_words_never_lead_outside(void **state)
{
    enum { COUNT = 8 };
    size_t bytes = cairn_ring_bytes(COUNT);
    uint8_t *memory = aligned_alloc(64, (bytes + 63) / 64 * 64); /* the sanitizer guards its ends */
    struct record record, records[64];
    struct cairn_ring ring;
    unsigned seed = 11;

    assert_int_equal(cairn_ring_format(memory, bytes, COUNT), CAIRN_OK);
    for (int round = 0; round < 20000; round++) {
        uint64_t word = (uint64_t)rand_r(&seed) << 32 ^ (uint64_t)rand_r(&seed);
        size_t at = 64 + (size_t)rand_r(&seed) % (bytes / 8 - 8) * 8;

        if (rand_r(&seed) % 3)
            word %= 32;
        if (at + 8 <= bytes)
            memcpy(memory + at, &word, 8);
        assert_int_equal(cairn_ring_open(memory, bytes, &ring), CAIRN_OK);
        record = make_record(3, (uint64_t)round);
        cairn_ring_write(&ring, &record);
        assert_true(cairn_ring_read(&ring, records, 64) <= 64);
        assert_true(cairn_ring_waiting(&ring) <= COUNT);
        cairn_ring_skip(&ring);
    }
    free(memory);
}

static void
hole_of_a_dead_writer_is_stopped_at_and_skipped(void **state)
{
    struct record record;
    struct cairn_ring ring;
    uint8_t *memory = map_ring(8, &ring);
    uint64_t unpublished = 1;

    assert_false(cairn_ring_skip(&ring));
    for (uint64_t i = 0; i < 3; i++)
        assert_true(put(&ring, 1, i));
    memcpy(memory + 256 + 8, &unpublished, 8); /* the second claim was never published */
    assert_false(cairn_ring_skip(&ring));
    assert_int_equal(cairn_ring_read(&ring, &record, 1), 1);
    assert_int_equal(cairn_ring_read(&ring, &record, 1), 0);
    assert_int_equal(cairn_ring_waiting(&ring), 2);
    assert_true(cairn_ring_skip(&ring));
    assert_int_equal(cairn_ring_read(&ring, &record, 1), 1);
    assert_int_equal(record.number, 2);
    for (uint64_t i = 0; i < 8; i++)
        assert_true(put(&ring, 1, i));
    assert_false(put(&ring, 1, 8));
    munmap(memory, cairn_ring_bytes(8));
}

/* ---- threads and processes ---- */

struct writer {
    struct cairn_ring *ring;
    uint64_t number;
    uint64_t written;
};

static void *
write_many(void *context)
{
    struct writer *writer = context;

    for (uint64_t i = 0; i < RECORDS_PER_WRITER; i++) {
        struct record record = make_record(writer->number, i);
        bool kept = cairn_ring_write(writer->ring, &record);

        writer->written += kept;
        if (!kept)
            sched_yield(); /* so that the reader, on a machine of one core, gets its turn */
    }
    return NULL;
}

/* Reads until `total` records were written or dropped; checks wholeness and order per writer. */
static uint64_t
read_all(struct cairn_ring *ring, uint64_t total)
{
    int64_t last[WRITERS];
    uint64_t read_count = 0;

    memset(last, 0xff, sizeof last);
    while (read_count + cairn_ring_dropped(ring) < total) {
        struct record records[READ_BATCH];
        uint32_t count = cairn_ring_read(ring, records, READ_BATCH);

        for (uint32_t i = 0; i < count; i++) {
            assert_true(is_whole(&records[i]));
            assert_true(records[i].writer < WRITERS);
            assert_true((int64_t)records[i].number > last[records[i].writer]);
            last[records[i].writer] = (int64_t)records[i].number;
        }
        read_count += count;
        if (count == 0)
            sched_yield();
    }
    return read_count;
}

static void
run_threads(uint32_t writer_count)
{
    struct writer writers[WRITERS];
    pthread_t threads[WRITERS];
    struct cairn_ring ring, reader;
    void *memory = map_ring(256, &ring);
    uint64_t total = (uint64_t)writer_count * RECORDS_PER_WRITER, written = 0;

    assert_int_equal(cairn_ring_open(memory, cairn_ring_bytes(256), &reader), CAIRN_OK);
    for (uint32_t i = 0; i < writer_count; i++) {
        writers[i] = (struct writer){.ring = &ring, .number = i};
        pthread_create(&threads[i], NULL, write_many, &writers[i]);
    }
    assert_int_equal(read_all(&reader, total) + cairn_ring_dropped(&reader), total);
    for (uint32_t i = 0; i < writer_count; i++) {
        pthread_join(threads[i], NULL);
        written += writers[i].written;
    }
    assert_int_equal(written + cairn_ring_dropped(&ring), total);
    assert_true(written >= 256);
    munmap(memory, cairn_ring_bytes(256));
}

static void
threads_lose_and_tear_nothing(void **state)
{
    run_threads(1);
    run_threads(WRITERS);
}

static void
processes_lose_and_tear_nothing(void **state)
{
    struct cairn_ring ring;
    void *memory = map_ring(256, &ring);
    uint64_t total = (uint64_t)WRITERS * RECORDS_PER_WRITER;
    pid_t children[WRITERS];
    int status;

    for (uint64_t i = 0; i < WRITERS; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            struct cairn_ring own;
            struct writer writer = {.ring = &own, .number = i};

            if (cairn_ring_open(memory, cairn_ring_bytes(256), &own))
                _exit(1);
            write_many(&writer);
            _exit(0);
        }
    }
    assert_int_equal(read_all(&ring, total) + cairn_ring_dropped(&ring), total);
    for (int i = 0; i < WRITERS; i++) {
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
    munmap(memory, cairn_ring_bytes(256));
}

/* Writers are killed at any instant: what is read is whole, and skipping leads past every hole. */
static void
killed_writers_leave_a_ring_that_works(void **state)
{
    struct cairn_ring ring;
    void *memory = map_ring(64, &ring);
    struct record record;

    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        uint64_t waiting;

        assert_true(child >= 0);
        if (child == 0)
            for (uint64_t i = 0;; i++) {
                record = make_record(2, i);
                cairn_ring_write(&ring, &record);
            }
        for (int i = 0; i < 200; i++)
            if (cairn_ring_read(&ring, &record, 1))
                assert_true(is_whole(&record));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        waiting = cairn_ring_waiting(&ring);
        for (uint64_t i = 0; i < waiting; i++)
            if (cairn_ring_read(&ring, &record, 1))
                assert_true(is_whole(&record));
            else
                assert_true(cairn_ring_skip(&ring));
        assert_int_equal(cairn_ring_waiting(&ring), 0);
        for (uint64_t i = 0; i < 64; i++)
            assert_true(put(&ring, 0, i));
        for (uint64_t i = 0; i < 64; i++)
            assert_int_equal(cairn_ring_read(&ring, &record, 1), 1);
    }
    munmap(memory, cairn_ring_bytes(64));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_bounded_and_powers_of_two),
        cmocka_unit_test(overflow_drops_the_newest_and_counts),
        cmocka_unit_test(wish_goes_to_the_writers),
        cmocka_unit_test(later_reader_goes_on_where_the_last_one_stopped),
        cmocka_unit_test(reader_that_died_before_saying_so_is_survived),
        cmocka_unit_test(wrong_memory_is_refused),
        cmocka_unit_test(hostile_words_never_lead_outside),
        cmocka_unit_test(hole_of_a_dead_writer_is_stopped_at_and_skipped),
        cmocka_unit_test(threads_lose_and_tear_nothing),
        cmocka_unit_test(processes_lose_and_tear_nothing),
        cmocka_unit_test(killed_writers_leave_a_ring_that_works),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
