/* replan/search/search.c - the search over groups, divisions and orders. */
#include "replan/search/search.h"
#include "base/assert.h"

#include "replan/bound/few.h"
#include "replan/bound/raise.h"
#include "replan/fleet/cost.h"
#include "replan/search/exhaust.h"
#include "replan/search/regroup.h"
#include "replan/search/sets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEPT_MAX = 24,         /* divisions that are improved */
    NEAR_PIPELINES = 40,   /* numbers of pipelines tried one by one, before the steps grow */
    LENGTH_STEPS = 64,     /* numbers of stages tried one by one, before the steps grow */
    FEW_PIPELINES = 16,    /* where memory allows no more, all their lengths are tried */
    MOVES_MAX = 1000000,   /* of one search */
    MOVES_AT_ONCE = 12000, /* towards one target */
    MOVES_BRIEFLY = 1000,  /* the same, where a division is only sounded */
    PARTS = 4,
    PARTS_BRIEFLY = 2,
    RAISED_AFTER = 12000, /* moves: a plan first, then the bound */
    REGROUPED_MAX = 96,
    REGROUP_FIRST = 30000, /* moves */
    REGROUP_LAST = 200000,
    LAST_TURNS = 4,
    CUTS_FIRST = 400, /* of the bound of few pipelines */
    CUTS_LAST = 2000,
    REGROUP_COUNTS = 3, /* numbers of pipelines in a round */
    REGROUP_MOVES = 4000,
    GUESSES = 6,
    GUESS_MOVES = 8000
};
#define ENOUGH 1.0005 /* how far from the bound a plan is not improved */
#define FOR_EVER                                                                                   \
    1e40 /* times the bound, is longer than any plan takes: rates, and costs of sizes, may differ by
          * 10^12 each */
#define REGROUP_NEAR 1.3 /* how far from the best a division may be to be regrouped */
#define NEAR 1.01        /* how far from the best a division may be to be kept for improvement */

struct search {
    const struct cairn_fleet *fleet;
    const struct cairn_problem *problem;
    struct cairn_divider *divider;
    const struct cairn_stop *stop;
    double bound_ms;
    double work_layers;
    struct cairn_few *few; /* a better bound; NULL: memory allows many pipelines */
    bool raised;           /* the bound, once */
    bool tried; /* a division of many pipelines: before that a plan may be of a handful of devices,
                 * and time does not count */
    struct cairn_unit_sets sets;
    struct cairn_division *kept[KEPT_MAX]; /* the best first */
    double kept_ms[KEPT_MAX];
    uint32_t kept_count;
    struct cairn_regrouped regrouped[REGROUPED_MAX];
    uint32_t regrouped_count;
    uint64_t regroup_seed;
    struct cairn_plan *plan; /* the best so far */
    double step_ms;
};

/* ---- plans ---- */

/* The pipelines of a division that do something in that time, divided exactly; kept where it is the
 * best so far. */
static cairn_err
take_plan(struct search *search, struct cairn_division *division, double step_ms)
{
    uint32_t unit_count = division->unit_count, pipeline_count = 0, at = 0, devices = 0;
    struct cairn_group *groups = calloc((size_t)unit_count + 1, sizeof(*groups));
    uint32_t *units = calloc((size_t)unit_count + 1, sizeof(*units));
    uint32_t *layers = calloc((size_t)unit_count + 1, sizeof(*layers));
    uint32_t *stage_counts = calloc((size_t)unit_count + 1, sizeof(*stage_counts));
    uint32_t *microbatches = calloc((size_t)unit_count + 1, sizeof(*microbatches));
    struct cairn_plan *plan = NULL;
    cairn_err err =
        groups && units && layers && stage_counts && microbatches ? CAIRN_OK : CAIRN_NOMEM;
    double exact_ms = INFINITY;

    if (err)
        goto done;
    cairn_division_set_target(division, step_ms);
    for (uint32_t i = 0; i < division->pipeline_count; i++) {
        const struct cairn_pipeline *pipeline = &division->pipelines[i];

        if (pipeline->microbatches < 1)
            continue;
        cairn_division_stages(division, pipeline, groups + at, units + at);
        stage_counts[pipeline_count++] = pipeline->member_count;
        at += pipeline->member_count;
    }
    exact_ms =
        cairn_divide(search->divider, groups, stage_counts, pipeline_count, microbatches, layers);
    if (!(exact_ms < search->step_ms))
        goto done;
    err = cairn_plan_create(pipeline_count, at, search->problem->device_count, &plan);
    at = 0;
    for (uint32_t i = 0; !err && i < pipeline_count; i++) {
        uint32_t first_layer = 0;

        plan->pipelines[plan->pipeline_count++] =
            (struct cairn_plan_pipeline){microbatches[i], at, stage_counts[i]};
        for (uint32_t j = 0; j < stage_counts[i]; j++, at++) {
            const struct cairn_unit *unit = &division->units[units[at]];

            plan->stages[plan->stage_count++] =
                (struct cairn_plan_stage){devices, unit->size, first_layer, layers[at]};
            first_layer += layers[at];
            for (uint32_t k = 0; k < unit->size; k++)
                plan->devices[devices++] = search->problem->devices[unit->devices[k]].id;
        }
        CAIRN_ASSERT(first_layer == search->problem->layers);
    }
    if (err)
        goto done;
    plan->device_count = devices;
    cairn_plan_destroy(search->plan);
    search->plan = plan;
    search->step_ms = exact_ms;
done:
    free(groups);
    free(units);
    free(layers);
    free(stage_counts);
    free(microbatches);
    return err;
}

/* ---- divisions ---- */

static bool
over(const struct search *search)
{
    return search->plan && search->tried && search->stop->over(search->stop->context);
}

/* Keeps a division among the best few; owns it. */
static void
keep(struct search *search, struct cairn_division *division, double step_ms)
{
    uint32_t at = search->kept_count;

    for (uint32_t i = 0; i < search->kept_count; i++) /* the same, dealt in another way */
        if (search->kept[i]->pipeline_count == division->pipeline_count &&
            search->kept[i]->unit_count == division->unit_count &&
            fabs(search->kept_ms[i] - step_ms) <= 1e-9 * step_ms) {
            cairn_division_destroy(division);
            return;
        }
    if (at == KEPT_MAX) {
        if (step_ms >= search->kept_ms[--at]) {
            cairn_division_destroy(division);
            return;
        }
        cairn_division_destroy(search->kept[at]);
    } else {
        search->kept_count++;
    }
    for (; at > 0 && search->kept_ms[at - 1] > step_ms; at--) {
        search->kept[at] = search->kept[at - 1];
        search->kept_ms[at] = search->kept_ms[at - 1];
    }
    search->kept[at] = division;
    search->kept_ms[at] = step_ms;
}

/* A time that is enough for a division that holds all layers somewhere; INFINITY where none is. */
static double
enough_ms(const struct search *search, struct cairn_division *division)
{
    double high_ms = search->bound_ms * FOR_EVER; /* does it fit at all? */

    if (cairn_division_microbatches(division, high_ms) < search->problem->microbatches) {
        /* near the bound no order of stages did anything; another one may fit */
        cairn_division_set_target(division, high_ms);
        if (cairn_division_microbatches(division, high_ms) < search->problem->microbatches)
            return INFINITY;
    }
    for (high_ms = search->bound_ms * 2;
         cairn_division_microbatches(division, high_ms) < search->problem->microbatches;)
        high_ms *= 2;
    return high_ms;
}

static cairn_err
try_division(struct search *search, const struct cairn_unit_set *set, uint32_t dealt,
             uint32_t pipeline_count, enum cairn_deal deal)
{
    double limit_ms = search->step_ms < INFINITY ? search->step_ms * NEAR : search->bound_ms,
           step_ms;
    struct cairn_division *division = NULL;
    cairn_err err;

    err = cairn_division_create(search->problem, search->divider, set->units, set->unit_count,
                                dealt, pipeline_count, deal, limit_ms, &division);
    if (err)
        return err;
    if (search->step_ms == INFINITY)
        limit_ms = enough_ms(search, division);
    if (limit_ms == INFINITY ||
        cairn_division_microbatches(division, limit_ms) < search->problem->microbatches) {
        cairn_division_destroy(division);
        return CAIRN_OK;
    }
    step_ms = cairn_division_step_ms(division, search->bound_ms, limit_ms);
    if (step_ms < search->step_ms)
        err = take_plan(search, division, step_ms);
    keep(search, division, step_ms);
    return err;
}

/* How many units of a set a pipeline needs at least: as many as hold all layers, were all as large
 * as the largest. Pipelines of fewer micro-batches than stages might do with less, and are left to
 * chance. */
static uint32_t
stages_min(const struct search *search, const struct cairn_unit_set *set)
{
    const struct cairn_problem *problem = search->problem;
    uint64_t bytes_max = 0, layers = 0;
    uint32_t stages = 0;

    for (uint32_t i = 0; i < set->unit_count; i++)
        if (set->units[i].group.bytes > bytes_max)
            bytes_max = set->units[i].group.bytes;
    while (layers < problem->layers && stages < set->unit_count) {
        uint32_t in_flight = cairn_cost_in_flight(0, ++stages, problem->microbatches);

        layers += cairn_cost_layers_max(problem, bytes_max, in_flight);
    }
    return stages;
}

static uint32_t
pipelines_max(const struct search *search, const struct cairn_unit_set *set)
{
    uint32_t most = set->unit_count / stages_min(search, set);

    return most < search->problem->microbatches ? most : search->problem->microbatches;
}

/* A set at every number of pipelines that may still be better than the best: the fewer, the longer
 * they are, the more time goes to filling and draining them. */
static cairn_err
try_set(struct search *search, const struct cairn_unit_set *set)
{
    uint32_t step = 1, tried = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t count = pipelines_max(search, set); !err && count >= 1 && !over(search);
         tried++) {
        double fluid_ms = (search->problem->microbatches + (double)set->unit_count - count) *
                          search->work_layers / set->speed;

        if (search->plan && fluid_ms >= search->step_ms * NEAR)
            break;
        for (int deal = 0; !err && deal <= CAIRN_DEAL_APART && !over(search); deal++) {
            /* the same for every number of pipelines that is enough */
            if (deal == CAIRN_DEAL_APART && tried > 0)
                continue;
            err = try_division(search, set, set->unit_count, count, (enum cairn_deal)deal);
            search->tried = true;
        }
        if (tried >= NEAR_PIPELINES)
            step += step / 4 + 1;
        count = count > step ? count - step : count > 1 && !search->plan ? 1 : 0;
    }
    return err;
}

/*
 * Where memory is tight: pipelines of as many stages each, of all lengths that may hold the model
 * and still be better than the best. Fewer stages than there are groups hold more layers, since
 * fewer micro-batches are in flight, and leave slow groups out.
 */
static cairn_err
try_lengths(struct search *search, const struct cairn_unit_set *set)
{
    uint32_t most = pipelines_max(search, set), least_stages = stages_min(search, set);
    cairn_err err = CAIRN_OK;

    if (most > FEW_PIPELINES)
        return CAIRN_OK;
    for (uint32_t count = most; count >= 1; count--) {
        double speed = 0; /* of the fastest units, as many as are dealt */
        uint32_t added = 0;

        for (uint32_t stages = least_stages; stages <= set->unit_count / count;
             stages += 1 + stages / LENGTH_STEPS) {
            for (; added < stages * count; added++)
                speed += 1 / set->units[added].group.layer_ms;
            /* no pipeline ends before (m - 1) times its longest stage and all layers once at the
             * fastest unit's pace */
            if (search->work_layers * ((search->problem->microbatches - count) / speed +
                                       set->units[0].group.layer_ms) >=
                search->step_ms * NEAR)
                continue;
            for (int deal = CAIRN_DEAL_TURN; !err && deal <= CAIRN_DEAL_TURN_MEMORY; deal++) {
                if (over(search))
                    return CAIRN_OK;
                err = try_division(search, set, stages * count, count, (enum cairn_deal)deal);
            }
            if (err)
                return err;
        }
    }
    return CAIRN_OK;
}

static int
by_memory(const void *left, const void *right)
{
    const struct cairn_unit *a = left, *b = right;

    if (a->group.bytes != b->group.bytes)
        return a->group.bytes > b->group.bytes ? -1 : 1;
    return cairn_unit_by_speed_and_memory(left, right);
}

/* One pipeline of as few groups of a set as hold all layers: those with most memory, the largest
 * last, where a layer has fewest activations. What the other ways pass over where hardly anything
 * fits. */
static cairn_err
try_shortest(struct search *search, const struct cairn_unit_set *set)
{
    const struct cairn_problem *problem = search->problem;
    struct cairn_unit_set largest = {.unit_count = 0};
    uint32_t set_count = search->sets.count;
    uint64_t layers = 0;
    cairn_err err = CAIRN_OK;

    largest.units = calloc(set->unit_count, sizeof(*largest.units));
    if (!largest.units)
        return CAIRN_NOMEM;
    memcpy(largest.units, set->units, set->unit_count * sizeof(*largest.units));
    qsort(largest.units, set->unit_count, sizeof(*largest.units), by_memory);
    while (layers < problem->layers && largest.unit_count < set->unit_count) {
        const struct cairn_group *group = &largest.units[largest.unit_count++].group;
        uint32_t in_flight = cairn_cost_in_flight(0, largest.unit_count, problem->microbatches);

        layers += cairn_cost_layers_max(problem, group->bytes, in_flight);
    }
    if (layers < problem->layers)
        largest.unit_count = 0;
    cairn_unit_sets_take(&search->sets, largest);
    if (search->sets.count > set_count) /* else it was empty, or has been tried */
        err = try_division(search, &search->sets.sets[set_count],
                           search->sets.sets[set_count].unit_count, 1, CAIRN_DEAL_MEMORY);
    return err;
}

/* Raises the bound, once. */
static cairn_err
raise_bound(struct search *search)
{
    bool may = !search->raised && search->plan;

    search->raised = true;
    if (!may)
        return CAIRN_OK;
    return cairn_bound_raise(search->fleet, search->step_ms, search->stop, &search->bound_ms);
}

/* Aims nearer to the bound, and less so each of the part_count times that it may fail, with so many
 * moves at once; on one of those kept. */
static cairn_err
improve(struct search *search, uint32_t at, uint32_t part_count, uint32_t at_once, uint32_t *moves)
{
    static const double parts[PARTS] = {0.4, 0.15, 0.04, 0.01};
    struct cairn_division *division = search->kept[at];
    double step_ms = search->kept_ms[at];
    uint32_t part = 0;
    cairn_err err = CAIRN_OK;

    while (!err && part<part_count && * moves> 0 && search->step_ms > search->bound_ms * ENOUGH &&
           !over(search)) {
        double target_ms;
        uint32_t now = *moves < at_once ? *moves : at_once;

        if (!search->raised && *moves <= MOVES_MAX - RAISED_AFTER) {
            err = raise_bound(search);
            continue;
        }
        target_ms = step_ms - (step_ms - search->bound_ms) * parts[part];
        cairn_division_set_target(division, target_ms);
        *moves -= now;
        if (!cairn_division_improve(division, now, search->stop)) {
            part++;
            continue;
        }
        step_ms = cairn_division_step_ms(division, search->bound_ms, target_ms);
        search->kept_ms[at] = step_ms;
        if (step_ms < search->step_ms)
            err = take_plan(search, division, step_ms);
    }
    return err;
}

/* The best first again; of equals the first stays so. */
static void
sort_kept(struct search *search)
{
    for (uint32_t i = 1; i < search->kept_count; i++) {
        struct cairn_division *division = search->kept[i];
        double step_ms = search->kept_ms[i];
        uint32_t at = i;

        for (; at > 0 && search->kept_ms[at - 1] > step_ms; at--) {
            search->kept[at] = search->kept[at - 1];
            search->kept_ms[at] = search->kept_ms[at - 1];
        }
        search->kept[at] = division;
        search->kept_ms[at] = step_ms;
    }
}

/* All that were kept, until the bound says that nothing better exists: the best, then a little of
 * each, since one that leads on does so within few moves, and nobody sees before which one that
 * is. */
static cairn_err
improve_all(struct search *search)
{
    uint32_t moves = MOVES_MAX;
    cairn_err err = CAIRN_OK;

    if (search->kept_count > 0)
        err = improve(search, 0, 1, MOVES_AT_ONCE, &moves);
    for (uint32_t i = 0; !err && i < search->kept_count; i++)
        err = improve(search, i, PARTS_BRIEFLY, MOVES_BRIEFLY, &moves);
    sort_kept(search);
    for (uint32_t i = 0; !err && i < search->kept_count; i++)
        err = improve(search, i, PARTS, MOVES_AT_ONCE, &moves);
    return err ? err : raise_bound(search);
}

/* Groups of a kept division, or of a guess (or NULL), changed by annealing, and what that found
 * improved. */
static cairn_err
regroup_one(struct search *search, uint32_t at, const struct cairn_few_guess *guess, uint32_t moves)
{
    struct cairn_regrouped *made = &search->regrouped[search->regrouped_count];
    struct cairn_division *division = NULL;
    double known_ms = guess ? search->step_ms : search->kept_ms[at], step_ms = known_ms;
    cairn_err err = cairn_regroup(search->fleet, search->kept[at], guess, moves, search->bound_ms,
                                  search->regroup_seed++, search->stop, &step_ms, made);

    if (err)
        return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
    if (!(step_ms < known_ms)) {
        cairn_regrouped_fini(made);
        return CAIRN_OK;
    }
    search->regrouped_count++;
    err = cairn_division_create_given(search->problem, search->divider, made->units,
                                      made->unit_count, made->pipeline_of, made->ranks,
                                      made->pipeline_count, step_ms * (1 + 1e-9), &division);
    if (err)
        return err;
    step_ms = enough_ms(search, division);
    if (step_ms == INFINITY) {
        cairn_division_destroy(division);
        return CAIRN_OK;
    }
    step_ms = cairn_division_step_ms(division, search->bound_ms, step_ms);
    if (step_ms < search->step_ms)
        err = take_plan(search, division, step_ms);
    keep(search, division, step_ms);
    return err;
}

/* The best of each number of pipelines in turn, for so many moves in all. */
static cairn_err
regroup_all(struct search *search, uint32_t moves_max)
{
    uint32_t moves = REGROUP_MOVES, left = moves_max;
    cairn_err err = CAIRN_OK;

    while (!err && left > 0 && search->kept_count > 0) {
        uint32_t counts[REGROUP_COUNTS] = {0}, found = 0;

        for (uint32_t i = 0; !err && i < search->kept_count && found < REGROUP_COUNTS; i++) {
            uint32_t now = moves < left ? moves : left;
            bool known = false;

            for (uint32_t j = 0; j < found; j++)
                known = known || counts[j] == search->kept[i]->pipeline_count;
            if (known || search->kept_ms[i] > search->step_ms * REGROUP_NEAR)
                continue;
            if (now == 0 || over(search) || search->step_ms <= search->bound_ms * ENOUGH ||
                search->regrouped_count == REGROUPED_MAX)
                return CAIRN_OK;
            counts[found++] = search->kept[i]->pipeline_count;
            err = regroup_one(search, i, NULL, now);
            left -= now;
        }
        moves *= 2;
    }
    return err;
}

/* Raises the bound of few pipelines, and looks for plans where it is then least: no division that
 * is known may have as many pipelines, or micro-batches given out like that. */
static cairn_err
raise_few(struct search *search, uint32_t cuts)
{
    cairn_err err = CAIRN_OK;

    cairn_few_raise(search->few, search->step_ms, cuts, search->stop, &search->bound_ms);
    for (uint32_t i = 0;
         !err && i < GUESSES && search->kept_count > 0 && !over(search) &&
         search->step_ms > search->bound_ms * ENOUGH && search->regrouped_count < REGROUPED_MAX;
         i++) {
        struct cairn_few_guess guess;

        err = cairn_few_guess(search->few, search->regroup_seed, &guess);
        if (err)
            break;
        err = regroup_one(search, 0, &guess, GUESS_MOVES);
        cairn_few_guess_fini(&guess);
    }
    return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
}

/* Improves divisions, and raises the bound. Where there are few pipelines groups matter more than
 * how they are dealt. */
static cairn_err
improve_plan(struct search *search)
{
    cairn_err err = CAIRN_OK;

    if (search->plan && search->plan->pipeline_count <= CAIRN_BOUND_FEW_PIPELINES)
        err = cairn_few_create(search->fleet, &search->few);
    if (err == CAIRN_NOT_FOUND)
        err = CAIRN_OK;
    for (int i = 1; !err && search->few && i <= 2; i++) {
        err = regroup_all(search, REGROUP_FIRST);
        if (!err)
            err = raise_few(search, CUTS_FIRST);
    }
    if (!err)
        err = improve_all(search);
    /* a bound of one pipeline ends early, and time is left for the search */
    for (int i = 0; !err && i < (search->few ? LAST_TURNS : 1); i++) {
        err = regroup_all(search, REGROUP_LAST);
        if (!err && search->few)
            err = raise_few(search, CUTS_LAST);
    }
    return err;
}

/* A handful of devices: everything that the search passed over, too. What then is best is the
 * bound; where the time limit is over first it is raised as far as that goes. */
static cairn_err
exhaust(struct search *search, bool *complete)
{
    cairn_err err =
        cairn_exhaust(search->fleet, search->stop, &search->plan, &search->step_ms, complete);

    if (err)
        return err;
    if (*complete && search->plan) {
        CAIRN_ASSERT(search->bound_ms <= search->step_ms * (1 + 1e-6)); /* the best is not below */
        search->bound_ms = search->step_ms;
        return CAIRN_OK;
    }
    search->raised = false;
    return raise_bound(search);
}

cairn_err
cairn_search(const struct cairn_fleet *fleet, double *bound_ms, const struct cairn_stop *stop,
             struct cairn_plan **out, double *step_ms, bool *complete)
{
    struct search search = {.fleet = fleet,
                            .problem = fleet->problem,
                            .stop = stop,
                            .bound_ms = *bound_ms,
                            .work_layers = cairn_problem_work_layers(fleet->problem),
                            .step_ms = INFINITY};
    struct cairn_fleet *memory_fleet = NULL;
    bool few = fleet->device_count <= CAIRN_EXHAUST_DEVICES_MAX;
    cairn_err err;

    search.raised = few; /* exhaust() does that, when all has been tried */
    search.sets.fleet = fleet;
    search.sets.problem = fleet->problem;
    search.sets.stop = stop;
    search.sets.bound_ms = *bound_ms;
    search.sets.work_layers = search.work_layers;
    err = cairn_divider_create(fleet->problem, &search.divider);
    if (!err)
        err = cairn_unit_sets_find(&search.sets);
    if (!err && cairn_fleet_mixes_memory(fleet))
        err = cairn_fleet_create_by_memory(fleet->problem, &memory_fleet);
    if (!err && memory_fleet) {
        search.sets.fleet = memory_fleet;
        err = cairn_unit_sets_find(&search.sets);
    }
    /* With a plan, however long its step, the time limit counts. */
    for (uint32_t i = 0, sets = search.sets.count; !err && !search.plan && i < sets; i++)
        err = try_shortest(&search, &search.sets.sets[i]);
    /* All sets first, which takes less than improving what one of them has led to. */
    for (uint32_t i = 0; !err && i < search.sets.count && !over(&search); i++)
        err = try_set(&search, &search.sets.sets[i]);
    for (uint32_t i = 0; !err && i < search.sets.count && !over(&search); i++)
        err = try_lengths(&search, &search.sets.sets[i]);
    if (!err)
        err = few ? improve_all(&search) : improve_plan(&search);
    for (uint32_t i = 0; i < search.kept_count; i++)
        cairn_division_destroy(search.kept[i]);
    for (uint32_t i = 0; i < search.regrouped_count; i++)
        cairn_regrouped_fini(&search.regrouped[i]);
    cairn_few_destroy(search.few);
    cairn_unit_sets_fini(&search.sets);
    cairn_fleet_destroy(memory_fleet);
    cairn_divider_destroy(search.divider);
    *complete = search.step_ms <= search.bound_ms * ENOUGH;
    if (!err && few)
        err = exhaust(&search, complete);
    if (!err && !search.plan)
        err = CAIRN_NOT_FOUND;
    if (err) {
        cairn_plan_destroy(search.plan);
        return err;
    }
    *out = search.plan;
    *step_ms = search.step_ms;
    *bound_ms = search.bound_ms;
    return CAIRN_OK;
}
