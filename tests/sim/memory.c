/*
 * tests/sim/memory.c - slots of real, small blocks, coded by the product's own code.
 *
 * A part has a data area and a parity area. Parity slot i of a part with m of them begins at block
 * i * (room / m) of the parity area, as in the agent's memory.
 */
#include "tests/sim/sim.h"

#include "base/bitset.h"
#include "base/crc.h"
#include "erasure/code.h"
#include "erasure/stripe.h"

#include <stdlib.h>
#include <string.h>

static struct cairn_code *codes[CAIRN_SHARDS_MAX + 1][CAIRN_SHARDS_MAX + 1];

static const struct cairn_code *
code_of(uint32_t k, uint32_t m)
{
    if (!codes[k][m] && cairn_code_create(k, m, &codes[k][m]) != CAIRN_OK)
        abort();
    return codes[k][m];
}

uint64_t
block_crc(const uint8_t *block)
{
    return cairn_crc64(0, block, BLOCK_BYTES);
}

bool
memory_open(struct memory *memory, uint64_t data_blocks, uint64_t parity_blocks)
{
    memory_close(memory);
    memory->data = malloc((data_blocks + 1) * BLOCK_BYTES);
    memory->parity = malloc((parity_blocks + 1) * BLOCK_BYTES);
    if (!memory->data || !memory->parity) {
        memory_close(memory);
        return false;
    }
    memset(memory->data, 0xd5, (data_blocks + 1) * BLOCK_BYTES); /* never zero by luck */
    memset(memory->parity, 0x5d, (parity_blocks + 1) * BLOCK_BYTES);
    memory->data_blocks = data_blocks;
    memory->parity_blocks = parity_blocks;
    return true;
}

void
memory_close(struct memory *memory)
{
    free(memory->data);
    free(memory->parity);
    *memory = (struct memory){0};
}

/* m of what the part holds, remembered for the actions that come after its drop. */
static uint32_t
parity_slots(struct node *node, uint32_t part)
{
    struct cairn_part_view view;

    if (node->core && cairn_core_look_part(node->core, part, &view))
        node->memory[part].parity_slots = cairn_roster_group_of(view.roster, view.member)->parity;
    return node->memory[part].parity_slots;
}

/* NULL when it is outside of the memory. `slot` is the parity slot. */
uint8_t *
memory_block(struct node *node, uint32_t part, uint32_t area, uint32_t slot, uint64_t block)
{
    struct memory *memory = &node->memory[part];
    uint32_t slots;

    if (area == CAIRN_AREA_DATA)
        return memory->data && block < memory->data_blocks ? memory->data + block * BLOCK_BYTES
                                                           : NULL;
    if (area == CAIRN_AREA_RING)
        return slot - 1 < RING_ROWS_MAX ? node->ring[slot - 1][block % node->ring_lines] : NULL;
    slots = parity_slots(node, part);
    if (!memory->parity || slots == 0 || slot >= slots || block >= memory->parity_blocks / slots)
        return NULL;
    return memory->parity + (slot * (memory->parity_blocks / slots) + block) * BLOCK_BYTES;
}

void
memory_fold(struct world *world, struct node *node, const struct cairn_action_fold *fold,
            const uint8_t *payload)
{
    struct cairn_part_view view;
    const struct cairn_roster_group *group;
    const struct cairn_code *code;

    if (!cairn_core_look_part(node->core, fold->part, &view)) {
        judge_fail(world, VERDICT_OTHER, "agent %u folds into a free part", node->number);
        return;
    }
    group = cairn_roster_group_of(view.roster, view.member);
    code = code_of(group->count - group->parity, group->parity);
    for (uint32_t i = 0; i < fold->count; i++)
        for (uint32_t row = 0; row < group->parity; row++) {
            uint8_t *parity =
                memory_block(node, fold->part, row == 0 ? CAIRN_AREA_PARITY : CAIRN_AREA_RING, row,
                             fold->first_block + i);

            if (!parity) {
                judge_fail(world, VERDICT_OTHER, "agent %u folds outside of its memory",
                           node->number);
                return;
            }
            cairn_code_fold(code, row, fold->source, BLOCK_BYTES,
                            payload + (size_t)(fold->skip + i) * BLOCK_BYTES, parity, fold->fresh);
        }
}

/* Folds one block, for the judge. */
void
memory_fold_one(const struct cairn_geometry *geometry, uint32_t row, uint32_t data_index,
                const uint8_t *source, uint8_t *parity)
{
    cairn_code_fold(code_of(geometry->k, geometry->m), row, data_index, BLOCK_BYTES, source, parity,
                    false);
}

void
memory_decode(struct world *world, struct scratch *scratch)
{
    uint8_t *shards[CAIRN_SHARDS_MAX];
    uint32_t n = scratch->data_shards + scratch->parity_shards;
    size_t stride = (size_t)CAIRN_MESSAGE_BLOCKS_MAX * BLOCK_BYTES;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t bit = UINT64_C(1) << i;

        shards[i] = scratch->shards + i * stride;
        if ((scratch->sources & bit) && !(scratch->staged & bit))
            shards[i] = NULL; /* beyond its end: zeros */
    }
    if (cairn_code_rebuild_some(code_of(scratch->data_shards, scratch->parity_shards),
                                (size_t)scratch->count * BLOCK_BYTES, scratch->sources,
                                scratch->lost, shards) != CAIRN_OK)
        judge_fail(world, VERDICT_OTHER, "a decode that the schedule promised is impossible");
}

/* Checksums of all parity blocks, slot by slot. */
uint64_t
memory_finish(struct node *node, uint32_t part, uint64_t **crcs)
{
    struct cairn_part_view view;
    uint64_t total, at = 0;

    *crcs = NULL;
    if (!cairn_core_look_part(node->core, part, &view) || !view.stripes)
        return 0;
    total = cairn_stripes_area_blocks(view.stripes, view.position, CAIRN_AREA_PARITY);
    *crcs = calloc(total + 1, sizeof(uint64_t));
    for (uint32_t slot = 0; slot < view.stripes->geometry.m; slot++) {
        uint32_t stripe = cairn_slot_stripe(&view.stripes->geometry, view.position, slot);

        for (uint64_t i = 0; i < view.stripes->parity_blocks[stripe]; i++) {
            const uint8_t *block = memory_block(node, part, CAIRN_AREA_PARITY, slot, i);

            (*crcs)[at++] = block ? block_crc(block) : 0;
        }
    }
    return total;
}

/* False for a damaged block, and for one that has no memory. */
static bool
block_is(const uint8_t *block, uint64_t crc)
{
    return block && block_crc(block) == crc;
}

size_t
memory_verify(struct node *node, uint32_t part, const uint64_t *skip, struct cairn_bad_block **bad)
{
    struct cairn_part_view view;
    size_t count = 0;
    uint64_t index = 0;

    *bad = NULL;
    if (!cairn_core_look_part(node->core, part, &view) || !view.stripes || !view.block_crcs)
        return 0;
    *bad = calloc(view.data_blocks +
                      cairn_stripes_area_blocks(view.stripes, view.position, CAIRN_AREA_PARITY) + 1,
                  sizeof **bad);
    for (uint64_t i = 0; i < view.data_blocks; i++)
        if (!(skip && cairn_bitset_has(skip, (uint32_t)i)) &&
            !block_is(memory_block(node, part, CAIRN_AREA_DATA, 0, i), view.block_crcs[i]))
            (*bad)[count++] = (struct cairn_bad_block){.area = CAIRN_AREA_DATA, .block = i};
    for (uint32_t slot = 0; slot < view.stripes->geometry.m; slot++) {
        uint32_t stripe = cairn_slot_stripe(&view.stripes->geometry, view.position, slot);

        for (uint64_t i = 0; i < view.stripes->parity_blocks[stripe]; i++, index++)
            if (!(skip && cairn_bitset_has(skip, (uint32_t)(view.data_blocks + index))) &&
                !block_is(memory_block(node, part, CAIRN_AREA_PARITY, slot, i),
                          view.parity_crcs[slot][i]))
                (*bad)[count++] =
                    (struct cairn_bad_block){.area = CAIRN_AREA_PARITY, .block = index};
    }
    return count;
}
