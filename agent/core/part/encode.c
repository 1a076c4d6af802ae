/* agent/core/part/encode.c - see encode.h. */
#include "agent/core/part/encode.h"

#include "base/crc.h"
#include "base/wire.h"

/* The own stripe has the number of its encoder's position. */
static uint32_t
own_stripe(const struct part *part)
{
    return cairn_slot_stripe(&part->geometry, part->position, 0);
}

/* A position's chunk of the own stripe; CAIRN_STRIPE_NONE: it has none. */
static uint32_t
chunk_of(const struct part *part, uint32_t position)
{
    return cairn_stripe_chunk(&part->geometry, own_stripe(part), position);
}

static uint32_t
owner_of(const struct part *part, uint32_t row)
{
    return cairn_stripe_parity_position(&part->geometry, own_stripe(part), row);
}

void
encode_prepare(const struct env *env, struct part *part)
{
    uint64_t until =
        part->geometry.m > 1 ? min_u64(WINDOW_BLOCKS, env->options->ring_lines) : WINDOW_BLOCKS;

    for (uint32_t i = 0; i < part->geometry.k; i++)
        part->capture.data_flows[i].until = until;
    for (uint32_t p = 0; p < part->geometry.n; p++) {
        part->capture.seal_flows[p].until = SEAL_WINDOW_BYTES;
        part->folding.until[p] = until;
        part->folding.forward[p].until = WINDOW_BLOCKS;
    }
}

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
    uint32_t chunk = geometry->m > 0 ? chunk_of(part, position) : CAIRN_STRIPE_NONE;
    uint64_t start, length;

    if (!seal->whole)
        return FOLDED_NOT_YET;
    if (chunk == CAIRN_STRIPE_NONE)
        return FOLDED_ALL;
    start = chunk * cairn_shard_chunk_blocks(geometry, seal->shard_blocks);
    length = cairn_chunk_blocks(geometry, seal->shard_blocks, chunk);
    if (part->folding.taken[position] < length)
        return FOLDED_NOT_YET;
    return part->folding.taken[position] == length &&
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

/* Lines that every owner has reported: their places in the ring are free. */
static uint64_t
released(const struct part *part)
{
    uint64_t lines = UINT64_MAX;

    for (uint32_t row = 1; row < part->geometry.m; row++)
        lines = min_u64(lines, part->folding.forward[row].acked);
    return lines;
}

uint64_t
encode_until(const struct env *env, const struct part *part, uint32_t position)
{
    uint64_t until = part->folding.taken[position] + WINDOW_BLOCKS;

    if (part->geometry.m < 2 || CAIRN_PLANTED(env, BUG_RING_REUSED))
        return until;
    return min_u64(until, released(part) + env->options->ring_lines);
}

/* ---- forwarding ---- */

/* Lines that may leave. */
static uint64_t
finished_lines(const struct env *env, const struct part *part)
{
    uint64_t lines = UINT64_MAX, length = 0;
    bool equal = true;

    for (uint32_t p = 0; p < part->geometry.n; p++) {
        uint32_t chunk = chunk_of(part, p);
        enum folded folded;

        if (chunk == CAIRN_STRIPE_NONE)
            continue;
        folded = encode_compare(part, p);
        equal &= folded == FOLDED_ALL;
        length = max_u64(length, part->folding.taken[p]);
        if (folded != FOLDED_ALL)
            lines = min_u64(lines, part->folding.taken[p]);
    }
    if (equal || CAIRN_PLANTED(env, BUG_FORWARD_EARLY))
        return length;
    return lines > 0 ? lines - 1 : 0;
}

static void
forward_row(struct env *env, struct part *part, uint32_t row, uint64_t lines)
{
    struct flow *flow = &part->folding.forward[row];
    const struct cairn_roster_group *group = cairn_roster_group_of(part->roster, part->member);
    uint32_t owner = part->roster->members[group->members[owner_of(part, row)]].agent;
    uint64_t ring = env->options->ring_lines, end = min_u64(lines, flow->until);

    while (env_is_level(env, owner) && flow->next < end) {
        struct cairn_message message = env_message(env, CAIRN_MSG_DATA, part->generation.epoch);
        uint64_t count =
            min_u64(min_u64(end - flow->next, ring - flow->next % ring), CAIRN_MESSAGE_BLOCKS_MAX);
        struct cairn_blocks blocks = {.count = (uint32_t)count,
                                      .area = CAIRN_AREA_RING,
                                      .part = part_index(env, part),
                                      .row = row,
                                      .first_block = flow->next};

        message.as.data = (struct cairn_message_data){.decision = *env->decision,
                                                      .generation = part->generation,
                                                      .member = part->member,
                                                      .stripe = own_stripe(part),
                                                      .row = row,
                                                      .line = flow->next,
                                                      .count = blocks.count};
        env_send_blocks(env, owner, &message, &blocks);
        flow->next += count;
    }
}

void
encode_forward(struct env *env, struct part *part)
{
    uint64_t lines;

    if (part->geometry.m < 2)
        return;
    lines = finished_lines(env, part);
    for (uint32_t row = 1; row < part->geometry.m; row++)
        forward_row(env, part, row, lines);
}

uint32_t
encode_waits_for(const struct part *part)
{
    for (uint32_t row = 1; row < part->geometry.m; row++)
        if (part->folding.forward[row].acked < part_slot_blocks(part, 0))
            return owner_of(part, row);
    return UINT32_MAX;
}

void
encode_answer(struct env *env, struct part *part, uint32_t position, uint32_t row, bool again)
{
    uint32_t member = cairn_roster_group_of(part->roster, part->member)->members[position];
    uint32_t stripe = cairn_slot_stripe(&part->geometry, part->position, row);
    struct cairn_message message = env_message(env, CAIRN_MSG_RECEIVED, part->generation.epoch);
    uint64_t count = part->folding.taken[row * part->geometry.n + position], until;

    if (part->state != CAIRN_PART_OPEN) /* all of it is in, also of an adopted part */
        count = row == 0 ? cairn_stripes_blocks(&part->stripes, stripe, position)
                         : part_slot_blocks(part, row);
    until = count + WINDOW_BLOCKS;
    if (part->state == CAIRN_PART_OPEN && row == 0)
        until = part->folding.until[position] = encode_until(env, part, position);
    message.as.received = (struct cairn_message_received){.generation = part->generation,
                                                          .member = member,
                                                          .for_member = part->member,
                                                          .stripe = stripe,
                                                          .row = row,
                                                          .count = count,
                                                          .until = until,
                                                          .again = again};
    env_send(env, part->roster->members[member].agent, &message);
}

/* Lets members go on that the ring has held back. Others are answered when they send. */
static void
let_go_on(struct env *env, struct part *part)
{
    for (uint32_t p = 0; p < part->geometry.n; p++) {
        uint64_t until = part->folding.until[p];

        if (chunk_of(part, p) != CAIRN_STRIPE_NONE && encode_until(env, part, p) > until &&
            until <= part->folding.taken[p] + WINDOW_BLOCKS / 2)
            encode_answer(env, part, p, 0, false);
    }
}

bool
encode_received(struct env *env, struct part *part, const struct cairn_message_received *received)
{
    struct flow *flow = &part->folding.forward[received->row];

    if (received->again && received->count < released(part))
        return false;
    if (received->count > flow->next)
        return true; /* it cannot have what was not sent */
    flow_received(flow, received->count, received->again, received->until);
    let_go_on(env, part);
    encode_forward(env, part);
    return true;
}

void
encode_peer_up(struct env *env, struct part *part, uint32_t agent)
{
    const struct cairn_roster_group *group = cairn_roster_group_of(part->roster, part->member);

    if (part->geometry.m < 2)
        return;
    for (uint32_t row = 1; row < part->geometry.m; row++)
        if (part->roster->members[group->members[owner_of(part, row)]].agent == agent)
            part->folding.forward[row].next = part->folding.forward[row].acked;
    for (uint32_t p = 0; p < part->geometry.n; p++) /* what let it go on may be lost */
        if (chunk_of(part, p) != CAIRN_STRIPE_NONE &&
            part->roster->members[group->members[p]].agent == agent)
            encode_answer(env, part, p, 0, false);
    encode_forward(env, part);
}
