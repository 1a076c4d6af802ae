/*
 * agent/core/run/audit.h - the leader's audit of a run's layouts: asks all members that have
 * tensors, and concludes by snapshot/tiling_audit.h. A verdict on a combination of layouts never
 * changes, so the last one is remembered.
 */
#ifndef CAIRN_AGENT_CORE_RUN_AUDIT_H
#define CAIRN_AGENT_CORE_RUN_AUDIT_H

#include "agent/core/epoch/membership.h"
#include "snapshot/tiling_audit.h"

struct audit {
    uint64_t combination;                       /* of layouts, in the newest audit */
    enum cairn_tiling_verdict verdict;          /* on it; OPEN: none yet */
    char text[CAIRN_REFUSAL_BYTES];             /* of a bad one: which tensors, and how; else "" */
    const struct cairn_message_report *reports; /* [count], borrowed: digests of the layouts, 0 of a
                                                 * member without tensors */
    uint32_t count;                             /* members */
    uint64_t id;                                /* of the question; 0: no audit is under way */
    uint64_t *answered;                         /* bitset of members */
    struct cairn_tiling_audit tiling;
};

/* Begins an audit of the layouts in all members' reports, [count], borrowed until it ends; one that
 * is under way ends. OPEN: questions are on their way. */
enum cairn_tiling_verdict audit_begin(struct env *env, struct audit *audit,
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
