/*
 * tests/sim/intruder.c - the same job launched a second time: on some nodes, its trainers take the
 * place of the first trainers, name another launch id, and train from another state. They step by
 * themselves, do not wait for anybody, and copy at once.
 *
 * While both launches are registered nothing may be captured; a generation that mixes them would
 * have two lives.
 */
#include "tests/sim/sim.h"

static void
wake(struct world *world, const struct node *node, uint64_t after_ns)
{
    struct sim_event event = sim_event_new(world, EVENT_INTRUDER, node->number, after_ns);

    event.incarnation = node->incarnation;
    queue_push(&world->queue, &event);
}

void
intruder_come(struct world *world)
{
    uint64_t some = random_next(&world->random);
    uint64_t stays_ns = random_between(&world->random, 5 * SECOND_NS, 60 * SECOND_NS);

    if (world->gang.state != GANG_RUNNING || !world->setup.launches || world->gang.member_count < 2)
        return;
    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        struct node *node = &world->nodes[i];
        struct sim_event leaves = sim_event_new(world, EVENT_HEAL, i, stays_ns);

        if (!node->registered || node->intruded || node->member == 0 ||
            (mix64(some + i) % 2 && world->gang.member_count > 2))
            continue;
        world_say(world, "a second launch takes node %u", i);
        trainer_agent_died(world, node);
        node->intruded = true;
        node->intruder_step = random_below(&world->random, 2 * world->gang.step + 2);
        trainer_tell_ranks(world, node, intruder_life(node->life));
        wake(world, node, random_below(&world->random, world->setup.step_ns));
        leaves.value = 3;
        queue_push(&world->queue, &leaves);
    }
}

/* The next step. */
void
intruder_go(struct world *world, struct node *node)
{
    if (!node->intruded)
        return;
    node->intruder_step++;
    for (uint32_t r = 0; r < world->setup.ranks; r++) {
        struct cairn_event begin = {.type = CAIRN_EVENT_BEGIN,
                                    .as.step = {.rank = r, .step = node->intruder_step}};

        trainer_local(world, node, &begin, NULL);
    }
    wake(world, node, world->setup.step_ns);
}

static void
copy_all(struct world *world, struct node *node, const struct told *told)
{
    uint64_t life = intruder_life(node->life), first = 0, count;
    struct cairn_event done = {.type = CAIRN_EVENT_CAPTURED,
                               .as.captured = {.generation = told->generation, .rank = told->rank}};

    for (uint32_t r = 0; r < told->rank; r++)
        first += gang_rank_blocks(world, life, node->member, r);
    count = gang_rank_blocks(world, life, node->member, told->rank);
    for (uint64_t b = 0; b < count; b++) {
        uint8_t *block = memory_block(node, told->part, CAIRN_AREA_DATA, 0, first + b);
        uint64_t crc;
        struct cairn_event blocks = {
            .type = CAIRN_EVENT_BLOCKS,
            .as.blocks = {.generation = told->generation, .first_block = first + b, .count = 1}};

        if (!block)
            return;
        truth_block(world, life, told->step, node->member, first + b, block);
        crc = block_crc(block);
        trainer_local(world, node, &blocks, &crc);
    }
    trainer_local(world, node, &done, NULL);
}

void
intruder_told(struct world *world, struct node *node, const struct told *told)
{
    if (told->type == CAIRN_ACTION_GRANT && told->life == intruder_life(node->life) &&
        told->step == node->intruder_step)
        copy_all(world, node, told);
}

void
intruder_leave(struct world *world, struct node *node)
{
    if (!node->intruded)
        return;
    world_say(world, "the second launch leaves node %u", node->number);
    node->intruded = false;
    if (node->running)
        trainer_tell_ranks(world, node, 0);
}
