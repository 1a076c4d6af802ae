/*
 * agent/core/restore/inventory.c - packs and unpacks what an agent holds.
 *
 * Packed (little-endian): u64 incarnation, promised, active; u8 flags (1 blank, 2 knows what it
 * promised, 4 a promised roster follows); the generations ready and spilled; u32 ranks, u32 world,
 * u64 blocks, the promised roster; u64 version of the parts; u32 count, and per complete part:
 * generation, u32 member, u64 largest shard of its group, u64 bad blocks, then those listed: u32
 * count, and for each u8 area and u64 block in the area, u8 1 and the roster it was made under, or
 * 0: that of the part before.
 */
#include "agent/core/restore/inventory.h"

#include <stdlib.h>
#include <string.h>

static void
code_flags(struct cairn_codec *codec, struct inventory_self *self, bool *has_roster)
{
    bool *flags[] = {&self->blank, &self->knows, has_roster};
    uint8_t byte = 0;

    for (uint32_t i = 0; i < 3; i++)
        byte |= (uint8_t)(*flags[i] << i);
    cairn_codec_u8(codec, &byte);
    for (uint32_t i = 0; i < 3; i++)
        *flags[i] = byte >> i & 1;
}

/* `before`: the part before it, NULL for the first. */
static void
code_part(struct cairn_codec *codec, struct inventory_part *part,
          const struct inventory_part *before)
{
    bool has_roster = !before || !part->roster || !cairn_roster_same(before->roster, part->roster);

    cairn_generation_code(codec, &part->generation);
    cairn_codec_u32(codec, &part->member);
    cairn_codec_u64(codec, &part->largest_shard);
    cairn_codec_u64(codec, &part->bad_count);
    cairn_codec_count(codec, &part->bad_listed, BAD_BLOCKS_MAX, 9);
    cairn_codec_check(codec, part->bad_listed == min_u64(part->bad_count, BAD_BLOCKS_MAX));
    part->bad = cairn_codec_array(codec, part->bad, part->bad_listed, sizeof *part->bad);
    for (uint32_t i = 0; part->bad && i < part->bad_listed; i++)
        cairn_bad_block_code(codec, &part->bad[i]);
    cairn_codec_bool(codec, &has_roster);
    cairn_codec_check(codec, has_roster || before);
    if (has_roster)
        cairn_roster_code(codec, &part->roster);
    else if (codec->reads && !codec->err)
        part->roster = cairn_roster_hold(before->roster);
    cairn_codec_check(codec, !part->roster || part->member < part->roster->member_count);
}

static void
code_inventory(struct cairn_codec *codec, void *value)
{
    struct inventory *inventory = value;
    struct inventory_self *self = &inventory->self;
    bool has_roster = self->promised_roster != NULL;

    cairn_codec_u64(codec, &self->incarnation);
    cairn_codec_u64(codec, &self->promised);
    cairn_codec_u64(codec, &self->active);
    code_flags(codec, self, &has_roster);
    cairn_generation_code(codec, &self->ready);
    cairn_generation_code(codec, &self->spilled);
    cairn_codec_u32(codec, &self->ranks);
    cairn_codec_u32(codec, &self->world);
    cairn_codec_u64(codec, &self->blocks);
    if (has_roster)
        cairn_roster_code(codec, &self->promised_roster);
    cairn_codec_u64(codec, &inventory->version);
    cairn_codec_count(codec, &inventory->part_count, CAIRN_PARTS_MAX, 1);
    cairn_codec_check(codec, self->incarnation != 0);
    for (uint32_t i = 0; i < inventory->part_count; i++)
        code_part(codec, &inventory->parts[i], i > 0 ? &inventory->parts[i - 1] : NULL);
}

/* Lists the complete parts, whose rosters and bad blocks the list borrows. */
static void
list_parts(const struct parts *parts, struct inventory *inventory)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        const struct part *part = &parts->list[i];
        struct inventory_part *out = &inventory->parts[inventory->part_count];

        if (part->state != CAIRN_PART_COMPLETE)
            continue;
        *out = (struct inventory_part){
            .generation = part->generation,
            .member = part->member,
            .bad_count = part->checked.bad_count,
            .bad_listed = (uint32_t)min_u64(part->checked.bad_count, BAD_BLOCKS_MAX),
            .bad = part->checked.bad,
            .roster = part->roster};
        for (uint32_t p = 0; p < part->geometry.n; p++)
            if (part->seals[p].whole)
                out->largest_shard = max_u64(out->largest_shard, part->seals[p].shard_blocks);
        inventory->part_count++;
    }
}

void
inventory_send(struct env *env, uint32_t to, uint64_t attempt, const struct inventory_self *self)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_INVENTORY, self->active);
    struct inventory inventory = {.self = *self, .version = env->parts->version};

    list_parts(env->parts, &inventory);
    message.as.inventory.attempt = attempt;
    env_send_packed(env, to, &message, code_inventory, &inventory);
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

cairn_err
inventory_read(const void *bytes, size_t len, struct inventory *out)
{
    struct inventory inventory = {.known = true};
    cairn_err err = cairn_codec_unpack(code_inventory, &inventory, bytes, len);

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
            cairn_generation_is(inventory->parts[i].generation, generation))
            return &inventory->parts[i];
    return NULL;
}
