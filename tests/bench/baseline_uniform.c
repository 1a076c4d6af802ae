/* tests/bench/baseline_uniform.c - plans of equal pipelines, with and without micro-batches
 * moved. */
#include "tests/bench/baseline.h"

#include "replan/search/migrate.h"

#include <math.h>
#include <stdlib.h>

#define SLOW 1.1

/* Groups of `size` devices of one node, in order, all of them alive. groups[device_count]: the
 * first device's index. */
static uint32_t
form_groups(const struct cairn_problem *problem, uint32_t size, const bool *dropped,
            uint32_t *groups)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i + size <= problem->device_count;) {
        bool whole = true;

        for (uint32_t j = i; j < i + size; j++)
            whole = whole && problem->devices[j].rate > 0 && !(dropped && dropped[j]) &&
                    problem->devices[j].node == problem->devices[i].node;
        if (whole)
            groups[count++] = i;
        i += whole ? size : 1;
    }
    return count;
}

/* Equal pipelines of the first groups; those in front have the layer and the micro-batch that are
 * over. */
static cairn_err
make_plan(const struct cairn_problem *problem, const uint32_t *groups, uint32_t size,
          uint32_t pipelines, uint32_t stages, struct cairn_plan **out)
{
    cairn_err err =
        cairn_plan_create(pipelines, pipelines * stages, pipelines * stages * size, out);
    struct cairn_plan *plan = *out;

    for (uint32_t i = 0; !err && i < pipelines; i++) {
        uint32_t next_layer = 0;

        plan->pipelines[plan->pipeline_count++] = (struct cairn_plan_pipeline){
            problem->microbatches / pipelines + (i < problem->microbatches % pipelines), i * stages,
            stages};
        for (uint32_t j = 0; j < stages; j++) {
            uint32_t layers = problem->layers / stages + (j < problem->layers % stages);

            plan->stages[plan->stage_count++] =
                (struct cairn_plan_stage){plan->device_count, size, next_layer, layers};
            next_layer += layers;
            for (uint32_t k = 0; k < size; k++)
                plan->devices[plan->device_count++] =
                    problem->devices[groups[i * stages + j] + k].id;
        }
    }
    return err;
}

/* Takes a plan where it is valid and faster; ends it else. */
static void
take_faster(const struct cairn_problem *problem, struct cairn_plan *plan, double *best_ms,
            struct cairn_plan **best)
{
    struct cairn_fault fault;
    double step_ms = INFINITY;

    if (plan && !cairn_plan_check(plan, problem, &fault))
        step_ms = cairn_plan_step_ms(plan, problem);
    if (step_ms < *best_ms) {
        cairn_plan_destroy(*best);
        *best = plan;
        *best_ms = step_ms;
    } else {
        cairn_plan_destroy(plan);
    }
}

/* The fastest of all such plans; with `shifted`, after moving micro-batches. */
static cairn_err
best_uniform(const struct cairn_problem *problem, const bool *dropped, bool shifted,
             struct cairn_plan **out)
{
    uint32_t *groups = calloc((size_t)problem->device_count + 1, sizeof(*groups));
    double best_ms = INFINITY;
    cairn_err err = groups ? CAIRN_OK : CAIRN_NOMEM;

    *out = NULL;
    for (uint32_t i = 0; !err && i < problem->size_count; i++) {
        uint32_t size = problem->sizes[i].size, count = form_groups(problem, size, dropped, groups);

        for (uint32_t stages = 1; !err && stages <= count && stages <= problem->layers; stages++) {
            uint32_t pipelines = count / stages;
            struct cairn_plan *plan = NULL, *moved = NULL;
            double moved_ms;

            pipelines = pipelines < problem->microbatches ? pipelines : problem->microbatches;
            err = make_plan(problem, groups, size, pipelines, stages, &plan);
            if (!err && shifted)
                err = cairn_migration_shift(problem, plan, &moved, &moved_ms);
            take_faster(problem, plan, &best_ms, out);
            take_faster(problem, moved, &best_ms, out);
        }
    }
    free(groups);
    return err;
}

cairn_err
cairn_baseline_uniform(const struct cairn_problem *problem, struct cairn_plan **out)
{
    return best_uniform(problem, NULL, false, out);
}

cairn_err
cairn_baseline_shift(const struct cairn_problem *problem, struct cairn_plan **out)
{
    return best_uniform(problem, NULL, true, out);
}

cairn_err
cairn_baseline_drop(const struct cairn_problem *problem, struct cairn_plan **out)
{
    bool *dropped = calloc((size_t)problem->device_count + 1, sizeof(*dropped));
    cairn_err err = dropped ? CAIRN_OK : CAIRN_NOMEM;

    /* Devices of a node stand together, as cairn_made_problem makes them. */
    for (uint32_t first = 0, end; !err && first < problem->device_count; first = end) {
        bool bad = false;

        for (end = first; end < problem->device_count &&
                          problem->devices[end].node == problem->devices[first].node;
             end++)
            bad = bad || problem->devices[end].rate <= 0 || problem->devices[end].rate > SLOW;
        for (uint32_t i = first; i < end; i++)
            dropped[i] = bad;
    }
    if (!err)
        err = best_uniform(problem, dropped, false, out);
    free(dropped);
    return err;
}
