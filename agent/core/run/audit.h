/*
 * agent/core/run/audit.h - the leader's audit of a run's layouts: do the parts of all members
 * together hold every element of every tensor exactly once?
 *
 * Members report the sum of their layout (snapshot/tiling.h). If all sums together are 0, the
 * leader asks all members for the keys of the tensors whose origin they hold; none may come twice.
 * Else it asks for the sums by division. Then it asks for the pieces of the tensors in the one
 * division that is wrong, and explains. A verdict on a combination of layouts never changes, so
 * the last one is remembered.
 */
#ifndef CAIRN_AGENT_CORE_RUN_AUDIT_H
#define CAIRN_AGENT_CORE_RUN_AUDIT_H

#include "agent/core/epoch/membership.h"
#include "snapshot/tiling.h"

enum audit_result { AUDIT_RUNNING = 0, AUDIT_GOOD, AUDIT_BAD };

struct audit {
    uint64_t combination;                       /* of layouts, in the newest audit */
    enum audit_result verdict;                  /* on it; RUNNING: none yet */
    char text[CAIRN_REFUSAL_BYTES];             /* of a bad one: which tensors, and how; else "" */
    const struct cairn_message_report *reports; /* [count], borrowed: digests of the layouts, 0 of a
                                                 * member without tensors */
    uint32_t count;                             /* members */
    uint64_t id;                                /* of the question; 0: no audit is under way */
    uint32_t asks;                              /* enum cairn_audit */
    uint64_t prefix;                            /* PIECES: of the keys */
    uint64_t *answered;                         /* bitset of members */
    uint64_t *sums;                             /* [CAIRN_TILING_FAN] */
    uint64_t *origins;                          /* keys received */
    size_t origin_count;
    size_t origin_room;
    bool uncounted; /* there were too many keys to look for doubles */
    struct cairn_tiling_pieces pieces;
};

/* Begins an audit of the layouts in all members' reports, [count], borrowed until it ends; one that
 * is under way ends. RUNNING: questions are on their way. */
enum audit_result audit_begin(struct env *env, struct audit *audit,
                              const struct cairn_message_report *reports, uint32_t count);
void audit_end(struct audit *audit);
/* Takes an answer; anything that is not asked for changes nothing. */
enum audit_result audit_answered(struct env *env, struct audit *audit,
                                 const struct cairn_message *message);
/* A member reports again, in a new session: the question may be lost. */
void audit_ask_again(struct env *env, const struct audit *audit, uint32_t agent);
/* A member's answer to a question about its layout; sent to `to`. tiling NULL: it has none. */
void audit_reply(struct env *env, uint32_t to, const struct cairn_message *question,
                 const struct cairn_tiling *tiling);

#endif
