/*
 * agent/core/epoch.c - the fence: claims, promises, inventories and the activation of a new epoch.
 *
 * An epoch is (round << 16 | claimant), so no two claimants can ever claim the same one. An agent
 * promises only epochs above all it has promised before, stores the promise, then answers; from
 * then on it is frozen: it opens nothing, votes nothing and takes nothing of an older epoch, until
 * an epoch it promised (or a higher one) is activated. Two restores at once need a majority each,
 * so they meet in one agent at least, and the lower one is refused there.
 *
 * An activation is settled when its coordinator has decided what is kept: everything else is
 * dropped then. When a restore fails after its claim, the fence is lifted by an activation that is
 * not settled: nothing is dropped, the members and the ready generation are those of the epoch
 * before, and somebody tries again. An agent that hears of an activation older than its promise
 * learns the members from it, but stays frozen, drops nothing and acknowledges nothing.
 *
 * The record (what STORE_EPOCH stores and ACTIVATE carries), little-endian: u32 version, u64
 * promised, u64 active, the ready generation, u8 from files, u8 settled, u64 forgotten before (of
 * this agent alone: not read from an ACTIVATE), u64 restart epoch (the newest that began with new
 * trainers), u8 has a ready table, that table and one u32 holder per member, the table of the
 * epoch.
 */
#include "agent/core/core_state.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EPOCH_RECORD_VERSION = 2 };

struct epoch_record {
    uint64_t promised;
    uint64_t active;
    struct cairn_generation ready;
    bool from_files;
    bool settled;
    uint64_t forgotten_before;
    uint64_t restart_epoch;
    struct cairn_roster *ready_table;
    uint32_t *holders;
    struct cairn_roster *table;
};

static void
record_fini(struct epoch_record *record)
{
    cairn_roster_drop(record->ready_table);
    cairn_roster_drop(record->table);
    free(record->holders);
}

static void
record_write(const struct epoch_record *record, struct cairn_writer *writer)
{
    cairn_write_u32(writer, EPOCH_RECORD_VERSION);
    cairn_write_u64(writer, record->promised);
    cairn_write_u64(writer, record->active);
    cairn_write_u64(writer, record->ready.epoch);
    cairn_write_u64(writer, record->ready.step);
    cairn_write_u8(writer, record->from_files);
    cairn_write_u8(writer, record->settled);
    cairn_write_u64(writer, record->forgotten_before);
    cairn_write_u64(writer, record->restart_epoch);
    cairn_write_u8(writer, record->ready_table != NULL);
    if (record->ready_table) {
        cairn_roster_write(record->ready_table, writer);
        for (uint32_t i = 0; i < record->ready_table->member_count; i++)
            cairn_write_u32(writer, record->holders[i]);
    }
    cairn_roster_write(record->table, writer);
}

static cairn_err
record_read(const uint8_t *bytes, size_t len, struct epoch_record *out)
{
    struct epoch_record record = {0};
    struct cairn_reader reader;
    cairn_err err = CAIRN_CORRUPT;

    cairn_reader_init(&reader, bytes, len);
    if (cairn_read_u32(&reader) != EPOCH_RECORD_VERSION)
        return CAIRN_VERSION;
    record.promised = cairn_read_u64(&reader);
    record.active = cairn_read_u64(&reader);
    record.ready.epoch = cairn_read_u64(&reader);
    record.ready.step = cairn_read_u64(&reader);
    record.from_files = cairn_read_u8(&reader) != 0;
    record.settled = cairn_read_u8(&reader) != 0;
    record.forgotten_before = cairn_read_u64(&reader);
    record.restart_epoch = cairn_read_u64(&reader);
    if (cairn_read_u8(&reader) != 0) {
        err = cairn_roster_read(&reader, &record.ready_table);
        if (err)
            goto done;
        record.holders = calloc(record.ready_table->member_count, sizeof(uint32_t));
        err = record.holders ? CAIRN_OK : CAIRN_NOMEM;
        for (uint32_t i = 0; !err && i < record.ready_table->member_count; i++)
            record.holders[i] = cairn_read_u32(&reader);
        if (err)
            goto done;
    }
    err = cairn_roster_read(&reader, &record.table);
    if (!err)
        err = cairn_reader_done(&reader);
    if (!err && (record.active > record.promised || record.active == 0))
        err = CAIRN_CORRUPT;
done:
    if (err)
        record_fini(&record);
    else
        *out = record;
    return err;
}

static cairn_err
record_pack(const struct epoch_record *record, uint8_t **bytes, size_t *len)
{
    struct cairn_writer writer;
    uint8_t *packed;

    cairn_writer_init(&writer, NULL, SIZE_MAX);
    record_write(record, &writer);
    packed = malloc(writer.used_bytes);
    if (!packed)
        return CAIRN_NOMEM;
    cairn_writer_init(&writer, packed, writer.used_bytes);
    record_write(record, &writer);
    *bytes = packed;
    *len = writer.used_bytes;
    return CAIRN_OK;
}

cairn_err
epoch_pack(uint64_t epoch, struct cairn_generation ready, bool from_files, bool settled,
           uint64_t restart_epoch, const struct cairn_roster *ready_table, const uint32_t *holders,
           const struct cairn_roster *table, uint8_t **bytes, size_t *len)
{
    struct epoch_record record = {.promised = epoch,
                                  .active = epoch,
                                  .ready = ready,
                                  .from_files = from_files,
                                  .settled = settled,
                                  .restart_epoch = restart_epoch,
                                  .ready_table = (struct cairn_roster *)(uintptr_t)ready_table,
                                  .holders = (uint32_t *)(uintptr_t)holders,
                                  .table = (struct cairn_roster *)(uintptr_t)table};

    return record_pack(&record, bytes, len);
}

/* What the active epoch restores from: the generation it began with, or the newest committed one
 * since. */
static cairn_err
pack_current(const struct cairn_core *core, uint8_t **bytes, size_t *len)
{
    struct epoch_record record = {.promised = core->promised,
                                  .active = core->active,
                                  .ready = core->ready,
                                  .from_files = core->ready_from_files,
                                  .settled = core->settled,
                                  .forgotten_before = core->forgotten_before,
                                  .restart_epoch = core->restart_epoch,
                                  .ready_table = core->ready_table,
                                  .holders = core->holders,
                                  .table = core->table};

    return record_pack(&record, bytes, len);
}

void
epoch_store(struct cairn_core *core)
{
    struct cairn_action *action = action_add(core, CAIRN_ACTION_STORE_EPOCH);
    uint8_t *bytes = NULL;
    size_t len = 0;

    if (!action || pack_current(core, &bytes, &len) != CAIRN_OK) {
        core->actions->failed = true;
        return;
    }
    action->bytes = bytes;
    action->bytes_len = len;
}

void
epoch_send_record(struct cairn_core *core, uint32_t to)
{
    struct cairn_message message = message_new(core, CAIRN_MSG_ACTIVATE, core->active);
    uint8_t *bytes = NULL;
    size_t len = 0;

    if (pack_current(core, &bytes, &len) != CAIRN_OK)
        return;
    message.bytes = bytes;
    message.bytes_len = (uint32_t)len;
    send_message(core, to, &message);
    free(bytes);
}

static void
adopt(struct cairn_core *core, struct epoch_record *record)
{
    cairn_roster_drop(core->ready_table);
    cairn_roster_drop(core->table);
    free(core->holders);
    core->active = record->active;
    core->ready = record->ready;
    core->ready_from_files = record->from_files;
    core->settled = record->settled;
    core->restart_epoch = record->restart_epoch;
    core->ready_table = record->ready_table;
    core->holders = record->holders;
    core->table = record->table;
    core->self_member = cairn_roster_member_of(core->table, core->options.self);
    memset(record, 0, sizeof *record);
}

cairn_err
epoch_load(struct cairn_core *core, struct cairn_bytes bytes)
{
    struct epoch_record record = {0};
    cairn_err err = record_read(bytes.bytes, bytes.len, &record);

    if (err)
        return err;
    core->promised = record.promised;
    if (record.forgotten_before > core->forgotten_before)
        core->forgotten_before = record.forgotten_before;
    adopt(core, &record);
    core->frozen = core->promised > core->active;
    core->frozen_ns = core->now_ns;
    return CAIRN_OK;
}

/* ---- promising ---- */

static void
freeze(struct cairn_core *core)
{
    core->frozen = true;
    core->frozen_ns = core->now_ns;
    rebuild_stop(core);
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];

        if (holding->state != CAIRN_HOLDING_FREE && holding->state != CAIRN_HOLDING_COMPLETE)
            holding_drop(core, holding, holding->state == CAIRN_HOLDING_OPEN);
    }
    memset(core->pending, 0, sizeof core->pending);
}

/*
 * Has every complete holding compared with its checksums, once per claim (or query) and attempt;
 * the inventory leaves when all answers are in.
 */
static void
verify_all(struct cairn_core *core, uint64_t epoch, uint64_t attempt)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];
        struct cairn_action *action;

        if (holding->state != CAIRN_HOLDING_COMPLETE ||
            (holding->verify_epoch == epoch && holding->verify_attempt == attempt))
            continue;
        holding->verified = false;
        holding->verify_epoch = epoch;
        holding->verify_attempt = attempt;
        holding->asked_verify = ++core->next_request;
        action = action_add(core, CAIRN_ACTION_VERIFY);
        if (action) {
            action->holding = i;
            action->generation = holding->generation;
            action->request = holding->asked_verify;
        }
    }
}

static void
inventory_when_verified(struct cairn_core *core)
{
    if (core->inventory_for == 0)
        return;
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        if (core->holdings[i].state == CAIRN_HOLDING_COMPLETE && !core->holdings[i].verified)
            return;
    inventory_send(core, core->inventory_to, core->inventory_for, core->inventory_request);
    core->inventory_for = 0;
}

static void
take_claim(struct cairn_core *core, const struct cairn_message *message)
{
    bool repeat = message->epoch == core->promised && core->active < core->promised &&
                  message->from == epoch_claimant(message->epoch);
    struct cairn_message answer;

    if (message->epoch <= core->promised && !repeat &&
        !(CAIRN_PLANTED(core, BUG_PROMISE_TWICE) && message->epoch > core->active)) {
        answer = message_new(core, CAIRN_MSG_REFUSE, message->epoch);
        answer.offset = core->promised;
        send_message(core, message->from, &answer);
        return;
    }
    if (!repeat) {
        core->promised = message->epoch;
        freeze(core);
        epoch_store(core);
    }
    answer = message_new(core, CAIRN_MSG_PROMISE, message->epoch);
    send_message(core, message->from, &answer);
    core->frozen_ns = core->now_ns; /* the claimant is at work */
    core->inventory_for = message->epoch;
    core->inventory_to = message->from;
    core->inventory_request = message->request;
    verify_all(core, message->epoch, message->request);
    inventory_when_verified(core);
}

/* The record beside the memory is what the next agent knows of it: this one still knows all of it,
 * and writes it anew. */
static void
mend_record(struct cairn_core *core, struct holding *holding)
{
    CAIRN_LOG_AT(ERROR,
                 "verify: damaged record epoch=%" PRIu64 " step=%" PRIu64
                 " member=%u (written anew; test this node's memory)",
                 holding->generation.epoch >> EPOCH_CLAIMANT_BITS, holding->generation.step,
                 holding->member);
    holding->record_mended = holding_store(core, holding) == CAIRN_OK;
}

void
epoch_verified(struct cairn_core *core, const struct cairn_event *event)
{
    struct holding *holding =
        event->holding < CAIRN_HOLDINGS_MAX ? &core->holdings[event->holding] : NULL;

    if (!holding || holding->state != CAIRN_HOLDING_COMPLETE ||
        !answer_is(event->request, holding->asked_verify) ||
        !generation_is(holding->generation, event->generation))
        return;
    if (event->err) { /* what could not be looked at is not verified: it is looked at again when it
                       * is asked for again */
        holding->verify_epoch = 0;
        return;
    }
    free(holding->bad);
    holding->bad = NULL;
    holding->bad_count = event->count;
    if (event->count) {
        size_t listed = event->count < BAD_BLOCKS_MAX ? event->count : BAD_BLOCKS_MAX;

        holding->bad = calloc(listed, sizeof *holding->bad);
        if (!holding->bad)
            return; /* not verified: the coordinator's deadline decides */
        memcpy(holding->bad, event->bad, listed * sizeof *holding->bad);
        for (size_t i = 0; i < listed; i++)
            holding->bad[i].position = holding->position;
        CAIRN_LOG_AT(ERROR,
                     "verify: damaged memory epoch=%" PRIu64 " step=%" PRIu64
                     " member=%u blocks=%" PRIu64 " (it will be rebuilt from the other nodes where "
                     "enough is left; test this node's memory)",
                     holding->generation.epoch >> EPOCH_CLAIMANT_BITS, holding->generation.step,
                     holding->member, event->count);
    }
    holding->record_mended = false;
    if (event->record_damaged)
        mend_record(core, holding);
    holding->verified = true;
    inventory_when_verified(core);
}

/* ---- activation ---- */

/*
 * Which of two holdings is rather kept where nothing in memory is ready. An epoch that nobody asked
 * for has found all that was made since the trainers began to be of no use; what is older is what
 * an operator may still go back to.
 */
static bool
is_better(const struct cairn_core *core, const struct holding *a, const struct holding *b)
{
    bool by_itself = core->restart_epoch < core->active;
    bool a_before = by_itself && a->generation.epoch < core->restart_epoch;
    bool b_before = by_itself && b->generation.epoch < core->restart_epoch;

    return a_before == b_before ? cairn_generation_compare(a->generation, b->generation) >= 0
                                : a_before;
}

/*
 * What must stay: the ready generation where this agent is its holder. With files, or nothing (an
 * operator wants a fresh start), the best that is there stays until the first commit, and the other
 * slots are free.
 */
static void
drop_superseded(struct cairn_core *core)
{
    bool in_memory = core->ready.step != 0 && !core->ready_from_files && core->ready_table;
    struct holding *kept = NULL;

    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];

        if (holding->state == CAIRN_HOLDING_FREE)
            continue;
        if (holding->state != CAIRN_HOLDING_COMPLETE) {
            holding_drop(core, holding, holding->state == CAIRN_HOLDING_OPEN);
            continue;
        }
        if (!core->settled)
            continue;
        if (in_memory) {
            if (!generation_is(holding->generation, core->ready) ||
                holding->member >= core->ready_table->member_count ||
                core->holders[holding->member] != core->options.self)
                holding_drop(core, holding, false);
            continue;
        }
        if (kept && !is_better(core, holding, kept)) {
            holding_drop(core, holding, false); /* one slot must be free for what comes */
            continue;
        }
        if (kept)
            holding_drop(core, kept, false);
        kept = holding;
    }
}

/* Takes the members, the ready generation and the restart epoch of a record; true when trainers
 * must start anew. */
static bool
enter(struct cairn_core *core, struct epoch_record *record)
{
    bool restart = record->restart_epoch > core->restart_epoch;

    facts_clear(core);
    tiling_clear(core);
    adopt(core, record);
    core->committed = (struct cairn_generation){0, 0};
    if (restart || core->self_member != UINT32_MAX)
        core->joins_tried = 0;
    if (restart) {
        core->last_step = 0;
        core->begun_ns = 0;
        core->step_ns = 0;
        core->passed_step = 0;
        core->is_back = false;
        due_forget(core);
        core->own_ranks = 0;
        core->own_blocks = 0;
    }
    core->first_step = 0;
    core->began_anew = false;
    core->stride_log2 = 0;
    core->given_up_in_row = 0;
    core->committed_in_row = 0;
    if (core->forgotten_before != UINT64_MAX) /* one that knows nothing may have lost its epoch too,
                                               * and have been in this one */
        core->forgotten_before = 0;
    memset(core->pending, 0, sizeof core->pending);
    return restart;
}

static void
say_activated(struct cairn_core *core, bool restart)
{
    struct cairn_action *action = action_add(core, CAIRN_ACTION_ACTIVATED);

    if (!action)
        return;
    action->generation = core->ready;
    action->restart = restart;
}

static void
activate(struct cairn_core *core, struct epoch_record *record)
{
    bool restart;

    rebuild_stop(core);
    if (record->active > core->promised)
        core->promised = record->active;
    restart = enter(core, record);
    core->frozen = core->promised > core->active;
    core->inventory_for = 0;
    epoch_store(core); /* before anything is dropped for it: a disk that refuses stops the agent
                          with all it holds */
    drop_superseded(core);
    say_activated(core, restart);
}

/* Of an epoch that a promise has overtaken: who its members are matters, what it decided does not
 * any more. */
static void
learn(struct cairn_core *core, struct epoch_record *record)
{
    bool restart = enter(core, record);

    core->settled = false;
    epoch_store(core);
    say_activated(core, restart);
}

/* Asks for the record of an epoch that was missed here. */
void
epoch_sync(struct cairn_core *core, uint32_t from)
{
    struct cairn_message message = message_new(core, CAIRN_MSG_SYNC, core->active);

    send_message(core, from, &message);
}

static void
take_activate(struct cairn_core *core, const struct cairn_message *message)
{
    struct epoch_record record = {0};
    struct cairn_message ack;

    if (message->epoch > core->active) {
        if (record_read(message->bytes, message->bytes_len, &record) != CAIRN_OK)
            return;
        if (record.active == message->epoch && message->epoch < core->promised)
            learn(core, &record);
        else if (record.active == message->epoch)
            activate(core, &record);
        record_fini(&record);
    }
    if (message->epoch != core->active || core->frozen)
        return;
    ack = message_new(core, CAIRN_MSG_ACTIVATE_ACK, message->epoch);
    send_message(core, message->from, &ack);
}

void
epoch_message(struct cairn_core *core, const struct cairn_message *message)
{
    switch (message->type) {
    case CAIRN_MSG_CLAIM:
        take_claim(core, message);
        break;
    case CAIRN_MSG_QUERY:
        if (message->row == 1 && !core->frozen) { /* verify first */
            core->inventory_for = message->epoch;
            core->inventory_to = message->from;
            core->inventory_request = message->request;
            verify_all(core, message->epoch, message->request);
            inventory_when_verified(core);
        } else {
            inventory_send(core, message->from, message->epoch, message->request);
        }
        break;
    case CAIRN_MSG_ACTIVATE:
        take_activate(core, message);
        break;
    case CAIRN_MSG_SYNC:
        epoch_send_record(core, message->from);
        break;
    default:
        break;
    }
}
