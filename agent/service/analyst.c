/* agent/service/analyst.c - decides which placement is proposed, offered, kept and withdrawn; see
 * analyst.h. */
#include "agent/service/analyst.h"

#include "agent/service/proposal_plan.h"
#include "agent/service/proposal_shape.h"
#include "base/assert.h"
#include "base/clock.h"
#include "client/placement_bugs.h"
#include "replan/detect/detect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS_AT_REST = 6,                       /* in a row, before going home */
    AGE_STEPS = 10,                           /* an offer is not withdrawn for its age before … */
    PROBATION_STEPS = CAIRN_RECENT_STEPS + 2, /* after a change is taken, before it is measured */
    FAILURES = 2 /* in a row, CAIRN_RECENT_STEPS apart: one may be an unrelated pause */
};
static const uint64_t age_ns = 60 * CAIRN_NS_PER_S;
static const uint64_t other_evidence_ns = 60 * CAIRN_NS_PER_S;
static const uint64_t round_ns_max = 5 * CAIRN_NS_PER_S; /* a longer one is a pause */
static const uint64_t failed_ns = 300 * CAIRN_NS_PER_S;  /* before it is tried again */
static const uint64_t taken_back_ns = UINT64_C(86400) * CAIRN_NS_PER_S;
/* Of changes that were not measured yet: layers that trainers move while they run, and any other
 * change of plan. */
static const double live_standstill_ms = 1e3, standstill_ms = 10e3;
static const double relaunch_ms = 30e3; /* at least */
static const uint64_t relaunch_age_ns = 600 * CAIRN_NS_PER_S;
static const double least_gain = 0.02; /* of a step, measured */
/* A commit is noticed in the round after it. */
static const uint64_t commit_slack_ns = CAIRN_NS_PER_S;

struct analyst {
    struct analyst_options options;
    struct proposal_book book, next;
    bool is_storing;
    uint32_t follows; /* once `next` is stored */
    uint64_t over;
    struct cairn_advice advice;
    uint64_t given_wall_ns;
    uint32_t due_step; /* of the job, at which that advice was due */
    double *rates;     /* [devices] */

    /* of this analysis */
    bool was_analysing, said_unknown;
    uint32_t steps_before;
    uint32_t timed_steps; /* at the last round of the timer */
    uint32_t rounds_at_rest;
    uint64_t round_wall_ns;         /* of the last round with steps */
    uint64_t differs_ns;            /* for which the evidence of denials has not held; 0: it does */
    struct proposal_slow denied_at; /* that evidence */
    struct proposal_slow slow;      /* at the last round */
    bool slow_holds;                /* the open verdicts said the same */

    /* what gates look at */
    bool is_whole;
    uint64_t committed_epoch, committed_step;
    uint64_t committed_wall_ns;             /* when that was noticed; 0: it may be old */
    uint64_t interval_ns;                   /* of snapshots */
    uint64_t held_bytes;                    /* this node's state */
    uint64_t planned_bytes;                 /* … as the planner has it */
    enum proposal_gate refuses;             /* what was wanted at the last round */
    uint64_t refused_name;                  /* of that */
    uint64_t refused_wall_ns;               /* since when */
    struct proposal_refused refused_before; /* until then, and since it was wanted first */

    /* what trainers of this node have told */
    uint64_t runs_number;
    bool has_runs;
    uint64_t runs_steps;              /* made since that changed */
    uint64_t earlier_steps;           /* … and by what ran before */
    struct cairn_session_moved moved; /* number 0: nothing that is not in the book */

    /* of the newest offer */
    uint64_t watched;       /* its number */
    uint64_t watched_ns;    /* since when this analyst watches it */
    uint64_t watched_steps; /* made since, and since it was taken */
    uint32_t failures;

    /* of relaunches */
    double lost_ms;               /* that the most profitable one would have saved by now … */
    struct proposal_slow lost_at; /* … with these ranks slow */
    uint64_t shape_watched;       /* number of the approved one */
    uint64_t shape_wall_ns;       /* since when this analyst watches it */
    uint64_t shape_gap_ns;        /* longest time without a step since */
    uint64_t shape_steps;         /* made in it */
    double shape_before_ms;       /* a step before; 0: unknown */
};

/* ---- life ---- */

cairn_err
analyst_create(const struct analyst_options *options, struct analyst **out)
{
    struct analyst *analyst = calloc(1, sizeof *analyst);
    uint32_t devices = options->adviser ? cairn_adviser_device_count(options->adviser) : 0;

    if (!analyst)
        return CAIRN_NOMEM;
    analyst->rates = calloc((size_t)devices + 1, sizeof *analyst->rates);
    if (!analyst->rates) {
        free(analyst);
        return CAIRN_NOMEM;
    }
    analyst->options = *options;
    analyst->advice.action = CAIRN_REPLAN_NONE;
    *out = analyst;
    return CAIRN_OK;
}

void
analyst_destroy(struct analyst *analyst)
{
    if (!analyst)
        return;
    cairn_adviser_destroy(analyst->options.adviser);
    free(analyst->rates);
    free(analyst);
}

void
analyst_start_with_book(struct analyst *analyst, const struct proposal_book *book)
{
    analyst->book = *book;
}

void
analyst_start_with_advice(struct analyst *analyst, const struct cairn_advice_kept *kept)
{
    cairn_adviser_resume(analyst->options.adviser, &kept->advice);
    analyst->advice = kept->advice;
    analyst->given_wall_ns = kept->given_wall_ns;
}

const struct proposal_book *
analyst_book(const struct analyst *analyst)
{
    return analyst->options.offers ? &analyst->book : NULL;
}

const struct proposal_book *
analyst_next(const struct analyst *analyst)
{
    return &analyst->next;
}

const struct cairn_advice *
analyst_advice(const struct analyst *analyst, uint64_t *given_wall_ns)
{
    *given_wall_ns = analyst->given_wall_ns;
    return &analyst->advice;
}

const struct cairn_adviser *
analyst_adviser(const struct analyst *analyst)
{
    return analyst->options.adviser;
}

bool
analyst_home(const struct analyst *analyst, uint32_t stages, struct proposal *out)
{
    return analyst->options.offers && analyst->options.adviser &&
           proposal_make_home(analyst->options.adviser, stages, out);
}

/* ---- the book changes ---- */

/* The transition in `next` has to be followed by these. */
static void
change(struct analyst *analyst, uint32_t follows, struct analyst_actions *out)
{
    if (!(follows & PROPOSAL_CHANGED))
        return;
    analyst->over = analyst->book.waiting.placement.number;
    analyst->follows = follows;
    analyst->is_storing = true;
    out->what |= ANALYST_STORE;
    if (PLACEMENT_BUG(OFFERS_UNSTORED) && (follows & PROPOSAL_OFFER))
        out->what = (out->what & ~(uint32_t)ANALYST_STORE) | ANALYST_TELL_TRAINERS;
    if (PLACEMENT_BUG(OFFERS_UNSTORED)) {
        analyst->book = analyst->next;
        analyst->is_storing = false;
    }
}

/* Whether the newest offer came of the advice alone. */
static bool
is_of_advice(const struct analyst *analyst, uint32_t follows)
{
    const struct proposal *offer = &analyst->book.offer;

    return !(follows & (PROPOSAL_WITHDRAWS | PROPOSAL_HEARD)) && !offer->is_home &&
           offer->decided == 0;
}

static void
take_stored(struct analyst *analyst, bool is_stored, struct analyst_actions *out)
{
    uint32_t follows = analyst->follows;

    if (!analyst->is_storing)
        return;
    analyst->is_storing = false;
    if (!is_stored)
        return;
    analyst->book = analyst->next;
    out->what |= follows & PROPOSAL_HEARD ? ANALYST_SAY_HEARD : ANALYST_TELL_AGENTS;
    if (follows & PROPOSAL_OFFER)
        out->what |= ANALYST_TELL_TRAINERS | ANALYST_SAY_OFFER;
    out->due_step = is_of_advice(analyst, follows) ? analyst->due_step : 0;
    if (follows & PROPOSAL_WAITS)
        out->what |= ANALYST_SAY_WAITS;
    if (follows & PROPOSAL_OVER)
        out->what |= ANALYST_SAY_OVER;
    if (follows & PROPOSAL_GOOD)
        out->what |= ANALYST_SAY_KEPT;
    if (follows & PROPOSAL_WITHDRAWS)
        out->what |= ANALYST_SAY_WITHDRAWN;
    if (follows & PROPOSAL_RELAUNCH)
        out->what |= ANALYST_SAY_RELAUNCH;
    out->over = analyst->over;
}

/* ---- gates ---- */

/* Also in rounds without a step: an operator may decide after any of them. */
static void
note_gates(struct analyst *analyst, const struct analyst_round *round, uint64_t wall_ns)
{
    analyst->is_whole = round->is_whole;
    if (round->committed_epoch != analyst->committed_epoch ||
        round->committed_step != analyst->committed_step)
        analyst->committed_wall_ns = analyst->was_analysing ? wall_ns : 0;
    analyst->committed_epoch = round->committed_epoch;
    analyst->committed_step = round->committed_step;
}

/* True if the trainers may run another placement than the last offer; its state is then not
 * theirs. */
static void
note_state(struct analyst *analyst, const struct proposal *running,
           const struct analyst_round *round)
{
    bool is_running =
        analyst->has_runs && round->is_asked && analyst->runs_number == running->placement.number;

    analyst->interval_ns =
        (uint64_t)(analyst->options.snapshot_every_steps * round->recent_ms * 1e6);
    if (!is_running)
        return;
    analyst->held_bytes = round->held_bytes;
    analyst->planned_bytes = proposal_ranks_bytes(analyst->options.adviser, &running->placement,
                                                  round->held_ranks, round->held_count);
}

static bool
is_commit_new(const struct analyst *analyst, uint64_t wall_ns)
{
    return (analyst->committed_step > 0 &&
            wall_ns <= analyst->committed_wall_ns + 2 * analyst->interval_ns + commit_slack_ns) ||
           PLACEMENT_BUG(OLD_COMMIT);
}

/*
 * The planner's figure for the fullest node covers layers alone, and may be rough. This node's real
 * state corrects it: either every node has as much beside its layers as this one, or layers are
 * larger than planned by the same factor. The lesser counts; if it is too little, the fill fails,
 * and training goes on as before. The job has begun at home, so that fits.
 */
static bool
fits_slots(const struct analyst *analyst, const struct proposal *to)
{
    double bytes = (double)proposal_largest_node_bytes(analyst->options.adviser, &to->placement);
    double held = (double)analyst->held_bytes, planned = (double)analyst->planned_bytes;

    if (held > 0 && planned > 0)
        bytes = fmin(bytes + fmax(held - planned, 0), bytes * held / planned);
    return to->is_home || bytes <= (double)analyst->options.state_bytes || PLACEMENT_BUG(OVERFILLS);
}

/* The gates of moves of layers, also for operators. `to` is compared with what runs. */
static enum proposal_gate
find_unsafe(const struct analyst *analyst, const struct proposal *to, uint64_t wall_ns)
{
    if (to->moved_layers == 0)
        return PROPOSAL_GATE_NONE;
    if (!analyst->is_whole)
        return PROPOSAL_GATE_RANKS;
    if (!is_commit_new(analyst, wall_ns))
        return PROPOSAL_GATE_COMMIT;
    return fits_slots(analyst, to) ? PROPOSAL_GATE_NONE : PROPOSAL_GATE_SLOTS;
}

static enum proposal_gate
find_gate(const struct analyst *analyst, const struct proposal *to, uint64_t wall_ns)
{
    if (!to->is_home && to->step_ms > to->running_ms * (1 - PROPOSAL_LEAST_GAIN) &&
        !PLACEMENT_BUG(SMALL_GAIN))
        return PROPOSAL_GATE_GAIN;
    return find_unsafe(analyst, to, wall_ns);
}

/* The gate that has refused a placement since it was first wanted. */
static struct proposal_refused
refused_until(const struct analyst *analyst, const struct proposal *wanted, uint64_t wall_ns)
{
    struct proposal_refused refused = analyst->refused_before;

    if (!wanted || proposal_name(&wanted->placement) != analyst->refused_name)
        return (struct proposal_refused){0};
    if (analyst->refuses && wall_ns > analyst->round_wall_ns)
        refused.ns += wall_ns - analyst->round_wall_ns;
    return refused;
}

/* What refuses the wanted placement now; NULL: none is wanted. */
static void
note_refused(struct analyst *analyst, const struct proposal *wanted, enum proposal_gate gate,
             uint64_t wall_ns)
{
    uint64_t name = wanted ? proposal_name(&wanted->placement) : 0;

    analyst->refused_before = refused_until(analyst, wanted, wall_ns);
    if (gate)
        analyst->refused_before.gates |= 1u << gate;
    if (name != analyst->refused_name || gate != analyst->refuses)
        analyst->refused_wall_ns = wall_ns;
    analyst->refuses = gate;
    analyst->refused_name = name;
}

enum proposal_gate
analyst_refused(const struct analyst *analyst, uint64_t *since_wall_ns)
{
    *since_wall_ns = analyst->refused_wall_ns;
    return analyst->refuses;
}

/* ---- rounds: what became of the offer ---- */

static bool
is_running(const struct analyst *analyst, const struct proposal_book *book)
{
    return analyst->has_runs && book->offer.placement.count > 0 &&
           analyst->runs_number == book->offer.placement.number;
}

/* The measured step before the change; INFINITY: the earlier placement made too few steps, or too
 * few with these ranks slow, for a median. */
static double
measured_before(const struct analyst *analyst, const struct analyst_round *round)
{
    static const uint32_t enough = CAIRN_RECENT_STEPS / 2 + 2;

    return round->recent_ms > 0 && round->steady_steps >= enough && analyst->earlier_steps >= enough
               ? round->recent_ms
               : INFINITY;
}

/* All ranks compute by the offer. The last steps that were analysed may be older than it. */
static uint32_t
note_taken(struct analyst *analyst, struct proposal_book *book, const struct analyst_round *round,
           uint64_t wall_ns)
{
    const struct proposal *offer = &book->offer;
    double before_ms = offer->is_home ? INFINITY : measured_before(analyst, round);
    double expected_ms = offer->running_ms < INFINITY && before_ms < INFINITY
                             ? before_ms * offer->step_ms / offer->running_ms
                             : INFINITY;

    analyst->watched_steps = analyst->failures = 0;
    return proposal_note_taken(book, before_ms, expected_ms, wall_ns);
}

/* Whether a change keeps its promise: at least half of the predicted gain. */
static bool
has_gained(const struct proposal_story *story, double after_ms)
{
    double half_ms = (story->before_ms + story->expected_ms) / 2;

    return after_ms <= half_ms && after_ms <= story->before_ms * (1 - least_gain);
}

/* Compares the steps after and before the change, and keeps the offer or withdraws it. */
static uint32_t
judge(struct analyst *analyst, struct proposal_book *book, const struct proposal *before,
      const struct analyst_round *round, uint64_t wall_ns)
{
    const struct proposal_story *story = proposal_story_of(book, book->offer.placement.number);
    uint32_t due = PROBATION_STEPS + analyst->failures * CAIRN_RECENT_STEPS;

    if (!story || story->fate != PROPOSAL_TAKEN)
        return 0;
    if (!proposal_is_same_slow(&story->slow, &analyst->slow)) /* nobody can tell any more */
        return proposal_note_kept(book, INFINITY, wall_ns);
    if (analyst->watched_steps < due || !(round->recent_ms > 0))
        return 0;
    if (!(story->expected_ms < INFINITY) || PLACEMENT_BUG(NO_PROBATION))
        return proposal_note_kept(book, round->recent_ms, wall_ns);
    if (has_gained(story, round->recent_ms))
        return proposal_note_kept(book, round->recent_ms, wall_ns) | PROPOSAL_GOOD;
    if (find_unsafe(analyst, before, wall_ns) || ++analyst->failures < FAILURES)
        return 0;
    return proposal_withdraw(book, before, PROPOSAL_TAKEN_BACK, round->recent_ms, taken_back_ns,
                             wall_ns) |
           PROPOSAL_WITHDRAWS;
}

/* The ranks may have taken the offer before this one just as an operator went back from it. */
static bool
changes_nothing(const struct analyst *analyst, const struct proposal_book *book,
                const struct proposal *before)
{
    return proposal_is_same(&before->placement, &book->offer.placement) &&
           !(analyst->has_runs && analyst->runs_number > before->placement.number);
}

/* An offer that would change something, and that not all ranks take. */
static bool
is_aged(const struct analyst *analyst, const struct proposal_book *book,
        const struct proposal *before, uint64_t wall_ns)
{
    return !PLACEMENT_BUG(NEVER_WITHDRAWN) && !proposal_is_taken(book) &&
           !changes_nothing(analyst, book, before) && analyst->watched_steps >= AGE_STEPS &&
           wall_ns >= analyst->watched_ns + age_ns;
}

/* The trainers' reports since, and the times of steps after a change. */
static uint32_t
follow_offer(struct analyst *analyst, struct proposal_book *book, const struct proposal *home,
             const struct analyst_round *round, uint32_t steps, uint64_t wall_ns)
{
    struct proposal before = *proposal_before(book, home);
    const struct cairn_session_moved *moved = &analyst->moved;
    uint64_t number = book->offer.placement.number;
    uint32_t follows = 0;

    if (book->offer.placement.count == 0)
        return 0;
    if (analyst->watched != number) {
        analyst->watched = number;
        analyst->watched_ns = wall_ns;
        analyst->watched_steps = analyst->failures = 0;
    } else {
        analyst->watched_steps += steps;
    }
    proposal_compare(analyst->options.adviser, &book->offer, &before);
    if (moved->number)
        follows |= proposal_note_standstill(book, moved->number, moved->standstill_ns, wall_ns);
    if (moved->number == number && !moved->is_adopted && !proposal_is_taken(book))
        return follows |
               proposal_withdraw(book, &before, PROPOSAL_FAILED, INFINITY, failed_ns, wall_ns) |
               PROPOSAL_WITHDRAWS;
    if (is_running(analyst, book) && !proposal_is_taken(book))
        return follows | note_taken(analyst, book, round, wall_ns);
    if (is_aged(analyst, book, &before, wall_ns))
        return follows |
               proposal_withdraw(book, &before, PROPOSAL_AGED, INFINITY, failed_ns, wall_ns) |
               PROPOSAL_WITHDRAWS;
    return follows | judge(analyst, book, &before, round, wall_ns);
}

/* ---- rounds: what is wanted ---- */

/* Whether some rank that a placement was made for may still be slow without a verdict. */
static bool
is_unsure(const struct proposal *running, const struct analyst_round *round)
{
    for (uint32_t i = 0; i < running->slow.count && i < PROPOSAL_SLOW_MAX; i++)
        for (uint32_t k = 0; k < round->unsure_count; k++)
            if (running->slow.ranks[i] == round->unsure_ranks[k])
                return true;
    return false;
}

static void
count_rest(struct analyst *analyst, const struct proposal *running,
           const struct analyst_round *round)
{
    bool is_known = round->is_calibrated && !is_unsure(running, round);
    bool rests = cairn_adviser_is_at_rest(analyst->options.adviser) &&
                 (is_known || PLACEMENT_BUG(HASTY_HOME));

    analyst->rounds_at_rest = rests ? analyst->rounds_at_rest + !round->is_early : 0;
}

/* Whether the evidence of denials has been another for long enough. */
static bool
is_other_evidence(struct analyst *analyst, const struct proposal_book *book, uint64_t wall_ns)
{
    uint64_t passed_ns = wall_ns > analyst->round_wall_ns ? wall_ns - analyst->round_wall_ns : 0;

    if (proposal_is_same_slow(&book->denied_at, &analyst->slow) ||
        memcmp(&book->denied_at, &analyst->denied_at, sizeof book->denied_at) != 0)
        analyst->differs_ns = 0;
    else /* while the job stands, nobody knows */
        analyst->differs_ns += passed_ns < round_ns_max ? passed_ns : round_ns_max;
    analyst->denied_at = book->denied_at;
    return analyst->differs_ns >= other_evidence_ns;
}

static double
layers_price_ms(const struct analyst *analyst)
{
    uint64_t price_ns = proposal_price_ns(&analyst->book);

    return price_ns ? (double)price_ns / 1e6 : live_standstill_ms;
}

static uint32_t
decide(struct analyst *analyst, struct proposal_book *book, struct proposal *home,
       const struct analyst_round *seen, uint64_t wall_ns)
{
    const struct cairn_adviser *adviser = analyst->options.adviser;
    const struct proposal *running = proposal_running(book, home);
    struct proposal_round round = {.home = home,
                                   .needs_approval = analyst->options.needs_approval,
                                   .is_other_evidence = is_other_evidence(analyst, book, wall_ns),
                                   .changes_per_day = analyst->options.changes_per_day,
                                   .standstill_per_day_ns = analyst->options.standstill_per_day_ns,
                                   .wall_ns = wall_ns};
    struct proposal plan, *wanted;
    uint32_t follows;

    count_rest(analyst, running, seen);
    if (analyst->slow_holds && proposal_make(adviser, &analyst->advice, seen->stages, &plan)) {
        proposal_compare(adviser, running, &plan);
        round.plan = &plan;
    }
    proposal_compare(adviser, running, home);
    if (home->moved_layers > 0)
        home->cost_ms = layers_price_ms(analyst);
    round.at_rest = analyst->rounds_at_rest >= ROUNDS_AT_REST;
    wanted = round.plan ? &plan : round.at_rest ? home : NULL;
    if (wanted) {
        round.gate = find_gate(analyst, wanted, wall_ns);
        wanted->refused = refused_until(analyst, wanted, wall_ns);
    }
    follows = proposal_take_round(book, &round);
    note_refused(analyst, wanted,
                 follows & PROPOSAL_SHUT    ? round.gate
                 : follows & PROPOSAL_SPENT ? PROPOSAL_GATE_BUDGET
                                            : PROPOSAL_GATE_NONE,
                 wall_ns);
    return follows;
}

/* Some rank is silent or hangs: nothing is decided. */
static void
decide_nothing(struct analyst *analyst, const struct proposal *home,
               const struct analyst_round *seen, uint64_t wall_ns)
{
    struct proposal plan;
    bool is_wanted =
        analyst->slow_holds &&
        proposal_make(analyst->options.adviser, &analyst->advice, seen->stages, &plan) &&
        !proposal_is_same(&plan.placement, &proposal_running(&analyst->book, home)->placement);

    note_refused(analyst, is_wanted ? &plan : NULL,
                 is_wanted ? PROPOSAL_GATE_RANKS : PROPOSAL_GATE_NONE, wall_ns);
}

/* ---- rounds: relaunches ---- */

static double
relaunch_price_ms(const struct analyst *analyst)
{
    return fmax((double)analyst->book.relaunch_ns / 1e6, relaunch_ms);
}

/* Whether the job runs in another shape than the problem's plan. */
static bool
is_reshaped(const struct analyst *analyst, const struct analyst_round *round)
{
    const struct proposal *shape = &analyst->book.shape;

    return round->shape != 0 && !PLACEMENT_BUG(BLIND_TO_SHAPE) &&
           !(shape->is_home && shape->placement.number == round->shape);
}

/* The outcome of the relaunch that was approved last. */
static uint32_t
follow_relaunch(struct analyst *analyst, struct proposal_book *book,
                const struct analyst_round *round, uint32_t steps, uint64_t wall_ns)
{
    uint64_t number = book->shape.placement.number;
    uint64_t gap_ns = wall_ns > analyst->round_wall_ns ? wall_ns - analyst->round_wall_ns : 0;

    if (book->shape.placement.count == 0)
        return 0;
    if (analyst->shape_watched != number) {
        analyst->shape_watched = number;
        analyst->shape_wall_ns = wall_ns;
        analyst->shape_gap_ns = analyst->shape_steps = 0;
        analyst->shape_before_ms = 0;
    } else if (analyst->round_wall_ns && gap_ns > analyst->shape_gap_ns &&
               analyst->shape_steps == 0) {
        analyst->shape_gap_ns = gap_ns;
    }
    if (round->shape != number) {
        analyst->shape_before_ms = round->recent_ms;
        return wall_ns >= analyst->shape_wall_ns + relaunch_age_ns
                   ? proposal_end_relaunch(book, wall_ns)
                   : 0;
    }
    analyst->shape_steps += steps;
    if (analyst->shape_steps >= PROBATION_STEPS && round->recent_ms > 0)
        return proposal_note_relaunch_kept(book, round->recent_ms);
    return proposal_note_relaunched(
        book, analyst->shape_before_ms > 0 ? analyst->shape_before_ms : (double)INFINITY,
        analyst->shape_gap_ns, wall_ns);
}

/* Proposes a relaunch once the slow ranks have cost as much as it does. */
static uint32_t
consider_relaunch(struct analyst *analyst, struct proposal_book *book, const struct proposal *home,
                  const struct analyst_round *round, uint32_t steps, uint64_t wall_ns)
{
    const struct cairn_adviser *adviser = analyst->options.adviser;
    double running_ms = proposal_step_ms(adviser, &proposal_running(book, home)->placement);
    struct proposal wanted;

    if (!proposal_is_same_slow(&analyst->lost_at, &analyst->slow)) {
        analyst->lost_at = analyst->slow;
        analyst->lost_ms = 0;
    }
    if (!round->is_whole)
        return 0;
    if (book->shape.placement.count && !book->shape.is_home)
        return proposal_want_relaunch(book, NULL, wall_ns); /* one is under way */
    if (!round->reads || !analyst->slow_holds || analyst->slow.count == 0 ||
        !proposal_make_relaunch(adviser, round->reads, &round->standby, running_ms,
                                relaunch_price_ms(analyst), &wanted))
        return proposal_want_relaunch(book, NULL, wall_ns);
    analyst->lost_ms += steps * (running_ms - wanted.step_ms);
    if (analyst->lost_ms < wanted.cost_ms && book->relaunch.placement.count == 0)
        return 0;
    return proposal_want_relaunch(book, &wanted, wall_ns);
}

/* The job runs in the shape of a relaunch: the plan is for other ranks. */
static void
act_reshaped(struct analyst *analyst, const struct analyst_round *round, uint32_t steps,
             uint64_t wall_ns, struct analyst_actions *out)
{
    analyst->next = analyst->book;
    analyst->rounds_at_rest = 0;
    note_refused(analyst, NULL, PROPOSAL_GATE_NONE, wall_ns);
    change(analyst, follow_relaunch(analyst, &analyst->next, round, steps, wall_ns), out);
}

static void
act(struct analyst *analyst, const struct analyst_round *round, uint32_t steps, uint64_t wall_ns,
    struct analyst_actions *out)
{
    struct proposal home;
    uint32_t follows;

    if (!analyst_home(analyst, round->stages, &home))
        return;
    analyst->next = analyst->book;
    note_state(analyst, proposal_running(&analyst->book, &home), round);
    follows = follow_offer(analyst, &analyst->next, &home, round, steps, wall_ns);
    /* before a relaunch an offer would be for ranks that are about to end */
    if ((follows & PROPOSAL_OFFER) || !round->is_asked || proposal_relaunches(&analyst->book))
        note_refused(analyst, NULL, PROPOSAL_GATE_NONE, wall_ns);
    else if (round->is_whole)
        follows |= decide(analyst, &analyst->next, &home, round, wall_ns);
    else
        decide_nothing(analyst, &home, round, wall_ns);
    if (follows & PROPOSAL_SPENT)
        out->what |= ANALYST_SAY_SPENT;
    follows |= follow_relaunch(analyst, &analyst->next, round, steps, wall_ns);
    follows |= consider_relaunch(analyst, &analyst->next, &home, round, steps, wall_ns);
    change(analyst, follows, out);
}

/* ---- rounds: advice ---- */

/* Whether all ranks with slow settled rates are slow by the open verdicts too: rates settle some
 * rounds after a verdict has ended, and must not lead to a new proposal then. */
static bool
still_holds(const struct proposal_slow *slow, const struct analyst_round *round)
{
    for (uint32_t i = 0; i < slow->count && i < PROPOSAL_SLOW_MAX; i++) {
        bool is_open = false;

        for (uint32_t k = 0; k < round->slow_count; k++)
            is_open |= round->slow_ranks[k] == slow->ranks[i];
        if (!is_open)
            return false;
    }
    return true;
}

static void
advise(struct analyst *analyst, const struct analyst_round *round, uint32_t steps, uint64_t wall_ns,
       struct analyst_actions *out)
{
    struct cairn_adviser *adviser = analyst->options.adviser;
    enum cairn_advice_change change;

    out->unknown = cairn_adviser_rates(adviser, round->slow_ranks, round->slow_rates,
                                       round->slow_count, analyst->rates);
    if (out->unknown > 0 && !analyst->said_unknown)
        out->what |= ANALYST_SAY_UNKNOWN;
    analyst->said_unknown |= out->unknown > 0;
    change = cairn_adviser_round(adviser, round->is_early ? NULL : analyst->rates, steps,
                                 &analyst->advice);
    if (change == CAIRN_ADVICE_GIVEN) {
        analyst->given_wall_ns = wall_ns;
        analyst->due_step = round->last_step - analyst->advice.late_steps;
    }
    if (change != CAIRN_ADVICE_SAME)
        out->what |= ANALYST_STORE_ADVICE;
    if (change == CAIRN_ADVICE_GIVEN)
        out->what |= ANALYST_SAY_ADVICE;
    if (change == CAIRN_ADVICE_WITHDRAWN)
        out->what |= ANALYST_SAY_NO_ADVICE;
    proposal_find_slow(adviser, &analyst->slow);
    analyst->slow_holds = still_holds(&analyst->slow, round);
    analyst->runs_steps += steps;
}

/* Plans are wanted: at the present rates, and at the measured price. */
static void
want_plans(struct analyst *analyst, const struct analyst_round *round, struct analyst_actions *out)
{
    bool moves = analyst->options.offers && round->stages > 0;

    if (!cairn_adviser_wants(analyst->options.adviser, &out->plans_number, &out->problem))
        return;
    out->what |= ANALYST_MAKE_PLANS;
    out->costs = (struct cairn_offer_costs){
        .layers_ms = moves ? layers_price_ms(analyst) : standstill_ms,
        .is_layers_whole = moves && proposal_price_ns(&analyst->book) > 0,
        .pause_ms = standstill_ms,
        .restart_ms = INFINITY};
}

static void
take_round(struct analyst *analyst, const struct analyst_round *round, uint64_t wall_ns,
           struct analyst_actions *out)
{
    uint32_t steps;
    bool has_stood;

    if (!round->analyses || !analyst->options.adviser) {
        analyst->was_analysing = false;
        analyst->rounds_at_rest = 0;
        analyst->differs_ns = 0;
        analyst->refuses = PROPOSAL_GATE_NONE;
        return;
    }
    note_gates(analyst, round, wall_ns);
    steps = analyst->was_analysing && round->steps > analyst->steps_before
                ? round->steps - analyst->steps_before
                : 0;
    has_stood = !analyst->was_analysing || round->steps <= analyst->timed_steps;
    if (!round->is_early || !analyst->was_analysing)
        analyst->timed_steps = round->steps;
    analyst->steps_before = round->steps;
    analyst->was_analysing = true;
    if (steps == 0 && (round->is_early || has_stood))
        return; /* the job stands, or begins: nothing is measured */
    if (analyst->options.offers && is_reshaped(analyst, round)) {
        act_reshaped(analyst, round, steps, wall_ns, out);
        analyst->round_wall_ns = wall_ns;
        return;
    }
    advise(analyst, round, steps, wall_ns, out);
    act(analyst, round, steps, wall_ns, out);
    analyst->round_wall_ns = wall_ns;
    want_plans(analyst, round, out);
}

/* ---- the other events ---- */

static void
take_decision(struct analyst *analyst, const struct analyst_event *event,
              struct analyst_actions *out)
{
    const struct cairn_adviser *adviser = analyst->options.adviser;
    uint32_t stages = event->as.decision.stages, follows;
    struct proposal home, best, home_shape;
    bool is_away = analyst->book.shape.placement.count && !analyst->book.shape.is_home;
    bool has_home =
        analyst_home(analyst, is_away ? 0 : stages, &home); /* ranks have other stages */
    struct proposal_scene scene = {.home = has_home ? &home : NULL,
                                   .slow = &analyst->slow,
                                   .needs_approval = analyst->options.needs_approval,
                                   .wall_ns = event->wall_ns};

    analyst->next = analyst->book;
    if (has_home) {
        const struct proposal *running = proposal_running(&analyst->next, &home);
        struct proposal waiting = analyst->next.waiting;

        if (waiting.placement.count > 0) {
            proposal_compare(adviser, running, &waiting);
            scene.waiting_gate = find_unsafe(analyst, &waiting, event->wall_ns);
        }
        if (proposal_make_home_shape(adviser, relaunch_price_ms(analyst), &home_shape))
            scene.home_shape = &home_shape;
        proposal_compare(adviser, running, &home);
        scene.home_gate = find_unsafe(analyst, &home, event->wall_ns);
        if (event->as.decision.decision->word == PROPOSAL_NOW && analyst->slow_holds &&
            proposal_make_best(adviser, running, stages, &best)) {
            proposal_compare(adviser, running, &best);
            scene.best_gate = find_unsafe(analyst, &best, event->wall_ns);
            scene.best = &best;
        }
    }
    follows = proposal_decide(&analyst->next, event->as.decision.decision, &scene, &out->answer);
    if (!event->as.decision.dry_run)
        change(analyst, follows, out);
}

static void
take_book(struct analyst *analyst, const struct proposal_book *heard, struct analyst_actions *out)
{
    if (heard->version < analyst->book.version) /* it has forgotten its own, or was cut off */
        out->what |= ANALYST_TELL_SENDER;
    analyst->next = analyst->book;
    change(analyst, proposal_hear(&analyst->next, heard) | PROPOSAL_HEARD, out);
}

static void
note_runs(struct analyst *analyst, uint64_t number)
{
    if (!analyst->has_runs || analyst->runs_number != number) {
        analyst->earlier_steps = analyst->runs_steps;
        analyst->runs_steps = 0;
    }
    analyst->has_runs = true;
    analyst->runs_number = number;
    proposal_note_number(&analyst->book, number);
}

void
analyst_step(struct analyst *analyst, const struct analyst_event *event,
             struct analyst_actions *out)
{
    *out = (struct analyst_actions){0};
    CAIRN_ASSERT(!analyst->is_storing || event->type == ANALYST_STORED);
    switch (event->type) {
    case ANALYST_ROUND:
        take_round(analyst, &event->as.round, event->wall_ns, out);
        break;
    case ANALYST_PLANS:
        cairn_adviser_offered(analyst->options.adviser, event->as.plans.number,
                              event->as.plans.offers);
        break;
    case ANALYST_DECISION:
        take_decision(analyst, event, out);
        break;
    case ANALYST_HEARD:
        take_book(analyst, event->as.heard, out);
        break;
    case ANALYST_RUNS:
        note_runs(analyst, event->as.runs->number);
        break;
    case ANALYST_MOVED:
        analyst->moved = event->as.moved;
        break;
    case ANALYST_STORED:
        take_stored(analyst, event->as.is_stored, out);
        break;
    }
}
