/* replan/answer.c - from a problem to the planner's whole answer. */
#include "replan/answer.h"

#include "replan/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bound and plan of one set of devices; *plan stays NULL where nothing fits. */
static cairn_err
plan_for(const struct cairn_problem *problem, const struct cairn_stop *stop,
         struct cairn_answer_plan *out)
{
    struct cairn_fleet *fleet = NULL;
    cairn_err err;

    err = cairn_fleet_create(problem, &fleet);
    if (!err)
        err = cairn_bound_step_ms(fleet, &out->bound_ms);
    if (!err && out->bound_ms < INFINITY)
        err = cairn_search(fleet, out->bound_ms, stop, &out->plan, &out->step_ms, &out->complete);
    if (err == CAIRN_NOT_FOUND)
        err = CAIRN_OK;
    if (!err && !out->plan)
        err = cairn_infeasible_why(fleet, &out->infeasible);
    cairn_fleet_destroy(fleet);
    return err;
}

/* The same problem with every device at rate 1. */
static cairn_err
plan_healthy(const struct cairn_problem *problem, const struct cairn_stop *stop, double *step_ms)
{
    struct cairn_problem healthy = *problem;
    struct cairn_answer_plan answer = {0};
    cairn_err err;

    healthy.devices = calloc((size_t)problem->device_count + 1, sizeof(*healthy.devices));
    if (!healthy.devices)
        return CAIRN_NOMEM;
    if (problem->device_count > 0)
        memcpy(healthy.devices, problem->devices, problem->device_count * sizeof(*healthy.devices));
    for (uint32_t i = 0; i < problem->device_count; i++)
        healthy.devices[i].rate = 1;
    err = plan_for(&healthy, stop, &answer);
    *step_ms = answer.plan ? answer.step_ms : INFINITY;
    cairn_answer_plan_fini(&answer);
    free(healthy.devices);
    return err;
}

static bool
is_healthy(const struct cairn_problem *problem)
{
    for (uint32_t i = 0; i < problem->device_count; i++)
        if (problem->devices[i].rate < 1 || problem->devices[i].rate > 1)
            return false;
    return true;
}

cairn_err
cairn_answer_plan_make(const struct cairn_problem *problem, const struct cairn_stop *stop,
                       struct cairn_answer_plan *out)
{
    struct cairn_answer_plan answer = {0};
    cairn_err err;

    err = plan_for(problem, stop, &answer);
    answer.healthy_ms = answer.plan ? answer.step_ms : INFINITY;
    if (!err && answer.plan && !is_healthy(problem))
        err = plan_healthy(problem, stop, &answer.healthy_ms);
    if (err)
        cairn_answer_plan_fini(&answer);
    else
        *out = answer;
    return err;
}

void
cairn_answer_plan_fini(struct cairn_answer_plan *answer)
{
    cairn_plan_destroy(answer->plan);
    *answer = (struct cairn_answer_plan){0};
}
