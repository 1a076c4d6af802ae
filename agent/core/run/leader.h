/*
 * agent/core/run/leader.h - what the first member of an epoch decides: that a run is assembled,
 * what is committed, and which step is captured next.
 *
 * A run is assembled when every member has reported and has ranks, these are all ranks of the job,
 * all of one launch, and an audit has found that they hold every tensor exactly once. It ends when
 * an agent or its trainers begin again. Its number is never used twice.
 *
 * Members that have all ranks of one launch are the job. Trainers on other agents are then
 * another launch's, which waits: it ends no run, and its steps count for nothing.
 *
 * Where all ranks are attached but the members are others, the agents with ranks become the
 * members first: one without has nothing to capture, so it would never be done. Idle members leave
 * only when a step has begun: who attaches only to read changes nothing.
 *
 * The next step is beyond what the job already holds, and beyond every step that a member is known
 * to have passed, by a margin that grows when members abort because they were past the step, and
 * shrinks again. Multiples of every_steps are due, and what an operator or the end of the training
 * asks for, which is tried without a margin. After an abort any step will do, until one is
 * committed; after many the tries get rarer.
 */
#ifndef CAIRN_AGENT_CORE_RUN_LEADER_H
#define CAIRN_AGENT_CORE_RUN_LEADER_H

#include "agent/core/run/audit.h"
#include "agent/core/epoch/membership.h"
#include "agent/core/run/reports.h"

/* What decides about the next step. */
struct due {
    uint64_t begun;  /* newest step that a member is known to have begun */
    uint64_t passed; /* newest that cannot be captured any more */
    uint64_t asked;  /* step that an operator or the training's end asked for; 0: none */
    uint32_t margin;
    uint32_t aborts_in_row; /* since the newest commit of this run */
    uint32_t commits_in_row;
    uint64_t since_ns; /* of the newest decision */
};

struct leader {
    struct reports *reports; /* borrowed */
    struct audit audit;
    struct cairn_decision decision; /* serial 0: this agent does not lead */
    struct cairn_generation_id
        floor; /* what is older was aborted: a late report does not commit it */
    char refusal[CAIRN_REFUSAL_BYTES];
    bool assembled;   /* the run's trainers are still the same */
    bool wants_join;  /* all ranks of the job are attached, and not exactly to the members */
    uint64_t counter; /* of runs and serials, in this start */
    struct due due;
    struct cairn_given_up given_up;
};

/* Leads no more; numbers that were issued stay used (R1). */
void leader_end(struct leader *leader);
/* Each changes the decision if need be: its serial grows. A repeated report changes nothing. What
 * the leader's own report lists as complete is so everywhere: it is committed, unless it is older
 * than what is. */
void leader_report(struct env *env, struct leader *leader,
                   const struct cairn_message_report *report);
void leader_audited(struct env *env, struct leader *leader, const struct cairn_message *message);
/* Aborts a generation that has made no end for rebuild_timeout. */
void leader_tick(struct env *env, struct leader *leader);
/* Who blocks the decision's generation (R8); generation step 0: nobody that is known. */
void leader_blocker(const struct env *env, const struct leader *leader, struct cairn_blocker *out);

#endif
