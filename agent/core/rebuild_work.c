/*
 * agent/core/rebuild_work.c - taking part in a repair as worker: reads the sources of its items,
 * decodes, writes, pushes seals.
 *
 * An item is READ from its holders, decoded, and written to its targets until each has
 * acknowledged. Its scratch is used again only when the answer to its DECODE has come, even if the
 * repair has ended meanwhile.
 */
#include "agent/core/core_state.h"

#include <stdlib.h>
#include <string.h>

/* A position's blocks of an item: which area, and where. */
static struct cairn_message
blocks_of(const struct repair_plan *plan, const struct repair_worker *worker,
          const struct cairn_repair_item *item, uint32_t position, struct cairn_message message)
{
    uint64_t first;
    enum cairn_area area = cairn_stripes_area(&worker->stripes, item->stripe, position, &first);
    const struct cairn_roster_group *group =
        &plan->table->groups[plan->table->members[message.member].group];

    message.generation = plan->generation;
    message.member = group->members[position];
    message.area = area;
    message.stripe = item->stripe;
    message.first_block = area == CAIRN_AREA_DATA ? first + item->line_first : item->line_first;
    message.block_count = item->line_count;
    return message;
}

static uint64_t
item_request(const struct repair_plan *plan, uint32_t index)
{
    return plan->items[index].request << 8 | index;
}

static void
send_reads(struct cairn_core *core, uint32_t index)
{
    struct repair_plan *plan = &core->repair;
    struct item *item = &plan->items[index];
    const struct repair_worker *worker = &plan->workers[item->worker];
    const struct holding *holding = &core->holdings[worker->holding];

    for (uint32_t p = 0; p < holding->geometry.n; p++) {
        struct cairn_message read;

        if (!(item->needed & (UINT64_C(1) << p)))
            continue;
        read = message_new(core, CAIRN_MSG_READ, plan->epoch);
        read.member = holding->member;
        read = blocks_of(plan, worker, &item->plan, p, read);
        read.request = item_request(plan, index);
        read.row = p;
        send_message(core, plan->holders[read.member], &read);
    }
    item->sent_ns = core->now_ns;
}

static void
decode_when_staged(struct cairn_core *core, uint32_t index)
{
    struct item *item = &core->repair.items[index];
    const struct repair_worker *worker = &core->repair.workers[item->worker];
    const struct cairn_geometry *geometry = &worker->stripes.geometry;
    struct cairn_action *action;

    if (item->needed != 0 || item->decoding)
        return;
    item->decoding = true;
    core->decoding[index] = true;
    action = action_add(core, CAIRN_ACTION_DECODE);
    if (!action)
        return;
    action->item = index;
    action->request = item_request(&core->repair, index);
    action->count = item->plan.line_count;
    action->lost = cairn_stripe_shards_of(geometry, item->plan.stripe, item->plan.rebuild);
    action->sources = cairn_stripe_shards_of(geometry, item->plan.stripe, item->plan.sources);
    action->data_shards = geometry->k;
    action->parity_shards = geometry->m;
}

static void
begin_item(struct cairn_core *core, uint32_t index, uint32_t worker_index,
           const struct cairn_repair_item *plan)
{
    struct item *item = &core->repair.items[index];

    memset(item, 0, sizeof *item);
    item->used = true;
    item->worker = worker_index;
    item->request = ++core->next_request & 0xffffffffffffff;
    item->plan = *plan;
    item->needed = plan->reads; /* its own too: they are compared with their checksums on the way,
                                 * as all are */
    item->unwritten = plan->rebuild;
    send_reads(core, index);
    decode_when_staged(core, index);
}

static void
send_writes(struct cairn_core *core, uint32_t index)
{
    struct repair_plan *plan = &core->repair;
    struct item *item = &plan->items[index];
    const struct repair_worker *worker = &plan->workers[item->worker];
    const struct holding *holding = &core->holdings[worker->holding];

    for (uint32_t p = 0; p < holding->geometry.n; p++) {
        struct cairn_message write;
        struct cairn_action *action;

        if (!(item->unwritten & (UINT64_C(1) << p)))
            continue;
        write = message_new(core, CAIRN_MSG_WRITE, plan->epoch);
        write.member = holding->member;
        write = blocks_of(plan, worker, &item->plan, p, write);
        write.request = item_request(plan, index);
        write.row = p;
        action = send_message(core, plan->targets[write.member], &write);
        if (!action)
            return;
        action->area = CAIRN_AREA_SCRATCH;
        action->item = index;
        action->source = cairn_stripe_shard(&worker->stripes.geometry, item->plan.stripe, p);
        action->count = item->plan.line_count;
    }
    item->sent_ns = core->now_ns;
}

static void fill_items(struct cairn_core *core);

void
rebuild_decoded(struct cairn_core *core, uint32_t item_index)
{
    struct item *item = item_index < REBUILD_ITEMS_MAX ? &core->repair.items[item_index] : NULL;

    if (!item)
        return;
    core->decoding[item_index] = false;
    if (core->repair.active && item->used && item->decoding && !item->decoded) {
        item->decoded = true;
        send_writes(core, item_index);
    } else if (core->repair.active && !core->repair.failed) {
        fill_items(core); /* its item is gone, its scratch is free now */
    }
}

/* Fills the free items from the workers' schedules. */
static void
fill_items(struct cairn_core *core)
{
    struct repair_plan *plan = &core->repair;

    for (uint32_t i = 0; i < REBUILD_ITEMS_MAX; i++) {
        if (plan->items[i].used || core->decoding[i])
            continue;
        for (uint32_t w = 0; w < plan->worker_count && !plan->items[i].used; w++) {
            struct repair_worker *worker = &plan->workers[w];
            struct cairn_repair_item item;

            while (!worker->exhausted && !plan->items[i].used) {
                if (!cairn_repair_next(&worker->schedule, &item))
                    worker->exhausted = true;
                else if (item.worker == core->holdings[worker->holding].position)
                    begin_item(core, i, w, &item);
            }
        }
    }
}

static void
push_seals(struct cairn_core *core, bool resend)
{
    struct repair_plan *plan = &core->repair;

    for (uint32_t w = 0; w < plan->worker_count; w++) {
        struct repair_worker *worker = &plan->workers[w];
        const struct holding *holding = &core->holdings[worker->holding];
        const struct cairn_roster_group *group =
            &plan->table->groups[plan->table->members[holding->member].group];

        for (uint32_t t = 0; worker->pushes && t < group->count; t++) {
            uint32_t member = group->members[t];

            if (plan->targets[member] == UINT32_MAX || plan->holders[member] != UINT32_MAX)
                continue;
            for (uint32_t p = 0; p < group->count; p++) {
                struct seal_route route = {plan->generation,      plan->epoch, group->members[p],
                                           plan->targets[member], member,      1};
                struct flow *flow = &worker->pushes[t * group->count + p];

                seal_pump(core, &route, &holding->seals[p], flow,
                          resend &&
                              core->now_ns - flow->progress_ns >= core->options.resend_after_ns);
            }
        }
    }
}

void
rebuild_seal_ack(struct cairn_core *core, const struct cairn_message *message)
{
    struct repair_plan *plan = &core->repair;

    if (!plan->active || message->epoch != plan->epoch ||
        message->member >= plan->table->member_count || message->row >= plan->table->member_count)
        return;
    for (uint32_t w = 0; w < plan->worker_count; w++) {
        struct repair_worker *worker = &plan->workers[w];
        const struct holding *holding = &core->holdings[worker->holding];
        const struct cairn_roster_member *seal = &plan->table->members[message->member];
        const struct cairn_roster_member *target = &plan->table->members[message->row];
        struct flow *flow;

        if (!worker->pushes || seal->group != plan->table->members[holding->member].group ||
            target->group != seal->group)
            continue;
        flow = &worker->pushes[target->position * holding->geometry.n + seal->position];
        if (message->offset > holding->seals[seal->position].len)
            continue;
        if (message->offset > flow->acked)
            flow->progress_ns = core->now_ns;
        flow->acked = message->offset;
        flow->next = flow->next < flow->acked ? flow->acked : flow->next;
    }
    push_seals(core, false);
}

void
rebuild_tick(struct cairn_core *core)
{
    struct repair_plan *plan = &core->repair;

    if (!plan->active || plan->failed)
        return;
    push_seals(core, true);
    for (uint32_t i = 0; i < REBUILD_ITEMS_MAX; i++) {
        struct item *item = &plan->items[i];

        if (!item->used || core->now_ns - item->sent_ns < core->options.resend_after_ns)
            continue;
        if (item->needed)
            send_reads(core, i);
        else if (item->decoded)
            send_writes(core, i);
    }
    fill_items(core);
}

/* ---- reads and their answers ---- */

void
rebuild_read(struct cairn_core *core, const struct cairn_message *message)
{
    struct holding *holding = holding_find(core, message->generation, message->member);
    struct cairn_message answer = *message;
    uint8_t crcs[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    struct cairn_writer writer;
    struct cairn_action *action;

    answer.type = CAIRN_MSG_BLOCKS;
    answer.from = core->options.self;
    answer.bytes = crcs;
    answer.bytes_len = 0;
    answer.err = CAIRN_OK;
    cairn_writer_init(&writer, crcs, sizeof crcs);
    if (!holding || holding->state != CAIRN_HOLDING_COMPLETE || message->area > CAIRN_AREA_PARITY)
        answer.err = CAIRN_NOT_FOUND;
    for (uint32_t i = 0; !answer.err && i < message->block_count; i++) {
        uint64_t crc;

        if (message->stripe < holding->geometry.n &&
            holding_crc(holding, message->area, message->stripe, message->first_block + i, &crc))
            cairn_write_u64(&writer, crc);
        else
            answer.err = CAIRN_NOT_FOUND;
    }
    if (answer.err) {
        answer.block_count = 0;
        send_message(core, message->from, &answer);
        return;
    }
    answer.bytes_len = (uint32_t)writer.used_bytes;
    action = send_message(core, message->from, &answer);
    if (!action)
        return;
    action->holding = holding_index(core, holding);
    action->area = message->area;
    action->stripe = message->stripe;
    action->row =
        message->area == CAIRN_AREA_PARITY
            ? cairn_stripe_parity_row(&holding->geometry, message->stripe, holding->position)
            : 0;
    action->first_block = message->first_block;
    action->count = message->block_count;
}

void
rebuild_blocks(struct cairn_core *core, const struct cairn_message *message, bool payload_ok)
{
    struct repair_plan *plan = &core->repair;
    uint32_t index = (uint32_t)(message->request & 0xff);
    struct item *item = index < REBUILD_ITEMS_MAX ? &plan->items[index] : NULL;
    const struct repair_worker *worker;
    const struct holding *holding;
    struct cairn_message asked;
    struct cairn_action *action;

    if (!plan->active || message->epoch != plan->epoch || !item || !item->used ||
        message->request != item_request(plan, index) || message->row >= CAIRN_SHARDS_MAX ||
        !(item->needed & (UINT64_C(1) << message->row)))
        return;
    worker = &plan->workers[item->worker];
    holding = &core->holdings[worker->holding];
    asked = (struct cairn_message){.member = holding->member};
    asked = blocks_of(plan, worker, &item->plan, message->row, asked);
    if (message->member != asked.member || message->area != asked.area ||
        message->stripe != asked.stripe || message->first_block != asked.first_block)
        return;
    if (message->err) { /* its holder has it no more: the plan is out of date */
        rebuild_report_failure(core, CAIRN_AGAIN);
        return;
    }
    if (message->block_count != item->plan.line_count ||
        message->bytes_len != 8 * message->block_count ||
        ((!payload_ok || (message->area == CAIRN_AREA_DATA &&
                          !rebuild_equals_seal(&holding->seals[message->row], message))) &&
         !CAIRN_PLANTED(core, BUG_REBUILD_UNVERIFIED))) {
        /* Damaged on the way, and asked for again; or damaged since its holder checked it, and then
         * it must check again. */
        if (++item->refused >= CORRUPT_DATA_MAX)
            rebuild_report_failure(core, CAIRN_AGAIN);
        return;
    }
    item->refused = 0;
    action = action_add(core, CAIRN_ACTION_STAGE);
    if (!action)
        return;
    action->item = index;
    action->source = cairn_stripe_shard(&worker->stripes.geometry, item->plan.stripe, message->row);
    action->count = message->block_count;
    item->needed &= ~(UINT64_C(1) << message->row);
    decode_when_staged(core, index);
}

void
rebuild_write_ack(struct cairn_core *core, const struct cairn_message *message)
{
    struct repair_plan *plan = &core->repair;
    uint32_t index = (uint32_t)(message->request & 0xff);
    struct item *item = index < REBUILD_ITEMS_MAX ? &plan->items[index] : NULL;

    if (!plan->active || message->epoch != plan->epoch || !item || !item->used ||
        message->request != item_request(plan, index) || message->stripe != item->plan.stripe ||
        message->member >= plan->table->member_count ||
        plan->table->members[message->member].group !=
            plan->table->members[core->holdings[plan->workers[item->worker].holding].member].group)
        return;
    item->unwritten &= ~(UINT64_C(1) << plan->table->members[message->member].position);
    if (item->unwritten)
        return;
    rebuild_release(core, index);
    fill_items(core);
}
