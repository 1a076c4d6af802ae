/*
 * tests/fuzz/fuzz_report.c - reports and ledgers as a hostile peer may send them: refused, or
 * values within their bounds that pack to as many bytes; and an analysis takes what was not
 * refused.
 */
#include "base/assert.h"
#include "replan/live/enforce.h"
#include "replan/live/live.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORLD_MAX = 64 };

/* Any words of a peer about commands run one command per entry, once, and never two at a time. */
static void
try_commands(struct cairn_ledger *ledger)
{
    static struct cairn_ledger older;
    const struct cairn_enforcer by = {.node = 1, .incarnation = 1};
    uint64_t before = 0, number;

    older = *ledger;
    (void)cairn_enforce_settle(ledger, &by, NULL, 0, 1);
    for (uint32_t i = 0;
         i <= CAIRN_LEDGER_MAX && (number = cairn_enforce_next(ledger, &by, 4, 2)) != 0; i++) {
        CAIRN_ASSERT(number > before && cairn_enforce_next(ledger, &by, UINT32_MAX, 2) == 0);
        CAIRN_ASSERT(cairn_enforce_end(ledger, &by, number, CAIRN_ENFORCEMENT_EXITED, 0, 3));
        before = number;
    }
    (void)cairn_enforce_keep(ledger, &older);
    CAIRN_ASSERT(!cairn_enforce_keep(ledger, &older));
    (void)cairn_enforce_keep_budget(ledger, &older);
}

static void
try_ledger(const uint8_t *data, size_t size)
{
    static struct cairn_ledger ledger;
    static uint8_t packed[CAIRN_LEDGER_BYTES_MAX], again[CAIRN_LEDGER_BYTES_MAX];
    struct cairn_writer writer;
    char text[512];

    if (cairn_ledger_unpack(data, size, &ledger) != CAIRN_OK)
        return;
    cairn_writer_init(&writer, packed, sizeof packed);
    cairn_ledger_pack(&ledger, &writer);
    CAIRN_ASSERT(cairn_writer_done(&writer) == CAIRN_OK);
    CAIRN_ASSERT(writer.used_bytes == size);
    /* Runs are not taken from peers, so only what was packed here comes back byte for byte. */
    CAIRN_ASSERT(cairn_ledger_unpack(packed, size, &ledger) == CAIRN_OK);
    cairn_writer_init(&writer, again, sizeof again);
    cairn_ledger_pack(&ledger, &writer);
    CAIRN_ASSERT(cairn_writer_done(&writer) == CAIRN_OK);
    CAIRN_ASSERT(writer.used_bytes == size && memcmp(packed, again, size) == 0);
    for (uint32_t i = 0; i < ledger.count; i++) {
        cairn_ledger_describe(&ledger.entries[i], text, sizeof text);
        cairn_ledger_advise(&ledger, &ledger.entries[i], 2, i % 2, text, sizeof text);
        CAIRN_ASSERT(memchr(text, '\0', sizeof text) != NULL);
        cairn_enforce_describe(&ledger.entries[i].enforcement, text, CAIRN_ENFORCE_TEXT_BYTES);
        CAIRN_ASSERT(memchr(text, '\0', CAIRN_ENFORCE_TEXT_BYTES) != NULL);
    }
    try_commands(&ledger);
}

static void
try_reports(const uint8_t *data, size_t size)
{
    static struct cairn_report report;
    static struct cairn_ledger ledger;
    struct cairn_live_options options = {.ledger = &ledger, .first_run = 1};
    struct cairn_reader reader;
    struct cairn_live *live;
    uint64_t now_ns = 1;

    cairn_ledger_init(&ledger);
    CAIRN_ASSERT(cairn_live_create(&options, &live) == CAIRN_OK);
    cairn_reader_init(&reader, data, size);
    while (cairn_reader_left(&reader) > 0) {
        cairn_report_unpack(&reader, &report);
        if (reader.failed)
            break;
        CAIRN_ASSERT(report.rank < report.world);
        now_ns += 1000000;
        if (report.world <= WORLD_MAX) /* larger worlds are valid, and slow */
            CAIRN_ASSERT(cairn_live_take(live, report.rank % 3, &report, now_ns, now_ns) ==
                         CAIRN_OK);
    }
    CAIRN_ASSERT(cairn_live_check(live, now_ns, now_ns) == CAIRN_OK);
    cairn_live_destroy(live);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (data[0] & 1)
        try_ledger(data + 1, size - 1);
    else
        try_reports(data + 1, size - 1);
    return 0;
}
