/*
 * agent/core/restore/ask.h - a coordinator's questions: one round of ASK after the other, and what
 * the agents have answered.
 *
 * The first round of an attempt asks everyone; later ones ask those that answered it. Each round
 * has one deadline. The coordinator ignores an agent that misses that of a later round, until the
 * restore ends or another epoch begins.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_ASK_H
#define CAIRN_AGENT_CORE_RESTORE_ASK_H

#include "agent/core/restore/inventory.h"
#include "agent/core/epoch/peers.h"

struct ask {
    uint32_t agent_count;
    uint64_t number; /* of the round: an INVENTORY repeats it */
    enum cairn_ask mode;
    struct cairn_generation_id generation;
    uint64_t epoch;                /* of the coordinator */
    bool everyone;                 /* the first round */
    uint64_t pinned;               /* number of the newest round that pinned; 0: none */
    uint64_t *answered;            /* bitset: in this round */
    uint64_t *ignored;             /* bitset */
    struct cairn_roster *common;   /* the roster of the newest answer: most answers share it */
    struct inventory *inventories; /* [agent_count]: the newest answers */
};

CAIRN_MUST_CHECK cairn_err ask_init(struct ask *ask, uint32_t agent_count);
void ask_fini(struct ask *ask);
/* Asks everyone, and forgets earlier answers. LIST or VERIFY_ALL. */
void ask_everyone(struct env *env, struct ask *ask, uint64_t epoch, enum cairn_ask mode);
/* Asks those that are known. LIST also tells them who has forgotten its promises. */
void ask_known(struct env *env, struct ask *ask, enum cairn_ask mode,
               struct cairn_generation_id generation);
/* Asks an agent whose session begins, unless it has answered. */
void ask_peer_up(struct env *env, struct ask *ask, uint32_t agent);
/* Takes an INVENTORY; false: it is not of this round, or absurd. `promised`: the own promise. */
bool ask_take(struct ask *ask, uint64_t promised, const struct cairn_message *message);
/* Forgets the answer of an agent. */
void ask_forget(struct ask *ask, uint32_t agent);
/* True if all that are waited for have answered: those that may be alive; with `newcomers` also
 * every agent that is no spare, even if others take it for dead. */
bool ask_is_answered(const struct env *env, const struct ask *ask, const struct peers *peers,
                     bool newcomers);
/* Ignores the agents whose answer to this round is missing. */
void ask_ignore_silent(struct ask *ask);
/* Ends all pins. */
void ask_release(struct env *env, const struct ask *ask);

uint32_t ask_count(const struct ask *ask);     /* of known agents */
uint32_t ask_forgotten(const struct ask *ask); /* of known agents that forgot their promises */
/* True if all agents are known; configured spares count only with `spares`. */
bool ask_knows_all(const struct env *env, const struct ask *ask, bool spares);
/* Appends "no answer from agents …" to text, if there are such. */
void ask_name_silent(const struct ask *ask, char *text, size_t text_bytes);

#endif
