/*
 * agent/core/part/part_record.c - complete parts: their record, which makes memory describe
 * itself, and their comparison with its checksums; see part.h.
 *
 * Packed (little-endian): u32 version, generation (u64 epoch, step, run), u32 member, the roster,
 * per position of the group u64 length and the seal, per parity slot u64 count and the checksums of
 * its blocks. The slot store around it adds a checksum.
 */
#include "agent/core/part/part.h"

#include "base/bitset.h"
#include "base/log.h"
#include "erasure/repair.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { RECORD_VERSION = 4 };

static void
code_seal(struct cairn_codec *codec, struct part *part, uint32_t position)
{
    struct cairn_shard_seal *seal = &part->seals[position];
    uint64_t len = seal->len;

    cairn_codec_u64(codec, &len);
    cairn_codec_check(codec, len <= cairn_reader_left(&codec->reader));
    seal->bytes = cairn_codec_array(codec, seal->bytes, len, 1);
    if (!codec->reads) {
        cairn_write_bytes(&codec->writer, seal->bytes, len);
    } else if (!codec->err) {
        cairn_read_bytes(&codec->reader, seal->bytes, len);
        seal->len = seal->received = len;
        codec->err = cairn_shard_seal_parse(
            seal, part->generation,
            cairn_roster_group_of(part->roster, part->member)->members[position]);
    }
}

static void
code_record(struct cairn_codec *codec, void *value)
{
    struct part *part = value;
    uint32_t version = RECORD_VERSION, member = part->member;
    struct cairn_generation_id generation = part->generation;
    struct cairn_roster *roster = part->roster;

    cairn_codec_u32(codec, &version);
    if (version != RECORD_VERSION)
        codec->err = CAIRN_VERSION;
    cairn_generation_code(codec, &generation);
    cairn_codec_u32(codec, &member);
    cairn_roster_code(codec, &roster);
    cairn_codec_check(codec, !roster || member < roster->member_count);
    if (codec->reads && !codec->err)
        codec->err = part_init(part, generation, member, roster, CAIRN_PART_COMPLETE);
    if (codec->reads)
        cairn_roster_drop(roster);
    for (uint32_t p = 0; p < part->geometry.n; p++)
        code_seal(codec, part, p);
    cairn_codec_check(codec, !codec->reads || codec->err || part_lengths(part));
    if (codec->reads && !codec->err)
        codec->err = part_make_parity_crcs(part);
    for (uint32_t slot = 0; !codec->err && slot < part->geometry.m; slot++) {
        uint64_t blocks = part_slot_blocks(part, slot), count = blocks;

        cairn_codec_u64(codec, &count);
        cairn_codec_check(codec, count == blocks);
        for (uint64_t i = 0; !codec->err && i < count; i++)
            cairn_codec_u64(codec, &part->parity_crcs[slot][i]);
    }
}

cairn_err
part_store(struct env *env, const struct part *part)
{
    struct cairn_action *action;
    uint8_t *bytes;
    size_t len;

    if (cairn_codec_pack(code_record, part, &bytes, &len) != CAIRN_OK)
        return CAIRN_NOMEM;
    action = env_act(env, CAIRN_ACTION_STORE_PART);
    if (action == &env->actions->missing) {
        free(bytes);
        return CAIRN_NOMEM;
    }
    action->as.store = (struct cairn_action_store){part_index(env, part), bytes, len};
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
            cairn_generation_later(part->generation, env->parts->list[i].generation))
            part_drop(env, &env->parts->list[i], false);
    return CAIRN_OK;
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
    cairn_err err = cairn_codec_unpack(code_record, part, record.bytes, record.len);

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

/* A complete part of the generation, or of any (step 0). */
static bool
is_compared(const struct part *part, struct cairn_generation_id generation)
{
    return part->state == CAIRN_PART_COMPLETE &&
           (generation.step == 0 || cairn_generation_is(part->generation, generation));
}

/* Adds the blocks of a part that are read when `lost` is rebuilt from the rest of the group. */
static void
add_read(const struct part *part, uint64_t lost, uint64_t *set)
{
    struct cairn_repair_request request = {.stripes = &part->stripes,
                                           .intact = cairn_geometry_all(&part->geometry) & ~lost,
                                           .rebuild_data = lost,
                                           .rebuild_parity = lost};
    struct cairn_repair schedule;
    struct cairn_repair_item item;
    struct span span;

    if (cairn_repair_init(&request, NULL, NULL, &schedule) != CAIRN_OK)
        return;
    while (cairn_repair_next(&schedule, &item))
        if ((item.reads >> part->position & 1) &&
            part_span(part, item.stripe, item.line_first, item.line_count, &span))
            for (uint32_t i = 0; i < item.line_count; i++)
                cairn_bitset_add(set, (uint32_t)span.index + i);
}

/* Leaves out nothing where damage is known, or where another comparison is under way. */
static void
verify(struct env *env, struct part *part, uint64_t lost)
{
    struct cairn_action *action = env_act(env, CAIRN_ACTION_VERIFY);
    uint64_t *skip = NULL;

    if (lost != 0 && part->lengths_known && part->checked.request == 0 &&
        part->checked.bad_count == 0) {
        size_t bytes = 8 * (part_blocks(part) / 64 + 1);

        skip = env_keep(env, action, NULL, bytes);
        if (skip) {
            memset(skip, CAIRN_PLANTED(env, BUG_UNREAD_UNSEEN) ? 0xff : 0, bytes);
            add_read(part, lost, skip);
        }
    }
    action->as.part = (struct cairn_action_part){.part = part_index(env, part),
                                                 .request = env_request(env),
                                                 .generation = part->generation,
                                                 .member = part->member,
                                                 .skip = skip};
    part->checked.request = action->as.part.request;
}

void
parts_verify(struct env *env, struct cairn_generation_id generation, uint64_t lost)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        if (is_compared(&env->parts->list[i], generation))
            verify(env, &env->parts->list[i], lost);
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
    if (answer->err || (listed && !bad)) { /* no answer: the coordinator's deadline decides */
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
parts_are_verified(const struct parts *parts, struct cairn_generation_id generation)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        if (is_compared(&parts->list[i], generation) && parts->list[i].checked.request != 0)
            return false;
    return true;
}
