/* replan/live/ledger_bytes.c - the ledger as bytes, and back. */
#include "replan/live/ledger.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void
write_double(struct cairn_writer *writer, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    cairn_write_u64(writer, bits);
}

static double
read_double(struct cairn_reader *reader)
{
    uint64_t bits = cairn_read_u64(reader);
    double value;

    memcpy(&value, &bits, sizeof value);
    if (!(isfinite(value) && value >= 0))
        reader->failed = true;
    return value;
}

static void
write_items(struct cairn_writer *writer, const uint32_t *items, uint32_t count, uint32_t unit,
            uint32_t units_max)
{
    cairn_write_u32(writer, count);
    for (uint32_t i = 0; i < (count < units_max ? count : units_max) * unit; i++)
        cairn_write_u32(writer, items[i]);
}

static uint32_t
read_items(struct cairn_reader *reader, uint32_t *items, uint32_t unit, uint32_t units_max)
{
    uint32_t count = cairn_read_u32(reader);

    for (uint32_t i = 0; i < (count < units_max ? count : units_max) * unit; i++)
        items[i] = cairn_read_u32(reader);
    return count;
}

/* A text that a terminal will show: printable ASCII, which is all that a detector writes. */
static void
read_text(struct cairn_reader *reader, char *out, size_t out_bytes)
{
    cairn_read_string(reader, out, out_bytes);
    for (const char *at = out; !reader->failed && *at; at++)
        if (*at < ' ' || *at > '~')
            reader->failed = true;
}

static void
pack_enforcement(const struct cairn_enforcement *enforcement, struct cairn_writer *writer)
{
    cairn_write_u8(writer, (uint8_t)enforcement->state);
    cairn_write_u32(writer, enforcement->node);
    cairn_write_u64(writer, enforcement->incarnation);
    cairn_write_u64(writer, enforcement->begun_wall_ns);
    cairn_write_u64(writer, enforcement->ended_wall_ns);
    cairn_write_u32(writer, enforcement->exchanges);
    cairn_write_u32(writer, enforcement->value);
}

static void
unpack_enforcement(struct cairn_reader *reader, struct cairn_enforcement *enforcement)
{
    uint8_t state = cairn_read_u8(reader);

    if (state > CAIRN_ENFORCEMENT_EXITED)
        reader->failed = true;
    enforcement->state = (enum cairn_enforcement_state)state;
    enforcement->node = cairn_read_u32(reader);
    enforcement->incarnation = cairn_read_u64(reader);
    enforcement->begun_wall_ns = cairn_read_u64(reader);
    enforcement->ended_wall_ns = cairn_read_u64(reader);
    enforcement->exchanges = cairn_read_u32(reader);
    enforcement->value = cairn_read_u32(reader);
}

static void
pack_entry(const struct cairn_ledger_entry *entry, struct cairn_writer *writer)
{
    cairn_write_u64(writer, entry->number);
    cairn_write_u64(writer, 0); /* was the run, which other agents must not believe */
    cairn_write_u8(writer, (uint8_t)entry->kind);
    cairn_write_string(writer, entry->pattern);
    write_items(writer, entry->ranks, entry->rank_count, 1, CAIRN_LEDGER_RANKS_MAX);
    write_items(writer, entry->nodes, entry->node_count, 1, CAIRN_LEDGER_NODES_MAX);
    write_items(writer, entry->links, entry->link_count, 2, CAIRN_LEDGER_LINKS_MAX);
    cairn_write_u32(writer, entry->victim_count);
    cairn_write_u32(writer, entry->since_step);
    cairn_write_u32(writer, entry->until_step);
    cairn_write_u32(writer, entry->detected_step);
    cairn_write_u32(writer, entry->run_since_step);
    cairn_write_u32(writer, entry->returns);
    write_double(writer, entry->rate);
    write_double(writer, entry->confidence);
    cairn_write_u32(writer, entry->evidence_kinds);
    cairn_write_u64(writer, entry->opened_wall_ns);
    cairn_write_u64(writer, entry->closed_wall_ns);
    cairn_write_u64(writer, entry->lost_ns);
    cairn_write_u64(writer, entry->lost_until_wall_ns);
    cairn_write_string(writer, entry->evidence);
    cairn_write_string(writer, entry->closed_why);
    pack_enforcement(&entry->enforcement, writer);
}

static void
unpack_entry(struct cairn_reader *reader, struct cairn_ledger_entry *entry)
{
    uint8_t kind;

    entry->number = cairn_read_u64(reader);
    (void)cairn_read_u64(reader);
    kind = cairn_read_u8(reader);
    if (kind > CAIRN_STRUCTURAL)
        reader->failed = true;
    entry->kind = (enum cairn_verdict_kind)kind;
    read_text(reader, entry->pattern, sizeof entry->pattern);
    entry->rank_count = read_items(reader, entry->ranks, 1, CAIRN_LEDGER_RANKS_MAX);
    entry->node_count = read_items(reader, entry->nodes, 1, CAIRN_LEDGER_NODES_MAX);
    entry->link_count = read_items(reader, entry->links, 2, CAIRN_LEDGER_LINKS_MAX);
    entry->victim_count = cairn_read_u32(reader);
    entry->since_step = cairn_read_u32(reader);
    entry->until_step = cairn_read_u32(reader);
    entry->detected_step = cairn_read_u32(reader);
    entry->run_since_step = cairn_read_u32(reader);
    entry->returns = cairn_read_u32(reader);
    entry->rate = read_double(reader);
    entry->confidence = read_double(reader);
    entry->evidence_kinds = cairn_read_u32(reader);
    entry->opened_wall_ns = cairn_read_u64(reader);
    entry->closed_wall_ns = cairn_read_u64(reader);
    entry->lost_ns = cairn_read_u64(reader);
    entry->lost_until_wall_ns = cairn_read_u64(reader);
    read_text(reader, entry->evidence, sizeof entry->evidence);
    read_text(reader, entry->closed_why, sizeof entry->closed_why);
    unpack_enforcement(reader, &entry->enforcement);
    if (entry->evidence_kinds > CAIRN_EVIDENCE_ALL || entry->confidence > 1)
        reader->failed = true;
}

void
cairn_ledger_pack(const struct cairn_ledger *ledger, struct cairn_writer *writer)
{
    cairn_write_u64(writer, ledger->version);
    cairn_write_u64(writer, ledger->next_number);
    cairn_write_u32(writer, ledger->count);
    for (uint32_t i = 0; i < ledger->count; i++)
        pack_entry(&ledger->entries[i], writer);
    cairn_write_u32(writer, ledger->exchanges_count);
    for (uint32_t i = 0; i < ledger->exchanges_count; i++) {
        cairn_write_u64(writer, ledger->exchanges[i].wall_ns);
        cairn_write_u32(writer, ledger->exchanges[i].count);
        cairn_write_u32(writer, ledger->exchanges[i].begun);
    }
    for (uint32_t i = 0; i < CAIRN_ENFORCED_RESULTS; i++)
        cairn_write_u64(writer, ledger->enforced_before[i]);
}

cairn_err
cairn_ledger_unpack(const void *bytes, size_t bytes_len, struct cairn_ledger *out)
{
    struct cairn_ledger *ledger = calloc(1, sizeof *ledger);
    struct cairn_reader reader;
    uint64_t number = 0;
    cairn_err err;

    if (!ledger)
        return CAIRN_NOMEM;
    cairn_reader_init(&reader, bytes, bytes_len);
    ledger->version = cairn_read_u64(&reader);
    ledger->next_number = cairn_read_u64(&reader);
    ledger->count = cairn_read_u32(&reader);
    if (ledger->count > CAIRN_LEDGER_MAX)
        reader.failed = true;
    for (uint32_t i = 0; !reader.failed && i < ledger->count; i++) {
        unpack_entry(&reader, &ledger->entries[i]);
        if (ledger->entries[i].number <= number || ledger->entries[i].number >= ledger->next_number)
            reader.failed = true;
        number = ledger->entries[i].number;
    }
    ledger->exchanges_count = cairn_read_u32(&reader);
    if (ledger->exchanges_count > CAIRN_LEDGER_EXCHANGES_MAX)
        reader.failed = true;
    for (uint32_t i = 0; !reader.failed && i < ledger->exchanges_count; i++) {
        ledger->exchanges[i].wall_ns = cairn_read_u64(&reader);
        ledger->exchanges[i].count = cairn_read_u32(&reader);
        ledger->exchanges[i].begun = cairn_read_u32(&reader);
        if (ledger->exchanges[i].begun > ledger->exchanges[i].count)
            reader.failed = true;
    }
    for (uint32_t i = 0; i < CAIRN_ENFORCED_RESULTS; i++)
        ledger->enforced_before[i] = cairn_read_u64(&reader);
    err = ledger->next_number == 0 ? CAIRN_CORRUPT : cairn_reader_done(&reader);
    if (!err)
        *out = *ledger;
    free(ledger);
    return err;
}
