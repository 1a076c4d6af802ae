/*
 * agent/core/epoch/record.c - an epoch's record, packed; see record.h.
 *
 * Packed (little-endian): u64 epoch, u64 restart epoch, the ready generation (epoch, step, run), u8
 * from files, u8 has a ready roster, that roster and one u32 holder per member, the epoch's roster,
 * u32 agents, per agent u64 incarnation and u64 version, u32 fleet bytes, the fleet.
 */
#include "agent/core/epoch/record.h"

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
record_code(struct cairn_codec *codec, void *value)
{
    struct record *record = value;
    uint32_t ready_members;

    cairn_codec_u64(codec, &record->epoch);
    cairn_codec_u64(codec, &record->restart_epoch);
    cairn_generation_code(codec, &record->ready);
    cairn_codec_bool(codec, &record->ready_from_files);
    cairn_roster_code_optional(codec, &record->ready_roster);
    ready_members = record->ready_roster ? record->ready_roster->member_count : 0;
    record->holders =
        cairn_codec_array(codec, record->holders, ready_members, sizeof *record->holders);
    for (uint32_t m = 0; record->holders && m < ready_members; m++) {
        cairn_codec_u32(codec, &record->holders[m]);
        cairn_codec_check(codec, record->holders[m] < CAIRN_NODES_MAX);
    }
    cairn_codec_check(codec, !record->ready_roster ||
                                 (!record->ready_from_files && record->ready.step != 0));
    cairn_roster_code(codec, &record->roster);
    cairn_codec_count(codec, &record->agent_count, CAIRN_NODES_MAX, 16);
    record->seen =
        cairn_codec_array(codec, record->seen, record->agent_count, sizeof *record->seen);
    for (uint32_t a = 0; record->seen && a < record->agent_count; a++) {
        cairn_codec_u64(codec, &record->seen[a].incarnation);
        cairn_codec_u64(codec, &record->seen[a].version);
    }
    cairn_codec_bytes(codec, &record->fleet, &record->fleet_len);
    cairn_codec_check(codec, record->epoch != 0 && record->restart_epoch <= record->epoch &&
                                 record->ready.epoch <= record->epoch);
    for (uint32_t m = 0; record->roster && m < record->roster->member_count; m++)
        cairn_codec_check(codec, record->roster->members[m].agent < record->agent_count);
}

cairn_err
record_read(const void *bytes, size_t len, struct record *out)
{
    struct record record = {0};
    cairn_err err = cairn_codec_unpack(record_code, &record, bytes, len);

    if (err)
        record_fini(&record);
    else
        *out = record;
    return err;
}

cairn_err
record_pack(const struct record *record, uint8_t **bytes, size_t *len)
{
    return cairn_codec_pack(record_code, record, bytes, len);
}
