/*
 * agent/core/run/audit.h - the leader's audit of a run's layouts: asks all members, and concludes
 * by snapshot/tiling_audit.h.
 *
 * The audit has the number of the run that is issued if it ends well. A member answers only for the
 * trainers that the leader has heard of, and captures only for the run whose audit its present
 * trainers answered (run.h). So all trainers of a run are those that were audited.
 */
#ifndef CAIRN_AGENT_CORE_RUN_AUDIT_H
#define CAIRN_AGENT_CORE_RUN_AUDIT_H

#include "agent/core/epoch/membership.h"
#include "snapshot/tiling_audit.h"

struct audit {
    uint64_t run;                   /* of the newest audit */
    uint32_t question;              /* the newest */
    char text[CAIRN_REFUSAL_BYTES]; /* of a bad layout: which tensors, and how; else "" */
    const struct cairn_message_report *reports; /* by agent, borrowed */
    uint32_t count;                             /* members */
    uint64_t *answered;                         /* bitset of members; NULL: none is under way */
    struct cairn_tiling_audit tiling;
};

static inline bool
audit_under_way(const struct audit *audit)
{
    return audit->answered != NULL;
}

/* Asks all `count` members; the reports, by agent, are borrowed until the audit ends. One that is
 * under way ends. */
void audit_begin(struct env *env, struct audit *audit, uint64_t run,
                 const struct cairn_message_report *reports, uint32_t count);
void audit_end(struct audit *audit);
/* Takes an answer; anything that is not asked for changes nothing. */
enum cairn_tiling_verdict audit_answered(struct env *env, struct audit *audit,
                                         const struct cairn_message *message);
/* A member reports again, in a new session: the question may be lost. */
void audit_ask_again(struct env *env, const struct audit *audit, uint32_t agent);
/* A member's answer to a question about its layout; sent to `to`. tiling NULL: it has none. */
void audit_reply(struct env *env, uint32_t to, const struct cairn_message *question,
                 const struct cairn_tiling *tiling);

#endif
