/*
 * agent/core/rebuild_target.c - taking part in a repair as target: a lost part gets its seals, then
 * its memory, then its blocks; a damaged one gets the blocks that are bad.
 *
 * Every data block is compared with its member's seal before it is kept, and a mended parity block
 * with the checksum that was stored for it, so a wrong decode is never taken. Writing a block twice
 * changes nothing.
 */
#include "agent/core/core_state.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint64_t
parity_start(const struct holding *holding, uint32_t slot)
{
    uint64_t start = holding->stripes.shard_blocks[holding->position];

    for (uint32_t i = 0; i < slot; i++)
        start += holding->stripes
                     .parity_blocks[cairn_slot_stripe(&holding->geometry, holding->position, i)];
    return start;
}

/* Room that the parity takes: m slots as long as the longest. */
static uint64_t
parity_room(const struct holding *holding)
{
    uint64_t longest = 0;

    for (uint32_t i = 0; i < holding->geometry.m; i++) {
        uint32_t stripe = cairn_slot_stripe(&holding->geometry, holding->position, i);

        if (holding->stripes.parity_blocks[stripe] > longest)
            longest = holding->stripes.parity_blocks[stripe];
    }
    return longest * holding->geometry.m;
}

static cairn_err
prepare_missing(struct holding *holding)
{
    uint64_t total = parity_start(holding, holding->geometry.m);

    holding->missing = calloc(total / 64 + 1, sizeof(uint64_t));
    if (!holding->missing)
        return CAIRN_NOMEM;
    holding->missing_count = 0;
    return CAIRN_OK;
}

/* A holding that lost everything: once its seals are here its length is known, and then its memory
 * can be had. */
void
rebuild_try_finish(struct cairn_core *core, struct holding *holding)
{
    struct cairn_action *action;

    if (holding->state != CAIRN_HOLDING_REBUILDING || !holding_lengths(holding))
        return;
    if (!holding->missing) {
        uint64_t total = parity_start(holding, holding->geometry.m);

        if (prepare_missing(holding) != CAIRN_OK) {
            rebuild_report_failure(core, CAIRN_NOMEM);
            return;
        }
        for (uint64_t i = 0; i < total; i++)
            cairn_bitset_add(holding->missing, (uint32_t)i);
        holding->missing_count = total;
        holding->data_blocks = holding->stripes.shard_blocks[holding->position];
        if (!holding->memory_ready || (holding->memory < core->options.slots &&
                                       (holding->data_blocks > core->options.slot_blocks ||
                                        parity_room(holding) > core->options.parity_blocks))) {
            holding->memory_ready = false;
            holding->asked = ++core->next_request;
            action = action_add(core, CAIRN_ACTION_OPEN);
            if (action) {
                action->holding = holding_index(core, holding);
                action->generation = holding->generation;
                action->member = holding->member;
                action->blocks = holding->data_blocks;
                action->first_block = parity_room(holding);
                action->request = holding->asked;
            }
        }
    }
    if (!holding->memory_ready || holding->missing_count > 0 || holding->seal_asked)
        return;
    holding->seal_asked = true; /* once */
    holding->asked = ++core->next_request;
    action = action_add(core, CAIRN_ACTION_FINISH);
    if (action) {
        action->request = holding->asked;
        action->holding = holding_index(core, holding);
        action->generation = holding->generation;
    }
}

void
rebuild_opened(struct cairn_core *core, const struct cairn_event *event)
{
    struct holding *holding =
        event->holding < CAIRN_HOLDINGS_MAX ? &core->holdings[event->holding] : NULL;

    if (!holding || holding->state != CAIRN_HOLDING_REBUILDING || holding->memory_ready ||
        holding->seal_asked || !answer_is(event->request, holding->asked))
        return;
    if (event->err) {
        holding_drop(core, holding, false);
        if (core->repair.active)
            rebuild_report_failure(core, event->err);
        return;
    }
    holding->memory_ready = true;
    rebuild_try_finish(core, holding);
}

void
rebuild_finished(struct cairn_core *core, struct holding *holding, cairn_err err)
{
    if (err) { /* its bytes are not what was written: everything of it is written again */
        holding_drop(core, holding, false);
        if (core->repair.active)
            rebuild_report_failure(core, err == CAIRN_CORRUPT ? CAIRN_AGAIN : err);
        return;
    }
    holding->state = CAIRN_HOLDING_COMPLETE;
    free(holding->missing);
    holding->missing = NULL;
    holding->verified = true;
    if (core->repair.active && generation_is(core->repair.generation, holding->generation))
        rebuild_report(core, holding);
}

/*
 * Drops a part that is too damaged to be counted, to be rebuilt. Its yes may have been said: until
 * it is whole again nothing here would show that, neither to who restores nor to the next start.
 */
static void
drop_damaged(struct cairn_core *core, struct holding *holding)
{
    if (holding->member == core->self_member && holding->generation.epoch == core->active &&
        holding->generation.step >= core->forgotten_before) {
        core->forgotten_before = holding->generation.step + 1;
        epoch_store(core); /* before the part's record is erased */
    }
    holding_drop(core, holding, false);
}

cairn_err
rebuild_open_target(struct cairn_core *core, uint32_t member)
{
    struct repair_plan *plan = &core->repair;
    struct holding *holding = holding_find(core, plan->generation, member);

    if (holding && holding->state == CAIRN_HOLDING_COMPLETE && holding->bad_count == 0)
        return CAIRN_OK; /* it was rebuilt for an earlier plan, or never lost */
    if (plan->holders[member] == core->options.self) { /* a few bad blocks of it */
        uint64_t bad = 0;

        if (!holding || holding->state != CAIRN_HOLDING_COMPLETE)
            return CAIRN_AGAIN; /* not any more what the plan was made for */
        free(holding->missing);
        holding->missing = NULL;
        if (prepare_missing(holding) != CAIRN_OK)
            return CAIRN_NOMEM;
        for (size_t i = 0; i < holding->bad_count && i < BAD_BLOCKS_MAX; i++, bad++) {
            uint64_t index = holding->bad[i].block;

            if (holding->bad[i].area == CAIRN_AREA_PARITY)
                index += holding->stripes.shard_blocks[holding->position];
            cairn_bitset_add(holding->missing, (uint32_t)index);
        }
        holding->missing_count = bad;
        holding->written_blocks = 0;
        return CAIRN_OK;
    }
    if (holding && holding->state == CAIRN_HOLDING_REBUILDING)
        return CAIRN_OK; /* a new plan goes on where the old one was */
    if (holding)
        drop_damaged(core, holding);
    holding = holding_open(core, plan->generation, member, plan->table, CAIRN_HOLDING_REBUILDING);
    return holding ? CAIRN_OK : CAIRN_NOMEM;
}

/* Compares the checksums that came with the blocks with the seal of the member they belong to. */
bool
rebuild_equals_seal(const struct seal *seal, const struct cairn_message *message)
{
    struct cairn_reader reader;

    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t i = 0; i < message->block_count; i++)
        if (message->first_block + i >= seal->shard_blocks ||
            cairn_read_u64(&reader) != seal->crcs[message->first_block + i])
            return false;
    return true;
}

/* The same for a damaged parity block that is being mended: what it was is known. */
static bool
equals_parity(const struct holding *holding, uint32_t slot, const struct cairn_message *message)
{
    struct cairn_reader reader;

    if (!holding->parity_crcs[slot])
        return true; /* a part that was lost as a whole */
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t i = 0; i < message->block_count; i++)
        if (cairn_read_u64(&reader) != holding->parity_crcs[slot][message->first_block + i])
            return false;
    return true;
}

void
rebuild_write(struct cairn_core *core, const struct cairn_message *message, bool payload_ok)
{
    struct holding *holding = holding_find(core, message->generation, message->member);
    struct cairn_message ack;
    struct cairn_action *action;
    uint64_t first, limit;

    if (!core->repair.active || message->epoch != core->repair.epoch || !holding ||
        (!payload_ok && !CAIRN_PLANTED(core, BUG_REBUILD_UNVERIFIED)) || !holding->lengths_known ||
        message->bytes_len != 8 * message->block_count)
        return;
    ack = message_new(core, CAIRN_MSG_WRITE_ACK, message->epoch);
    ack.generation = message->generation;
    ack.member = message->member;
    ack.stripe = message->stripe;
    ack.request = message->request;
    if (!holding->missing) { /* a repeat of what is done */
        if (holding->state == CAIRN_HOLDING_COMPLETE)
            send_message(core, message->from, &ack);
        return;
    }
    if (!holding->memory_ready)
        return;
    if (message->area == CAIRN_AREA_DATA) {
        first = message->first_block;
        limit = holding->stripes.shard_blocks[holding->position];
        if (first > limit || message->block_count > limit - first)
            return;
        if (!rebuild_equals_seal(&holding->seals[holding->position], message) &&
            !CAIRN_PLANTED(core, BUG_REBUILD_UNVERIFIED)) {
            CAIRN_LOG_AT(ERROR, "rebuild: wrong bytes from agent %u for member %u step=%" PRIu64,
                         message->from, message->member, message->generation.step);
            rebuild_report_failure(core, CAIRN_CORRUPT);
            return;
        }
    } else {
        uint32_t slot =
            message->stripe < holding->geometry.n
                ? cairn_stripe_parity_row(&holding->geometry, message->stripe, holding->position)
                : CAIRN_STRIPE_NONE;

        if (slot == CAIRN_STRIPE_NONE)
            return;
        limit = holding->stripes.parity_blocks[message->stripe];
        if (message->first_block > limit || message->block_count > limit - message->first_block)
            return;
        if (!equals_parity(holding, slot, message) &&
            !CAIRN_PLANTED(core, BUG_REBUILD_UNVERIFIED)) {
            rebuild_report_failure(core, CAIRN_CORRUPT);
            return;
        }
        first = parity_start(holding, slot) + message->first_block;
    }
    action = action_add(core, CAIRN_ACTION_WRITE);
    if (!action)
        return;
    action->holding = holding_index(core, holding);
    action->area = message->area;
    action->stripe = message->stripe;
    action->row =
        message->area == CAIRN_AREA_PARITY
            ? cairn_stripe_parity_row(&holding->geometry, message->stripe, holding->position)
            : 0;
    action->first_block = message->first_block;
    action->count = message->block_count;
    for (uint32_t i = 0; i < message->block_count; i++)
        if (cairn_bitset_has(holding->missing, (uint32_t)(first + i))) {
            holding->missing[(first + i) / 64] &= ~(UINT64_C(1) << ((first + i) % 64));
            holding->missing_count--;
            holding->written_blocks++;
        }
    send_message(core, message->from, &ack);
    if (holding->missing_count > 0)
        return;
    if (holding->state == CAIRN_HOLDING_COMPLETE) { /* its bad blocks are good again */
        free(holding->missing);
        holding->missing = NULL;
        free(holding->bad);
        holding->bad = NULL;
        holding->bad_count = 0;
        rebuild_report(core, holding);
    } else {
        rebuild_try_finish(core, holding);
    }
}
