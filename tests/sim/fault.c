/*
 * tests/sim/fault.c - what goes wrong. In most schedules only as much as the configuration must
 * survive: of the parts of the generation that must be kept, at most m of each erasure group are
 * lost or damaged at the same time.
 */
#include "tests/sim/sim.h"

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

void
fault_damage_records(struct world *world, struct node *node)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        if (node->records[i].len == 0 || !random_chance(&world->random, 500) ||
            !fault_may_lose(world, node->number))
            continue;
        node->records[i].len = 1; /* the slot store's checksum finds it */
        node->records[i].bytes[0] = 0xee;
        judge_lost_record(world, node, i);
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
    node_start_later(world, node, random_between(&world->random, SECOND_NS, 30 * SECOND_NS));
}

/* So many agents have forgotten what they promised and heard no epoch since. */
static uint32_t
forgetful(const struct world *world)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < world->setup.agent_count; i++)
        count += world->nodes[i].disk_lost;
    return count;
}

static void
crash_node(struct world *world)
{
    struct node *node = some_node(world);
    bool disk_too =
        random_chance(&world->random, 300) && 2 * (forgetful(world) + 1) < world->setup.agent_count;

    if (!node->up || !fault_may_lose(world, node->number))
        return;
    node_crash(world, node, disk_too);
    if (random_chance(&world->random, 500)) { /* it boots again by itself, blank */
        node->up = true;
        node_start_later(world, node,
                         random_between(&world->random, 5 * SECOND_NS, 60 * SECOND_NS));
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
        node_start_later(world, node, random_between(&world->random, SECOND_NS, 20 * SECOND_NS));
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
heal_later(struct world *world, uint32_t node, uint64_t what, uint64_t after_ns)
{
    struct sim_event heal = sim_event_new(world, EVENT_HEAL, node, after_ns);

    heal.value = what;
    queue_push(&world->queue, &heal);
}

static void
partition(struct world *world)
{
    network_cut(world, (enum cut_kind)random_between(&world->random, CUT_HALVES, CUT_SOME));
    heal_later(world, 0, 0, random_between(&world->random, SECOND_NS, 60 * SECOND_NS));
}

static void
cut_one_way(struct world *world)
{
    network_cut(world, CUT_ONE_WAY);
    heal_later(world, 0, 0, random_between(&world->random, 20 * SECOND_NS, 120 * SECOND_NS));
}

/* An agent beats, and does nothing else. */
static void
wedge(struct world *world)
{
    struct node *node = some_node(world);
    uint64_t until_ns =
        world->now_ns + random_between(&world->random, 10 * SECOND_NS, 200 * SECOND_NS);

    if (!node->running || node->wedged_until_ns > world->now_ns)
        return;
    world_say(world, "agent %u is wedged until %llu s", node->number,
              (unsigned long long)(until_ns / SECOND_NS));
    node->wedged_until_ns = until_ns;
    if (world->setup.faults_end_ns < until_ns)
        world->setup.faults_end_ns = until_ns;
    if (random_chance(&world->random, 400)) /* and a restore is asked for meanwhile */
        kill_trainer(world);
}

/* A spill reads the newest complete part for ever. With two slots the service gives it up. */
static void
hang_spill(struct world *world)
{
    struct node *node = some_node(world);
    struct cairn_event pin = {.type = CAIRN_EVENT_PIN};
    struct cairn_core_view view;

    if (!node->running || node->hung.step != 0 || node->pinned.step != 0)
        return;
    cairn_core_look(node->core, &view);
    if (view.committed.step == 0)
        return;
    node->hung = view.committed;
    pin.as.pin = (struct cairn_event_pin){view.committed, true};
    world_say(world, "a spill at agent %u hangs with " GENERATION, node->number,
              GENERATION_OF(node->hung));
    trainer_local(world, node, &pin, NULL);
    if (world->setup.slots == 2)
        heal_later(world, node->number, 2, 60 * SECOND_NS);
}

/*
 * Trainers stop; one agent, with its node alive, is away for so long that its part is repaired;
 * then it is back, and as many others are lost as may be.
 */
void
fault_script(struct world *world)
{
    struct script *script = &world->script;
    struct node *node = &world->nodes[script->away];
    struct sim_event next = sim_event_new(world, EVENT_SCRIPT, 0, 0);

    if (world->healed || script->stage == 0)
        return;
    script->stage++;
    if (script->stage == 2) {
        node_crash_agent(world, node);
        node_start_later(world, node,
                         world->setup.repair_after_ns +
                             random_between(&world->random, 20 * SECOND_NS, 60 * SECOND_NS));
        next.at_ns += world->setup.repair_after_ns + 90 * SECOND_NS;
    } else {
        uint32_t n = world->setup.agent_count, first = (uint32_t)random_below(&world->random, n);
        uint32_t lost = 0;

        for (uint32_t i = 0; i < n && lost < world->setup.parity; i++) {
            struct node *other = &world->nodes[(first + i) % n];

            if (other == node || !other->up || !judge_budget(world, other->number))
                continue;
            node_crash(world, other, false);
            lost++;
        }
        script->stage = 0;
        world->admin.holds_until_ns = 0;
        return;
    }
    queue_push(&world->queue, &next);
}

static void
begin_away(struct world *world)
{
    struct sim_event next = sim_event_new(world, EVENT_SCRIPT, 0, 10 * SECOND_NS);
    struct node *node = some_node(world);

    if (world->script.stage != 0 || !node->running || world->setup.repair_after_ns == 0)
        return;
    world_say(world, "the trainers stop, and agent %u will be away", node->number);
    gang_kill(world);
    world->script.stage = 1;
    world->script.away = node->number;
    world->admin.holds_until_ns = world->now_ns + world->setup.repair_after_ns + 120 * SECOND_NS;
    if (world->setup.faults_end_ns < world->admin.holds_until_ns)
        world->setup.faults_end_ns = world->admin.holds_until_ns;
    queue_push(&world->queue, &next);
}

static void
fill_disk(struct world *world)
{
    struct node *node = some_node(world);

    node->disk_full = true;
    heal_later(world, node->number, 1,
               random_between(&world->random, 5 * SECOND_NS, 60 * SECOND_NS));
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
    case FAULT_ONE_WAY:
        cut_one_way(world);
        break;
    case FAULT_BREAK:
        if (random_chance(&world->random, 300))
            network_break_some(world, some_node(world), 1000);
        else
            world->network.breaks_per_million = (uint32_t)random_below(&world->random, 5000);
        break;
    case FAULT_DELAY:
        world->network.delay_ns_max = random_chance(&world->random, 200)
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
        world->network.damage_per_thousand = (uint32_t)random_below(&world->random, 200);
        break;
    case FAULT_DISK:
        fill_disk(world);
        break;
    case FAULT_OPERATOR:
        operator_ask_aside(world);
        break;
    case FAULT_WEDGE:
        wedge(world);
        break;
    case FAULT_AWAY:
        begin_away(world);
        break;
    case FAULT_INTRUDER:
        intruder_come(world);
        break;
    case FAULT_HANG:
        hang_spill(world);
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
    network_heal(world);
    world->healed = true;
    world->network.breaks_per_million = 0;
    world->network.damage_per_thousand = 0;
    world->network.delay_ns_max = 0;
    world->progress_ns = world->now_ns;
    world->admin.holds_until_ns = world->admin.lost_answers = 0;
    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        struct node *node = &world->nodes[i];

        node->disk_full = false;
        if (node->paused_until_ns > world->now_ns)
            node->paused_until_ns = world->now_ns;
        if (node->wedged_until_ns > world->now_ns)
            node->wedged_until_ns = world->now_ns;
        if (node->hung.step)
            heal_later(world, i, 2, 0);
        intruder_leave(world, node);
        node->up = true;
        if (!node->running)
            node_start_later(world, node, random_below(&world->random, 5 * SECOND_NS));
    }
}

/* As much as may be lost, at once; the restore that follows must bring everything back. */
void
fault_exam(struct world *world)
{
    uint32_t n = world->setup.agent_count, first = (uint32_t)random_below(&world->random, n);
    uint32_t lost = 0, limit = n > 64 ? 24 : n / 2;

    world->exam_begun = true;
    for (uint32_t i = 0, flips = 0; i < n && flips + 1 < world->setup.parity; i++)
        flips += judge_flip(world, some_node(world)); /* one part less may be lost then */
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
