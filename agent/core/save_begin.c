/*
 * agent/core/save_begin.c - a local trainer begins a step: whether it is captured, now or when
 * there is a slot, and what the first begin tells of earlier starts of this agent.
 */
#include "agent/core/core_state.h"

static void
reply_skip(struct cairn_core *core, uint32_t rank, uint64_t step, enum cairn_skip reason)
{
    struct cairn_action *action = action_add(core, CAIRN_ACTION_SKIP);

    if (!action)
        return;
    action->rank = rank;
    action->step = step;
    action->reason = reason;
    action->until_step = reason == CAIRN_SKIP_BEGUN ? core->passed_step : 0;
    action->generation = core->ready;
}

/* Anything older that this rank has not captured never will be. */
static void
give_up_passed(struct cairn_core *core, uint32_t rank, uint64_t step)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        struct holding *holding = &core->holdings[i];

        if (save_own_part(core, holding) && holding->state == CAIRN_HOLDING_OPEN &&
            holding->generation.step < step && !(holding->done & (UINT64_C(1) << rank)))
            save_give_up(core, holding->generation, "the trainer is past it");
    }
    for (uint32_t i = 0; i < FACTS_MAX; i++) {
        struct facts *facts = &core->facts[i];

        if (facts->generation.step != 0 && facts->generation.epoch == core->active &&
            facts->generation.step < step && !facts->vetoed && !facts->committed &&
            !holding_find(core, facts->generation, core->self_member) &&
            !cairn_bitset_has(facts->yes, core->self_member))
            save_give_up(core, facts->generation, "the trainer is past it");
    }
}

static void
grant(struct cairn_core *core, struct holding *holding, uint32_t rank)
{
    struct cairn_action *action = action_add(core, CAIRN_ACTION_GRANT);

    holding->granted |= UINT64_C(1) << rank;
    if (!action)
        return;
    action->rank = rank;
    action->step = holding->generation.step;
    action->generation = holding->generation;
    action->holding = holding_index(core, holding);
}

/* Grants, refuses, or leaves waiting for a slot. */
static void
try_begin(struct cairn_core *core, uint32_t rank, uint64_t step)
{
    struct cairn_generation generation = {core->active, step};
    struct holding *holding = holding_find(core, generation, core->self_member);

    core->pending[rank] = (struct pending_begin){true, step};
    if (!holding && (!save_may_vote(core, generation) || save_passed(core, generation))) {
        core->pending[rank].waiting = false;
        reply_skip(core, rank, step, CAIRN_SKIP_BUSY);
        return;
    }
    if (!holding)
        holding = save_open(core, generation);
    if (!holding && !facts_vetoed(core, generation))
        return; /* until a slot is free, or the trainer cancels */
    core->pending[rank].waiting = false;
    if (holding && holding->state == CAIRN_HOLDING_OPEN &&
        !(holding->granted & (UINT64_C(1) << rank)))
        grant(core, holding, rank);
    else
        reply_skip(core, rank, step, CAIRN_SKIP_BUSY);
}

void
save_grant_pending(struct cairn_core *core)
{
    for (uint32_t r = 0; r < core->own_ranks; r++)
        if (core->pending[r].waiting && !core->frozen)
            try_begin(core, r, core->pending[r].step);
    again_open(core);
}

static bool
is_in_group(const struct cairn_core *core, uint32_t agent)
{
    uint32_t member = cairn_roster_member_of(core->table, agent);

    return core->self_member != UINT32_MAX && member != UINT32_MAX &&
           core->table->members[member].group == core->table->members[core->self_member].group;
}

uint64_t
save_newest_whole(const struct cairn_core *core, bool of_group)
{
    uint64_t newest = core->committed.step; /* of the active epoch, or none */

    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++)
        if (core->holdings[i].state == CAIRN_HOLDING_COMPLETE &&
            core->holdings[i].generation.epoch == core->active &&
            core->holdings[i].generation.step > newest)
            newest = core->holdings[i].generation.step;
    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (core->peers[a].holds_epoch == core->active && core->peers[a].holds > newest &&
            (!of_group || is_in_group(core, a)))
            newest = core->peers[a].holds;
    return newest;
}

/* Whether all that may have seen trainers go have been heard of, be it by others, or are not
 * there. */
static bool
has_heard_members(const struct cairn_core *core)
{
    bool is_alone = true;

    for (uint32_t m = 0; m < core->table->member_count; m++) {
        uint32_t agent = core->table->members[m].agent;

        if (agent == core->options.self || agent >= core->options.agent_count)
            continue;
        if (core->peers[agent].incarnation == 0 && agent_maybe_alive(core, agent))
            return false;
        is_alone = false;
    }
    return is_alone || core->heard;
}

/*
 * What the first begin proves to an agent that has just started, or is in a new epoch. Trainers
 * begin their steps in order, and in lockstep with those of other nodes:
 *
 *   nothing is whole beyond it   they are the ones that were here before, or the first: no yes was
 *   said here to this step or to later ones
 *   something is                 they began anew, without a restore. Whatever is whole was said yes
 *                                to, perhaps here too, and may not be mixed with what they capture:
 *                                to them these steps are passed
 *
 * The step itself may be whole in another group already. In the own one it is not before this
 * node's part was captured, so trainers that begin it now are others.
 *
 * That is the only time at which forgotten_before falls, and it falls from UINT64_MAX, which is to
 * know nothing. A limit that is known stays for the epoch: no later begin brings back what was
 * forgotten, and the steps of the next run of trainers start again from 1.
 */
static void
begin_first(struct cairn_core *core, uint64_t step)
{
    uint64_t newest = save_newest_whole(core, false);
    bool anew = newest > step || save_newest_whole(core, true) >= step;

    core->first_step = step;
    if (CAIRN_PLANTED(core, BUG_BEGIN_REMEMBERS))
        return;
    if (anew && newest > core->passed_step)
        core->passed_step = newest;
    if (core->forgotten_before != UINT64_MAX)
        return;
    core->forgotten_before = anew ? newest + 1 : step;
    epoch_store(core);
}

void
save_begin(struct cairn_core *core, const struct cairn_event *event)
{
    bool thinned_out, due, is_deaf;

    if (event->rank >= core->own_ranks || event->step == 0)
        return;
    core->pending[event->rank].waiting = false;
    /* Trainers may have begun anew while this agent was away: the others have seen it. */
    is_deaf = core->is_back && core->first_step == 0 && !has_heard_members(core);
    if (!is_deaf && core->first_step == 0)
        begin_first(core, event->step);
    if (CAIRN_PLANTED(core, BUG_BEGIN_REMEMBERS))
        core->forgotten_before = min_u64(core->forgotten_before, event->step);
    if (event->step > core->last_step)
        due_new_step(core, event->step);
    if (core->frozen || core->self_member == UINT32_MAX || is_deaf) {
        reply_skip(core, event->rank, event->step, CAIRN_SKIP_NOT_READY);
        return;
    }
    core->began_anew |= core->ready.step != 0 && event->step <= core->ready.step;
    if (core->began_anew || event->step <= core->passed_step) {
        /* A trainer that began anew without restoring: capturing it would replace what the job has
         * by less. One that restored is for some steps where others were before: parts of theirs
         * may lie on other nodes, and may not be mixed with its own. */
        reply_skip(core, event->rank, event->step,
                   core->began_anew ? CAIRN_SKIP_STALE : CAIRN_SKIP_BEGUN);
        return;
    }
    give_up_passed(core, event->rank, event->step);
    due = due_is(core, event->step, &thinned_out);
    if (!due)
        reply_skip(core, event->rank, event->step,
                   thinned_out ? CAIRN_SKIP_BUSY : CAIRN_SKIP_NOT_DUE);
    else if (tiling_skips(core, event->rank, event->step))
        reply_skip(core, event->rank, event->step, CAIRN_SKIP_UNTILED);
    else
        try_begin(core, event->rank, event->step);
}
