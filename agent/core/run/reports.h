/*
 * agent/core/run/reports.h - what the leader's members, and the late agents that are none, have
 * reported about their trainers.
 */
#ifndef CAIRN_AGENT_CORE_RUN_REPORTS_H
#define CAIRN_AGENT_CORE_RUN_REPORTS_H

#include "agent/core/env/env.h"

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
bool reports_take(struct reports *reports, const struct cairn_roster *roster,
                  const struct cairn_message_report *report, uint64_t now_ns);

#endif
