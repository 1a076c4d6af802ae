/*
 * agent/core/part/fold.c - the parity that this agent keeps for its group: which blocks to add to
 * it, whether it equals the seals, and when the part is complete; see save.h.
 *
 *   fold      adds the blocks of each (member, stripe) strictly in order. So a count says exactly
 *             which blocks are folded, and a repeat is recognized: folding it again would remove
 *             its bytes.
 *   compare   a chain of the folded blocks' checksums must equal that of the member's seal
 *
 * save_data asks for folding by a FOLD action; carry_fold (agent/process/carry.c) does it with
 * cairn_code_fold (erasure/code.h).
 */
#include "agent/core/part/save.h"

#include "base/crc.h"
#include "base/log.h"

#include <inttypes.h>

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

enum folded { FOLDED_NOT_YET, FOLDED_ALL, FOLDED_WRONG };

/* Whether everything of a member of the group is folded and equals its seal. */
static enum folded
member_folded(const struct part *part, uint32_t position)
{
    const struct cairn_geometry *geometry = &part->geometry;
    const struct seal *seal = &part->seals[position];

    if (!seal->whole)
        return FOLDED_NOT_YET;
    for (uint32_t slot = 0; position != part->position && slot < geometry->m; slot++) {
        uint32_t stripe = cairn_slot_stripe(geometry, part->position, slot);
        uint32_t chunk = cairn_stripe_chunk(geometry, stripe, position);
        uint32_t at = slot * geometry->n + position;
        uint64_t start, length;

        if (chunk == CAIRN_STRIPE_NONE)
            continue;
        start = chunk * cairn_shard_chunk_blocks(geometry, seal->shard_blocks);
        length = cairn_chunk_blocks(geometry, seal->shard_blocks, chunk);
        if (part->folding.folded[at] < length)
            return FOLDED_NOT_YET;
        if (part->folding.folded[at] > length ||
            part->folding.chain[at] != chunk_chain(seal, start, length))
            return FOLDED_WRONG;
    }
    return FOLDED_ALL;
}

struct outcome
save_try_finish(struct env *env, struct part *part)
{
    struct outcome outcome = {.generation = part->generation};

    if (part->state != CAIRN_PART_OPEN || !part->seals[part->position].whole)
        return outcome;
    outcome.complete = CAIRN_PLANTED(env, BUG_DONE_BEFORE_FINISH);
    for (uint32_t p = 0; p < part->geometry.n; p++)
        switch (member_folded(part, p)) {
        case FOLDED_NOT_YET:
            return outcome;
        case FOLDED_WRONG:
            outcome.abort = CAIRN_ABORT_DAMAGED;
            return outcome;
        case FOLDED_ALL:
            break;
        }
    if (!part_lengths(part)) {
        outcome.abort = CAIRN_ABORT_DAMAGED; /* lengths that no group can have */
        return outcome;
    }
    part->state = CAIRN_PART_FINISHING;
    part->request = part_ask(env, part, CAIRN_ACTION_FINISH)->request;
    return outcome;
}

struct outcome
save_finished(struct env *env, struct part *part, const struct cairn_event_answer *answer)
{
    struct outcome outcome = {.generation = part->generation};
    cairn_err err = answer->err;

    if (part->state != CAIRN_PART_FINISHING || answer->request != part->request)
        return outcome;
    if (!err)
        err = part_keep_parity_crcs(part, answer->crcs, answer->count);
    if (!err && CAIRN_PLANTED(env, BUG_STORE_LATE)) {
        part->state = CAIRN_PART_COMPLETE;
        part->request = UINT64_MAX; /* parts_retain stores it */
        env->parts->version++;
    } else if (!err) {
        err = part_complete(env, part);
    }
    part->progress_ns = env->now_ns;
    outcome.complete = !err;
    if (err) {
        CAIRN_LOG_AT(WARN, "save: step %" PRIu64 " cannot be finished: %s", part->generation.step,
                     cairn_err_text(err));
        outcome.abort = err == CAIRN_NOMEM ? CAIRN_ABORT_MEMORY : CAIRN_ABORT_DAMAGED;
    }
    return outcome;
}

/* ---- what arrives ---- */

/* True if the member is another one of the part's group, and the sender serves it. */
static bool
comes_from(const struct part *part, uint32_t member, uint32_t agent)
{
    return member < part->roster->member_count && member != part->member &&
           part->roster->members[member].agent == agent &&
           part->roster->members[member].group == part->roster->members[part->member].group;
}

static void
send_received(struct env *env, const struct cairn_message *message,
              struct cairn_message_received received)
{
    struct cairn_message answer = env_message(env, CAIRN_MSG_RECEIVED, message->epoch);

    answer.as.received = received;
    env_send(env, message->from, &answer);
}

/* True if the numbers of a DATA message name a chunk whose parity row this part keeps. */
static bool
data_belongs(const struct env *env, const struct part *part, const struct cairn_message *message)
{
    const struct cairn_message_data *data = &message->as.data;
    const struct cairn_geometry *geometry = &part->geometry;
    uint64_t limit = env->options->parity_blocks / (geometry->m ? geometry->m : 1);

    return comes_from(part, data->member, message->from) && data->stripe < geometry->n &&
           data->row < geometry->m && data->count > 0 && message->bytes_len == 8 * data->count &&
           cairn_stripe_parity_position(geometry, data->stripe, data->row) == part->position &&
           cairn_stripe_data_index(geometry, data->stripe,
                                   part->roster->members[data->member].position) !=
               CAIRN_STRIPE_NONE &&
           data->line <= limit && data->count <= limit - data->line;
}

/* Adds FOLD actions for the blocks from `skip` on: lines below `touched` are added, those above
 * written. */
static void
fold(struct env *env, struct part *part, const struct cairn_message_data *data, uint32_t position,
     uint32_t skip)
{
    uint64_t line = data->line + skip;
    uint64_t end = data->line + data->count;
    uint64_t *touched = &part->folding.touched[data->row];

    while (line < end) {
        bool fresh = line >= *touched;
        uint64_t stop = fresh ? end : min_u64(end, *touched);

        env_act(env, CAIRN_ACTION_FOLD)->as.fold = (struct cairn_action_fold){
            .part = part_index(env, part),
            .stripe = data->stripe,
            .row = data->row,
            .source = cairn_stripe_data_index(&part->geometry, data->stripe, position),
            .first_block = line,
            .count = (uint32_t)(stop - line),
            .skip = (uint32_t)(line - data->line),
            .fresh = fresh};
        if (fresh)
            *touched = stop;
        line = stop;
    }
}

struct outcome
save_data(struct env *env, struct part *part, const struct cairn_message *message, bool payload_ok)
{
    const struct cairn_message_data *data = &message->as.data;
    struct outcome outcome = {.generation = part->generation};
    struct cairn_message_received received = {.generation = data->generation,
                                              .member = data->member,
                                              .for_member = part->member,
                                              .stripe = data->stripe,
                                              .row = data->row};
    uint32_t position, at, skip;
    uint64_t *folded;
    bool gap;

    if (part->state == CAIRN_PART_FREE || part->state == CAIRN_PART_REBUILDING ||
        !data_belongs(env, part, message))
        return outcome;
    position = part->roster->members[data->member].position;
    at = data->row * part->geometry.n + position;
    folded = &part->folding.folded[at];
    if (part->state != CAIRN_PART_OPEN) { /* all of it is in */
        received.count = cairn_stripes_blocks(&part->stripes, data->stripe, position);
        send_received(env, message, received);
        return outcome;
    }
    received.count = *folded;
    if (data->line + data->count <= *folded && !CAIRN_PLANTED(env, BUG_FOLD_TWICE)) { /* a repeat */
        send_received(env, message, received);
        return outcome;
    }
    gap = data->line > *folded;
    if (gap || (!payload_ok && !CAIRN_PLANTED(env, BUG_FOLD_DAMAGED))) {
        received.again = 1;
        if (flow_asks(&part->folding.asked[data->row], position, gap))
            send_received(env, message, received);
        if (!gap && ++part->folding.corrupt_in_row >= CORRUPT_DATA_MAX)
            outcome.abort = CAIRN_ABORT_DAMAGED;
        return outcome;
    }
    part->folding.asked[data->row] &= ~(UINT64_C(1) << position);
    part->folding.corrupt_in_row = 0;
    skip = CAIRN_PLANTED(env, BUG_FOLD_TWICE) ? 0 : (uint32_t)(*folded - data->line);
    fold(env, part, data, position, skip);
    part->folding.chain[at] = cairn_crc64(part->folding.chain[at], message->bytes + 8 * skip,
                                          8 * (size_t)(data->count - skip));
    *folded = data->line + data->count;
    part->progress_ns = env->now_ns;
    received.count = *folded;
    send_received(env, message, received);
    return save_try_finish(env, part);
}

bool
save_take_seal(struct env *env, struct part *part, const struct cairn_message *message,
               bool *damaged)
{
    const struct cairn_message_seal *piece = &message->as.seal;
    uint32_t position = part->roster->members[piece->member].position;
    struct seal *seal = &part->seals[position];
    bool gap = piece->offset > seal->received, taken, asks;
    struct cairn_message_received received = {.generation = piece->generation,
                                              .member = piece->member,
                                              .for_member = part->member,
                                              .row = CAIRN_ROW_SEAL,
                                              .attempt = piece->attempt};

    seal_take(seal, part->generation, piece->member, piece->offset, piece->total, message->bytes,
              message->bytes_len);
    taken = seal->whole || piece->offset + message->bytes_len <= seal->received;
    *damaged = !taken && !gap;
    if (taken)
        part->folding.seals_asked &= ~(UINT64_C(1) << position);
    asks = !taken && flow_asks(&part->folding.seals_asked, position, gap);
    received.count = seal->whole ? seal->len : seal->received;
    received.again = !taken;
    if (taken || asks)
        send_received(env, message, received);
    return taken;
}

struct outcome
save_seal(struct env *env, struct part *part, const struct cairn_message *message)
{
    const struct cairn_message_seal *piece = &message->as.seal;
    struct outcome outcome = {.generation = part->generation};
    bool damaged;

    if (part->state == CAIRN_PART_FREE || part->state == CAIRN_PART_REBUILDING ||
        piece->for_member != part->member || !comes_from(part, piece->member, message->from))
        return outcome;
    if (save_take_seal(env, part, message, &damaged)) {
        part->progress_ns = env->now_ns;
        return save_try_finish(env, part);
    }
    if (damaged && ++part->folding.corrupt_in_row >= CORRUPT_DATA_MAX)
        outcome.abort = CAIRN_ABORT_DAMAGED;
    return outcome;
}

/* True if a member of the group has reported the own seal and all blocks that it folds. */
static bool
has_acknowledged(const struct part *part, uint32_t position)
{
    const struct cairn_geometry *geometry = &part->geometry;
    const struct capture *capture = &part->capture;

    for (uint32_t slot = 0; slot < geometry->m; slot++) {
        uint32_t stripe = cairn_slot_stripe(geometry, position, slot);
        uint32_t chunk = cairn_stripe_chunk(geometry, stripe, part->position);

        if (chunk != CAIRN_STRIPE_NONE && capture->data_flows[chunk * geometry->m + slot].acked <
                                              cairn_chunk_blocks(geometry, capture->blocks, chunk))
            return false;
    }
    return capture->seal_flows[position].acked >= part->seals[part->position].len;
}

enum cairn_wait
save_waits_for(const struct part *part, uint64_t everyone, uint32_t *for_agent)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(part->roster, part->member);

    *for_agent = UINT32_MAX;
    if (part->state == CAIRN_PART_OPEN && part->capture.done != everyone)
        return CAIRN_WAIT_TRAINERS;
    if (part->state == CAIRN_PART_FINISHING || !part->seals[part->position].whole)
        return CAIRN_WAIT_HERE;
    for (uint32_t p = 0; p < part->geometry.n; p++)
        if (part->state == CAIRN_PART_OPEN && member_folded(part, p) == FOLDED_NOT_YET) {
            *for_agent = part->roster->members[group->members[p]].agent;
            return CAIRN_WAIT_BLOCKS;
        }
    for (uint32_t p = 0; part->capture.data_flows && p < part->geometry.n; p++)
        if (p != part->position && !has_acknowledged(part, p)) {
            *for_agent = part->roster->members[group->members[p]].agent;
            return CAIRN_WAIT_PARITY;
        }
    return (enum cairn_wait)0;
}
