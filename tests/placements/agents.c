/* tests/placements/agents.c - the shell of each analyst: store, messages, takeovers; and operators;
 * see world.h. */
#include "tests/placements/world.h"

#include "agent/service/operator_launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEEN_TICKS = 4,     /* before a rank is called slow, or well again */
    CONFIRM_STEPS = 24, /* within which an analysis must say what an earlier one said */
    CALIBRATED_STEPS = 12
};

static const uint64_t launcher_reads = OPERATOR_READS_ANY | OPERATOR_READS_NODES |
                                       OPERATOR_READS_STAGES | OPERATOR_READS_LAYERS |
                                       OPERATOR_READS_SHARES;
static struct proposal_book heard, before; /* one event at a time */

/* ---- messages ---- */

static void
send_book(struct world *world, uint32_t from, uint32_t to)
{
    const struct proposal_book *book = analyst_book(world->agents[from].analyst);
    struct message message = {.kind = MESSAGE_BOOK,
                              .due_tick = world->tick + random_below(&world->random, 3),
                              .from = from,
                              .to = to,
                              .life = world->agents[to].life,
                              .bytes = malloc(PROPOSAL_BOOK_BYTES_MAX)};

    if (message.bytes)
        message.bytes_len = proposal_pack(book, message.bytes);
    if (message.bytes_len > 0)
        world_send(world, &message, true);
    else
        free(message.bytes);
}

/* One offer in some tens comes from an agent that cannot count. */
static bool
is_miscounted(const struct world *world, uint64_t number)
{
    return world->trouble > 0 && mix64(number + world->changes_per_day * 977) % 30 == 0;
}

static void
tell_trainer(struct world *world, uint32_t index)
{
    const struct agent *agent = &world->agents[index];
    const struct proposal_book *book = analyst_book(agent->analyst);
    struct message message = {.kind = MESSAGE_OFFER,
                              .due_tick = world->tick + random_below(&world->random, 3),
                              .from = index,
                              .to = index,
                              .life = world->job_life,
                              .shares = book->offer.placement};

    if (book->offer.placement.count == 0 || !agent->is_asked ||
        agent->number >= book->offer.placement.number)
        return;
    judge_told(world, index, book);
    if (is_miscounted(world, message.shares.number))
        message.shares.parts[0]++;
    world_send(world, &message, false);
}

/* ---- the analyst's actions ---- */

static void
tell(struct world *world, uint32_t index, uint32_t what, uint32_t sender)
{
    for (uint32_t i = 0; (what & ANALYST_TELL_AGENTS) && i < RANKS; i++)
        if (i != index)
            send_book(world, index, i);
    if ((what & ANALYST_TELL_SENDER) && sender != NOBODY)
        send_book(world, index, sender);
    if (what & ANALYST_TELL_TRAINERS)
        tell_trainer(world, index);
}

static void
want_plans(struct world *world, struct agent *agent, const struct analyst_actions *actions)
{
    free(agent->plans_problem.devices);
    agent->wants_plans = true;
    agent->plans_number = actions->plans_number;
    agent->plans_problem = actions->problem;
    agent->plans_costs = actions->costs;
    agent->plans_ticks = (uint32_t)random_below(&world->random, 4);
}

/* Does what an event has led to. Returns what was done; it may have killed the agent. */
static uint32_t
step(struct world *world, uint32_t index, const struct analyst_event *event, uint32_t sender,
     bool is_decided, struct analyst_actions *actions)
{
    struct agent *agent = &world->agents[index];
    struct analyst_event stored = {.type = ANALYST_STORED, .wall_ns = world_ns(world)};
    struct analyst_actions then = {0};

    world->counters.events++;
    before = *analyst_book(agent->analyst);
    analyst_step(agent->analyst, event, actions);
    if (actions->what & ANALYST_MAKE_PLANS)
        want_plans(world, agent, actions);
    world->counters.spent += (actions->what & ANALYST_SAY_SPENT) != 0;
    if (actions->what & ANALYST_STORE) {
        stored.as.is_stored = !world_chance(world, world->trouble);
        if (stored.as.is_stored) {
            agent->disk_bytes = proposal_pack(analyst_next(agent->analyst), agent->disk);
            if (is_decided && analyst_next(agent->analyst)->shape.placement.number !=
                                  before.shape.placement.number)
                judge_approved(world, &analyst_next(agent->analyst)->shape);
        }
        if (world_chance(world, world->trouble)) { /* it dies before anybody knows */
            agent_stop(world, index);
            return 0;
        }
        analyst_step(agent->analyst, &stored, &then);
        then.what |= actions->what & ~(uint32_t)ANALYST_STORE;
        if (stored.as.is_stored && event->type != ANALYST_HEARD)
            judge_book(world, index, &before, analyst_book(agent->analyst), then.what, is_decided);
    } else {
        then.what = actions->what;
    }
    tell(world, index, then.what, sender);
    return then.what | (stored.as.is_stored ? ANALYST_STORE : 0);
}

/* ---- the analysis ---- */

void
agent_learns(struct world *world, uint32_t index)
{
    struct agent *agent = &world->agents[index];

    agent->steps = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        agent->learned_slow[r] = world->rate[r] > 1;
        world->verdicts[r].is_confirmed = false;
        world->verdicts[r].ticks = 0;
    }
}

static void
update_verdict(struct world *world, const struct agent *agent, uint32_t rank)
{
    struct verdict *verdict = &world->verdicts[rank];
    bool is_spurious = world->spurious_ticks[rank] > 0 && !agent->learned_slow[rank];
    bool looks_slow = (world->rate[rank] > 1 && !agent->learned_slow[rank]) || is_spurious;

    if (looks_slow == (verdict->is_open && verdict->is_confirmed)) {
        verdict->ticks = 0;
    } else if (++verdict->ticks >= SEEN_TICKS && agent->steps >= CALIBRATED_STEPS) {
        bool was_open = verdict->is_open;

        if (looks_slow)
            *verdict = (struct verdict){.is_open = true,
                                        .is_confirmed = true,
                                        .unsure_ns = verdict->unsure_ns,
                                        .since_step = was_open ? verdict->since_step
                                                               : world->step - SEEN_TICKS};
        else if (verdict->is_confirmed)
            *verdict = (struct verdict){.unsure_ns = verdict->unsure_ns};
    }
    if (looks_slow && verdict->is_open)
        verdict->rate = world->rate[rank] > 1 ? world->rate[rank] : 1.5;
    if (verdict->is_open && !verdict->is_confirmed && agent->steps >= CONFIRM_STEPS)
        *verdict = (struct verdict){.unsure_ns = world_ns(world)};
}

static int
compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

static double
recent_ms(const struct world *world)
{
    double sorted[RECENT];

    memcpy(sorted, world->recent, sizeof sorted);
    qsort(sorted, RECENT, sizeof *sorted, compare);
    return sorted[RECENT / 2];
}

static void
make_round(struct world *world, uint32_t index, bool is_early)
{
    struct agent *agent = &world->agents[index];
    struct analyst_event event = {.type = ANALYST_ROUND, .wall_ns = world_ns(world)};
    struct analyst_round *round = &event.as.round;
    uint32_t ranks[RANKS];
    double rates[RANKS];
    uint64_t unsure[RANKS], since = 0, refused_ns;
    enum proposal_gate gate;
    struct analyst_actions actions;

    agent->steps += (uint32_t)(world->step - agent->seen_step);
    agent->seen_step = world->step;
    *round = (struct analyst_round){
        .analyses = agent->analyses,
        .is_early = is_early,
        .steps = agent->steps,
        .is_calibrated = agent->steps >= CALIBRATED_STEPS,
        .is_whole = world->down_ticks == 0,
        .recent_ms = agent->steps >= RECENT ? recent_ms(world) : 0,
        .is_asked = agent->is_asked,
        .stages = STAGES,
        .slow_ranks = ranks,
        .slow_rates = rates,
        .unsure_ranks = unsure,
        .reads = world->launch.is_there ? launcher_reads : 0,
        .shape = world->launch.shape,
        .committed_epoch = world->committed_epoch,
        .committed_step = world->committed_step,
        .held_bytes = OTHER_BYTES + LAYER_BYTES * world->ranks[index].machine.now.layers[index],
        .held_count = 1,
        .held_ranks = &index};
    for (uint32_t r = 0; agent->analyses && r < RANKS; r++) {
        if (!is_early)
            update_verdict(world, agent, r);
        if (world->verdicts[r].is_open) {
            ranks[round->slow_count] = r;
            rates[round->slow_count++] = world->verdicts[r].rate;
            since = world->verdicts[r].since_step > since ? world->verdicts[r].since_step : since;
        }
        if (world->verdicts[r].unsure_ns &&
            world->verdicts[r].unsure_ns >= analyst_book(agent->analyst)->offer.evidence_wall_ns)
            unsure[round->unsure_count++] = r;
    }
    round->steady_steps = (uint32_t)(world->step > since ? world->step - since : 0);
    (void)step(world, index, &event, NOBODY, false, &actions);
    gate = agent->analyst ? analyst_refused(agent->analyst, &refused_ns) : PROPOSAL_GATE_NONE;
    world->counters.refused_gain += gate == PROPOSAL_GATE_GAIN;
    world->counters.refused_commit += gate == PROPOSAL_GATE_COMMIT;
    world->counters.refused_slots += gate == PROPOSAL_GATE_SLOTS;
}

static void
give_plans(struct world *world, uint32_t index)
{
    struct agent *agent = &world->agents[index];
    struct analyst_event event = {.type = ANALYST_PLANS, .wall_ns = world_ns(world)};
    struct analyst_actions actions;
    struct cairn_offers offers;

    if (agent->plans_ticks-- > 0)
        return;
    agent->wants_plans = false;
    event.as.plans = (struct analyst_plans){agent->plans_number, NULL};
    if (!world_chance(world, world->trouble)) {
        planner_offers(&agent->plans_problem, &agent->plans_costs, &offers);
        event.as.plans.offers = &offers;
    }
    free(agent->plans_problem.devices);
    agent->plans_problem = (struct cairn_problem){0};
    (void)step(world, index, &event, NOBODY, false, &actions);
}

/* ---- life ---- */

void
agent_start(struct world *world, uint32_t index)
{
    struct agent *agent = &world->agents[index];
    const struct analyst_options options = {.adviser = planner_adviser(),
                                            .offers = true,
                                            .needs_approval = world->needs_approval,
                                            .node = index,
                                            .changes_per_day = world->changes_per_day,
                                            .standstill_per_day_ns = world->standstill_per_day_ns,
                                            .snapshot_every_steps = EVERY_STEPS,
                                            .state_bytes = STATE_BYTES};

    if (analyst_create(&options, &agent->analyst) != CAIRN_OK) {
        fprintf(stderr, "placements: no memory for an analyst\n");
        exit(1);
    }
    agent->life++;
    agent->analyses = agent->is_asked = false;
    agent->number = 0;
    agent->epoch = world->tick + 1;
    if (agent->disk_bytes > 0) {
        if (proposal_unpack(agent->disk, agent->disk_bytes, &heard) != CAIRN_OK)
            judge_break(world, "a stored book cannot be read");
        analyst_start_with_book(agent->analyst, &heard);
    }
    rank_attach(world, index);
}

void
agent_stop(struct world *world, uint32_t index)
{
    struct agent *agent = &world->agents[index];

    analyst_destroy(agent->analyst);
    free(agent->plans_problem.devices);
    agent->plans_problem = (struct cairn_problem){0};
    agent->analyst = NULL;
    agent->analyses = agent->wants_plans = false;
    agent->dead_ticks = 1 + (uint32_t)random_below(&world->random, 60);
    world->counters.deaths++;
    rank_detach(world, index);
}

static bool
has_lower(const struct world *world, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++)
        if (world->agents[i].analyst)
            return true;
    return false;
}

static void
agent_tick(struct world *world, uint32_t index)
{
    struct agent *agent = &world->agents[index];
    bool analyses;

    if (!agent->analyst) {
        if (agent->dead_ticks-- == 0)
            agent_start(world, index);
        return;
    }
    if (world_chance(world, world->trouble / 3)) {
        agent_stop(world, index);
        return;
    }
    if (world_chance(world, world->moves ? 5 * world->trouble : world->trouble / 4)) {
        agent->epoch = world->tick + 1;
        rank_epoch(world, index, agent->epoch);
    }
    if (world->several && agent->cut_off_ticks == 0 && world_chance(world, world->trouble))
        agent->cut_off_ticks = 1 + (uint32_t)random_below(&world->random, 60);
    agent->cut_off_ticks -= agent->cut_off_ticks > 0;
    analyses = !has_lower(world, index) || agent->cut_off_ticks > 0;
    if (analyses && !agent->analyses) {
        world->counters.takeovers++;
        agent_learns(world, index);
        agent->seen_step = world->step;
    }
    agent->analyses = analyses;
    make_round(world, index, false);
    if (agent->analyst && agent->wants_plans)
        give_plans(world, index);
    if (agent->analyst && agent->analyses && world->tick % 20 == 0)
        tell(world, index, ANALYST_TELL_AGENTS, NOBODY);
}

void
agents_tick(struct world *world)
{
    for (uint32_t i = 0; i < RANKS; i++)
        agent_tick(world, i);
}

/* The steps of this tick have been analysed, mostly. */
void
agents_turn(struct world *world)
{
    for (uint32_t i = 0; i < RANKS; i++)
        if (world->agents[i].analyst && world->agents[i].analyses && world_chance(world, 700))
            make_round(world, i, true);
}

/* ---- operators ---- */

/* An operator looks at one agent, and decides at once or after a while. */
void
operators_tick(struct world *world)
{
    uint32_t asked = (uint32_t)random_below(&world->random, RANKS), planner = 0;
    const struct proposal_book *book;
    struct message message = {.kind = MESSAGE_DECISION};
    struct proposal_decision *decision = &message.decision;

    if (!world->agents[asked].analyst || world->tokens + 1 >= TOKENS_MAX ||
        !world_chance(world, world->is_quiet                                   ? 0
                             : world->needs_approval || world->launch.is_there ? 60
                                                                               : 8))
        return;
    book = analyst_book(world->agents[asked].analyst);
    while (planner < RANKS && !world->agents[planner].analyses)
        planner++;
    if (planner == RANKS)
        return;
    *decision = (struct proposal_decision){.word = PROPOSAL_APPROVE +
                                                   (uint32_t)random_below(&world->random, 4),
                                           .number = book->waiting.placement.number,
                                           .token = ++world->tokens,
                                           .node = asked};
    if ((decision->word == PROPOSAL_NOW || decision->word == PROPOSAL_GO_BACK) &&
        world_chance(world, 600))
        decision->word = PROPOSAL_APPROVE;
    if (decision->word == PROPOSAL_DENY && world_chance(world, 300))
        decision->for_ns = UINT64_C(40000000000);
    if (book->waiting.placement.count)
        decision->name = proposal_name(&book->waiting.placement);
    if (book->relaunch.placement.count && world_chance(world, 700)) {
        decision->number = book->relaunch.placement.number;
        decision->name = proposal_full_name(&book->relaunch);
        if (world_chance(world, 500))
            decision->word = PROPOSAL_APPROVE;
    }
    message.from = asked;
    message.to = planner;
    message.life = world->agents[planner].life;
    /* it is sent again until it is answered */
    for (uint32_t sent = (uint32_t)random_below(&world->random, 3); sent < 3; sent++) {
        message.due_tick =
            world->tick + random_below(&world->random, world_chance(world, 200) ? 80 : 6);
        world_send(world, &message, true);
    }
}

static void
take_decision(struct world *world, uint32_t index, const struct proposal_decision *decision)
{
    struct agent *agent = &world->agents[index];
    static struct proposal_book was;
    struct analyst_event event = {.type = ANALYST_DECISION,
                                  .wall_ns = world_ns(world),
                                  .as.decision = {.decision = decision, .stages = STAGES}};
    struct analyst_actions actions;
    uint32_t done;

    if (!agent->analyses)
        return;
    was = *analyst_book(agent->analyst);
    done = step(world, index, &event, NOBODY, true, &actions);
    if (agent->analyst)
        judge_decision(world, index, decision, &was, analyst_book(agent->analyst),
                       (done & ANALYST_STORE) != 0);
}

/* ---- what comes ---- */

void
agent_take(struct world *world, struct message *message)
{
    struct agent *agent = &world->agents[message->to];
    struct analyst_event event = {.wall_ns = world_ns(world)};
    struct analyst_actions actions;
    bool is_session = message->kind == MESSAGE_SHARES || message->kind == MESSAGE_MOVED;

    if (!agent->analyst || agent->life != message->life ||
        (is_session && !world->ranks[message->from].has_agent) ||
        (!is_session && agent->cut_off_ticks > 0))
        return;
    switch (message->kind) {
    case MESSAGE_BOOK:
        if (proposal_unpack(message->bytes, message->bytes_len, &heard) != CAIRN_OK)
            judge_break(world, "a book cannot be read");
        event.type = ANALYST_HEARD;
        event.as.heard = &heard;
        (void)step(world, message->to, &event, message->from, false, &actions);
        break;
    case MESSAGE_SHARES:
        agent->is_asked = true;
        agent->number = message->shares.number;
        event.type = ANALYST_RUNS;
        event.as.runs = &message->shares;
        (void)step(world, message->to, &event, NOBODY, false, &actions);
        tell_trainer(world, message->to);
        break;
    case MESSAGE_MOVED:
        event.type = ANALYST_MOVED;
        event.as.moved = message->moved;
        (void)step(world, message->to, &event, NOBODY, false, &actions);
        break;
    case MESSAGE_DECISION:
        take_decision(world, message->to, &message->decision);
        break;
    case MESSAGE_OFFER:
        break;
    }
}
