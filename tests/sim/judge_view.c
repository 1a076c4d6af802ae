/*
 * tests/sim/judge_view.c - what status would say: how many further losses of nodes are survived
 * (R7), and who blocks what is due (R8). And what agents outside the epoch know.
 */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

enum { LOSSES_MAX = 3 /* compared with the truth; more are taken for so many */ };

/* ---- R7 ---- */

/* An agent that answers says that it holds a complete part. */
static bool
says_it_holds(const struct world *world, uint32_t agent, struct cairn_generation_id generation,
              uint32_t member)
{
    const struct node *node = &world->nodes[agent];
    struct cairn_part_view part;

    for (uint32_t i = 0; node_answers(world, node) && i < CAIRN_PARTS_MAX; i++)
        if (cairn_core_look_part(node->core, i, &part) && part.state == CAIRN_PART_COMPLETE &&
            same(part.generation, generation) && part.member == member)
            return true;
    return false;
}

static int
most_first(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

    return a < b ? 1 : a > b ? -1 : 0;
}

/* As the service computes it, from holders: two parts on one node are lost together. -1: nothing
 * can be restored. */
static int
claimed(const struct world *world, const struct node *node, const struct cairn_core_view *view)
{
    uint32_t n = world->setup.agent_count, *held = some_zeros(n, sizeof *held);
    int survives = LOSSES_MAX;

    for (uint32_t g = 0; g < view->ready_roster->group_count; g++) {
        const struct cairn_roster_group *group = &view->ready_roster->groups[g];
        int left = (int)group->parity, losses = -1;

        memset(held, 0, n * sizeof *held);
        for (uint32_t p = 0; p < group->count; p++) {
            uint32_t holder = cairn_core_holder(node->core, view->ready, group->members[p]);

            if (holder < n && says_it_holds(world, holder, view->ready, group->members[p]))
                held[holder]++;
            else
                left--;
        }
        qsort(held, n, sizeof *held, most_first);
        for (uint32_t a = 0; left >= 0 && losses < LOSSES_MAX; a++) {
            losses++;
            left -= a < n ? (int)held[a] : 0;
        }
        if (losses < survives)
            survives = losses;
    }
    free(held);
    return survives;
}

/* Whether the group is restorable after `losses` more agents from `from` on are lost. */
static bool
survives_more(const struct world *world, const struct truth *truth, uint32_t group, uint64_t lost,
              uint32_t from, int losses)
{
    uint32_t missing = 0;

    for (uint32_t m = 0; m < truth->member_count; m++) {
        bool present = false;

        for (uint32_t a = 0; truth->groups[m] == group && a < world->setup.agent_count; a++)
            present |= !(lost >> a & 1) && stored_at(&world->nodes[a], truth->generation, m) >= 0;
        missing += truth->groups[m] == group && !present;
    }
    if (missing > truth->group_parity[group])
        return false;
    for (uint32_t a = from; losses > 0 && a < world->setup.agent_count; a++)
        if (!survives_more(world, truth, group, lost | UINT64_C(1) << a, a + 1, losses - 1))
            return false;
    return true;
}

void
judge_protection(struct world *world, const struct node *node)
{
    struct cairn_core_view view;
    const struct truth *truth;
    int losses;

    if (world->setup.agent_count > 12 || !node_answers(world, node))
        return;
    cairn_core_look(node->core, &view);
    truth = judge_truth(world, view.ready);
    if (!truth || !view.ready_roster || view.fenced || view.ready_from_files ||
        view.ready_roster->member_count != truth->member_count)
        return;
    losses = claimed(world, node, &view);
    world->counters.views++;
    for (uint32_t g = 0; losses >= 0 && g < truth->group_count; g++)
        if (!survives_more(world, truth, g, 0, 0, losses))
            judge_fail(world, VERDICT_OTHER,
                       "agent %u says that " GENERATION
                       " is protected against %d losses, which group %u is not",
                       node->number, GENERATION_OF(view.ready), losses, g);
}

/* ---- R8 ---- */

/* The first member of the newest epoch, if it could have made progress for a while. */
static const struct node *
leader(const struct world *world, struct cairn_core_view *view)
{
    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        const struct node *node = &world->nodes[i];

        if (!node_answers(world, node))
            continue;
        cairn_core_look(node->core, view);
        if (view->self_member == 0 && view->active == world->newest_epoch && !view->fenced)
            return node;
    }
    return NULL;
}

/* All trainers of the job are registered, and yet there can be no run: the tensors do not fit
 * together, or some are of another launch. */
static bool
must_refuse(const struct world *world, const struct cairn_core_view *view)
{
    bool refused = world->gang.layout != LAYOUT_GOOD;

    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        const struct node *node = &world->nodes[i];

        if (node->member == UINT32_MAX) {
            /* The repair that takes these trainers' agents in may wait for what it holds. */
            if (view->roster && cairn_roster_member_of(view->roster, i) != UINT32_MAX &&
                !node_answers(world, node))
                return false;
            continue;
        }
        if (!node_answers(world, node) || (uint32_t)node->core_life != world->gang.life)
            return false;
        refused |= node->intruded;
    }
    return refused;
}

/* Once a second: status says why there is no run. */
static void
check_refusal(struct world *world, const struct node *node, const struct cairn_core_view *view)
{
    if (!node || !judge_is_calm(world) || judge_was_silent(world, node) ||
        world->gang.state != GANG_RUNNING || world->gang.roster_count != world->gang.member_count ||
        world->newest_epoch < world->gang.epoch || !must_refuse(world, view)) {
        world->gang.refused_ns = 0;
        return;
    }
    if (world->gang.refused_ns == 0)
        world->gang.refused_ns = world->now_ns;
    if (world->now_ns > world->gang.refused_ns + 25 * SECOND_NS && !view->refusal[0])
        judge_fail(world, VERDICT_OTHER, "the leader, agent %u, does not say why there is no run",
                   node->number);
}

/* ---- agents outside the epoch ---- */

/* Once a second: what a trainer there would restore is what the others restore. */
static void
check_outside(struct world *world, const struct node *node, const struct cairn_core_view *view)
{
    bool looks = node && judge_is_calm(world) && !judge_was_silent(world, node), behind = false;
    struct cairn_core_view outside;

    for (uint32_t i = 0; looks && i < world->setup.agent_count; i++) {
        const struct node *other = &world->nodes[i];

        if (!node_answers(world, other) || judge_was_silent(world, other))
            continue;
        cairn_core_look(other->core, &outside);
        if (outside.self_member != UINT32_MAX || outside.blank || outside.active != view->active)
            continue;
        behind |= cairn_generation_id_compare(outside.ready, world->leader_ready) < 0;
    }
    world->leader_ready = looks ? view->ready : (struct cairn_generation_id){0};
    if (!behind)
        world->behind_ns = 0;
    else if (world->behind_ns == 0)
        world->behind_ns = world->now_ns;
    else if (world->now_ns > world->behind_ns + 30 * SECOND_NS)
        judge_fail(world, VERDICT_OTHER,
                   "an agent outside the epoch does not know of " GENERATION ", which is committed",
                   GENERATION_OF(view->ready));
}

void
judge_blocker(struct world *world)
{
    uint64_t patience_ns = 60 * SECOND_NS + 8 * world->setup.every_steps * world->setup.step_ns;
    struct cairn_core_view view;
    const struct node *node = leader(world, &view);

    check_refusal(world, node, &view);
    check_outside(world, node, &view);
    if (!node || world->setup.asked_for || world->gang.state != GANG_RUNNING ||
        world->now_ns < node->started_ns + patience_ns ||
        world->now_ns < world->gang.started_ns + patience_ns || view.run == 0 ||
        view.next_step == 0 || view.last_step < view.next_step ||
        view.blocker.generation.step != 0 || !judge_is_calm(world) ||
        judge_was_silent(world, node)) {
        world->stuck_ns = 0;
        return;
    }
    if (world->stuck_ns == 0 || world->stuck_ns < world->last_commit_ns)
        world->stuck_ns = world->now_ns;
    if (world->now_ns > world->stuck_ns + patience_ns)
        judge_fail(world, VERDICT_OTHER,
                   "step %llu is due for %llu s, and the leader, agent %u, names nobody",
                   (unsigned long long)view.next_step,
                   (unsigned long long)(patience_ns / SECOND_NS), node->number);
}
