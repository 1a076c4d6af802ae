/* agent/core/part/encode.c - see encode.h. */
#include "agent/core/part/encode.h"

#include "base/crc.h"
#include "base/wire.h"

/* ---- the own stripe against the seals ---- */

/* CRC-64 over the checksums of a chunk's blocks: what `chain` must be when all of it is folded. */
static uint64_t
chunk_chain(const struct cairn_shard_seal *seal, uint64_t start, uint64_t length)
{
    uint64_t chain = 0;

    for (uint64_t i = 0; i < length; i++) {
        uint8_t bytes[8];

        cairn_little_put(bytes, 8, seal->crcs[start + i]);
        chain = cairn_crc64(chain, bytes, 8);
    }
    return chain;
}

enum folded
encode_compare(const struct part *part, uint32_t position)
{
    const struct cairn_geometry *geometry = &part->geometry;
    const struct cairn_shard_seal *seal = &part->seals[position];
    uint32_t chunk = part_chunk(part, part->position, position);
    uint64_t start, length;

    if (!seal->whole)
        return FOLDED_NOT_YET;
    if (chunk == CAIRN_STRIPE_NONE)
        return FOLDED_ALL;
    start = chunk * cairn_shard_chunk_blocks(geometry, seal->shard_blocks);
    length = cairn_chunk_blocks(geometry, seal->shard_blocks, chunk);
    if (part->folding.taken[FLOW_DATA][position] < length)
        return FOLDED_NOT_YET;
    return part->folding.taken[FLOW_DATA][position] == length &&
                   part->folding.chain[position] == chunk_chain(seal, start, length)
               ? FOLDED_ALL
               : FOLDED_WRONG;
}

/* ---- folding ---- */

void
encode_fold(struct env *env, struct part *part, const struct cairn_message *message,
            uint32_t position, uint32_t skip)
{
    const struct cairn_message_data *data = &message->as.data;
    uint64_t line = data->line + skip, end = data->line + data->count;
    uint64_t ring = env->options->ring_lines, *touched = &part->folding.touched;

    while (line < end) {
        bool fresh = line >= *touched;
        uint64_t stop = fresh ? end : min_u64(end, *touched);

        if (part->geometry.m > 1)
            stop = min_u64(stop, line - line % ring + ring);
        env_act(env, CAIRN_ACTION_FOLD)->as.fold = (struct cairn_action_fold){
            .part = part_index(env, part),
            .source = cairn_stripe_data_index(&part->geometry, data->stripe, position),
            .first_block = line,
            .count = (uint32_t)(stop - line),
            .skip = (uint32_t)(line - data->line),
            .fresh = fresh};
        if (fresh)
            *touched = stop;
        line = stop;
    }
    part->folding.chain[position] =
        cairn_crc64(part->folding.chain[position], message->bytes + 8 * (size_t)skip,
                    8 * (size_t)(data->count - skip));
}

uint64_t
encode_released(const struct part *part)
{
    uint64_t lines = UINT64_MAX;

    for (uint32_t row = 1; row < part->geometry.m; row++)
        lines = min_u64(lines, part->flows[FLOW_ROW][cairn_stripe_parity_position(
                                                         &part->geometry, part->position, row)]
                                   .acked);
    return lines;
}

uint64_t
encode_until(const struct env *env, const struct part *part, uint32_t position)
{
    uint64_t until = part->folding.taken[FLOW_DATA][position] + WINDOW_BLOCKS;

    if (part->geometry.m < 2 || CAIRN_PLANTED(env, BUG_RING_REUSED))
        return until;
    return min_u64(until, encode_released(part) + env->options->ring_lines);
}

uint64_t
encode_finished_lines(const struct env *env, const struct part *part)
{
    uint64_t lines = UINT64_MAX, length = 0;
    bool equal = true;

    if (part->geometry.m < 2)
        return 0;
    for (uint32_t p = 0; p < part->geometry.n; p++) {
        enum folded folded;

        if (part_chunk(part, part->position, p) == CAIRN_STRIPE_NONE)
            continue;
        folded = encode_compare(part, p);
        equal &= folded == FOLDED_ALL;
        length = max_u64(length, part->folding.taken[FLOW_DATA][p]);
        if (folded != FOLDED_ALL)
            lines = min_u64(lines, part->folding.taken[FLOW_DATA][p]);
    }
    if (equal || CAIRN_PLANTED(env, BUG_FORWARD_EARLY))
        return length;
    return lines > 0 ? lines - 1 : 0;
}

/* ---- answers ---- */

void
encode_answer(struct env *env, struct part *part, uint32_t position, uint32_t row, bool again)
{
    uint32_t stripe = cairn_slot_stripe(&part->geometry, part->position, row);
    struct cairn_message message = env_message(env, CAIRN_MSG_RECEIVED, part->generation.epoch);
    uint64_t count = part->folding.taken[flow_of_row(row)][position], until;

    if (part->state != CAIRN_PART_OPEN) /* all of it is in, also of an adopted part */
        count = row == 0 ? cairn_stripes_blocks(&part->stripes, stripe, position)
                         : part_slot_blocks(part, row);
    until = count + WINDOW_BLOCKS;
    if (part->state == CAIRN_PART_OPEN && row == 0)
        until = part->folding.until[position] = encode_until(env, part, position);
    message.as.received = (struct cairn_message_received){.generation = part->generation,
                                                          .member = part_member(part, position),
                                                          .for_member = part->member,
                                                          .stripe = stripe,
                                                          .row = row,
                                                          .count = count,
                                                          .until = until,
                                                          .again = again};
    env_send(env, part_agent(part, position), &message);
}

void
encode_let_go_on(struct env *env, struct part *part)
{
    for (uint32_t p = 0; p < part->geometry.n; p++) {
        uint64_t until = part->folding.until[p];

        if (part_chunk(part, part->position, p) != CAIRN_STRIPE_NONE &&
            encode_until(env, part, p) > until &&
            until <= part->folding.taken[FLOW_DATA][p] + WINDOW_BLOCKS / 2)
            encode_answer(env, part, p, 0, false);
    }
}
