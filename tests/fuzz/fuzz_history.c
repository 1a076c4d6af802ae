/*
 * tests/fuzz/fuzz_history.c - records of a history's store, and histories as a hostile peer may
 * send them: refused, or events within their bounds that pack to the same bytes; in any case they
 * tell, they merge to no more entries than there are events, each node's in its own order, and the
 * report's parts add up.
 *
 * First byte: 0 a record with its checksum as it is, 1 with a right one, else as many histories, of
 * equal length.
 */
#include "agent/history/report.h"
#include "agent/process/recorder_store.h"
#include "agent/service/operator_histories.h"
#include "base/assert.h"
#include "base/crc.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NODES_MAX = 4, KEY_BYTES = 8 };

static void
try_record(const uint8_t *data, size_t size, bool right)
{
    static uint8_t bytes[1 << 16];
    uint8_t key[KEY_BYTES], value[RECORDER_VALUE_BYTES_MAX];
    char text[HISTORY_TEXT_BYTES], line[2 * HISTORY_TEXT_BYTES];
    struct history_event event;
    struct history_book book;
    struct cairn_writer writer;

    if (size < KEY_BYTES + 8 || size > sizeof bytes)
        return;
    memcpy(bytes, data, size);
    if (right) {
        cairn_writer_init(&writer, bytes + size - 8, 8);
        cairn_write_u64(&writer, cairn_crc64(cairn_crc64(0, bytes, KEY_BYTES), bytes + KEY_BYTES,
                                             size - KEY_BYTES - 8));
    }
    if (recorder_record_unpack(bytes, KEY_BYTES, bytes + KEY_BYTES, size - KEY_BYTES, text,
                               &event) != CAIRN_OK)
        return;
    CAIRN_ASSERT(recorder_record_pack(&event, key, value) == size - KEY_BYTES);
    CAIRN_ASSERT(memcmp(value, bytes + KEY_BYTES, size - KEY_BYTES) == 0);
    history_event_describe(&event, line, sizeof line);
    history_book_init(&book);
    if (history_book_load(&book, &event) == CAIRN_OK)
        (void)history_book_add(&book, &event);
    history_book_fini(&book);
}

static void
check_order(const struct history_merge *merge)
{
    uint64_t last[NODES_MAX] = {0};

    for (uint32_t i = 0; i < merge->count; i++) {
        const struct history_entry *entry = &merge->entries[i];

        CAIRN_ASSERT(entry->event.number > last[entry->node]);
        last[entry->node] = entry->event.number;
    }
}

static void
try_histories(const uint8_t *data, size_t size, uint32_t node_count)
{
    struct operator_histories *histories = histories_create(node_count);
    struct history_list lists[NODES_MAX];
    struct history_merge merge;
    struct history_report report;
    uint32_t count = 0, events = 0;
    size_t part = size / node_count;

    CAIRN_ASSERT(histories);
    for (uint32_t i = 0; i < node_count; i++) {
        size_t half = part / 2;

        (void)histories_take(histories, i, 0, part, data + i * part, half);
        (void)histories_take(histories, i, half, part, data + i * part + half, part - half);
    }
    CAIRN_ASSERT(histories_read(histories, lists, &count) == CAIRN_OK);
    for (uint32_t i = 0; i < count; i++)
        events += lists[i].count;
    CAIRN_ASSERT(history_merge(lists, count, &merge) == CAIRN_OK);
    CAIRN_ASSERT(merge.count <= events);
    check_order(&merge);
    CAIRN_ASSERT(history_report(lists, count, &merge, 0, UINT64_C(1) << 61, &report) == CAIRN_OK);
    CAIRN_ASSERT(report.until_wall_ns >= report.from_wall_ns);
    CAIRN_ASSERT(report.productive_ns + report.redone_ns + report.snapshots_ns +
                     report.stragglers_ns + report.down_ns ==
                 report.until_wall_ns - report.from_wall_ns);
    history_merge_fini(&merge);
    histories_free(histories);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (data[0] < 2)
        try_record(data + 1, size - 1, data[0] == 1);
    else
        try_histories(data + 1, size - 1, data[0] % NODES_MAX + 1);
    return 0;
}
