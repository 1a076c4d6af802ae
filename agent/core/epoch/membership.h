/*
 * agent/core/epoch/membership.h - the epoch that this agent is in, and what it has promised.
 *
 * Rules kept here: R1 (numbers grow, stored before anyone hears), R4 (membership_acts is false from
 * a promise to the activation), R9 (membership_claim refuses what does not match what this agent
 * knows).
 *
 * An agent is blank when its memory is new, its stored epoch is gone, or a part's record is
 * damaged: it is not a member until an epoch admits it. If the stored epoch is gone, it does not
 * know what it promised (`knows` is false) until an epoch begins that it has promised: enough
 * others have promised that, too, and so have met this incarnation (R10, claim.h).
 */
#ifndef CAIRN_AGENT_CORE_EPOCH_MEMBERSHIP_H
#define CAIRN_AGENT_CORE_EPOCH_MEMBERSHIP_H

#include "agent/core/env/env.h"
#include "agent/core/epoch/peers.h"
#include "agent/core/epoch/record.h"

struct membership {
    uint64_t promised;
    struct record record; /* of the active epoch; epoch 0: none yet */
    uint32_t self_member; /* UINT32_MAX: none; also of a blank agent */
    bool blank;
    bool knows;                           /* what it has promised */
    struct cairn_roster *promised_roster; /* of the promised record, until an epoch is activated */
    struct cairn_generation_id committed; /* newest of the epoch; step 0: none */
};

CAIRN_MUST_CHECK cairn_err membership_init(struct membership *membership,
                                           const struct cairn_core_options *options,
                                           struct cairn_bytes stored, bool parts_dropped);
void membership_fini(struct membership *membership);
/* Adds a STORE_EPOCH. */
void membership_store(struct env *env);

/* True if this agent may act under the active epoch: it is a member, and has promised no newer. */
static inline bool
membership_acts(const struct membership *membership)
{
    return membership->self_member != UINT32_MAX &&
           membership->promised == membership->record.epoch;
}

/* A newer epoch is promised, and not active yet. */
static inline bool
membership_fenced(const struct membership *membership)
{
    return membership->promised > membership->record.epoch;
}

/* A message of the active epoch. */
static inline struct cairn_message
epoch_message(const struct env *env, enum cairn_message_kind kind)
{
    return env_message(env, kind, env->membership->record.epoch);
}

void membership_send_position(struct env *env, uint32_t to);
void membership_send_activate(struct env *env, uint32_t to);

/* False for an epoch so many rounds ahead that no coordinator can have reached it. */
bool membership_believes(const struct membership *membership, uint64_t epoch);
/*
 * Takes a CLAIM, stores and answers. Returns true if it was promised: what is open under the old
 * epoch must be dropped. `version` is that of this agent's parts now.
 */
bool membership_claim(struct env *env, struct membership *membership, struct peers *peers,
                      uint64_t version, const struct cairn_message *message);

enum activation {
    ACTIVATION_NONE = 0, /* old, known, or not a record */
    ACTIVATION_NEW,      /* trainers go on */
    ACTIVATION_RESTART   /* with new trainers */
};
/* Takes an ACTIVATE and stores. */
enum activation membership_activate(struct env *env, struct membership *membership,
                                    const struct cairn_message *message);

/* What a restore gets: the newest that is committed, or what the epoch began with. */
static inline struct cairn_generation_id
membership_ready(const struct membership *membership)
{
    return membership->committed.step != 0 ? membership->committed : membership->record.ready;
}

/* It lies in files. */
static inline bool
membership_ready_from_files(const struct membership *membership)
{
    return membership->committed.step == 0 && membership->record.ready_from_files;
}

/* Its roster, NULL if it is not in memory; and who holds a member's part. */
const struct cairn_roster *membership_ready_roster(const struct membership *membership);
uint32_t membership_holder(const struct membership *membership, uint32_t member);

#endif
