/*
 * agent/core/part/fold.c - what arrives for the own part: chunks of the own stripe, rows that other
 * encoders have finished, and seals; and when the part is complete. See save.h and encode.h.
 */
#include "agent/core/part/outflow.h"

#include "base/log.h"

#include <inttypes.h>

/* Whether all rows that other encoders make for this part are here. */
static enum folded
rows_taken(const struct part *part, uint32_t *encoder)
{
    for (uint32_t slot = 1; slot < part->geometry.m; slot++) {
        uint32_t stripe = cairn_slot_stripe(&part->geometry, part->position, slot);
        uint64_t blocks = part_slot_blocks(part, slot), taken;

        *encoder = cairn_stripe_parity_position(&part->geometry, stripe, 0);
        taken = part->folding.taken[FLOW_ROW][*encoder];
        if (taken != blocks)
            return taken < blocks ? FOLDED_NOT_YET : FOLDED_WRONG;
    }
    return FOLDED_ALL;
}

/* True if everything is here and right, and nobody needs anything from this part any more. Else
 * *position is who is waited for, and *wait for what. */
static enum folded
everything(const struct env *env, struct part *part, uint32_t *position, enum cairn_wait *wait)
{
    enum folded folded;

    *wait = CAIRN_WAIT_BLOCKS;
    for (*position = 0; *position < part->geometry.n; ++*position) {
        folded = encode_compare(part, *position);
        if (folded != FOLDED_ALL)
            return folded;
    }
    if (!part_lengths(part))
        return FOLDED_WRONG; /* lengths that no group can have */
    folded = rows_taken(part, position);
    if (folded != FOLDED_ALL && !CAIRN_PLANTED(env, BUG_ROWS_UNSEEN))
        return folded;
    *wait = CAIRN_WAIT_PARITY;
    *position = outflow_waits_for(part);
    return *position == UINT32_MAX ? FOLDED_ALL : FOLDED_NOT_YET;
}

enum cairn_abort
save_try_finish(struct env *env, struct part *part)
{
    enum cairn_wait wait;
    enum folded folded;
    uint32_t position;

    if (part->state != CAIRN_PART_OPEN)
        return 0;
    outflow_send(env, part, FLOW_ROW);
    if (!part->seals[part->position].whole)
        return 0;
    folded = everything(env, part, &position, &wait);
    if (folded != FOLDED_ALL)
        return folded == FOLDED_WRONG ? CAIRN_ABORT_DAMAGED : 0;
    part->state = CAIRN_PART_FINISHING;
    part->request = part_ask(env, part, CAIRN_ACTION_FINISH)->as.part.request;
    return 0;
}

enum cairn_abort
save_finished(struct env *env, struct part *part, const struct cairn_event_answer *answer)
{
    cairn_err err = answer->err;

    if (part->state != CAIRN_PART_FINISHING || answer->request != part->request)
        return 0;
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
    if (!err)
        return 0;
    CAIRN_LOG_AT(WARN, "save: step %" PRIu64 " cannot be finished: %s", part->generation.step,
                 cairn_err_text(err));
    return err == CAIRN_NOMEM ? CAIRN_ABORT_MEMORY : CAIRN_ABORT_DAMAGED;
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

/* True if the numbers of a DATA message name a chunk of the own stripe, or a row that its encoder
 * makes for this part. */
static bool
data_belongs(const struct env *env, const struct part *part, const struct cairn_message *message)
{
    const struct cairn_message_data *data = &message->as.data;
    const struct cairn_geometry *geometry = &part->geometry;
    uint64_t limit = env->options->parity_blocks / (geometry->m ? geometry->m : 1);
    uint32_t position = part->roster->members[data->member % part->roster->member_count].position;

    return comes_from(part, data->member, message->from) && data->stripe < geometry->n &&
           data->row < geometry->m && data->count > 0 && message->bytes_len == 8 * data->count &&
           cairn_stripe_parity_position(geometry, data->stripe, data->row) == part->position &&
           (data->row == 0
                ? cairn_stripe_data_index(geometry, data->stripe, position) != CAIRN_STRIPE_NONE
                : cairn_stripe_parity_position(geometry, data->stripe, 0) == position) &&
           data->line <= limit && data->count <= limit - data->line;
}

/* Keeps the blocks of a DATA message from block `skip` on. */
static void
take_blocks(struct env *env, struct part *part, const struct cairn_message *message,
            uint32_t position, uint32_t skip)
{
    const struct cairn_message_data *data = &message->as.data;

    if (data->row == 0)
        encode_fold(env, part, message, position, skip);
    else /* finished parity: what is here already is written again as it is */
        env_act(env, CAIRN_ACTION_WRITE)->as.place =
            (struct cairn_action_place){.part = part_index(env, part),
                                        .area = CAIRN_AREA_PARITY,
                                        .row = data->row,
                                        .first_block = data->line,
                                        .count = data->count};
}

enum cairn_abort
save_data(struct env *env, struct part *part, const struct cairn_message *message, bool payload_ok)
{
    const struct cairn_message_data *data = &message->as.data;
    uint32_t position, skip;
    enum flow_kind kind = flow_of_row(data->row);
    uint64_t *taken;
    bool gap;

    if (part->state == CAIRN_PART_FREE || part->state == CAIRN_PART_REBUILDING ||
        !data_belongs(env, part, message))
        return 0;
    position = part->roster->members[data->member].position;
    taken = &part->folding.taken[kind][position];
    if (part->state != CAIRN_PART_OPEN ||
        (data->line + data->count <= *taken && !CAIRN_PLANTED(env, BUG_FOLD_TWICE))) {
        encode_answer(env, part, position, data->row, false);
        return 0;
    }
    gap = data->line > *taken;
    if (gap || (!payload_ok && !CAIRN_PLANTED(env, BUG_FOLD_DAMAGED))) {
        if (flow_asks(&part->folding.asked[kind], position, gap))
            encode_answer(env, part, position, data->row, true);
        return !gap && ++part->folding.corrupt_in_row >= CORRUPT_DATA_MAX ? CAIRN_ABORT_DAMAGED : 0;
    }
    if (data->row == 0 && data->line + data->count > encode_until(env, part, position))
        return 0; /* the ring has no room for what nobody asked for */
    part->folding.asked[kind] &= ~(UINT64_C(1) << position);
    part->folding.corrupt_in_row = 0;
    skip = CAIRN_PLANTED(env, BUG_FOLD_TWICE) ? 0 : (uint32_t)(*taken - data->line);
    take_blocks(env, part, message, position, skip);
    *taken = data->line + data->count;
    part->progress_ns = env->now_ns;
    encode_answer(env, part, position, data->row, false);
    return save_try_finish(env, part);
}

bool
save_take_seal(struct env *env, struct part *part, const struct cairn_message *message,
               bool *damaged)
{
    const struct cairn_message_seal *piece = &message->as.seal;
    uint32_t position = part->roster->members[piece->member].position;
    struct cairn_shard_seal *seal = &part->seals[position];
    bool gap = piece->offset > seal->received, taken, asks;
    struct cairn_message answer = env_message(env, CAIRN_MSG_RECEIVED, message->epoch);
    uint64_t count;

    cairn_shard_seal_take(seal, part->generation, piece->member, piece->offset, piece->total,
                          message->bytes, message->bytes_len);
    taken = seal->whole || piece->offset + message->bytes_len <= seal->received;
    *damaged = !taken && !gap;
    if (taken)
        part->folding.asked[FLOW_SEAL] &= ~(UINT64_C(1) << position);
    asks = !taken && flow_asks(&part->folding.asked[FLOW_SEAL], position, gap);
    count = seal->whole ? seal->len : seal->received;
    answer.as.received = (struct cairn_message_received){.generation = piece->generation,
                                                         .member = piece->member,
                                                         .for_member = part->member,
                                                         .row = CAIRN_ROW_SEAL,
                                                         .attempt = piece->attempt,
                                                         .count = count,
                                                         .until = count + SEAL_WINDOW_BYTES,
                                                         .again = !taken};
    if (taken || asks)
        env_send(env, message->from, &answer);
    return taken;
}

enum cairn_abort
save_seal(struct env *env, struct part *part, const struct cairn_message *message)
{
    const struct cairn_message_seal *piece = &message->as.seal;
    bool damaged;

    if (part->state == CAIRN_PART_FREE || part->state == CAIRN_PART_REBUILDING ||
        piece->for_member != part->member || !comes_from(part, piece->member, message->from))
        return 0;
    if (save_take_seal(env, part, message, &damaged)) {
        part->progress_ns = env->now_ns;
        return save_try_finish(env, part);
    }
    return damaged && ++part->folding.corrupt_in_row >= CORRUPT_DATA_MAX ? CAIRN_ABORT_DAMAGED : 0;
}

enum cairn_abort
save_received(struct env *env, struct part *part, const struct cairn_message *message)
{
    const struct cairn_message_received *received = &message->as.received;

    if (part->state != CAIRN_PART_OPEN || received->member != part->member ||
        !comes_from(part, received->for_member, message->from))
        return 0;
    part->progress_ns = env->now_ns;
    if (outflow_received(env, part, part->roster->members[received->for_member].position, received))
        return save_try_finish(env, part);
    return CAIRN_ABORT_FORGOTTEN;
}

enum cairn_wait
save_waits_for(const struct env *env, struct part *part, uint64_t everyone, uint32_t *for_agent)
{
    enum cairn_wait wait;
    uint32_t position;

    *for_agent = UINT32_MAX;
    if (part->state == CAIRN_PART_COMPLETE)
        return (enum cairn_wait)0;
    if (part->state == CAIRN_PART_OPEN && part->capture.done != everyone)
        return CAIRN_WAIT_TRAINERS;
    if (part->state == CAIRN_PART_FINISHING || !part->seals[part->position].whole ||
        everything(env, part, &position, &wait) != FOLDED_NOT_YET)
        return CAIRN_WAIT_HERE;
    *for_agent = part_agent(part, position);
    return wait;
}
