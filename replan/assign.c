/* replan/assign.c - sequences to pipelines. */
#include "replan/assigner.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PACKINGS = 6,
    SEARCH_WORK = 250000,  /* steps of the first searches for places of the longest, */
    SEARCH_BUDGET = 4000000, /* and of all */
    PACKING_WORK = 20000,    /* what filling up costs, in such steps */
};
#define VERY_NEAR 1e-4
#define NEAR_ENOUGH 2e-3    /* to the bound: no more is looked for */
#define SETTLED 0.45        /* of what lies between bound and time: open for want of work */

/* What a pipeline has. */
struct filled {
    double sum_ms;
    double largest_ms;
};

struct assigner {
    const struct cairn_assign_problem *problem;
    struct cairn_sequence *sequences; /* the most costly first */
    struct cairn_filling *filling;
    struct filled *filled;      /* by pipeline */
    uint32_t *chosen; /* by the present packing, per sequence of `sequences` */
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
    struct cairn_sequence *sequences = calloc((size_t)problem->sequence_count + 1, sizeof(*sequences));
    uint64_t limit = longest_taken(problem);

    if (!sequences)
        return NULL;
    for (uint32_t i = 0; i < problem->sequence_count; i++) /* one that is cut fits where the longest do */
        sequences[i] = (struct cairn_sequence){cost_ms(problem, problem->tokens[i]),
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

        longest = fmax(longest, (filled[i].sum_ms + (own->stages - 1) * filled[i].largest_ms) * own->time_scale);
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

static void
take(const struct assigner *assigner, struct cairn_assignment *out)
{
    for (uint32_t i = 0; i < assigner->problem->pipeline_count; i++)
        assigner->filled[i] = (struct filled){0};
    for (uint32_t i = 0; i < assigner->problem->sequence_count; i++) {
        out->pipelines[assigner->sequences[i].index] = assigner->chosen[i];
        add(&assigner->filled[assigner->chosen[i]], assigner->sequences[i].cost_ms);
    }
    out->step_ms = longest_ms(assigner->problem, assigner->filled);
}

/* The least time that a rule keeps, between the bound and where each sequence in turn goes to the pipeline that then ends
 * first. False where a sequence has no place. */
static bool
find_packing(struct assigner *assigner, struct cairn_assignment *out)
{
    double low = out->bound_ms;

    if (!cairn_fill(assigner->filling, 0, 0, CAIRN_FILL_EARLY, assigner->chosen))
        return false;
    take(assigner, out);
    for (uint32_t i = 0; i < PACKINGS && out->step_ms - low > NEAR_ENOUGH * low; i++) {
        /* Near the bound first: mostly that is enough, and where it is not the rest is halved. */
        double step_ms = i == 0 ? low * (1 + VERY_NEAR) : low + (out->step_ms - low) / 2;

        if (pack(assigner, step_ms))
            take(assigner, out);
        else
            low = step_ms;
    }
    return true;
}

/* ---- the longest sequences ---- */

/* How many of the longest sequences are worth a search: those that only some pipelines take, and some round numbers. */
static uint32_t
list_counts(const struct assigner *assigner, uint32_t *counts)
{
    const struct cairn_assign_problem *problem = assigner->problem;
    uint32_t count = 0, most = problem->sequence_count < CAIRN_LONG_MAX ? problem->sequence_count : CAIRN_LONG_MAX;

    for (uint32_t i = 1; i <= most; i++) {
        bool fewer_may = false;

        for (uint32_t j = 0; i < most && j < problem->pipeline_count && !fewer_may; j++)
            fewer_may = problem->pipelines[j].max_tokens < assigner->sequences[i - 1].tokens &&
                        problem->pipelines[j].max_tokens >= assigner->sequences[i].tokens;
        if (i == most || i % 12 == 0 || fewer_may)
            counts[count++] = i;
    }
    return count;
}

/* Settles whether a time can be kept, by searches for fewer and fewer of the longest sequences, until there are places for them.
 * PLACED: it can, and is taken; NONE: it cannot, and is the bound. */
static enum cairn_long_answer
settle_time(struct assigner *assigner, struct cairn_long *longest, double step_ms, uint64_t work_each,
            uint64_t *budget, struct cairn_assignment *out)
{
    uint32_t counts[CAIRN_LONG_MAX], count = list_counts(assigner, counts);

    for (uint32_t i = count; i-- > 0 && *budget > 0;) {
        uint64_t work = work_each;
        enum cairn_long_answer answer =
            cairn_long_place(longest, counts[i], step_ms, &work, assigner->chosen);

        *budget -= work_each - work < *budget ? work_each - work : *budget;
        if (answer == CAIRN_LONG_NONE) {
            out->bound_ms = step_ms;
            return answer;
        }
        if (answer == CAIRN_LONG_UNKNOWN)
            continue;
        *budget -= PACKING_WORK < *budget ? PACKING_WORK : *budget;
        if (!cairn_fill(assigner->filling, step_ms, counts[i], CAIRN_FILL_CHEAP, assigner->chosen))
            return CAIRN_LONG_UNKNOWN;
        take(assigner, out);
        return answer;
    }
    return CAIRN_LONG_UNKNOWN;
}

/* Where the rules alone end far from the bound, a few long sequences decide. Between the bound and what there is, times are
 * tried: the middle first; around those that could not be settled, above and below in turn; in the end with more work each. */
static cairn_err
settle_longest(struct assigner *assigner, struct cairn_assignment *out)
{
    uint64_t budget = SEARCH_BUDGET, work_each = SEARCH_WORK;
    double open_low_ms = INFINITY, open_high_ms = 0; /* what lies between could not be settled */
    struct cairn_long *longest = NULL;
    bool below = false;
    cairn_err err;

    if (out->step_ms <= out->bound_ms * (1 + NEAR_ENOUGH))
        return CAIRN_OK;
    err = cairn_long_create(assigner->problem, assigner->sequences, &longest);
    while (!err && budget > 0 && out->step_ms > out->bound_ms * (1 + NEAR_ENOUGH)) {
        double low_ms = open_high_ms > 0 && !below ? open_high_ms : out->bound_ms;
        double high_ms = open_high_ms > 0 && below ? open_low_ms : out->step_ms;
        double middle_ms = low_ms + (high_ms - low_ms) / 2;

        if (settle_time(assigner, longest, middle_ms, work_each, &budget, out) == CAIRN_LONG_UNKNOWN) {
            open_low_ms = fmin(open_low_ms, middle_ms);
            open_high_ms = fmax(open_high_ms, middle_ms);
        }
        below = !below;
        if (open_high_ms > 0 && open_high_ms - open_low_ms > SETTLED * (out->step_ms - out->bound_ms)) {
            open_low_ms = INFINITY;
            open_high_ms = 0;
            work_each *= 4;
        }
    }
    cairn_long_destroy(longest);
    return err;
}

static cairn_err
check_lengths(const struct cairn_assign_problem *problem, struct cairn_fault *fault)
{
    uint64_t limit = longest_taken(problem);

    if (problem->microbatch_tokens > limit) {
        (void)snprintf(fault->text, sizeof(fault->text),
                       "microbatch_tokens is %" PRIu64 ", and no pipeline takes more than %" PRIu64 " tokens",
                       problem->microbatch_tokens, limit);
        return CAIRN_NOT_FOUND;
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

cairn_err
cairn_assign(const struct cairn_assign_problem *problem, struct cairn_assignment *out,
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
        if (!err && !find_packing(&assigner, &made))
            err = CAIRN_INTERNAL; /* every sequence has a pipeline that takes it */
        if (!err)
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
