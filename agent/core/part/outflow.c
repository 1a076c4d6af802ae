/*
 * agent/core/part/outflow.c - the own part of a generation goes out: captured blocks to the
 * encoders of their stripes, the seal to the group; see save.h.
 */
#include "agent/core/part/encode.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>

cairn_err
save_prepare(const struct env *env, struct part *part, uint64_t blocks)
{
    struct capture *capture = &part->capture;

    capture->captured = calloc(blocks / 64 + 1, sizeof(uint64_t));
    capture->crcs = calloc(blocks + 1, sizeof(uint64_t));
    capture->data_flows = calloc(part->geometry.k, sizeof *capture->data_flows);
    if (!capture->captured || !capture->crcs || !capture->data_flows)
        return CAIRN_NOMEM;
    capture->blocks = blocks;
    encode_prepare(env, part);
    part->progress_ns = env->now_ns;
    return CAIRN_OK;
}

bool
save_parity_fits(const struct cairn_core_options *options, const struct cairn_roster_group *group,
                 uint64_t blocks)
{
    uint64_t m = group->parity, k = group->count - m;

    return m * ((blocks + k - 1) / k) <= options->parity_blocks;
}

/* ---- flows ---- */

static uint32_t
agent_at(const struct part *part, uint32_t position)
{
    return part->roster
        ->members[cairn_roster_group_of(part->roster, part->member)->members[position]]
        .agent;
}

/* The position that encodes the stripe of a chunk of the own shard. */
static uint32_t
encoder_of(const struct part *part, uint32_t chunk)
{
    return cairn_stripe_parity_position(
        &part->geometry, cairn_chunk_stripe(&part->geometry, part->position, chunk), 0);
}

/* The captured blocks that follow in a chunk, as many as a message may carry; their checksums. */
static uint32_t
next_blocks(const struct capture *capture, uint64_t first, uint64_t end, struct cairn_writer *crcs)
{
    uint32_t count = 0;

    while (count < CAIRN_MESSAGE_BLOCKS_MAX && first + count < end &&
           cairn_bitset_has(capture->captured, (uint32_t)(first + count)))
        cairn_write_u64(crcs, capture->crcs[first + count++]);
    return count;
}

static void
pump_chunk(struct env *env, struct part *part, uint32_t chunk)
{
    const struct cairn_geometry *geometry = &part->geometry;
    struct flow *flow = &part->capture.data_flows[chunk];
    uint64_t start = chunk * cairn_shard_chunk_blocks(geometry, part->capture.blocks);
    uint64_t end = min_u64(cairn_chunk_blocks(geometry, part->capture.blocks, chunk), flow->until);
    uint32_t encoder = agent_at(part, encoder_of(part, chunk));

    while (env_is_level(env, encoder) && flow->next < end) {
        struct cairn_message message = env_message(env, CAIRN_MSG_DATA, part->generation.epoch);
        struct cairn_blocks blocks = {.area = CAIRN_AREA_DATA, .part = part_index(env, part)};
        uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
        struct cairn_writer writer;

        cairn_writer_init(&writer, crcs, sizeof crcs);
        blocks.first_block = start + flow->next;
        blocks.count = next_blocks(&part->capture, blocks.first_block, start + end, &writer);
        if (blocks.count == 0)
            return;
        message.as.data = (struct cairn_message_data){
            .decision = *env->decision,
            .generation = part->generation,
            .member = part->member,
            .stripe = cairn_chunk_stripe(geometry, part->position, chunk),
            .line = flow->next,
            .count = blocks.count};
        message.bytes = crcs;
        message.bytes_len = 8 * blocks.count;
        env_send_blocks(env, encoder, &message, &blocks);
        flow->next += blocks.count;
    }
}

static void
pump_seal(struct env *env, struct part *part, uint32_t position)
{
    const struct cairn_shard_seal *seal = &part->seals[part->position];
    struct flow *flow = &part->capture.seal_flows[position];
    struct cairn_message message = env_message(env, CAIRN_MSG_SEAL, part->generation.epoch);

    if (position == part->position || !seal->whole)
        return;
    message.as.seal = (struct cairn_message_seal){
        .decision = *env->decision,
        .generation = part->generation,
        .member = part->member,
        .for_member = cairn_roster_group_of(part->roster, part->member)->members[position],
        .total = seal->len};
    while (env_is_level(env, agent_at(part, position)) && flow->next < seal->len &&
           flow->next < flow->until) {
        message.as.seal.offset = flow->next;
        message.bytes = seal->bytes + flow->next;
        message.bytes_len = (uint32_t)min_u64(SEAL_PART_BYTES, seal->len - flow->next);
        env_send(env, agent_at(part, position), &message);
        flow->next += message.bytes_len;
    }
}

static void
pump_chunks(struct env *env, struct part *part)
{
    for (uint32_t chunk = 0; part->geometry.m > 0 && chunk < part->geometry.k; chunk++)
        pump_chunk(env, part, chunk);
}

static void
pump_seals(struct env *env, struct part *part)
{
    for (uint32_t p = 0; p < part->geometry.n; p++)
        pump_seal(env, part, p);
}

/* ---- the local trainers ---- */

void
save_blocks(struct env *env, struct part *part, const struct cairn_event_blocks *blocks)
{
    struct capture *capture = &part->capture;

    if (part->state != CAIRN_PART_OPEN || capture->seal_request != 0 ||
        blocks->first_block > capture->blocks ||
        blocks->count > capture->blocks - blocks->first_block)
        return;
    for (uint64_t i = 0; i < blocks->count; i++) {
        cairn_bitset_add(capture->captured, (uint32_t)(blocks->first_block + i));
        capture->crcs[blocks->first_block + i] = blocks->crcs[i];
    }
    part->progress_ns = env->now_ns;
    pump_chunks(env, part);
}

struct outcome
save_captured(struct env *env, struct part *part, uint32_t rank, uint64_t everyone)
{
    struct capture *capture = &part->capture;
    struct outcome outcome = {.generation = part->generation};
    struct cairn_action *action;

    if (part->state != CAIRN_PART_OPEN || capture->seal_request != 0)
        return outcome;
    if (rank < CAIRN_RANKS_PER_NODE_MAX)
        capture->done |= UINT64_C(1) << rank;
    part->progress_ns = env->now_ns;
    if (capture->done != everyone)
        return outcome;
    if (cairn_bitset_count(capture->captured, (uint32_t)capture->blocks) != capture->blocks) {
        outcome.abort = CAIRN_ABORT_CANCELLED; /* the ranks are done, but blocks are missing */
        return outcome;
    }
    action = env_act(env, CAIRN_ACTION_SEAL);
    capture->seal_request = env_request(env);
    action->as.part = (struct cairn_action_part){
        .part = part_index(env, part),
        .request = capture->seal_request,
        .generation = part->generation,
        .member = part->member,
        .blocks = capture->blocks,
        .crcs = env_keep(env, action, capture->crcs, 8 * capture->blocks)};
    return outcome;
}

struct outcome
save_sealed(struct env *env, struct part *part, const struct cairn_event_answer *answer)
{
    struct cairn_shard_seal *seal = &part->seals[part->position];
    struct outcome outcome = {.generation = part->generation};
    cairn_err err = answer->err;

    if (part->state != CAIRN_PART_OPEN || part->capture.seal_request == 0 ||
        answer->request != part->capture.seal_request || seal->whole)
        return outcome;
    if (!err)
        err = cairn_shard_seal_pack(part->generation, part->member, part->capture.blocks,
                                    part->capture.crcs, answer->bytes, answer->bytes_len, seal);
    if (err) {
        CAIRN_LOG_AT(WARN, "save: step %" PRIu64 " cannot be sealed: %s", part->generation.step,
                     cairn_err_text(err));
        outcome.abort = CAIRN_ABORT_MEMORY;
        return outcome;
    }
    part->progress_ns = env->now_ns;
    pump_seals(env, part);
    return save_try_finish(env, part);
}

/* ---- the group ---- */

/* The chunk, or the seal, was received at a position. */
static void
take_own(struct env *env, struct part *part, uint32_t position,
         const struct cairn_message_received *received)
{
    uint32_t chunk;

    if (received->row == CAIRN_ROW_SEAL) {
        if (!part->seals[part->position].whole || received->count > part->seals[part->position].len)
            return;
        flow_received(&part->capture.seal_flows[position], received->count, received->again,
                      received->until);
        pump_seal(env, part, position);
        return;
    }
    if (received->row != 0 || received->stripe >= part->geometry.n)
        return;
    chunk = cairn_stripe_chunk(&part->geometry, received->stripe, part->position);
    if (chunk == CAIRN_STRIPE_NONE || encoder_of(part, chunk) != position ||
        received->count > cairn_chunk_blocks(&part->geometry, part->capture.blocks, chunk))
        return;
    flow_received(&part->capture.data_flows[chunk], received->count, received->again,
                  received->until);
    pump_chunk(env, part, chunk);
}

struct outcome
save_received(struct env *env, struct part *part, const struct cairn_message *message)
{
    const struct cairn_message_received *received = &message->as.received;
    const struct cairn_roster_group *group = cairn_roster_group_of(part->roster, part->member);
    struct outcome outcome = {.generation = part->generation};
    uint32_t position;

    if (part->state != CAIRN_PART_OPEN || received->member != part->member ||
        received->for_member >= part->roster->member_count ||
        part->roster->members[received->for_member].agent != message->from)
        return outcome;
    position = part->roster->members[received->for_member].position;
    if (position >= group->count || group->members[position] != received->for_member)
        return outcome; /* of another group */
    part->progress_ns = env->now_ns;
    if (received->row == 0 || received->row >= part->geometry.m) {
        take_own(env, part, position, received);
        return save_try_finish(env, part);
    }
    if (received->stripe >= part->geometry.n ||
        cairn_stripe_parity_position(&part->geometry, received->stripe, 0) != part->position ||
        cairn_stripe_parity_position(&part->geometry, received->stripe, received->row) != position)
        return outcome;
    if (!encode_received(env, part, received)) {
        outcome.abort = CAIRN_ABORT_FORGOTTEN;
        return outcome;
    }
    return save_try_finish(env, part);
}

void
save_peer_up(struct env *env, struct part *part, uint32_t agent)
{
    struct capture *capture = &part->capture;

    if (part->state != CAIRN_PART_OPEN)
        return;
    for (uint32_t chunk = 0; part->geometry.m > 0 && chunk < part->geometry.k; chunk++)
        if (agent_at(part, encoder_of(part, chunk)) == agent) {
            capture->data_flows[chunk].next = capture->data_flows[chunk].acked;
            pump_chunk(env, part, chunk);
        }
    for (uint32_t p = 0; p < part->geometry.n; p++)
        if (agent_at(part, p) == agent) {
            capture->seal_flows[p].next = capture->seal_flows[p].acked;
            pump_seal(env, part, p);
        }
    encode_peer_up(env, part, agent);
}
