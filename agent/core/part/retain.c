/*
 * agent/core/part/retain.c - which parts go: the rule R3, in one predicate. See parts_retain in
 * part.h.
 */
#include "agent/core/part/part.h"

#include <string.h>

/* Something later is committed, which every member holds. */
static bool
is_superseded(const struct retention *retention, struct cairn_generation_id generation)
{
    return retention->decision.committed.step != 0 &&
           generation_later(retention->decision.committed, generation);
}

bool
retention_aborts(const struct retention *retention, struct cairn_generation_id generation)
{
    const struct cairn_decision *decision = &retention->decision;
    struct cairn_generation_id next = {
        .epoch = generation.epoch, .run = decision->run, .step = decision->next};

    return decision->run != 0 && !generation_is(generation, decision->committed) &&
           generation_later(next, generation);
}

/* The oldest complete generation from before the active epoch; `newest` likewise. */
static struct cairn_generation_id
oldest_before(const struct parts *parts, uint64_t active, struct cairn_generation_id *newest)
{
    struct cairn_generation_id oldest = {0};

    memset(newest, 0, sizeof *newest);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        const struct part *part = &parts->list[i];

        if (part->state != CAIRN_PART_COMPLETE || part->generation.epoch >= active)
            continue;
        if (oldest.step == 0 || generation_later(oldest, part->generation))
            oldest = part->generation;
        if (generation_later(part->generation, *newest))
            *newest = part->generation;
    }
    return oldest;
}

static bool
has_free_slot(const struct env *env, const struct parts *parts)
{
    for (uint32_t i = 0; i < env->options->slots; i++)
        if (parts->list[i].state == CAIRN_PART_FREE)
            return true;
    return false;
}

static bool
complete_may_go(const struct env *env, const struct parts *parts, const struct part *part,
                const struct retention *retention)
{
    bool ready_in_memory = retention->ready.step != 0 && !retention->ready_from_files;
    struct cairn_generation_id oldest, newest;

    /* Someone reads it. */
    if (part->spilling || part->working ||
        (retention->pinned && generation_is(part->generation, retention->pinned_generation)))
        return false;
    /* The claimant of the promised epoch has counted it: R4, R9. */
    if (retention->fenced)
        return false;
    /* R3: COMMIT of a later generation. */
    if (is_superseded(retention, part->generation))
        return true;
    /* R3: ABORT of its own. */
    if (part->generation.epoch == retention->active)
        return part->member == retention->self_member &&
               retention_aborts(retention, part->generation);
    if (part->generation.epoch > retention->active)
        return false;
    if (ready_in_memory && retention->own_is_hosted && CAIRN_PLANTED(env, BUG_OWNER_DROPS) &&
        generation_is(part->generation, retention->ready) &&
        part->roster->members[part->member].agent == env->options->self)
        return true;
    /* The activation chose `ready`: what is older is superseded, what is newer aborted. */
    if (ready_in_memory)
        return !generation_is(part->generation, retention->ready);
    /* Nothing in memory can replace it before the first commit: the newest stays, and older ones go
     * only to make room for that commit. */
    oldest = oldest_before(parts, retention->active, &newest);
    return !has_free_slot(env, parts) && generation_is(part->generation, oldest) &&
           !generation_is(oldest, newest);
}

static bool
may_go(const struct env *env, const struct parts *parts, const struct part *part,
       const struct retention *retention)
{
    switch (part->state) {
    case CAIRN_PART_OPEN:
    case CAIRN_PART_FINISHING:
        /* Not complete, so nobody counts it: it goes as soon as it cannot be committed. */
        return retention->fenced || part->generation.epoch != retention->active ||
               is_superseded(retention, part->generation) ||
               retention_aborts(retention, part->generation) ||
               (retention->decision.serial != 0 && retention->decision.next == 0 &&
                !generation_is(part->generation, retention->decision.committed));
    case CAIRN_PART_REBUILDING:
        /* The repair ends it, unless its generation is not worth it any more. */
        return !retention->fenced && is_superseded(retention, part->generation);
    case CAIRN_PART_COMPLETE:
        return complete_may_go(env, parts, part, retention);
    case CAIRN_PART_FREE:
        break;
    }
    return false;
}

void
parts_retain(struct env *env, struct parts *parts, const struct retention *retention)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct part *part = &parts->list[i];

        if (CAIRN_PLANTED(env, BUG_STORE_LATE) && part->state == CAIRN_PART_COMPLETE &&
            part->request == UINT64_MAX && part_store(env, parts, part) == CAIRN_OK)
            part->request = 0; /* save_finished left it out */
        if (may_go(env, parts, part, retention))
            part_drop(env, parts, part,
                      part->state == CAIRN_PART_OPEN || part->state == CAIRN_PART_FINISHING);
    }
}
