/* replan/fleet/divide.c - layers within a pipeline. */
#include "replan/fleet/divide.h"
#include "base/assert.h"

#include "replan/fleet/cost.h"

#include <math.h>
#include <stdlib.h>

/* Layers are compared with this much tolerance, since limits are computed from them and back. */
#define LAYER_TOLERANCE 1e-9
enum {
    SHORTAGE_LOOKS = 4,
    STEPS_MAX = 65536,          /* limits tried for one pipeline: far beyond what real plans need */
    WORK_MAX = 16 * 1024 * 1024 /* steps times stages; bounds the time of absurd inputs */
};

struct divider_stage {
    double layer_ms;
    double vocabulary; /* in layers */
    uint32_t fits;     /* layers */
    uint32_t most;     /* layers under the present limit */
};

struct cairn_divider {
    const struct cairn_problem *problem;
    uint32_t stage_count;
    double fixed_ms;     /* one layer per stage and the vocabulary: every division has it */
    double least_sum_ms; /* without any limit */
    struct divider_stage *stages; /* [layers] */
    uint32_t *by_speed;           /* [layers] stages, fastest first */
};

cairn_err
cairn_divider_create(const struct cairn_problem *problem, struct cairn_divider **out)
{
    struct cairn_divider *divider = calloc(1, sizeof(*divider));

    if (!divider)
        return CAIRN_NOMEM;
    divider->problem = problem;
    divider->stages = calloc(problem->layers, sizeof(*divider->stages));
    divider->by_speed = calloc(problem->layers, sizeof(*divider->by_speed));
    if (!divider->stages || !divider->by_speed) {
        cairn_divider_destroy(divider);
        return CAIRN_NOMEM;
    }
    *out = divider;
    return CAIRN_OK;
}

void
cairn_divider_destroy(struct cairn_divider *divider)
{
    if (!divider)
        return;
    free(divider->stages);
    free(divider->by_speed);
    free(divider);
}

uint32_t
cairn_divider_microbatches(const struct cairn_divider *divider)
{
    return divider->problem->microbatches;
}

/* The layers over one per stage to the fastest stages that may have them. */
static double
least_sum_ms(const struct cairn_divider *divider)
{
    uint32_t left = divider->problem->layers - divider->stage_count;
    double sum_ms = divider->fixed_ms;

    for (uint32_t i = 0; i < divider->stage_count && left > 0; i++) {
        const struct divider_stage *stage = &divider->stages[divider->by_speed[i]];
        uint32_t more = stage->most == 0 ? 0 : stage->most - 1 < left ? stage->most - 1 : left;

        sum_ms += more * stage->layer_ms;
        left -= more;
    }
    return sum_ms;
}

/* Sorts by_speed; insertion, since callers give groups that are nearly in order. Slowest first is
 * the usual order of a pipeline, so it starts from behind. */
static void
sort_by_speed(struct cairn_divider *divider)
{
    for (uint32_t i = 0; i < divider->stage_count; i++) {
        uint32_t stage = divider->stage_count - 1 - i, at = i;

        while (at > 0 && divider->stages[divider->by_speed[at - 1]].layer_ms >
                             divider->stages[stage].layer_ms) {
            divider->by_speed[at] = divider->by_speed[at - 1];
            at--;
        }
        divider->by_speed[at] = stage;
    }
}

/* Takes a pipeline in; how many layers fit, or 0 where a stage holds none. */
static uint64_t
take_stages(struct cairn_divider *divider, const struct cairn_group *groups, uint32_t stage_count,
            uint32_t microbatches)
{
    const struct cairn_problem *problem = divider->problem;
    uint64_t fits = 0;
    bool empty = false;

    divider->stage_count = stage_count;
    divider->fixed_ms = 0;
    for (uint32_t j = 0; j < stage_count; j++) {
        struct divider_stage *stage = &divider->stages[j];

        stage->layer_ms = groups[j].layer_ms;
        stage->vocabulary = cairn_cost_vocabulary_layers(problem, j, stage_count);
        stage->fits = cairn_cost_layers_max(problem, groups[j].bytes,
                                            cairn_cost_in_flight(j, stage_count, microbatches));
        empty = empty || stage->fits == 0;
        fits += stage->fits;
        stage->most = stage->fits;
        divider->fixed_ms += (1 + stage->vocabulary) * stage->layer_ms;
    }
    return empty ? 0 : fits;
}

/* The same; false where the layers do not fit. */
static bool
begin(struct cairn_divider *divider, const struct cairn_group *groups, uint32_t stage_count,
      uint32_t microbatches)
{
    uint32_t layers = divider->problem->layers;

    if (stage_count == 0 || stage_count > layers ||
        take_stages(divider, groups, stage_count, microbatches) < layers)
        return false;
    sort_by_speed(divider);
    divider->least_sum_ms = least_sum_ms(divider);
    return true;
}

/* Sets what each stage may have under a limit. True where that holds all layers; then *limit_ms is
 * lowered to the slowest stage's time, else raised to the least limit that may. */
static bool
set_limit(struct cairn_divider *divider, double *limit_ms)
{
    double next_ms = INFINITY, reached_ms = 0, speed = 0;
    uint32_t open = 0, empty = 0;
    uint64_t held = 0;

    for (uint32_t j = 0; j < divider->stage_count; j++) {
        struct divider_stage *stage = &divider->stages[j];
        double layers = floor(*limit_ms / stage->layer_ms - stage->vocabulary + LAYER_TOLERANCE);
        double time_ms;

        stage->most = layers <= 0 ? 0 : layers < stage->fits ? (uint32_t)layers : stage->fits;
        held += stage->most;
        empty += stage->most == 0;
        time_ms = (stage->most + stage->vocabulary) * stage->layer_ms;
        if (time_ms > reached_ms)
            reached_ms = time_ms;
        if (stage->most == stage->fits)
            continue;
        open++;
        speed += 1 / stage->layer_ms;
        if (time_ms + stage->layer_ms < next_ms)
            next_ms = time_ms + stage->layer_ms;
    }
    if (held >= divider->problem->layers && empty == 0) {
        *limit_ms = reached_ms;
        return true;
    }
    /* A rise of d gives each open stage less than d / layer_ms + 1 layers more. */
    if (held + open < divider->problem->layers) {
        double rise = (double)(divider->problem->layers - held - open) / speed;

        if (*limit_ms + rise > next_ms)
            next_ms = *limit_ms + rise;
    }
    *limit_ms = next_ms;
    return false;
}

/* The least limit that holds all layers. `begin` said that there is one. */
static double
least_limit_ms(struct cairn_divider *divider)
{
    double speed = 0, limit_ms;

    for (uint32_t j = 0; j < divider->stage_count; j++)
        speed += 1 / divider->stages[j].layer_ms;
    limit_ms = cairn_problem_work_layers(divider->problem) / speed * (1 - 1e-12);
    while (!set_limit(divider, &limit_ms))
        ;
    return limit_ms;
}

/* The next limit under which some stage may have a layer more; INFINITY where none may. */
static double
next_limit_ms(const struct cairn_divider *divider)
{
    double next_ms = INFINITY;

    for (uint32_t j = 0; j < divider->stage_count; j++) {
        const struct divider_stage *stage = &divider->stages[j];
        double time_ms = (stage->most + 1 + stage->vocabulary) * stage->layer_ms;

        if (stage->most < stage->fits && time_ms < next_ms)
            next_ms = time_ms;
    }
    return next_ms;
}

static uint32_t
steps_max(const struct cairn_divider *divider)
{
    uint32_t steps = WORK_MAX / divider->stage_count;

    return steps < STEPS_MAX ? steps : STEPS_MAX;
}

/* The layers of the least sum under a limit. */
static void
take_layers(struct cairn_divider *divider, double limit_ms, uint32_t *layers)
{
    uint32_t left = divider->problem->layers - divider->stage_count;

    (void)set_limit(divider, &limit_ms);
    for (uint32_t i = 0; i < divider->stage_count; i++) {
        uint32_t stage = divider->by_speed[i], most = divider->stages[stage].most - 1;
        uint32_t more = most < left ? most : left;

        layers[stage] = 1 + more;
        left -= more;
    }
    CAIRN_ASSERT(left == 0);
}

double
cairn_divide_layers(struct cairn_divider *divider, const struct cairn_group *groups,
                    uint32_t stage_count, uint32_t microbatches, uint32_t *layers)
{
    double repeats = microbatches - 1, best_ms = INFINITY, best_limit_ms = INFINITY, limit_ms;

    if (!begin(divider, groups, stage_count, microbatches))
        return INFINITY;
    limit_ms = microbatches == 1 ? INFINITY : least_limit_ms(divider);
    if (microbatches == 1)
        best_ms = divider->least_sum_ms;
    for (uint32_t step = 0; microbatches > 1 && step < steps_max(divider); step++) {
        double sum_ms = least_sum_ms(divider), time_ms = repeats * limit_ms + sum_ms;

        if (time_ms < best_ms) {
            best_ms = time_ms;
            best_limit_ms = limit_ms;
        }
        limit_ms = next_limit_ms(divider);
        if (repeats * limit_ms + divider->least_sum_ms >= best_ms)
            break;
        (void)set_limit(divider, &limit_ms);
    }
    if (layers)
        take_layers(divider, best_limit_ms, layers);
    return best_ms;
}

/* What stages hold under a limit that no stage may pass, and the time that they then take. */
static double
shortage_at(struct cairn_divider *divider, double limit_ms, double repeats, double step_ms,
            double *sum_ms)
{
    double layers = divider->problem->layers, held = 0, reached_ms = 0, over_ms;
    uint32_t empty = 0;

    for (uint32_t j = 0; j < divider->stage_count; j++) {
        struct divider_stage *stage = &divider->stages[j];
        double most = floor(limit_ms / stage->layer_ms - stage->vocabulary + LAYER_TOLERANCE);

        stage->most = most <= 0 ? 0 : most < stage->fits ? (uint32_t)most : stage->fits;
        held += stage->most;
        empty += stage->most == 0;
        reached_ms = fmax(reached_ms, (stage->most + stage->vocabulary) * stage->layer_ms);
    }
    *sum_ms = least_sum_ms(divider);
    over_ms = repeats * reached_ms + *sum_ms - step_ms;
    return fmax(0, layers - held) + empty + fmax(0, over_ms) / step_ms * layers;
}

double
cairn_divide_shortage(struct cairn_divider *divider, const struct cairn_group *groups,
                      uint32_t stage_count, uint32_t microbatches, double step_ms, double *limit_ms)
{
    double repeats = fmax(microbatches - 1.0, 1e-9), tried_ms = step_ms / repeats;
    double least = INFINITY, sum_ms;

    *limit_ms = tried_ms;
    if (stage_count == 0 || stage_count > divider->problem->layers || microbatches == 0)
        return divider->problem->layers;
    (void)take_stages(divider, groups, stage_count, microbatches);
    sort_by_speed(divider);
    /* the longest stage leaves the others their time, which depends on it */
    for (int i = 0; i < SHORTAGE_LOOKS && tried_ms > 0; i++) {
        double shortage = shortage_at(divider, tried_ms, repeats, step_ms, &sum_ms);

        if (shortage < least) {
            least = shortage;
            *limit_ms = tried_ms;
        }
        tried_ms = (step_ms - sum_ms) / repeats;
    }
    return least;
}

/* Adds a line with a larger slowest_ms and a smaller sum_ms; takes out those that it makes useless:
 * whose place on the lower hull is above the chord from its neighbour. False when there is no
 * room. */
static bool
add_line(struct cairn_pipeline_lines *lines, double slowest_ms, double sum_ms)
{
    while (lines->line_count >= 2) {
        uint32_t last = lines->line_count - 1;
        double rise = slowest_ms - lines->slowest_ms[last - 1];
        double fall = lines->sum_ms[last - 1] - sum_ms;
        double own_rise = lines->slowest_ms[last] - lines->slowest_ms[last - 1];
        double own_fall = lines->sum_ms[last - 1] - lines->sum_ms[last];

        if (own_fall * rise > fall * own_rise)
            break;
        lines->line_count--;
    }
    if (lines->line_count == CAIRN_LINES_MAX)
        return false;
    lines->slowest_ms[lines->line_count] = slowest_ms;
    lines->sum_ms[lines->line_count++] = sum_ms;
    return true;
}

void
cairn_divide_lines(struct cairn_divider *divider, const struct cairn_group *groups,
                   uint32_t stage_count, struct cairn_pipeline_lines *out)
{
    double repeats = stage_count - 1, best_ms = INFINITY, limit_ms;

    out->stage_count = stage_count;
    out->line_count = 0;
    if (!begin(divider, groups, stage_count, stage_count))
        return;
    limit_ms = least_limit_ms(divider);
    for (uint32_t step = 0; step < steps_max(divider); step++) {
        double sum_ms = least_sum_ms(divider);

        if (out->line_count == 0 || sum_ms < out->sum_ms[out->line_count - 1])
            if (!add_line(out, limit_ms, sum_ms))
                break;
        if (repeats * limit_ms + sum_ms < best_ms)
            best_ms = repeats * limit_ms + sum_ms;
        limit_ms = next_limit_ms(divider);
        if (repeats * limit_ms + divider->least_sum_ms >= best_ms || limit_ms == INFINITY)
            break;
        (void)set_limit(divider, &limit_ms);
    }
}

double
cairn_lines_microbatches(const struct cairn_pipeline_lines *lines, double step_ms, double most)
{
    double best = 0;

    for (uint32_t i = 0; i < lines->line_count; i++) {
        double left_ms = step_ms - lines->sum_ms[i];
        double count = left_ms < 0 ? 0 : 1 + left_ms / lines->slowest_ms[i];

        if (count > best)
            best = count;
    }
    return best < most ? best : most;
}
