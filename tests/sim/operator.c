/*
 * tests/sim/operator.c - the person who runs the job: notices dead trainers, puts new machines in
 * the place of dead machines, asks some agent for a restore, asks again when told so, and starts
 * the trainers from what was restored.
 */
#include "tests/sim/sim.h"

#include <stdio.h>
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

static struct local *
ask(struct world *world, struct node *node, enum cairn_operation operation, uint64_t request)
{
    struct cairn_event event = {.type = CAIRN_EVENT_OPERATOR,
                                .as.op = {.operation = operation, .request = request}};

    world_say(world, "operator: asks agent %u for operation %d, request %llu", node->number,
              (int)operation, (unsigned long long)request);
    judge_asked(world, node, operation, request);
    return trainer_local(world, node, &event, NULL);
}

/* Somebody asks for something nobody needs: a second restore, a dry run, a verify, a snapshot,
 * another fleet. */
void
operator_ask_aside(struct world *world)
{
    static const enum cairn_operation operations[] = {CAIRN_OP_RESTORE,  CAIRN_OP_DRY_RUN,
                                                      CAIRN_OP_SNAPSHOT, CAIRN_OP_VERIFY,
                                                      CAIRN_OP_VERIFY,   CAIRN_OP_FLEET};
    struct node *node = some_agent(world);
    enum cairn_operation operation = operations[random_below(&world->random, 6)];
    struct admin *admin = &world->admin;
    struct local *local;

    if (!node)
        return;
    /* A restore restarts the trainers, so it is asked for only while they are down: two at once. */
    if (operation == CAIRN_OP_RESTORE && world->gang.state == GANG_RUNNING)
        operation = CAIRN_OP_VERIFY;
    local = ask(world, node, operation, (UINT64_C(1) << 32) + ++admin->side_request);
    if (operation != CAIRN_OP_FLEET)
        return;
    admin->fleet_request = local->event.as.op.request;
    snprintf(admin->fleet, sizeof admin->fleet, "fleet %llu",
             (unsigned long long)admin->side_request);
    memcpy(local->fleet, admin->fleet, sizeof local->fleet);
    local->event.as.op.fleet = (const uint8_t *)local->fleet;
    local->event.as.op.fleet_len = strlen(local->fleet);
}

/* Who leads, and since when; it may forget an ask when it dies. */
static uint64_t
leader_of(const struct world *world)
{
    for (uint32_t i = 0; i < world->setup.agent_count; i++) {
        const struct node *node = &world->nodes[i];
        struct cairn_core_view view;

        if (!node->running)
            continue;
        cairn_core_look(node->core, &view);
        if (view.self_member == 0 && view.active == world->newest_epoch)
            return node->incarnation * CAIRN_NODES_MAX + i;
    }
    return UINT64_MAX;
}

/* The agent asked may have forgotten it: it died, or the trainers began again. */
static bool
snapshot_is_excused(const struct world *world)
{
    const struct admin *admin = &world->admin;
    const struct node *asked = &world->nodes[admin->snapshot_agent];

    return !asked->running || asked->incarnation != admin->snapshot_incarnation ||
           world->gang.life != admin->snapshot_life ||
           world->newest_epoch != admin->snapshot_epoch ||
           leader_of(world) != admin->snapshot_leader;
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
    admin->snapshot_epoch = world->newest_epoch;
    admin->snapshot_leader = leader_of(world);
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
    node->up = true;
    node_start_later(world, node, after_ns);
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
    cairn_core_look(node->core, &view);
    if (!view.roster)
        return;
    world_say(world, "operator: starts the trainers without a restore");
    admin->anew = true;
    admin->state = OPERATOR_WATCHING;
    admin->until_ns = world->now_ns + random_between(&world->random, 5 * SECOND_NS, 90 * SECOND_NS);
    gang_start(world, view.roster, step, view.active);
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
    admin->asked_ns = world->now_ns;
    admin->attempts++;
    admin->until_ns =
        world->now_ns + 4 * world->setup.rebuild_timeout_ns + 4 * world->setup.claim_timeout_ns;
    /* What is lost is lost: an operator who was told twice gives up and begins again. Sometimes
     * somebody does so without need. */
    if ((admin->lost_answers >= 2 && !world->kept && random_chance(&world->random, 700)) ||
        (!world->healed && random_chance(&world->random, 15)))
        ask(world, node, CAIRN_OP_FRESH, ++admin->request);
    else
        ask(world, node, CAIRN_OP_RESTORE, ++admin->request);
}

/* What a person would see: dead trainers, tensors that do not fit, an agent that waits for an epoch
 * to admit it while nothing repairs by itself. */
static bool
looks_wrong(struct world *world)
{
    const struct admin *admin = &world->admin;

    if (!gang_whole(world) || (admin->anew && (world->healed || world->now_ns >= admin->until_ns)))
        return true;
    if (world->gang.layout != LAYOUT_GOOD &&
        world->now_ns > world->gang.started_ns + 40 * SECOND_NS)
        return true;
    return world->setup.repair_after_ns == 0 &&
           world->now_ns > world->progress_ns + 150 * SECOND_NS && !world->setup.asked_for &&
           world->now_ns > world->gang.started_ns + 150 * SECOND_NS &&
           random_chance(&world->random, 50);
}

/* A restore ends in bounded time where the network is well, even with other agents wedged. */
static void
check_patience(struct world *world, const struct node *asked)
{
    if (judge_is_calm(world) && node_answers(world, asked) && !judge_was_silent(world, asked))
        judge_fail(world, VERDICT_OTHER, "agent %u does not answer a restore for %llu s",
                   asked->number,
                   (unsigned long long)((world->now_ns - world->admin.asked_ns) / SECOND_NS));
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
    if (world->now_ns < admin->holds_until_ns)
        return;
    switch (admin->state) {
    case OPERATOR_WATCHING:
        if (!looks_wrong(world))
            break;
        world_say(world, "operator: something is wrong with the trainers");
        admin->state = OPERATOR_WAITING;
        admin->until_ns = world->now_ns + random_between(&world->random, SECOND_NS, 20 * SECOND_NS);
        if (random_chance(&world->random, 100)) /* sometimes a self-repair comes first */
            admin->until_ns += 2 * world->setup.repair_after_ns + 60 * SECOND_NS;
        break;
    case OPERATOR_WAITING:
        if (world->now_ns < admin->until_ns)
            break;
        if (world->setup.careless && !world->healed && world->kept &&
            random_chance(&world->random, 700))
            start_anew(world);
        else
            begin_restore(world);
        break;
    case OPERATOR_ASKED:
        if (asked->running && asked->incarnation == admin->incarnation &&
            world->now_ns < admin->until_ns)
            break;
        if (asked->running && asked->incarnation == admin->incarnation)
            check_patience(world, asked);
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
    gang_start(world, view.roster, step, view.active);
}

static void
check_fleet(struct world *world, const struct node *node)
{
    const struct admin *admin = &world->admin;
    struct cairn_core_view view;

    cairn_core_look(node->core, &view);
    if (view.fleet_len != strlen(admin->fleet) ||
        memcmp(view.fleet, admin->fleet, view.fleet_len) != 0)
        judge_fail(world, VERDICT_OTHER, "agent %u says OK to %s, and has another", node->number,
                   admin->fleet);
}

void
operator_reply(struct world *world, struct node *node, const struct cairn_action_reply *reply)
{
    struct admin *admin = &world->admin;

    world_say(world, "operator: agent %u answers request %llu: %s: " GENERATION " %s", node->number,
              (unsigned long long)reply->request, cairn_err_name(reply->err),
              GENERATION_OF(reply->generation), reply->text ? reply->text : "");
    if (reply->request == admin->snapshot_request && reply->err)
        admin->snapshot_request = 0; /* nobody trains there, or not now */
    if (reply->request == admin->fleet_request && reply->err == CAIRN_OK)
        check_fleet(world, node);
    if (admin->state != OPERATOR_ASKED || reply->request != admin->request)
        return;
    if (reply->err == CAIRN_OK) {
        restored(world, node, reply->generation.step);
        return;
    }
    /* Once everything has healed, what was asked for before does not count. */
    if (!world->healed || admin->asked_ns > world->setup.faults_end_ns + 60 * SECOND_NS)
        admin->lost_answers = reply->err == CAIRN_LOST ? admin->lost_answers + 1 : 0;
    if (world->healed && admin->lost_answers >= 4 &&
        world->now_ns > world->setup.faults_end_ns + 60 * SECOND_NS)
        admin->gave_up = true;
    admin->state = OPERATOR_WAITING;
    admin->until_ns = world->now_ns + random_between(&world->random, SECOND_NS, 15 * SECOND_NS);
}
