/* replan/assign.c - sequences to pipelines. */
#include "replan/assign.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SINGLY = 128, THRESHOLDS = 24, HALVINGS = 30, PACKINGS = 14, DOUBLINGS_MAX = 64 };
#define MARGIN 1e-9

struct sequence {
    double cost_ms; /* at time_scale 1 */
    uint64_t tokens;
    uint32_t index;
};

/* A pipeline while it is filled. */
struct filled {
    double sum_ms;
    double largest_ms;
};

struct assigner {
    const struct cairn_assign_problem *problem;
    struct sequence *sequences; /* the most costly first */
    uint32_t *by_loss;          /* pipelines, those first that lose least time per work by a long sequence */
    struct filled *filled;
    uint32_t *chosen; /* by the present packing, per sequence of `sequences` */
    uint64_t *fewest_tokens; /* of the first so many sequences */
    double total_ms;         /* of all sequences */
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
    const struct sequence *a = left, *b = right;

    if (a->cost_ms < b->cost_ms || a->cost_ms > b->cost_ms)
        return a->cost_ms > b->cost_ms ? -1 : 1;
    if (a->tokens != b->tokens)
        return a->tokens > b->tokens ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

static double
loss_rate(const struct cairn_assign_pipeline *pipeline)
{
    return (pipeline->stages - 1) * pipeline->time_scale;
}

/* Pipelines by what a unit of largest cost loses there of what they can do in a unit of time. */
static void
sort_by_loss(struct assigner *assigner)
{
    const struct cairn_assign_pipeline *pipelines = assigner->problem->pipelines;

    for (uint32_t i = 0; i < assigner->problem->pipeline_count; i++) {
        uint32_t at = i;

        for (; at > 0 && loss_rate(&pipelines[assigner->by_loss[at - 1]]) > loss_rate(&pipelines[i]);
             at--)
            assigner->by_loss[at] = assigner->by_loss[at - 1];
        assigner->by_loss[at] = i;
    }
}

/* ---- the bound ---- */

/* The least work that pipelines lose by holding all sequences that cost at least `threshold`, per unit of
 * largest cost: hosts are taken in the order of loss, the last one in part. */
static double
least_hosts(const struct assigner *assigner, double step_ms, double work_ms)
{
    double loss = 0;

    for (uint32_t i = 0; i < assigner->problem->pipeline_count && work_ms > 0; i++) {
        const struct cairn_assign_pipeline *host =
            &assigner->problem->pipelines[assigner->by_loss[i]];
        double holds_ms = step_ms / host->time_scale;
        double part = work_ms < holds_ms ? work_ms / holds_ms : 1;

        loss += part * (host->stages - 1);
        work_ms -= holds_ms;
    }
    return loss;
}

/* Whether the `count` most costly sequences are too many, or too much, for the pipelines: one that holds any of them
 * loses (stages - 1) times the least of their costs, and each needs at least that cost. */
static bool
too_many(const struct assigner *assigner, uint32_t count, double work_ms, double step_ms)
{
    const struct sequence *least = &assigner->sequences[count - 1];
    uint64_t tokens_min = assigner->fewest_tokens[count - 1];
    double places = 0, room_ms = 0;

    for (uint32_t i = 0; i < assigner->problem->pipeline_count; i++) {
        const struct cairn_assign_pipeline *pipeline = &assigner->problem->pipelines[i];
        double own_ms = step_ms / pipeline->time_scale * (1 + MARGIN) -
                        (pipeline->stages - 1) * least->cost_ms;

        if (own_ms < least->cost_ms || tokens_min > pipeline->max_tokens)
            continue;
        places += floor(own_ms / least->cost_ms);
        room_ms += own_ms;
    }
    return places < count || room_ms < work_ms;
}

/* Whether no assignment keeps step_ms: the longest sequences do not fit, or what all pipelines can do in it,
 * less what they must lose, is too little for all. */
static bool
out_of_reach(const struct assigner *assigner, double step_ms)
{
    const struct cairn_assign_problem *problem = assigner->problem;
    double holds_ms = 0, threshold_ms = 0, largest_ms = assigner->sequences[0].cost_ms, sum_ms = 0;

    for (uint32_t i = 0, count = 0; i < problem->sequence_count; i++) {
        sum_ms += assigner->sequences[i].cost_ms;
        if (i + 1 < count)
            continue;
        if (too_many(assigner, i + 1, sum_ms, step_ms))
            return true;
        count = i + 2 < SINGLY ? i + 2 : i + 1 + (i + 1) / 4; /* the longest one by one, then in growing steps */
    }
    for (uint32_t i = 0; i < problem->pipeline_count; i++)
        holds_ms += step_ms / problem->pipelines[i].time_scale;
    for (uint32_t k = THRESHOLDS; k-- > 0;) {
        double next_ms = largest_ms * exp2(-0.5 * k), work_ms = 0;

        for (uint32_t i = 0; i < problem->sequence_count && assigner->sequences[i].cost_ms >= next_ms; i++)
            work_ms += assigner->sequences[i].cost_ms;
        holds_ms -= (next_ms - threshold_ms) * least_hosts(assigner, step_ms, work_ms);
        threshold_ms = next_ms;
    }
    return holds_ms * (1 + MARGIN) < assigner->total_ms;
}

/* Sequences that only some pipelines may hold need those alone. */
static double
bound_of_long_ones(const struct assigner *assigner)
{
    const struct cairn_assign_problem *problem = assigner->problem;
    double bound_ms = 0;

    for (uint32_t i = 0; i < problem->pipeline_count; i++) {
        uint64_t limit = problem->pipelines[i].max_tokens;
        double work_ms = 0, speed = 0;

        if (i > 0 && limit == problem->pipelines[i - 1].max_tokens)
            continue;
        for (uint32_t j = 0; j < problem->sequence_count; j++)
            if (assigner->sequences[j].tokens > limit)
                work_ms += assigner->sequences[j].cost_ms;
        for (uint32_t j = 0; j < problem->pipeline_count; j++)
            if (problem->pipelines[j].max_tokens > limit)
                speed += 1 / problem->pipelines[j].time_scale;
        if (work_ms > 0 && speed > 0 && work_ms / speed > bound_ms)
            bound_ms = work_ms / speed;
    }
    return bound_ms * (1 - MARGIN);
}

static double
find_bound(const struct assigner *assigner)
{
    double low = 0, high = assigner->total_ms, long_ms = bound_of_long_ones(assigner);

    for (uint32_t i = 0; i < DOUBLINGS_MAX && out_of_reach(assigner, high); i++) {
        low = high;
        high *= 2;
    }
    for (uint32_t i = 0; i < HALVINGS && high - low > 1e-5 * high; i++) {
        double middle = low + (high - low) / 2;

        if (out_of_reach(assigner, middle))
            low = middle;
        else
            high = middle;
    }
    return low > long_ms ? low : long_ms;
}

/* ---- packing ---- */

static double
time_with(const struct assigner *assigner, uint32_t pipeline, double more_ms)
{
    const struct filled *filled = &assigner->filled[pipeline];
    const struct cairn_assign_pipeline *own = &assigner->problem->pipelines[pipeline];
    double largest_ms = more_ms > filled->largest_ms ? more_ms : filled->largest_ms;

    return (filled->sum_ms + more_ms + (own->stages - 1) * largest_ms) * own->time_scale;
}

/* Where a sequence goes under a rule; UINT32_MAX where it does not fit. Hosting: the first pipeline in the order of
 * loss that has a longer one already, else the first with room. Tight: the one that is fullest then. */
static uint32_t
place_of(const struct assigner *assigner, const struct sequence *sequence, double step_ms, bool tight)
{
    const struct cairn_assign_problem *problem = assigner->problem;
    uint32_t place = UINT32_MAX;
    double left_ms = INFINITY;

    for (uint32_t i = 0; i < problem->pipeline_count; i++) {
        uint32_t pipeline = assigner->by_loss[i];
        double time_ms = time_with(assigner, pipeline, sequence->cost_ms), own_ms;

        if (sequence->tokens > problem->pipelines[pipeline].max_tokens || time_ms > step_ms)
            continue;
        own_ms = (step_ms - time_ms) / problem->pipelines[pipeline].time_scale;
        if (!tight && assigner->filled[pipeline].largest_ms > 0)
            return pipeline; /* nothing more is lost */
        if (tight ? own_ms < left_ms : place == UINT32_MAX) {
            place = pipeline;
            left_ms = own_ms;
        }
    }
    return place;
}

/* Whether all sequences find a place within step_ms by a rule; `chosen` then says where. */
static bool
pack_by(struct assigner *assigner, double step_ms, bool tight)
{
    const struct cairn_assign_problem *problem = assigner->problem;

    for (uint32_t i = 0; i < problem->pipeline_count; i++)
        assigner->filled[i] = (struct filled){0};
    for (uint32_t i = 0; i < problem->sequence_count; i++) {
        const struct sequence *sequence = &assigner->sequences[i];
        uint32_t place = place_of(assigner, sequence, step_ms, tight);

        if (place == UINT32_MAX)
            return false;
        assigner->chosen[i] = place;
        assigner->filled[place].sum_ms += sequence->cost_ms;
        if (sequence->cost_ms > assigner->filled[place].largest_ms)
            assigner->filled[place].largest_ms = sequence->cost_ms;
    }
    return true;
}

static bool
pack(struct assigner *assigner, double step_ms)
{
    return pack_by(assigner, step_ms, true) || pack_by(assigner, step_ms, false);
}

static void
take(const struct assigner *assigner, struct cairn_assignment *out)
{
    out->step_ms = 0;
    for (uint32_t i = 0; i < assigner->problem->sequence_count; i++)
        out->pipelines[assigner->sequences[i].index] = assigner->chosen[i];
    for (uint32_t i = 0; i < assigner->problem->pipeline_count; i++)
        if (time_with(assigner, i, 0) > out->step_ms)
            out->step_ms = time_with(assigner, i, 0);
}

/* The least time that packing keeps, from the bound upwards. False where none does. */
static bool
find_packing(struct assigner *assigner, struct cairn_assignment *out)
{
    double low = out->bound_ms, high = out->bound_ms * (1 + 1e-4);
    bool packed = pack(assigner, high);

    for (uint32_t i = 0; !packed && i < DOUBLINGS_MAX; i++) {
        low = high;
        high = out->bound_ms + 2 * (high - out->bound_ms);
        packed = pack(assigner, high);
    }
    if (!packed)
        return false;
    take(assigner, out);
    for (uint32_t i = 0; i < PACKINGS && high - low > 1e-4 * high; i++) {
        double middle = low + (high - low) / 2;

        if (pack(assigner, middle)) {
            high = middle;
            take(assigner, out);
        } else {
            low = middle;
        }
    }
    return true;
}

static cairn_err
check_lengths(const struct cairn_assign_problem *problem, struct cairn_fault *fault)
{
    uint64_t limit = 0;

    for (uint32_t i = 0; i < problem->pipeline_count; i++)
        if (problem->pipelines[i].max_tokens > limit)
            limit = problem->pipelines[i].max_tokens;
    for (uint32_t i = 0; i < problem->sequence_count; i++)
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
    assigner.sequences = calloc((size_t)problem->sequence_count + 1, sizeof(*assigner.sequences));
    assigner.chosen = calloc((size_t)problem->sequence_count + 1, sizeof(*assigner.chosen));
    assigner.fewest_tokens =
        calloc((size_t)problem->sequence_count + 1, sizeof(*assigner.fewest_tokens));
    assigner.by_loss = calloc((size_t)problem->pipeline_count + 1, sizeof(*assigner.by_loss));
    assigner.filled = calloc((size_t)problem->pipeline_count + 1, sizeof(*assigner.filled));
    made.pipelines = calloc((size_t)problem->sequence_count + 1, sizeof(*made.pipelines));
    if (!assigner.sequences || !assigner.chosen || !assigner.fewest_tokens || !assigner.by_loss || !assigner.filled ||
        !made.pipelines)
        goto done;
    for (uint32_t i = 0; i < problem->sequence_count; i++) {
        assigner.sequences[i] =
            (struct sequence){cost_ms(problem, problem->tokens[i]), problem->tokens[i], i};
        assigner.total_ms += assigner.sequences[i].cost_ms;
    }
    qsort(assigner.sequences, problem->sequence_count, sizeof(*assigner.sequences), most_costly_first);
    for (uint32_t i = 0; i < problem->sequence_count; i++) {
        uint64_t own = assigner.sequences[i].tokens;

        assigner.fewest_tokens[i] =
            i > 0 && assigner.fewest_tokens[i - 1] < own ? assigner.fewest_tokens[i - 1] : own;
    }
    sort_by_loss(&assigner);
    err = CAIRN_OK;
    if (problem->sequence_count > 0) {
        made.bound_ms = find_bound(&assigner);
        if (!find_packing(&assigner, &made))
            err = CAIRN_INTERNAL; /* every sequence has a pipeline that takes it */
    }
done:
    free(assigner.sequences);
    free(assigner.chosen);
    free(assigner.fewest_tokens);
    free(assigner.by_loss);
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
    struct assigner assigner = {.problem = problem, .filled = filled};

    if (!filled)
        return CAIRN_NOMEM;
    *step_ms = 0;
    for (uint32_t i = 0; i < problem->sequence_count; i++) {
        struct filled *into = &filled[pipelines[i]];
        double own_ms = cost_ms(problem, problem->tokens[i]);

        into->sum_ms += own_ms;
        into->largest_ms = own_ms > into->largest_ms ? own_ms : into->largest_ms;
    }
    for (uint32_t i = 0; i < problem->pipeline_count; i++)
        if (time_with(&assigner, i, 0) > *step_ms)
            *step_ms = time_with(&assigner, i, 0);
    free(filled);
    return CAIRN_OK;
}
