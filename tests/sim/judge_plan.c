/*
 * tests/sim/judge_plan.c - what a restore decides to rebuild: nothing that an agent holds which
 * runs, can be reached, and stands still for a moment at most.
 */
#include "tests/sim/sim.h"

#include "agent/core/repair/repair.h"
#include "base/wire.h"

bool
judge_was_silent(const struct world *world, const struct node *node)
{
    uint64_t lately_ns = 60 * SECOND_NS, enough_ns = 2 * world->setup.dead_after_ns;

    if (world->now_ns < node->started_ns + lately_ns)
        return true;
    if (world->now_ns < node->wedged_until_ns + lately_ns && node->wedged_until_ns)
        return true;
    return world->now_ns < node->paused_until_ns + 5 * SECOND_NS &&
           world->now_ns >= node->paused_from_ns + enough_ns;
}

bool
judge_is_calm(const struct world *world)
{
    return world->now_ns >= world->network.unreliable_ns + 60 * SECOND_NS &&
           !network_unreliable(world);
}

/* What a rebuild made that a plan replaced is known to nobody, and made again. What was completed
 * only now was not listed. */
static bool
has_captured(const struct world *world, const struct node *node,
             struct cairn_generation_id generation, uint32_t member)
{
    int part = stored_at(node, generation, member);

    return part >= 0 && !node->stored[part].rebuilt &&
           node->stored[part].since_ns + 10 * SECOND_NS < world->now_ns;
}

/* A part that an agent holds which can answer, or will soon, is not rebuilt elsewhere. */
void
judge_plan(struct world *world, struct node *coordinator, const struct cairn_message *message)
{
    const struct cairn_message_rebuild *rebuild = &message->as.rebuild;
    struct plan plan;

    if (coordinator->plan_judged == rebuild->attempt)
        return; /* said to each that takes part */
    coordinator->plan_judged = rebuild->attempt;
    if (!judge_is_calm(world) || world->now_ns < coordinator->started_ns + 60 * SECOND_NS ||
        /* newer reports wait in its queue */
        world->now_ns < coordinator->paused_until_ns + 5 * SECOND_NS ||
        world->now_ns < coordinator->wedged_until_ns + 5 * SECOND_NS)
        return;
    if (plan_read(message->bytes, message->bytes_len, world->setup.agent_count, &plan) !=
        CAIRN_OK) {
        judge_fail(world, VERDICT_OTHER, "the plan of agent %u does not parse",
                   coordinator->number);
        return;
    }
    for (uint32_t m = 0; m < plan.roster->member_count; m++)
        for (uint32_t a = 0; plan.holders[m] == UINT32_MAX && plan.targets[m] != UINT32_MAX &&
                             a < world->setup.agent_count;
             a++)
            if (world->nodes[a].running &&
                has_captured(world, &world->nodes[a], rebuild->generation, m) &&
                !judge_was_silent(world, &world->nodes[a]))
                judge_fail(world, VERDICT_OTHER,
                           "agent %u rebuilds member %u of " GENERATION
                           ", which agent %u holds and would have said soon",
                           coordinator->number, m, GENERATION_OF(rebuild->generation), a);
    plan_fini(&plan);
}
