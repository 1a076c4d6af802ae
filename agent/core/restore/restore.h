/*
 * agent/core/restore/restore.h - the coordinator of a restore, a repair, a verify, or a dry run.
 *
 *   IDLE ─ start ─► LISTING      everyone: what do you hold?                    ask.c
 *   ─ chosen ─────► VERIFYING    holders pin the choice and compare it          choose.c
 *   ─ planned ────► REBUILDING   lost parts and damaged blocks are decoded      members.c, repair.h
 *   ─ rebuilt ────► CONFIRMING   what do you hold now? The choice must stand
 *   ─ confirmed ──► CLAIMING     all that answered promise the record           claim.c
 *   ─ promised ───► ACTIVATING   ACTIVATE is sent; who misses it gets the record from any POSITION
 *   ─ active here ► IDLE
 *
 * If nothing is in memory, or nothing of it must be read, a step is skipped, but CONFIRMING never
 * is: a claim names the agents as they are (R9). Before the claim nothing has changed, so any
 * failure ends the attempt, and the next one begins with LISTING. Every wait has a deadline. The
 * coordinator ignores an agent that misses that of a later step, until the restore ends or another
 * epoch begins.
 *
 * Good news is acted on at once. Bad news (something is lost, or must come from files) is believed
 * only when all agents have answered, or have had time to. A restore that no operator asked for
 * never goes back to an older generation while some agent is silent. A restore that an operator
 * asked for ends when another one has started the trainers: its request is older than they are.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_RESTORE_H
#define CAIRN_AGENT_CORE_RESTORE_RESTORE_H

#include "agent/core/restore/claim.h"

enum { RESTORE_ATTEMPTS_MAX = 6 };

struct restore_request {
    enum cairn_operation operation;
    bool by_itself; /* no operator asked */
    bool joining;   /* to take in agents that have trainers and are no members */
    uint64_t request;
    const uint8_t *fleet; /* FLEET; copied */
    size_t fleet_len;
};

enum restore_state {
    RESTORE_IDLE = 0,
    RESTORE_LISTING,
    RESTORE_VERIFYING,
    RESTORE_REBUILDING,
    RESTORE_CONFIRMING,
    RESTORE_CLAIMING,
    RESTORE_ACTIVATING /* this agent has not taken its own record yet */
};

struct rebuild {
    struct plan plan;
    uint64_t number;   /* of the plan; 0: nothing is planned */
    uint64_t *done;    /* bitset of members */
    uint64_t *written; /* [members]: blocks */
    uint32_t damaged;  /* failures from damaged bytes */
};

struct restore {
    enum restore_state state;
    struct restore_request request;
    uint8_t *fleet;
    uint32_t attempts;
    uint64_t deadline_ns;      /* of the state */
    uint64_t silence_until_ns; /* then parts of silent agents count as lost */
    struct ask ask;
    struct choice choice;
    uint32_t excluded_from; /* so many agents had answered when something was excluded */
    uint64_t *no_room;      /* bitset of agents that cannot take parts */
    struct rebuild rebuild;
    struct claim claim;
    struct cairn_outcome outcome; /* of this restore, or the last one */
};

void restore_init(struct restore *restore);
void restore_fini(struct restore *restore);

static inline bool
restore_is_idle(const struct restore *restore)
{
    return restore->state == RESTORE_IDLE;
}

/* Starts; the caller has checked that it is idle. CAIRN_NOMEM. Ends with REPLY for an operator. */
CAIRN_MUST_CHECK cairn_err restore_start(struct env *env, struct restore *restore,
                                         const struct membership *membership,
                                         const struct peers *peers,
                                         const struct restore_request *request);
/* Takes INVENTORY, REBUILT and PROMISE. */
void restore_message(struct env *env, struct restore *restore, const struct membership *membership,
                     const struct peers *peers, const struct cairn_message *message);
void restore_peer_up(struct env *env, struct restore *restore, const struct membership *membership,
                     const struct peers *peers, uint32_t agent);
void restore_peer_down(struct env *env, struct restore *restore,
                       const struct membership *membership, const struct peers *peers,
                       uint32_t agent);
void restore_tick(struct env *env, struct restore *restore, const struct membership *membership,
                  const struct peers *peers);
/* This agent has entered an epoch: if it is the restore's own, the restore is over. */
void restore_activated(struct env *env, struct restore *restore,
                       const struct membership *membership, const struct peers *peers);
/* This agent stood still: nobody else's delay. */
void restore_stood_still(struct restore *restore, uint64_t gap_ns);
const struct cairn_outcome *restore_outcome(const struct restore *restore);

#endif
