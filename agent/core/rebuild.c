/*
 * agent/core/rebuild.c - taking part in a repair: as worker (reads, decodes, sends) and as target
 * (receives, checks, keeps).
 *
 * Every worker iterates the same schedule (erasure/repair.h) and carries out the items that name
 * its position: READ the source blocks from their holders, decode, WRITE each rebuilt block to its
 * target, wait for the acknowledgement. The lowest intact position of a group also pushes all seals
 * of the group to each target that has lost everything. A target compares each data block with its
 * member's seal before it keeps it, so a wrong decode is never taken. Every step is repeated until
 * it is answered; writing a block twice changes nothing.
 */
#include "agent/core/core_state.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void
plan_fini(struct repair_plan *plan)
{
    for (uint32_t w = 0; w < plan->worker_count; w++) {
        free(plan->workers[w].bad);
        free(plan->workers[w].pushes);
    }
    cairn_roster_drop(plan->table);
    free(plan->holders);
    free(plan->targets);
    free(plan->bad);
    memset(plan, 0, sizeof *plan);
}

void
rebuild_release(struct cairn_core *core, uint32_t index)
{
    struct cairn_action *action = action_add(core, CAIRN_ACTION_RELEASE);

    if (action)
        action->item = index;
    core->repair.items[index].used = false;
}

void
rebuild_stop(struct cairn_core *core)
{
    if (!core->repair.active)
        return;
    for (uint32_t i = 0; i < REBUILD_ITEMS_MAX; i++)
        if (core->repair.items[i].used)
            rebuild_release(core, i);
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        if (core->holdings[i].state ==
            CAIRN_HOLDING_COMPLETE) { /* bad blocks that were being mended */
            free(core->holdings[i].missing);
            core->holdings[i].missing = NULL;
        }
    plan_fini(&core->repair);
}

void
rebuild_report_failure(struct cairn_core *core, cairn_err err)
{
    struct cairn_message message = message_new(core, CAIRN_MSG_REBUILD_FAILED, core->repair.epoch);

    message.generation = core->repair.generation;
    message.request = core->repair.plan_number;
    message.row = core->repair.proved;
    message.err = (uint32_t)err;
    send_message(core, core->repair.coordinator, &message);
    core->repair.failed = true;
    core->repair.failure = err;
}

void
rebuild_report(struct cairn_core *core, const struct holding *holding)
{
    struct cairn_message message = message_new(core, CAIRN_MSG_REBUILT, core->repair.epoch);

    message.generation = holding->generation;
    message.request = core->repair.plan_number;
    message.member = holding->member;
    message.row = holding->state != CAIRN_HOLDING_COMPLETE || holding->missing; /* 1: on its way */
    message.offset = holding->written_blocks;
    send_message(core, core->repair.coordinator, &message);
}

/* ---- the plan ---- */

static bool
agent_or_none(uint32_t agent, uint32_t agent_count)
{
    return agent < agent_count || agent == UINT32_MAX;
}

static cairn_err
read_plan(struct repair_plan *plan, const struct cairn_message *message, uint32_t agent_count)
{
    struct cairn_reader reader;
    cairn_err err;

    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    err = cairn_roster_read(&reader, &plan->table);
    if (err)
        return err;
    plan->holders = calloc(plan->table->member_count, sizeof(uint32_t));
    plan->targets = calloc(plan->table->member_count, sizeof(uint32_t));
    if (!plan->holders || !plan->targets)
        return CAIRN_NOMEM;
    for (uint32_t m = 0; m < plan->table->member_count; m++) {
        plan->holders[m] = cairn_read_u32(&reader);
        plan->targets[m] = cairn_read_u32(&reader);
        if (!agent_or_none(plan->holders[m], agent_count) ||
            !agent_or_none(plan->targets[m], agent_count))
            return CAIRN_CORRUPT;
    }
    plan->bad_count = cairn_read_u32(&reader);
    if (plan->bad_count > cairn_reader_left(&reader) / 13)
        return CAIRN_CORRUPT;
    plan->bad = calloc(plan->bad_count + 1u, sizeof *plan->bad);
    if (!plan->bad)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < plan->bad_count; i++) {
        plan->bad[i].position = cairn_read_u32(&reader);
        plan->bad[i].area = (enum cairn_area)cairn_read_u8(&reader);
        plan->bad[i].block = cairn_read_u64(&reader);
        if (plan->bad[i].position >= plan->table->member_count ||
            plan->bad[i].area > CAIRN_AREA_PARITY)
            return CAIRN_CORRUPT;
    }
    return cairn_reader_done(&reader);
}

static bool
group_has_work(const struct repair_plan *plan, uint32_t group)
{
    for (uint32_t p = 0; p < plan->table->groups[group].count; p++)
        if (plan->targets[plan->table->groups[group].members[p]] != UINT32_MAX)
            return true;
    return false;
}

/* Makes this agent's holding a worker of its group: the schedule, and the seals it has to push. */
static cairn_err
add_worker(struct cairn_core *core, struct holding *holding)
{
    struct repair_plan *plan = &core->repair;
    struct repair_worker *worker = &plan->workers[plan->worker_count];
    uint32_t group_index = plan->table->members[holding->member].group;
    const struct cairn_roster_group *group = &plan->table->groups[group_index];
    struct cairn_repair_request request = {.stripes = &worker->stripes};
    uint32_t lowest = UINT32_MAX;
    cairn_err err;

    if (!holding_lengths(holding))
        return CAIRN_CORRUPT;
    memset(worker, 0, sizeof *worker);
    worker->holding = holding_index(core, holding);
    worker->stripes = holding->stripes;
    worker->bad = calloc(plan->bad_count + 1u, sizeof *worker->bad);
    if (!worker->bad)
        return CAIRN_NOMEM;
    plan->worker_count++;
    request.bad = worker->bad;
    for (uint32_t p = 0; p < group->count; p++) {
        uint32_t member = group->members[p];

        if (plan->holders[member] != UINT32_MAX) {
            request.intact |= UINT64_C(1) << p;
            lowest = lowest == UINT32_MAX ? p : lowest;
        } else if (plan->targets[member] != UINT32_MAX) {
            request.rebuild_data |= UINT64_C(1) << p;
            request.rebuild_parity |= UINT64_C(1) << p;
        }
    }
    for (uint32_t i = 0; i < plan->bad_count; i++)
        if (plan->table->members[plan->bad[i].position].group == group_index) {
            worker->bad[request.bad_count] = plan->bad[i];
            worker->bad[request.bad_count++].position =
                plan->table->members[plan->bad[i].position].position;
        }
    err = cairn_repair_init(&request, NULL, NULL, &worker->schedule);
    plan->proved = err == CAIRN_LOST;
    if (err)
        return err;
    if (lowest == holding->position) {
        worker->pushes = calloc((size_t)group->count * group->count, sizeof *worker->pushes);
        if (!worker->pushes)
            return CAIRN_NOMEM;
    }
    return CAIRN_OK;
}

static void
take_plan(struct cairn_core *core, const struct cairn_message *message)
{
    struct repair_plan *plan = &core->repair;
    cairn_err err;

    if (message->epoch < core->promised || message->from >= core->options.agent_count)
        return;
    if (message->epoch == core->promised)
        core->frozen_ns = core->now_ns; /* the claimant is at work */
    if (plan->active && plan->epoch == message->epoch &&
        generation_is(plan->generation, message->generation) &&
        plan->plan_number == message->request) {
        for (uint32_t m = 0; m < plan->table->member_count; m++) { /* it has not heard our answer */
            struct holding *holding = plan->targets[m] == core->options.self
                                          ? holding_find(core, plan->generation, m)
                                          : NULL;

            if (holding)
                rebuild_report(core, holding);
        }
        if (plan->failed)
            rebuild_report_failure(core, plan->failure);
        return;
    }
    rebuild_stop(core);
    plan->active = true;
    plan->epoch = message->epoch;
    plan->plan_number = message->request;
    plan->coordinator = message->from;
    plan->generation = message->generation;
    err = read_plan(plan, message, core->options.agent_count);
    if (err) { /* not a plan */
        plan_fini(plan);
        return;
    }
    for (uint32_t m = 0; !err && m < plan->table->member_count; m++)
        if (plan->targets[m] == core->options.self)
            err = rebuild_open_target(core, m);
    for (uint32_t i = 0; !err && i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];

        if (holding->state == CAIRN_HOLDING_COMPLETE &&
            holding->member < plan->table->member_count &&
            generation_is(holding->generation, plan->generation) &&
            plan->holders[holding->member] == core->options.self &&
            group_has_work(plan, plan->table->members[holding->member].group))
            err = add_worker(core, holding);
    }
    if (err) {
        rebuild_report_failure(core, err);
        return;
    }
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        rebuild_try_finish(core, &core->holdings[i]);
    for (uint32_t m = 0; m < plan->table->member_count; m++) {
        struct holding *holding =
            plan->targets[m] == core->options.self ? holding_find(core, plan->generation, m) : NULL;

        if (holding && holding->state == CAIRN_HOLDING_COMPLETE && !holding->missing)
            rebuild_report(core, holding);
    }
    rebuild_tick(core);
}

void
rebuild_message(struct cairn_core *core, const struct cairn_message *message, bool payload_ok)
{
    switch (message->type) {
    case CAIRN_MSG_REBUILD:
        take_plan(core, message);
        break;
    case CAIRN_MSG_READ:
        rebuild_read(core, message);
        break;
    case CAIRN_MSG_BLOCKS:
        rebuild_blocks(core, message, payload_ok);
        break;
    case CAIRN_MSG_WRITE:
        rebuild_write(core, message, payload_ok);
        break;
    case CAIRN_MSG_WRITE_ACK:
        rebuild_write_ack(core, message);
        break;
    default:
        break;
    }
}
