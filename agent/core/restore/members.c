/* agent/core/restore/members.c - see members.h. */
#include "agent/core/restore/members.h"

#include "agent/core/part/save.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the targets of a repair ---- */

/* Parts that an agent has or gets: in one group, where they are lost together, or in all
 * (UINT32_MAX). */
static uint32_t
load_of(const struct plan *plan, uint32_t agent, uint32_t group)
{
    uint32_t count = 0;

    for (uint32_t m = 0; m < plan->roster->member_count; m++)
        count += (group == UINT32_MAX || plan->roster->members[m].group == group) &&
                 (plan->holders[m] == agent || plan->targets[m] == agent);
    return count;
}

static uint32_t
pick_target(const struct cairn_core_options *options, const struct inventory *inventories,
            const struct plan *plan, const uint64_t *no_room, uint32_t member)
{
    uint32_t own = plan->roster->members[member].agent, best = UINT32_MAX, best_load = UINT32_MAX;

    if (own < options->agent_count && inventories[own].known && !cairn_bitset_has(no_room, own))
        return own;
    for (uint32_t pass = 0; pass < 2 && best == UINT32_MAX; pass++)
        for (uint32_t a = 0; a < options->agent_count; a++) {
            uint32_t load;

            if (!inventories[a].known || cairn_bitset_has(no_room, a))
                continue;
            load = load_of(plan, a, UINT32_MAX);
            if (load >= CAIRN_PARTS_MAX - options->slots ||
                (pass == 0 && (!options->spares[a] || load > 0)))
                continue;
            load += CAIRN_PARTS_MAX * load_of(plan, a, plan->roster->members[member].group);
            if (load < best_load) {
                best = a;
                best_load = load;
            }
        }
    return best;
}

/* The damaged blocks of the holders; `out->bad` has room for all. */
static void
collect_bad(const struct inventory *inventories, struct cairn_generation_id generation,
            struct plan *out)
{
    for (uint32_t m = 0; m < out->roster->member_count; m++) {
        const struct inventory_part *part;

        if (out->holders[m] == UINT32_MAX)
            continue;
        part = inventory_find(&inventories[out->holders[m]], generation, m);
        for (uint32_t i = 0; i < part->bad_listed; i++) {
            out->targets[m] = out->holders[m];
            out->bad[out->bad_count] = part->bad[i];
            out->bad[out->bad_count++].position = m;
        }
    }
}

cairn_err
members_plan(const struct cairn_core_options *options, const struct inventory *inventories,
             const struct choice *choice, const uint64_t *no_room, bool only_bad, struct plan *out)
{
    uint32_t count = choice->roster->member_count;
    struct plan plan = {.roster = cairn_roster_hold(choice->roster),
                        .holders = calloc(count, sizeof *plan.holders),
                        .targets = calloc(count, sizeof *plan.targets)};
    size_t bad_room = 1;
    cairn_err err = CAIRN_NOMEM;

    for (uint32_t a = 0; a < options->agent_count; a++)
        for (uint32_t i = 0; i < inventories[a].part_count; i++)
            bad_room += inventories[a].parts[i].bad_listed;
    plan.bad = calloc(bad_room, sizeof *plan.bad);
    if (!plan.holders || !plan.targets || !plan.bad)
        goto done;
    for (uint32_t m = 0; m < count; m++) {
        plan.holders[m] = choose_holder(inventories, options->agent_count, choice->generation, m);
        plan.targets[m] = UINT32_MAX;
    }
    err = CAIRN_OK;
    for (uint32_t m = 0; m < count && !err && !only_bad; m++) {
        if (plan.holders[m] != UINT32_MAX)
            continue;
        plan.targets[m] = pick_target(options, inventories, &plan, no_room, m);
        if (plan.targets[m] == UINT32_MAX)
            err = CAIRN_LOST;
    }
    if (err)
        goto done;
    collect_bad(inventories, choice->generation, &plan);
    *out = plan;
    memset(&plan, 0, sizeof plan);
done:
    plan_fini(&plan);
    return err;
}

bool
members_plan_has_work(const struct plan *plan)
{
    for (uint32_t m = 0; m < plan->roster->member_count; m++)
        if (plan->targets[m] != UINT32_MAX)
            return true;
    return false;
}

/* ---- the next roster ---- */

/*
 * Blocks of a member's part when `count` members share the job: what trainers registered, or as
 * many as in the generation that is restored, its largest part taken for the average. Unknown
 * parts are taken to fill their slots.
 */
static uint64_t
expected_blocks(const struct cairn_core_options *options, const struct members_basis *basis,
                uint32_t count)
{
    uint64_t largest = 0, registered = 0;

    for (uint32_t a = 0; a < options->agent_count; a++) {
        const struct inventory *inventory = &basis->inventories[a];

        if (inventory->known && inventory->self.ranks > 0)
            registered = max_u64(registered, inventory->self.blocks);
        for (uint32_t i = 0; basis->plan && i < inventory->part_count; i++)
            if (cairn_generation_is(inventory->parts[i].generation, basis->generation))
                largest = max_u64(largest, inventory->parts[i].largest_shard);
    }
    if (largest > 0)
        largest = min_u64(largest, options->slot_blocks) * basis->plan->roster->member_count;
    largest = max_u64((largest + count - 1) / count, registered);
    return largest == 0 ? options->slot_blocks : min_u64(largest, options->slot_blocks);
}

/* Whether the parity of such parts fits the memory that every agent reserved at its start. */
static bool
parity_fits(const struct cairn_core_options *options, const struct cairn_roster *roster,
            uint64_t blocks)
{
    for (uint32_t g = 0; g < roster->group_count; g++)
        if (!save_parity_fits(options, &roster->groups[g], blocks))
            return false;
    return true;
}

/*
 * Lays the agents out in groups. Fewer nodes make smaller groups, which need more memory per parity
 * row than was reserved. Then there is less parity: a job that survives one loss is better off than
 * one whose generations never fit.
 */
static cairn_err
lay_out(const struct cairn_core_options *options, const uint32_t *agents, uint32_t count,
        uint64_t blocks, struct cairn_roster **out, char *text, size_t text_bytes)
{
    uint32_t wanted = options->parity < count ? options->parity : count - 1, parity = wanted;
    const char **domains = NULL;
    cairn_err err = CAIRN_OK;

    if (options->domains) {
        domains = calloc(count, sizeof *domains);
        if (!domains)
            return CAIRN_NOMEM;
        for (uint32_t m = 0; m < count; m++)
            domains[m] = options->domains[agents[m]];
    }
    for (;;) {
        err = cairn_roster_build(agents, domains, count, parity, options->group_size, out);
        if (err || parity == 0 || parity_fits(options, *out, blocks))
            break;
        cairn_roster_drop(*out);
        parity--;
    }
    free(domains);
    if (!err && parity < options->parity)
        snprintf(text, text_bytes, "with %u nodes a group survives only %u loss%s, not %u: %s\n",
                 count, parity, parity == 1 ? "" : "es", options->parity,
                 parity < wanted ? "the memory reserved for parity is too small until nodes return"
                                 : "there must be more nodes than losses");
    return err;
}

static bool
trains(const struct inventory *inventory, uint64_t epoch)
{
    return inventory->known && inventory->self.active == epoch && inventory->self.ranks > 0;
}

bool
members_may_change(const struct cairn_core_options *options, const struct inventory *inventories,
                   const struct cairn_roster *roster, uint64_t epoch)
{
    uint64_t members[CAIRN_NODES_MAX / 64] = {0}, ranks = 0;
    bool differ = false, idle = false;
    uint32_t world = 0;

    for (uint32_t m = 0; m < roster->member_count; m++) {
        uint32_t agent = roster->members[m].agent;

        if (agent >= options->agent_count || !inventories[agent].known)
            return false; /* of a configuration with more nodes, or silent */
        cairn_bitset_add(members, agent);
    }
    for (uint32_t a = 0; a < options->agent_count; a++) {
        const struct inventory_self *self = &inventories[a].self;
        bool member = cairn_bitset_has(members, a), busy = trains(&inventories[a], epoch);

        differ |= member != busy;
        idle |= member && !busy;
        if (!busy)
            continue;
        if (self->world != 0 && world != 0 && self->world != world)
            return false; /* trainers of another job */
        world = self->world ? self->world : world;
        ranks += self->ranks;
    }
    return differ && (world == 0 ? !idle : ranks == world);
}

/* The spare that has the part of a lost member; it is not a member itself. */
static uint32_t
stand_in(const struct plan *plan, uint32_t member)
{
    uint32_t holder = plan->holders[member];

    return cairn_roster_member_of(plan->roster, holder) == UINT32_MAX ? holder : UINT32_MAX;
}

/* Whether an agent becomes a member; an old one, or one that stands in for it, also if it is a
 * spare. */
static bool
is_chosen(const struct cairn_core_options *options, const struct members_basis *basis,
          uint32_t agent, bool is_old)
{
    if (agent >= options->agent_count)
        return false;
    if (basis->joining)
        return trains(&basis->inventories[agent], basis->epoch);
    return basis->inventories[agent].known && (is_old || !options->spares[agent]);
}

cairn_err
members_next(const struct cairn_core_options *options, const struct members_basis *basis,
             struct cairn_roster **out, char *text, size_t text_bytes)
{
    bool stand_ins = basis->plan && !basis->joining;
    const struct cairn_roster *old = stand_ins ? basis->plan->roster : basis->old;
    uint32_t old_count = old ? old->member_count : 0, count = 0;
    uint64_t taken[CAIRN_NODES_MAX / 64] = {0};
    uint32_t agents[CAIRN_NODES_MAX];

    text[0] = '\0';
    if (basis->joining &&
        !members_may_change(options, basis->inventories, basis->old, basis->epoch))
        return CAIRN_LOST;
    for (uint32_t i = 0; i < old_count + options->agent_count; i++) {
        bool is_old = i < old_count;
        uint32_t agent = is_old ? old->members[i].agent : i - old_count;

        if (is_old && stand_ins && !is_chosen(options, basis, agent, true))
            agent = stand_in(basis->plan, i);
        if (!is_chosen(options, basis, agent, is_old) || cairn_bitset_has(taken, agent))
            continue;
        cairn_bitset_add(taken, agent);
        agents[count++] = agent;
    }
    if (count == 0)
        return CAIRN_LOST;
    return lay_out(options, agents, count, expected_blocks(options, basis, count), out, text,
                   text_bytes);
}
