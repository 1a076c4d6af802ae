/*
 * tests/sim/truth.c - what really was: every generation as the trainers had it, the one that must
 * not be lost and who is to hold it, the damage that was done on purpose; and the comparison of all
 * memory with it, byte for byte.
 */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

/* ---- truths ---- */

void
truth_fini(struct truth *truth)
{
    free(truth->blocks);
    free(truth->agents);
    free(truth->content);
    free(truth->groups);
    free(truth->group_parity);
    free(truth->fates);
    memset(truth, 0, sizeof *truth);
}

struct truth *
judge_truth(struct world *world, struct cairn_generation_id generation)
{
    for (uint32_t i = 0; i < TRUTHS_MAX; i++)
        if (world->truths[i].generation.step != 0 && same(world->truths[i].generation, generation))
            return &world->truths[i];
    return NULL;
}

void *
some_zeros(size_t count, size_t size)
{
    void *bytes = calloc(count + 1, size);

    if (!bytes)
        abort();
    return bytes;
}

/* The place of the least important one. */
static struct truth *
truth_room(struct world *world)
{
    struct truth *room = NULL, *oldest = NULL;

    for (uint32_t i = 0; i < TRUTHS_MAX; i++) {
        struct truth *other = &world->truths[i];

        if (other->generation.step == 0)
            return other;
        if (other == world->kept)
            continue;
        if (!oldest || cairn_generation_id_compare(other->generation, oldest->generation) < 0)
            oldest = other;
        /* What some agents hold may still be restored. */
        if ((other->stored_count == 0 ||
             (world->kept &&
              cairn_generation_id_compare(other->generation, world->kept->generation) < 0)) &&
            (!room || cairn_generation_id_compare(other->generation, room->generation) < 0))
            room = other;
    }
    return room ? room : oldest;
}

struct truth *
truth_new(struct world *world, struct cairn_generation_id generation, uint64_t life,
          const struct cairn_roster *roster)
{
    struct truth *truth = truth_room(world);
    uint32_t n = roster->member_count, ranks = 0;

    if (cairn_generation_id_compare(truth->generation, world->forgotten) > 0)
        world->forgotten = truth->generation;
    truth_fini(truth);
    truth->generation = generation;
    truth->life = life;
    truth->member_count = n;
    truth->group_count = roster->group_count;
    truth->gang_members = world->gang.member_count;
    truth->layout = world->gang.layout;
    truth->blocks = some_zeros(n, sizeof *truth->blocks);
    truth->agents = some_zeros(n, sizeof *truth->agents);
    truth->content = some_zeros(n, sizeof *truth->content);
    truth->groups = some_zeros(n, sizeof *truth->groups);
    truth->group_parity = some_zeros(roster->group_count, sizeof *truth->group_parity);
    truth->fates = some_zeros(n, 1);
    for (uint32_t g = 0; g < roster->group_count; g++)
        truth->group_parity[g] = roster->groups[g].parity;
    for (uint32_t m = 0; m < n; m++) {
        truth->agents[m] = roster->members[m].agent;
        truth->content[m] = world->nodes[truth->agents[m]].member;
        truth->groups[m] = roster->members[m].group;
        truth->blocks[m] = gang_blocks(world, life, truth->content[m]);
        ranks += truth->content[m] != UINT32_MAX;
    }
    truth->whole = ranks == truth->gang_members && truth->layout == LAYOUT_GOOD;
    return truth;
}

/* ---- the generation that must be kept ---- */

/* The record of a part at an agent, -1 none. */
int
stored_at(const struct node *node, struct cairn_generation_id generation, uint32_t member)
{
    for (int i = 0; i < CAIRN_PARTS_MAX; i++)
        if (node->stored[i].generation.step != 0 && same(node->stored[i].generation, generation) &&
            node->stored[i].member == member)
            return i;
    return -1;
}

bool
flip_active(const struct world *world, const struct flip *flip)
{
    const struct node *node = &world->nodes[flip->node];
    const struct memory *memory = &node->memory[flip->part];
    const struct stored *stored = &node->stored[flip->part];
    const uint8_t *area = flip->parity ? memory->parity : memory->data;

    return flip->used && area && same(stored->generation, flip->generation) &&
           stored->member == flip->member && area[flip->byte] != flip->good;
}

static bool
part_damaged(const struct world *world, uint32_t node, uint32_t part)
{
    for (uint32_t i = 0; i < FLIPS_MAX; i++)
        if (world->flips[i].used && world->flips[i].node == node && world->flips[i].part == part &&
            flip_active(world, &world->flips[i]))
            return true;
    return false;
}

bool
truth_copy_at(const struct world *world, const struct node *node, const struct truth *truth,
              uint32_t member)
{
    int part = stored_at(node, truth->generation, member);

    return part >= 0 && !part_damaged(world, node->number, (uint32_t)part);
}

void
truth_present(const struct world *world, const struct truth *truth, uint32_t without,
              uint8_t *present)
{
    memset(present, 0, truth->member_count);
    for (uint32_t a = 0; a < world->setup.agent_count; a++)
        for (uint32_t i = 0; a != without && i < CAIRN_PARTS_MAX; i++) {
            const struct stored *stored = &world->nodes[a].stored[i];

            if (stored->generation.step != 0 && same(stored->generation, truth->generation) &&
                stored->member < truth->member_count && !present[stored->member])
                present[stored->member] = !part_damaged(world, a, i);
        }
}

bool
truth_is_restorable(const struct truth *truth, const uint8_t *present)
{
    uint32_t *missing = some_zeros(truth->group_count, sizeof *missing);
    bool restorable = true;

    for (uint32_t m = 0; m < truth->member_count; m++)
        missing[truth->groups[m]] += !present[m];
    for (uint32_t g = 0; g < truth->group_count; g++)
        restorable &= missing[g] <= truth->group_parity[g];
    free(missing);
    return restorable;
}

/* What has been stored of a generation that may still be committed counts as if it were. */
static bool
survives(const struct world *world, const struct truth *truth, uint32_t without)
{
    uint8_t *present = some_zeros(truth->member_count, 1);
    bool restorable;

    truth_present(world, truth, without, present);
    for (uint32_t m = 0; truth != world->kept && m < truth->member_count; m++)
        present[m] |= truth->fates[m] == FATE_NONE;
    restorable = truth_is_restorable(truth, present);
    free(present);
    return restorable;
}

bool
judge_budget(const struct world *world, uint32_t without)
{
    if (world->kept && !survives(world, world->kept, without))
        return false;
    for (uint32_t i = 0; i < TRUTHS_MAX; i++) {
        const struct truth *truth = &world->truths[i];

        if (truth->generation.step != 0 && truth->stored_count > 0 && truth != world->kept &&
            !truth->dropped && truth->whole && truth->generation.epoch == world->newest_epoch &&
            (!world->kept ||
             cairn_generation_id_compare(truth->generation, world->kept->generation) > 0) &&
            !survives(world, truth, without))
            return false;
    }
    return true;
}

/* After a fault beyond the budget nothing must be kept any more. */
void
kept_check_beyond(struct world *world)
{
    if (world->kept && !survives(world, world->kept, UINT32_MAX)) {
        world_say(world, "more is lost than is survived: nothing need be kept");
        world->kept = NULL;
    }
}

void
kept_set(struct world *world, struct truth *truth)
{
    world->kept = truth;
    kept_check_beyond(world);
}

/* ---- deep comparison ---- */

static bool
excused(const struct world *world, uint32_t node, uint32_t part, bool parity, uint64_t block)
{
    for (uint32_t i = 0; i < FLIPS_MAX; i++) {
        const struct flip *flip = &world->flips[i];

        if (flip->node == node && flip->part == part && flip->parity == parity &&
            flip->byte / BLOCK_BYTES == block && flip_active(world, flip))
            return true;
    }
    return false;
}

static bool
data_right(struct world *world, struct node *node, uint32_t part, const struct truth *truth,
           const char *when)
{
    const struct stored *stored = &node->stored[part];
    uint8_t expected[BLOCK_BYTES];

    if (stored->data_blocks != truth->blocks[stored->member]) {
        judge_fail(world, VERDICT_TORN, "%s: member %u of step %llu has another length", when,
                   stored->member, (unsigned long long)truth->generation.step);
        return false;
    }
    for (uint64_t b = 0; b < stored->data_blocks; b++) {
        const uint8_t *block = memory_block(node, part, CAIRN_AREA_DATA, 0, b);

        truth_block(world, truth->life, truth->generation.step, truth->content[stored->member], b,
                    expected);
        if (block && memcmp(block, expected, BLOCK_BYTES) == 0)
            continue;
        if (block && excused(world, node->number, part, false, b))
            continue;
        judge_fail(world, VERDICT_TORN,
                   "%s: block %llu of member %u of generation " GENERATION
                   " at agent %u is not that step's",
                   when, (unsigned long long)b, stored->member, GENERATION_OF(truth->generation),
                   node->number);
        return false;
    }
    return true;
}

/* Parity of one record against parity computed again from the truth. */
static bool
parity_right(struct world *world, struct node *node, uint32_t part, const struct truth *truth,
             const char *when)
{
    const struct stored *stored = &node->stored[part];
    const struct memory *memory = &node->memory[part]; /* closed, if its record was left behind */
    uint8_t expected[BLOCK_BYTES], source[BLOCK_BYTES];

    for (uint32_t slot = 0; slot < stored->parity_slots; slot++)
        for (uint64_t line = 0; line < stored->slot_blocks[slot]; line++) {
            uint64_t at = slot * (memory->parity_blocks / stored->parity_slots) + line;
            const uint8_t *block =
                at < memory->parity_blocks ? memory->parity + at * BLOCK_BYTES : NULL;

            memset(expected, 0, sizeof expected);
            for (uint32_t p = 0; p < stored->geometry.n; p++) {
                uint32_t stripe = stored->slot_stripe[slot], member = stored->group[p];
                uint32_t chunk = cairn_stripe_chunk(&stored->geometry, stripe, p);
                uint64_t stride =
                    cairn_shard_chunk_blocks(&stored->geometry, truth->blocks[member]);

                if (chunk == CAIRN_STRIPE_NONE ||
                    line >= cairn_chunk_blocks(&stored->geometry, truth->blocks[member], chunk))
                    continue;
                truth_block(world, truth->life, truth->generation.step, truth->content[member],
                            chunk * stride + line, source);
                memory_fold_one(&stored->geometry, slot,
                                cairn_stripe_data_index(&stored->geometry, stripe, p), source,
                                expected);
            }
            if (block && (memcmp(block, expected, BLOCK_BYTES) == 0 ||
                          excused(world, node->number, part, true, at)))
                continue;
            judge_fail(world, VERDICT_TORN,
                       "%s: parity line %llu of slot %u of member %u of generation " GENERATION
                       " at agent %u is wrong",
                       when, (unsigned long long)line, slot, stored->member,
                       GENERATION_OF(truth->generation), node->number);
            return false;
        }
    return true;
}

/* Every stored record against the truth; false when something is wrong. */
bool
judge_deep(struct world *world, const char *when)
{
    for (uint32_t a = 0; a < world->setup.agent_count && !world->over; a++)
        for (uint32_t h = 0; h < CAIRN_PARTS_MAX; h++) {
            struct node *node = &world->nodes[a];
            struct truth *truth;

            if (node->stored[h].generation.step == 0)
                continue;
            truth = judge_truth(world, node->stored[h].generation);
            if (truth && !(data_right(world, node, h, truth, when) &&
                           parity_right(world, node, h, truth, when)))
                return false;
        }
    return !world->over;
}
