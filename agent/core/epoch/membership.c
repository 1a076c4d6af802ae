/*
 * agent/core/epoch/membership.c - promises, claims and activations; see membership.h.
 *
 * Stored (little-endian): u32 version, u64 promised, u8 blank, u8 knows, u8 has a promised roster,
 * that roster, u8 has a record, the record.
 */
#include "agent/core/epoch/membership.h"

#include "agent/core/epoch/send.h"

#include <stdlib.h>
#include <string.h>

enum { STORED_VERSION = 3 };

static void
settle(struct membership *membership, const struct cairn_core_options *options)
{
    const struct record *record = &membership->record;

    membership->self_member = membership->blank || record->epoch == 0
                                  ? UINT32_MAX
                                  : cairn_roster_member_of(record->roster, options->self);
}

static void
code_stored(struct cairn_codec *codec, void *value)
{
    struct membership *membership = value;
    uint32_t version = STORED_VERSION;
    bool has_record = membership->record.epoch != 0;

    cairn_codec_u32(codec, &version);
    if (version != STORED_VERSION)
        codec->err = CAIRN_VERSION;
    cairn_codec_u64(codec, &membership->promised);
    cairn_codec_bool(codec, &membership->blank);
    cairn_codec_bool(codec, &membership->knows);
    cairn_roster_code_optional(codec, &membership->promised_roster);
    cairn_codec_bool(codec, &has_record);
    if (has_record)
        record_code(codec, &membership->record);
    cairn_codec_check(codec, membership->promised >= membership->record.epoch);
}

cairn_err
membership_init(struct membership *membership, const struct cairn_core_options *options,
                struct cairn_bytes stored, bool parts_dropped)
{
    cairn_err err;

    memset(membership, 0, sizeof *membership);
    membership->blank = true;
    if (stored.len > 0) {
        err = cairn_codec_unpack(code_stored, membership, stored.bytes, stored.len);
        if (err) {
            membership_fini(membership);
            return err;
        }
        if ((options->memory_is_new && !CAIRN_PLANTED_IN(options, BUG_FORGETFUL_MEMBER)) ||
            parts_dropped)
            membership->blank = true;
    }
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

void
membership_store(struct env *env)
{
    struct cairn_action *action = env_act(env, CAIRN_ACTION_STORE_EPOCH);
    size_t len;

    action->as.store.bytes = env_pack(env, action, code_stored, env->membership, &len);
    action->as.store.bytes_len = len;
}

/* ---- positions ---- */

void
membership_send_position(struct env *env, uint32_t to)
{
    struct cairn_message message = epoch_message(env, CAIRN_MSG_POSITION);

    message.as.position.promised = env->membership->promised;
    env_send(env, to, &message);
}

void
membership_send_activate(struct env *env, uint32_t to)
{
    struct cairn_message message = epoch_message(env, CAIRN_MSG_ACTIVATE);

    if (env->membership->record.epoch != 0)
        env_send_packed(env, to, &message, record_code, &env->membership->record);
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

bool
membership_believes(const struct membership *membership, uint64_t epoch)
{
    const uint64_t rounds_ahead_max = UINT64_C(1) << 42; /* of 2^48; see next_epoch in claim.c */

    return epoch >> EPOCH_CLAIMANT_BITS <=
           (membership->promised >> EPOCH_CLAIMANT_BITS) + rounds_ahead_max;
}

static cairn_err
judge_claim(const struct env *env, const struct membership *membership, uint64_t version,
            const struct cairn_message *message, struct record *record)
{
    cairn_err err;

    if (epoch_claimant(message->epoch) != message->from ||
        !membership_believes(membership, message->epoch))
        return CAIRN_INVAL;
    if (message->epoch <= membership->promised &&
        !(CAIRN_PLANTED(env, BUG_PROMISE_TWICE) && message->epoch > membership->record.epoch))
        return CAIRN_STALE;
    err = record_read(message->bytes, message->bytes_len, record);
    if (!err && record->epoch != message->epoch)
        err = CAIRN_CORRUPT;
    if (!err && !is_current(env, version, record))
        err = CAIRN_AGAIN;
    return err;
}

bool
membership_claim(struct env *env, struct membership *membership, struct peers *peers,
                 uint64_t version, const struct cairn_message *message)
{
    struct cairn_message answer = env_message(env, CAIRN_MSG_PROMISE, message->epoch);
    struct record record = {0};
    cairn_err err = judge_claim(env, membership, version, message, &record);

    if (!err) {
        membership->promised = message->epoch;
        membership->knows |= CAIRN_PLANTED(env, BUG_KNOWS_EARLY) && membership->record.epoch != 0;
        cairn_roster_drop(membership->promised_roster);
        membership->promised_roster = cairn_roster_hold(record.roster);
        membership_store(env);
        for (uint32_t a = 0; a < record.agent_count; a++)
            peers_meet(peers, a, record.seen[a].incarnation);
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
    bool restart;

    if (message->epoch <= membership->record.epoch ||
        !membership_believes(membership, message->epoch))
        return ACTIVATION_NONE;
    if (record_read(message->bytes, message->bytes_len, &record) != CAIRN_OK)
        return ACTIVATION_NONE;
    if (record.epoch != message->epoch ||
        epoch_claimant(record.epoch) >= env->options->agent_count) {
        record_fini(&record);
        return ACTIVATION_NONE;
    }
    restart = record.restart_epoch > membership->record.restart_epoch;
    record_fini(&membership->record);
    membership->record = record;
    /* R10: half of the others have promised it too, and refuse what this agent has forgotten. */
    membership->knows |= membership->promised == record.epoch;
    membership->promised = max_u64(membership->promised, record.epoch);
    if (membership->promised == record.epoch) {
        cairn_roster_drop(membership->promised_roster);
        membership->promised_roster = NULL;
    }
    membership->blank &= !admits(env, &membership->record);
    membership->committed = (struct cairn_generation_id){0};
    settle(membership, env->options);
    membership_store(env);
    return restart ? ACTIVATION_RESTART : ACTIVATION_NEW;
}

/* ---- what a restore gets ---- */

const struct cairn_roster *
membership_ready_roster(const struct membership *membership)
{
    return membership->committed.step != 0 ? membership->record.roster
                                           : membership->record.ready_roster;
}

uint32_t
membership_holder(const struct membership *membership, uint32_t member)
{
    const struct cairn_roster *roster = membership_ready_roster(membership);

    if (!roster || member >= roster->member_count)
        return UINT32_MAX;
    return membership->committed.step != 0 ? roster->members[member].agent
                                           : membership->record.holders[member];
}
