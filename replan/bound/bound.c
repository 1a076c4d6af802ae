/*
 * replan/bound/bound.c - the lower bound on the step time.
 *
 * In a time T, a group that takes y ms per layer could alone do x = T / (W y) micro-batches of a
 * model of W layers. docs/PLANNER.md proves that a pipeline within T does at most the sum of these:
 *   (A) floor(x) over its groups,
 *   (B) max(0, x - 1) + the share of the layers that the group can hold,
 *   (C) as (B), with whole layers and micro-batches for pipelines of equal, fastest groups,
 *   (D) as (A), with less for partial groups, which cannot hold the model alone,
 *   (E) whole parts of a micro-batch (parts.h).
 * The largest sum over all groupings is known exactly (replan/fleet/group.h). If it is below the
 * number of micro-batches, T is infeasible. (F), which needs a plan to aim at, is in raise.h.
 */
#include "replan/bound/bound.h"

#include "replan/bound/parts.h"
#include "replan/fleet/cost.h"
#include "replan/fleet/divide.h"

#include <math.h>
#include <stdlib.h>

/* Sums are compared with a margin for rounding, which only lowers the bound. */
#define MARGIN 1e-9
#define PRECISION 1e-6
#define TIGHTENED_FIRST 0.01 /* by what (E) tries to raise the bound at first */
#define TIGHTENED_TO 5e-4
enum { DOUBLINGS_MAX = 400, STAGES_MAX = 512, PART_WAYS = 12 };

/* Pipelines of s equal, fastest groups of one size. */
struct uniform {
    uint32_t size_index;
    double layer_ms;
    double share;                       /* of the model that one group can hold, at most 1 */
    uint32_t stages_max;                /* as many as there can be groups */
    uint32_t stages_known;              /* slowest_ms[0 … stages_known - 1] are filled */
    double slowest_ms[STAGES_MAX];      /* [s - 1] with the memory of s micro-batches; INFINITY:
                                         * does not fit */
    double slowest_free_ms[STAGES_MAX]; /* without limits of memory */
    double value;                       /* of one group at the present T */
    double lost;                        /* (B) minus value */
};

struct sums {
    const struct cairn_problem *problem;
    double work_layers;
    double step_ms;
    const struct uniform *uniform;
    double rate_min;
    double spare;      /* of (D), 0 to 1 */
    double partial_ms; /* per layer of the fastest partial group; INFINITY: there are none */
};

static double
alone_microbatches(const struct sums *sums, double layer_ms)
{
    return sums->step_ms / (sums->work_layers * layer_ms) * (1 + MARGIN);
}

static double
layer_ms_of(const struct sums *sums, uint32_t size_index, double rate)
{
    return sums->problem->layer_ms * sums->problem->sizes[size_index].cost * rate;
}

static double
share_of(const struct cairn_problem *problem, uint32_t size, uint64_t memory_bytes)
{
    uint64_t bytes = cairn_cost_group_bytes(problem, size, memory_bytes);

    return (double)cairn_cost_layers_max(problem, bytes, 1) / problem->layers;
}

static double
gain_alone(const void *context, uint32_t size_index, double rate, uint64_t memory_bytes)
{
    const struct sums *sums = context;

    if (share_of(sums->problem, sums->problem->sizes[size_index].size, memory_bytes) <= 0)
        return 0;
    return floor(alone_microbatches(sums, layer_ms_of(sums, size_index, rate)));
}

static double
gain_shared(const void *context, uint32_t size_index, double rate, uint64_t memory_bytes)
{
    const struct sums *sums = context;
    const struct uniform *uniform = sums->uniform;
    double share = share_of(sums->problem, sums->problem->sizes[size_index].size, memory_bytes);
    double more = alone_microbatches(sums, layer_ms_of(sums, size_index, rate)) - 1;

    if (share <= 0)
        return 0;
    if (size_index == uniform->size_index && rate <= sums->rate_min)
        return uniform->value;
    return (more > 0 ? more : 0) + share +
           (uniform->share > 0 ? uniform->lost / uniform->share : 0);
}

/* The share of the layers that a group may have in a pipeline within T of groups that take
 * fastest_ms per layer or more: what it has beyond takes longer than there. */
static double
share_in_time(const struct sums *sums, double layer_ms, double fastest_ms, double share)
{
    double spare_ms = sums->step_ms * (1 + MARGIN) - sums->work_layers * fastest_ms;
    double layers =
        layer_ms > fastest_ms ? floor(spare_ms / (layer_ms - fastest_ms) * (1 + MARGIN)) : INFINITY;

    if (layers <= 0)
        return 0;
    return layers < share * sums->problem->layers ? layers / sums->problem->layers : share;
}

/* (D): what is left over of a whole micro-batch, from 1 - `spare` on, counts for groups that hold
 * the model; those that do not count with their fraction, and with what they hold or 1 -
 * `spare`. */
static double
gain_partial(const void *context, uint32_t size_index, double rate, uint64_t memory_bytes)
{
    const struct sums *sums = context;
    double share = share_of(sums->problem, sums->problem->sizes[size_index].size, memory_bytes);
    double layer_ms = layer_ms_of(sums, size_index, rate);
    double alone = alone_microbatches(sums, layer_ms), rest = 1 - sums->spare;

    if (share <= 0)
        return 0;
    if (alone < 1 || share < 1)
        share = share_in_time(sums, layer_ms, sums->partial_ms, share);
    if (alone < 1)
        return share < sums->spare ? share : sums->spare;
    if (share < 1)
        return alone - 1 + (share > rest ? share : rest);
    return floor(alone) + (alone - floor(alone) > rest ? alone - floor(alone) - rest : 0);
}

/* The slowest stages of pipelines of equal groups, up to `stages`. */
static void
know_stages(struct uniform *uniform, struct cairn_divider *divider,
            struct cairn_divider *free_divider, struct cairn_group *groups, uint32_t stages)
{
    struct cairn_pipeline_lines lines;

    for (; uniform->stages_known < stages; uniform->stages_known++) {
        cairn_divide_lines(divider, groups, uniform->stages_known + 1, &lines);
        uniform->slowest_ms[uniform->stages_known] =
            lines.line_count > 0 ? lines.slowest_ms[0] : INFINITY;
        cairn_divide_lines(free_divider, groups, uniform->stages_known + 1, &lines);
        uniform->slowest_free_ms[uniform->stages_known] =
            lines.line_count > 0 ? lines.slowest_ms[0] : INFINITY;
    }
}

/* What one group of pipelines of equal groups does at most: the best number of stages, with whole
 * layers and whole micro-batches. Fewer micro-batches than stages need less memory: those are
 * counted without its limits. */
static double
best_uniform(struct uniform *uniform, const struct sums *sums, struct cairn_divider *divider,
             struct cairn_divider *free_divider, struct cairn_group *groups)
{
    double alone = alone_microbatches(sums, uniform->layer_ms), best = 0;
    double sum_ms = sums->work_layers * uniform->layer_ms;

    if (alone < 1)
        return 0;
    for (uint32_t stages = 1; stages <= uniform->stages_max; stages++) {
        double whole, few;

        if (1.0 / stages + alone - 1 <= best)
            return best;
        know_stages(uniform, divider, free_divider, groups, stages);
        whole =
            floor((1 + (sums->step_ms - sum_ms) / uniform->slowest_ms[stages - 1]) * (1 + MARGIN));
        few = floor((1 + (sums->step_ms - sum_ms) / uniform->slowest_free_ms[stages - 1]) *
                    (1 + MARGIN));
        if (uniform->slowest_ms[stages - 1] == INFINITY || whole < stages)
            whole = few < stages - 1 ? few : stages - 1;
        if (whole / stages > best)
            best = whole / stages;
    }
    /* Longer pipelines than were looked at: as in (B). */
    if (uniform->stages_max == STAGES_MAX && 1.0 / STAGES_MAX + alone - 1 > best)
        best = 1.0 / STAGES_MAX + alone - 1;
    return best;
}

struct bound {
    const struct cairn_fleet *fleet;
    struct cairn_problem free_problem; /* the same without limits of memory; owns nothing */
    struct cairn_divider *divider;
    struct cairn_divider *free_divider;
    double partial_ms; /* as in sums */
    struct cairn_group groups[STAGES_MAX];
    struct uniform uniforms[CAIRN_PROBLEM_SIZES_MAX];
};

static double
find_partial_ms(const struct cairn_fleet *fleet)
{
    const struct cairn_problem *problem = fleet->problem;
    double least_ms = INFINITY;
    uint64_t memory_bytes = UINT64_MAX;

    for (uint32_t i = 0; i < fleet->node_count; i++)
        if (fleet->node_memory_bytes[i] < memory_bytes)
            memory_bytes = fleet->node_memory_bytes[i];
    for (uint32_t i = 0; i < problem->size_count; i++)
        if (share_of(problem, problem->sizes[i].size, memory_bytes) < 1)
            least_ms = fmin(least_ms, problem->layer_ms * problem->sizes[i].cost * fleet->rate_min);
    return least_ms;
}

static void
begin_uniform(struct bound *bound, uint32_t size_index)
{
    const struct cairn_problem *problem = bound->fleet->problem;
    struct uniform *uniform = &bound->uniforms[size_index];
    uint32_t size = problem->sizes[size_index].size;
    uint32_t groups_max = bound->fleet->device_count / size;

    uniform->size_index = size_index;
    uniform->layer_ms =
        problem->layer_ms * problem->sizes[size_index].cost * bound->fleet->rate_min;
    uniform->share = share_of(problem, size, bound->fleet->memory_bytes_max);
    uniform->stages_max = groups_max < problem->layers ? groups_max : problem->layers;
    if (uniform->stages_max > STAGES_MAX)
        uniform->stages_max = STAGES_MAX;
}

static cairn_err
set_uniform(struct bound *bound, struct sums *sums, uint32_t size_index)
{
    const struct cairn_problem *problem = bound->fleet->problem;
    struct uniform *uniform = &bound->uniforms[size_index];
    uint64_t bytes = cairn_cost_group_bytes(problem, problem->sizes[size_index].size,
                                            bound->fleet->memory_bytes_max);
    double more = alone_microbatches(sums, uniform->layer_ms) - 1, shared;

    for (uint32_t i = 0; i < uniform->stages_max; i++)
        bound->groups[i] = (struct cairn_group){uniform->layer_ms, bytes};
    more = more > 0 ? more : 0;
    shared = more + uniform->share;
    uniform->value =
        best_uniform(uniform, sums, bound->divider, bound->free_divider, bound->groups);
    if (uniform->value > shared)
        uniform->value = shared;
    if (uniform->value < more) /* the proof needs lost <= share */
        uniform->value = more;
    uniform->lost = shared - uniform->value;
    sums->uniform = uniform;
    return CAIRN_OK;
}

/* Whether no plan can be as fast as step_ms. */
static cairn_err
is_infeasible(struct bound *bound, double step_ms, bool *out)
{
    const struct cairn_problem *problem = bound->fleet->problem;
    struct sums sums = {problem,
                        cairn_problem_work_layers(problem),
                        step_ms,
                        NULL,
                        bound->fleet->rate_min,
                        0,
                        bound->partial_ms};
    static const double spares[] = {0.1, 0.25, 0.5, 0.75, 0.9};
    uint32_t all = (1u << problem->size_count) - 1;
    double needed = problem->microbatches * (1 - MARGIN), total;
    cairn_err err;

    err = cairn_group_best(bound->fleet, all, gain_alone, &sums, &total, NULL, NULL);
    *out = total < needed;
    for (uint32_t i = 0; !err && !*out && i < sizeof(spares) / sizeof(*spares); i++) {
        sums.spare = spares[i];
        err = cairn_group_best(bound->fleet, all, gain_partial, &sums, &total, NULL, NULL);
        *out = total < needed;
    }
    for (uint32_t i = 0; !err && !*out && i < problem->size_count; i++) {
        if (bound->uniforms[i].stages_max == 0)
            continue;
        err = set_uniform(bound, &sums, i);
        if (!err)
            err = cairn_group_best(bound->fleet, all, gain_shared, &sums, &total, NULL, NULL);
        *out = total < needed;
    }
    return err;
}

/* Half the time that all devices would take together, each as fast as in its best group, if nothing
 * were ever waited for. */
static double
guess_ms(const struct cairn_fleet *fleet)
{
    const struct cairn_problem *problem = fleet->problem;
    double best = 0, speed = 0;

    for (uint32_t i = 0; i < problem->size_count; i++)
        best = fmax(best, 1 / (problem->sizes[i].cost * problem->sizes[i].size));
    for (uint32_t i = 0; i < fleet->device_count; i++)
        speed += best / problem->devices[fleet->order[i]].rate;
    return 0.5 * problem->microbatches * cairn_problem_work_layers(problem) * problem->layer_ms /
           speed;
}

/* Every `low` is out of reach by itself, however the sums behave in between. */
static cairn_err
search(struct bound *bound, const struct cairn_stop *stop, double *step_ms)
{
    double low, high = bound->fleet->device_count > 0 ? guess_ms(bound->fleet) : 1;
    bool infeasible;
    cairn_err err = is_infeasible(bound, high, &infeasible);

    low = infeasible ? high : high / 2;
    if (!err && !infeasible)
        err = is_infeasible(bound, low, &infeasible);
    for (uint32_t i = 0; !err && !infeasible && i < DOUBLINGS_MAX; i++) {
        high = low;
        low /= 2;
        err = is_infeasible(bound, low, &infeasible);
    }
    for (uint32_t i = 0; !err && high <= low && i < DOUBLINGS_MAX; i++) {
        high = 2 * low;
        err = is_infeasible(bound, high, &infeasible);
        low = infeasible ? high : low;
    }
    if (!err && high <= low) {
        *step_ms = INFINITY;
        return CAIRN_OK;
    }
    while (!err && high - low > PRECISION * high && !stop->over(stop->context)) {
        double middle = low + (high - low) / 2;

        err = is_infeasible(bound, middle, &infeasible);
        if (infeasible)
            low = middle;
        else
            high = middle;
    }
    *step_ms = low;
    return err;
}

/* The ways of (E), the one that came nearest to saying something first. */
struct part_ways {
    struct cairn_parts_way way[PART_WAYS];
    double total[PART_WAYS];
};

/* Whether (E) says that no plan can be as fast. Sorts the ways. */
static cairn_err
is_infeasible_in_parts(const struct cairn_fleet *fleet, struct cairn_parts *parts, double step_ms,
                       struct part_ways *ways, bool *out)
{
    uint32_t all = (1u << fleet->problem->size_count) - 1;
    double needed = fleet->problem->microbatches * (1 - MARGIN);
    cairn_err err = CAIRN_OK;

    *out = false;
    for (uint32_t i = 0; !err && !*out && i < PART_WAYS; i++) {
        struct cairn_parts_way way = ways->way[i];
        double total = INFINITY;
        uint32_t at = i;

        if (cairn_parts_set_prices(parts, step_ms, &way))
            err = cairn_group_best(fleet, all, cairn_parts_price, parts, &total, NULL, NULL);
        *out = total < needed;
        for (; at > 0 && ways->total[at - 1] > total; at--) {
            ways->way[at] = ways->way[at - 1];
            ways->total[at] = ways->total[at - 1];
        }
        ways->way[at] = way;
        ways->total[at] = total;
    }
    return err;
}

/* Raises a bound by (E), which takes more work: step by step, each longer where the last one was
 * possible, else shorter. */
static cairn_err
tighten(const struct cairn_fleet *fleet, const struct cairn_stop *stop, double *step_ms)
{
    struct part_ways ways = {{{1, 2, 0},
                              {1, 2, 1},
                              {1, 2, 0.8125},
                              {1, 2, 0.5},
                              {1, 2, 0.1875},
                              {2, 2, 0.5},
                              {2, 2, 0},
                              {1, 1, 0.5},
                              {1, 3, 0},
                              {2, 3, 0},
                              {1, 3, 0.5},
                              {1, 4, 0.375}},
                             {0}};
    struct cairn_parts *parts = NULL;
    double step = TIGHTENED_FIRST;
    cairn_err err = cairn_parts_create(fleet, &parts);

    while (!err && cairn_parts_matter(parts) && step > TIGHTENED_TO && !stop->over(stop->context)) {
        double raised_ms = *step_ms * (1 + step);
        bool infeasible;

        err = is_infeasible_in_parts(fleet, parts, raised_ms, &ways, &infeasible);
        if (infeasible)
            *step_ms = raised_ms;
        step = infeasible ? 2 * step : step / 2;
    }
    cairn_parts_destroy(parts);
    return err;
}

cairn_err
cairn_bound_step_ms(const struct cairn_fleet *fleet, const struct cairn_stop *stop, double *step_ms)
{
    struct bound *bound = calloc(1, sizeof(*bound));
    cairn_err err = bound ? CAIRN_OK : CAIRN_NOMEM;

    if (!err) {
        bound->fleet = fleet;
        bound->partial_ms = find_partial_ms(fleet);
        bound->free_problem = *fleet->problem;
        bound->free_problem.layer_bytes = 0;
        bound->free_problem.activation_bytes = 0;
        err = cairn_divider_create(fleet->problem, &bound->divider);
    }
    if (!err)
        err = cairn_divider_create(&bound->free_problem, &bound->free_divider);
    for (uint32_t i = 0; !err && i < fleet->problem->size_count; i++)
        begin_uniform(bound, i);
    if (!err)
        err = search(bound, stop, step_ms);
    if (!err && *step_ms < INFINITY)
        err = tighten(fleet, stop, step_ms);
    if (bound) {
        cairn_divider_destroy(bound->divider);
        cairn_divider_destroy(bound->free_divider);
    }
    free(bound);
    return err;
}
