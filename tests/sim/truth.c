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
    free(truth->groups);
    free(truth->stored);
    free(truth->said_no);
    memset(truth, 0, sizeof *truth);
}

struct truth *
judge_truth(struct world *world, struct cairn_generation generation)
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

struct truth *
truth_new(struct world *world, struct cairn_generation generation, uint64_t life,
          const struct cairn_roster *table)
{
    struct truth *truth = NULL, *oldest = &world->truths[0];

    for (uint32_t i = 0; i < TRUTHS_MAX; i++) {
        struct truth *other = &world->truths[i];

        if (other->generation.step == 0) {
            truth = other;
            break;
        }
        if (cairn_generation_compare(other->generation, oldest->generation) < 0)
            oldest = other;
        /* What some agents hold may still be restored. */
        if ((other->stored_count == 0 ||
             cairn_generation_compare(other->generation, world->kept.generation) < 0) &&
            (!truth || cairn_generation_compare(other->generation, truth->generation) < 0))
            truth = other;
    }
    if (!truth)
        truth = oldest;
    if (cairn_generation_compare(truth->generation, world->forgotten) > 0)
        world->forgotten = truth->generation;
    truth_fini(truth);
    truth->generation = generation;
    truth->life = life;
    truth->member_count = table->member_count;
    truth->gang_members = world->gang.member_count;
    truth->layout = layout_kind(world, life, generation.step, truth->gang_members);
    truth->whole = table->member_count == world->gang.member_count && truth->layout == LAYOUT_GOOD;
    truth->blocks = some_zeros(table->member_count, sizeof *truth->blocks);
    truth->agents = some_zeros(table->member_count, sizeof *truth->agents);
    truth->groups = some_zeros(table->member_count, sizeof *truth->groups);
    truth->stored = some_zeros(table->member_count, 1);
    truth->said_no = some_zeros(table->member_count, 1);
    for (uint32_t m = 0; m < table->member_count; m++) {
        truth->blocks[m] = gang_blocks(world, life, m);
        truth->agents[m] = table->members[m].agent;
        truth->groups[m] = table->members[m].group;
    }
    return truth;
}

/* ---- the generation that must be kept ---- */

void
kept_fini(struct protected *kept)
{
    free(kept->groups);
    free(kept->group_parity);
    free(kept->holders);
    free(kept->lost);
    free(kept->blocks);
    memset(kept, 0, sizeof *kept);
}

/* The record of a part at an agent, -1 none. */
int
stored_at(const struct node *node, struct cairn_generation generation, uint32_t member)
{
    for (int i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        if (node->stored[i].generation.step != 0 && same(node->stored[i].generation, generation) &&
            node->stored[i].member == member)
            return i;
    return -1;
}

bool
flip_active(const struct world *world, const struct flip *flip)
{
    const struct node *node = &world->nodes[flip->node];
    const struct memory *memory = &node->memory[flip->holding];
    const struct stored *stored = &node->stored[flip->holding];
    const uint8_t *area = flip->parity ? memory->parity : memory->data;

    return flip->used && area && same(stored->generation, flip->generation) &&
           stored->member == flip->member && area[flip->byte] != flip->good;
}

static bool
node_damaged(const struct world *world, uint32_t node)
{
    for (uint32_t i = 0; i < FLIPS_MAX; i++)
        if (world->flips[i].node == node && flip_active(world, &world->flips[i]))
            return true;
    return false;
}

bool
judge_budget(const struct world *world, uint32_t without)
{
    const struct protected *kept = &world->kept;
    uint32_t missing[64 * 64] = {0};

    if (kept->generation.step == 0)
        return true;
    for (uint32_t m = 0; m < kept->member_count; m++) {
        uint32_t holder = kept->holders[m];

        missing[kept->groups[m]] +=
            kept->lost[m] || holder == without || node_damaged(world, holder);
    }
    for (uint32_t g = 0; g < kept->group_count; g++)
        if (missing[g] > kept->group_parity[g])
            return false;
    return true;
}

/* After a fault beyond the budget nothing must be kept any more. */
void
kept_check_beyond(struct world *world)
{
    if (world->kept.generation.step != 0 && !judge_budget(world, UINT32_MAX)) {
        world_say(world, "more is lost than is survived: nothing need be kept");
        kept_fini(&world->kept);
    }
}

void
kept_set(struct world *world, struct cairn_generation generation, uint64_t life,
         const struct cairn_roster *table, const uint32_t *holders)
{
    struct protected *kept = &world->kept;
    uint32_t n = table->member_count;

    kept_fini(kept);
    kept->generation = generation;
    kept->life = life;
    kept->member_count = n;
    kept->group_count = table->group_count;
    kept->groups = some_zeros(n, sizeof *kept->groups);
    kept->group_parity = some_zeros(table->group_count, sizeof *kept->group_parity);
    kept->holders = some_zeros(n, sizeof *kept->holders);
    kept->lost = some_zeros(n, 1);
    kept->blocks = some_zeros(n, sizeof *kept->blocks);
    for (uint32_t g = 0; g < table->group_count; g++)
        kept->group_parity[g] = table->groups[g].parity;
    for (uint32_t m = 0; m < n; m++) {
        kept->groups[m] = table->members[m].group;
        kept->holders[m] = holders[m];
        kept->blocks[m] = gang_blocks(world, life, m);
        kept->lost[m] = stored_at(&world->nodes[holders[m]], generation, m) < 0;
    }
    kept_check_beyond(world);
}

/* ---- deep comparison ---- */

static bool
excused(const struct world *world, uint32_t node, uint32_t holding, bool parity, uint64_t block)
{
    for (uint32_t i = 0; i < FLIPS_MAX; i++) {
        const struct flip *flip = &world->flips[i];

        if (flip->node == node && flip->holding == holding && flip->parity == parity &&
            flip->byte / BLOCK_BYTES == block && flip_active(world, flip))
            return true;
    }
    return false;
}

static bool
data_right(struct world *world, struct node *node, uint32_t holding, const struct truth *truth,
           const char *when)
{
    const struct stored *stored = &node->stored[holding];
    uint8_t expected[BLOCK_BYTES];

    if (stored->data_blocks != truth->blocks[stored->member]) {
        judge_fail(world, VERDICT_TORN, "%s: member %u of step %llu has another length", when,
                   stored->member, (unsigned long long)truth->generation.step);
        return false;
    }
    for (uint64_t b = 0; b < stored->data_blocks; b++) {
        const uint8_t *block = memory_block(node, holding, CAIRN_AREA_DATA, 0, b);

        truth_block(world, truth->life, truth->generation.step, stored->member, b, expected);
        if (block && memcmp(block, expected, BLOCK_BYTES) == 0)
            continue;
        if (block && excused(world, node->number, holding, false, b))
            continue;
        judge_fail(
            world, VERDICT_TORN,
            "%s: block %llu of member %u of generation %llx.%llu at agent %u is not that step's",
            when, (unsigned long long)b, stored->member,
            (unsigned long long)truth->generation.epoch, (unsigned long long)truth->generation.step,
            node->number);
        return false;
    }
    return true;
}

/* Parity of one record against parity computed again from the truth. */
static bool
parity_right(struct world *world, struct node *node, uint32_t holding, const struct truth *truth,
             const char *when)
{
    const struct stored *stored = &node->stored[holding];
    uint8_t expected[BLOCK_BYTES], source[BLOCK_BYTES];

    for (uint32_t slot = 0; slot < stored->parity_slots; slot++)
        for (uint64_t line = 0; line < stored->slot_blocks[slot]; line++) {
            uint64_t at =
                slot * (node->memory[holding].parity_blocks / stored->parity_slots) + line;
            const uint8_t *block = node->memory[holding].parity + at * BLOCK_BYTES;

            memset(expected, 0, sizeof expected);
            for (uint32_t p = 0; p < stored->geometry.n; p++) {
                uint32_t stripe = stored->slot_stripe[slot], member = stored->group[p];
                uint32_t chunk = cairn_stripe_chunk(&stored->geometry, stripe, p);
                uint64_t stride =
                    cairn_shard_chunk_blocks(&stored->geometry, truth->blocks[member]);

                if (chunk == CAIRN_STRIPE_NONE ||
                    line >= cairn_chunk_blocks(&stored->geometry, truth->blocks[member], chunk))
                    continue;
                truth_block(world, truth->life, truth->generation.step, member,
                            chunk * stride + line, source);
                memory_fold_one(&stored->geometry, slot,
                                cairn_stripe_data_index(&stored->geometry, stripe, p), source,
                                expected);
            }
            if (memcmp(block, expected, BLOCK_BYTES) == 0 ||
                excused(world, node->number, holding, true, at))
                continue;
            judge_fail(world, VERDICT_TORN,
                       "%s: parity line %llu of slot %u of member %u of generation %llx.%llu at "
                       "agent %u is wrong",
                       when, (unsigned long long)line, slot, stored->member,
                       (unsigned long long)truth->generation.epoch,
                       (unsigned long long)truth->generation.step, node->number);
            return false;
        }
    return true;
}

/* Every stored record against the truth; false when something is wrong. */
bool
judge_deep(struct world *world, const char *when)
{
    for (uint32_t a = 0; a < world->setup.agent_count && !world->over; a++)
        for (uint32_t h = 0; h < CAIRN_HOLDINGS_MAX; h++) {
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
