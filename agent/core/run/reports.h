/*
 * agent/core/run/reports.h - what has been reported to a member by those below it in the tree; to
 * the leader also by late agents, which are not members.
 *
 * A head passes on what is new about an agent. How far generations are it adds up: its own report
 * lists as complete what all below it list too. What the leader's own report lists so is committed
 * (R2).
 */
#ifndef CAIRN_AGENT_CORE_RUN_REPORTS_H
#define CAIRN_AGENT_CORE_RUN_REPORTS_H

#include "agent/core/epoch/membership.h"

struct reports {
    struct cairn_message_report *list; /* [count], by agent */
    uint64_t *heard_ns; /* [count]: when it came; 0: never, or in a session that has ended */
    uint32_t count;     /* agents */
};

CAIRN_MUST_CHECK cairn_err reports_init(struct reports *reports, uint32_t count);
void reports_fini(struct reports *reports);
/*
 * Takes one; registration 0 says that the agent's session has ended. Returns true if the agent or
 * its trainers have begun again since the last report; of a member also if that came in an earlier
 * session.
 */
bool reports_take(const struct env *env, struct reports *reports,
                  const struct cairn_message_report *report);
/* True if a report has news of its agent, beside times and which generations are complete. */
bool reports_differ(const struct cairn_message_report *report,
                    const struct cairn_message_report *before);
/* Takes one at a head. True if it must be passed on. */
bool reports_pass(const struct env *env, struct reports *reports,
                  const struct cairn_message_report *report);
/* How many of those directly below do not report that they hold a generation complete; *first is
 * the agent of the first of them. */
uint32_t reports_missing(const struct env *env, const struct reports *reports,
                         struct cairn_generation_id generation, uint32_t *first);
/* The newest step that any below this member is known to have begun. */
uint64_t reports_begun(const struct env *env, const struct reports *reports);

#endif
