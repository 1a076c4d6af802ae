/* replan/advise/shapes.c - see shapes.h. */
#include "replan/advise/shapes.h"

#include "replan/search/migrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What all shapes on some nodes have in common. */
struct ground {
    const struct cairn_problem *problem;
    const struct cairn_shape_rules *rules;
    uint64_t *devices; /* ids in the order of ranks */
    uint32_t count;
    uint32_t tp;
    bool by_stage; /* ranks of a stage follow one another */
};

/* The size of the current plan's groups; 0: there is no plan, or they differ. */
static uint32_t
group_size(const struct cairn_plan *current)
{
    uint32_t size = current && current->stage_count ? current->stages[0].device_count : 0;

    for (uint32_t i = 0; size && i < current->stage_count; i++)
        if (current->stages[i].device_count != size)
            return 0;
    return size;
}

/* Whether the second group of ranks is the second pipeline's first stage. */
static bool
is_by_stage(const struct cairn_plan *current)
{
    const struct cairn_plan_pipeline *first = &current->pipelines[0];
    uint64_t next, other;

    if (current->pipeline_count < 2 || first->stage_count < 2)
        return false;
    next = current->devices[current->stages[first->first_stage + 1].first_device];
    other = current->devices[current->stages[current->pipelines[1].first_stage].first_device];
    return other < next;
}

static cairn_err
find_devices(const struct cairn_problem *problem, const uint64_t *nodes, uint32_t node_count,
             struct ground *out)
{
    out->devices = malloc((problem->device_count + 1) * sizeof *out->devices);
    out->count = 0;
    if (!out->devices)
        return CAIRN_NOMEM;
    for (uint32_t n = 0; n < node_count; n++)
        for (uint32_t i = 0; i < problem->device_count; i++)
            if (problem->devices[i].node == nodes[n] && out->count < problem->device_count)
                out->devices[out->count++] = problem->devices[i].id;
    return CAIRN_OK;
}

/* A plan of this shape with the layers of `shape`, and equal shares. */
static void
fill_plan(const struct ground *ground, const struct cairn_shape *shape, struct cairn_plan *plan)
{
    const uint32_t tp = ground->tp, dp = shape->dp, pp = shape->pp;

    plan->pipeline_count = dp;
    plan->stage_count = dp * pp;
    plan->device_count = dp * pp * tp;
    for (uint32_t r = 0; r < dp; r++) {
        uint32_t layer = 0;

        plan->pipelines[r] =
            (struct cairn_plan_pipeline){ground->problem->microbatches / dp, r * pp, pp};
        for (uint32_t s = 0; s < pp; s++) {
            uint32_t at = r * pp + s, group = ground->by_stage ? s * dp + r : at;

            plan->stages[at] = (struct cairn_plan_stage){.first_device = at * tp,
                                                         .device_count = tp,
                                                         .first_layer = layer,
                                                         .layer_count = shape->layers[s]};
            layer += shape->layers[s];
            memcpy(plan->devices + (size_t)at * tp, ground->devices + (size_t)group * tp,
                   tp * sizeof *plan->devices);
        }
    }
}

/* Moves single layers between stages while that makes a step shorter. */
static void
improve_layers(const struct ground *ground, struct cairn_shape *shape, struct cairn_plan *plan)
{
    double best = cairn_plan_step_ms(plan, ground->problem);
    bool is_better = true;

    for (uint32_t turn = 0; is_better && turn < ground->problem->layers; turn++) {
        uint32_t from = UINT32_MAX, to = 0;

        is_better = false;
        for (uint32_t i = 0; i < shape->pp; i++)
            for (uint32_t k = 0; k < shape->pp; k++) {
                double step_ms;

                if (i == k || shape->layers[i] == 1)
                    continue;
                shape->layers[i]--;
                shape->layers[k]++;
                fill_plan(ground, shape, plan);
                step_ms = cairn_plan_step_ms(plan, ground->problem);
                shape->layers[i]++;
                shape->layers[k]--;
                if (step_ms < best) {
                    best = step_ms;
                    from = i;
                    to = k;
                }
            }
        if (from != UINT32_MAX) {
            shape->layers[from]--;
            shape->layers[to]++;
            is_better = true;
        }
    }
    fill_plan(ground, shape, plan);
}

/* The best of this dp and pp; CAIRN_NOT_FOUND: it does not fit. */
static cairn_err
try_shape(const struct ground *ground, uint32_t dp, uint32_t pp, struct cairn_shape *out)
{
    const struct cairn_problem *problem = ground->problem;
    struct cairn_shape shape = {.dp = dp, .pp = pp, .tp = ground->tp};
    struct cairn_plan *plan = NULL, *shifted = NULL;
    struct cairn_fault fault;
    cairn_err err;

    if (dp == 0 || pp == 0 || dp > CAIRN_SHAPE_PARTS_MAX || pp > CAIRN_SHAPE_PARTS_MAX ||
        problem->layers < pp || problem->microbatches < dp ||
        (!ground->rules->has_layers && problem->layers % pp) ||
        (!ground->rules->has_shares && problem->microbatches % dp))
        return CAIRN_NOT_FOUND;
    err = cairn_plan_create(dp, dp * pp, dp * pp * ground->tp, &plan);
    if (err)
        return err;
    for (uint32_t s = 0; s < pp; s++)
        shape.layers[s] = problem->layers / pp + (s < problem->layers % pp);
    fill_plan(ground, &shape, plan);
    if (ground->rules->has_layers)
        improve_layers(ground, &shape, plan);
    for (uint32_t r = 0; r < problem->microbatches % dp; r++)
        plan->pipelines[r].microbatches++;
    shape.step_ms = cairn_plan_step_ms(plan, problem);
    if (ground->rules->has_shares)
        err = cairn_migration_shift(problem, plan, &shifted, &shape.step_ms);
    if (!err && shifted) {
        cairn_plan_destroy(plan);
        plan = shifted;
    }
    if (!err)
        err = cairn_plan_check(plan, problem, &fault);
    for (uint32_t r = 0; !err && r < dp; r++)
        shape.shares[r] = plan->pipelines[r].microbatches;
    if (!err) {
        shape.step_ms = cairn_plan_step_ms(plan, problem);
        *out = shape;
    }
    cairn_plan_destroy(plan);
    return err == CAIRN_INVAL ? CAIRN_NOT_FOUND : err;
}

/* The best of all numbers of pipelines and stages. microbatches: of each pipeline; 0: the problem's
 * are shared out. CAIRN_NOT_FOUND: none fits. */
static cairn_err
find_best(struct ground *ground, uint32_t microbatches, struct cairn_shape *out)
{
    const struct cairn_problem *problem = ground->problem;
    uint32_t groups = ground->count % ground->tp ? 0 : ground->count / ground->tp;
    double best_ms = INFINITY; /* per micro-batch */
    cairn_err err = CAIRN_OK;

    for (uint32_t pp = 1; pp <= groups && !err; pp++) {
        uint32_t dp = groups / pp;
        struct cairn_problem changed = *problem;
        struct cairn_shape shape;

        if (groups % pp ||
            (!ground->rules->has_stages && pp != problem->current->pipelines[0].stage_count))
            continue;
        if (microbatches > UINT32_MAX / dp)
            continue;
        if (microbatches)
            changed.microbatches = dp * microbatches;
        ground->problem = &changed;
        err = try_shape(ground, dp, pp, &shape);
        ground->problem = problem;
        if (!err && shape.step_ms / changed.microbatches < best_ms) {
            best_ms = shape.step_ms / changed.microbatches;
            *out = shape;
        }
        err = err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
    }
    return err ? err : best_ms < INFINITY ? CAIRN_OK : CAIRN_NOT_FOUND;
}

cairn_err
cairn_shape_find(const struct cairn_problem *problem, const uint64_t *nodes, uint32_t node_count,
                 const struct cairn_shape_rules *rules, struct cairn_shape *out)
{
    struct ground ground = {.problem = problem, .rules = rules, .tp = group_size(problem->current)};
    cairn_err err;

    if (ground.tp == 0)
        return CAIRN_INVAL;
    for (uint32_t i = 0; i < problem->device_count; i++)
        for (uint32_t k = 0; k < node_count; k++)
            if (problem->devices[i].node == nodes[k] && !(problem->devices[i].rate > 0))
                return CAIRN_NOT_FOUND; /* a dead device */
    ground.by_stage = is_by_stage(problem->current);
    err = find_devices(problem, nodes, node_count, &ground);
    if (err)
        return err;
    err = find_best(&ground, 0, out);
    if (err == CAIRN_NOT_FOUND && rules->batch_may_change)
        err = find_best(&ground, problem->current->pipelines[0].microbatches, out);
    free(ground.devices);
    return err;
}

bool
cairn_shape_current(const struct cairn_problem *problem, struct cairn_shape *out)
{
    const struct cairn_plan *current = problem->current;
    struct cairn_shape shape = {.tp = group_size(current)};

    if (shape.tp == 0 || current->pipeline_count > CAIRN_SHAPE_PARTS_MAX ||
        current->pipelines[0].stage_count > CAIRN_SHAPE_PARTS_MAX)
        return false;
    shape.dp = current->pipeline_count;
    shape.pp = current->pipelines[0].stage_count;
    for (uint32_t r = 0; r < shape.dp; r++) {
        const struct cairn_plan_pipeline *pipeline = &current->pipelines[r];

        shape.shares[r] = pipeline->microbatches;
        for (uint32_t s = 0; s < pipeline->stage_count; s++) {
            uint32_t layers = current->stages[pipeline->first_stage + s].layer_count;

            if (pipeline->stage_count != shape.pp || (r && shape.layers[s] != layers))
                return false;
            shape.layers[s] = layers;
        }
    }
    shape.step_ms = cairn_plan_step_ms(current, problem);
    *out = shape;
    return true;
}

uint32_t
cairn_shape_nodes(const struct cairn_problem *problem, uint64_t nodes[CAIRN_SHAPE_NODES_MAX])
{
    uint32_t count = 0;

    for (uint32_t i = 0; problem->current && i < problem->device_count; i++) {
        bool is_used = false, is_known = false;

        for (uint32_t k = 0; k < problem->current->device_count; k++)
            is_used |= problem->current->devices[k] == problem->devices[i].id;
        for (uint32_t k = 0; k < count; k++)
            is_known |= nodes[k] == problem->devices[i].node;
        if (!is_used || is_known)
            continue;
        if (count == CAIRN_SHAPE_NODES_MAX)
            return 0;
        nodes[count++] = problem->devices[i].node;
    }
    return count;
}
