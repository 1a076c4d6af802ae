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
    node->incarnation = 1;
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
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        scratch_clear(&node->scratch[i]);
}

void
node_fini(struct node *node)
{
    agent_gone(node);
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        memory_close(&node->memory[i]);
        blob_set(&node->records[i], NULL, 0);
    }
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        free(node->scratch[i].shards);
    blob_set(&node->disk, NULL, 0);
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
        .every_steps = setup->every_steps,
        .incarnation = node->incarnation,
        .heartbeat_interval_ns = setup->heartbeat_ns,
        .dead_after_ns = setup->dead_after_ns,
        .repair_after_ns = setup->repair_after_ns,
        .resend_after_ns = setup->resend_ns,
        .claim_timeout_ns = setup->claim_timeout_ns,
        .rebuild_timeout_ns = setup->rebuild_timeout_ns,
        .memory_is_new = node->memory_new,
        .planted_bug = world->planted_bug,
    };
    struct cairn_bytes records[CAIRN_HOLDINGS_MAX];
    struct cairn_bytes disk = {node->disk.bytes, node->disk.len};
    uint32_t dropped = 0;

    if (!node->up || node->running)
        return;
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        records[i] = (struct cairn_bytes){node->records[i].bytes, node->records[i].len};
    if (cairn_core_create(&options, node_clock(world, node), disk, records, &dropped,
                          &node->core) != CAIRN_OK) {
        judge_fail(world, VERDICT_OTHER, "agent %u does not start", node->number);
        return;
    }
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct cairn_holding_view view;

        if (node->records[i].len && !cairn_core_look_holding(node->core, i, &view))
            node->stored[i] = (struct stored){0};
    }
    node->running = true;
    node->paused_until_ns = 0;
    node->started_ns = world->now_ns;
    world_say(world, "agent %u starts, incarnation %llu, %u records dropped", node->number,
              (unsigned long long)node->incarnation, dropped);
    schedule_tick(world, node);
    trainer_register(world, node);
}

void
node_crash_agent(struct world *world, struct node *node)
{
    if (!node->running)
        return;
    world_say(world, "agent %u dies", node->number);
    agent_gone(node);
    node->incarnation++;
    node->paused_until_ns = 0;
    trainer_agent_died(world, node);
}

void
node_crash(struct world *world, struct node *node, bool disk_too)
{
    world_say(world, "node %u dies%s", node->number, disk_too ? " with its disk" : "");
    node_crash_agent(world, node);
    judge_lost_memory(world, node);
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        blob_set(&node->records[i], NULL, 0);
        node->stored[i] = (struct stored){0};
        memory_close(&node->memory[i]);
        if (i < world->setup.slots &&
            !memory_open(&node->memory[i], world->setup.slot_blocks, world->setup.parity_blocks))
            abort();
    }
    node->memory_new = true;
    if (disk_too)
        blob_set(&node->disk, NULL, 0);
    node->up = false;
    node->spilled = (struct cairn_generation){0, 0};
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        node->ranks[r].phase = RANK_DEAD;
}

bool
node_paused(struct world *world, struct node *node, struct sim_event *event)
{
    struct sim_event later = *event;

    if (!node->running || node->paused_until_ns <= world->now_ns)
        return false;
    later.at_ns = node->paused_until_ns;
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
note_read_in_place(struct node *node, struct scratch *scratch, const struct cairn_message *message)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct cairn_holding_view view;

        if (cairn_core_look_holding(node->core, i, &view) && view.member == message->member &&
            cairn_generation_compare(view.generation, message->generation) == 0)
            scratch->read_in_place |= UINT64_C(1) << i;
    }
}

static void
do_stage(struct world *world, struct node *node, const struct cairn_action *action,
         const struct cairn_event *event, const uint8_t *payload)
{
    struct scratch *scratch = scratch_of(world, node, action->item);

    if (!scratch || action->source >= CAIRN_SHARDS_MAX || action->count > CAIRN_MESSAGE_BLOCKS_MAX)
        return;
    scratch->staged |= UINT64_C(1) << action->source;
    memcpy(scratch->shards + (size_t)action->source * CAIRN_MESSAGE_BLOCKS_MAX * BLOCK_BYTES,
           payload, (size_t)action->count * BLOCK_BYTES);
    if (event->message->from == node->number)
        note_read_in_place(node, scratch, event->message);
}

static void
do_close(struct world *world, struct node *node, uint32_t holding)
{
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        node->scratch[i].spoiled |= (node->scratch[i].read_in_place >> holding) & 1;
    if (holding >= world->setup.slots)
        memory_close(&node->memory[holding]);
}

static void
do_write(struct world *world, struct node *node, const struct cairn_action *action,
         const uint8_t *payload)
{
    for (uint32_t i = 0; i < action->count; i++) {
        uint8_t *block =
            memory_block(node, action->holding, action->area, action->row, action->first_block + i);

        if (!block) {
            judge_fail(world, VERDICT_OTHER, "agent %u writes outside of its memory", node->number);
            return;
        }
        memcpy(block, payload + (size_t)i * BLOCK_BYTES, BLOCK_BYTES);
    }
}

static void
do_send(struct world *world, struct node *node, const struct cairn_action *action)
{
    uint8_t payload[CAIRN_MESSAGE_BLOCKS_MAX * BLOCK_BYTES];
    uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_message message = action->message;

    for (uint32_t i = 0; i < action->count; i++) {
        const uint8_t *block;
        uint64_t crc;

        if (action->area == CAIRN_AREA_SCRATCH) {
            struct scratch *scratch = scratch_of(world, node, action->item);

            block = scratch
                        ? scratch->shards +
                              ((size_t)action->source * CAIRN_MESSAGE_BLOCKS_MAX + i) * BLOCK_BYTES
                        : NULL;
        } else {
            block = memory_block(node, action->holding, action->area, action->row,
                                 action->first_block + i);
        }
        if (!block) {
            judge_fail(world, VERDICT_OTHER, "agent %u sends what it has not", node->number);
            return;
        }
        memcpy(payload + (size_t)i * BLOCK_BYTES, block, BLOCK_BYTES);
        crc = block_crc(block);
        for (uint32_t b = 0; b < 8; b++)
            crcs[8 * i + b] = (uint8_t)(crc >> (8 * b));
    }
    if (action->count && action->area == CAIRN_AREA_SCRATCH) {
        message.bytes = crcs;
        message.bytes_len = 8 * action->count;
    }
    network_send(world, node, &message, payload, action->count * BLOCK_BYTES);
}

static void
do_open(struct world *world, struct node *node, const struct cairn_action *action,
        struct answer *answer)
{
    answer->type = CAIRN_EVENT_OPENED;
    if (action->holding < world->setup.slots || random_chance(&world->random, 20) ||
        !memory_open(&node->memory[action->holding], action->blocks, action->first_block))
        answer->err = CAIRN_NOMEM;
}

static void
do_decode(struct world *world, struct node *node, const struct cairn_action *action,
          struct answer *answer)
{
    struct scratch *scratch = scratch_of(world, node, action->item);

    answer->type = CAIRN_EVENT_DECODED;
    if (!scratch)
        return;
    scratch->used = true;
    scratch->data_shards = action->data_shards;
    scratch->parity_shards = action->parity_shards;
    scratch->lost = action->lost;
    scratch->sources = action->sources;
    scratch->count = action->count;
    scratch->request = action->request;
}

static void
do_store(struct world *world, struct node *node, const struct cairn_action *action)
{
    blob_set(&node->records[action->holding], action->bytes, action->bytes_len);
    judge_record(world, node, action->holding, action);
}

/* False: the agent has stopped. */
static bool
carry_out(struct world *world, struct node *node, const struct cairn_action *action,
          const struct cairn_event *event, const uint8_t *payload)
{
    struct answer answer = {.generation = action->generation,
                            .holding = action->holding,
                            .item = action->item,
                            .request = action->request};
    struct blob before;

    switch (action->type) {
    case CAIRN_ACTION_SEND:
        do_send(world, node, action);
        return true;
    case CAIRN_ACTION_FOLD:
        memory_fold(world, node, action, payload);
        return true;
    case CAIRN_ACTION_WRITE:
        do_write(world, node, action, payload);
        return true;
    case CAIRN_ACTION_STAGE:
        do_stage(world, node, action, event, payload);
        return true;
    case CAIRN_ACTION_RELEASE:
        if (action->item < ITEMS_MAX)
            scratch_clear(&node->scratch[action->item]);
        return true;
    case CAIRN_ACTION_STORE_EPOCH:
        if (node->disk_full) {
            world_say(world, "agent %u: the disk is full, it stops", node->number);
            return false;
        }
        before = node->disk;
        node->disk = (struct blob){0};
        blob_set(&node->disk, action->bytes, action->bytes_len);
        judge_epoch(world, node, &before, action);
        free(before.bytes);
        node->memory_new = false; /* from here on the disk says what is not known */
        return true;
    case CAIRN_ACTION_STORE_HOLDING:
        do_store(world, node, action);
        return true;
    case CAIRN_ACTION_CLOSE:
        do_close(world, node, action->holding);
        return true;
    case CAIRN_ACTION_OPEN:
        do_open(world, node, action, &answer);
        break;
    case CAIRN_ACTION_DECODE:
        do_decode(world, node, action, &answer);
        break;
    case CAIRN_ACTION_SEAL:
        answer.type = CAIRN_EVENT_SEALED;
        break;
    case CAIRN_ACTION_FINISH:
        answer.type = CAIRN_EVENT_FINISHED;
        answer.count = memory_finish(node, action->holding, &answer.crcs);
        break;
    case CAIRN_ACTION_VERIFY:
        answer.type = CAIRN_EVENT_VERIFIED;
        answer.count = memory_verify(node, action->holding, &answer.bad);
        break;
    case CAIRN_ACTION_GRANT:
        judge_grant(world, node, action);
        trainer_tell(world, node, action);
        return true;
    case CAIRN_ACTION_SKIP:
    case CAIRN_ACTION_DROP:
        trainer_tell(world, node, action);
        return true;
    case CAIRN_ACTION_COMMITTED:
        judge_committed(world, node, action);
        return true;
    case CAIRN_ACTION_ACTIVATED:
        trainer_tell(world, node, action);
        return true;
    case CAIRN_ACTION_REPLY:
        judge_reply(world, node, action);
        operator_reply(world, node, action);
        return true;
    }
    answer_later(world, node, &answer);
    return true;
}

/* Gives the core one event and does what it asks for; in some schedules the agent dies after a part
 * of it. */
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
        struct sim_event start =
            sim_event_new(world, EVENT_START, node->number,
                          random_between(&world->random, SECOND_NS, 15 * SECOND_NS));

        world->counters.faults[FAULT_AGENT_CRASH]++;
        node_crash_agent(world, node);
        if (world->setup.careless && random_chance(&world->random, 800))
            fault_damage_records(world, node);
        start.incarnation = node->incarnation;
        queue_push(&world->queue, &start);
    }
}

void
node_answer(struct world *world, struct sim_event *sim_event)
{
    struct node *node = &world->nodes[sim_event->node];
    struct answer *answer = sim_event->as.answer;
    uint8_t *manifest = NULL;
    struct cairn_event event = {.type = answer->type,
                                .holding = answer->holding,
                                .generation = answer->generation,
                                .item = answer->item,
                                .request = answer->request,
                                .err = answer->err,
                                .crcs = answer->crcs,
                                .bad = answer->bad,
                                .count = answer->count};

    if (!node->running || node->incarnation != sim_event->incarnation)
        return;
    if (answer->type == CAIRN_EVENT_SEALED) {
        const struct truth *truth = judge_truth(world, answer->generation);
        struct cairn_core_view view;

        cairn_core_look(node->core, &view);
        if (truth && view.self_member < truth->member_count &&
            !layout_manifest(world, truth, view.self_member, &manifest, &event.bytes_len))
            judge_fail(world, VERDICT_OTHER, "the manifest of agent %u cannot be packed",
                       node->number);
        event.bytes = manifest;
    } else if (answer->type == CAIRN_EVENT_DECODED) {
        struct scratch *scratch = &node->scratch[answer->item];

        if (scratch->used && scratch->request == answer->request) {
            if (scratch->spoiled)
                judge_fail(world, VERDICT_OTHER, "agent %u decodes from memory that it gave up",
                           node->number);
            memory_decode(world, scratch);
        }
    }
    node_event(world, node, &event, NULL);
    free(manifest);
}
