/*
 * agent/core/restore/watch.h - why an agent starts a restore that nobody asked for, and how
 * patient it is.
 *
 *   an unfinished restore   promised an epoch that is not activated: after claim_timeout, or at
 *                           once if this agent is the claimant, or the claimant is gone
 *   the first epoch         nobody is known to have one: the lowest agent that is not a spare
 *   memory is lost          this agent is blank, and was a member or held a part: at once
 *   trainers wait for it    the same, and trainers have attached here: at once again, since with
 *                           trainers a job that has lost everything may begin with nothing
 *   a part is missing       a holder of the ready generation is dead for repair_after
 *   trainers elsewhere      the leader wants agents outside the epoch as members
 *
 * One agent goes first, the others some time later, in case it cannot. After a try that has not
 * helped the pause doubles. Pauses of different agents differ, so that two do not collide again.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_WATCH_H
#define CAIRN_AGENT_CORE_RESTORE_WATCH_H

#include "agent/core/epoch/membership.h"
#include "agent/core/restore/restore.h"

enum watch_reason {
    WATCH_NONE = 0,
    WATCH_FENCED,
    WATCH_FIRST,
    WATCH_BLANK,
    WATCH_AWAITED,
    WATCH_LOST,
    WATCH_JOIN
};

struct watch {
    enum watch_reason reason;
    uint64_t since_ns;  /* how long the reason has lasted, while no restore is under way */
    uint64_t looked_ns; /* the last look */
    uint32_t tries;     /* for this reason */
};

/*
 * Call it on ticks, and when trainers come or go, while no restore or repair is under way. Returns
 * true if one is due: start *out; *reason says why, for the log. wants_join: this agent leads, and
 * the job is complete with agents outside the epoch.
 */
bool watch_due(const struct env *env, struct watch *watch, bool has_trainers, bool wants_join,
               struct restore_request *out, const char **reason);
/* Another coordinator asks: its repair ends the reason for all agents, so this one waits again. A
 * repair with a silent agent takes longer than the turns are apart. */
void watch_asked(struct watch *watch);

#endif
