/*
 * agent/core/part/retain.c - which parts go: the rule R3, in one predicate. See parts_retain in
 * part.h.
 */
#include "agent/core/part/part.h"

/* Something later is committed, which every member holds. */
static bool
is_superseded(const struct env *env, struct cairn_generation_id generation)
{
    return env->decision->committed.step != 0 &&
           cairn_generation_later(env->decision->committed, generation);
}

bool
parts_abort(const struct env *env, struct cairn_generation_id generation)
{
    const struct cairn_decision *decision = env->decision;
    struct cairn_generation_id next = {
        .epoch = generation.epoch, .run = decision->run, .step = decision->next};

    return decision->run != 0 && !cairn_generation_is(generation, decision->committed) &&
           cairn_generation_later(next, generation);
}

/* No complete part from before the active epoch is older, and some are newer. */
static bool
is_oldest_before(const struct env *env, const struct part *part)
{
    bool newer = false;

    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        const struct part *other = &env->parts->list[i];

        if (other->state != CAIRN_PART_COMPLETE ||
            other->generation.epoch >= env->membership->record.epoch)
            continue;
        if (cairn_generation_later(part->generation, other->generation))
            return false;
        newer |= cairn_generation_later(other->generation, part->generation);
    }
    return newer;
}

static bool
has_free_slot(const struct env *env)
{
    for (uint32_t i = 0; i < env->options->slots; i++)
        if (env->parts->list[i].state == CAIRN_PART_FREE)
            return true;
    return false;
}

static bool
complete_may_go(const struct env *env, const struct part *part)
{
    const struct record *record = &env->membership->record;

    /* Someone reads it. */
    if (part->spilling || part->working ||
        (env->parts->pinned &&
         cairn_generation_is(part->generation, env->parts->pinned_generation)))
        return false;
    /* The claimant of the promised epoch has counted it: R4, R9. */
    if (membership_fenced(env->membership))
        return false;
    /* R3: COMMIT of a later generation. */
    if (is_superseded(env, part->generation))
        return true;
    /* R3: ABORT of its own. */
    if (part->generation.epoch == record->epoch)
        return part->member == env->membership->self_member && parts_abort(env, part->generation);
    if (part->generation.epoch > record->epoch)
        return false;
    /* The activation chose `ready`: what is older is superseded, what is newer aborted. */
    if (record->ready.step != 0 && !record->ready_from_files)
        return !cairn_generation_is(part->generation, record->ready) ||
               (CAIRN_PLANTED(env, BUG_OWNER_DROPS) &&
                membership_holder(env->membership, part->member) != env->options->self);
    /* Nothing in memory can replace it before the first commit: the newest stays, and older parts
     * go only to make room for that commit. */
    return !has_free_slot(env) && is_oldest_before(env, part);
}

static bool
may_go(const struct env *env, const struct part *part)
{
    switch (part->state) {
    case CAIRN_PART_OPEN:
    case CAIRN_PART_FINISHING:
        /* Not complete, so nobody counts it: it goes as soon as it cannot be committed. */
        return membership_fenced(env->membership) ||
               part->generation.epoch != env->membership->record.epoch ||
               is_superseded(env, part->generation) || parts_abort(env, part->generation) ||
               (env->decision->serial != 0 && env->decision->next == 0 &&
                !cairn_generation_is(part->generation, env->decision->committed));
    case CAIRN_PART_REBUILDING:
        /* The repair ends it, unless its generation is not worth it any more. */
        return !membership_fenced(env->membership) && is_superseded(env, part->generation);
    case CAIRN_PART_COMPLETE:
        return complete_may_go(env, part);
    case CAIRN_PART_FREE:
        break;
    }
    return false;
}

void
parts_retain(struct env *env)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct part *part = &env->parts->list[i];

        if (CAIRN_PLANTED(env, BUG_STORE_LATE) && part->state == CAIRN_PART_COMPLETE &&
            part->request == UINT64_MAX && part_store(env, part) == CAIRN_OK)
            part->request = 0; /* save_finished left it out */
        if (may_go(env, part))
            part_drop(env, part,
                      part->state == CAIRN_PART_OPEN || part->state == CAIRN_PART_FINISHING);
    }
}
