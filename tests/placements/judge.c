/* tests/placements/judge.c - what must hold after every event; see world.h. */
#include "tests/placements/world.h"

#include "base/clock.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SETTLED_TICKS = 12 }; /* after which the analyst believes a verdict */
static const uint64_t minute_ticks = 60000 / TICK_MS;

void
judge_break(struct world *world, const char *format, ...)
{
    va_list arguments;

    if (world->is_broken)
        return;
    world->is_broken = true;
    va_start(arguments, format);
    (void)vsnprintf(world->why, sizeof world->why, format, arguments);
    va_end(arguments);
}

/* P5. */
void
judge_shares(struct world *world, const struct cairn_session_shares *shares)
{
    uint64_t sum = 0;

    for (uint32_t r = 0; r < REPLICAS; r++) {
        sum += shares->parts[r];
        if (shares->parts[r] == 0)
            judge_break(world, "P5: a replica has no micro-batches");
        if (shares->layers[r * STAGES] == 0 || shares->layers[r * STAGES + 1] == 0 ||
            shares->layers[r * STAGES] + shares->layers[r * STAGES + 1] != LAYERS)
            judge_break(world, "P5: the layers of a replica are not the model's");
    }
    if (sum != MICROBATCHES)
        judge_break(world, "P5: the shares of a step are not the batch");
}

bool
judge_was_offered(const struct world *world, const struct cairn_session_shares *shares)
{
    uint64_t name = client_placement_name(shares);

    for (uint32_t i = 0; i < world->told_count; i++)
        if (world->told[i].name == name)
            return true;
    return false;
}

/* An agent tells its trainer its offer: it must be stored. */
void
judge_told(struct world *world, uint32_t index, const struct proposal_book *book)
{
    const struct agent *agent = &world->agents[index];
    static struct proposal_book stored;

    memset(&stored, 0, sizeof stored);
    if (agent->disk_bytes > 0 &&
        proposal_unpack(agent->disk, agent->disk_bytes, &stored) != CAIRN_OK)
        judge_break(world, "a stored book cannot be read");
    if (stored.offer.placement.number != book->offer.placement.number)
        judge_break(world, "an offer is told before it is stored");
    if (judge_was_offered(world, &book->offer.placement) || world->told_count == TOLD_MAX)
        return;
    world->told[world->told_count++] =
        (struct told){client_placement_name(&book->offer.placement), book->offer.placement.number};
}

/* ---- the analyst ---- */

/* Whether a rank that a proposal is for has been slow ever since. */
static bool
is_evidence_slow(const struct world *world, const struct proposal *proposal)
{
    const struct proposal_slow *slow = &proposal->slow;
    uint64_t ticks = (world_ns(world) - proposal->evidence_wall_ns) / (TICK_MS * UINT64_C(1000000));

    for (uint32_t i = 0; i < slow->count; i++)
        if (world->rate[slow->ranks[i]] > 1 && world->rate_ticks[slow->ranks[i]] >= ticks)
            return true;
    return false;
}

/* Nobody has asked for home, and a rank that the placement before is for is slow as before. */
static void
judge_home(struct world *world, const struct proposal *home, const struct proposal *before)
{
    struct cairn_session_shares placement = home->placement;

    for (uint32_t r = 0; r < RANKS; r++)
        if (world->rate_ticks[r] < SETTLED_TICKS)
            return; /* the analyst cannot know what is best now */
    if (world->several || before->placement.count == 0 || before->is_home ||
        !is_evidence_slow(world, before))
        return;
    if (planner_step_ms(&placement, world->rate) >
        planner_step_ms(&before->placement, world->rate) * 1.05)
        judge_break(world, "the analyst goes home while the rank is slow");
}

static void
judge_budget(struct world *world, const struct proposal_book *before,
             const struct proposal_book *book)
{
    uint64_t spent_ns = proposal_spent_ns(before, world_ns(world));

    if (before->away_count >= world->changes_per_day)
        judge_break(world, "the %u changes of a day are spent, and another is offered",
                    world->changes_per_day);
    if (book->offer.moved_layers > 0 &&
        (double)spent_ns + book->offer.cost_ms * 1e6 > (double)world->standstill_per_day_ns + 1e3)
        judge_break(world, "the day's standstill is spent, and a move is offered");
}

static bool
knows_denial(const struct proposal_book *book, uint64_t name)
{
    for (uint32_t i = 0; i < book->denied_count; i++)
        if (book->denied[i].name == name)
            return true;
    return false;
}

/* What an operator denied is proposed, by an agent that knows it. (Another may have decided while
 * this one was dead, and have died before it told.) */
static void
judge_denials(struct world *world, const struct proposal_book *before,
              const struct proposal *proposal)
{
    uint64_t name = proposal_full_name(proposal);

    for (uint32_t i = 0; i < world->denied_count && !world->several; i++) {
        const struct denied *denied = &world->denied[i];

        if (denied->name == name && knows_denial(before, name) &&
            (denied->until_ns == 0 || world_ns(world) < denied->until_ns))
            judge_break(world, "what an operator denied is proposed again");
    }
}

/* An offer was kept: it must have brought at least half of what was predicted. */
static void
judge_fate(struct world *world, const struct proposal_book *before,
           const struct proposal_book *book)
{
    for (uint32_t i = 0; i < book->story_count; i++) {
        const struct proposal_story *story = &book->stories[i];
        const struct proposal_story *was = proposal_story_of(before, story->number);

        if (was && was->fate == story->fate)
            continue;
        if (story->is_relaunch) {
            world->counters.relaunches_kept += story->fate == PROPOSAL_KEPT;
            world->counters.relaunches_aged += story->fate == PROPOSAL_AGED;
            continue;
        }
        world->counters.kept += story->fate == PROPOSAL_KEPT;
        world->counters.taken_back += story->fate == PROPOSAL_TAKEN_BACK;
        world->counters.failed += story->fate == PROPOSAL_FAILED;
        world->counters.aged += story->fate == PROPOSAL_AGED;
        if (story->fate == PROPOSAL_KEPT && story->after_ms < INFINITY &&
            story->expected_ms < INFINITY &&
            story->after_ms > (story->before_ms + story->expected_ms) / 2 + 1e-6)
            judge_break(world, "a change that brings nothing is kept");
    }
}

/* Layers are offered to move: there must be a commit to fill them from if all goes wrong, and room
 * for them in the slots. */
static void
judge_move(struct world *world, const struct proposal_book *book, bool is_decided)
{
    double slowest_ms = 0;
    uint64_t ticks;

    for (uint32_t i = 0; i < RECENT; i++)
        slowest_ms = fmax(slowest_ms, world->recent[i]);
    ticks = (uint64_t)(2 * EVERY_STEPS * slowest_ms / TICK_MS) + 1000 / TICK_MS + 2;
    if (book->offer.moved_layers == 0)
        return;
    if (world->committed_step == 0 || world->tick > world->committed_tick + ticks)
        judge_break(world, "layers are offered to move, %llu ticks after the newest commit%s",
                    (unsigned long long)(world->tick - world->committed_tick),
                    is_decided ? ", by an operator" : "");
    for (uint32_t r = 0; r < RANKS; r++)
        if (book->offer.placement.layers[r] * LAYER_BYTES + OTHER_BYTES > STATE_BYTES)
            judge_break(world, "node %u is offered %u layers, for which its slots have no room", r,
                        book->offer.placement.layers[r]);
}

static void
judge_gain(struct world *world, const struct proposal *proposal)
{
    if (!proposal->is_home && proposal->step_ms > proposal->running_ms * 0.97 + 1e-9)
        judge_break(world, "a change is offered that makes steps of %g ms out of %g",
                    proposal->step_ms, proposal->running_ms);
}

void
judge_book(struct world *world, uint32_t index, const struct proposal_book *before,
           const struct proposal_book *book, uint32_t what, bool is_decided)
{
    const struct proposal_story *story, *withdrawn;
    bool is_back;

    if (book->version <= before->version)
        judge_break(world, "agent %u: a book changes without a new version", index);
    if ((what & ANALYST_SAY_WAITS) && book->waiting.placement.number <= before->last_number)
        judge_break(world, "a number is given twice");
    judge_fate(world, before, book);
    if (launch_is_reshaped(world) &&
        (what & (ANALYST_SAY_OFFER | ANALYST_SAY_WAITS | ANALYST_SAY_RELAUNCH)))
        judge_break(world, "P7: something is offered while the job runs in another shape");
    if (what & ANALYST_SAY_RELAUNCH) {
        world->counters.relaunches_proposed++;
        if (book->relaunch.placement.number <= before->last_number)
            judge_break(world, "a number is given twice");
        judge_denials(world, before, &book->relaunch);
        judge_gain(world, &book->relaunch);
    }
    if (what & ANALYST_SAY_WAITS) {
        judge_denials(world, before, &book->waiting);
        judge_gain(world, &book->waiting);
    }
    if (!(what & ANALYST_SAY_OFFER))
        return;
    world->counters.offers++;
    story = proposal_story_of(book, book->offer.placement.number);
    is_back = story && story->withdraws != 0;
    withdrawn = is_back ? proposal_story_of(book, story->withdraws) : NULL;
    if (!withdrawn || withdrawn->fate == PROPOSAL_TAKEN_BACK)
        judge_move(world, book, is_decided);
    if (book->offer.placement.number <= before->last_number &&
        book->offer.placement.number != before->waiting.placement.number)
        judge_break(world, "a number is given twice");
    judge_shares(world, &book->offer.placement);
    if (is_decided || is_back)
        return;
    judge_denials(world, before, &book->offer);
    judge_gain(world, &book->offer);
    world->counters.homes += book->offer.is_home;
    if (book->offer.is_home)
        judge_home(world, &book->offer, &before->offer);
    else
        judge_budget(world, before, book);
    if (world->needs_approval)
        judge_break(world, "an offer is made that nobody has approved");
}

void
judge_approved(struct world *world, const struct proposal *shape)
{
    world->counters.relaunches_approved++;
    if (world->approved_count < APPROVED_MAX)
        world->approved[world->approved_count++] =
            (struct approved){shape->placement.number, proposal_full_name(shape)};
}

/* P7. */
void
judge_relaunch(struct world *world, const struct proposal *shape)
{
    for (uint32_t i = 0; i < world->approved_count; i++)
        if (world->approved[i].number == shape->placement.number &&
            world->approved[i].name == proposal_full_name(shape))
            return;
    if (world->approved_count < APPROVED_MAX)
        judge_break(world, "P7: the job starts in a shape that nobody has approved");
}

void
judge_decision(struct world *world, uint32_t index, const struct proposal_decision *decision,
               const struct proposal_book *before, const struct proposal_book *after,
               bool is_carried_out)
{
    struct denied *denied = &world->denied[world->denied_count];
    const struct proposal *proposal;

    if (!is_carried_out)
        return;
    for (uint32_t i = 0; i < before->ended_count; i++)
        if (before->ended[i].token == decision->token)
            judge_break(world, "agent %u: a decision is carried out twice", index);
    world->counters.approvals += decision->word == PROPOSAL_APPROVE;
    world->counters.denials += decision->word == PROPOSAL_DENY;
    world->counters.backs += decision->word == PROPOSAL_GO_BACK;
    world->counters.nows += decision->word == PROPOSAL_NOW;
    if (after->shape.placement.number != before->shape.placement.number) {
        if (decision->word == PROPOSAL_APPROVE &&
            (after->shape.placement.number != decision->number ||
             proposal_full_name(&after->shape) != decision->name))
            judge_break(world, "another relaunch was approved than the operator saw");
        if (decision->word == PROPOSAL_GO_BACK && !after->shape.is_home)
            judge_break(world, "--back did not relaunch at home");
        return;
    }
    if (decision->word == PROPOSAL_APPROVE &&
        (after->offer.placement.number != decision->number ||
         proposal_name(&after->offer.placement) != decision->name))
        judge_break(world, "something else was approved than the operator saw");
    if (decision->word == PROPOSAL_GO_BACK && !after->offer.is_home)
        judge_break(world, "--back did not go home");
    for (uint32_t i = 0; decision->word == PROPOSAL_GO_BACK && i < world->denied_count; i++)
        if (world->denied[i].until_ns == 0)
            world->denied[i] = (struct denied){0}; /* it may end those for other evidence */
    if (decision->word != PROPOSAL_DENY || world->denied_count == DENIALS_MAX)
        return;
    proposal =
        before->relaunch.placement.count && before->relaunch.placement.number == decision->number
            ? &before->relaunch
            : &before->waiting;
    /* a denial for other evidence ends those of the one before */
    for (uint32_t i = 0; decision->for_ns == 0 && i < world->denied_count; i++)
        if (world->denied[i].until_ns == 0 &&
            !proposal_is_same_slow(&world->denied[i].slow, &proposal->slow))
            world->denied[i] = (struct denied){0};
    *denied = (struct denied){
        .name = proposal_full_name(proposal), .same_ticks = SETTLED_TICKS, .slow = proposal->slow};
    if (decision->for_ns)
        denied->until_ns = world_ns(world) + decision->for_ns;
    world->denied_count++;
}

/* ---- every tick ---- */

/* What the verdicts say. The analyst believes it some rounds later. */
static struct proposal_slow
slow_now(const struct world *world)
{
    struct proposal_slow slow = {0};

    for (uint32_t r = 0; r < RANKS; r++)
        if (world->verdicts[r].is_open) {
            slow.ranks[slow.count] = r;
            slow.rates[slow.count++] = world->verdicts[r].rate;
        }
    return slow;
}

/* Denials whose evidence has differed for nearly a minute may end. */
static void
watch_evidence(struct world *world)
{
    struct proposal_slow slow = slow_now(world);

    for (uint32_t i = 0; i < world->denied_count; i++) {
        struct denied *denied = &world->denied[i];

        denied->same_ticks =
            proposal_is_same_slow(&denied->slow, &slow) ? denied->same_ticks + 1 : 0;
        if (denied->same_ticks > SETTLED_TICKS)
            denied->differs_tick = 0;
        else if (denied->differs_tick == 0)
            denied->differs_tick = world->tick;
        if (denied->until_ns == 0 && denied->differs_tick &&
            world->tick > denied->differs_tick + minute_ticks - 30)
            *denied = (struct denied){0};
    }
}

static uint32_t
only_analyst(const struct world *world)
{
    uint32_t found = NOBODY;

    for (uint32_t i = 0; i < RANKS; i++) {
        if (!world->agents[i].analyst || !world->agents[i].analyses)
            continue;
        if (found != NOBODY)
            return NOBODY;
        found = i;
    }
    return found;
}

/* An offer that changes something, and that the ranks do not take, must go. */
static void
watch_untaken(struct world *world)
{
    uint32_t index = only_analyst(world);
    const struct proposal_book *book;
    const struct cairn_session_shares *offer;
    bool is_same;

    if (index == NOBODY || world->several || launch_is_reshaped(world)) {
        world->untaken_number = 0;
        return;
    }
    book = analyst_book(world->agents[index].analyst);
    offer = &book->offer.placement;
    is_same = world->untaken_number == offer->number && world->untaken_analyst == index &&
              world->untaken_life == world->agents[index].life + world->job_life;
    if (offer->count == 0 || proposal_is_taken(book) ||
        proposal_is_same(offer, &book->before.placement) ||
        proposal_is_same(offer, &world->ranks[0].machine.now) ||
        world->ranks[0].machine.now.number >= offer->number || !is_same) {
        world->untaken_number = offer->count ? offer->number : 0;
        world->untaken_tick = world->tick;
        world->untaken_step = world->step;
        world->untaken_analyst = index;
        world->untaken_life = world->agents[index].life + world->job_life;
        return;
    }
    if (world->tick > world->untaken_tick + minute_ticks + 40 &&
        world->step > world->untaken_step + 40)
        judge_break(world, "offer %llu is never withdrawn", (unsigned long long)offer->number);
}

void
judge_tick(struct world *world)
{
    watch_evidence(world);
    watch_untaken(world);
    for (uint32_t r = 1; r < RANKS && world->down_ticks == 0 && !world->moves; r++)
        if (memcmp(&world->ranks[r].machine.now, &world->ranks[0].machine.now,
                   sizeof world->ranks[0].machine.now) != 0)
            judge_break(world, "P2: ranks compute by different placements");
}
