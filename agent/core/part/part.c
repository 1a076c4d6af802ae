/* agent/core/part/part.c - parts: their slots and their life; see part.h. */
#include "agent/core/part/part.h"

#include <stdlib.h>
#include <string.h>

struct cairn_action *
part_ask(struct env *env, const struct part *part, enum cairn_action_type type)
{
    struct cairn_action *action = env_act(env, type);

    action->as.part = (struct cairn_action_part){.part = part_index(env, part),
                                                 .request = env_request(env),
                                                 .generation = part->generation,
                                                 .member = part->member};
    return action;
}

struct part *
parts_find(struct parts *parts, struct cairn_generation_id generation, uint32_t member)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct part *part = &parts->list[i];

        if (part->state != CAIRN_PART_FREE && part->member == member &&
            cairn_generation_is(part->generation, generation))
            return part;
    }
    return NULL;
}

struct part *
parts_in_flight(const struct env *env)
{
    const struct membership *membership = env->membership;
    struct part *newest = NULL;

    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct part *part = &env->parts->list[i];

        if (part->state != CAIRN_PART_FREE && part->state != CAIRN_PART_REBUILDING &&
            part->member == membership->self_member &&
            part->generation.epoch == membership->record.epoch &&
            /* An incomplete part fills its slot even if a broken leader says it is committed. */
            (part->state != CAIRN_PART_COMPLETE ||
             cairn_generation_later(part->generation, env->decision->committed)) &&
            (!newest || cairn_generation_later(part->generation, newest->generation)))
            newest = part;
    }
    return newest;
}

void
part_fini(struct part *part)
{
    for (uint32_t p = 0; p < CAIRN_SHARDS_MAX; p++)
        cairn_shard_seal_fini(&part->seals[p]);
    free(part->parity_crcs[0]);
    free(part->capture.captured);
    free(part->capture.crcs);
    free(part->mending.missing);
    free(part->checked.bad);
    cairn_roster_drop(part->roster);
    memset(part, 0, sizeof *part);
}

cairn_err
part_init(struct part *part, struct cairn_generation_id generation, uint32_t member,
          struct cairn_roster *roster, enum cairn_part_state state)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(roster, member);
    struct cairn_geometry geometry;
    cairn_err err;

    err = cairn_geometry_init(group->count - group->parity, group->parity, 1, &geometry);
    if (err)
        return err;
    memset(part, 0, sizeof *part);
    part->state = state;
    part->generation = generation;
    part->member = member;
    part->position = roster->members[member].position;
    part->geometry = geometry;
    part->roster = cairn_roster_hold(roster);
    return CAIRN_OK;
}

static void
erase_record(struct env *env, uint32_t index)
{
    if (!CAIRN_PLANTED(env, BUG_REUSE_SLOT))
        env_act(env, CAIRN_ACTION_STORE_PART)->as.store.part = index;
}

/* True if a rebuilt part would take the last own slot that captures need once the repair is over.
 * Parts of other generations do not count: they go then. */
static bool
own_slots_full(const struct env *env, struct cairn_generation_id generation)
{
    uint32_t taken = 0;

    for (uint32_t i = 0; i < env->options->slots; i++)
        taken += env->parts->list[i].state != CAIRN_PART_FREE &&
                 cairn_generation_is(env->parts->list[i].generation, generation);
    return taken + 1 >= env->options->slots;
}

struct part *
part_open(struct env *env, struct cairn_generation_id generation, uint32_t member,
          struct cairn_roster *roster, enum cairn_part_state state, bool own)
{
    uint32_t slots = env->options->slots;
    bool in_slot = own && (state == CAIRN_PART_OPEN || !own_slots_full(env, generation));
    uint32_t end = state == CAIRN_PART_OPEN ? slots : CAIRN_PARTS_MAX;

    for (uint32_t i = in_slot ? 0 : slots; i < end; i++) {
        struct part *part = &env->parts->list[i];

        if (part->state != CAIRN_PART_FREE)
            continue;
        if (part_init(part, generation, member, roster, state) != CAIRN_OK)
            return NULL;
        part->progress_ns = env->now_ns;
        part->mending.memory_ready = i < slots;
        if (i < slots)
            erase_record(env, i); /* of what the slot held before */
        return part;
    }
    return NULL;
}

void
part_drop(struct env *env, struct part *part, bool tell_trainers)
{
    uint32_t index = part_index(env, part);

    if (tell_trainers)
        env_act(env, CAIRN_ACTION_DROP)->as.trainer.generation = part->generation;
    erase_record(env, index);
    env_act(env, CAIRN_ACTION_CLOSE)->as.part =
        (struct cairn_action_part){.part = index, .generation = part->generation};
    if (part->state == CAIRN_PART_COMPLETE)
        env->parts->version++;
    part_fini(part);
}

bool
part_lengths(struct part *part)
{
    uint64_t blocks[CAIRN_SHARDS_MAX] = {0};

    if (part->lengths_known)
        return true;
    for (uint32_t p = 0; p < part->geometry.n; p++) {
        if (!part->seals[p].whole)
            return false;
        blocks[p] = part->seals[p].shard_blocks;
    }
    part->lengths_known = cairn_stripes_init(&part->geometry, blocks, &part->stripes) == CAIRN_OK;
    return part->lengths_known;
}

bool
part_span(const struct part *part, uint32_t stripe, uint64_t line, uint32_t count, struct span *out)
{
    const struct cairn_stripes *stripes = &part->stripes;
    uint32_t at = part->position;
    uint64_t start, blocks;

    blocks = stripe < part->geometry.n ? cairn_stripes_blocks(stripes, stripe, at) : 0;
    if (count == 0 || line > blocks || count > blocks - line)
        return false;
    out->area = cairn_stripes_area(stripes, stripe, at, &start);
    if (out->area == CAIRN_AREA_DATA) {
        out->slot = 0;
        out->first_block = out->index = start + line;
        out->crcs = part->seals[at].crcs + out->first_block;
        return true;
    }
    out->slot = cairn_stripe_parity_row(&part->geometry, stripe, at);
    out->first_block = line;
    out->index = stripes->shard_blocks[at] + start + line;
    out->crcs = part->parity_crcs[out->slot] ? part->parity_crcs[out->slot] + line : NULL;
    return true;
}

static uint64_t
parity_blocks(const struct part *part)
{
    return cairn_stripes_area_blocks(&part->stripes, part->position, CAIRN_AREA_PARITY);
}

cairn_err
part_make_parity_crcs(struct part *part)
{
    uint64_t *crcs = calloc(parity_blocks(part) + 1, sizeof *crcs);

    free(part->parity_crcs[0]);
    part->parity_crcs[0] = crcs;
    for (uint32_t slot = 1; crcs && slot < part->geometry.m; slot++)
        part->parity_crcs[slot] = crcs += part_slot_blocks(part, slot - 1);
    return part->parity_crcs[0] ? CAIRN_OK : CAIRN_NOMEM;
}

cairn_err
part_keep_parity_crcs(struct part *part, const uint64_t *crcs, uint64_t count)
{
    cairn_err err = count == parity_blocks(part) ? part_make_parity_crcs(part) : CAIRN_INTERNAL;

    if (!err && count > 0)
        memcpy(part->parity_crcs[0], crcs, 8 * count);
    return err;
}
