/*
 * agent/core/parity.c - the parity that this agent keeps for its group: folds blocks, compares them
 * with the seals, finishes.
 *
 *   fold      adds the blocks of each (member, stripe) strictly in order. So a count says exactly
 *             which blocks are folded, and a repeat is recognized: folding it again would remove
 *             its bytes.
 *   compare   a chain of the folded blocks' checksums must equal that of the member's seal
 *   finish    own part sealed, all seals here, everything folded and equal: checksum the parity,
 *             store the record, vote yes
 *
 * parity_data decides which blocks to fold and asks for it by a FOLD action; carry_fold
 * (agent/process/carry.c) carries that out with cairn_code_fold (erasure/code.h).
 */
#include "agent/core/core_state.h"

#include "base/crc.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* CRC-64 over the checksums of a chunk's blocks: what `chain` must be when all of it is folded. */
static uint64_t
chunk_chain(const struct seal *seal, uint64_t start, uint64_t length)
{
    uint64_t chain = 0;

    for (uint64_t i = 0; i < length; i++) {
        uint8_t bytes[8];

        for (int b = 0; b < 8; b++)
            bytes[b] = (uint8_t)(seal->crcs[start + i] >> (8 * b));
        chain = cairn_crc64(chain, bytes, 8);
    }
    return chain;
}

/* 1: everything of this member is folded and equals its seal; 0: not yet; -1: it can never be. */
static int
member_folded(const struct holding *holding, uint32_t position)
{
    const struct cairn_geometry *geometry = &holding->geometry;
    const struct seal *seal = &holding->seals[position];

    for (uint32_t slot = 0; slot < geometry->m; slot++) {
        uint32_t stripe = cairn_slot_stripe(geometry, holding->position, slot);
        uint32_t chunk = cairn_stripe_chunk(geometry, stripe, position);
        uint64_t start, length;

        if (chunk == CAIRN_STRIPE_NONE)
            continue;
        start = chunk * cairn_shard_chunk_blocks(geometry, seal->shard_blocks);
        length = cairn_chunk_blocks(geometry, seal->shard_blocks, chunk);
        if (holding->folded[slot * geometry->n + position] < length)
            return 0;
        if (holding->folded[slot * geometry->n + position] > length ||
            holding->chain[slot * geometry->n + position] != chunk_chain(seal, start, length))
            return -1;
    }
    return 1;
}

void
parity_try_finish(struct cairn_core *core, struct holding *holding)
{
    struct cairn_action *action;

    if (holding->state != CAIRN_HOLDING_OPEN || !holding->seals[holding->position].whole)
        return;
    if (CAIRN_PLANTED(core, BUG_VOTE_BEFORE_FINISH))
        facts_vote(core, holding->generation, true);
    for (uint32_t p = 0; p < holding->geometry.n; p++) {
        int folded;

        if (!holding->seals[p].whole)
            return;
        folded = p == holding->position ? 1 : member_folded(holding, p);
        if (folded < 0) {
            save_give_up(core, holding->generation, "parity differs from a member's seal");
            return;
        }
        if (folded == 0)
            return;
    }
    if (!holding_lengths(holding)) {
        save_give_up(core, holding->generation, "lengths out of bounds");
        return;
    }
    holding->state = CAIRN_HOLDING_FINISHING;
    holding->asked = ++core->next_request;
    action = action_add(core, CAIRN_ACTION_FINISH);
    if (action) {
        action->holding = holding_index(core, holding);
        action->generation = holding->generation;
        action->request = holding->asked;
    }
}

/* The checksums of all parity blocks, slot by slot, come back. */
static cairn_err
keep_parity_crcs(struct holding *holding, const uint64_t *crcs, uint64_t count)
{
    uint64_t at = 0;

    for (uint32_t slot = 0; slot < holding->geometry.m; slot++) {
        uint32_t stripe = cairn_slot_stripe(&holding->geometry, holding->position, slot);
        uint64_t blocks = holding->stripes.parity_blocks[stripe];

        if (blocks > count - at)
            return CAIRN_INTERNAL;
        free(holding->parity_crcs[slot]);
        holding->parity_crcs[slot] = malloc(blocks ? 8 * blocks : 8);
        if (!holding->parity_crcs[slot])
            return CAIRN_NOMEM;
        memcpy(holding->parity_crcs[slot], crcs + at, 8 * blocks);
        at += blocks;
    }
    return at == count ? CAIRN_OK : CAIRN_INTERNAL;
}

void
parity_finished(struct cairn_core *core, const struct cairn_event *event)
{
    struct holding *holding =
        event->holding < CAIRN_HOLDINGS_MAX ? &core->holdings[event->holding] : NULL;
    bool rebuilt;
    cairn_err err;

    if (!holding || !generation_is(holding->generation, event->generation) ||
        !holding->seal_asked || !answer_is(event->request, holding->asked) ||
        (holding->state != CAIRN_HOLDING_FINISHING && holding->state != CAIRN_HOLDING_REBUILDING))
        return;
    rebuilt = holding->state == CAIRN_HOLDING_REBUILDING;
    err = event->err;
    if (!err)
        err = keep_parity_crcs(holding, event->crcs, event->count);
    if (!err && CAIRN_PLANTED(core, BUG_STORE_LATE) && !rebuilt)
        facts_vote(core, holding->generation, true);
    if (!err)
        err = holding_store(core, holding);
    if (err && !rebuilt) {
        save_give_up(core, holding->generation, cairn_err_text(err));
        return;
    }
    if (rebuilt) {
        rebuild_finished(core, holding, err);
        return;
    }
    holding->state = CAIRN_HOLDING_COMPLETE;
    holding->verified = true;
    facts_vote(core, holding->generation, true);
    if (CAIRN_PLANTED(core, BUG_DROP_EARLY))
        facts_learn_committed(core, holding->generation);
}

static void
send_data_ack(struct cairn_core *core, const struct cairn_message *data, uint64_t folded)
{
    struct cairn_message ack = message_new(core, CAIRN_MSG_DATA_ACK, data->epoch);

    ack.generation = data->generation;
    ack.member = data->member;
    ack.stripe = data->stripe;
    ack.row = data->row;
    ack.offset = folded;
    send_message(core, data->from, &ack);
}

/* True when the numbers of a DATA message name a chunk whose parity row this holding keeps. */
static bool
data_belongs(const struct cairn_core *core, const struct holding *holding,
             const struct cairn_message *message, uint32_t *position)
{
    const struct cairn_geometry *geometry = &holding->geometry;
    uint64_t slot_blocks = core->options.parity_blocks / (geometry->m ? geometry->m : 1);

    if (message->member >= holding->table->member_count || message->stripe >= geometry->n ||
        message->row >= geometry->m || message->block_count == 0 ||
        message->bytes_len != 8 * message->block_count ||
        holding->table->members[message->member].group !=
            holding->table->members[holding->member].group)
        return false;
    *position = holding->table->members[message->member].position;
    return cairn_stripe_parity_position(geometry, message->stripe, message->row) ==
               holding->position &&
           cairn_stripe_data_index(geometry, message->stripe, *position) != CAIRN_STRIPE_NONE &&
           message->offset <= slot_blocks && message->block_count <= slot_blocks - message->offset;
}

/* Adds FOLD actions for the blocks from `skip` on: below `touched` they are added, above written.
 */
static void
fold(struct cairn_core *core, struct holding *holding, const struct cairn_message *message,
     uint32_t position, uint32_t skip)
{
    uint64_t line = message->offset + skip;
    uint64_t end = message->offset + message->block_count;
    uint64_t *touched = &holding->touched[message->row];

    while (line < end) {
        bool fresh = line >= *touched;
        uint64_t stop = fresh ? end : min_u64(end, *touched);
        struct cairn_action *action = action_add(core, CAIRN_ACTION_FOLD);

        if (!action)
            return;
        action->holding = holding_index(core, holding);
        action->stripe = message->stripe;
        action->row = message->row;
        action->source = cairn_stripe_data_index(&holding->geometry, message->stripe, position);
        action->first_block = line;
        action->count = (uint32_t)(stop - line);
        action->skip = (uint32_t)(line - message->offset);
        action->fresh = fresh;
        if (fresh)
            *touched = stop;
        line = stop;
    }
}

void
parity_data(struct cairn_core *core, const struct cairn_message *message, bool payload_ok)
{
    struct holding *holding;
    uint32_t position = 0;
    uint64_t *folded;
    uint32_t skip;

    if (message->epoch != core->active || message->generation.epoch != message->epoch ||
        core->frozen || core->self_member == UINT32_MAX)
        return;
    holding = holding_find(core, message->generation, core->self_member);
    if (!holding)
        holding = save_open(core, message->generation);
    if (!holding) {
        again_turned_away(core, message->generation);
        facts_answer(core, message->generation, message->from);
        return;
    }
    if (!data_belongs(core, holding, message, &position))
        return;
    folded = &holding->folded[message->row * holding->geometry.n + position];
    if (holding->state != CAIRN_HOLDING_OPEN) { /* complete: all of it is in */
        send_data_ack(core, message,
                      holding->lengths_known
                          ? cairn_stripes_blocks(&holding->stripes, message->stripe, position)
                          : *folded);
        return;
    }
    if (message->offset > *folded || (message->offset + message->block_count <= *folded &&
                                      !CAIRN_PLANTED(core, BUG_FOLD_TWICE))) {
        send_data_ack(core, message, *folded); /* a gap, or a repeat */
        return;
    }
    if (!payload_ok && !CAIRN_PLANTED(core, BUG_FOLD_DAMAGED)) {
        if (++holding->corrupt_in_row >= CORRUPT_DATA_MAX)
            save_give_up(core, holding->generation,
                         "a member's blocks arrive damaged again and again");
        return;
    }
    holding->corrupt_in_row = 0;
    skip = CAIRN_PLANTED(core, BUG_FOLD_TWICE) ? 0 : (uint32_t)(*folded - message->offset);
    fold(core, holding, message, position, skip);
    holding->chain[message->row * holding->geometry.n + position] =
        cairn_crc64(holding->chain[message->row * holding->geometry.n + position],
                    message->bytes + 8 * skip, 8 * (message->block_count - skip));
    *folded = message->offset + message->block_count;
    holding->progress_ns = core->now_ns;
    send_data_ack(core, message, *folded);
    parity_try_finish(core, holding);
}
