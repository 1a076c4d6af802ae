/* tests/placements/job.c - the ranks of the job: steps, votes, moves, deaths; see world.h. */
#include "tests/placements/world.h"

#include <string.h>

enum { TIMEOUT_TICKS = 10 /* of a fill: 5 s */, RESTART_TICKS = 6 };

/* ---- a rank and its agent ---- */

static void
tell_shares(struct world *world, uint32_t index)
{
    struct message message = {.kind = MESSAGE_SHARES,
                              .due_tick = world->tick + random_below(&world->random, 2),
                              .from = index,
                              .to = index,
                              .life = world->agents[index].life,
                              .shares = world->ranks[index].machine.now};

    if (world->ranks[index].has_agent)
        world_send(world, &message, false);
}

static void
tell_moved(struct world *world, uint32_t index, bool is_adopted, uint64_t standstill_ns)
{
    struct message message = {
        .kind = MESSAGE_MOVED,
        .due_tick = world->tick,
        .from = index,
        .to = index,
        .life = world->agents[index].life,
        .moved = {world->ranks[index].machine.offer.number, is_adopted, standstill_ns}};

    if (world->ranks[index].has_agent)
        world_send(world, &message, false);
}

void
rank_attach(struct world *world, uint32_t index)
{
    struct rank *rank = &world->ranks[index];

    if (world->down_ticks > 0)
        return; /* it attaches when it starts */
    if (launch_is_reshaped(world)) {
        world->agents[index].is_asked = true; /* for a share of another number of replicas */
        return;
    }
    rank->has_agent = true;
    client_placement_epoch(&rank->machine, world->agents[index].epoch);
    tell_shares(world, index);
}

void
rank_detach(struct world *world, uint32_t index)
{
    world->ranks[index].has_agent = false;
    client_placement_detach(&world->ranks[index].machine);
    world->had_fault = true;
}

void
rank_epoch(struct world *world, uint32_t index, uint64_t epoch)
{
    struct rank *rank = &world->ranks[index];

    if (!rank->has_agent)
        return;
    client_placement_epoch(&rank->machine, epoch);
    world->had_fault = true;
    tell_shares(world, index);
}

void
rank_take_offer(struct world *world, const struct message *message)
{
    struct rank *rank = &world->ranks[message->to];

    if (message->life != world->job_life || !rank->has_agent || rank->is_deaf)
        return;
    (void)client_placement_offer(&rank->machine, &message->shares);
}

/* ---- the job ---- */

void
job_start(struct world *world)
{
    struct cairn_session_shares home;

    planner_home(&home);
    world->committed_epoch++;
    world->committed_step = 0;
    world->moves = false;
    world->down_ticks = 0;
    for (uint32_t i = 0; i < RANKS; i++) {
        struct rank *rank = &world->ranks[i];

        rank->machine = (struct client_placement){0};
        rank->fill = (struct fill){0};
        rank->has_agent = false;
        (void)client_placement_run(&rank->machine, &home);
        if (world->agents[i].analyst)
            rank_attach(world, i);
    }
}

void
job_break(struct world *world)
{
    world->counters.restarts++;
    world->job_life++;
    world->moves = false;
    world->down_ticks = RESTART_TICKS;
    for (uint32_t i = 0; i < RANKS; i++) {
        world->ranks[i].has_agent = false;
        world->agents[i].is_asked = false;
        agent_learns(world, i); /* what is normal, again */
    }
}

/* ---- votes ---- */

/* All ranks vote; returns how many hear the result, which is *agreed. */
static uint32_t
vote(struct world *world, uint64_t votes[RANKS], uint64_t *agreed)
{
    uint32_t first = (uint32_t)random_below(&world->random, RANKS);

    for (uint32_t i = 0; i < RANKS; i++) {
        struct rank *rank = &world->ranks[i];

        rank->before = rank->machine.now;
        votes[i] = client_placement_vote(&rank->machine);
        if (!rank->has_agent && votes[i] != client_placement_name(&rank->machine.now))
            judge_break(world, "P6: a rank without an agent votes for a change");
    }
    *agreed = votes[first];
    for (uint32_t i = 1; i < RANKS; i++)
        *agreed = cairn_placement_agree(votes[(first + i) % RANKS], *agreed);
    return world_chance(world, world->trouble) ? (uint32_t)random_below(&world->random, RANKS)
                                               : RANKS;
}

static void
judge_taken(struct world *world, uint32_t index)
{
    const struct rank *rank = &world->ranks[index];
    bool is_move =
        memcmp(rank->before.layers, rank->machine.now.layers, sizeof rank->before.layers) != 0;

    judge_shares(world, &rank->machine.now);
    if (!judge_was_offered(world, &rank->machine.now))
        judge_break(world, "P3: ranks take what no agent has offered");
    if (!is_move)
        return;
    if (!rank->fill.is_entered)
        judge_break(world, "P1: the present layers go before the next layers were filled");
    for (uint32_t i = 0; i < RANKS; i++)
        if (!world->ranks[i].fill.is_good)
            judge_break(world, "P1: the present layers go, and rank %u has not filled", i);
    if (rank->fill.epoch != world->agents[index].epoch && rank->has_agent)
        judge_break(world, "P4: what was entered in another epoch is adopted");
}

/* ---- moves ---- */

static void
enter(struct world *world)
{
    world->moves = true;
    world->moving_ticks = 0;
    world->had_fault = world->is_dropped = false;
    for (uint32_t i = 0; i < RANKS; i++) {
        struct fill *fill = &world->ranks[i].fill;

        *fill = (struct fill){.is_entered = true,
                              .epoch = world->agents[i].epoch,
                              .left_ticks = (uint32_t)random_below(&world->random, 3)};
        if (world_chance(world, 20 * world->trouble))
            fill->left_ticks = 5 + (uint32_t)random_below(&world->random, 12);
        if (!world->ranks[i].has_agent)
            world->had_fault = true;
    }
}

/* A rank's fill goes on. A block may be corrupt; the slot or the memory may be too small. */
static void
fill_tick(struct world *world, uint32_t index)
{
    struct rank *rank = &world->ranks[index];
    struct fill *fill = &rank->fill;
    bool is_good;

    if (fill->left_ticks > 0) {
        fill->left_ticks--;
        if (world->moving_ticks == TIMEOUT_TICKS && !fill->has_timed_out) {
            fill->has_timed_out = world->had_fault = true;
            client_placement_filled(&rank->machine, false);
        }
        if (fill->left_ticks > 0)
            return;
    } else if (world->moving_ticks > 0) {
        return;
    }
    is_good = rank->has_agent && !world->is_dropped && !world_chance(world, 5 * world->trouble);
    if (!is_good && !world->is_dropped)
        world->had_fault = true;
    fill->is_good = is_good && !fill->has_timed_out;
    client_placement_filled(&rank->machine, is_good);
    if (PLACEMENT_BUG(REGISTER_DROPS))
        world->is_dropped = true;
}

static bool
have_filled(const struct world *world)
{
    for (uint32_t i = 0; i < RANKS; i++)
        if (world->ranks[i].machine.state != CLIENT_PLACEMENT_FILLED)
            return false;
    return true;
}

/* The second vote. */
static void
end_move(struct world *world)
{
    uint64_t votes[RANKS], agreed;
    uint32_t informed;

    informed = vote(world, votes, &agreed);
    for (uint32_t i = 0; i < RANKS; i++)
        if (world->ranks[i].fill.has_timed_out &&
            votes[i] != client_placement_name(&world->ranks[i].machine.now))
            judge_break(world, "a rank whose time had run out votes for the change");
    for (uint32_t i = 0; i < informed; i++) {
        struct rank *rank = &world->ranks[i];
        enum cairn_placement_change change = client_placement_decide(&rank->machine, agreed);

        if (change == CAIRN_PLACEMENT_TAKEN)
            judge_taken(world, i);
        if (change == CAIRN_PLACEMENT_ABANDONED &&
            memcmp(&rank->machine.now, &rank->before, sizeof rank->before) != 0)
            judge_break(world, "a rank gives a change up, and computes by it");
        if (change == CAIRN_PLACEMENT_ABANDONED && !world->had_fault)
            judge_break(world, "a move without a fault is given up");
        if (change != CAIRN_PLACEMENT_TAKEN && change != CAIRN_PLACEMENT_ABANDONED)
            judge_break(world, "a move neither ends nor is given up");
        if (i == 0)
            world->counters.moves += change == CAIRN_PLACEMENT_TAKEN;
        if (i == 0)
            world->counters.abandoned += change == CAIRN_PLACEMENT_ABANDONED;
        tell_moved(world, i, change == CAIRN_PLACEMENT_TAKEN,
                   (world->moving_ticks + 1) * TICK_MS * UINT64_C(1000000));
        tell_shares(world, i);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        world->ranks[i].fill = (struct fill){0};
    world->moves = false;
    if (informed < RANKS)
        job_break(world);
}

static void
move_tick(struct world *world)
{
    for (uint32_t i = 0; i < RANKS; i++)
        fill_tick(world, i);
    world->moving_ticks++;
    if (have_filled(world))
        end_move(world);
    else if (world->moving_ticks > 2 * TIMEOUT_TICKS)
        judge_break(world, "a move does not end");
}

/* ---- steps ---- */

static double
step_ms(const struct world *world)
{
    const struct cairn_session_shares *now = &world->ranks[0].machine.now;
    struct cairn_session_shares home;
    double ms = planner_step_ms(now, world->rate);

    planner_home(&home);
    return world->lies ? planner_step_ms(&home, world->rate) : ms;
}

static void
count_step(struct world *world, double ms)
{
    memmove(world->recent + 1, world->recent, (RECENT - 1) * sizeof *world->recent);
    world->recent[0] = ms;
    world->step++;
    world->counters.steps++;
}

/* The end of a step: all vote. */
static void
end_step(struct world *world, double ms)
{
    uint64_t votes[RANKS], agreed;
    uint32_t informed, entered = 0, taken = 0;

    count_step(world, ms);
    informed = vote(world, votes, &agreed);
    for (uint32_t i = 0; i < informed; i++) {
        enum cairn_placement_change change =
            client_placement_decide(&world->ranks[i].machine, agreed);

        if (change == CAIRN_PLACEMENT_TAKEN)
            judge_taken(world, i);
        if (change == CAIRN_PLACEMENT_TAKEN)
            tell_shares(world, i);
        taken += change == CAIRN_PLACEMENT_TAKEN;
        entered += change == CAIRN_PLACEMENT_ENTER;
    }
    if (informed < RANKS) {
        job_break(world);
        return;
    }
    world->counters.taken += taken == RANKS;
    if ((entered > 0 && entered < RANKS) || (taken > 0 && taken < RANKS))
        judge_break(world, "P2: %u of %u ranks enter, %u take", entered, RANKS, taken);
    if (entered == RANKS)
        enter(world);
}

/* Snapshots are committed, unless something holds that up. */
static void
commit_tick(struct world *world)
{
    uint64_t due = world->step - world->step % EVERY_STEPS;

    if (world->stuck_ticks > 0)
        world->stuck_ticks--;
    else if (world_chance(world, world->trouble / 2))
        world->stuck_ticks = 10 + (uint32_t)random_below(&world->random, 60);
    else if (due > world->committed_step) {
        world->committed_step = due;
        world->committed_tick = world->tick;
    }
}

void
job_tick(struct world *world)
{
    commit_tick(world);
    if (world->down_ticks > 0) {
        if (--world->down_ticks == 0)
            job_start(world);
        return;
    }
    if (world_chance(world, world->trouble / 2)) { /* a rank dies */
        launch_forget(world);
        job_break(world);
        return;
    }
    launch_tick(world);
    if (world->down_ticks > 0)
        return;
    if (launch_is_reshaped(world)) {
        for (world->left_ms += TICK_MS; world->left_ms >= world->launch.runs.step_ms;
             world->left_ms -= world->launch.runs.step_ms)
            count_step(world, world->launch.runs.step_ms);
        return;
    }
    if (world->moves) {
        move_tick(world);
        return;
    }
    for (world->left_ms += TICK_MS; !world->moves && world->down_ticks == 0 && !world->is_broken;) {
        double ms = step_ms(world);

        if (world->left_ms < ms)
            break;
        world->left_ms -= ms;
        end_step(world, ms);
    }
    if (world->moves || world->down_ticks > 0)
        world->left_ms = 0;
}
