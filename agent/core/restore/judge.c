/* agent/core/restore/judge.c - see judge.h. */
#include "agent/core/restore/judge.h"

#include <stdio.h>
#include <string.h>

static void
append(char *text, size_t text_bytes, const char *line)
{
    size_t used = strlen(text);

    snprintf(text + used, text_bytes - used, "%s\n", line);
}

/*
 * An epoch decided what its members restore; older generations were given up then, wherever parts
 * of them turn up later. Files that are older than the trainers' last start were given up by an
 * operator.
 */
static void
forget_superseded(const struct membership *membership, struct ask *ask)
{
    const struct record *record = &membership->record;

    for (uint32_t a = 0; a < ask->agent_count; a++) {
        struct inventory *inventory = &ask->inventories[a];
        struct inventory_self *self = &inventory->self;

        for (uint32_t i = inventory->part_count; i-- > 0;)
            if (inventory->parts[i].generation.epoch < record->epoch &&
                (record->ready_from_files ||
                 !generation_is(inventory->parts[i].generation, record->ready)))
                inventory_forget_part(inventory, i);
        if (self->active != record->epoch)
            self->ready = self->committed = (struct cairn_generation_id){0};
        if (self->spilled.epoch < record->restart_epoch &&
            !(record->ready_from_files && generation_is(self->spilled, record->ready)))
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
is_witnessed(const struct membership *membership, const struct ask *ask)
{
    const struct cairn_roster *promised_roster = membership->promised_roster;
    uint64_t promised = promised_roster ? membership->promised : 0;
    bool active = false, newest;

    for (uint32_t a = 0; a < ask->agent_count; a++) {
        const struct inventory_self *self = &ask->inventories[a].self;

        if (self->promised_roster && self->promised > promised) {
            promised_roster = self->promised_roster;
            promised = self->promised;
        }
        active |= self->active == membership->record.epoch &&
                  answers_for(&ask->inventories[a], membership->record.roster, a);
    }
    newest = promised <= membership->record.epoch;
    for (uint32_t a = 0; a < ask->agent_count && !newest; a++)
        newest = answers_for(&ask->inventories[a], promised_roster, a);
    return active && newest;
}

/* Trainers run that have not asked for what was lost. */
static bool
have_trainers(const struct ask *ask)
{
    for (uint32_t a = 0; a < ask->agent_count; a++)
        if (ask->inventories[a].known && ask->inventories[a].self.ranks > 0)
            return true;
    return false;
}

void
judge_choose(const struct env *env, const struct membership *membership, struct ask *ask,
             bool keeps, struct choice *out, char *text, size_t text_bytes)
{
    struct cairn_generation_id spilled;
    bool has_epoch = membership->record.epoch != 0;

    if (keeps && has_epoch)
        forget_superseded(membership, ask);
    spilled = choose_spilled(ask->inventories, ask->agent_count);
    if (keeps && membership->ready_from_files && generation_later(membership->ready, spilled))
        spilled = membership->ready; /* agents that restarted have forgotten it */
    choose_generation(ask->inventories, ask->agent_count, spilled, out, text, text_bytes);
    if (!keeps)
        return;
    if (has_epoch)
        out->goes_back |=
            !is_witnessed(membership, ask) || (out->err && membership->ready.step != 0);
    if (out->err && (!out->goes_back || (ask_knows_all(env, ask, true) && have_trainers(ask)))) {
        out->err = CAIRN_OK;
        append(text, text_bytes,
               out->goes_back ? "all agents answered, nothing can be restored, and trainers run: "
                                "begin with nothing"
                              : "nothing was committed: begin with nothing");
    }
}

bool
judge_is_bad(const struct membership *membership, const struct choice *choice)
{
    return choice->err || choice->goes_back ||
           (choice->from_files && !(membership->ready_from_files &&
                                    generation_is(choice->generation, membership->ready)));
}

bool
judge_expects_answers(const struct env *env, const struct ask *ask, const struct peers *peers)
{
    for (uint32_t a = 0; a < ask->agent_count; a++)
        if (!ask->inventories[a].known && !cairn_bitset_has(ask->ignored, a) &&
            !peers_given_up(env, peers, a))
            return true;
    return false;
}

bool
judge_is_behind(const struct membership *membership, const struct ask *ask)
{
    for (uint32_t a = 0; a < ask->agent_count; a++)
        if (ask->inventories[a].self.active > membership->record.epoch)
            return true;
    return false;
}

void
judge_forget_uncommitted(struct ask *ask)
{
    struct cairn_generation_id newest = {0};

    for (uint32_t a = 0; a < ask->agent_count; a++)
        if (generation_later(ask->inventories[a].self.ready, newest))
            newest = ask->inventories[a].self.ready;
    for (uint32_t a = 0; a < ask->agent_count; a++)
        for (uint32_t i = ask->inventories[a].part_count; i-- > 0;)
            if (generation_later(ask->inventories[a].parts[i].generation, newest))
                inventory_forget_part(&ask->inventories[a], i);
}
