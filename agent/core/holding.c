/*
 * agent/core/holding.c - one member's part of one generation in this agent's memory: its life, and
 * its record.
 *
 * The record is what makes memory describe itself: it is stored when the holding is complete,
 * erased before its slot is filled again, and read by the agent that adopts the memory after a
 * crash. Packed (little-endian): u32 version, generation, u32 member, the table, u64 data blocks,
 * per position of the group u64 length and the seal, per parity slot u64 count and the checksums of
 * its blocks. The slot store around it adds a checksum.
 */
#include "agent/core/core_state.h"

#include <stdlib.h>
#include <string.h>

/* 3: the manifests in seals are of version 2. */
enum { RECORD_VERSION = 3 };

uint32_t
holding_index(const struct cairn_core *core, const struct holding *holding)
{
    return (uint32_t)(holding - core->holdings);
}

struct holding *
holding_find(struct cairn_core *core, struct cairn_generation generation, uint32_t member)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];

        if (holding->state != CAIRN_HOLDING_FREE && holding->member == member &&
            generation_is(holding->generation, generation))
            return holding;
    }
    return NULL;
}

void
holding_fini(struct holding *holding)
{
    for (uint32_t p = 0; p < CAIRN_SHARDS_MAX; p++) {
        seal_fini(&holding->seals[p]);
        free(holding->parity_crcs[p]);
    }
    free(holding->captured);
    free(holding->crcs);
    free(holding->data_flows);
    free(holding->folded);
    free(holding->chain);
    free(holding->bad);
    free(holding->missing);
    cairn_roster_drop(holding->table);
    memset(holding, 0, sizeof *holding);
}

static cairn_err
holding_init(struct holding *holding, struct cairn_generation generation, uint32_t member,
             struct cairn_roster *table, enum cairn_holding_state state)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(table, member);
    struct cairn_geometry geometry;
    cairn_err err;

    err = cairn_geometry_init(group->count - group->parity, group->parity, 1, &geometry);
    if (err)
        return err;
    memset(holding, 0, sizeof *holding);
    holding->generation = generation;
    holding->member = member;
    holding->position = table->members[member].position;
    holding->geometry = geometry;
    holding->state = state;
    holding->table = cairn_roster_hold(table);
    holding->data_flows = calloc((size_t)geometry.k * geometry.m + 1, sizeof *holding->data_flows);
    holding->folded = calloc((size_t)geometry.m * geometry.n + 1, sizeof *holding->folded);
    holding->chain = calloc((size_t)geometry.m * geometry.n + 1, sizeof *holding->chain);
    if (holding->data_flows && holding->folded && holding->chain)
        return CAIRN_OK;
    holding_fini(holding);
    return CAIRN_NOMEM;
}

/*
 * A rebuilt part may not take the last own slot that captures will need once the repair is over:
 * what is there of other generations goes then, but parts of the same one stay.
 */
static bool
own_slots_full(const struct cairn_core *core, struct cairn_generation generation)
{
    uint32_t taken = 0;

    for (uint32_t i = 0; i < core->options.slots; i++)
        taken += core->holdings[i].state != CAIRN_HOLDING_FREE &&
                 generation_is(core->holdings[i].generation, generation);
    return taken + 1 >= core->options.slots;
}

struct holding *
holding_open(struct cairn_core *core, struct cairn_generation generation, uint32_t member,
             struct cairn_roster *table, enum cairn_holding_state state)
{
    bool own = core->self_member == UINT32_MAX || member == core->self_member ||
               table->members[member].agent == core->options.self;
    uint32_t first = own && (state == CAIRN_HOLDING_OPEN || !own_slots_full(core, generation))
                         ? 0
                         : core->options.slots;
    struct cairn_action *action;

    for (uint32_t i = first; i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];

        if (holding->state != CAIRN_HOLDING_FREE ||
            (i >= core->options.slots && state == CAIRN_HOLDING_OPEN))
            continue;
        if (holding_init(holding, generation, member, table, state) != CAIRN_OK)
            return NULL;
        holding->memory = i;
        holding->memory_ready = i < core->options.slots;
        if (i >= core->options.slots)
            return holding;
        if (CAIRN_PLANTED(core, BUG_REUSE_SLOT))
            return holding;
        action =
            action_add(core, CAIRN_ACTION_STORE_HOLDING); /* erases what the slot held before */
        if (action)
            action->holding = i;
        return holding;
    }
    return NULL;
}

void
holding_drop(struct cairn_core *core, struct holding *holding, bool tell_trainers)
{
    struct cairn_action *action;

    if (tell_trainers) {
        action = action_add(core, CAIRN_ACTION_DROP);
        if (action)
            action->generation = holding->generation;
    }
    action =
        CAIRN_PLANTED(core, BUG_REUSE_SLOT) ? NULL : action_add(core, CAIRN_ACTION_STORE_HOLDING);
    if (action)
        action->holding = holding_index(core, holding);
    action = action_add(core, CAIRN_ACTION_CLOSE);
    if (action)
        action->holding = holding_index(core, holding);
    holding_fini(holding);
}

bool
holding_lengths(struct holding *holding)
{
    uint64_t blocks[CAIRN_SHARDS_MAX] = {0};

    if (holding->lengths_known)
        return true;
    for (uint32_t p = 0; p < holding->geometry.n; p++) {
        if (!holding->seals[p].whole)
            return false;
        blocks[p] = holding->seals[p].shard_blocks;
    }
    holding->lengths_known =
        cairn_stripes_init(&holding->geometry, blocks, &holding->stripes) == CAIRN_OK;
    return holding->lengths_known;
}

bool
holding_crc(const struct holding *holding, uint32_t area, uint32_t stripe, uint64_t block,
            uint64_t *crc)
{
    const struct seal *seal = &holding->seals[holding->position];
    uint32_t slot;

    if (area == CAIRN_AREA_DATA) {
        if (!seal->whole || block >= seal->shard_blocks)
            return false;
        *crc = seal->crcs[block];
        return true;
    }
    slot = cairn_stripe_parity_row(&holding->geometry, stripe, holding->position);
    if (slot == CAIRN_STRIPE_NONE || !holding->lengths_known || !holding->parity_crcs[slot] ||
        block >= holding->stripes.parity_blocks[stripe])
        return false;
    *crc = holding->parity_crcs[slot][block];
    return true;
}

static void
write_record(const struct holding *holding, struct cairn_writer *writer)
{
    cairn_write_u32(writer, RECORD_VERSION);
    cairn_write_u64(writer, holding->generation.epoch);
    cairn_write_u64(writer, holding->generation.step);
    cairn_write_u32(writer, holding->member);
    cairn_roster_write(holding->table, writer);
    for (uint32_t p = 0; p < holding->geometry.n; p++) {
        cairn_write_u64(writer, holding->seals[p].len);
        cairn_write_bytes(writer, holding->seals[p].bytes, holding->seals[p].len);
    }
    for (uint32_t slot = 0; slot < holding->geometry.m; slot++) {
        uint32_t stripe = cairn_slot_stripe(&holding->geometry, holding->position, slot);
        uint64_t count = holding->stripes.parity_blocks[stripe];

        cairn_write_u64(writer, count);
        for (uint64_t i = 0; i < count; i++)
            cairn_write_u64(writer, holding->parity_crcs[slot][i]);
    }
}

cairn_err
holding_store(struct cairn_core *core, struct holding *holding)
{
    struct cairn_writer writer;
    struct cairn_action *action;
    uint8_t *bytes;

    cairn_writer_init(&writer, NULL, SIZE_MAX);
    write_record(holding, &writer);
    bytes = malloc(writer.used_bytes);
    if (!bytes)
        return CAIRN_NOMEM;
    cairn_writer_init(&writer, bytes, writer.used_bytes);
    write_record(holding, &writer);
    action = action_add(core, CAIRN_ACTION_STORE_HOLDING);
    if (!action) {
        free(bytes);
        return CAIRN_NOMEM;
    }
    action->holding = holding_index(core, holding);
    action->bytes = bytes;
    action->bytes_len = writer.used_bytes;
    return CAIRN_OK;
}

static cairn_err
read_seals(struct cairn_reader *reader, struct holding *holding)
{
    for (uint32_t p = 0; p < holding->geometry.n; p++) {
        struct seal *seal = &holding->seals[p];
        uint64_t len = cairn_read_u64(reader);
        const uint8_t *bytes = cairn_read_borrow(reader, len);
        uint32_t member = cairn_roster_group_of(holding->table, holding->member)->members[p];
        cairn_err err;

        if (!bytes)
            return CAIRN_CORRUPT;
        seal->bytes = malloc(len ? len : 1);
        if (!seal->bytes)
            return CAIRN_NOMEM;
        memcpy(seal->bytes, bytes, len);
        seal->len = len;
        seal->received = len;
        err = seal_parse(seal, holding->generation, member);
        if (err)
            return err;
    }
    return holding_lengths(holding) ? CAIRN_OK : CAIRN_CORRUPT;
}

static cairn_err
read_parity_crcs(struct cairn_reader *reader, struct holding *holding)
{
    for (uint32_t slot = 0; slot < holding->geometry.m; slot++) {
        uint32_t stripe = cairn_slot_stripe(&holding->geometry, holding->position, slot);
        uint64_t count = cairn_read_u64(reader);

        if (count != holding->stripes.parity_blocks[stripe] ||
            count > cairn_reader_left(reader) / 8)
            return CAIRN_CORRUPT;
        holding->parity_crcs[slot] = malloc(count ? 8 * count : 8);
        if (!holding->parity_crcs[slot])
            return CAIRN_NOMEM;
        for (uint64_t i = 0; i < count; i++)
            holding->parity_crcs[slot][i] = cairn_read_u64(reader);
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
holding_load(struct cairn_core *core, uint32_t slot, struct cairn_bytes record)
{
    struct holding *holding = &core->holdings[slot];
    struct cairn_generation generation;
    struct cairn_roster *table = NULL;
    struct cairn_reader reader;
    uint32_t version, member;
    cairn_err err;

    cairn_reader_init(&reader, record.bytes, record.len);
    version = cairn_read_u32(&reader);
    generation.epoch = cairn_read_u64(&reader);
    generation.step = cairn_read_u64(&reader);
    member = cairn_read_u32(&reader);
    if (version != RECORD_VERSION)
        return CAIRN_VERSION;
    err = cairn_roster_read(&reader, &table);
    if (err)
        return err;
    if (member >= table->member_count)
        err = CAIRN_CORRUPT;
    else
        err = holding_init(holding, generation, member, table, CAIRN_HOLDING_COMPLETE);
    cairn_roster_drop(table);
    if (err)
        return err;
    holding->memory = slot;
    holding->memory_ready = true;
    err = read_seals(&reader, holding);
    if (!err)
        err = read_parity_crcs(&reader, holding);
    if (!err && slot < core->options.slots &&
        holding->seals[holding->position].shard_blocks > core->options.slot_blocks)
        err = CAIRN_CORRUPT;
    if (err) {
        holding_fini(holding);
        return err;
    }
    holding->data_blocks = holding->seals[holding->position].shard_blocks;
    return CAIRN_OK;
}
