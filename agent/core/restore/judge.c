/* agent/core/restore/judge.c - see judge.h. */
#include "agent/core/restore/judge.h"

/*
 * An epoch decided what its members restore; older generations were given up then, wherever parts
 * of them turn up later. Files that are older than the trainers' last start were given up by an
 * operator.
 */
static void
forget_superseded(const struct env *env, struct restore *restore)
{
    const struct record *record = &env->membership->record;

    for (uint32_t a = 0; a < restore->agent_count; a++) {
        struct inventory *inventory = &restore->inventories[a];
        struct inventory_self *self = &inventory->self;

        for (uint32_t i = inventory->part_count; i-- > 0;)
            if (inventory->parts[i].generation.epoch < record->epoch &&
                (record->ready_from_files ||
                 !cairn_generation_is(inventory->parts[i].generation, record->ready)))
                inventory_forget_part(inventory, i);
        if (self->active != record->epoch)
            self->ready = (struct cairn_generation_id){0};
        if (self->spilled.epoch < record->restart_epoch &&
            !(record->ready_from_files && cairn_generation_is(self->spilled, record->ready)))
            self->spilled = (struct cairn_generation_id){0};
    }
}

static bool
answers_for(const struct inventory *inventory, const struct cairn_roster *roster, uint32_t agent)
{
    return inventory->known && !inventory->self.blank &&
           cairn_roster_member_of(roster, agent) != UINT32_MAX;
}

/*
 * True if a member of the active epoch, and of the newest promised one, answered that has forgotten
 * nothing. Every commit needs a complete part of every member, so such a member knows of the last
 * one; and if it is not in the promised epoch yet, nothing was committed there.
 */
static bool
is_witnessed(const struct env *env, const struct restore *restore)
{
    const struct cairn_roster *promised_roster = env->membership->promised_roster;
    uint64_t promised = promised_roster ? env->membership->promised : 0;
    bool active = false, newest;

    for (uint32_t a = 0; a < restore->agent_count; a++) {
        const struct inventory_self *self = &restore->inventories[a].self;

        if (self->promised_roster && self->promised > promised) {
            promised_roster = self->promised_roster;
            promised = self->promised;
        }
        active |= self->active == env->membership->record.epoch &&
                  answers_for(&restore->inventories[a], env->membership->record.roster, a);
    }
    newest = promised <= env->membership->record.epoch;
    for (uint32_t a = 0; a < restore->agent_count && !newest; a++)
        newest = answers_for(&restore->inventories[a], promised_roster, a);
    return active && newest;
}

/* Trainers run that have not asked for what was lost. */
static bool
have_trainers(const struct restore *restore)
{
    for (uint32_t a = 0; a < restore->agent_count; a++)
        if (restore->inventories[a].known && restore->inventories[a].self.ranks > 0)
            return true;
    return false;
}

/* Forgets parts that are newer than what anyone knows to be committed: captures under way. */
static void
forget_uncommitted(struct restore *restore)
{
    struct cairn_generation_id newest = {0};

    for (uint32_t a = 0; a < restore->agent_count; a++)
        if (cairn_generation_later(restore->inventories[a].self.ready, newest))
            newest = restore->inventories[a].self.ready;
    for (uint32_t a = 0; a < restore->agent_count; a++)
        for (uint32_t i = restore->inventories[a].part_count; i-- > 0;)
            if (cairn_generation_later(restore->inventories[a].parts[i].generation, newest))
                inventory_forget_part(&restore->inventories[a], i);
}

void
judge_choose(const struct env *env, struct restore *restore, char *text, size_t text_bytes)
{
    struct choice *choice = &restore->choice;
    struct cairn_generation_id spilled = restore->request.op.wanted_spilled;
    bool has_epoch = env->membership->record.epoch != 0, keeps = restore_keeps(restore);

    if (restore->request.op.operation == CAIRN_OP_VERIFY)
        forget_uncommitted(restore);
    if (keeps && has_epoch)
        forget_superseded(env, restore);
    if (restore->request.op.wanted.step == 0)
        spilled = choose_spilled(restore->inventories, restore->agent_count);
    if (keeps && membership_ready_from_files(env->membership) &&
        cairn_generation_later(membership_ready(env->membership), spilled))
        spilled = membership_ready(env->membership); /* agents that restarted have forgotten it */
    choose_generation(restore->inventories, restore->agent_count, restore->request.op.wanted,
                      spilled, choice, text, text_bytes);
    if (!keeps)
        return;
    if (has_epoch)
        choice->goes_back |= !is_witnessed(env, restore) ||
                             (choice->err && membership_ready(env->membership).step != 0);
    else /* the job is new, or those that answered have all forgotten it */
        choice->goes_back |= !restore_knows_all(restore);
    if (choice->err &&
        (!choice->goes_back || (restore_knows_all(restore) && have_trainers(restore)))) {
        choice->err = CAIRN_OK;
        text_add(text, text_bytes,
                 choice->goes_back
                     ? "all agents answered, nothing can be restored, and trainers run: "
                       "begin with nothing\n"
                     : "nothing was committed: begin with nothing\n");
    }
}

bool
judge_is_bad(const struct env *env, const struct choice *choice)
{
    return choice->err || choice->goes_back ||
           (choice->from_files &&
            !(membership_ready_from_files(env->membership) &&
              cairn_generation_is(choice->generation, membership_ready(env->membership))));
}

bool
judge_is_behind(const struct env *env, const struct restore *restore)
{
    for (uint32_t a = 0; a < restore->agent_count; a++)
        if (restore->inventories[a].self.active > env->membership->record.epoch)
            return true;
    return false;
}
