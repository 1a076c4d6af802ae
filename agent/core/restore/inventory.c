/*
 * agent/core/restore/inventory.c - packs and unpacks what an agent holds.
 *
 * Packed (little-endian): u64 incarnation, promised, active; u8 flags (1 blank, 2 knows what it
 * promised, 4 ready lies in files, 8 a promised roster follows); the generations committed, ready
 * and spilled; u32 ranks, u32 world, u64 blocks, the promised roster; u64 version of the parts;
 * u32 count, and per complete part: generation, u32 member, u64 largest shard of its group, u64
 * bad blocks, u32 listed ones (u8 area, u64 block in the area, each), u8 1 and the roster it was
 * made under, or 0: that of the part before.
 */
#include "agent/core/restore/inventory.h"

#include <stdlib.h>
#include <string.h>

enum { FLAG_BLANK = 1, FLAG_KNOWS = 2, FLAG_FROM_FILES = 4, FLAG_ROSTER = 8 };

static void
write_part(struct cairn_writer *writer, const struct part *part, const struct part *before)
{
    bool repeats = before && cairn_roster_same(before->roster, part->roster);
    uint32_t listed = (uint32_t)min_u64(part->checked.bad_count, BAD_BLOCKS_MAX);
    uint64_t largest = 0;

    for (uint32_t p = 0; p < part->geometry.n; p++)
        if (part->seals[p].whole)
            largest = max_u64(largest, part->seals[p].shard_blocks);
    generation_write(writer, part->generation);
    cairn_write_u32(writer, part->member);
    cairn_write_u64(writer, largest);
    cairn_write_u64(writer, part->checked.bad_count);
    cairn_write_u32(writer, listed);
    for (uint32_t i = 0; i < listed; i++) {
        cairn_write_u8(writer, (uint8_t)part->checked.bad[i].area);
        cairn_write_u64(writer, part->checked.bad[i].block);
    }
    cairn_write_u8(writer, !repeats);
    if (!repeats)
        cairn_roster_write(part->roster, writer);
}

static void
write_inventory(struct cairn_writer *writer, const struct inventory_self *self,
                const struct parts *parts)
{
    const struct part *before = NULL;
    uint32_t count = 0;

    cairn_write_u64(writer, self->incarnation);
    cairn_write_u64(writer, self->promised);
    cairn_write_u64(writer, self->active);
    cairn_write_u8(writer,
                   (uint8_t)((self->blank ? FLAG_BLANK : 0) | (self->knows ? FLAG_KNOWS : 0) |
                             (self->ready_from_files ? FLAG_FROM_FILES : 0) |
                             (self->promised_roster ? FLAG_ROSTER : 0)));
    generation_write(writer, self->committed);
    generation_write(writer, self->ready);
    generation_write(writer, self->spilled);
    cairn_write_u32(writer, self->ranks);
    cairn_write_u32(writer, self->world);
    cairn_write_u64(writer, self->blocks);
    if (self->promised_roster)
        cairn_roster_write(self->promised_roster, writer);
    cairn_write_u64(writer, parts->version);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        count += parts->list[i].state == CAIRN_PART_COMPLETE;
    cairn_write_u32(writer, count);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        if (parts->list[i].state != CAIRN_PART_COMPLETE)
            continue;
        write_part(writer, &parts->list[i], before);
        before = &parts->list[i];
    }
}

cairn_err
inventory_pack(const struct inventory_self *self, const struct parts *parts, uint8_t **bytes,
               size_t *len)
{
    struct cairn_writer writer;
    uint8_t *packed;

    cairn_writer_init(&writer, NULL, SIZE_MAX);
    write_inventory(&writer, self, parts);
    *len = writer.used_bytes;
    packed = malloc(*len);
    if (!packed)
        return CAIRN_NOMEM;
    cairn_writer_init(&writer, packed, *len);
    write_inventory(&writer, self, parts);
    *bytes = packed;
    return CAIRN_OK;
}

void
inventory_forget_part(struct inventory *inventory, uint32_t index)
{
    free(inventory->parts[index].bad);
    cairn_roster_drop(inventory->parts[index].roster);
    inventory->part_count--;
    memmove(&inventory->parts[index], &inventory->parts[index + 1],
            (inventory->part_count - index) * sizeof inventory->parts[0]);
}

void
inventory_fini(struct inventory *inventory)
{
    while (inventory->part_count > 0)
        inventory_forget_part(inventory, inventory->part_count - 1);
    cairn_roster_drop(inventory->self.promised_roster);
    memset(inventory, 0, sizeof *inventory);
}

static cairn_err
read_part(struct cairn_reader *reader, struct inventory_part *out,
          const struct inventory_part *before)
{
    cairn_err err = CAIRN_OK;

    out->generation = generation_read(reader);
    out->member = cairn_read_u32(reader);
    out->largest_shard = cairn_read_u64(reader);
    out->bad_count = cairn_read_u64(reader);
    out->bad_listed = cairn_read_u32(reader);
    if (out->bad_listed != min_u64(out->bad_count, BAD_BLOCKS_MAX))
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
    if (cairn_read_u8(reader) != 0)
        err = cairn_roster_read(reader, &out->roster);
    else if (before)
        out->roster = cairn_roster_hold(before->roster);
    else
        err = CAIRN_CORRUPT;
    if (!err && out->member >= out->roster->member_count)
        err = CAIRN_CORRUPT;
    return err;
}

static cairn_err
read_self(struct cairn_reader *reader, struct inventory_self *self)
{
    uint8_t flags;

    self->incarnation = cairn_read_u64(reader);
    self->promised = cairn_read_u64(reader);
    self->active = cairn_read_u64(reader);
    flags = cairn_read_u8(reader);
    self->blank = flags & FLAG_BLANK;
    self->knows = flags & FLAG_KNOWS;
    self->ready_from_files = flags & FLAG_FROM_FILES;
    self->committed = generation_read(reader);
    self->ready = generation_read(reader);
    self->spilled = generation_read(reader);
    self->ranks = cairn_read_u32(reader);
    self->world = cairn_read_u32(reader);
    self->blocks = cairn_read_u64(reader);
    return flags & FLAG_ROSTER ? cairn_roster_read(reader, &self->promised_roster) : CAIRN_OK;
}

cairn_err
inventory_read(struct cairn_reader *reader, struct inventory *out)
{
    struct inventory inventory = {.known = true};
    cairn_err err = read_self(reader, &inventory.self);
    uint32_t count;

    inventory.version = cairn_read_u64(reader);
    count = cairn_read_u32(reader);
    if (!err && (count > CAIRN_PARTS_MAX || inventory.self.incarnation == 0))
        err = CAIRN_CORRUPT;
    for (uint32_t i = 0; i < count && !err; i++) {
        inventory.part_count = i + 1;
        err = read_part(reader, &inventory.parts[i], i > 0 ? &inventory.parts[i - 1] : NULL);
    }
    if (!err)
        err = cairn_reader_done(reader);
    if (err)
        inventory_fini(&inventory);
    else
        *out = inventory;
    return err;
}

const struct inventory_part *
inventory_find(const struct inventory *inventory, struct cairn_generation_id generation,
               uint32_t member)
{
    for (uint32_t i = 0; i < inventory->part_count; i++)
        if (inventory->parts[i].member == member &&
            generation_is(inventory->parts[i].generation, generation))
            return &inventory->parts[i];
    return NULL;
}
