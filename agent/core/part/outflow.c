/*
 * agent/core/part/outflow.c - the flows of the own part to the other members of its group; see
 * outflow.h.
 */
#include "agent/core/part/outflow.h"

/* Where the blocks of a flow lie. */
struct lane {
    uint32_t stripe;
    uint32_t row;
    uint64_t start;  /* DATA: in the shard */
    uint64_t length; /* of all that is known to come: blocks, or bytes of the seal */
};

/* False if nothing flows to that position. */
static bool
find_lane(const struct part *part, enum flow_kind kind, uint32_t position, struct lane *out)
{
    const struct cairn_geometry *geometry = &part->geometry;
    const struct cairn_shard_seal *seal = &part->seals[part->position];
    uint32_t self = part->position, chunk = part_chunk(part, position, self);
    uint64_t blocks = part->capture.blocks;

    *out = (struct lane){.stripe = position};
    switch (kind) {
    case FLOW_DATA:
        if (chunk == CAIRN_STRIPE_NONE)
            return false;
        out->start = chunk * cairn_shard_chunk_blocks(geometry, blocks);
        out->length = cairn_chunk_blocks(geometry, blocks, chunk);
        break;
    case FLOW_ROW:
        out->stripe = self;
        out->row = cairn_stripe_parity_row(geometry, self, position);
        out->length = part->folding.touched;
        return position != self && out->row < geometry->m;
    default:
        out->row = CAIRN_ROW_SEAL;
        out->length = seal->whole ? seal->len : 0;
    }
    return position != self;
}

/* ---- sending ---- */

/* The captured blocks that follow, as many as a message may carry; their checksums. */
static uint32_t
next_blocks(const struct capture *capture, uint64_t first, uint64_t end, struct cairn_writer *crcs)
{
    uint32_t count = 0;

    while (count < CAIRN_MESSAGE_BLOCKS_MAX && first + count < end &&
           cairn_bitset_has(capture->captured, (uint32_t)(first + count)))
        cairn_write_u64(crcs, capture->crcs[first + count++]);
    return count;
}

/* Sends blocks from `line` on; returns how many, 0 if the next is not captured yet. */
static uint32_t
send_blocks(struct env *env, const struct part *part, uint32_t to, const struct lane *lane,
            uint64_t line, uint64_t end)
{
    struct cairn_message message = env_message(env, CAIRN_MSG_DATA, part->generation.epoch);
    struct cairn_blocks blocks = {.part = part_index(env, part), .row = lane->row};
    uint64_t ring = env->options->ring_lines;
    uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_writer writer;

    if (lane->row == 0) {
        cairn_writer_init(&writer, crcs, sizeof crcs);
        blocks.area = CAIRN_AREA_DATA;
        blocks.first_block = lane->start + line;
        blocks.count = next_blocks(&part->capture, lane->start + line, lane->start + end, &writer);
        message.bytes = crcs;
        message.bytes_len = 8 * blocks.count;
    } else { /* not across the end of the ring; the process adds the checksums */
        blocks.area = CAIRN_AREA_RING;
        blocks.first_block = line;
        blocks.count =
            (uint32_t)min_u64(min_u64(end - line, ring - line % ring), CAIRN_MESSAGE_BLOCKS_MAX);
    }
    message.as.data = (struct cairn_message_data){.decision = *env->decision,
                                                  .generation = part->generation,
                                                  .member = part->member,
                                                  .stripe = lane->stripe,
                                                  .row = lane->row,
                                                  .line = line,
                                                  .count = blocks.count};
    if (blocks.count > 0)
        env_send_blocks(env, to, &message, &blocks);
    return blocks.count;
}

uint32_t
outflow_send_seal(struct env *env, const struct part *part, uint32_t to,
                  struct cairn_message_seal piece)
{
    const struct cairn_shard_seal *seal =
        &part->seals[part->roster->members[piece.member].position];
    struct cairn_message message = env_message(env, CAIRN_MSG_SEAL, part->generation.epoch);

    if (!seal->whole || piece.offset >= seal->len)
        return 0;
    message.as.seal = piece;
    message.as.seal.decision = *env->decision;
    message.as.seal.generation = part->generation;
    message.as.seal.total = seal->len;
    message.bytes = seal->bytes + piece.offset;
    message.bytes_len = (uint32_t)min_u64(SEAL_PART_BYTES, seal->len - piece.offset);
    env_send(env, to, &message);
    return message.bytes_len;
}

/* Sends what is ready to one position. lines: of the own stripe, that are finished. */
static void
pump(struct env *env, struct part *part, enum flow_kind kind, uint32_t position, uint64_t lines)
{
    struct flow *flow = &part->flows[kind][position];
    uint32_t to = part_agent(part, position), sent;
    struct lane lane;
    uint64_t end;

    if (!find_lane(part, kind, position, &lane))
        return;
    end = min_u64(kind == FLOW_ROW ? lines : lane.length, flow->until);
    while (env_is_level(env, to) && flow->next < end) {
        sent = kind == FLOW_SEAL ? outflow_send_seal(env, part, to,
                                                     (struct cairn_message_seal){
                                                         .member = part->member,
                                                         .for_member = part_member(part, position),
                                                         .offset = flow->next})
                                 : send_blocks(env, part, to, &lane, flow->next, end);
        if (sent == 0)
            return;
        flow->next += sent;
    }
}

void
outflow_send(struct env *env, struct part *part, enum flow_kind kind)
{
    uint64_t lines = kind == FLOW_ROW ? encode_finished_lines(env, part) : 0;

    for (uint32_t p = 0; p < part->geometry.n; p++)
        pump(env, part, kind, p, lines);
}

/* ---- what the group says ---- */

void
outflow_prepare(const struct env *env, struct part *part)
{
    uint64_t until =
        part->geometry.m > 1 ? min_u64(WINDOW_BLOCKS, env->options->ring_lines) : WINDOW_BLOCKS;

    for (uint32_t p = 0; p < part->geometry.n; p++) {
        part->flows[FLOW_DATA][p].until = part->folding.until[p] = until;
        part->flows[FLOW_ROW][p].until = WINDOW_BLOCKS;
        part->flows[FLOW_SEAL][p].until = SEAL_WINDOW_BYTES;
    }
}

uint32_t
outflow_waits_for(const struct part *part)
{
    struct lane lane;

    for (uint32_t p = 0; p < part->geometry.n; p++)
        for (enum flow_kind kind = FLOW_DATA; kind < FLOW_KINDS; kind++)
            if (find_lane(part, kind, p, &lane) && part->flows[kind][p].acked < lane.length)
                return p;
    return UINT32_MAX;
}

bool
outflow_received(struct env *env, struct part *part, uint32_t position,
                 const struct cairn_message_received *received)
{
    enum flow_kind kind = flow_of_row(received->row);
    struct lane lane;

    if (!find_lane(part, kind, position, &lane) || received->row != lane.row ||
        (kind != FLOW_SEAL && received->stripe != lane.stripe) || received->count > lane.length)
        return true; /* it reports more than exists */
    if (kind == FLOW_ROW && received->again && received->count < encode_released(part))
        return false;
    flow_received(&part->flows[kind][position], received->count, received->again, received->until);
    if (kind == FLOW_ROW)
        encode_let_go_on(env, part); /* save_try_finish sends more rows */
    else
        pump(env, part, kind, position, 0);
    return true;
}

void
save_peer_up(struct env *env, struct part *part, uint32_t agent)
{
    if (part->state != CAIRN_PART_OPEN)
        return;
    for (uint32_t p = 0; p < part->geometry.n; p++) {
        if (part_agent(part, p) != agent)
            continue;
        for (enum flow_kind kind = FLOW_DATA; kind < FLOW_KINDS; kind++)
            part->flows[kind][p].next = part->flows[kind][p].acked;
        if (part_chunk(part, part->position, p) != CAIRN_STRIPE_NONE)
            encode_answer(env, part, p, 0, false); /* what let it go on may be lost */
    }
    for (enum flow_kind kind = FLOW_DATA; kind < FLOW_KINDS; kind++)
        outflow_send(env, part, kind);
}
