/* agent/core/core.c - one agent's core: creation, events, and the check after each; see core.h. */
#include "agent/core/conduct.h"
#include "agent/core/receive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool
options_valid(const struct cairn_core_options *options)
{
    return options->agent_count >= 1 && options->agent_count <= CAIRN_NODES_MAX &&
           options->self < options->agent_count && options->slots >= 2 &&
           options->slots <= CAIRN_OWN_SLOTS_MAX && options->group_size >= 1 &&
           options->group_size <= CAIRN_SHARDS_MAX && options->parity < CAIRN_SHARDS_MAX &&
           (options->parity < 2 || options->ring_lines >= 2) &&
           options->heartbeat_interval_ns > 0 && options->incarnation > 0;
}

static cairn_err
load_parts(struct cairn_core *core, const struct cairn_bytes *records, uint32_t *dropped)
{
    *dropped = 0;
    for (uint32_t i = 0; records && i < CAIRN_PARTS_MAX; i++) {
        cairn_err err =
            records[i].len == 0 ? CAIRN_OK : part_load(&core->options, &core->parts, i, records[i]);

        if (err == CAIRN_NOMEM)
            return err;
        *dropped += err != CAIRN_OK;
    }
    return CAIRN_OK;
}

cairn_err
cairn_core_create(const struct cairn_core_options *options, uint64_t now_ns,
                  struct cairn_bytes epoch_record,
                  const struct cairn_bytes records[CAIRN_PARTS_MAX], uint32_t *dropped,
                  struct cairn_core **out)
{
    struct cairn_core *core;
    cairn_err err;

    if (!options_valid(options))
        return CAIRN_INVAL;
    core = calloc(1, sizeof *core);
    if (!core)
        return CAIRN_NOMEM;
    core->options = *options;
    core->env = (struct env){.options = &core->options,
                             .membership = &core->membership,
                             .peers = &core->peers,
                             .decision = &core->run.decision,
                             .parts = &core->parts,
                             .now_ns = now_ns,
                             .next_request = options->incarnation << 8};
    core->leader.reports = &core->reports;
    err = peers_init(&core->peers, &core->options, now_ns);
    if (!err)
        err = answer_init(&core->answering, options->agent_count);
    if (!err)
        err = load_parts(core, records, dropped);
    if (!err)
        err = membership_init(&core->membership, &core->options, epoch_record, *dropped > 0);
    if (err) {
        cairn_core_destroy(core);
        return err;
    }
    *out = core;
    return CAIRN_OK;
}

void
cairn_core_destroy(struct cairn_core *core)
{
    struct cairn_actions nowhere = {0};

    if (!core)
        return;
    core->env.actions = &nowhere;
    repair_stop(&core->env, &core->repair);
    cairn_actions_fini(&nowhere);
    restore_fini(&core->restore);
    answer_fini(&core->answering);
    leader_end(&core->leader);
    reports_fini(&core->reports);
    run_fini(&core->run);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        part_fini(&core->parts.list[i]);
    membership_fini(&core->membership);
    peers_fini(&core->peers);
    free(core);
}

/* ---- the local trainers ---- */

static struct part *
own_part(struct cairn_core *core, struct cairn_generation_id generation)
{
    return parts_find(&core->parts, generation, core->membership.self_member);
}

static void
take_ranks(struct cairn_core *core, const struct cairn_event_ranks *ranks)
{
    struct part *part = parts_in_flight(&core->env);

    /* Parts captured in full no longer need their trainers. */
    if (part && part_captures(part))
        run_abort(&core->env, &core->run, part->generation, CAIRN_ABORT_CANCELLED);
    run_ranks(&core->run, ranks);
    conduct_watch(core);
}

static void
take_blocks(struct cairn_core *core, const struct cairn_event_blocks *blocks)
{
    struct part *part = own_part(core, blocks->generation);

    if (part && part->state == CAIRN_PART_OPEN)
        save_blocks(&core->env, part, blocks);
}

static void
take_captured(struct cairn_core *core, const struct cairn_event_captured *captured)
{
    struct part *part = own_part(core, captured->generation);

    if (part && part->state == CAIRN_PART_OPEN && captured->rank < core->run.trainers.ranks)
        run_abort(&core->env, &core->run, captured->generation,
                  save_captured(&core->env, part, captured->rank, run_everyone(&core->run)));
}

/* ---- answers of the process ---- */

static void
take_answer(struct cairn_core *core, const struct cairn_event *event)
{
    const struct cairn_event_answer *answer = &event->as.answer;
    struct part *part = &core->parts.list[answer->part % CAIRN_PARTS_MAX];
    enum cairn_abort reason = 0;
    struct inventory_self self;

    if (event->type == CAIRN_EVENT_VERIFIED) {
        self = conduct_inventory(core);
        parts_verified(&core->env, part, answer);
        answer_progress(&core->env, &core->answering, &self);
    } else if (part->state == CAIRN_PART_REBUILDING) {
        if (event->type == CAIRN_EVENT_OPENED) /* else it is of what the slot held before */
            repair_opened(&core->env, &core->repair, part, answer);
    } else if (event->type == CAIRN_EVENT_SEALED) {
        reason = save_sealed(&core->env, part, answer);
    } else {
        reason = save_finished(&core->env, part, answer);
    }
    run_abort(&core->env, &core->run, answer->generation, reason);
}

/* ---- operators and spills ---- */

static void
ask_snapshot(struct cairn_core *core, uint64_t request)
{
    const struct cairn_generation_id none = {0};
    char text[32];

    if (!membership_acts(&core->membership) || core->run.trainers.ranks == 0) {
        env_reply(&core->env, request, CAIRN_NOT_FOUND, none, ""); /* nobody trains here */
        return;
    }
    if (core->run.begun == 0) {
        env_reply(&core->env, request, CAIRN_AGAIN, none, ""); /* the job's step is not known yet */
        return;
    }
    core->run.asked = core->run.begun + 2; /* others may be a step ahead */
    snprintf(text, sizeof text, "%" PRIu64, core->run.asked);
    env_reply(&core->env, request, CAIRN_OK, none, text);
}

static void
take_operator(struct cairn_core *core, const struct cairn_event_operator *op)
{
    struct restore_request request = {.op = *op};
    const struct cairn_generation_id none = {0};

    if (op->operation == CAIRN_OP_SNAPSHOT)
        ask_snapshot(core, op->request);
    else if (!restore_is_idle(&core->restore))
        env_reply(&core->env, op->request, CAIRN_AGAIN, none,
                  "this agent is busy with another restore or repair");
    else if (restore_start(&core->env, &core->restore, &request) != CAIRN_OK)
        env_reply(&core->env, op->request, CAIRN_NOMEM, none, "");
}

static void
take_pin(struct cairn_core *core, const struct cairn_event_pin *pin)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++)
        if (core->parts.list[i].state == CAIRN_PART_COMPLETE &&
            cairn_generation_is(core->parts.list[i].generation, pin->generation))
            core->parts.list[i].spilling = pin->keep;
}

/* ---- time ---- */

static void
tick(struct cairn_core *core)
{
    peers_tick(&core->env, &core->peers);
    restore_tick(&core->env, &core->restore);
    if (conduct_leads(core))
        leader_tick(&core->env, &core->leader);
    conduct_watch(core);
}

/* ---- events ---- */

/* The first event: a blank agent stores that it is one, before anything may overwrite a slot. */
static void
announce(struct cairn_core *core)
{
    core->announced = true;
    if (core->membership.blank)
        membership_store(&core->env);
    conduct_enter(core, false);
}

/* Those rules that a single state can violate. */
static void
check(const struct cairn_core *core)
{
    const struct parts *parts = &core->parts;
    uint32_t in_flight = 0;

    CAIRN_ASSERT(core->membership.promised >= core->membership.record.epoch);
    CAIRN_ASSERT(core->membership.self_member == UINT32_MAX || !core->membership.blank);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        const struct part *part = &parts->list[i];

        if (part->state == CAIRN_PART_FREE)
            continue;
        CAIRN_ASSERT(part->roster != NULL && part->generation.step != 0);
        CAIRN_ASSERT(part->state != CAIRN_PART_COMPLETE || part->lengths_known);
        if (part->state == CAIRN_PART_OPEN || part->state == CAIRN_PART_FINISHING) {
            CAIRN_ASSERT(i < core->options.slots && ++in_flight == 1);
            CAIRN_ASSERT(core->membership.promised == core->membership.record.epoch ||
                         CAIRN_PLANTED(&core->env, BUG_ACCEPT_OLD_EPOCH));
        }
        for (uint32_t j = i + 1; j < CAIRN_PARTS_MAX; j++)
            CAIRN_ASSERT(parts->list[j].state == CAIRN_PART_FREE ||
                         parts->list[j].member != part->member ||
                         !cairn_generation_is(parts->list[j].generation, part->generation));
    }
}

static void
dispatch(struct cairn_core *core, const struct cairn_event *event)
{
    switch (event->type) {
    case CAIRN_EVENT_TICK:
        tick(core);
        break;
    case CAIRN_EVENT_PEER_UP:
        receive_peer_up(core, &event->as.peer);
        break;
    case CAIRN_EVENT_PEER_DOWN:
        receive_peer_down(core, &event->as.peer);
        break;
    case CAIRN_EVENT_MESSAGE:
        receive(core, &event->as.message);
        break;
    case CAIRN_EVENT_RANKS:
        take_ranks(core, &event->as.ranks);
        break;
    case CAIRN_EVENT_BEGIN:
        run_begin(&core->run, &event->as.step);
        break;
    case CAIRN_EVENT_BLOCKS:
        take_blocks(core, &event->as.blocks);
        break;
    case CAIRN_EVENT_CAPTURED:
        take_captured(core, &event->as.captured);
        break;
    case CAIRN_EVENT_CANCEL:
        run_cancel(&core->env, &core->run, &event->as.step);
        break;
    case CAIRN_EVENT_SEALED:
    case CAIRN_EVENT_FINISHED:
    case CAIRN_EVENT_VERIFIED:
    case CAIRN_EVENT_OPENED:
        take_answer(core, event);
        break;
    case CAIRN_EVENT_DECODED:
        repair_decoded(&core->env, &core->repair, &event->as.decoded);
        break;
    case CAIRN_EVENT_OPERATOR:
        take_operator(core, &event->as.op);
        break;
    case CAIRN_EVENT_PIN:
        take_pin(core, &event->as.pin);
        break;
    case CAIRN_EVENT_SPILLED:
        core->spilled = event->as.pin.generation;
        break;
    }
}

void
cairn_core_step(struct cairn_core *core, const struct cairn_event *event,
                struct cairn_actions *actions)
{
    uint64_t gap_ns;

    core->env.actions = actions;
    core->env.now_ns = max_u64(core->env.now_ns, event->now_ns);
    gap_ns = peers_awake(&core->env, &core->peers);
    if (gap_ns > 0)
        restore_stood_still(&core->restore, gap_ns);
    if (!core->announced)
        announce(core);
    dispatch(core, event);
    conduct_settle(core);
    check(core);
    core->env.actions = NULL;
}
