/*
 * agent/core/restore_join.c - how an agent that the last restore did not hear in time becomes a
 * member without an operator.
 *
 * Such an agent is alive and knows the epoch, but has no place in its roster: what trains on its
 * node is not protected, and where the trainers say how many they are, nothing of the job is. It
 * coordinates a restore of its own whose next roster has the old members in their order and the
 * late agents behind them. To everybody else that is a repair: trainers go on, the generation in
 * flight is given up, and what the epoch restores from stays what it is.
 *
 * No epoch is made that would not help: all members must answer and have trainers, and the ranks of
 * members and late agents together must be the job. A job that goes on with fewer nodes never waits
 * for one that came back without trainers. So one epoch takes in all late agents, and nobody is
 * ever put out again by flickering: after a restart of the trainers there is one such epoch at
 * most. Where it does not come about the pauses between tries double.
 */
#include "agent/core/core_state.h"

#include <string.h>

enum { AHEAD_MAX = 6 };

static void
list_members(const struct cairn_core *core, uint64_t members[CAIRN_NODES_MAX / 64])
{
    memset(members, 0, CAIRN_NODES_MAX / 8);
    for (uint32_t m = 0; m < core->table->member_count; m++)
        cairn_bitset_add(members, core->table->members[m].agent);
}

bool
join_called_for(const struct cairn_core *core)
{
    if (core->self_member != UINT32_MAX || core->own_ranks == 0 ||
        CAIRN_PLANTED(core, BUG_NEVER_JOINS))
        return false;
    for (uint32_t m = 0; m < core->table->member_count; m++)
        if (!agent_alive(core, core->table->members[m].agent))
            return false;
    return true;
}

/* Twice what makes an agent dead, so that one that comes and goes asks for nothing; and late agents
 * one after the other. */
uint64_t
join_patience_ns(const struct cairn_core *core)
{
    uint32_t tried =
        core->joins_tried < JOIN_PATIENCE_LOG2_MAX ? core->joins_tried : JOIN_PATIENCE_LOG2_MAX;
    uint64_t members[CAIRN_NODES_MAX / 64], before = 0;

    list_members(core, members);
    for (uint32_t a = 0; a < core->options.self && before < AHEAD_MAX; a++)
        before += agent_alive(core, a) && !cairn_bitset_has(members, a);
    return (core->options.dead_after_ns << 1 << tried) + before * core->options.claim_timeout_ns;
}

uint32_t
join_late_agents(const struct cairn_core *core, uint32_t *late)
{
    const struct inventory *inventories = core->restore.inventories;
    uint64_t members[CAIRN_NODES_MAX / 64], ranks = 0;
    uint32_t world = 0, count = 0;

    for (uint32_t m = 0; m < core->table->member_count; m++)
        if (core->table->members[m].agent >= core->options.agent_count)
            return 0; /* of a configuration with more nodes */
    list_members(core, members);
    for (uint32_t a = 0; a < core->options.agent_count; a++) {
        const struct inventory *inventory = &inventories[a];
        bool member = cairn_bitset_has(members, a);
        bool trains = inventory->known && inventory->active == core->active && inventory->ranks > 0;

        if (member && !trains)
            return 0;
        if (!trains)
            continue;
        if (inventory->world != 0 && world != 0 && inventory->world != world)
            return 0; /* left-overs of another job */
        world = inventory->world ? inventory->world : world;
        ranks += inventory->ranks;
        if (!member)
            late[count++] = a;
    }
    return world == 0 || ranks == world ? count : 0;
}

bool
join_possible(const struct cairn_core *core)
{
    uint32_t late[CAIRN_NODES_MAX];

    return join_late_agents(core, late) > 0;
}

uint64_t
join_largest_part(const struct cairn_core *core)
{
    uint64_t largest = 0;

    for (uint32_t a = 0; a < core->options.agent_count; a++)
        if (core->restore.inventories[a].known && core->restore.inventories[a].blocks > largest)
            largest = core->restore.inventories[a].blocks;
    return largest;
}

/*
 * Parts of the generation that was in flight may be there: of one that has not all ranks of the
 * job, or not all its parts. All members have answered, so it never was committed, or somebody
 * would know.
 */
bool
join_from_nothing(const struct cairn_core *core)
{
    const struct choice *choice = &core->restore.choice;

    if (core->ready.step != 0 || choice->err != CAIRN_LOST || choice->passed_committed ||
        choice->excluded_count > 0)
        return false;
    for (uint32_t a = 0; a < core->options.agent_count; a++) {
        const struct inventory *inventory = &core->restore.inventories[a];

        if (inventory->spilled.step != 0 ||
            (inventory->active == core->active && inventory->ready.step != 0))
            return false;
    }
    return true;
}

/*
 * An agent that is started anew and finds no files has forgotten what was spilled, and one that
 * learns of a newer one what was restored. Whether the files are there is for whoever restores to
 * find out: an epoch that changes nothing about what is restored does not depend on it.
 */
bool
join_keeps_files(const struct cairn_core *core)
{
    const struct choice *choice = &core->restore.choice;

    if (core->ready.step == 0 || !core->ready_from_files || choice->err != CAIRN_LOST ||
        choice->passed_committed || choice->excluded_count > 0)
        return false;
    for (uint32_t a = 0; a < core->options.agent_count; a++) {
        const struct inventory *inventory = &core->restore.inventories[a];

        if (inventory->known && inventory->active == core->active &&
            cairn_generation_compare(inventory->ready, core->ready) > 0)
            return false; /* something was committed since */
    }
    return true;
}
