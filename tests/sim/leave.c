/*
 * tests/sim/leave.c - sessions that neither side has a use for end, as the product's mail ends them
 * (agent/process/mail.h): a side that has had none for a while says LEAVE, and wants the session no
 * more; the other side ends it if it has had none either.
 */
#include "tests/sim/sim.h"

static bool
has_use(const struct world *world, const struct link *link, uint32_t side)
{
    return world->now_ns - link->used_ns[side] < world->setup.leave_after_ns ||
           cairn_core_needs_session(world->nodes[link->agents[side]].core, link->agents[!side]);
}

void
leave_unused(struct world *world, struct node *node)
{
    for (uint32_t i = 0; i < node->link_count; i++) {
        struct link *link = &world->network.links[node->links[i]];
        uint32_t side = network_side_of(link, node->number);
        struct sim_event event;

        if (link->leaving[side] || link->up != link->told[side] || has_use(world, link, side))
            continue;
        link->wanted[side] = false;
        if (!link->up)
            continue;
        link->leaving[side] = true;
        event = sim_event_new(world, EVENT_LEAVE, link->agents[!side],
                              random_between(&world->random, MS_NS / 5, 500 * MS_NS));
        event.incarnation = world->nodes[link->agents[!side]].incarnation;
        event.value = node->links[i] | (link->session << 32);
        queue_push(&world->queue, &event);
    }
}

void
leave_arrives(struct world *world, const struct sim_event *event)
{
    struct link *link = &world->network.links[(uint32_t)event->value];
    struct node *node = &world->nodes[event->node];
    uint32_t side = network_side_of(link, node->number);

    if (!node->running || node->incarnation != event->incarnation ||
        (uint32_t)link->session != (uint32_t)(event->value >> 32) || !link->up ||
        !link->told[side] || network_is_cut(world, link->agents[!side], node->number) ||
        has_use(world, link, side))
        return;
    world_say(world, "agent %u: leaves agent %u", node->number, link->agents[!side]);
    link->wanted[side] = false;
    world->counters.leaves++;
    network_end_session(world, (uint32_t)event->value, false);
}
