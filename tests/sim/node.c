/*
 * tests/sim/node.c - one machine and its agent: carries out the actions of the core, in order, and
 * dies between any two.
 *
 * The agent's memory and records survive its crash, as with a keeper; the machine's crash takes
 * them, and its disk in some schedules. Answers to asynchronous actions are made when they are
 * asked for and arrive later, so they may be stale.
 */
#include "tests/sim/sim.h"

#include "erasure/stripe.h"

#include <stdlib.h>
#include <string.h>

static void
blob_set(struct blob *blob, const uint8_t *bytes, size_t len)
{
    free(blob->bytes);
    blob->bytes = len ? malloc(len) : NULL;
    blob->len = len;
    if (len)
        memcpy(blob->bytes, bytes, len);
}

uint64_t
node_clock(const struct world *world, const struct node *node)
{
    return node->clock_offset_ns + world->now_ns / 1000 * node->clock_rate;
}

void
node_init(struct world *world, uint32_t number)
{
    struct node *node = &world->nodes[number];

    memset(node, 0, sizeof *node);
    node->number = number;
    node->up = true;
    node->member = UINT32_MAX;
    node->incarnation = CAIRN_INCARNATION_STEP;
    node->memory_new = true;
    node->clock_offset_ns = random_between(&world->random, SECOND_NS, 1000 * SECOND_NS);
    node->clock_rate = (uint32_t)random_between(&world->random, 950, 1050);
    for (uint32_t i = 0; i < world->setup.slots; i++)
        if (!memory_open(&node->memory[i], world->setup.slot_blocks, world->setup.parity_blocks))
            abort();
}

static void
scratch_clear(struct scratch *scratch)
{
    scratch->used = false;
    scratch->staged = 0;
    scratch->request = 0;
    scratch->read_in_place = 0;
    scratch->spoiled = false;
}

static void
agent_gone(struct node *node)
{
    cairn_core_destroy(node->core);
    node->core = NULL;
    node->running = false;
    node->registered = false;
    node->intruded = false;
    node->core_life = 0;
    node->pinned = (struct cairn_generation_id){0};
    node->claim_epoch = 0;
    node->open_request = 0;
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        scratch_clear(&node->scratch[i]);
}

void
node_fini(struct node *node)
{
    agent_gone(node);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        memory_close(&node->memory[i]);
        blob_set(&node->records[i], NULL, 0);
    }
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        free(node->scratch[i].shards);
    while (node->self_head) {
        struct packet *packet = node->self_head;

        node->self_head = packet->next;
        shared_drop(packet->body);
        free(packet);
    }
    shared_drop(node->disk);
    free(node->links);
}

static void
schedule_tick(struct world *world, struct node *node)
{
    uint64_t deadline = cairn_core_deadline(node->core), now = node_clock(world, node);
    uint64_t wait = deadline > now ? (deadline - now) / node->clock_rate * 1000 : 0;
    struct sim_event event = sim_event_new(world, EVENT_TICK, node->number, wait + MS_NS);

    event.incarnation = node->incarnation;
    queue_push(&world->queue, &event);
}

void
node_start(struct world *world, struct node *node)
{
    const struct setup *setup = &world->setup;
    struct cairn_core_options options = {
        .self = node->number,
        .agent_count = setup->agent_count,
        .domains = setup->domain_count ? world->domains : NULL,
        .spares = world->spares,
        .parity = setup->parity,
        .group_size = setup->group_size,
        .slots = setup->slots,
        .slot_blocks = setup->slot_blocks,
        .parity_blocks = setup->parity_blocks,
        .ring_lines = setup->ring_lines,
        .every_steps = setup->every_steps,
        .incarnation = node->incarnation,
        .heartbeat_interval_ns = setup->heartbeat_ns,
        .dead_after_ns = setup->dead_after_ns,
        .repair_after_ns = setup->repair_after_ns,
        .claim_timeout_ns = setup->claim_timeout_ns,
        .rebuild_timeout_ns = setup->rebuild_timeout_ns,
        .memory_is_new = node->memory_new,
        .planted_bug = world->planted_bug,
    };
    struct cairn_bytes records[CAIRN_PARTS_MAX];
    struct cairn_bytes disk = {node->disk ? node->disk->bytes : NULL,
                               node->disk ? node->disk->len : 0};
    uint32_t dropped = 0;

    if (!node->up || node->running)
        return;
    node->ring_lines = setup->ring_lines;
    memset(node->ring, 0x77, sizeof node->ring); /* never zero by luck */
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        records[i] = (struct cairn_bytes){node->records[i].bytes, node->records[i].len};
    if (cairn_core_create(&options, node_clock(world, node), disk, records, &dropped,
                          &node->core) != CAIRN_OK) {
        judge_fail(world, VERDICT_OTHER, "agent %u does not start", node->number);
        return;
    }
    node->running = true;
    node->paused_until_ns = node->wedged_until_ns = 0;
    node->started_ns = world->now_ns;
    node->self_ns = world->now_ns;
    world_say(world, "agent %u starts, incarnation %llx, %u records dropped", node->number,
              (unsigned long long)node->incarnation, dropped);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct cairn_part_view view;

        if (node->records[i].len && !cairn_core_look_part(node->core, i, &view))
            judge_forgot(world, node, i);
    }
    schedule_tick(world, node);
    trainer_register(world, node);
}

void
node_start_later(struct world *world, const struct node *node, uint64_t after_ns)
{
    struct sim_event start = sim_event_new(world, EVENT_START, node->number, after_ns);

    start.incarnation = node->incarnation;
    queue_push(&world->queue, &start);
}

static void
agent_dies(struct world *world, struct node *node, bool node_too)
{
    if (!node->running)
        return;
    world_say(world, "agent %u dies", node->number);
    agent_gone(node);
    node->incarnation += CAIRN_INCARNATION_STEP;
    node->paused_until_ns = node->wedged_until_ns = 0;
    network_agent_died(world, node, node_too);
    trainer_agent_died(world, node);
}

void
node_crash_agent(struct world *world, struct node *node)
{
    agent_dies(world, node, false);
}

void
node_crash(struct world *world, struct node *node, bool disk_too)
{
    world_say(world, "node %u dies%s", node->number, disk_too ? " with its disk" : "");
    agent_dies(world, node, true);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        blob_set(&node->records[i], NULL, 0);
        node->stored[i] = (struct stored){0};
        memory_close(&node->memory[i]);
        if (i < world->setup.slots &&
            !memory_open(&node->memory[i], world->setup.slot_blocks, world->setup.parity_blocks))
            abort();
    }
    node->memory_new = true;
    if (disk_too) {
        shared_drop(node->disk);
        node->disk = NULL;
        node->disk_lost = true;
        node->promised = 0;
    }
    node->up = false;
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        node->ranks[r].phase = RANK_DEAD;
    judge_lost_memory(world, node);
}

bool
node_answers(const struct world *world, const struct node *node)
{
    return node->running && node->paused_until_ns <= world->now_ns &&
           node->wedged_until_ns <= world->now_ns;
}

/* A wedged agent takes heartbeats and its own ticks, and nothing else. */
static bool
passes_wedge(const struct world *world, const struct sim_event *event)
{
    return event->kind == EVENT_TICK ||
           (event->kind == EVENT_PACKET && network_next_kind(world, event) == CAIRN_MSG_HEARTBEAT);
}

bool
node_paused(struct world *world, struct node *node, struct sim_event *event)
{
    struct sim_event later = *event;

    if (!node->running || node_answers(world, node))
        return false;
    later.at_ns = node->paused_until_ns;
    if (node->paused_until_ns <= world->now_ns) {
        if (passes_wedge(world, event))
            return false;
        later.at_ns = node->wedged_until_ns;
    }
    queue_push(&world->queue, &later);
    return true;
}

/* ---- carrying out ---- */

static void
answer_later(struct world *world, struct node *node, const struct answer *answer)
{
    struct sim_event event = sim_event_new(
        world, EVENT_ANSWER, node->number,
        random_between(&world->random, MS_NS / 10, 20 * MS_NS) +
            (random_chance(&world->random, 50) ? random_below(&world->random, 3 * SECOND_NS) : 0));

    event.incarnation = node->incarnation;
    event.as.answer = malloc(sizeof *event.as.answer);
    if (!event.as.answer)
        abort();
    *event.as.answer = *answer;
    queue_push(&world->queue, &event);
}

static struct scratch *
scratch_of(struct world *world, struct node *node, uint32_t item)
{
    struct scratch *scratch = item < ITEMS_MAX ? &node->scratch[item] : NULL;

    if (!scratch) {
        judge_fail(world, VERDICT_OTHER, "agent %u uses item %u", node->number, item);
        return NULL;
    }
    if (!scratch->shards)
        scratch->shards = calloc((size_t)CAIRN_SHARDS_MAX * CAIRN_MESSAGE_BLOCKS_MAX, BLOCK_BYTES);
    return scratch;
}

/* An agent decodes its own blocks where they are. */
static void
note_read_in_place(struct node *node, struct scratch *scratch,
                   const struct cairn_message_blocks *blocks)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct cairn_part_view view;

        if (cairn_core_look_part(node->core, i, &view) && view.member == blocks->member &&
            same(view.generation, blocks->generation))
            scratch->read_in_place |= UINT64_C(1) << i;
    }
}

static void
do_stage(struct world *world, struct node *node, const struct cairn_action_place *place,
         const struct cairn_message *message, const uint8_t *payload)
{
    struct scratch *scratch = scratch_of(world, node, place->item);

    if (!scratch || place->source >= CAIRN_SHARDS_MAX || place->count > CAIRN_MESSAGE_BLOCKS_MAX)
        return;
    scratch->staged |= UINT64_C(1) << place->source;
    memcpy(scratch->shards + (size_t)place->source * CAIRN_MESSAGE_BLOCKS_MAX * BLOCK_BYTES,
           payload, (size_t)place->count * BLOCK_BYTES);
    if (message->from == node->number && message->kind == CAIRN_MSG_BLOCKS)
        note_read_in_place(node, scratch, &message->as.blocks);
}

static void
do_close(struct world *world, struct node *node, uint32_t part)
{
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        node->scratch[i].spoiled |= (node->scratch[i].read_in_place >> part) & 1;
    if (part >= world->setup.slots)
        memory_close(&node->memory[part]);
}

static void
do_write(struct world *world, struct node *node, const struct cairn_action_place *place,
         const uint8_t *payload, uint32_t payload_len)
{
    for (uint32_t i = 0; i < place->count && i * BLOCK_BYTES < payload_len; i++) {
        uint32_t rest = payload_len - i * BLOCK_BYTES;
        uint8_t *block =
            memory_block(node, place->part, place->area, place->row, place->first_block + i);

        if (!block) {
            judge_fail(world, VERDICT_OTHER, "agent %u writes outside of its memory", node->number);
            return;
        }
        memcpy(block, payload + (size_t)i * BLOCK_BYTES, rest < BLOCK_BYTES ? rest : BLOCK_BYTES);
    }
}

void
node_place(struct world *world, struct node *node, const struct cairn_message *message,
           const uint8_t *payload, uint32_t payload_len)
{
    struct cairn_action_place place;

    if (message->from != node->number &&
        cairn_core_place(node->core, message->from, cairn_message_place(message),
                         cairn_message_block_count(message), &place))
        do_write(world, node, &place, payload, payload_len);
}

static const uint8_t *
block_to_send(struct world *world, struct node *node, const struct cairn_blocks *blocks, uint32_t i)
{
    struct scratch *scratch;

    if (blocks->area != CAIRN_AREA_SCRATCH)
        return memory_block(node, blocks->part, blocks->area, blocks->row, blocks->first_block + i);
    scratch = scratch_of(world, node, blocks->item);
    return scratch ? scratch->shards +
                         ((size_t)blocks->shard * CAIRN_MESSAGE_BLOCKS_MAX + i) * BLOCK_BYTES
                   : NULL;
}

static void
do_send(struct world *world, struct node *node, const struct cairn_action_send *send)
{
    uint8_t payload[CAIRN_MESSAGE_BLOCKS_MAX * BLOCK_BYTES];
    uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_message message = send->message;
    const struct cairn_blocks *blocks = &send->blocks;

    for (uint32_t i = 0; i < blocks->count; i++) {
        const uint8_t *block = block_to_send(world, node, blocks, i);
        uint64_t crc;

        if (!block) {
            judge_fail(world, VERDICT_OTHER, "agent %u sends what it has not", node->number);
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
    network_send(world, node, &message, payload, blocks->count * BLOCK_BYTES);
}

static void
do_open(struct world *world, struct node *node, const struct cairn_action_part *part,
        struct answer *answer)
{
    answer->type = CAIRN_EVENT_OPENED;
    if (part->part < world->setup.slots || random_chance(&world->random, 20) ||
        !memory_open(&node->memory[part->part], part->blocks, part->parity_blocks))
        answer->err = CAIRN_NOMEM;
}

static void
do_decode(struct world *world, struct node *node, const struct cairn_action_decode *decode)
{
    struct answer answer = {
        .type = CAIRN_EVENT_DECODED, .item = decode->item, .request = decode->request};
    struct scratch *scratch = scratch_of(world, node, decode->item);

    if (!scratch)
        return;
    scratch->used = true;
    scratch->data_shards = decode->data_shards;
    scratch->parity_shards = decode->parity_shards;
    scratch->lost = decode->lost;
    scratch->sources = decode->sources;
    scratch->count = decode->count;
    scratch->request = decode->request;
    answer_later(world, node, &answer);
}

static void
do_finish(struct node *node, const struct cairn_action_part *part, struct answer *answer)
{
    answer->type = CAIRN_EVENT_FINISHED;
    answer->count = memory_finish(node, part->part, &answer->crcs);
    node->captured[part->part] = true;
}

/* SEAL, FINISH, VERIFY and OPEN. */
static void
do_part(struct world *world, struct node *node, enum cairn_action_type type,
        const struct cairn_action_part *part)
{
    struct answer answer = {.type = CAIRN_EVENT_SEALED,
                            .generation = part->generation,
                            .part = part->part,
                            .member = part->member,
                            .request = part->request};

    if (type == CAIRN_ACTION_FINISH) {
        do_finish(node, part, &answer);
    } else if (type == CAIRN_ACTION_OPEN) {
        do_open(world, node, part, &answer);
    } else if (type == CAIRN_ACTION_VERIFY) {
        answer.type = CAIRN_EVENT_VERIFIED;
        answer.count = memory_verify(node, part->part, part->skip, &answer.bad);
        judge_compared(world, node, part->part);
    }
    answer_later(world, node, &answer);
}

/* False: the agent stops. */
static bool
do_store_epoch(struct world *world, struct node *node, const struct cairn_action_store *store)
{
    struct shared *before = node->disk;

    if (node->disk_full) {
        world_say(world, "agent %u: the disk is full, it stops", node->number);
        return false;
    }
    if (world->store_last && world->store_last->len == store->bytes_len &&
        memcmp(world->store_last->bytes, store->bytes, store->bytes_len) == 0) {
        node->disk = world->store_last;
    } else {
        shared_drop(world->store_last);
        node->disk = world->store_last = shared_new(store->bytes, store->bytes_len);
    }
    node->disk->references++;
    judge_epoch(world, node, before, store);
    shared_drop(before);
    node->memory_new = false; /* from here on the disk says what is not known */
    node->disk_lost = false;
    return true;
}

/* False: the agent takes blocks of a message that has come without them. */
static bool
blocks_are_there(struct world *world, const struct node *node, const struct cairn_action *action,
                 const uint8_t *payload)
{
    uint32_t count = 0;

    if (action->type == CAIRN_ACTION_FOLD)
        count = action->as.fold.count;
    else if (action->type == CAIRN_ACTION_WRITE || action->type == CAIRN_ACTION_STAGE)
        count = action->as.place.count;
    if (count == 0 || payload)
        return true;
    judge_fail(world, VERDICT_OTHER,
               "agent %u uses %u blocks that never came: their payload was damaged on the way",
               node->number, count);
    return false;
}

/* False: the agent has stopped. */
static bool
carry_out(struct world *world, struct node *node, const struct cairn_action *action,
          const struct cairn_event *event, const uint8_t *payload)
{
    const struct cairn_action_store *store = &action->as.store;

    if (!blocks_are_there(world, node, action, payload))
        return true; /* the schedule is over */
    switch (action->type) {
    case CAIRN_ACTION_SEND:
        do_send(world, node, &action->as.send);
        break;
    case CAIRN_ACTION_CONNECT:
        network_connect(world, node, action->as.peer.agent);
        break;
    case CAIRN_ACTION_DISCONNECT:
        network_disconnect(world, node, action->as.peer.agent);
        break;
    case CAIRN_ACTION_FOLD:
        memory_fold(world, node, &action->as.fold, payload);
        break;
    case CAIRN_ACTION_WRITE:
        do_write(world, node, &action->as.place, payload, action->as.place.count * BLOCK_BYTES);
        break;
    case CAIRN_ACTION_STAGE:
        do_stage(world, node, &action->as.place, event->as.message.message, payload);
        break;
    case CAIRN_ACTION_RELEASE:
        if (action->as.decode.item < ITEMS_MAX)
            scratch_clear(&node->scratch[action->as.decode.item]);
        break;
    case CAIRN_ACTION_DECODE:
        do_decode(world, node, &action->as.decode);
        break;
    case CAIRN_ACTION_STORE_EPOCH:
        return do_store_epoch(world, node, store);
    case CAIRN_ACTION_STORE_PART:
        blob_set(&node->records[store->part], store->bytes, store->bytes_len);
        node->captured[store->part] &= store->bytes_len > 0;
        judge_record(world, node, store);
        break;
    case CAIRN_ACTION_CLOSE:
        do_close(world, node, action->as.part.part);
        break;
    case CAIRN_ACTION_OPEN:
    case CAIRN_ACTION_SEAL:
    case CAIRN_ACTION_FINISH:
    case CAIRN_ACTION_VERIFY:
        do_part(world, node, action->type, &action->as.part);
        break;
    case CAIRN_ACTION_GRANT:
        judge_grant(world, node, &action->as.trainer);
        trainer_tell(world, node, action);
        break;
    case CAIRN_ACTION_SKIP:
    case CAIRN_ACTION_DROP:
    case CAIRN_ACTION_ACTIVATED:
        trainer_tell(world, node, action);
        break;
    case CAIRN_ACTION_COMMITTED:
        judge_committed(world, node, &action->as.committed);
        break;
    case CAIRN_ACTION_REPLY:
        judge_reply(world, node, &action->as.reply);
        operator_reply(world, node, &action->as.reply);
        break;
    }
    return true;
}

/* Gives the core one event and does what it asks for; in some schedules the agent dies halfway
 * through. */
void
node_event(struct world *world, struct node *node, struct cairn_event *event,
           const uint8_t *payload)
{
    struct cairn_actions *actions = &world->actions;
    size_t until;
    bool dies = false;

    event->now_ns = node_clock(world, node);
    cairn_core_step(node->core, event, actions);
    if (actions->failed) {
        judge_fail(world, VERDICT_OTHER, "memory ran out");
        return;
    }
    until = actions->count;
    if (until > 0 && !world->healed && world->setup.crash_within_step &&
        random_chance(&world->random, world->setup.crash_within_step)) {
        until = random_below(&world->random, until + 1);
        dies = true;
    }
    for (size_t i = 0; i < until && !world->over; i++)
        if (!carry_out(world, node, &actions->list[i], event, payload)) {
            dies = true;
            break;
        }
    if (!dies)
        judge_after(world, node);
    cairn_actions_clear(actions);
    if (dies) {
        world->counters.faults[FAULT_AGENT_CRASH]++;
        node_crash_agent(world, node);
        if (world->setup.careless && random_chance(&world->random, 800))
            fault_damage_records(world, node);
        node_start_later(world, node, random_between(&world->random, SECOND_NS, 15 * SECOND_NS));
    }
}

/* The manifest of what was captured here. */
static void
seal(struct world *world, struct node *node, const struct answer *answer,
     struct cairn_event_answer *out, uint8_t **manifest)
{
    const struct truth *truth = judge_truth(world, answer->generation);
    struct layout_of of = {.gang_member = UINT32_MAX, .generation = answer->generation};

    of.container = answer->member;
    of.container_count = answer->member + 1;
    if (truth && answer->member < truth->member_count) {
        of.life = truth->life;
        of.gang_member = truth->content[answer->member];
        of.gang_members = truth->gang_members;
        of.kind = truth->layout;
        of.container_count = truth->member_count;
    }
    if (!layout_manifest(world, &of, manifest, &out->bytes_len))
        judge_fail(world, VERDICT_OTHER, "the manifest of agent %u cannot be packed", node->number);
    out->bytes = *manifest;
}

void
node_answer(struct world *world, struct sim_event *sim_event)
{
    struct node *node = &world->nodes[sim_event->node];
    struct answer *answer = sim_event->as.answer;
    uint8_t *manifest = NULL;
    struct cairn_event event = {.type = answer->type};

    if (!node->running || node->incarnation != sim_event->incarnation)
        return;
    if (answer->type == CAIRN_EVENT_DECODED) {
        struct scratch *scratch = &node->scratch[answer->item];

        event.as.decoded =
            (struct cairn_event_decoded){.item = answer->item, .request = answer->request};
        if (scratch->used && scratch->request == answer->request) {
            if (scratch->spoiled)
                judge_fail(world, VERDICT_OTHER, "agent %u decodes from memory that it gave up",
                           node->number);
            memory_decode(world, scratch);
        }
    } else {
        event.as.answer = (struct cairn_event_answer){.part = answer->part,
                                                      .request = answer->request,
                                                      .generation = answer->generation,
                                                      .err = answer->err,
                                                      .crcs = answer->crcs,
                                                      .bad = answer->bad,
                                                      .count = answer->count};
        if (answer->type == CAIRN_EVENT_SEALED)
            seal(world, node, answer, &event.as.answer, &manifest);
    }
    node_event(world, node, &event, NULL);
    free(manifest);
}
