/*
 * tests/sim/judge_plan.c - what a restore decides to rebuild: nothing that an agent holds which
 * runs, can be reached, and stands still for a moment at most.
 */
#include "tests/sim/sim.h"

#include "base/wire.h"

/* What keeps an agent that runs from answering: then its part may be taken for lost. */
static bool
was_silent(const struct world *world, const struct node *node)
{
    uint64_t lately_ns = 60 * SECOND_NS, enough_ns = 2 * world->setup.dead_after_ns;

    if (world->now_ns < node->started_ns + lately_ns)
        return true;
    return world->now_ns < node->paused_until_ns + 5 * SECOND_NS &&
           world->now_ns >= node->paused_from_ns + enough_ns;
}

/* What a rebuild made that a plan replaced is known to nobody, and made again. */
static bool
has_captured(const struct node *node, struct cairn_generation generation, uint32_t member)
{
    int holding = stored_at(node, generation, member);

    return holding >= 0 && !node->stored[holding].rebuilt;
}

/* A part that an agent holds which can answer, or will soon, is not rebuilt elsewhere. */
void
judge_plan(struct world *world, struct node *coordinator, const struct cairn_message *message)
{
    struct cairn_roster *table = NULL;
    struct cairn_reader reader;

    if (coordinator->plan_judged == message->request)
        return; /* repeated while it is carried out */
    coordinator->plan_judged = message->request;
    if (world->now_ns < world->unreliable_ns + 60 * SECOND_NS || network_unreliable(world) ||
        world->now_ns < coordinator->started_ns + 60 * SECOND_NS ||
        /* what was said meanwhile is behind it in its queue */
        world->now_ns < coordinator->paused_until_ns + 5 * SECOND_NS)
        return;
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    if (cairn_roster_read(&reader, &table) != CAIRN_OK) {
        judge_fail(world, VERDICT_OTHER, "the plan of agent %u does not parse",
                   coordinator->number);
        return;
    }
    for (uint32_t m = 0; m < table->member_count; m++) {
        uint32_t holder = cairn_read_u32(&reader), target = cairn_read_u32(&reader);

        for (uint32_t a = 0;
             holder == UINT32_MAX && target != UINT32_MAX && a < world->setup.agent_count; a++)
            if (world->nodes[a].running && has_captured(&world->nodes[a], message->generation, m) &&
                !was_silent(world, &world->nodes[a]))
                judge_fail(world, VERDICT_OTHER,
                           "agent %u rebuilds member %u of step %llu, which agent %u holds and "
                           "would have said soon",
                           coordinator->number, m, (unsigned long long)message->generation.step, a);
    }
    cairn_roster_drop(table);
}
