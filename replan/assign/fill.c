/*
 * replan/assign/fill.c - sequences into pipelines by rules of thumb, the most costly first.
 *
 * For thousands of sequences and each of several times to keep, every pipeline is looked at: so
 * what is looked at lies in plain arrays, one value per pipeline, those first that lose least time
 * by a long sequence.
 */
#include "replan/assign/assigner.h"

#include <math.h>
#include <stdlib.h>

enum { LONG_ONES = 256 };   /* that rules with a price place; the others just fill up */
#define NEARLY_NOTHING 1e-6 /* settles between pipelines that lose the same */

struct cairn_filling {
    const struct cairn_assign_problem *problem;
    const struct cairn_sequence *sequences;
    uint64_t taken_by_all; /* tokens */
    uint32_t *pipeline;    /* in the problem, by place in the order of loss; so all below */
    uint32_t *place;       /* by pipeline */
    double *time_scale;
    double *left_ms;    /* what the time to keep leaves, at time_scale 1 */
    double *lost_times; /* stages - 1 while it is empty, then 0: the first sequence is the most
                             * costly */
    uint64_t *max_tokens;
    double *values; /* owns time_scale, left_ms, lost_times */
};

static double
loss_rate(const struct cairn_assign_pipeline *pipeline)
{
    return (pipeline->stages - 1) * pipeline->time_scale;
}

/* Pipelines by what a unit of largest cost loses there of what they can do in a unit of time. */
static void
sort_by_loss(struct cairn_filling *filling)
{
    const struct cairn_assign_pipeline *pipelines = filling->problem->pipelines;
    uint32_t count = filling->problem->pipeline_count;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;

        for (;
             at > 0 && loss_rate(&pipelines[filling->pipeline[at - 1]]) > loss_rate(&pipelines[i]);
             at--)
            filling->pipeline[at] = filling->pipeline[at - 1];
        filling->pipeline[at] = i;
    }
    filling->taken_by_all = UINT64_MAX;
    for (uint32_t at = 0; at < count; at++) {
        const struct cairn_assign_pipeline *own = &pipelines[filling->pipeline[at]];

        filling->place[filling->pipeline[at]] = at;
        filling->time_scale[at] = own->time_scale;
        filling->max_tokens[at] = own->max_tokens;
        filling->taken_by_all =
            own->max_tokens < filling->taken_by_all ? own->max_tokens : filling->taken_by_all;
    }
}

cairn_err
cairn_filling_create(const struct cairn_assign_problem *problem,
                     const struct cairn_sequence *sequences, struct cairn_filling **out)
{
    struct cairn_filling *filling = calloc(1, sizeof(*filling));
    size_t count = (size_t)problem->pipeline_count + 1;

    if (!filling)
        return CAIRN_NOMEM;
    filling->problem = problem;
    filling->sequences = sequences;
    filling->pipeline = calloc(2 * count, sizeof(*filling->pipeline));
    filling->max_tokens = calloc(count, sizeof(*filling->max_tokens));
    filling->values = calloc(3 * count, sizeof(*filling->values));
    if (!filling->pipeline || !filling->max_tokens || !filling->values) {
        cairn_filling_destroy(filling);
        return CAIRN_NOMEM;
    }
    filling->place = filling->pipeline + count;
    filling->time_scale = filling->values;
    filling->left_ms = filling->values + count;
    filling->lost_times = filling->values + 2 * count;
    sort_by_loss(filling);
    *out = filling;
    return CAIRN_OK;
}

void
cairn_filling_destroy(struct cairn_filling *filling)
{
    if (!filling)
        return;
    free(filling->pipeline);
    free(filling->max_tokens);
    free(filling->values);
    free(filling);
}

/* ---- rules: each gives a place, pipeline_count where there is none ---- */

/* Where the pipeline is then fullest. */
static uint32_t
place_tight(const struct cairn_filling *filling, const struct cairn_sequence *sequence)
{
    uint32_t count = filling->problem->pipeline_count, place = count;
    bool any = sequence->tokens <= filling->taken_by_all;
    double least_ms = INFINITY;

    for (uint32_t i = 0; i < count; i++) {
        double left_ms = filling->left_ms[i] - sequence->cost_ms * (1 + filling->lost_times[i]);

        if (left_ms >= 0 && left_ms < least_ms &&
            (any || sequence->tokens <= filling->max_tokens[i])) {
            place = i;
            least_ms = left_ms;
        }
    }
    return place;
}

/* In the order of loss the first where filling and draining loses nothing more, else the first. */
static uint32_t
place_together(const struct cairn_filling *filling, const struct cairn_sequence *sequence)
{
    uint32_t count = filling->problem->pipeline_count, place = count;
    bool any = sequence->tokens <= filling->taken_by_all;

    for (uint32_t i = 0; i < count; i++) {
        if (filling->left_ms[i] < sequence->cost_ms * (1 + filling->lost_times[i]) ||
            (!any && sequence->tokens > filling->max_tokens[i]))
            continue;
        if (filling->lost_times[i] <= 0)
            return i;
        place = place == count ? i : place;
    }
    return place;
}

/* Where it loses the least part of what is left. */
static uint32_t
place_cheap(const struct cairn_filling *filling, const struct cairn_sequence *sequence,
            double step_ms)
{
    uint32_t count = filling->problem->pipeline_count, place = count;
    double least = INFINITY;

    for (uint32_t i = 0; i < count; i++) {
        double lost_ms = sequence->cost_ms * filling->lost_times[i];
        double left_ms = filling->left_ms[i] - sequence->cost_ms - lost_ms, price;

        if (left_ms < 0 || sequence->tokens > filling->max_tokens[i])
            continue;
        price = lost_ms / (left_ms + sequence->cost_ms) + NEARLY_NOTHING * left_ms / step_ms;
        if (price < least) {
            place = i;
            least = price;
        }
    }
    return place;
}

/* Where it then ends first, for any time to keep; left_ms counts from nothing downwards. */
static uint32_t
place_early(const struct cairn_filling *filling, const struct cairn_sequence *sequence)
{
    uint32_t count = filling->problem->pipeline_count, place = count;
    double least_ms = INFINITY;

    for (uint32_t i = 0; i < count; i++) {
        double end_ms = (sequence->cost_ms * (1 + filling->lost_times[i]) - filling->left_ms[i]) *
                        filling->time_scale[i];

        if (end_ms < least_ms && sequence->tokens <= filling->max_tokens[i]) {
            place = i;
            least_ms = end_ms;
        }
    }
    return place;
}

static uint32_t
place_by(const struct cairn_filling *filling, uint32_t sequence, double step_ms,
         enum cairn_fill_rule rule)
{
    const struct cairn_sequence *own = &filling->sequences[sequence];

    switch (rule) {
    case CAIRN_FILL_TIGHT:
        return place_tight(filling, own);
    case CAIRN_FILL_CHEAP:
        return sequence < LONG_ONES ? place_cheap(filling, own, step_ms)
                                    : place_together(filling, own);
    case CAIRN_FILL_EARLY:
        return place_early(filling, own);
    default:
        return place_together(filling, own);
    }
}

bool
cairn_fill(struct cairn_filling *filling, double step_ms, uint32_t placed,
           enum cairn_fill_rule rule, uint32_t *chosen)
{
    const struct cairn_assign_problem *problem = filling->problem;

    for (uint32_t i = 0; i < problem->pipeline_count; i++) {
        filling->left_ms[i] = rule == CAIRN_FILL_EARLY ? 0 : step_ms / filling->time_scale[i];
        filling->lost_times[i] = problem->pipelines[filling->pipeline[i]].stages - 1;
    }
    for (uint32_t i = 0; i < problem->sequence_count; i++) {
        double cost_ms = filling->sequences[i].cost_ms;
        uint32_t place =
            i < placed ? filling->place[chosen[i]] : place_by(filling, i, step_ms, rule);

        if (place == problem->pipeline_count)
            return false;
        chosen[i] = filling->pipeline[place];
        filling->left_ms[place] -= cost_ms * (1 + filling->lost_times[place]);
        filling->lost_times[place] = 0;
    }
    return true;
}
