/*
 * agent/core/part/part_record.c - complete parts: their record, which makes memory describe
 * itself, and their comparison with its checksums; see part.h.
 *
 * Packed (little-endian): u32 version, generation (u64 epoch, step, run), u32 member, the roster,
 * per position of the group u64 length and the seal, per parity slot u64 count and the checksums of
 * its blocks. The slot store around it adds a checksum.
 */
#include "agent/core/part/part.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_VERSION = 4 };

static void
write_record(const struct part *part, struct cairn_writer *writer)
{
    cairn_write_u32(writer, RECORD_VERSION);
    generation_write(writer, part->generation);
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
part_store(struct env *env, const struct part *part)
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
    if (action == &env->actions->missing) {
        free(bytes);
        return CAIRN_NOMEM;
    }
    action->as.store = (struct cairn_action_store){part_index(env, part), bytes, writer.used_bytes};
    action->owned = bytes;
    return CAIRN_OK;
}

cairn_err
part_complete(struct env *env, struct part *part)
{
    cairn_err err = part_store(env, part);

    if (err)
        return err;
    part->state = CAIRN_PART_COMPLETE;
    env->parts->version++;
    for (uint32_t i = 0; CAIRN_PLANTED(env, BUG_DROP_EARLY) && i < CAIRN_PARTS_MAX; i++)
        if (env->parts->list[i].state == CAIRN_PART_COMPLETE &&
            generation_later(part->generation, env->parts->list[i].generation))
            part_drop(env, &env->parts->list[i], false);
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
part_record_is_foreign(struct cairn_bytes record)
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
    struct cairn_generation_id generation;
    struct cairn_roster *roster = NULL;
    struct cairn_reader reader;
    uint32_t version, member;
    cairn_err err;

    cairn_reader_init(&reader, record.bytes, record.len);
    version = cairn_read_u32(&reader);
    generation = generation_read(&reader);
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

/* ---- comparing with the checksums ---- */

void
parts_verify(struct env *env, struct cairn_generation_id generation, uint64_t attempt)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct part *part = &env->parts->list[i];

        if (part->state != CAIRN_PART_COMPLETE || part->checked.attempt == attempt ||
            (generation.step != 0 && !generation_is(part->generation, generation)))
            continue;
        part->checked.attempt = attempt;
        part->checked.request = part_ask(env, part, CAIRN_ACTION_VERIFY)->request;
    }
}

void
parts_verified(struct env *env, struct part *part, const struct cairn_event_answer *answer)
{
    size_t listed = answer->count < BAD_BLOCKS_MAX ? answer->count : BAD_BLOCKS_MAX;
    struct cairn_bad_block *bad = NULL;

    if (answer->request != part->checked.request)
        return; /* perhaps of a part that is gone */
    if (listed)
        bad = calloc(listed, sizeof *bad);
    if (answer->err || (listed && !bad)) { /* it stays under way for this attempt: the
                                            * coordinator's deadline decides */
        part->checked.attempt = 0;
        free(bad);
        return;
    }
    if (listed) {
        memcpy(bad, answer->bad, listed * sizeof *bad);
        for (size_t i = 0; i < listed; i++)
            bad[i].position = part->position;
        CAIRN_LOG_AT(ERROR,
                     "verify: damaged memory step=%" PRIu64 " member=%u blocks=%" PRIu64
                     " (rebuilt from the other nodes if enough is left; test this node's memory)",
                     part->generation.step, part->member, answer->count);
    }
    free(part->checked.bad);
    part->checked.bad = bad;
    part->checked.bad_count = answer->count;
    part->checked.record_mended = false;
    part->checked.request = 0;
    if (answer->record_damaged) { /* this agent still knows all of it */
        CAIRN_LOG_AT(ERROR,
                     "verify: damaged record step=%" PRIu64
                     " member=%u (written again; test this node's memory)",
                     part->generation.step, part->member);
        part->checked.record_mended = part_store(env, part) == CAIRN_OK;
    }
}

bool
parts_are_verified(const struct parts *parts, struct cairn_generation_id generation,
                   uint64_t attempt)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        const struct part *part = &parts->list[i];

        if (part->state == CAIRN_PART_COMPLETE && part->checked.request != 0 &&
            (part->checked.attempt >= attempt || part->checked.attempt == 0) &&
            (generation.step == 0 || generation_is(part->generation, generation)))
            return false;
    }
    return true;
}
