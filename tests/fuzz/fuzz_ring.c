/*
 * tests/fuzz/fuzz_ring.c - a ring of timing records that a hostile trainer writes to: any bytes,
 * also while it is read, give records within the ring's bounds, and those end as
 * reports that an analysis can take.
 *
 * The first byte is the size of the ring, the second which half of the ring's memory is overwritten
 * again between reads. What follows is laid over a formatted ring from its first byte on.
 */
#include "base/assert.h"
#include "base/ring.h"
#include "replan/live/live.h"
#include "replan/live/reduce.h"

#include <stdlib.h>
#include <string.h>

enum { READS = 8, BATCH = 16, WORLD = 4, NOW_SLACK = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct cairn_live *live;
static uint64_t now_ns;

/* Every report has bytes, and those are a report again. */
static void
take(void *context, const struct cairn_report *report)
{
    static uint8_t bytes[CAIRN_REPORT_BYTES_MAX];
    static struct cairn_report again;
    struct cairn_writer writer;
    struct cairn_reader reader;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_report_pack(report, &writer);
    CAIRN_ASSERT(cairn_writer_done(&writer) == CAIRN_OK);
    cairn_reader_init(&reader, bytes, writer.used_bytes);
    cairn_report_unpack(&reader, &again);
    CAIRN_ASSERT(cairn_reader_done(&reader) == CAIRN_OK);
    CAIRN_ASSERT(again.kind == report->kind && again.rank == report->rank);
    CAIRN_ASSERT(cairn_live_take(live, 0, &again, now_ns, now_ns) == CAIRN_OK);
}

static void
read_all(struct cairn_ring *ring, struct cairn_reduce *reduce, uint64_t record_count)
{
    struct cairn_timing_record records[BATCH];
    uint32_t count = cairn_ring_read(ring, records, BATCH);

    CAIRN_ASSERT(count <= BATCH);
    CAIRN_ASSERT(cairn_ring_waiting(ring) <= record_count);
    for (uint32_t i = 0; i < count; i++)
        CAIRN_ASSERT(cairn_reduce_take(reduce, &records[i], now_ns) == CAIRN_OK);
    if (count == 0)
        (void)cairn_ring_skip(ring);
    cairn_reduce_lose(reduce, cairn_ring_dropped(ring) & 1);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cairn_reduce_options reduce_options = {
        .rank = 1, .world = WORLD, .attachment = 7, .emit = take};
    static struct cairn_ledger ledger;
    struct cairn_live_options live_options = {.ledger = &ledger, .first_run = 1};
    struct cairn_reduce *reduce;
    struct cairn_ring ring;
    uint32_t record_count;
    size_t bytes;
    uint8_t *memory;

    if (size < 2)
        return 0;
    record_count = 2u << data[0] % 6;
    bytes = (cairn_ring_bytes(record_count) + 63) / 64 * 64;
    memory = aligned_alloc(64, bytes);
    if (!memory)
        return 0;
    memset(memory, 0, bytes);
    CAIRN_ASSERT(cairn_ring_format(memory, bytes, record_count) == CAIRN_OK);
    memcpy(memory, data + 2, size - 2 < bytes ? size - 2 : bytes);
    now_ns = UINT64_MAX / 2;
    cairn_ledger_init(&ledger);
    if (cairn_ring_open(memory, bytes, &ring) == CAIRN_OK) {
        CAIRN_ASSERT(ring.mask < record_count);
        CAIRN_ASSERT(cairn_live_create(&live_options, &live) == CAIRN_OK);
        CAIRN_ASSERT(cairn_reduce_create(&reduce_options, &reduce) == CAIRN_OK);
        for (int i = 0; i < READS; i++) {
            size_t from = data[1] & 1 ? bytes / 2 : 0, length = bytes / 2;

            read_all(&ring, reduce, ring.mask + 1);
            if (data[1] & 2 && size - 2 > from)
                memcpy(memory + from, data + 2 + from,
                       size - 2 - from < length ? size - 2 - from : length);
            now_ns += NOW_SLACK;
            cairn_reduce_stand(reduce, i % 2 ? CAIRN_PRESENCE_STOPPED : CAIRN_PRESENCE_RUNS,
                               now_ns);
            CAIRN_ASSERT(cairn_live_check(live, now_ns, now_ns) == CAIRN_OK);
        }
        cairn_reduce_destroy(reduce);
        cairn_live_destroy(live);
    }
    free(memory);
    return 0;
}
