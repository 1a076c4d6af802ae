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
    world->network.breaks_per_million = setup->breaks_per_million;
    world->network.delay_ns_max = setup->delay_ns_max;
    world->nodes = calloc(n, sizeof *world->nodes);
    world->domains = calloc(n, sizeof *world->domains);
    world->spares = calloc(n, sizeof *world->spares);
    world->epochs = calloc(EPOCHS_MAX, sizeof *world->epochs);
    if (!world->nodes || !world->domains || !world->spares || !world->epochs)
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
    network_fini(world);
    shared_drop(world->store_last);
    free(world->domains);
    free(world->spares);
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
        if (view.fenced || (newest != 0 && view.active != newest)) {
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

/* Without faults: traffic counts from the first commit on. */
static void
check_calm(struct world *world)
{
    if (world->counters.commits > 0 && world->first_commit_ns == 0) {
        world->first_commit_ns = world->now_ns;
        world->counters.commits = 1;
        for (uint32_t i = 0; i < world->setup.agent_count; i++)
            world->nodes[i].traffic = (struct traffic){0};
    }
    if (world->counters.commits > world->setup.generations_wanted)
        world->over = true;
    if (world->now_ns > (300 + 20 * world->setup.generations_wanted) * SECOND_NS)
        judge_fail(world, VERDICT_OTHER, "too few commits without any fault");
}

/* Once a second: are the faults over, has the job gone on, is it time for the exam. */
static void
check(struct world *world)
{
    if (world->setup.generations_wanted) {
        check_calm(world);
        return;
    }
    judge_blocker(world);
    if (!world->healed) {
        if (world->now_ns >= world->setup.faults_end_ns)
            fault_heal(world);
        return;
    }
    if (world->admin.gave_up) {
        if (world->kept)
            judge_fail(world, VERDICT_LOST,
                       "a restore ends with LOST, though nothing is beyond repair");
        else
            conclude(world);
        return;
    }
    if (world->committed_after_heal >= 2) {
        if (!all_well(world)) {
            if (world->now_ns > world->progress_ns + world->setup.bound_ns)
                judge_fail(world, VERDICT_OTHER, "agent %u stays fenced or behind for ever",
                           world->behind);
            else if (world->now_ns > world->setup.faults_end_ns + 3 * world->setup.bound_ns)
                judge_fail(world, VERDICT_OTHER, "agent %u stays fenced or behind", world->behind);
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

static void
tick(struct world *world, struct node *node)
{
    struct cairn_event event = {.type = CAIRN_EVENT_TICK};
    struct sim_event next;
    uint64_t deadline, now;

    node_event(world, node, &event, NULL);
    if (node->running)
        leave_unused(world, node);
    if (!world->setup.generations_wanted && random_chance(&world->random, 3))
        network_break_some(world, node, 100);
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
    struct node *node = &world->nodes[event->node];
    struct cairn_event pin = {.type = CAIRN_EVENT_PIN, .as.pin = {node->hung, false}};

    switch (event->value) {
    case 0:
        network_heal(world);
        break;
    case 1:
        node->disk_full = false;
        break;
    case 2:
        if (node->hung.step != 0 && node->running)
            trainer_local(world, node, &pin, NULL);
        node->hung = (struct cairn_generation_id){0};
        break;
    case 3:
        intruder_leave(world, node);
        break;
    }
}

/* What the core learns of trainers, spills and operators, as it learns it. */
static void
local_arrives(struct world *world, struct node *node, struct local *local)
{
    const struct cairn_event_pin *pin = &local->event.as.pin;

    if (local->event.type == CAIRN_EVENT_RANKS) {
        node->core_life = local->life;
        node->registrations++;
    } else if (local->event.type == CAIRN_EVENT_PIN) {
        if (!pin->keep && same(pin->generation, node->pinned))
            node->pinned = (struct cairn_generation_id){0};
        if (pin->keep)
            node->pinned_parts = 0;
        for (uint32_t i = 0; pin->keep && i < CAIRN_PARTS_MAX; i++)
            if (same(node->stored[i].generation, pin->generation)) {
                node->pinned = pin->generation;
                node->pinned_parts |= 1u << i;
            }
    }
    node_event(world, node, &local->event, NULL);
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
    case EVENT_UP:
    case EVENT_DOWN:
    case EVENT_TRY:
    case EVENT_STARVED:
        network_event(world, event);
        break;
    case EVENT_LEAVE:
        leave_arrives(world, event);
        break;
    case EVENT_ANSWER:
        node_answer(world, event);
        break;
    case EVENT_LOCAL:
        if (node->running && node->incarnation == event->incarnation)
            local_arrives(world, node, event->as.local);
        break;
    case EVENT_INTRUDER:
        if (node->running && node->incarnation == event->incarnation)
            intruder_go(world, node);
        break;
    case EVENT_SCRIPT:
        fault_script(world);
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
        if (node->incarnation == event->incarnation)
            node_start(world, node);
        break;
    case EVENT_OPERATOR:
        if (world->gang.life > 0)
            operator_go(world);
        else
            gang_start(world, NULL, 0, 0);
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
    return kind == EVENT_TICK || kind == EVENT_PACKET || kind == EVENT_UP || kind == EVENT_DOWN ||
           kind == EVENT_LEAVE || kind == EVENT_ANSWER || kind == EVENT_LOCAL;
}

static void
measure(struct world *world, struct scale_result *out)
{
    double n = world->setup.agent_count, generations = (double)world->counters.commits - 1;
    double beats =
        (double)(world->now_ns - world->first_commit_ns) / (double)world->setup.heartbeat_ns;
    uint32_t leader = UINT32_MAX;

    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        const struct node *node = &world->nodes[i];
        const struct traffic *traffic = &node->traffic;
        struct cairn_core_view view;

        cairn_core_look(node->core, &view);
        if (view.self_member == 0)
            leader = i;
        out->messages_mean += (double)traffic->messages / generations / n;
        out->bytes_mean += (double)traffic->bytes / generations / n;
        if ((double)traffic->messages / generations > out->messages_max)
            out->messages_max = (double)traffic->messages / generations;
        if ((double)traffic->bytes / generations > out->bytes_max)
            out->bytes_max = (double)traffic->bytes / generations;
        if ((double)traffic->heartbeat_bytes / beats > out->beat_bytes_max)
            out->beat_bytes_max = (double)traffic->heartbeat_bytes / beats;
        if (i != (view.active & 0xffff) && node->sessions > out->sessions_max)
            out->sessions_max = node->sessions;
    }
    if (leader != UINT32_MAX)
        out->sessions_leader = world->nodes[leader].sessions;
}

void
run_schedule(const struct setup *setup, uint32_t planted_bug, bool verbose, struct run_result *out)
{
    struct world *world = some_zeros(1, sizeof *world);
    struct sim_event event;
    uint64_t hash = setup->seed;

    world_init(world, setup, planted_bug, verbose);
    while (!world->over && queue_pop(&world->queue, &event)) {
        world->now_ns = event.at_ns;
        if (for_agent(event.kind) && node_paused(world, &world->nodes[event.node], &event))
            continue;
        hash = mix64(hash ^ event.at_ns ^ ((uint64_t)event.kind << 56) ^ event.node);
        world->counters.events++;
        happen(world, &event);
        sim_event_fini(&event);
    }
    *out =
        (struct run_result){.verdict = world->verdict, .hash = hash, .counters = world->counters};
    memcpy(out->why, world->why, sizeof out->why);
    out->heap_bytes = mallinfo2().uordblks;
    if (setup->generations_wanted && world->verdict == VERDICT_GOOD)
        measure(world, &out->scale);
    world_fini(world);
    free(world);
}
