/* replan/assign.c - sequences to pipelines. */
#include "replan/assigner.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    PACKINGS = 6,
    SEARCH_BUDGET = 300000, /* steps of all searches for places of the longest: some three milliseconds */
    SEARCH_WORK = 100000,   /* of one at first, */
    SEARCH_GROWS = 3,       /* and so many times as many in each later round */
    PACKING_WORK = 20000    /* what filling up costs, in such steps */
};
#define VERY_NEAR 1e-4
#define NEAR_ENOUGH 5e-3    /* to the bound: no more is looked for */
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
        out->pipelines[assigner->sequences[i].index] = assigner->chosen[i];
        add(&assigner->filled[assigner->chosen[i]], assigner->sequences[i].cost_ms);
    }
    out->step_ms = longest_ms(assigner->problem, assigner->filled);
}

/* The least time that a rule keeps, between the bound and where each sequence in turn goes to the pipeline that then ends
 * first. CAIRN_NOMEM. */
static cairn_err
find_packing(struct assigner *assigner, struct cairn_assignment *out)
{
    cairn_err err = CAIRN_OK;
    double low;

    if (!cairn_fill(assigner->filling, 0, 0, CAIRN_FILL_EARLY, assigner->chosen))
        return CAIRN_INTERNAL; /* every sequence has a pipeline that takes it */
    take(assigner, out);
    /* Near the bound first: mostly that is enough, and where it is not the bound is raised, and the rest halved. */
    if (!is_near(out) && pack(assigner, out->bound_ms * (1 + VERY_NEAR)))
        take(assigner, out);
    if (!is_near(out))
        err = cairn_assign_raise_bound(assigner->problem, assigner->sequences, out->step_ms / (1 + NEAR_ENOUGH), &out->bound_ms);
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

/* What is known of a time that is tried. */
enum settled { SETTLED_KEPT, SETTLED_REFUSED, SETTLED_OPEN };

/* How many of the longest sequences, at most CAIRN_LONG_MAX, cost at least a part of the longest; all where there are no more. */
static uint32_t
count_above(const struct assigner *assigner, double part)
{
    uint32_t count = 1;

    if (assigner->problem->sequence_count <= CAIRN_LONG_MAX)
        return assigner->problem->sequence_count;
    while (count < CAIRN_LONG_MAX &&
           assigner->sequences[count].cost_ms >= part * assigner->sequences[0].cost_ms)
        count++;
    return count;
}

/*
 * Settles whether a time can be kept: of the longest sequences some are placed. Where there is no way it cannot; where there is, and
 * the others fill up what is left, it can, and that is taken. With too few of them there is always a way, with too many the search is
 * long: so several numbers are tried.
 */
static enum settled
settle_time(struct assigner *assigner, struct cairn_long *longest, double step_ms, uint64_t work_each, uint64_t *budget,
            struct cairn_assignment *out)
{
    static const double parts[] = {0.4, 0.5, 0.6, 0.8};

    for (uint32_t i = 0; i < sizeof(parts) / sizeof(*parts) && *budget > 0; i++) {
        uint64_t work = work_each < *budget ? work_each : *budget, given = work;
        uint32_t count = count_above(assigner, parts[i]);
        enum cairn_long_answer answer = cairn_long_place(longest, count, step_ms, &work, assigner->chosen);

        *budget -= given - work;
        if (answer == CAIRN_LONG_NONE) {
            out->bound_ms = step_ms;
            return SETTLED_REFUSED;
        }
        if (answer == CAIRN_LONG_UNKNOWN)
            continue;
        *budget -= PACKING_WORK < *budget ? PACKING_WORK : *budget;
        if (!cairn_fill(assigner->filling, step_ms, count, CAIRN_FILL_CHEAP, assigner->chosen))
            return SETTLED_OPEN; /* fewer have places as well */
        take(assigner, out);
        return SETTLED_KEPT;
    }
    return SETTLED_OPEN;
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

    if (is_near(out))
        return CAIRN_OK;
    err = cairn_long_create(assigner->problem, assigner->sequences, &longest);
    while (!err && budget > 0 && !is_near(out)) {
        double low_ms = open_high_ms > 0 && !below ? open_high_ms : out->bound_ms;
        double high_ms = open_high_ms > 0 && below ? open_low_ms : out->step_ms;
        double middle_ms = low_ms + (high_ms - low_ms) / 2;

        if (settle_time(assigner, longest, middle_ms, work_each, &budget, out) == SETTLED_OPEN) {
            open_low_ms = fmin(open_low_ms, middle_ms);
            open_high_ms = fmax(open_high_ms, middle_ms);
        }
        below = !below;
        if (open_high_ms > 0 && open_high_ms - open_low_ms > SETTLED * (out->step_ms - out->bound_ms)) {
            open_low_ms = INFINITY;
            open_high_ms = 0;
            work_each *= SEARCH_GROWS;
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
        if (!err)
            err = find_packing(&assigner, &made);
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
