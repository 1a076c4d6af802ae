/*
 * agent/core/run/run.h - a member's side of a run: its trainers, the leader's newest decision, and
 * which step the member captures for it.
 *
 * A decision's `next` means: capture the first step that your trainers begin at or after it.
 * Trainers of all nodes begin the same steps in the same order, so all members take the same one,
 * as long as none of them has let such a step pass before it heard of the decision. One that has,
 * aborts, and the leader chooses a later step.
 */
#ifndef CAIRN_AGENT_CORE_RUN_RUN_H
#define CAIRN_AGENT_CORE_RUN_RUN_H

#include "agent/core/epoch/membership.h"
#include "agent/core/part/part.h"
#include "agent/core/part/save.h"
#include "agent/core/run/reports.h"
#include "snapshot/tiling.h"

struct trainers {
    uint32_t ranks; /* attached here; 0: none */
    uint32_t world; /* ranks of the whole job; 0: unknown */
    uint64_t blocks;
    uint64_t launch;
    uint64_t tiling_sum;
    uint64_t registration;       /* counts RANKS events */
    struct cairn_tiling *tiling; /* NULL: no tensors */
};

struct run {
    struct trainers trainers;
    struct cairn_decision decision;
    char refusal[CAIRN_REFUSAL_BYTES];  /* why there is no run; "" */
    uint64_t begun;                     /* newest step begun by these trainers */
    uint64_t audited;                   /* run whose audit these trainers answered; 0: none.
                                        * Decisions about another run, which may come late from the
                                        * group, open nothing here: it is of other trainers. */
    struct cairn_generation_id aborted; /* this member gave it up since the decision, and opens
                                         * nothing more under it; step 0: none */
    enum cairn_abort reason;            /* for that */
    uint64_t told;                      /* ranks that were told the refusal, as a set */
    uint64_t asked; /* step that an operator or a last step here asked for; 0: none */
    struct cairn_message_report reported; /* newest to the leader of this epoch */
    struct cairn_begun_step steps[CAIRN_RANKS_PER_NODE_MAX];
};

void run_fini(struct run *run);
/* Takes RANKS. CAIRN_NOMEM: it is as if there were no trainers. */
void run_ranks(struct run *run, const struct cairn_event_ranks *ranks);
/* Takes a question of an audit. False: it means trainers that are gone, and has no answer. */
bool run_audited(const struct env *env, struct run *run,
                 const struct cairn_message_audit *question);
/* A new epoch: the decision is void; restart: the trainers too. */
void run_enter(struct run *run, bool restart);
/* The set of all local ranks. */
uint64_t run_everyone(const struct run *run);
/* How this agent is, and those below it. Needs an epoch. */
struct cairn_message_report run_report(const struct env *env, const struct run *run,
                                       const struct reports *reports);
/* This member gives a generation up, and drops its part; reason 0: it does not. */
void run_abort(struct env *env, struct run *run, struct cairn_generation_id generation,
               enum cairn_abort reason);
/* Takes a decision if it is newer than the last. */
bool run_decide(struct run *run, const struct cairn_decision *decision, const char *refusal);
/* Takes BEGIN: the rank waits for run_grant. */
void run_begin(struct run *run, const struct cairn_event_step *begin);
/* Takes CANCEL: an abort if the rank had not copied its part. */
void run_cancel(struct env *env, struct run *run, const struct cairn_event_step *cancel);
/* Answers ranks that wait, as far as the decision and the slots allow: skips, opens the part,
 * grants, or aborts. */
void run_grant(struct env *env, struct run *run);
/* The part for a generation that a member of the group has begun: opened if need be; NULL: dropped
 * at the door, or aborted. */
struct part *run_part_for(struct env *env, struct run *run, struct cairn_generation_id generation);

#endif
