/*
 * agent/core/restore/restore.h - the coordinator of a restore, a repair, a verify, or a dry run.
 *
 *   IDLE ─ start ─► LISTING      everyone: what do you hold?
 *   ─ chosen ─────► PREPARING    those that answered: pin the choice, and compare it   choose.h
 *   ─ planned ────► REBUILDING   lost parts and damaged blocks are decoded     members.h, repair.h
 *   ─ rebuilt ────► CLAIMING     all that answered promise the record; then ACTIVATE   claim.h
 *   ─ active here ► IDLE
 *
 * Each state is one round: a message to some agents, their answers, a deadline. A session that
 * begins gets the message again; one that ends ends the attempt, except while LISTING. Before the
 * claim nothing has changed, so any failure ends the attempt, and the next one begins with LISTING.
 * The coordinator ignores an agent that misses a later deadline, until the restore ends or another
 * epoch begins.
 *
 * A claim names what the agents were when they were prepared (R9), and counts the parts that were
 * rebuilt since. What changed otherwise makes an agent refuse it.
 *
 * Good news is acted on at once. Bad news (something is lost, or must come from files) is believed
 * only when all agents have answered, or have had time to. A restore that no operator asked for
 * never goes back to an older generation while some agent is silent. A restore that an operator
 * asked for ends when another one has started the trainers: its request is older than they are.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_RESTORE_H
#define CAIRN_AGENT_CORE_RESTORE_RESTORE_H

#include "agent/core/epoch/membership.h"
#include "agent/core/repair/repair.h"
#include "agent/core/restore/choose.h"

enum { RESTORE_ATTEMPTS_MAX = 6 };

struct restore_request {
    struct cairn_event_operator op; /* its fleet is copied */
    bool by_itself;                 /* no operator asked */
    bool joining;                   /* to make the agents that have trainers the members */
};

enum restore_state {
    RESTORE_IDLE = 0,
    RESTORE_LISTING,
    RESTORE_PREPARING,
    RESTORE_REBUILDING,
    RESTORE_CLAIMING
};

struct party {
    bool asked;    /* in this round */
    bool answered; /* in this round */
    bool slow;     /* has let a deadline pass: asked like the others, but not waited for */
    uint64_t lost; /* as the newest ASK(VERIFY) to it says */
};

struct restore {
    enum restore_state state;
    struct restore_request request;
    uint8_t *fleet;
    uint32_t attempts;
    uint64_t epoch;            /* in which this attempt asks */
    uint64_t number;           /* of the newest ASK: answers repeat it, to REBUILD and CLAIM too */
    uint64_t deadline_ns;      /* of the round */
    uint64_t silence_until_ns; /* then parts of silent agents count as lost */
    uint8_t *bytes;            /* of the round's message; NULL: none */
    size_t len;
    uint32_t agent_count;
    uint64_t *no_room;             /* bitset of agents that cannot take parts */
    struct party *parties;         /* [agent_count] */
    struct inventory *inventories; /* [agent_count]: the newest answers */
    struct cairn_roster *common;   /* the roster of the newest answer: most answers share it */
    struct choice choice;
    struct plan plan;  /* roster NULL: none. A member that is rebuilt has its target as holder */
    uint32_t damaged;  /* failures from damaged bytes */
    bool compares_all; /* agents leave out nothing: a verify, known damage, a failed attempt, or
                        * answers that change what is lost */
    uint64_t claimed;  /* epoch */
    struct cairn_outcome outcome; /* of this restore, or the last one */
    uint64_t ended;               /* operations since the start */
};

void restore_fini(struct restore *restore);

static inline bool
restore_is_idle(const struct restore *restore)
{
    return restore->state == RESTORE_IDLE;
}

/* An operator wants the trainers to start again. */
static inline bool
restore_restarts(const struct restore *restore)
{
    return !restore->request.by_itself && (restore->request.op.operation == CAIRN_OP_RESTORE ||
                                           restore->request.op.operation == CAIRN_OP_FRESH);
}

/* Nothing is given up, and trainers go on: the same members, and those that are late. */
static inline bool
restore_keeps(const struct restore *restore)
{
    return restore->request.by_itself || restore->request.op.operation == CAIRN_OP_FLEET;
}

/* Of this round: how many inventories are here, and whether all are. */
uint32_t restore_known(const struct restore *restore);
bool restore_knows_all(const struct restore *restore);

/* Starts; the caller has checked that it is idle. CAIRN_NOMEM. Ends with REPLY for an operator. */
CAIRN_MUST_CHECK cairn_err restore_start(struct env *env, struct restore *restore,
                                         const struct restore_request *request);
/* Takes INVENTORY, REBUILT and PROMISE. */
void restore_message(struct env *env, struct restore *restore, const struct cairn_message *message);
void restore_peer_up(struct env *env, struct restore *restore, uint32_t agent);
void restore_peer_down(struct env *env, struct restore *restore, uint32_t agent);
void restore_tick(struct env *env, struct restore *restore);
/* This agent has entered an epoch: if it is the restore's own, the restore is over. */
void restore_activated(struct env *env, struct restore *restore);
/* This agent stood still: nobody else's delay. */
void restore_stood_still(struct restore *restore, uint64_t gap_ns);

#endif
