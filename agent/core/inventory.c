/*
 * agent/core/inventory.c - what an agent holds, packed for a coordinator.
 *
 * Packed (little-endian): u64 promised, u64 active, u64 forgotten before (of the active epoch), the
 * spilled and the ready generation, u32 ranks that are attached, u32 ranks of the job as they say,
 * u64 blocks of their shard, u32 count of combinations of layouts that are known not to fit
 * together and the u64 name of each, u32 count of complete holdings, and per holding: generation,
 * u32 member, u8 committed, u64 bad blocks, u32 ranks of its group, u32 ranks of the job, u64 sum
 * of its group's tiling, u64 its group's layouts (0: it is known committed), u32 listed bad blocks
 * (u8 area, u64 block in the area, each), the roster it was made under.
 */
#include "agent/core/core_state.h"

#include <stdlib.h>
#include <string.h>

static void
write_holding(const struct cairn_core *core, const struct holding *holding,
              struct cairn_writer *writer)
{
    uint32_t listed = (uint32_t)min_u64(holding->bad_count, BAD_BLOCKS_MAX);
    bool committed = generation_is(holding->generation, core->committed) ||
                     generation_is(holding->generation, core->ready);
    uint32_t digests[CAIRN_SHARDS_MAX];
    uint64_t tiling_sum = 0;
    uint32_t group_ranks = 0;

    cairn_write_u64(writer, holding->generation.epoch);
    cairn_write_u64(writer, holding->generation.step);
    cairn_write_u32(writer, holding->member);
    cairn_write_u8(writer, committed);
    cairn_write_u64(writer, holding->bad_count);
    for (uint32_t p = 0; p < holding->geometry.n; p++) {
        group_ranks += holding->seals[p].ranks;
        tiling_sum = cairn_tiling_add(tiling_sum, holding->seals[p].tiling_sum);
        if (!committed)
            digests[p] =
                cairn_tiling_digest(holding->seals[p].manifest, holding->seals[p].manifest_len);
    }
    cairn_write_u32(writer, group_ranks);
    cairn_write_u32(writer, holding->seals[holding->position].world);
    cairn_write_u64(writer, tiling_sum);
    cairn_write_u64(writer, committed ? 0 : tiling_of_group(digests, holding->geometry.n));
    cairn_write_u32(writer, listed);
    for (uint32_t i = 0; i < listed; i++) {
        cairn_write_u8(writer, (uint8_t)holding->bad[i].area);
        cairn_write_u64(writer, holding->bad[i].block);
    }
    cairn_roster_write(holding->table, writer);
}

static void
write_refused(const struct cairn_core *core, struct cairn_writer *writer)
{
    const struct tiling_verdict *known = core->tiling.known;
    uint32_t count = 0;

    for (uint32_t i = 0; i < TILINGS_KNOWN; i++)
        count += known[i].combination != 0 && !known[i].good;
    cairn_write_u32(writer, count);
    for (uint32_t i = 0; i < TILINGS_KNOWN; i++)
        if (known[i].combination != 0 && !known[i].good)
            cairn_write_u64(writer, known[i].combination);
}

static void
write_inventory(const struct cairn_core *core, struct cairn_writer *writer)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        count += core->holdings[i].state == CAIRN_HOLDING_COMPLETE;
    cairn_write_u64(writer, core->promised);
    cairn_write_u64(writer, core->active);
    cairn_write_u64(writer, core->forgotten_before);
    cairn_write_u64(writer, core->spilled.epoch);
    cairn_write_u64(writer, core->spilled.step);
    cairn_write_u64(writer, core->ready.epoch);
    cairn_write_u64(writer, core->ready.step);
    cairn_write_u32(writer, core->own_ranks);
    cairn_write_u32(writer, core->own_world);
    cairn_write_u64(writer, core->own_blocks);
    write_refused(core, writer);
    cairn_write_u32(writer, count);
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        if (core->holdings[i].state == CAIRN_HOLDING_COMPLETE)
            write_holding(core, &core->holdings[i], writer);
}

void
inventory_send(struct cairn_core *core, uint32_t to, uint64_t epoch, uint64_t request)
{
    struct cairn_message message = message_new(core, CAIRN_MSG_INVENTORY, epoch);
    struct cairn_writer writer;
    uint8_t *bytes;

    cairn_writer_init(&writer, NULL, SIZE_MAX);
    write_inventory(core, &writer);
    bytes = malloc(writer.used_bytes);
    if (!bytes)
        return;
    cairn_writer_init(&writer, bytes, writer.used_bytes);
    write_inventory(core, &writer);
    message.request = request;
    message.bytes = bytes;
    message.bytes_len = (uint32_t)writer.used_bytes;
    send_message(core, to, &message);
    free(bytes);
}

void
inventory_fini(struct inventory *inventory)
{
    for (uint32_t i = 0; i < inventory->holding_count; i++) {
        free(inventory->holdings[i].bad);
        cairn_roster_drop(inventory->holdings[i].table);
    }
    memset(inventory, 0, sizeof *inventory);
}

static cairn_err
read_holding(struct cairn_reader *reader, struct inventory_holding *out)
{
    out->generation.epoch = cairn_read_u64(reader);
    out->generation.step = cairn_read_u64(reader);
    out->member = cairn_read_u32(reader);
    out->committed = cairn_read_u8(reader) != 0;
    out->bad_count = cairn_read_u64(reader);
    out->group_ranks = cairn_read_u32(reader);
    out->world = cairn_read_u32(reader);
    out->tiling_sum = cairn_read_u64(reader);
    out->layout = cairn_read_u64(reader);
    out->bad_listed = cairn_read_u32(reader);
    if (out->tiling_sum >= CAIRN_TILING_FIELD || out->bad_listed > BAD_BLOCKS_MAX ||
        out->bad_listed > out->bad_count)
        return CAIRN_CORRUPT;
    if (out->bad_listed) {
        out->bad = calloc(out->bad_listed, sizeof *out->bad);
        if (!out->bad)
            return CAIRN_NOMEM;
    }
    for (uint32_t i = 0; i < out->bad_listed; i++) {
        uint8_t area = cairn_read_u8(reader);

        if (area > CAIRN_AREA_PARITY)
            return CAIRN_CORRUPT;
        out->bad[i].area = (enum cairn_area)area;
        out->bad[i].block = cairn_read_u64(reader);
    }
    return cairn_roster_read(reader, &out->table);
}

cairn_err
inventory_read(struct cairn_reader *reader, struct inventory *out)
{
    struct inventory inventory = {.known = true};
    cairn_err err = CAIRN_OK;
    uint32_t count;

    inventory.promised = cairn_read_u64(reader);
    inventory.active = cairn_read_u64(reader);
    inventory.forgotten_before = cairn_read_u64(reader);
    inventory.spilled.epoch = cairn_read_u64(reader);
    inventory.spilled.step = cairn_read_u64(reader);
    inventory.ready.epoch = cairn_read_u64(reader);
    inventory.ready.step = cairn_read_u64(reader);
    inventory.ranks = cairn_read_u32(reader);
    inventory.world = cairn_read_u32(reader);
    inventory.blocks = cairn_read_u64(reader);
    inventory.refused_count = cairn_read_u32(reader);
    if (inventory.refused_count > TILINGS_KNOWN)
        return CAIRN_CORRUPT;
    for (uint32_t i = 0; i < inventory.refused_count; i++)
        inventory.refused[i] = cairn_read_u64(reader);
    count = cairn_read_u32(reader);
    if (count > CAIRN_HOLDINGS_MAX)
        return CAIRN_CORRUPT;
    for (uint32_t i = 0; i < count && !err; i++) {
        inventory.holding_count = i + 1;
        err = read_holding(reader, &inventory.holdings[i]);
        if (!err && inventory.holdings[i].member >= inventory.holdings[i].table->member_count)
            err = CAIRN_CORRUPT;
    }
    if (!err)
        err = cairn_reader_done(reader);
    if (err)
        inventory_fini(&inventory);
    else
        *out = inventory;
    return err;
}
