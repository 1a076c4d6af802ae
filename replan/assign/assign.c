/* replan/assign/assign.c - sequences to pipelines. */
#include "replan/assign/assigner.h"
#include "base/assert.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PACKINGS = 6,
    SEARCH_BUDGET = 3000000, /* steps of all searches for places of the longest: some 0.1 s */
    TRADE_WORK = 200,        /* what a trade costs, in such steps, */
    PACKING_WORK = 4000,     /* and filling up */
    BORDERS_MAX = 4,         /* numbers of sequences that some pipelines do not take, of those that
                             * are tried */
    COUNTS_MAX = 8           /* such numbers in all */
};
#define VERY_NEAR 1e-4
#define NEAR_ENOUGH 5e-3 /* to the bound: no more is looked for */
#define SETTLED                                                                                    \
    0.4 /* of what lies between bound and time: no more is looked for with so many kinds */

/* What a pipeline has. */
struct filled {
    double sum_ms;
    double largest_ms;
};

struct assigner {
    const struct cairn_assign_problem *problem;
    struct cairn_sequence *sequences; /* the most costly first */
    struct cairn_filling *filling;
    struct filled *filled; /* by pipeline */
    uint32_t *chosen;      /* by the present packing, per sequence of `sequences` */
};

void
cairn_assign_problem_fini(struct cairn_assign_problem *problem)
{
    free(problem->tokens);
    free(problem->pipelines);
    *problem = (struct cairn_assign_problem){0};
}

static double
cost_ms(const struct cairn_assign_problem *problem, uint64_t tokens)
{
    double s = (double)tokens;

    return problem->square * s * s + problem->linear * s + problem->constant;
}

static int
most_costly_first(const void *left, const void *right)
{
    const struct cairn_sequence *a = left, *b = right;

    if (a->cost_ms < b->cost_ms || a->cost_ms > b->cost_ms)
        return a->cost_ms > b->cost_ms ? -1 : 1;
    if (a->tokens != b->tokens)
        return a->tokens > b->tokens ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

static uint64_t
longest_taken(const struct cairn_assign_problem *problem)
{
    uint64_t limit = 0;

    for (uint32_t i = 0; i < problem->pipeline_count; i++)
        if (problem->pipelines[i].max_tokens > limit)
            limit = problem->pipelines[i].max_tokens;
    return limit;
}

struct cairn_sequence *
cairn_sequences_sorted(const struct cairn_assign_problem *problem)
{
    struct cairn_sequence *sequences =
        calloc((size_t)problem->sequence_count + 1, sizeof(*sequences));
    uint64_t limit = longest_taken(problem);

    if (!sequences)
        return NULL;
    /* one that is cut fits where the longest do */
    for (uint32_t i = 0; i < problem->sequence_count; i++)
        sequences[i] =
            (struct cairn_sequence){cost_ms(problem, problem->tokens[i]),
                                    problem->tokens[i] < limit ? problem->tokens[i] : limit, i};
    qsort(sequences, problem->sequence_count, sizeof(*sequences), most_costly_first);
    return sequences;
}

static void
add(struct filled *filled, double cost_ms)
{
    filled->sum_ms += cost_ms;
    filled->largest_ms = fmax(filled->largest_ms, cost_ms);
}

static double
longest_ms(const struct cairn_assign_problem *problem, const struct filled *filled)
{
    double longest = 0;

    for (uint32_t i = 0; i < problem->pipeline_count; i++) {
        const struct cairn_assign_pipeline *own = &problem->pipelines[i];

        longest = fmax(longest, (filled[i].sum_ms + (own->stages - 1) * filled[i].largest_ms) *
                                    own->time_scale);
    }
    return longest;
}

/* By each rule. */
static bool
pack(struct assigner *assigner, double step_ms)
{
    return cairn_fill(assigner->filling, step_ms, 0, CAIRN_FILL_TIGHT, assigner->chosen) ||
           cairn_fill(assigner->filling, step_ms, 0, CAIRN_FILL_TOGETHER, assigner->chosen) ||
           cairn_fill(assigner->filling, step_ms, 0, CAIRN_FILL_CHEAP, assigner->chosen);
}

static bool
is_near(const struct cairn_assignment *made)
{
    return made->step_ms <= made->bound_ms * (1 + NEAR_ENOUGH);
}

static void
take(const struct assigner *assigner, struct cairn_assignment *out)
{
    for (uint32_t i = 0; i < assigner->problem->pipeline_count; i++)
        assigner->filled[i] = (struct filled){0};
    for (uint32_t i = 0; i < assigner->problem->sequence_count; i++) {
        CAIRN_ASSERT(assigner->chosen[i] < assigner->problem->pipeline_count);
        CAIRN_ASSERT(assigner->sequences[i].tokens <=
                     assigner->problem->pipelines[assigner->chosen[i]].max_tokens);
        out->pipelines[assigner->sequences[i].index] = assigner->chosen[i];
        add(&assigner->filled[assigner->chosen[i]], assigner->sequences[i].cost_ms);
    }
    out->step_ms = longest_ms(assigner->problem, assigner->filled);
    CAIRN_ASSERT(out->bound_ms <= out->step_ms * (1 + VERY_NEAR));
}

/* The least time that a rule keeps, between the bound and where each sequence in turn goes to the
 * pipeline that then ends first. CAIRN_NOMEM. */
static cairn_err
find_packing(struct assigner *assigner, struct cairn_assignment *out)
{
    cairn_err err = CAIRN_OK;
    double low;

    if (!cairn_fill(assigner->filling, 0, 0, CAIRN_FILL_EARLY, assigner->chosen))
        return CAIRN_INTERNAL; /* every sequence has a pipeline that takes it */
    take(assigner, out);
    /* Near the bound first: mostly that is enough, and where it is not the bound is raised, and the
     * rest halved. */
    if (!is_near(out) && pack(assigner, out->bound_ms * (1 + VERY_NEAR)))
        take(assigner, out);
    low = out->bound_ms;
    for (uint32_t i = 0; !err && i < PACKINGS && out->step_ms - low > NEAR_ENOUGH * low; i++) {
        double step_ms = i == 0 ? low * (1 + VERY_NEAR) : low + (out->step_ms - low) / 2;

        if (pack(assigner, step_ms))
            take(assigner, out);
        else
            low = step_ms;
    }
    return err;
}

/* ---- the longest sequences ---- */

/* How many of the longest sequences may be what decides: all, where they are few; those that are
 * too long for some pipelines; and those that cost at least a part of the longest.
 * counts[COUNTS_MAX]; how many guesses. */
static uint32_t
list_counts(const struct assigner *assigner, uint32_t *counts)
{
    static const double parts[] = {0.5, 0.35, 0.7};
    const struct cairn_assign_problem *problem = assigner->problem;
    uint32_t most = problem->sequence_count < CAIRN_SLOTS_SEQUENCES_MAX ? problem->sequence_count
                                                                        : CAIRN_SLOTS_SEQUENCES_MAX,
             found = 0;

    if (problem->sequence_count <= CAIRN_SLOTS_SEQUENCES_MAX)
        counts[found++] = problem->sequence_count;
    for (uint32_t i = 1; i < most && found < BORDERS_MAX; i++)
        for (uint32_t p = 0; p < problem->pipeline_count; p++)
            if (problem->pipelines[p].max_tokens < assigner->sequences[i - 1].tokens &&
                problem->pipelines[p].max_tokens >= assigner->sequences[i].tokens) {
                counts[found++] = i;
                break;
            }
    for (uint32_t k = 0; k < sizeof(parts) / sizeof(*parts); k++) {
        uint32_t count = 1;
        bool known = false;

        while (count < most &&
               assigner->sequences[count].cost_ms >= parts[k] * assigner->sequences[0].cost_ms)
            count++;
        for (uint32_t i = 0; i < found; i++)
            known |= counts[i] == count;
        if (!known)
            counts[found++] = count;
    }
    return found;
}

/* The time of the first sequences alone, where they are. */
static double
time_of(const struct assigner *assigner, uint32_t count)
{
    for (uint32_t i = 0; i < assigner->problem->pipeline_count; i++)
        assigner->filled[i] = (struct filled){0};
    for (uint32_t i = 0; i < count; i++)
        add(&assigner->filled[assigner->chosen[i]], assigner->sequences[i].cost_ms);
    return longest_ms(assigner->problem, assigner->filled);
}

/* Halves what lies between the bound and what there is, as far as so many kinds of so many
 * sequences settle it in searches of work_max steps. */
static void
settle_kinds(struct assigner *assigner, struct cairn_slots *slots, uint32_t count, uint32_t kinds,
             uint64_t work_max, uint64_t *budget, struct cairn_assignment *out)
{
    double high_ms = out->step_ms;

    if (!cairn_slots_cut(slots, count, kinds))
        return;
    while (*budget > 0 && !is_near(out) &&
           high_ms - out->bound_ms > SETTLED * (out->step_ms - out->bound_ms)) {
        double middle_ms = out->bound_ms + (high_ms - out->bound_ms) / 2, least_ms;
        uint64_t work = work_max < *budget ? work_max : *budget, given = work;
        enum cairn_slots_answer answer =
            cairn_slots_place(slots, middle_ms, &work, assigner->chosen);

        *budget -= given - work;
        if (answer == CAIRN_SLOTS_NONE) {
            out->bound_ms = middle_ms;
            continue;
        }
        high_ms = middle_ms;
        if (answer == CAIRN_SLOTS_UNKNOWN)
            continue;
        given = TRADE_WORK *
                (1 + cairn_trade(assigner->problem, assigner->sequences, count, assigner->chosen));
        *budget -= given < *budget ? given : *budget;
        least_ms = fmax(middle_ms, time_of(assigner, count) * (1 + VERY_NEAR));
        if (least_ms < out->step_ms &&
            cairn_fill(assigner->filling, least_ms, count, CAIRN_FILL_CHEAP, assigner->chosen)) {
            *budget -= PACKING_WORK < *budget ? PACKING_WORK : *budget;
            take(assigner, out);
        }
    }
}

/* Where the rules alone end far from the bound, a few long sequences decide: in few kinds first,
 * since that is soon known. */
static cairn_err
settle_longest(struct assigner *assigner, struct cairn_assignment *out)
{
    static const uint32_t kinds[] = {6, 8, 12, 16};
    static const uint64_t works[] = {30000, 300000}; /* of one search */
    uint64_t budget = SEARCH_BUDGET;
    uint32_t counts[COUNTS_MAX], found;
    struct cairn_slots *slots;
    cairn_err err;

    if (is_near(out))
        return CAIRN_OK;
    err = cairn_slots_create(assigner->problem, assigner->sequences, &slots);
    if (err)
        return err;
    found = list_counts(assigner, counts);
    for (uint32_t w = 0; w < sizeof(works) / sizeof(*works); w++)
        for (uint32_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
            for (uint32_t i = 0; i < found; i++)
                settle_kinds(assigner, slots, counts[i], kinds[k], works[w], &budget, out);
    cairn_slots_destroy(slots);
    return CAIRN_OK;
}

static cairn_err
check_lengths(const struct cairn_assign_problem *problem, struct cairn_fault *fault)
{
    uint64_t limit = longest_taken(problem);

    if (problem->microbatch_tokens > limit) {
        (void)snprintf(fault->text, sizeof(fault->text),
                       "microbatch_tokens is %" PRIu64 ", and no pipeline takes more than %" PRIu64
                       " tokens",
                       problem->microbatch_tokens, limit);
        return CAIRN_INVAL;
    }
    for (uint32_t i = 0; problem->microbatch_tokens == 0 && i < problem->sequence_count; i++)
        if (problem->tokens[i] > limit) {
            (void)snprintf(fault->text, sizeof(fault->text),
                           "sequence %" PRIu32 " has %" PRIu64
                           " tokens, and no pipeline takes more than %" PRIu64,
                           i, problem->tokens[i], limit);
            return CAIRN_NOT_FOUND;
        }
    return CAIRN_OK;
}

/* is_searching: also for better places of the longest sequences. */
static cairn_err
assign(const struct cairn_assign_problem *problem, bool is_searching, struct cairn_assignment *out,
       struct cairn_fault *fault)
{
    struct assigner assigner = {.problem = problem};
    struct cairn_assignment made = {0};
    cairn_err err = check_lengths(problem, fault);

    if (err)
        return err;
    err = CAIRN_NOMEM;
    assigner.sequences = cairn_sequences_sorted(problem);
    assigner.chosen = calloc((size_t)problem->sequence_count + 1, sizeof(*assigner.chosen));
    assigner.filled = calloc((size_t)problem->pipeline_count + 1, sizeof(*assigner.filled));
    made.pipelines = calloc((size_t)problem->sequence_count + 1, sizeof(*made.pipelines));
    if (!assigner.sequences || !assigner.chosen || !assigner.filled || !made.pipelines)
        goto done;
    err = cairn_filling_create(problem, assigner.sequences, &assigner.filling);
    if (!err && problem->sequence_count > 0) {
        err = cairn_assign_bound_ms(problem, assigner.sequences, &made.bound_ms);
        if (!err)
            err = find_packing(&assigner, &made);
        if (!err && is_searching)
            err = settle_longest(&assigner, &made);
    }
done:
    free(assigner.sequences);
    free(assigner.chosen);
    cairn_filling_destroy(assigner.filling);
    free(assigner.filled);
    if (err)
        free(made.pipelines);
    else
        *out = made;
    return err;
}

cairn_err
cairn_assign(const struct cairn_assign_problem *problem, struct cairn_assignment *out,
             struct cairn_fault *fault)
{
    return assign(problem, true, out, fault);
}

cairn_err
cairn_assign_by_rules(const struct cairn_assign_problem *problem, struct cairn_assignment *out,
                      struct cairn_fault *fault)
{
    return assign(problem, false, out, fault);
}

cairn_err
cairn_assign_step_ms(const struct cairn_assign_problem *problem, const uint32_t *pipelines,
                     double *step_ms)
{
    struct filled *filled = calloc((size_t)problem->pipeline_count + 1, sizeof(*filled));

    if (!filled)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < problem->sequence_count; i++)
        add(&filled[pipelines[i]], cost_ms(problem, problem->tokens[i]));
    *step_ms = longest_ms(problem, filled);
    free(filled);
    return CAIRN_OK;
}
