/*
 * tests/sim/operator.c - whoever runs the job: notices dead trainers, puts new machines in the
 * place of dead ones, asks some agent for a restore, asks again when told so, and starts the
 * trainers from what was restored.
 */
#include "tests/sim/sim.h"

#include <string.h>

static struct node *
some_agent(struct world *world)
{
    uint32_t n = world->setup.agent_count, first = (uint32_t)random_below(&world->random, n);

    for (uint32_t i = 0; i < n; i++) {
        struct node *node = &world->nodes[(first + i) % n];

        if (node->running && node->paused_until_ns <= world->now_ns)
            return node;
    }
    return NULL;
}

static void
ask(struct world *world, struct node *node, enum cairn_operation operation, uint64_t request)
{
    struct cairn_event event = {
        .type = CAIRN_EVENT_OPERATOR, .operation = operation, .request = request};

    world_say(world, "operator: asks agent %u for operation %d, request %llu", node->number,
              (int)operation, (unsigned long long)request);
    if (operation == CAIRN_OP_RESTORE || operation == CAIRN_OP_FRESH)
        node->restore_asked_ns = world->now_ns;
    trainer_local(world, node, &event, NULL);
}

/* Somebody asks for something nobody needs: a second restore, a dry run, a verify, a snapshot. */
void
operator_ask_aside(struct world *world)
{
    static const enum cairn_operation operations[] = {
        CAIRN_OP_RESTORE, CAIRN_OP_DRY_RUN, CAIRN_OP_SNAPSHOT, CAIRN_OP_VERIFY, CAIRN_OP_VERIFY};
    struct node *node = some_agent(world);
    enum cairn_operation operation = operations[random_below(&world->random, 5)];

    if (!node)
        return;
    /* A restore restarts the trainers, so it is asked for only while they are down: two at once. */
    if (operation == CAIRN_OP_RESTORE && world->gang.state == GANG_RUNNING)
        operation = CAIRN_OP_VERIFY;
    ask(world, node, operation, (UINT64_C(1) << 32) + ++world->admin.side_request);
}

/* Whoever was asked may have forgotten it: it has died, or the trainers have begun anew. */
static bool
snapshot_is_excused(const struct world *world)
{
    const struct admin *admin = &world->admin;
    const struct node *asked = &world->nodes[admin->snapshot_agent];

    return !asked->running || asked->incarnation != admin->snapshot_incarnation ||
           world->gang.life != admin->snapshot_life;
}

/* Asks for a generation, and never again before there is one: no agent that lives may forget it. */
static void
ask_for_snapshot(struct world *world)
{
    struct admin *admin = &world->admin;
    struct node *node;

    if (world->gang.state != GANG_RUNNING ||
        (admin->snapshot_request && admin->snapshot_commits == world->counters.commits &&
         !snapshot_is_excused(world)))
        return;
    node = some_agent(world);
    if (!node || !node->registered)
        return;
    admin->snapshot_request = (UINT64_C(1) << 33) + ++admin->side_request;
    admin->snapshot_agent = node->number;
    admin->snapshot_incarnation = node->incarnation;
    admin->snapshot_life = world->gang.life;
    admin->snapshot_commits = world->counters.commits;
    ask(world, node, CAIRN_OP_SNAPSHOT, admin->snapshot_request);
}

static bool
gang_whole(const struct world *world)
{
    uint32_t ranks = 0;

    if (world->gang.state != GANG_RUNNING)
        return false;
    for (uint32_t i = 0; i < world->setup.agent_count; i++)
        for (uint32_t r = 0; r < world->setup.ranks; r++)
            ranks += world->nodes[i].ranks[r].phase != RANK_DEAD &&
                     world->nodes[i].life == world->gang.life &&
                     world->nodes[i].member != UINT32_MAX;
    return ranks == world->gang.rank_count;
}

/* A blank machine with the number of the dead one. */
static void
replace(struct world *world, struct node *node, uint64_t after_ns)
{
    struct sim_event start = sim_event_new(world, EVENT_START, node->number, after_ns);

    node->up = true;
    start.incarnation = node->incarnation;
    queue_push(&world->queue, &start);
}

static void
replace_some(struct world *world)
{
    for (uint32_t i = 0; i < world->setup.agent_count; i++)
        if (!world->nodes[i].up && (world->healed || random_chance(&world->random, 600)))
            replace(world, &world->nodes[i], random_below(&world->random, 5 * SECOND_NS));
}

/* The job is started again as at first, or from a checkpoint of its own of a step near the last,
 * and in the epoch that is there: what it had is not replaced by steps that are not newer. */
static void
start_anew(struct world *world)
{
    uint64_t step = 0;
    struct admin *admin = &world->admin;
    struct node *node;
    struct cairn_core_view view;

    if (world->setup.own_checkpoints && world->gang.step > 2 && random_chance(&world->random, 600))
        step = world->gang.step - 2 + random_below(&world->random, 4);
    gang_kill(world);
    replace_some(world);
    node = some_agent(world);
    if (!node)
        return;
    world_say(world, "operator: starts the trainers without a restore");
    admin->anew = true;
    admin->state = OPERATOR_WATCHING;
    admin->until_ns = world->now_ns + random_between(&world->random, 5 * SECOND_NS, 90 * SECOND_NS);
    cairn_core_look(node->core, &view);
    gang_start(world, view.table, step, view.active);
}

static void
begin_restore(struct world *world)
{
    struct admin *admin = &world->admin;
    struct node *node;

    gang_kill(world);
    admin->anew = false;
    replace_some(world);
    node = some_agent(world);
    if (!node)
        return;
    admin->state = OPERATOR_ASKED;
    admin->asked = node->number;
    admin->incarnation = node->incarnation;
    admin->attempts++;
    admin->until_ns =
        world->now_ns + 4 * world->setup.rebuild_timeout_ns + 4 * world->setup.claim_timeout_ns;
    /* What is lost is lost: whoever has been told so twice gives it up and begins anew. */
    if (admin->lost_answers >= 2 && world->kept.generation.step == 0 &&
        random_chance(&world->random, 700))
        ask(world, node, CAIRN_OP_FRESH, ++admin->request);
    else
        ask(world, node, CAIRN_OP_RESTORE, ++admin->request);
}

void
operator_go(struct world *world)
{
    struct admin *admin = &world->admin;
    struct node *asked = &world->nodes[admin->asked];

    if (world->healed &&
        random_chance(&world->random, 100)) /* dead machines are replaced in the end */
        for (uint32_t i = 0; i < world->setup.agent_count; i++)
            if (!world->nodes[i].up)
                replace(world, &world->nodes[i], SECOND_NS);
    if (world->setup.asked_for)
        ask_for_snapshot(world);
    switch (admin->state) {
    case OPERATOR_WATCHING:
        if (gang_whole(world) &&
            !(admin->anew && (world->healed || world->now_ns >= admin->until_ns)))
            break;
        world_say(world, "operator: trainers are dead");
        admin->state = OPERATOR_WAITING;
        admin->until_ns = world->now_ns + random_between(&world->random, SECOND_NS, 20 * SECOND_NS);
        if (random_chance(&world->random, 100)) /* sometimes a self-repair comes first */
            admin->until_ns += 2 * world->setup.repair_after_ns + 60 * SECOND_NS;
        break;
    case OPERATOR_WAITING:
        if (world->now_ns < admin->until_ns)
            break;
        if (world->setup.careless && !world->healed && world->kept.generation.step != 0 &&
            random_chance(&world->random, 700))
            start_anew(world);
        else
            begin_restore(world);
        break;
    case OPERATOR_ASKED:
        if (asked->running && asked->incarnation == admin->incarnation &&
            world->now_ns < admin->until_ns)
            break;
        admin->state = OPERATOR_WAITING;
        admin->until_ns = world->now_ns + random_between(&world->random, SECOND_NS, 10 * SECOND_NS);
        break;
    }
}

/* The trainers start from what the agent that restored says. */
static void
restored(struct world *world, struct node *node, uint64_t step)
{
    struct cairn_core_view view;

    cairn_core_look(node->core, &view);
    world->admin.state = OPERATOR_WATCHING;
    world->admin.attempts = 0;
    world->admin.lost_answers = 0;
    gang_start(world, view.table, step, view.active);
}

void
operator_reply(struct world *world, struct node *node, const struct cairn_action *action)
{
    struct admin *admin = &world->admin;

    world_say(world, "operator: agent %u answers request %llu: %s: %s", node->number,
              (unsigned long long)action->request, cairn_err_name(action->err),
              action->bytes ? (const char *)action->bytes : "");
    if (action->request == admin->snapshot_request && action->err)
        admin->snapshot_request = 0; /* nobody trains there, or not now */
    if (admin->state != OPERATOR_ASKED || action->request != admin->request)
        return;
    if (action->err == CAIRN_OK) {
        restored(world, node, action->generation.step);
        return;
    }
    admin->lost_answers = action->err == CAIRN_LOST ? admin->lost_answers + 1 : 0;
    if (world->healed && admin->lost_answers >= 4 &&
        world->now_ns > world->setup.faults_end_ns + 60 * SECOND_NS)
        admin->gave_up = true;
    admin->state = OPERATOR_WAITING;
    admin->until_ns = world->now_ns + random_between(&world->random, SECOND_NS, 15 * SECOND_NS);
}
