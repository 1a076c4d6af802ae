/*
 * agent/core/epoch/membership.c - promises, claims and activations; see membership.h.
 *
 * Stored (little-endian): u32 version, u64 promised, u8 blank, u8 knows, u8 has a promised roster,
 * that roster, u8 has a record, the record.
 */
#include "agent/core/epoch/membership.h"

#include <stdlib.h>
#include <string.h>

enum { STORED_VERSION = 3 };

/* A claim that is so many rounds ahead is no coordinator's. */
static const uint64_t rounds_ahead_max = UINT64_C(1) << 32;

static void
settle(struct membership *membership, const struct cairn_core_options *options)
{
    const struct record *record = &membership->record;

    membership->self_member = membership->blank || record->epoch == 0
                                  ? UINT32_MAX
                                  : cairn_roster_member_of(record->roster, options->self);
}

static cairn_err
read_stored(struct cairn_bytes stored, struct membership *out)
{
    struct cairn_reader reader;
    cairn_err err = CAIRN_OK;

    cairn_reader_init(&reader, stored.bytes, stored.len);
    if (cairn_read_u32(&reader) != STORED_VERSION)
        return CAIRN_VERSION;
    out->promised = cairn_read_u64(&reader);
    out->blank = cairn_read_u8(&reader) != 0;
    out->knows = cairn_read_u8(&reader) != 0;
    if (cairn_read_u8(&reader) != 0)
        err = cairn_roster_read(&reader, &out->promised_roster);
    if (!err && cairn_read_u8(&reader) != 0)
        err = record_read(&reader, &out->record);
    if (!err)
        err = cairn_reader_done(&reader);
    return !err && out->promised < out->record.epoch ? CAIRN_CORRUPT : err;
}

cairn_err
membership_init(struct membership *membership, const struct cairn_core_options *options,
                struct cairn_bytes stored, bool parts_dropped)
{
    cairn_err err;

    memset(membership, 0, sizeof *membership);
    membership->blank = true;
    if (stored.len > 0) {
        err = read_stored(stored, membership);
        if (err) {
            membership_fini(membership);
            return err;
        }
        if ((options->memory_is_new && !CAIRN_PLANTED_IN(options, BUG_FORGETFUL_MEMBER)) ||
            parts_dropped)
            membership->blank = true;
    }
    membership->ready = membership->record.ready;
    membership->ready_from_files = membership->record.ready_from_files;
    settle(membership, options);
    return CAIRN_OK;
}

void
membership_fini(struct membership *membership)
{
    record_fini(&membership->record);
    cairn_roster_drop(membership->promised_roster);
    memset(membership, 0, sizeof *membership);
}

static void
write_stored(const struct membership *membership, struct cairn_writer *writer)
{
    cairn_write_u32(writer, STORED_VERSION);
    cairn_write_u64(writer, membership->promised);
    cairn_write_u8(writer, membership->blank);
    cairn_write_u8(writer, membership->knows);
    cairn_write_u8(writer, membership->promised_roster != NULL);
    if (membership->promised_roster)
        cairn_roster_write(membership->promised_roster, writer);
    cairn_write_u8(writer, membership->record.epoch != 0);
    if (membership->record.epoch != 0)
        record_write(&membership->record, writer);
}

void
membership_store(struct env *env)
{
    struct cairn_action *action = env_act(env, CAIRN_ACTION_STORE_EPOCH);
    struct cairn_writer writer;
    uint8_t *bytes;

    cairn_writer_init(&writer, NULL, SIZE_MAX);
    write_stored(env->membership, &writer);
    bytes = env_keep(env, action, NULL, writer.used_bytes);
    if (!bytes)
        return;
    cairn_writer_init(&writer, bytes, writer.used_bytes);
    write_stored(env->membership, &writer);
    action->as.store = (struct cairn_action_store){.bytes = bytes, .bytes_len = writer.used_bytes};
}

/* ---- positions ---- */

void
membership_send_position(struct env *env, uint32_t to)
{
    struct cairn_message message = epoch_message(env, CAIRN_MSG_POSITION);

    message.as.position.incarnation = env->options->incarnation;
    message.as.position.promised = env->membership->promised;
    message.as.position.blank = env->membership->blank;
    message.as.position.knows = env->membership->knows;
    env_send(env, to, &message);
}

void
membership_send_activate(struct env *env, uint32_t to)
{
    struct cairn_message message = epoch_message(env, CAIRN_MSG_ACTIVATE);
    uint8_t *bytes = NULL;
    size_t len = 0;

    if (env->membership->record.epoch == 0 ||
        record_pack(&env->membership->record, &bytes, &len) != CAIRN_OK)
        return;
    message.bytes = bytes;
    message.bytes_len = (uint32_t)len;
    env_send(env, to, &message);
    free(bytes);
}

/* ---- claims ---- */

/* R9: the record names everyone as this agent knows them, and this agent as it is now. */
static bool
is_current(const struct env *env, uint64_t version, const struct record *record)
{
    const struct record_seen *self;

    if (CAIRN_PLANTED(env, BUG_STALE_CLAIM))
        return true;
    if (record->agent_count != env->options->agent_count)
        return false;
    self = &record->seen[env->options->self];
    if (self->incarnation != env->options->incarnation || self->version != version)
        return false;
    for (uint32_t a = 0; a < record->agent_count; a++)
        if (record->seen[a].incarnation != 0 && peers_met(env, a) > record->seen[a].incarnation)
            return false;
    return true;
}

static bool
is_absurd(const struct membership *membership, uint64_t epoch)
{
    return epoch >> EPOCH_CLAIMANT_BITS >
           (membership->promised >> EPOCH_CLAIMANT_BITS) + rounds_ahead_max;
}

static cairn_err
judge_claim(const struct env *env, const struct membership *membership, uint64_t version,
            const struct cairn_message *message, struct record *record)
{
    struct cairn_reader reader;
    cairn_err err;

    if (epoch_claimant(message->epoch) != message->from || is_absurd(membership, message->epoch))
        return CAIRN_INVAL;
    if (message->epoch <= membership->promised &&
        !(CAIRN_PLANTED(env, BUG_PROMISE_TWICE) && message->epoch > membership->record.epoch))
        return CAIRN_STALE;
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    err = record_read(&reader, record);
    if (!err)
        err = cairn_reader_done(&reader);
    if (!err && record->epoch != message->epoch)
        err = CAIRN_CORRUPT;
    if (!err && !is_current(env, version, record))
        err = CAIRN_AGAIN;
    return err;
}

bool
membership_claim(struct env *env, struct membership *membership, uint64_t version,
                 const struct cairn_message *message)
{
    struct cairn_message answer = env_message(env, CAIRN_MSG_PROMISE, message->epoch);
    struct record record = {0};
    cairn_err err = judge_claim(env, membership, version, message, &record);

    if (!err) {
        membership->promised = message->epoch;
        membership->promised_ns = env->now_ns;
        membership->knows = true;
        cairn_roster_drop(membership->promised_roster);
        membership->promised_roster = cairn_roster_hold(record.roster);
        membership_store(env);
    }
    answer.as.promise.attempt = message->as.claim.attempt;
    answer.as.promise.err = (uint32_t)err;
    answer.as.promise.promised = membership->promised;
    env_send(env, message->from, &answer);
    record_fini(&record);
    return !err;
}

/* ---- activation ---- */

/* The record admits this start of a blank agent: its coordinator has seen that it is blank. */
static bool
admits(const struct env *env, const struct record *record)
{
    return env->options->self < record->agent_count &&
           record->seen[env->options->self].incarnation == env->options->incarnation;
}

enum activation
membership_activate(struct env *env, struct membership *membership,
                    const struct cairn_message *message)
{
    struct record record = {0};
    struct cairn_reader reader;
    bool restart;

    if (message->epoch <= membership->record.epoch || is_absurd(membership, message->epoch))
        return ACTIVATION_NONE;
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    if (record_read(&reader, &record) != CAIRN_OK)
        return ACTIVATION_NONE;
    if (cairn_reader_done(&reader) != CAIRN_OK || record.epoch != message->epoch ||
        epoch_claimant(record.epoch) >= env->options->agent_count) {
        record_fini(&record);
        return ACTIVATION_NONE;
    }
    restart = record.restart_epoch > membership->record.restart_epoch;
    record_fini(&membership->record);
    membership->record = record;
    membership->promised = max_u64(membership->promised, record.epoch);
    if (membership->promised == record.epoch) {
        cairn_roster_drop(membership->promised_roster);
        membership->promised_roster = NULL;
    }
    membership->blank &= !admits(env, &membership->record);
    membership->ready = record.ready;
    membership->ready_from_files = record.ready_from_files;
    membership->ready_is_own = false;
    settle(membership, env->options);
    membership_store(env);
    return restart ? ACTIVATION_RESTART : ACTIVATION_NEW;
}

/* ---- what a restore gets ---- */

void
membership_committed(struct membership *membership, struct cairn_generation_id generation)
{
    membership->ready = generation;
    membership->ready_from_files = false;
    membership->ready_is_own = true;
}

const struct cairn_roster *
membership_ready_roster(const struct membership *membership)
{
    if (membership->ready.step == 0 || membership->ready_from_files)
        return NULL;
    return membership->ready_is_own ? membership->record.roster : membership->record.ready_roster;
}

uint32_t
membership_holder(const struct membership *membership, uint32_t member)
{
    const struct cairn_roster *roster = membership_ready_roster(membership);

    if (!roster || member >= roster->member_count)
        return UINT32_MAX;
    return membership->ready_is_own ? roster->members[member].agent
                                    : membership->record.holders[member];
}
