/*
 * tests/unit/agent/core/group.h - agents of one job that save and repair parts in memory: they
 * carry out the actions of send.c, fold.c and repair.h with blocks of BYTES bytes, and every
 * message is packed and unpacked on its way. No elections, no trainers: a test gives each agent its
 * part.
 */
#ifndef CAIRN_TESTS_UNIT_AGENT_CORE_GROUP_H
#define CAIRN_TESTS_UNIT_AGENT_CORE_GROUP_H

#include "agent/core/repair/repair.h"
#include "base/crc.h"
#include "erasure/code.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum {
    AGENTS_MAX = 6,
    BYTES = 16,
    BLOCKS_MAX = 600, /* of a shard, and of a parity slot */
    SLOTS_MAX = 3,    /* of parity */
    QUEUE_MAX = 4096,
    RING_LINES = 24,
    DELIVERED_MAX = 100000
};

struct packet {
    uint32_t from, to;
    size_t len;
    uint8_t *bytes;
    bool has_blocks;
    uint8_t blocks[CAIRN_MESSAGE_BLOCKS_MAX][BYTES];
};

struct memory {
    uint8_t data[BLOCKS_MAX][BYTES];
    uint8_t parity[SLOTS_MAX][BLOCKS_MAX][BYTES];
    uint8_t *record;
    size_t record_len;
};

struct agent {
    struct cairn_core_options options;
    struct env env;
    struct membership membership;
    struct parts parts;
    struct repair repair;
    struct cairn_actions actions;
    uint64_t up, epochs[64];
    struct peers peers;
    struct memory memory[CAIRN_PARTS_MAX];
    uint8_t ring[SLOTS_MAX][RING_LINES][BYTES];
    uint8_t scratch[REPAIR_ITEMS_MAX][CAIRN_SHARDS_MAX][CAIRN_MESSAGE_BLOCKS_MAX][BYTES];
    uint32_t completions, aborts, drops, opens;
    enum cairn_abort abort;
};

struct group {
    uint32_t count;
    struct cairn_roster *roster;
    struct cairn_generation_id generation;
    struct cairn_decision decision;
    struct cairn_code *code;
    struct agent agents[AGENTS_MAX];
    uint64_t blocks[AGENTS_MAX]; /* of each member's shard */
    struct packet queue[QUEUE_MAX];
    size_t head, tail;
    uint32_t damage_every;        /* damages one of n messages with blocks; 0: none */
    uint32_t damage_kind;         /* only of this kind; 0: any */
    uint32_t carried;             /* messages with blocks */
    size_t delivered;             /* messages */
    bool refuse_open;             /* OPEN fails */
    struct cairn_message rebuilt; /* the newest REBUILT with an error */
    uint32_t finished;            /* REBUILT with finished */
    uint32_t reports;             /* REBUILT without */
};

static inline uint64_t
crc_of(const uint8_t *block)
{
    return cairn_crc64(0, block, BYTES);
}

static inline struct group *
group_new(uint32_t count, uint32_t members, uint32_t parity, const uint64_t *blocks)
{
    static const uint32_t agents[AGENTS_MAX] = {0, 1, 2, 3, 4, 5};
    struct group *group = calloc(1, sizeof *group);

    assert_non_null(group);
    group->count = count;
    group->generation = (struct cairn_generation_id){.epoch = 0x10001, .step = 20, .run = 7};
    group->decision = (struct cairn_decision){.serial = 1, .run = 7, .next = 20};
    assert_int_equal(cairn_roster_build(agents, NULL, members, parity, members, &group->roster),
                     CAIRN_OK);
    assert_int_equal(group->roster->group_count, 1);
    if (parity)
        assert_int_equal(cairn_code_create(members - parity, parity, &group->code), CAIRN_OK);
    for (uint32_t a = 0; a < count; a++) {
        struct agent *agent = &group->agents[a];

        agent->options = (struct cairn_core_options){.self = a,
                                                     .agent_count = count,
                                                     .parity = parity,
                                                     .group_size = members,
                                                     .slots = 2,
                                                     .slot_blocks = BLOCKS_MAX,
                                                     .parity_blocks = SLOTS_MAX * BLOCKS_MAX,
                                                     .ring_lines = RING_LINES};
        agent->up = (UINT64_C(1) << count) - 1;
        agent->peers = (struct peers){.up = &agent->up, .epochs = agent->epochs};
        agent->env = (struct env){.options = &agent->options,
                                  .membership = &agent->membership,
                                  .decision = &group->decision,
                                  .parts = &agent->parts,
                                  .now_ns = 1,
                                  .peers = &agent->peers,
                                  .actions = &agent->actions,
                                  .next_request = 1000 * (a + 1)};
        if (a < members)
            group->blocks[a] = blocks[a];
    }
    return group;
}

static inline void
group_free(struct group *group)
{
    for (uint32_t a = 0; a < group->count; a++) {
        struct agent *agent = &group->agents[a];

        repair_stop(&agent->env, &agent->repair);
        for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
            part_fini(&agent->parts.list[i]);
            free(agent->memory[i].record);
        }
        cairn_actions_fini(&agent->actions);
    }
    for (; group->head < group->tail; group->head++)
        free(group->queue[group->head % QUEUE_MAX].bytes);
    cairn_code_destroy(group->code);
    cairn_roster_drop(group->roster);
    free(group);
}

static inline struct part *
own_part(struct group *group, uint32_t member)
{
    return parts_find(&group->agents[member].parts, group->generation, member);
}

/* ---- actions ---- */

/* Where the blocks of a SEND, or of a message that an agent reads, lie. */
static inline uint8_t *
block_at(struct agent *agent, const struct cairn_blocks *blocks, uint32_t i)
{
    if (blocks->area == CAIRN_AREA_SCRATCH)
        return agent->scratch[blocks->item][blocks->shard][i];
    assert_true(blocks->first_block + i < BLOCKS_MAX);
    if (blocks->area == CAIRN_AREA_RING)
        return agent->ring[blocks->row][(blocks->first_block + i) % RING_LINES];
    if (blocks->area == CAIRN_AREA_DATA)
        return agent->memory[blocks->part].data[blocks->first_block + i];
    return agent->memory[blocks->part].parity[blocks->row][blocks->first_block + i];
}

static inline void
send_packet(struct group *group, struct agent *agent, const struct cairn_action_send *send)
{
    struct packet *packet = &group->queue[group->tail++ % QUEUE_MAX];
    struct cairn_message message = send->message;
    uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    size_t room = CAIRN_MESSAGE_HEAD_BYTES_MAX + CAIRN_MESSAGE_PART_BYTES_MAX;
    struct cairn_writer writer;

    assert_true(group->tail - group->head < QUEUE_MAX);
    assert_int_equal(send->blocks.count, cairn_message_block_count(&message));
    memset(packet, 0, sizeof *packet);
    packet->from = agent->options.self;
    packet->to = message.to;
    packet->has_blocks = send->blocks.count > 0;
    cairn_writer_init(&writer, crcs, sizeof crcs);
    for (uint32_t i = 0; i < send->blocks.count; i++) {
        memcpy(packet->blocks[i], block_at(agent, &send->blocks, i), BYTES);
        cairn_write_u64(&writer, crc_of(packet->blocks[i]));
    }
    if (send->blocks.count > 0 && send->blocks.area >= CAIRN_AREA_SCRATCH) { /* the process fills
                                                                              * these in */
        message.bytes = crcs;
        message.bytes_len = (uint32_t)writer.used_bytes;
    }
    packet->bytes = malloc(room);
    assert_non_null(packet->bytes);
    assert_int_equal(cairn_message_pack(&message, packet->bytes, room, &packet->len), CAIRN_OK);
}

static inline void carry_out(struct group *group, struct agent *agent, const struct packet *packet);

static inline void
answer_finish(struct group *group, struct agent *agent, const struct cairn_action_part *asked)
{
    struct part *part = &agent->parts.list[asked->part];
    struct cairn_event_answer answer = {
        .part = asked->part, .request = asked->request, .generation = asked->generation};
    uint64_t crcs[SLOTS_MAX * BLOCKS_MAX + 1];
    bool was_complete = part->state == CAIRN_PART_COMPLETE;

    for (uint32_t slot = 0; slot < part->geometry.m; slot++)
        for (uint64_t i = 0; i < part_slot_blocks(part, slot); i++)
            crcs[answer.count++] = crc_of(agent->memory[asked->part].parity[slot][i]);
    answer.crcs = crcs;
    agent->aborts += save_finished(&agent->env, part, &answer) != 0;
    agent->completions += !was_complete && part->state == CAIRN_PART_COMPLETE;
    carry_out(group, agent, NULL);
}

static inline void
answer_seal(struct group *group, struct agent *agent, const struct cairn_action_part *asked)
{
    static const uint8_t manifest[3] = "mf";
    struct part *part = &agent->parts.list[asked->part];
    struct cairn_event_answer answer = {.part = asked->part,
                                        .request = asked->request,
                                        .generation = asked->generation,
                                        .bytes = asked->blocks ? manifest : NULL,
                                        .bytes_len = asked->blocks ? sizeof manifest : 0};

    agent->aborts += save_sealed(&agent->env, part, &answer) != 0;
    carry_out(group, agent, NULL);
}

static inline void
decode(struct group *group, struct agent *agent, const struct cairn_action_decode *asked)
{
    struct cairn_event_decoded decoded = {.item = asked->item, .request = asked->request};

    for (uint32_t line = 0; line < asked->count; line++) {
        uint8_t *shards[CAIRN_SHARDS_MAX] = {0};

        for (uint32_t s = 0; s < asked->data_shards + asked->parity_shards; s++)
            shards[s] = agent->scratch[asked->item][s][line];
        assert_int_equal(
            cairn_code_rebuild_some(group->code, BYTES, asked->sources, asked->lost, shards),
            CAIRN_OK);
    }
    repair_decoded(&agent->env, &agent->repair, &decoded);
    carry_out(group, agent, NULL);
}

static inline void
place(struct agent *agent, const struct cairn_action_place *asked, const struct packet *packet,
      bool stage)
{
    for (uint32_t i = 0; i < asked->count; i++) {
        struct cairn_blocks blocks = {.area = asked->area,
                                      .part = asked->part,
                                      .row = asked->row,
                                      .first_block = asked->first_block,
                                      .item = asked->item,
                                      .shard = asked->source};

        if (stage)
            blocks.area = CAIRN_AREA_SCRATCH;
        memcpy(block_at(agent, &blocks, i), packet->blocks[i], BYTES);
    }
}

/* Block i of a FOLD, into all rows. */
static inline void
fold_block(struct group *group, struct agent *agent, const struct cairn_action_fold *fold,
           uint32_t i, const struct packet *packet)
{
    for (uint32_t row = 0; row < group->roster->groups[0].parity; row++) {
        struct cairn_blocks blocks = {.area = row == 0 ? CAIRN_AREA_PARITY : CAIRN_AREA_RING,
                                      .part = fold->part,
                                      .row = row,
                                      .first_block = fold->first_block};

        cairn_code_fold(group->code, row, fold->source, BYTES, packet->blocks[fold->skip + i],
                        block_at(agent, &blocks, i), fold->fresh);
    }
}

static inline void
carry_out_one(struct group *group, struct agent *agent, const struct cairn_action *action,
              const struct packet *packet)
{
    const struct cairn_action_fold *fold = &action->as.fold;
    struct cairn_event_answer answer = {.part = action->as.part.part,
                                        .request = action->as.part.request,
                                        .generation = action->as.part.generation};
    struct memory *memory;

    switch (action->type) {
    case CAIRN_ACTION_SEND:
        send_packet(group, agent, &action->as.send);
        break;
    case CAIRN_ACTION_FOLD:
        for (uint32_t i = 0; i < fold->count; i++)
            fold_block(group, agent, fold, i, packet);
        break;
    case CAIRN_ACTION_WRITE:
        place(agent, &action->as.place, packet, false);
        break;
    case CAIRN_ACTION_STAGE:
        place(agent, &action->as.place, packet, true);
        break;
    case CAIRN_ACTION_DECODE:
        decode(group, agent, &action->as.decode);
        break;
    case CAIRN_ACTION_RELEASE:
        memset(agent->scratch[action->as.decode.item], 0, sizeof agent->scratch[0]);
        break;
    case CAIRN_ACTION_STORE_PART:
        memory = &agent->memory[action->as.store.part];
        free(memory->record);
        memory->record = malloc(action->as.store.bytes_len + 1);
        memory->record_len = action->as.store.bytes_len;
        assert_non_null(memory->record);
        if (memory->record_len)
            memcpy(memory->record, action->as.store.bytes, memory->record_len);
        break;
    case CAIRN_ACTION_OPEN:
        agent->opens++;
        answer.err = group->refuse_open ? CAIRN_FULL : CAIRN_OK;
        repair_opened(&agent->env, &agent->repair, &agent->parts.list[answer.part], &answer);
        carry_out(group, agent, NULL);
        break;
    case CAIRN_ACTION_CLOSE:
        memory = &agent->memory[action->as.part.part];
        memset(memory->data, 0xee, sizeof memory->data);
        memset(memory->parity, 0xee, sizeof memory->parity);
        break;
    case CAIRN_ACTION_SEAL:
        answer_seal(group, agent, &action->as.part);
        break;
    case CAIRN_ACTION_FINISH:
        answer_finish(group, agent, &action->as.part);
        break;
    case CAIRN_ACTION_DROP:
        agent->drops++;
        break;
    default:
        break;
    }
}

/* Carries out what the last calls asked for; packet: the message that is being taken. */
static inline void
carry_out(struct group *group, struct agent *agent, const struct packet *packet)
{
    struct cairn_actions actions = agent->actions;

    assert_false(actions.failed);
    memset(&agent->actions, 0, sizeof agent->actions);
    for (size_t i = 0; i < actions.count; i++)
        carry_out_one(group, agent, &actions.list[i], packet);
    cairn_actions_fini(&actions);
}

/* ---- messages ---- */

static inline void
take_save(struct group *group, struct agent *agent, const struct cairn_message *message, bool ok)
{
    struct part *part = own_part(group, agent->options.self);
    enum cairn_abort reason;

    if (!part)
        return;
    if (message->kind == CAIRN_MSG_DATA)
        reason = save_data(&agent->env, part, message, ok);
    else if (message->kind == CAIRN_MSG_SEAL)
        reason = save_seal(&agent->env, part, message);
    else
        reason = save_received(&agent->env, part, message);
    if (reason) {
        agent->aborts++;
        agent->abort = reason;
    }
}

static inline void
note_rebuilt(struct group *group, const struct cairn_message *message)
{
    if (message->as.rebuilt.err)
        group->rebuilt = *message;
    else if (message->as.rebuilt.finished)
        group->finished++;
    else
        group->reports++;
}

static inline void
deliver(struct group *group)
{
    struct packet packet = group->queue[group->head++ % QUEUE_MAX];
    struct agent *agent = &group->agents[packet.to];
    struct cairn_action_place where;
    struct cairn_message message;
    struct cairn_reader crcs;
    bool ok = true;

    assert_true(group->delivered++ < DELIVERED_MAX);
    assert_int_equal(cairn_message_unpack(packet.bytes, packet.len, &message), CAIRN_OK);
    if (packet.has_blocks && (group->damage_kind == 0 || group->damage_kind == message.kind) &&
        ++group->carried && group->damage_every &&
        (group->carried * UINT64_C(0x9e3779b97f4a7c15) >> 40) % group->damage_every == 0)
        packet.blocks[0][0] ^= 1;
    if (target_place(&agent->env, &agent->repair, packet.from, cairn_message_place(&message),
                     cairn_message_block_count(&message), &where))
        place(agent, &where, &packet, false); /* it comes in place, damaged or not */
    cairn_reader_init(&crcs, message.bytes, packet.has_blocks ? message.bytes_len : 0);
    for (uint32_t i = 0; packet.has_blocks && i < cairn_message_block_count(&message); i++)
        ok &= cairn_read_u64(&crcs) == crc_of(packet.blocks[i]);
    switch (message.kind) {
    case CAIRN_MSG_REBUILT:
        note_rebuilt(group, &message);
        break;
    case CAIRN_MSG_REBUILD:
        repair_begin(&agent->env, &agent->repair, &message);
        break;
    case CAIRN_MSG_DATA:
        take_save(group, agent, &message, ok);
        break;
    case CAIRN_MSG_SEAL:
    case CAIRN_MSG_RECEIVED:
        if (cairn_message_is_of_epoch(&message)) {
            take_save(group, agent, &message, ok);
            break;
        }
        /* fall through */
    default:
        repair_message(&agent->env, &agent->repair, &message, ok);
        break;
    }
    carry_out(group, agent, &packet);
    free(packet.bytes);
}

/* Delivers everything, or at most `limit` messages. */
static inline void
run(struct group *group, size_t limit)
{
    while (group->head < group->tail && limit-- > 0)
        deliver(group);
}

/* Ends the session of two agents: what is on its way is lost. */
static inline void
session_down(struct group *group, uint32_t a, uint32_t b)
{
    size_t end = group->tail;

    group->agents[a].up &= ~(UINT64_C(1) << b);
    group->agents[b].up &= ~(UINT64_C(1) << a);
    for (size_t at = group->head; at < end; at++) {
        struct packet packet = group->queue[group->head++ % QUEUE_MAX];

        if ((packet.from == a && packet.to == b) || (packet.from == b && packet.to == a))
            free(packet.bytes);
        else
            group->queue[group->tail++ % QUEUE_MAX] = packet;
    }
}

static inline void
peer_up(struct group *group, uint32_t a, uint32_t b)
{
    struct agent *agent = &group->agents[a];
    struct part *part = own_part(group, a);

    agent->up |= UINT64_C(1) << b;
    repair_peer_up(&agent->env, &agent->repair, b);
    if (part)
        save_peer_up(&agent->env, part, b);
    carry_out(group, agent, NULL);
}

static inline void
session_up(struct group *group, uint32_t a, uint32_t b)
{
    group->agents[a].up |= UINT64_C(1) << b;
    group->agents[b].up |= UINT64_C(1) << a;
    peer_up(group, a, b);
    peer_up(group, b, a);
}

/* ---- a save ---- */

/* What block i of a member's shard holds. */
static inline void
fill_block(uint32_t member, uint64_t i, uint8_t *block)
{
    for (uint32_t b = 0; b < BYTES; b++)
        block[b] = (uint8_t)(131 * member + 17 * i + 7 * b + (i >> 3) * b + 1);
}

static inline struct part *
open_part(struct group *group, uint32_t member)
{
    struct agent *agent = &group->agents[member];
    struct part *part =
        part_open(&agent->env, group->generation, member, group->roster, CAIRN_PART_OPEN, true);

    assert_non_null(part);
    assert_int_equal(save_prepare(&agent->env, part, group->blocks[member]), CAIRN_OK);
    carry_out(group, agent, NULL);
    return part;
}

/* Blocks [first, first + count) of a member are captured. */
static inline void
capture(struct group *group, uint32_t member, uint64_t first, uint64_t count)
{
    struct agent *agent = &group->agents[member];
    struct part *part = own_part(group, member);
    struct memory *memory = &agent->memory[part_index(&agent->env, part)];
    uint64_t crcs[BLOCKS_MAX];
    struct cairn_event_blocks blocks = {group->generation, first, count, crcs};

    for (uint64_t i = 0; i < count; i++) {
        fill_block(member, first + i, memory->data[first + i]);
        crcs[i] = crc_of(memory->data[first + i]);
    }
    save_blocks(&agent->env, part, &blocks);
    carry_out(group, agent, NULL);
}

/* A member without blocks has no ranks. */
static inline enum cairn_abort
captured(struct group *group, uint32_t member)
{
    struct agent *agent = &group->agents[member];
    bool has_ranks = group->blocks[member] > 0;
    enum cairn_abort reason = save_captured(&agent->env, own_part(group, member),
                                            has_ranks ? 0 : UINT32_MAX, has_ranks ? 1 : 0);

    carry_out(group, agent, NULL);
    return reason;
}

/* Saves the generation on all members of the roster. */
static inline void
save_all(struct group *group)
{
    for (uint32_t m = 0; m < group->roster->member_count; m++)
        (void)open_part(group, m);
    for (uint32_t m = 0; m < group->roster->member_count; m++) {
        capture(group, m, 0, group->blocks[m]);
        assert_int_equal(captured(group, m), 0);
    }
    run(group, SIZE_MAX);
}

/* A complete part has the bytes that were captured, and parity that decodes to them. */
static inline void
assert_part_is_right(struct group *group, uint32_t agent_index, uint32_t member)
{
    struct agent *agent = &group->agents[agent_index];
    struct part *part = parts_find(&agent->parts, group->generation, member);
    const struct memory *memory;
    uint8_t expected[BYTES];
    struct span span;

    assert_non_null(part);
    assert_int_equal(part->state, CAIRN_PART_COMPLETE);
    memory = &agent->memory[part_index(&agent->env, part)];
    assert_true(memory->record_len > 0);
    for (uint64_t i = 0; i < group->blocks[member]; i++) {
        fill_block(member, i, expected);
        assert_memory_equal(memory->data[i], expected, BYTES);
    }
    for (uint32_t slot = 0; slot < part->geometry.m; slot++) {
        uint32_t stripe = cairn_slot_stripe(&part->geometry, part->position, slot);

        for (uint64_t line = 0; line < part_slot_blocks(part, slot); line++) {
            uint8_t parity[BYTES] = {0};

            for (uint32_t p = 0; p < part->geometry.n; p++) {
                uint32_t from = group->roster->groups[0].members[p];
                uint32_t chunk = cairn_stripe_chunk(&part->geometry, stripe, p);
                uint32_t index = cairn_stripe_data_index(&part->geometry, stripe, p);

                if (chunk == CAIRN_STRIPE_NONE ||
                    line >= cairn_chunk_blocks(&part->geometry, group->blocks[from], chunk))
                    continue;
                fill_block(from,
                           chunk * cairn_shard_chunk_blocks(&part->geometry, group->blocks[from]) +
                               line,
                           expected);
                cairn_code_fold(group->code, slot, index, BYTES, expected, parity, false);
            }
            assert_memory_equal(memory->parity[slot][line], parity, BYTES);
            assert_true(part_span(part, stripe, line, 1, &span));
            assert_int_equal(span.area, CAIRN_AREA_PARITY);
            assert_true(*span.crcs == crc_of(parity));
        }
    }
}

#endif
