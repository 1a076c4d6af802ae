/*
 * tests/explore/agent.c - one agent's process: carries out the actions of its core in order, keeps
 * its memory and disk, and answers. Answers are made when they are asked for and arrive in any
 * order; they die with the process.
 */
#include "tests/explore/explore.h"

#include "base/crc.h"
#include "erasure/code.h"

#include <string.h>

enum { SLOTS = 2, SLOT_BLOCKS = 2 };

static struct cairn_code *codes[AGENTS_MAX + 1][AGENTS_MAX + 1];

void
code_open(void)
{
    for (uint32_t n = 1; n <= AGENTS_MAX; n++)
        for (uint32_t m = 0; m < n; m++)
            if (cairn_code_create(n - m, m, &codes[n][m]) != CAIRN_OK)
                fail("no memory");
}

void
code_fold(uint32_t n, uint32_t m, uint32_t row, uint32_t source, const uint8_t *data,
          uint8_t *parity, bool fresh)
{
    cairn_code_fold(codes[n][m], row, source, BLOCK_BYTES, data, parity, fresh);
}

uint64_t
block_crc(const uint8_t *block)
{
    return cairn_crc64(0, block, BLOCK_BYTES);
}

/* ---- memory ---- */

static void
blob_set(struct blob *blob, const uint8_t *bytes, size_t len)
{
    free(blob->bytes);
    blob->bytes = len ? malloc(len) : NULL;
    blob->len = len;
    if (len)
        memcpy(blob->bytes, bytes, len);
}

static void
memory_close(struct memory *memory)
{
    free(memory->data);
    free(memory->parity);
    *memory = (struct memory){0};
}

static void
memory_open(struct memory *memory, uint64_t data_blocks, uint64_t parity_blocks)
{
    memory_close(memory);
    memory->data = malloc((data_blocks + 1) * BLOCK_BYTES);
    memory->parity = malloc((parity_blocks + 1) * BLOCK_BYTES);
    memset(memory->data, 0xd5, (data_blocks + 1) * BLOCK_BYTES); /* never zero by luck */
    memset(memory->parity, 0x5d, (parity_blocks + 1) * BLOCK_BYTES);
    memory->data_blocks = data_blocks;
    memory->parity_blocks = parity_blocks;
}

static void
open_slots(struct agent *agent)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        blob_set(&agent->records[i], NULL, 0);
        agent->stored[i] = (struct stored){0};
        memory_close(&agent->memory[i]);
        if (i < SLOTS)
            memory_open(&agent->memory[i], SLOT_BLOCKS, SLOT_BLOCKS * world->setup.parity);
    }
    agent->memory_new = true;
}

uint8_t *
agent_block(struct agent *agent, uint32_t part, uint32_t area, uint32_t slots, uint32_t slot,
            uint64_t block)
{
    struct memory *memory = &agent->memory[part];

    if (area == CAIRN_AREA_DATA)
        return memory->data && block < memory->data_blocks ? memory->data + block * BLOCK_BYTES
                                                           : NULL;
    if (area == CAIRN_AREA_RING)
        return slot - 1 < RING_ROWS ? agent->ring[slot - 1][block % RING_LINES] : NULL;
    if (!memory->parity || slot >= slots || block >= memory->parity_blocks / slots)
        return NULL;
    return memory->parity + (slot * (memory->parity_blocks / slots) + block) * BLOCK_BYTES;
}

/* The parity slots of what a part holds. */
static uint32_t
slots_of(const struct agent *agent, uint32_t part)
{
    struct cairn_part_view view;

    if (cairn_core_look_part(agent->core, part, &view))
        return cairn_roster_group_of(view.roster, view.member)->parity;
    return agent->stored[part].generation.step ? agent->stored[part].m : world->setup.parity;
}

/* ---- the process ---- */

void
agent_init(struct agent *agent, uint32_t number)
{
    agent->number = number;
    open_slots(agent);
}

void
agent_view(const struct agent *agent, struct cairn_core_view *out)
{
    cairn_core_look(agent->core, out);
}

void
agent_start(struct agent *agent)
{
    struct cairn_core_options options = {
        .self = agent->number,
        .agent_count = world->setup.agents,
        .spares = world->spares,
        .parity = world->setup.parity,
        .group_size = world->setup.agents,
        .slots = SLOTS,
        .slot_blocks = SLOT_BLOCKS,
        .parity_blocks = SLOT_BLOCKS * world->setup.parity,
        .ring_lines = RING_LINES,
        .every_steps = world->setup.asked ? 0 : 1,
        .incarnation = ++world->starts << 20,
        .heartbeat_interval_ns = INTERVAL_NS,
        .dead_after_ns = TICKS_DEAD * INTERVAL_NS,
        .repair_after_ns = 2 * INTERVAL_NS,
        .claim_timeout_ns = 4 * INTERVAL_NS,
        .rebuild_timeout_ns = 12 * INTERVAL_NS,
        .memory_is_new = agent->memory_new,
        .planted_bug = planted_bug,
    };
    struct cairn_bytes records[CAIRN_PARTS_MAX], disk = {agent->disk.bytes, agent->disk.len};
    struct arena *last = arena_use(arena_number(agent->number));
    struct cairn_core_view view;
    uint32_t dropped = 0;
    cairn_err err;

    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        records[i] = (struct cairn_bytes){agent->records[i].bytes, agent->records[i].len};
    err = cairn_core_create(&options, world->now_ns, disk, records, &dropped, &agent->core);
    agent->incarnation = options.incarnation;
    agent->away = false;
    if (world->now_ns - agent->gone_ns < TICKS_PATIENT * INTERVAL_NS)
        agent->gone_ns = 0;
    dirty |= 1u << agent->number;
    if (err) {
        fail("agent %u does not start: %s", agent->number, cairn_err_text(err));
    } else {
        cairn_core_look(agent->core, &view);
        if (dropped > 0)
            fail("agent %u drops %u records that it has stored", agent->number, dropped);
        if (view.promised < agent->said_promised || view.active < agent->said_active)
            fail(
                "R1: agent %u has said that it promised %llx and is in %llx, and stored %llx, %llx",
                agent->number, (unsigned long long)agent->said_promised,
                (unsigned long long)agent->said_active, (unsigned long long)view.promised,
                (unsigned long long)view.active);
        agent->fingerprint = core_fingerprint(agent->core);
    }
    arena_use(last);
}

uint64_t
agent_hash(const struct agent *agent)
{
    uint64_t hash = agent->fingerprint;

    hash =
        hash_mix(hash, (uint64_t)agent->paused | (uint64_t)agent->away << 1 |
                           (uint64_t)(agent->core != NULL) << 2 | (uint64_t)agent->memory_new << 3);
    for (const struct answer *answer = agent->answers; answer; answer = answer->next) {
        hash = hash_mix(hash, answer->type | (uint64_t)answer->part << 8 |
                                  (uint64_t)answer->item << 16 | answer->count << 32);
        hash = hash_mix(hash, answer->generation.run ^ answer->generation.step << 32);
    }
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        if (agent->scratch[i].used || agent->scratch[i].staged)
            hash = hash_mix(hash, agent->scratch[i].staged << 8 | i);
    return hash;
}

static void
answers_clear(struct agent *agent)
{
    while (agent->answers) {
        struct answer *next = agent->answers->next;

        free(agent->answers->bytes);
        free(agent->answers->crcs);
        free(agent->answers->bad);
        free(agent->answers);
        agent->answers = next;
    }
}

void
agent_crash(struct agent *agent, bool memory, bool disk)
{
    struct arena *last = arena_use(arena_number(agent->number));
    uint64_t hash = 1;

    dirty |= 1u << agent->number;
    cairn_core_destroy(agent->core);
    agent->core = NULL;
    agent->paused = false;
    agent->gone_ns = world->now_ns;
    agent->knows &= !disk;
    answers_clear(agent);
    memset(agent->scratch, 0, sizeof agent->scratch);
    if (memory) {
        judge_lost(agent);
        open_slots(agent);
        agent->seen_committed = (struct cairn_generation_id){0};
    }
    if (disk) {
        blob_set(&agent->disk, NULL, 0);
        agent->stored_promised = agent->said_promised = agent->said_active = 0;
        agent->seen_promised = agent->seen_active = 0;
    }
    hash = hash_mix(hash, cairn_crc64(0, agent->disk.bytes, agent->disk.len));
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        hash = hash_mix(hash, cairn_crc64(0, agent->records[i].bytes, agent->records[i].len));
    agent->fingerprint = hash;
    arena_use(last);
    trainer_agent_died(agent->number);
    network_crash(agent->number);
}

/* ---- actions ---- */

static void
answer_later(struct agent *agent, const struct answer *answer)
{
    struct answer **at = &agent->answers, *copy = malloc(sizeof *copy);

    *copy = *answer;
    copy->next = NULL;
    while (*at)
        at = &(*at)->next;
    *at = copy;
}

static void
do_send(struct agent *agent, const struct cairn_action_send *send)
{
    const struct cairn_blocks *blocks = &send->blocks;
    uint8_t payload[CAIRN_MESSAGE_BLOCKS_MAX * BLOCK_BYTES], crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_message message = send->message;

    for (uint32_t i = 0; i < blocks->count; i++) {
        const uint8_t *block;
        uint64_t crc;

        if (blocks->area == CAIRN_AREA_SCRATCH)
            block = agent->scratch[blocks->item].shards[blocks->shard] + (size_t)i * BLOCK_BYTES;
        else
            block = agent_block(agent, blocks->part, blocks->area, slots_of(agent, blocks->part),
                                blocks->row, blocks->first_block + i);
        if (!block) {
            fail("agent %u sends blocks that it has not", agent->number);
            return;
        }
        memcpy(payload + (size_t)i * BLOCK_BYTES, block, BLOCK_BYTES);
        crc = block_crc(block);
        for (uint32_t b = 0; b < 8; b++)
            crcs[8 * i + b] = (uint8_t)(crc >> (8 * b));
    }
    if (blocks->count && (blocks->area == CAIRN_AREA_SCRATCH || blocks->area == CAIRN_AREA_RING)) {
        message.bytes = crcs;
        message.bytes_len = 8 * blocks->count;
    }
    judge_send(agent, &message);
    network_send(agent, &message, payload, blocks->count * BLOCK_BYTES);
}

static void
do_fold(struct agent *agent, const struct cairn_action_fold *fold, const uint8_t *payload)
{
    const struct cairn_roster_group *group;
    struct cairn_part_view view;

    if (!payload || !cairn_core_look_part(agent->core, fold->part, &view)) {
        fail("agent %u folds into a free part", agent->number);
        return;
    }
    group = cairn_roster_group_of(view.roster, view.member);
    for (uint32_t i = 0; i < fold->count; i++)
        for (uint32_t row = 0; row < group->parity; row++) {
            uint8_t *parity =
                agent_block(agent, fold->part, row == 0 ? CAIRN_AREA_PARITY : CAIRN_AREA_RING,
                            group->parity, row, fold->first_block + i);

            if (!parity) {
                fail("agent %u folds outside of its memory", agent->number);
                return;
            }
            code_fold(group->count, group->parity, row, fold->source,
                      payload + (size_t)(fold->skip + i) * BLOCK_BYTES, parity, fold->fresh);
        }
    judge_written(agent, fold->part);
}

static void
do_write(struct agent *agent, const struct cairn_action_place *place, const uint8_t *payload)
{
    for (uint32_t i = 0; i < place->count; i++) {
        uint8_t *block = agent_block(agent, place->part, place->area, slots_of(agent, place->part),
                                     place->row, place->first_block + i);

        if (!block || !payload) {
            fail("agent %u writes outside of its memory", agent->number);
            return;
        }
        memcpy(block, payload + (size_t)i * BLOCK_BYTES, BLOCK_BYTES);
    }
    judge_written(agent, place->part);
}

static void
do_decode(struct agent *agent, const struct cairn_action_decode *decode)
{
    struct scratch *scratch = &agent->scratch[decode->item];

    scratch->used = true;
    scratch->data_shards = decode->data_shards;
    scratch->parity_shards = decode->parity_shards;
    scratch->lost = decode->lost;
    scratch->sources = decode->sources;
    scratch->count = decode->count;
    scratch->request = decode->request;
}

static void
decode(struct agent *agent, struct scratch *scratch)
{
    uint32_t n = scratch->data_shards + scratch->parity_shards;
    uint8_t *shards[AGENTS_MAX];

    for (uint32_t i = 0; i < n; i++) {
        uint64_t bit = UINT64_C(1) << i;

        shards[i] = scratch->shards[i];
        if ((scratch->sources & bit) && !(scratch->staged & bit))
            shards[i] = NULL; /* beyond its end: zeros */
    }
    if (cairn_code_rebuild_some(codes[n][scratch->parity_shards],
                                (size_t)scratch->count * BLOCK_BYTES, scratch->sources,
                                scratch->lost, shards) != CAIRN_OK)
        fail("agent %u decodes what is impossible", agent->number);
}

/* Checksums of all parity blocks, slot by slot. */
static void
finish(struct agent *agent, struct answer *answer)
{
    struct cairn_part_view view;
    uint64_t total;

    if (!cairn_core_look_part(agent->core, answer->part, &view) || !view.stripes)
        return;
    total = cairn_stripes_area_blocks(view.stripes, view.position, CAIRN_AREA_PARITY);
    answer->crcs = calloc(total + 1, sizeof(uint64_t));
    for (uint32_t slot = 0; slot < view.stripes->geometry.m; slot++) {
        uint32_t stripe = cairn_slot_stripe(&view.stripes->geometry, view.position, slot);

        for (uint64_t i = 0; i < view.stripes->parity_blocks[stripe]; i++) {
            const uint8_t *block = agent_block(agent, answer->part, CAIRN_AREA_PARITY,
                                               view.stripes->geometry.m, slot, i);

            answer->crcs[answer->count++] = block ? block_crc(block) : 0;
        }
    }
}

static void
verify(struct agent *agent, struct answer *answer)
{
    struct cairn_part_view view;
    uint64_t index = 0;

    if (!cairn_core_look_part(agent->core, answer->part, &view) || !view.stripes ||
        !view.block_crcs)
        return;
    answer->bad =
        calloc(view.data_blocks + 1 +
                   cairn_stripes_area_blocks(view.stripes, view.position, CAIRN_AREA_PARITY),
               sizeof *answer->bad);
    for (uint64_t i = 0; i < view.data_blocks; i++) {
        const uint8_t *block = agent_block(agent, answer->part, CAIRN_AREA_DATA, 0, 0, i);

        if (!block || block_crc(block) != view.block_crcs[i])
            answer->bad[answer->count++] =
                (struct cairn_bad_block){.area = CAIRN_AREA_DATA, .block = i};
    }
    for (uint32_t slot = 0; slot < view.stripes->geometry.m; slot++) {
        uint32_t stripe = cairn_slot_stripe(&view.stripes->geometry, view.position, slot);

        for (uint64_t i = 0; i < view.stripes->parity_blocks[stripe]; i++, index++) {
            const uint8_t *block = agent_block(agent, answer->part, CAIRN_AREA_PARITY,
                                               view.stripes->geometry.m, slot, i);

            if (!block || block_crc(block) != view.parity_crcs[slot][i])
                answer->bad[answer->count++] =
                    (struct cairn_bad_block){.area = CAIRN_AREA_PARITY, .block = index};
        }
    }
}

static void
do_part(struct agent *agent, const struct cairn_action *action)
{
    const struct cairn_action_part *part = &action->as.part;
    struct answer answer = {
        .part = part->part, .generation = part->generation, .request = part->request};

    switch (action->type) {
    case CAIRN_ACTION_OPEN:
        answer.type = CAIRN_EVENT_OPENED;
        if (part->part < SLOTS)
            answer.err = CAIRN_NOMEM;
        else
            memory_open(&agent->memory[part->part], part->blocks, part->parity_blocks);
        break;
    case CAIRN_ACTION_SEAL:
        answer.type = CAIRN_EVENT_SEALED;
        if (!trainer_manifest(agent->number, part->generation, part->crcs, part->blocks,
                              &answer.bytes, &answer.bytes_len))
            fail("a manifest cannot be packed");
        break;
    case CAIRN_ACTION_FINISH:
        answer.type = CAIRN_EVENT_FINISHED;
        finish(agent, &answer);
        break;
    default:
        answer.type = CAIRN_EVENT_VERIFIED;
        verify(agent, &answer);
        break;
    }
    answer_later(agent, &answer);
}

static void
do_reply(const struct agent *agent, const struct cairn_action_reply *reply)
{
    say("agent %u replies: %s, step %llu: %s", agent->number, cairn_err_text(reply->err),
        (unsigned long long)reply->generation.step, reply->text ? reply->text : "");
    if (world->op_pending[agent->number] == reply->request)
        world->op_pending[agent->number] = 0;
    else if (world->op_request == reply->request && reply->err != CAIRN_OK)
        world->setup.faults[FAULT_SNAPSHOT]++; /* the operator will ask again */
}

/* False: the process dies here. */
static bool
carry_out(struct agent *agent, const struct cairn_action *action, const uint8_t *payload)
{
    const struct cairn_action_place *place = &action->as.place;
    struct answer answer = {0};

    switch (action->type) {
    case CAIRN_ACTION_SEND:
        do_send(agent, &action->as.send);
        break;
    case CAIRN_ACTION_CONNECT:
        network_connect(agent->number, action->as.peer.agent);
        break;
    case CAIRN_ACTION_DISCONNECT:
        network_end(agent->number, action->as.peer.agent);
        break;
    case CAIRN_ACTION_FOLD:
        do_fold(agent, &action->as.fold, payload);
        break;
    case CAIRN_ACTION_WRITE:
        do_write(agent, place, payload);
        break;
    case CAIRN_ACTION_STAGE:
        agent->scratch[place->item].staged |= UINT64_C(1) << place->source;
        memcpy(agent->scratch[place->item].shards[place->source], payload,
               (size_t)place->count * BLOCK_BYTES);
        break;
    case CAIRN_ACTION_DECODE:
        do_decode(agent, &action->as.decode);
        answer.type = CAIRN_EVENT_DECODED;
        answer.item = action->as.decode.item;
        answer.request = action->as.decode.request;
        answer_later(agent, &answer);
        break;
    case CAIRN_ACTION_RELEASE:
        memset(&agent->scratch[action->as.decode.item], 0, sizeof agent->scratch[0]);
        break;
    case CAIRN_ACTION_STORE_EPOCH:
        blob_set(&agent->disk, action->as.store.bytes, action->as.store.bytes_len);
        judge_store_epoch(agent, action->as.store.bytes, action->as.store.bytes_len);
        agent->memory_new = false; /* from here on the disk says what is not known */
        return !world->cut;
    case CAIRN_ACTION_STORE_PART:
        blob_set(&agent->records[action->as.store.part], action->as.store.bytes,
                 action->as.store.bytes_len);
        judge_store_part(agent, action->as.store.part);
        return !world->cut;
    case CAIRN_ACTION_CLOSE:
        if (action->as.part.part >= SLOTS)
            memory_close(&agent->memory[action->as.part.part]);
        break;
    case CAIRN_ACTION_OPEN:
    case CAIRN_ACTION_SEAL:
    case CAIRN_ACTION_FINISH:
    case CAIRN_ACTION_VERIFY:
        do_part(agent, action);
        break;
    case CAIRN_ACTION_GRANT:
        judge_grant(agent, &action->as.trainer);
        trainer_action(agent, action);
        break;
    case CAIRN_ACTION_SKIP:
    case CAIRN_ACTION_DROP:
        trainer_action(agent, action);
        break;
    case CAIRN_ACTION_COMMITTED:
        break;
    case CAIRN_ACTION_ACTIVATED:
        judge_activated(agent, &action->as.activated);
        trainer_action(agent, action);
        break;
    case CAIRN_ACTION_REPLY:
        do_reply(agent, &action->as.reply);
        break;
    }
    return true;
}

void
agent_event(struct agent *agent, struct cairn_event *event, const uint8_t *payload)
{
    struct arena *last = arena_use(arena_number(agent->number));
    struct cairn_actions actions = {0};
    bool lives = true;

    dirty |= 1u << agent->number;
    event->now_ns = world->now_ns;
    cairn_core_step(agent->core, event, &actions);
    if (actions.failed)
        fail("agent %u: an action is missing", agent->number);
    for (size_t i = 0; lives && !failed() && i < actions.count; i++)
        lives = carry_out(agent, &actions.list[i], payload);
    cairn_actions_fini(&actions);
    if (lives && !failed()) {
        agent->fingerprint = core_fingerprint(agent->core);
        judge_after(agent);
    }
    arena_use(last);
    if (!lives)
        agent_crash(agent, false, false);
}

void
agent_answer(struct agent *agent, uint32_t index)
{
    struct arena *last = arena_use(arena_number(agent->number));
    struct answer **at = &agent->answers, *answer;
    struct cairn_event event = {0};

    while (index-- > 0)
        at = &(*at)->next;
    answer = *at;
    *at = answer->next;
    event.type = answer->type;
    if (answer->type == CAIRN_EVENT_DECODED) {
        struct scratch *scratch = &agent->scratch[answer->item];

        if (scratch->used && scratch->request == answer->request)
            decode(agent, scratch);
        event.as.decoded =
            (struct cairn_event_decoded){.item = answer->item, .request = answer->request};
    } else {
        event.as.answer = (struct cairn_event_answer){.part = answer->part,
                                                      .request = answer->request,
                                                      .generation = answer->generation,
                                                      .err = answer->err,
                                                      .bytes = answer->bytes,
                                                      .bytes_len = answer->bytes_len,
                                                      .crcs = answer->crcs,
                                                      .bad = answer->bad,
                                                      .count = answer->count};
    }
    agent_event(agent, &event, NULL);
    arena_use(arena_number(agent->number));
    free(answer->bytes);
    free(answer->crcs);
    free(answer->bad);
    free(answer);
    arena_use(last);
}
