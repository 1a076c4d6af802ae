/*
 * agent/core/run/gather.h - who below a member in the tree is done with a generation.
 *
 * A member passes DONE on when its own part and all its children's subtrees are done; at the leader
 * that is the commit (R2). A later generation replaces an earlier one.
 */
#ifndef CAIRN_AGENT_CORE_RUN_GATHER_H
#define CAIRN_AGENT_CORE_RUN_GATHER_H

#include "agent/core/env/env.h"

struct gather {
    struct cairn_generation_id generation; /* step 0: none */
    uint64_t *done;                        /* bitset of children, and of the member itself */
    uint32_t count;                        /* members of the epoch */
    uint64_t begun;                        /* newest step begun below */
};

/* Begins with an epoch of `count` members. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err gather_init(struct gather *gather, uint32_t count);
void gather_fini(struct gather *gather);
/* Its generation was aborted: nobody is done. */
void gather_clear(struct gather *gather);
/* `child` (or the member itself) is done. Returns true if now all of the subtree is. */
bool gather_add(const struct env *env, struct gather *gather, uint32_t member, uint32_t child,
                struct cairn_generation_id generation, uint64_t begun);
/* All of `member`'s subtree is done. */
bool gather_is_full(const struct env *env, const struct gather *gather, uint32_t member);

#endif
