/*
 * agent/core/epoch/record.c - an epoch's record, packed; see record.h.
 *
 * Packed (little-endian): u64 epoch, u64 restart epoch, the ready generation (epoch, step, run), u8
 * from files, u8 has a ready roster, that roster and one u32 holder per member, the epoch's roster,
 * u32 agents, per agent u64 incarnation and u64 version, u32 fleet bytes, the fleet.
 */
#include "agent/core/epoch/record.h"

#include "agent/core/env/generation.h"
#include "base/limits.h"

#include <stdlib.h>
#include <string.h>

void
record_fini(struct record *record)
{
    cairn_roster_drop(record->ready_roster);
    cairn_roster_drop(record->roster);
    free(record->holders);
    free(record->seen);
    free(record->fleet);
    memset(record, 0, sizeof *record);
}

void
record_write(const struct record *record, struct cairn_writer *writer)
{
    cairn_write_u64(writer, record->epoch);
    cairn_write_u64(writer, record->restart_epoch);
    generation_write(writer, record->ready);
    cairn_write_u8(writer, record->ready_from_files);
    cairn_write_u8(writer, record->ready_roster != NULL);
    if (record->ready_roster) {
        cairn_roster_write(record->ready_roster, writer);
        for (uint32_t m = 0; m < record->ready_roster->member_count; m++)
            cairn_write_u32(writer, record->holders[m]);
    }
    cairn_roster_write(record->roster, writer);
    cairn_write_u32(writer, record->agent_count);
    for (uint32_t a = 0; a < record->agent_count; a++) {
        cairn_write_u64(writer, record->seen[a].incarnation);
        cairn_write_u64(writer, record->seen[a].version);
    }
    cairn_write_u32(writer, record->fleet_len);
    cairn_write_bytes(writer, record->fleet, record->fleet_len);
}

static cairn_err
read_ready(struct cairn_reader *reader, struct record *record)
{
    cairn_err err;

    record->ready = generation_read(reader);
    record->ready_from_files = cairn_read_u8(reader) != 0;
    if (cairn_read_u8(reader) == 0)
        return CAIRN_OK;
    err = cairn_roster_read(reader, &record->ready_roster);
    if (err)
        return err;
    record->holders = calloc(record->ready_roster->member_count, sizeof *record->holders);
    if (!record->holders)
        return CAIRN_NOMEM;
    for (uint32_t m = 0; m < record->ready_roster->member_count; m++) {
        record->holders[m] = cairn_read_u32(reader);
        if (record->holders[m] >= CAIRN_NODES_MAX)
            return CAIRN_CORRUPT;
    }
    return record->ready_from_files || record->ready.step == 0 ? CAIRN_CORRUPT : CAIRN_OK;
}

static cairn_err
read_seen(struct cairn_reader *reader, struct record *record)
{
    record->agent_count = cairn_read_u32(reader);
    if (record->agent_count == 0 || record->agent_count > CAIRN_NODES_MAX ||
        record->agent_count > cairn_reader_left(reader) / 16)
        return CAIRN_CORRUPT;
    record->seen = calloc(record->agent_count, sizeof *record->seen);
    if (!record->seen)
        return CAIRN_NOMEM;
    for (uint32_t a = 0; a < record->agent_count; a++) {
        record->seen[a].incarnation = cairn_read_u64(reader);
        record->seen[a].version = cairn_read_u64(reader);
    }
    return CAIRN_OK;
}

static cairn_err
read_fleet(struct cairn_reader *reader, struct record *record)
{
    uint32_t len = cairn_read_u32(reader);
    const uint8_t *bytes = cairn_read_borrow(reader, len);

    if (!bytes)
        return CAIRN_CORRUPT;
    record->fleet = malloc(len ? len : 1);
    if (!record->fleet)
        return CAIRN_NOMEM;
    memcpy(record->fleet, bytes, len);
    record->fleet_len = len;
    return CAIRN_OK;
}

cairn_err
record_read(struct cairn_reader *reader, struct record *out)
{
    struct record record = {0};
    cairn_err err;

    record.epoch = cairn_read_u64(reader);
    record.restart_epoch = cairn_read_u64(reader);
    err = read_ready(reader, &record);
    if (!err)
        err = cairn_roster_read(reader, &record.roster);
    if (!err)
        err = read_seen(reader, &record);
    if (!err)
        err = read_fleet(reader, &record);
    if (!err && (record.epoch == 0 || record.restart_epoch > record.epoch ||
                 record.ready.epoch > record.epoch))
        err = CAIRN_CORRUPT;
    for (uint32_t m = 0; !err && m < record.roster->member_count; m++)
        if (record.roster->members[m].agent >= record.agent_count)
            err = CAIRN_CORRUPT;
    if (err)
        record_fini(&record);
    else
        *out = record;
    return err;
}

cairn_err
record_pack(const struct record *record, uint8_t **bytes, size_t *len)
{
    struct cairn_writer writer;
    uint8_t *packed;

    cairn_writer_init(&writer, NULL, SIZE_MAX);
    record_write(record, &writer);
    packed = malloc(writer.used_bytes);
    if (!packed)
        return CAIRN_NOMEM;
    cairn_writer_init(&writer, packed, writer.used_bytes);
    record_write(record, &writer);
    *bytes = packed;
    *len = writer.used_bytes;
    return CAIRN_OK;
}
