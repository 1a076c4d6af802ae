/*
 * agent/core/part_record.c - the record of a complete part, which makes memory describe itself; see
 * part.h.
 *
 * Packed (little-endian): u32 version, generation (u64 epoch, step, run), u32 member, the roster,
 * per position of the group u64 length and the seal, per parity slot u64 count and the checksums of
 * its blocks. The slot store around it adds a checksum.
 */
#include "agent/core/part.h"

#include <stdlib.h>
#include <string.h>

enum { RECORD_VERSION = 4 };

static void
write_record(const struct part *part, struct cairn_writer *writer)
{
    cairn_write_u32(writer, RECORD_VERSION);
    cairn_write_u64(writer, part->generation.epoch);
    cairn_write_u64(writer, part->generation.step);
    cairn_write_u64(writer, part->generation.run);
    cairn_write_u32(writer, part->member);
    cairn_roster_write(part->roster, writer);
    for (uint32_t p = 0; p < part->geometry.n; p++) {
        cairn_write_u64(writer, part->seals[p].len);
        cairn_write_bytes(writer, part->seals[p].bytes, part->seals[p].len);
    }
    for (uint32_t slot = 0; slot < part->geometry.m; slot++) {
        uint64_t count = part_slot_blocks(part, slot);

        cairn_write_u64(writer, count);
        for (uint64_t i = 0; i < count; i++)
            cairn_write_u64(writer, part->parity_crcs[slot][i]);
    }
}

cairn_err
part_store(struct env *env, const struct parts *parts, const struct part *part)
{
    struct cairn_writer writer;
    struct cairn_action *action;
    uint8_t *bytes;

    cairn_writer_init(&writer, NULL, SIZE_MAX);
    write_record(part, &writer);
    bytes = malloc(writer.used_bytes);
    if (!bytes)
        return CAIRN_NOMEM;
    cairn_writer_init(&writer, bytes, writer.used_bytes);
    write_record(part, &writer);
    action = env_act(env, CAIRN_ACTION_STORE_PART);
    if (!action) {
        free(bytes);
        return CAIRN_NOMEM;
    }
    action->as.store.part = part_index(parts, part);
    action->as.store.bytes = bytes;
    action->as.store.bytes_len = writer.used_bytes;
    action->owned = bytes;
    return CAIRN_OK;
}

static cairn_err
read_seals(struct cairn_reader *reader, struct part *part)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(part->roster, part->member);

    for (uint32_t p = 0; p < part->geometry.n; p++) {
        struct seal *seal = &part->seals[p];
        uint64_t len = cairn_read_u64(reader);
        const uint8_t *bytes = cairn_read_borrow(reader, len);
        cairn_err err;

        if (!bytes)
            return CAIRN_CORRUPT;
        seal->bytes = malloc(len ? len : 1);
        if (!seal->bytes)
            return CAIRN_NOMEM;
        memcpy(seal->bytes, bytes, len);
        seal->len = len;
        seal->received = len;
        err = seal_parse(seal, part->generation, group->members[p]);
        if (err)
            return err;
    }
    return part_lengths(part) ? CAIRN_OK : CAIRN_CORRUPT;
}

static cairn_err
read_parity_crcs(struct cairn_reader *reader, struct part *part)
{
    for (uint32_t slot = 0; slot < part->geometry.m; slot++) {
        uint64_t count = cairn_read_u64(reader);

        if (count != part_slot_blocks(part, slot) || count > cairn_reader_left(reader) / 8)
            return CAIRN_CORRUPT;
        part->parity_crcs[slot] = malloc(count ? 8 * count : 8);
        if (!part->parity_crcs[slot])
            return CAIRN_NOMEM;
        for (uint64_t i = 0; i < count; i++)
            part->parity_crcs[slot][i] = cairn_read_u64(reader);
    }
    return cairn_reader_done(reader);
}

bool
cairn_core_record_is_foreign(struct cairn_bytes record)
{
    struct cairn_reader reader;

    cairn_reader_init(&reader, record.bytes, record.len);
    return record.len > 0 && cairn_read_u32(&reader) != RECORD_VERSION;
}

cairn_err
part_load(const struct cairn_core_options *options, struct parts *parts, uint32_t index,
          struct cairn_bytes record)
{
    struct part *part = &parts->list[index];
    struct cairn_generation generation;
    struct cairn_roster *roster = NULL;
    struct cairn_reader reader;
    uint32_t version, member;
    cairn_err err;

    cairn_reader_init(&reader, record.bytes, record.len);
    version = cairn_read_u32(&reader);
    generation.epoch = cairn_read_u64(&reader);
    generation.step = cairn_read_u64(&reader);
    generation.run = cairn_read_u64(&reader);
    member = cairn_read_u32(&reader);
    if (version != RECORD_VERSION)
        return CAIRN_VERSION;
    err = cairn_roster_read(&reader, &roster);
    if (err)
        return err;
    err = member < roster->member_count
              ? part_init(part, generation, member, roster, CAIRN_PART_COMPLETE)
              : CAIRN_CORRUPT;
    cairn_roster_drop(roster);
    if (err)
        return err;
    err = read_seals(&reader, part);
    if (!err)
        err = read_parity_crcs(&reader, part);
    if (!err && index < options->slots &&
        part->stripes.shard_blocks[part->position] > options->slot_blocks)
        err = CAIRN_CORRUPT;
    if (err)
        part_fini(part);
    else
        part->mending.memory_ready = true;
    return err;
}
