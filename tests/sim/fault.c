/*
 * tests/sim/fault.c - what goes wrong. In most schedules only as much as the configuration must
 * survive: of the parts of the generation that must be kept, at most m of each erasure group are
 * lost or damaged at the same time.
 */
#include "tests/sim/sim.h"

#include <string.h>

bool
fault_may_lose(const struct world *world, uint32_t node)
{
    return world->setup.beyond || judge_budget(world, node);
}

static struct node *
some_node(struct world *world)
{
    return &world->nodes[random_below(&world->random, world->setup.agent_count)];
}

static void
start_later(struct world *world, const struct node *node, uint64_t after_ns)
{
    struct sim_event start = sim_event_new(world, EVENT_START, node->number, after_ns);

    start.incarnation = node->incarnation;
    queue_push(&world->queue, &start);
}

void
fault_damage_records(struct world *world, struct node *node)
{
    for (uint32_t i = 0; i < CAIRN_HOLDINGS_MAX; i++) {
        if (node->records[i].len == 0 || !random_chance(&world->random, 500) ||
            !fault_may_lose(world, node->number))
            continue;
        judge_lost_record(world, node, i); /* the slot store's checksum finds it */
        node->records[i].len = 1;
        node->records[i].bytes[0] = 0xee;
        node->stored[i] = (struct stored){0};
    }
}

static void
crash_agent(struct world *world, bool damage_record)
{
    struct node *node = some_node(world);

    if (!node->running)
        return;
    node_crash_agent(world, node);
    if (damage_record)
        fault_damage_records(world, node);
    start_later(world, node, random_between(&world->random, SECOND_NS, 30 * SECOND_NS));
}

static void
crash_node(struct world *world)
{
    struct node *node = some_node(world);

    if (!node->up || !fault_may_lose(world, node->number))
        return;
    node_crash(world, node, random_chance(&world->random, 300));
    if (random_chance(&world->random, 500)) { /* it boots again by itself, blank */
        node->up = true;
        start_later(world, node, random_between(&world->random, 5 * SECOND_NS, 60 * SECOND_NS));
    }
}

static void
kill_trainer(struct world *world)
{
    trainer_kill(world, some_node(world));
}

/* A new version of the agent is rolled out in haste: their memory and disks stay. */
static void
restart_all(struct world *world)
{
    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        struct node *node = &world->nodes[i];

        if (!node->running)
            continue;
        node_crash_agent(world, node);
        start_later(world, node, random_between(&world->random, SECOND_NS, 20 * SECOND_NS));
    }
}

static void
pause_agent(struct world *world)
{
    struct node *node = some_node(world);
    uint64_t seconds = random_chance(&world->random, 50) ? random_between(&world->random, 60, 600)
                                                         : random_between(&world->random, 1, 40);

    if (!node->running)
        return;
    world_say(world, "agent %u is paused for %llu s", node->number, (unsigned long long)seconds);
    if (node->paused_until_ns < world->now_ns)
        node->paused_from_ns = world->now_ns;
    if (node->paused_until_ns < world->now_ns + seconds * SECOND_NS)
        node->paused_until_ns = world->now_ns + seconds * SECOND_NS;
    if (world->setup.faults_end_ns < node->paused_until_ns)
        world->setup.faults_end_ns = node->paused_until_ns;
}

static void
partition(struct world *world)
{
    uint32_t n = world->setup.agent_count, kind = (uint32_t)random_below(&world->random, 4);
    uint64_t half = random_next(&world->random);
    uint32_t lone = (uint32_t)random_below(&world->random, n);
    struct sim_event heal;

    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++) {
            bool a_side = mix64(half + a) & 1, b_side = mix64(half + b) & 1;
            bool cut = false;

            if (kind == 0)
                cut = a_side != b_side;
            else if (kind == 1)
                cut = a_side && !b_side;
            else if (kind == 2)
                cut = a == lone || b == lone;
            else
                cut = random_chance(&world->random, 200);
            world->cut[a * n + b] = cut;
        }
    world->cuts = true;
    world_say(world, "the network is cut, kind %u", kind);
    heal = sim_event_new(world, EVENT_HEAL, 0,
                         random_between(&world->random, SECOND_NS, 60 * SECOND_NS));
    queue_push(&world->queue, &heal);
}

static void
fill_disk(struct world *world)
{
    struct node *node = some_node(world);
    struct sim_event heal =
        sim_event_new(world, EVENT_HEAL, node->number,
                      random_between(&world->random, 5 * SECOND_NS, 60 * SECOND_NS));

    node->disk_full = true;
    heal.value = 1;
    queue_push(&world->queue, &heal);
}

static enum fault_kind
pick_kind(struct world *world)
{
    uint64_t sum = 0, at;

    for (uint32_t k = 0; k < FAULT_KINDS; k++)
        sum += world->setup.fault_weight[k];
    if (sum == 0)
        return FAULT_KINDS;
    at = random_below(&world->random, sum);
    for (uint32_t k = 0; k < FAULT_KINDS; k++) {
        if (at < world->setup.fault_weight[k])
            return (enum fault_kind)k;
        at -= world->setup.fault_weight[k];
    }
    return FAULT_KINDS;
}

void
fault_strike(struct world *world)
{
    enum fault_kind kind = pick_kind(world);

    if (kind == FAULT_KINDS || world->healed)
        return;
    world->counters.faults[kind]++;
    switch (kind) {
    case FAULT_AGENT_CRASH:
        crash_agent(world, false);
        break;
    case FAULT_NODE_CRASH:
        crash_node(world);
        break;
    case FAULT_TRAINER_KILL:
        kill_trainer(world);
        break;
    case FAULT_PAUSE:
        pause_agent(world);
        break;
    case FAULT_PARTITION:
        partition(world);
        break;
    case FAULT_LOSS:
        world->loss_per_thousand = (uint32_t)random_below(&world->random, 301);
        break;
    case FAULT_REPEAT:
        world->repeat_per_thousand = (uint32_t)random_below(&world->random, 501);
        break;
    case FAULT_DELAY:
        world->delay_ns_max = random_chance(&world->random, 200)
                                  ? 60 * SECOND_NS
                                  : random_below(&world->random, 5 * SECOND_NS);
        break;
    case FAULT_FLIP:
        judge_flip(world, some_node(world));
        break;
    case FAULT_RECORD:
        crash_agent(world, true);
        break;
    case FAULT_DAMAGE:
        world->damage_per_thousand = (uint32_t)random_below(&world->random, 200);
        break;
    case FAULT_DISK:
        fill_disk(world);
        break;
    case FAULT_OPERATOR:
        operator_ask_aside(world);
        break;
    case FAULT_RESTART_ALL:
        restart_all(world);
        break;
    case FAULT_KINDS:
        break;
    }
}

/* The end of all faults. */
void
fault_heal(struct world *world)
{
    world_say(world, "everything heals");
    if (network_unreliable(world))
        world->unreliable_ns = world->now_ns;
    world->healed = true;
    world->cuts = false;
    world->loss_per_thousand = 0;
    world->repeat_per_thousand = 0;
    world->damage_per_thousand = 0;
    world->delay_ns_max = 0;
    world->progress_ns = world->now_ns;
    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        struct node *node = &world->nodes[i];

        node->disk_full = false;
        if (node->paused_until_ns > world->now_ns)
            node->paused_until_ns = world->now_ns;
        node->up = true;
        if (!node->running)
            start_later(world, node, random_below(&world->random, 5 * SECOND_NS));
    }
}

/* As much as may be lost, at once; the restore that follows must bring everything back. */
void
fault_exam(struct world *world)
{
    uint32_t n = world->setup.agent_count, first = (uint32_t)random_below(&world->random, n);
    uint32_t lost = 0, limit = n / 2;

    world->exam_begun = true;
    for (uint32_t i = 0; i < n && lost < limit; i++) {
        struct node *node = &world->nodes[(first + i) % n];

        if (!node->up || !judge_budget(world, node->number))
            continue;
        node_crash(world, node, false);
        lost++;
    }
    world_say(world, "exam: %u nodes are lost at once", lost);
    if (lost == 0)
        kill_trainer(world);
}
