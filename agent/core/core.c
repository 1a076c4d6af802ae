/*
 * agent/core/core.c - puts the parts of the protocol together: creation, dispatch, and core_check,
 * which runs after every event.
 */
#include "agent/core/core_state.h"

#include <stdlib.h>
#include <string.h>

/* Round 1, claimed by nobody: what every agent of a new job starts with. */
static const uint64_t first_epoch = (UINT64_C(1) << EPOCH_CLAIMANT_BITS) | 0xffff;

static cairn_err
copy_options(struct cairn_core *core, const struct cairn_core_options *options)
{
    uint32_t n = options->agent_count;

    core->options = *options;
    core->domains = calloc(n, sizeof *core->domains);
    core->spares = calloc(n, sizeof *core->spares);
    core->peers = calloc(n, sizeof *core->peers);
    if (!core->domains || !core->spares || !core->peers)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        core->spares[i] = options->spares && options->spares[i];
        if (!options->domains || !options->domains[i])
            continue;
        core->domains[i] = strdup(options->domains[i]);
        if (!core->domains[i])
            return CAIRN_NOMEM;
    }
    core->options.domains = NULL;
    core->options.spares = NULL;
    return CAIRN_OK;
}

static cairn_err
first_table(struct cairn_core *core)
{
    uint32_t *agents = calloc(core->options.agent_count, sizeof *agents);
    const char **domains = calloc(core->options.agent_count, sizeof *domains);
    uint32_t count = 0;
    cairn_err err = agents && domains ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t i = 0; !err && i < core->options.agent_count; i++)
        if (!core->spares[i]) {
            agents[count] = i;
            domains[count++] = core->domains[i];
        }
    if (!err && count == 0)
        err = CAIRN_INVAL;
    if (!err)
        err = cairn_roster_build(agents, domains, count,
                                 core->options.parity < count ? core->options.parity : count - 1,
                                 core->options.group_size, &core->table);
    if (!err)
        core->self_member = cairn_roster_member_of(core->table, core->options.self);
    core->promised = first_epoch;
    core->active = first_epoch;
    core->restart_epoch = first_epoch;
    core->settled = true;
    free(agents);
    free(domains);
    return err;
}

static bool
options_valid(const struct cairn_core_options *options)
{
    return options->agent_count >= 1 && options->agent_count <= CAIRN_NODES_MAX &&
           options->self < options->agent_count && options->slots >= 2 &&
           options->slots <= CAIRN_OWN_SLOTS_MAX && options->group_size >= 1 &&
           options->group_size <= CAIRN_SHARDS_MAX && options->parity < CAIRN_SHARDS_MAX &&
           options->heartbeat_interval_ns > 0 && options->resend_after_ns > 0;
}

cairn_err
cairn_core_create(const struct cairn_core_options *options, uint64_t now_ns,
                  struct cairn_bytes epoch_record,
                  const struct cairn_bytes records[CAIRN_HOLDINGS_MAX], uint32_t *dropped,
                  struct cairn_core **out)
{
    struct cairn_core *core;
    cairn_err err;

    if (!options_valid(options))
        return CAIRN_INVAL;
    core = calloc(1, sizeof *core);
    if (!core)
        return CAIRN_NOMEM;
    core->now_ns = now_ns;
    core->started_ns = now_ns;
    core->next_request = options->incarnation
                         << 20; /* answers to an earlier start are not taken for ours */
    core->forgotten_before = options->memory_is_new ? UINT64_MAX : 0;
    err = copy_options(core, options);
    if (!err)
        err = epoch_record.len ? epoch_load(core, epoch_record) : first_table(core);
    core->is_back = !err && core->active != 0 && epoch_record.len != 0;
    *dropped = 0;
    for (uint32_t i = 0; !err && records && i < CAIRN_HOLDINGS_MAX; i++) {
        if (records[i].len == 0)
            continue;
        if (holding_load(core, i, records[i]) != CAIRN_OK)
            (*dropped)++;
    }
    if (*dropped > 0)
        core->forgotten_before = UINT64_MAX;
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
    if (!core)
        return;
    for (uint32_t i = 0; core->restore.inventories && i < core->options.agent_count; i++)
        inventory_fini(&core->restore.inventories[i]);
    restore_fini(&core->restore);
    for (uint32_t w = 0; w < core->repair.worker_count; w++) {
        free(core->repair.workers[w].bad);
        free(core->repair.workers[w].pushes);
    }
    cairn_roster_drop(core->repair.table);
    free(core->repair.holders);
    free(core->repair.targets);
    free(core->repair.bad);
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        if (core->holdings[i].state != CAIRN_HOLDING_FREE)
            holding_fini(&core->holdings[i]);
    if (core->table)
        facts_clear(core);
    tiling_fini(core);
    cairn_roster_drop(core->table);
    cairn_roster_drop(core->ready_table);
    free(core->holders);
    for (uint32_t i = 0; core->domains && i < core->options.agent_count; i++)
        free(core->domains[i]);
    free(core->domains);
    free(core->spares);
    free(core->peers);
    free(core);
}

/* Asserts the part of core.h's invariants that one state can show. */
static void
core_check(const struct cairn_core *core)
{
    CAIRN_ASSERT(core->promised >= core->active);
    CAIRN_ASSERT(core->active != 0);
    CAIRN_ASSERT(core->table != NULL);
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        const struct holding *holding = &core->holdings[i];

        if (holding->state == CAIRN_HOLDING_FREE)
            continue;
        CAIRN_ASSERT(holding->table != NULL);
        CAIRN_ASSERT(holding->generation.step != 0);
        if (holding->state == CAIRN_HOLDING_COMPLETE || holding->state == CAIRN_HOLDING_FINISHING)
            CAIRN_ASSERT(holding->lengths_known);
        if (holding->state == CAIRN_HOLDING_OPEN)
            CAIRN_ASSERT((!core->frozen || CAIRN_PLANTED(core, BUG_ACCEPT_OLD_EPOCH)) &&
                         i < core->options.slots);
        for (uint32_t j = i + 1; j < CAIRN_HOLDINGS_MAX; j++)
            CAIRN_ASSERT(core->holdings[j].state == CAIRN_HOLDING_FREE ||
                         core->holdings[j].member != holding->member ||
                         !generation_is(core->holdings[j].generation, holding->generation));
    }
}

/* Says again what adopted memory holds, and lets go of what a stored activation has superseded. */
static void
announce(struct cairn_core *core)
{
    core->announced = true;
    if (core->forgotten_before)
        epoch_store(core); /* the next start must know it too */
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];

        if (holding->state != CAIRN_HOLDING_COMPLETE)
            continue;
        if (holding->generation.epoch < core->active && core->settled && core->ready.step != 0 &&
            !core->ready_from_files && !generation_is(holding->generation, core->ready)) {
            holding_drop(core, holding, false);
        } else if (holding->generation.epoch == core->active &&
                   holding->member == core->self_member) {
            facts_vote(core, holding->generation, true);
            save_resume(core, holding);
        }
    }
}

static void
tick(struct cairn_core *core)
{
    liveness_tick(core);
    save_tick(core);
    facts_tick(core);
    tiling_tick(core);
    rebuild_tick(core);
    restore_tick(core);
}

static void
dispatch_message(struct cairn_core *core, const struct cairn_event *event)
{
    const struct cairn_message *message = event->message;

    if (message->from >= core->options.agent_count || message->to != core->options.self)
        return;
    liveness_spoke(core, message->from);
    switch (message->type) {
    case CAIRN_MSG_HEARTBEAT:
        liveness_message(core, message);
        break;
    case CAIRN_MSG_DATA:
        parity_data(core, message, event->payload_ok);
        break;
    case CAIRN_MSG_DATA_ACK:
        save_data_ack(core, message);
        break;
    case CAIRN_MSG_SEAL:
        seal_message(core, message);
        break;
    case CAIRN_MSG_SEAL_ACK:
        seal_ack(core, message);
        break;
    case CAIRN_MSG_FACTS:
        facts_message(core, message);
        break;
    case CAIRN_MSG_OPENED:
        again_message(core, message);
        break;
    case CAIRN_MSG_LAYOUT_ASK:
    case CAIRN_MSG_LAYOUT:
    case CAIRN_MSG_TILED:
        tiling_message(core, message);
        break;
    case CAIRN_MSG_CLAIM:
    case CAIRN_MSG_QUERY:
    case CAIRN_MSG_ACTIVATE:
    case CAIRN_MSG_SYNC:
        epoch_message(core, message);
        break;
    case CAIRN_MSG_REBUILD:
    case CAIRN_MSG_READ:
    case CAIRN_MSG_BLOCKS:
    case CAIRN_MSG_WRITE:
    case CAIRN_MSG_WRITE_ACK:
        rebuild_message(core, message, event->payload_ok);
        break;
    default:
        restore_message(core, message);
        break;
    }
}

static void
take_pin(struct cairn_core *core, const struct cairn_event *event)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        if (core->holdings[i].state == CAIRN_HOLDING_COMPLETE &&
            generation_is(core->holdings[i].generation, event->generation))
            core->holdings[i].pinned = event->count != 0;
    if (event->count == 0) {
        facts_retain(core);
        save_grant_pending(core);
    }
}

void
cairn_core_step(struct cairn_core *core, const struct cairn_event *event,
                struct cairn_actions *actions)
{
    core->actions = actions;
    if (event->now_ns > core->now_ns)
        core->now_ns = event->now_ns;
    liveness_awake(core);
    if (!core->announced) /* before anything may overwrite a slot: what was damaged there must be
                           * known first */
        announce(core);
    switch (event->type) {
    case CAIRN_EVENT_TICK:
        tick(core);
        break;
    case CAIRN_EVENT_MESSAGE:
        dispatch_message(core, event);
        break;
    case CAIRN_EVENT_RANKS:
        save_ranks(core, event);
        break;
    case CAIRN_EVENT_BEGIN:
        save_begin(core, event);
        break;
    case CAIRN_EVENT_BLOCKS:
        save_blocks(core, event);
        break;
    case CAIRN_EVENT_DONE:
        save_done(core, event);
        break;
    case CAIRN_EVENT_CANCEL:
        save_cancel(core, event);
        break;
    case CAIRN_EVENT_SEALED:
        save_sealed(core, event);
        break;
    case CAIRN_EVENT_FINISHED:
        parity_finished(core, event);
        break;
    case CAIRN_EVENT_VERIFIED:
        epoch_verified(core, event);
        break;
    case CAIRN_EVENT_DECODED:
        rebuild_decoded(core, event->item);
        break;
    case CAIRN_EVENT_OPENED:
        rebuild_opened(core, event);
        break;
    case CAIRN_EVENT_OPERATOR:
        restore_operator(core, event);
        break;
    case CAIRN_EVENT_PIN:
        take_pin(core, event);
        break;
    case CAIRN_EVENT_CONNECTED:
        again_connected(core, event->agent);
        break;
    case CAIRN_EVENT_SPILLED:
        if (cairn_generation_compare(event->generation, core->spilled) > 0)
            core->spilled = event->generation;
        break;
    }
    core_check(core);
    core->actions = NULL;
}

/* ---- looking ---- */

void
cairn_core_look(const struct cairn_core *core, struct cairn_core_view *out)
{
    *out = (struct cairn_core_view){.promised = core->promised,
                                    .active = core->active,
                                    .ready = core->ready,
                                    .ready_from_files = core->ready_from_files,
                                    .committed = core->committed,
                                    .table = core->table,
                                    .ready_table = core->ready_table,
                                    .restart_epoch = core->restart_epoch,
                                    .settled = core->settled,
                                    .self_member = core->self_member,
                                    .last_step = core->last_step,
                                    .met = core->options.agent_count == 1 ||
                                           (core->heard && core->epoch_heard <= core->active) ||
                                           core->now_ns - core->started_ns >
                                               2 * core->options.dead_after_ns,
                                    .frozen = core->frozen,
                                    .busy = core->restore.state != RESTORE_IDLE,
                                    .refusal = core->tiling.refusal};
}

bool
cairn_core_look_holding(const struct cairn_core *core, uint32_t holding_index_wanted,
                        struct cairn_holding_view *out)
{
    const struct holding *holding;
    const struct seal *seal;

    if (holding_index_wanted >= CAIRN_HOLDINGS_MAX)
        return false;
    holding = &core->holdings[holding_index_wanted];
    if (holding->state == CAIRN_HOLDING_FREE)
        return false;
    seal = &holding->seals[holding->position];
    *out = (struct cairn_holding_view){
        .state = holding->state,
        .generation = holding->generation,
        .member = holding->member,
        .memory = holding->memory,
        .committed = holding->state == CAIRN_HOLDING_COMPLETE &&
                     (generation_is(holding->generation, core->committed) ||
                      generation_is(holding->generation, core->ready)),
        .data_blocks = holding->data_blocks,
        .bad_blocks = holding->bad_count,
        .record_mended = holding->record_mended,
        .table = holding->table,
        .stripes = holding->lengths_known ? &holding->stripes : NULL,
        .position = holding->position,
        .manifest = seal->whole ? seal->manifest : NULL,
        .manifest_len = seal->whole ? seal->manifest_len : 0,
        .block_crcs = seal->whole ? seal->crcs : NULL,
        .parity_crcs = (const uint64_t *const *)holding->parity_crcs};
    return true;
}

bool
cairn_core_alive(const struct cairn_core *core, uint32_t agent)
{
    return agent_alive(core, agent);
}

uint32_t
cairn_core_holder(const struct cairn_core *core, struct cairn_generation generation,
                  uint32_t member)
{
    if (!core->ready_table || !generation_is(generation, core->ready) ||
        member >= core->ready_table->member_count)
        return UINT32_MAX;
    return core->holders[member];
}

uint32_t
cairn_core_ready_members(const struct cairn_core *core)
{
    return core->ready_table && !core->ready_from_files && core->ready.step
               ? core->ready_table->member_count
               : 0;
}

const uint8_t *
cairn_core_peer_manifest(const struct cairn_core *core, uint32_t holding_index_wanted,
                         uint32_t member, size_t *len)
{
    const struct holding *holding;
    const struct seal *seal;

    if (holding_index_wanted >= CAIRN_HOLDINGS_MAX)
        return NULL;
    holding = &core->holdings[holding_index_wanted];
    if (holding->state != CAIRN_HOLDING_COMPLETE || member >= holding->table->member_count ||
        holding->table->members[member].group != holding->table->members[holding->member].group)
        return NULL;
    seal = &holding->seals[holding->table->members[member].position];
    if (!seal->whole)
        return NULL;
    *len = seal->manifest_len;
    return seal->manifest;
}

const struct cairn_outcome *
cairn_core_outcome(const struct cairn_core *core)
{
    return &core->outcome;
}

uint64_t
cairn_core_deadline(const struct cairn_core *core)
{
    uint64_t interval =
        min_u64(core->options.heartbeat_interval_ns, core->options.resend_after_ns / 2 + 1);

    return core->now_ns + interval;
}
