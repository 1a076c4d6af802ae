/*
 * tests/sim/run.c - one schedule: the world is made, its events happen in order, faults end, the
 * job must go on, and (in most schedules) all that may be lost is lost at once and must come back.
 */
#include "tests/sim/sim.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
world_say(struct world *world, const char *format, ...)
{
    va_list arguments;

    if (!world->verbose)
        return;
    printf("%10.4f  ", (double)world->now_ns / 1e9);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

struct sim_event
sim_event_new(const struct world *world, enum event_kind kind, uint32_t node, uint64_t after_ns)
{
    return (struct sim_event){.at_ns = world->now_ns + after_ns, .kind = kind, .node = node};
}

static void
world_init(struct world *world, const struct setup *setup, uint32_t planted_bug, bool verbose)
{
    uint32_t n = setup->agent_count;
    struct sim_event event;

    memset(world, 0, sizeof *world);
    world->setup = *setup;
    world->random.state = mix64(setup->seed ^ UINT64_C(0x5ca1ab1e));
    world->planted_bug = planted_bug;
    world->verbose = verbose;
    world->now_ns = SECOND_NS;
    world->loss_per_thousand = setup->loss_per_thousand;
    world->delay_ns_max = setup->delay_ns_max;
    world->nodes = calloc(n, sizeof *world->nodes);
    world->cut = calloc((size_t)n * n, 1);
    world->domains = calloc(n, sizeof *world->domains);
    world->spares = calloc(n, sizeof *world->spares);
    world->epochs = calloc(EPOCHS_MAX, sizeof *world->epochs);
    if (!world->nodes || !world->cut || !world->domains || !world->spares || !world->epochs)
        abort();
    for (uint32_t i = 0; i < n; i++) {
        static char names[64][8];
        uint32_t domain = setup->domain_count ? i % (setup->domain_count % 64 + 1) % 64 : 0;

        snprintf(names[domain], sizeof names[domain], "d%u", domain);
        world->domains[i] = names[domain];
        world->spares[i] = i >= n - setup->spare_count;
        node_init(world, i);
    }
    for (uint32_t i = 0; i < n; i++) {
        event = sim_event_new(world, EVENT_START, i, random_below(&world->random, SECOND_NS));
        event.incarnation = world->nodes[i].incarnation;
        queue_push(&world->queue, &event);
    }
    for (uint32_t i = 0; i < setup->fault_count; i++) {
        event = sim_event_new(world, EVENT_FAULT, 0,
                              random_between(&world->random, 5 * SECOND_NS, setup->faults_end_ns));
        queue_push(&world->queue, &event);
    }
    event = sim_event_new(world, EVENT_OPERATOR, 0, 2 * SECOND_NS);
    queue_push(&world->queue, &event);
    event = sim_event_new(world, EVENT_CHECK, 0, SECOND_NS);
    queue_push(&world->queue, &event);
}

static void
world_fini(struct world *world)
{
    for (uint32_t i = 0; i < world->setup.agent_count; i++)
        node_fini(&world->nodes[i]);
    judge_fini(world);
    queue_fini(&world->queue);
    cairn_actions_fini(&world->actions);
    free(world->nodes);
    free(world->cut);
    free(world->domains);
    free(world->spares);
}

/* The first start of the trainers: from nothing, in the first epoch. */
static void
first_start(struct world *world)
{
    for (uint32_t i = 0; i < world->setup.agent_count; i++)
        if (world->nodes[i].running && world->gang.life == 0) {
            struct cairn_core_view view;

            cairn_core_look(world->nodes[i].core, &view);
            world->newest_epoch = view.active;
            gang_start(world, view.table, 0, view.active);
        }
}

static bool
all_well(struct world *world)
{
    uint64_t newest = 0;

    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        struct cairn_core_view view;

        world->behind = i;
        if (!world->nodes[i].running)
            return false;
        cairn_core_look(world->nodes[i].core, &view);
        if (view.frozen || (newest != 0 && view.active != newest)) {
            world->behind = i;
            return false;
        }
        newest = view.active;
    }
    return true;
}

static void
conclude(struct world *world)
{
    if (judge_deep(world, "at the end"))
        world->over = true;
}

/* Once a second: are the faults over, has the job gone on, is it time for the exam. */
static void
check(struct world *world)
{
    if (world->setup.generations_wanted) {
        if (world->counters.commits >= world->setup.generations_wanted)
            world->over = true;
        return;
    }
    if (!world->healed) {
        if (world->now_ns >= world->setup.faults_end_ns)
            fault_heal(world);
        return;
    }
    if (world->admin.gave_up) {
        if (world->kept.generation.step != 0)
            judge_fail(world, VERDICT_LOST,
                       "a restore ends with LOST, though nothing is beyond repair");
        else
            conclude(world);
        return;
    }
    if (world->committed_after_heal >= 2) {
        if (!all_well(world)) {
            if (world->now_ns > world->progress_ns + world->setup.bound_ns)
                judge_fail(world, VERDICT_OTHER, "agent %u stays frozen or behind for ever",
                           world->behind);
            else if (world->now_ns > world->setup.faults_end_ns + 3 * world->setup.bound_ns)
                judge_fail(world, VERDICT_OTHER, "agent %u stays frozen or behind", world->behind);
            return;
        }
        if (!world->setup.exam || world->exam_begun) {
            conclude(world);
            return;
        }
        fault_exam(world);
        world->committed_after_heal = 0;
        world->progress_ns = world->now_ns;
        return;
    }
    if (world->now_ns > world->progress_ns + world->setup.bound_ns)
        judge_fail(world, VERDICT_OTHER, "nothing goes on: no commit and no restore for %llu s",
                   (unsigned long long)(world->setup.bound_ns / SECOND_NS));
    else if (world->now_ns > world->setup.faults_end_ns + 4 * world->setup.bound_ns)
        judge_fail(world, VERDICT_OTHER, "restores follow one another and nothing is committed");
}

/* Connections break and are made again at any time, between any two agents, with or without
 * loss. */
static void
connect_one(struct world *world, struct node *node)
{
    struct cairn_event event = {
        .type = CAIRN_EVENT_CONNECTED,
        .agent = (uint32_t)random_below(&world->random, world->setup.agent_count)};

    node_event(world, node, &event, NULL);
}

static void
tick(struct world *world, struct node *node)
{
    struct cairn_event event = {.type = CAIRN_EVENT_TICK};
    struct sim_event next;
    uint64_t deadline, now;

    node_event(world, node, &event, NULL);
    if (node->running && random_chance(&world->random, 20))
        connect_one(world, node);
    if (!node->running)
        return;
    trainer_register(world, node); /* trainers that were refused ask again */
    deadline = cairn_core_deadline(node->core);
    now = node_clock(world, node);
    next = sim_event_new(world, EVENT_TICK, node->number,
                         (deadline > now ? (deadline - now) / node->clock_rate * 1000 : 0) + MS_NS);
    next.incarnation = node->incarnation;
    queue_push(&world->queue, &next);
}

static void
again(struct world *world, enum event_kind kind, uint64_t after_ns)
{
    struct sim_event event = sim_event_new(world, kind, 0, after_ns);

    queue_push(&world->queue, &event);
}

static void
heal_one(struct world *world, const struct sim_event *event)
{
    if (event->value == 1)
        world->nodes[event->node].disk_full = false;
    else {
        world->cuts = false;
        world->unreliable_ns = world->now_ns;
    }
}

static void
happen(struct world *world, struct sim_event *event)
{
    struct node *node = &world->nodes[event->node];

    switch (event->kind) {
    case EVENT_TICK:
        if (node->running && node->incarnation == event->incarnation)
            tick(world, node);
        break;
    case EVENT_PACKET:
        network_deliver(world, event);
        break;
    case EVENT_ANSWER:
        node_answer(world, event);
        break;
    case EVENT_LOCAL:
        if (node->running && node->incarnation == event->incarnation)
            node_event(world, node, &event->as.local->event, NULL);
        break;
    case EVENT_TRAINER:
        if (node->life == event->incarnation && node->member != UINT32_MAX &&
            event->value >> 16 == world->gang.step)
            trainer_go(world, node, (uint32_t)(event->value & 0xffff));
        break;
    case EVENT_TOLD:
        if (node->running && node->incarnation == event->incarnation)
            trainer_told(world, node, event->as.told);
        break;
    case EVENT_START:
        if (node->incarnation == event->incarnation) {
            node_start(world, node);
            if (world->gang.life == 0)
                first_start(world);
        }
        break;
    case EVENT_OPERATOR:
        if (world->gang.life > 0)
            operator_go(world);
        again(world, EVENT_OPERATOR, 2 * SECOND_NS);
        break;
    case EVENT_FAULT:
        fault_strike(world);
        break;
    case EVENT_HEAL:
        heal_one(world, event);
        break;
    case EVENT_CHECK:
        check(world);
        again(world, EVENT_CHECK, SECOND_NS);
        break;
    }
}

static bool
for_agent(enum event_kind kind)
{
    return kind == EVENT_TICK || kind == EVENT_PACKET || kind == EVENT_ANSWER ||
           kind == EVENT_LOCAL;
}

void
run_schedule(const struct setup *setup, uint32_t planted_bug, bool verbose, struct run_result *out)
{
    struct world world;
    struct sim_event event;
    uint64_t hash = setup->seed;

    world_init(&world, setup, planted_bug, verbose);
    while (!world.over && queue_pop(&world.queue, &event)) {
        world.now_ns = event.at_ns;
        if (for_agent(event.kind) && node_paused(&world, &world.nodes[event.node], &event))
            continue;
        hash = mix64(hash ^ event.at_ns ^ ((uint64_t)event.kind << 56) ^ event.node);
        world.counters.events++;
        happen(&world, &event);
        sim_event_fini(&event);
    }
    *out = (struct run_result){.verdict = world.verdict, .hash = hash, .counters = world.counters};
    memcpy(out->why, world.why, sizeof out->why);
    out->heap_bytes = mallinfo2().uordblks;
    world_fini(&world);
}
