/*
 * agent/core/restore/claim.h - the end of a restore: the record of the new epoch, the promises for
 * it, and its activation.
 *
 * Every agent whose inventory is known gets the claim, and all of them must promise it. An agent
 * that forgot its promises may be asked only if no older claim can use what it forgot: half of all
 * agents, rounded up, answered from memory (each older majority includes one of them, and it has
 * met the new incarnation before it answered, or told of that older promise), or a majority has
 * forgotten, which is a first start. Otherwise it is not asked and is missing from the majority.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_CLAIM_H
#define CAIRN_AGENT_CORE_RESTORE_CLAIM_H

#include "agent/core/restore/choose.h"
#include "agent/core/epoch/membership.h"
#include "agent/core/repair/repair.h"
#include "agent/core/restore/ask.h"

/* Why and from what an epoch is made. */
struct claim_basis {
    const struct membership *membership;
    const struct ask *ask;
    const struct choice *choice;
    const struct plan *plan; /* NULL: nothing is in memory */
    bool keeps;              /* trainers go on: the same members, and those that are late */
    bool restarts;           /* trainers of older epochs are refused */
    const uint8_t *fleet;    /* NULL: the old one */
    size_t fleet_len;
};

struct claim {
    uint64_t epoch;
    uint64_t number; /* of the last round of questions */
    uint8_t *bytes;  /* the record */
    size_t len;
    uint64_t *asked;    /* bitset */
    uint64_t *promised; /* bitset */
};

/* How many agents may be asked to promise. */
uint32_t claim_voters(const struct env *env, const struct ask *ask);
/*
 * Makes the record, and claims it from this agent itself: it stores the number before others hear
 * of it (R1). text: a line on the new groups, or "". CAIRN_LOST: there are no members;
 * CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err claim_begin(struct env *env, struct claim *claim,
                                       const struct claim_basis *basis, char *text,
                                       size_t text_bytes);
void claim_fini(struct claim *claim);
/* An agent has promised. After this agent itself, the others are asked. */
void claim_promised(struct env *env, struct claim *claim, uint32_t agent);
/* Sends CLAIM to an agent whose session begins. */
void claim_peer_up(struct env *env, const struct claim *claim, uint32_t agent);
/* True if the agent is asked and has not promised. */
bool claim_waits_for(const struct claim *claim, uint32_t agent);
bool claim_is_promised(const struct env *env, const struct claim *claim);
/* Sends ACTIVATE to every agent with a session. */
void claim_activate(struct env *env, const struct claim *claim);

#endif
