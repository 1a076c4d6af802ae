/*
 * agent/core/seal.c - a member's seal: the checksums of all blocks of its part and its packed
 * manifest.
 *
 * Sent to every other member of the group, so that whoever holds parity for a member also holds
 * what is needed to know and check its part. Packed: u64 epoch, u64 step, u32 member, u32 ranks,
 * u32 world, u64 sum of its tiling, u64 blocks, u32 manifest bytes, the manifest, one u64 CRC-64
 * per block, and a CRC-64 of all before it. It travels in parts, in order, go-back-N.
 */
#include "agent/core/core_state.h"

#include "base/crc.h"

#include <stdlib.h>
#include <string.h>

enum { SEAL_FIXED_BYTES = 8 + 8 + 4 + 4 + 4 + 8 + 8 + 4 + 8 };
static const uint64_t seal_bytes_max = UINT64_C(1) << 30;

void
seal_fini(struct seal *seal)
{
    free(seal->bytes);
    free(seal->crcs);
    memset(seal, 0, sizeof *seal);
}

cairn_err
seal_pack(struct cairn_generation generation, uint32_t member, struct seal_ranks ranks,
          uint64_t shard_blocks, const uint64_t *crcs, const uint8_t *manifest, size_t manifest_len,
          struct seal *out)
{
    struct seal seal = {0};
    struct cairn_writer writer;
    cairn_err err;

    if (manifest_len > UINT32_MAX || shard_blocks > seal_bytes_max / 8)
        return CAIRN_INVAL;
    seal.len = SEAL_FIXED_BYTES + manifest_len + 8 * shard_blocks;
    seal.bytes = malloc(seal.len);
    if (!seal.bytes)
        return CAIRN_NOMEM;
    cairn_writer_init(&writer, seal.bytes, seal.len);
    cairn_write_u64(&writer, generation.epoch);
    cairn_write_u64(&writer, generation.step);
    cairn_write_u32(&writer, member);
    cairn_write_u32(&writer, ranks.captured);
    cairn_write_u32(&writer, ranks.world);
    cairn_write_u64(&writer, ranks.tiling_sum);
    cairn_write_u64(&writer, shard_blocks);
    cairn_write_u32(&writer, (uint32_t)manifest_len);
    cairn_write_bytes(&writer, manifest, manifest_len);
    for (uint64_t i = 0; i < shard_blocks; i++)
        cairn_write_u64(&writer, crcs[i]);
    cairn_write_u64(&writer, cairn_crc64(0, seal.bytes, seal.len - 8));
    err = cairn_writer_done(&writer);
    if (!err) {
        seal.received = seal.len;
        err = seal_parse(&seal, generation, member);
    }
    if (err) {
        seal_fini(&seal);
        return err;
    }
    *out = seal;
    return CAIRN_OK;
}

cairn_err
seal_parse(struct seal *seal, struct cairn_generation generation, uint32_t member)
{
    struct cairn_reader reader;
    uint64_t blocks, tiling_sum;
    uint32_t manifest_len, ranks, world;
    const uint8_t *manifest;
    uint64_t *crcs;

    if (seal->len < SEAL_FIXED_BYTES)
        return CAIRN_CORRUPT;
    cairn_reader_init(&reader, seal->bytes, seal->len);
    if (cairn_read_u64(&reader) != generation.epoch || cairn_read_u64(&reader) != generation.step ||
        cairn_read_u32(&reader) != member)
        return CAIRN_CORRUPT;
    ranks = cairn_read_u32(&reader);
    world = cairn_read_u32(&reader);
    tiling_sum = cairn_read_u64(&reader);
    if (ranks > CAIRN_RANKS_PER_NODE_MAX || tiling_sum >= CAIRN_TILING_FIELD)
        return CAIRN_CORRUPT;
    blocks = cairn_read_u64(&reader);
    manifest_len = cairn_read_u32(&reader);
    manifest = cairn_read_borrow(&reader, manifest_len);
    if (!manifest || blocks > cairn_reader_left(&reader) / 8 ||
        cairn_reader_left(&reader) != 8 * blocks + 8)
        return CAIRN_CORRUPT;
    crcs = malloc(blocks ? 8 * blocks : 8);
    if (!crcs)
        return CAIRN_NOMEM;
    for (uint64_t i = 0; i < blocks; i++)
        crcs[i] = cairn_read_u64(&reader);
    if (cairn_read_u64(&reader) != cairn_crc64(0, seal->bytes, seal->len - 8)) {
        free(crcs);
        return CAIRN_CORRUPT;
    }
    free(seal->crcs);
    seal->crcs = crcs;
    seal->shard_blocks = blocks;
    seal->ranks = ranks;
    seal->world = world;
    seal->tiling_sum = tiling_sum;
    seal->manifest = manifest;
    seal->manifest_len = manifest_len;
    seal->whole = true;
    return CAIRN_OK;
}

void
seal_pump(struct cairn_core *core, const struct seal_route *route, const struct seal *seal,
          struct flow *flow, bool resend)
{
    if (resend)
        flow->next = flow->acked;
    while (flow->next < seal->len && flow->next - flow->acked < 4 * SEAL_PART_BYTES) {
        struct cairn_message message = message_new(core, CAIRN_MSG_SEAL, route->epoch);

        message.generation = route->generation;
        message.member = route->member;
        message.row = route->to_member;
        message.request = route->repair;
        message.offset = flow->next;
        message.total = seal->len;
        message.bytes = seal->bytes + flow->next;
        message.bytes_len = (uint32_t)min_u64(SEAL_PART_BYTES, seal->len - flow->next);
        if (!send_message(core, route->to_agent, &message))
            return;
        flow->next += message.bytes_len;
        flow->progress_ns = core->now_ns;
    }
}

/* Takes one part in order; a seal that turns out damaged starts again from its first byte. */
static void
take_part(struct seal *seal, const struct cairn_message *message)
{
    if (!seal->bytes) {
        seal->bytes = malloc(message->total);
        seal->len = seal->bytes ? message->total : 0;
        seal->received = 0;
    }
    if (!seal->bytes || seal->len != message->total || seal->received != message->offset ||
        message->bytes_len > seal->len - seal->received)
        return;
    memcpy(seal->bytes + seal->received, message->bytes, message->bytes_len);
    seal->received += message->bytes_len;
    if (seal->received == seal->len &&
        seal_parse(seal, message->generation, message->member) != CAIRN_OK)
        seal->received = 0;
}

/* The holding that a seal is for: its member is message->row. A save may be opened by its first
 * message. */
static struct holding *
seal_holding(struct cairn_core *core, const struct cairn_message *message)
{
    struct holding *holding = holding_find(core, message->generation, message->row);

    if (message->request == 0 && (message->epoch != core->active || core->frozen))
        return NULL;
    if (!holding && message->request == 0 && message->row == core->self_member) {
        holding = save_open(core, message->generation);
        if (!holding) {
            again_turned_away(core, message->generation);
            facts_answer(core, message->generation, message->from);
        }
    }
    if (!holding || message->member >= holding->table->member_count ||
        holding->table->members[message->member].group !=
            holding->table->members[holding->member].group ||
        (message->request == 0 && message->member == holding->member))
        return NULL;
    return holding;
}

void
seal_message(struct cairn_core *core, const struct cairn_message *message)
{
    struct holding *holding = seal_holding(core, message);
    struct cairn_message ack;
    struct seal *seal;

    if (!holding || message->total < SEAL_FIXED_BYTES || message->total > seal_bytes_max)
        return;
    seal = &holding->seals[holding->table->members[message->member].position];
    if (!seal->whole) {
        take_part(seal, message);
        holding->progress_ns = core->now_ns;
    }
    ack = message_new(core, CAIRN_MSG_SEAL_ACK, message->epoch);
    ack.generation = message->generation;
    ack.member = message->member;
    ack.row = message->row;
    ack.request = message->request;
    ack.offset = seal->received;
    send_message(core, message->from, &ack);
    if (seal->whole && holding->state == CAIRN_HOLDING_OPEN)
        parity_try_finish(core, holding);
    if (seal->whole && holding->state == CAIRN_HOLDING_REBUILDING)
        rebuild_try_finish(core, holding);
}

void
seal_ack(struct cairn_core *core, const struct cairn_message *message)
{
    struct flow *flow = NULL;

    if (message->request == 1) {
        rebuild_seal_ack(core, message);
        return;
    }
    if (message->epoch != core->active || message->member != core->self_member)
        return;
    struct holding *holding = holding_find(core, message->generation, core->self_member);
    if (!holding || message->row >= holding->table->member_count ||
        holding->table->members[message->row].group !=
            holding->table->members[holding->member].group)
        return;
    flow = &holding->seal_flows[holding->table->members[message->row].position];
    if (!holding->seals[holding->position].whole || message->offset > flow->next)
        return;
    if (message->offset != flow->acked)
        flow->progress_ns = core->now_ns;
    flow->acked =
        message->offset; /* lower than before: the peer has restarted and needs it again */
    flow->next = flow->next < flow->acked ? flow->acked : flow->next;
    save_pump_seals(core, holding, false);
}
