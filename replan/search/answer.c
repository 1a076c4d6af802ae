/* replan/search/answer.c - from a problem to the planner's whole answer. */
#include "replan/search/answer.h"
#include "base/assert.h"

#include "replan/bound/bound.h"
#include "replan/search/links.h"
#include "replan/fleet/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Knows whether anybody was told to stop: what was then left out is left out of the answer, be it
 * of the bound or of the plan. */
struct watched_stop {
    const struct cairn_stop *stop;
    bool said;
};

static bool
is_over(void *context)
{
    struct watched_stop *watched = context;

    watched->said = watched->said || watched->stop->over(watched->stop->context);
    return watched->said;
}

/* Bound and plan of one set of devices; *plan stays NULL where nothing fits. */
static cairn_err
plan_for(const struct cairn_problem *problem, const struct cairn_stop *stop,
         struct cairn_answer_plan *out)
{
    struct watched_stop watched = {stop, false};
    const struct cairn_stop own = {is_over, &watched};
    struct cairn_fleet *fleet = NULL;
    cairn_err err;

    err = cairn_fleet_create(problem, &fleet);
    if (!err)
        err = cairn_bound_step_ms(fleet, &own, &out->bound_ms);
    if (!err && out->bound_ms < INFINITY)
        err = cairn_search(fleet, &out->bound_ms, &own, &out->plan, &out->step_ms, &out->complete);
    if (err == CAIRN_NOT_FOUND)
        err = CAIRN_OK;
    if (!err && !out->plan)
        err = cairn_infeasible_why(fleet, &out->infeasible);
    cairn_fleet_destroy(fleet);
    out->complete = out->complete && out->plan;
    out->cut_short = watched.said && !out->complete;
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

/* A plan that moves less is taken where it is this near to the best. */
#define NEARLY 1.005

/* Takes a plan instead of the answer's. */
static void
take(struct cairn_answer_plan *answer, struct cairn_plan *plan, double step_ms)
{
    cairn_plan_destroy(answer->plan);
    answer->plan = plan;
    answer->step_ms = step_ms;
}

/* Takes the running groups, divided again, unless the answer's plan moves less; owns the plan. */
static cairn_err
take_lighter(const struct cairn_problem *problem, struct cairn_answer_plan *answer,
             struct cairn_plan *redivided, double redivided_ms)
{
    struct cairn_migration best = {0}, own = {0};
    cairn_err err = cairn_migration_settle(problem, problem->current, answer->plan);

    if (!err)
        err = cairn_migration_settle(problem, problem->current, redivided);
    if (!err)
        err = cairn_migration_of(problem, problem->current, answer->plan, &best);
    if (!err)
        err = cairn_migration_of(problem, problem->current, redivided, &own);
    if (!err && own.moved_bytes <= best.moved_bytes)
        take(answer, redivided, redivided_ms);
    else
        cairn_plan_destroy(redivided);
    return err;
}

/* What the plan moves, and when that pays. */
static cairn_err
price_move(const struct cairn_problem *problem, struct cairn_answer_plan *answer)
{
    cairn_err err = cairn_migration_of(problem, problem->current, answer->plan, &answer->migration);

    answer->payback_steps = err ? 0
                                : cairn_migration_payback(answer->migration.migrate_ms,
                                                          answer->current_ms - answer->step_ms);
    return err;
}

/* Of what is nearly as fast as the answer's plan, takes what moves least: the plan that runs, its
 * stages with other numbers of micro-batches, its groups divided again; else lets alike groups of
 * the answer's plan keep what they hold. */
static cairn_err
prefer_near(const struct cairn_problem *problem, struct cairn_answer_plan *answer)
{
    const struct cairn_plan *current = problem->current;
    struct cairn_plan *shifted = NULL, *redivided = NULL;
    double near_ms = answer->step_ms * NEARLY, shifted_ms = INFINITY, redivided_ms = INFINITY;
    cairn_err err = cairn_migration_redivide(problem, current, &redivided, &redivided_ms);

    if (!err && answer->current_ms > near_ms)
        err = cairn_migration_shift(problem, current, &shifted, &shifted_ms);
    if (!err && redivided && answer->current_ms <= near_ms) {
        /* Keeping what runs costs nothing: the copy gets its layers and micro-batches back. */
        memcpy(redivided->pipelines, current->pipelines,
               current->pipeline_count * sizeof(*current->pipelines));
        memcpy(redivided->stages, current->stages, current->stage_count * sizeof(*current->stages));
        take(answer, redivided, answer->current_ms);
        redivided = NULL;
    } else if (!err && shifted && shifted_ms <= near_ms) {
        take(answer, shifted, shifted_ms);
        shifted = NULL;
    } else if (!err && redivided && redivided_ms <= near_ms) {
        err = take_lighter(problem, answer, redivided, redivided_ms);
        redivided = NULL;
    } else if (!err) {
        err = cairn_migration_settle(problem, current, answer->plan);
    }
    cairn_plan_destroy(shifted);
    cairn_plan_destroy(redivided);
    return err;
}

/* Looks at the plan from what runs now: what moves least among what is nearly as fast, and its
 * price. */
static cairn_err
migrate(const struct cairn_problem *problem, struct cairn_answer_plan *answer)
{
    struct cairn_fault fault;
    cairn_err err = cairn_plan_check(problem->current, problem, &fault);

    if (err == CAIRN_NOMEM)
        return err;
    if (!err)
        answer->current_ms = cairn_plan_step_ms(problem->current, problem);
    err = prefer_near(problem, answer);
    return err ? err : price_move(problem, answer);
}

/* Groups change places where the reduction is then off slow links. A plan that moves nothing stays:
 * its price is a move, and the time that slow links take is not known. */
static cairn_err
settle_links(const struct cairn_problem *problem, struct cairn_answer_plan *answer)
{
    cairn_err err = CAIRN_OK;

    if (!problem->current || answer->migration.moved_bytes > 0) {
        err = cairn_links_settle(problem, answer->plan);
        if (!err && problem->current)
            err = price_move(problem, answer);
    }
    return err ? err : cairn_links_slow_layers(problem, answer->plan, &answer->slow_layers);
}

/* What every answer must be: a legal plan that takes the time it says, and
 * a bound below that. */
static void
assert_sound(const struct cairn_problem *problem, const struct cairn_answer_plan *answer)
{
    const double rounding = 1 + 1e-6;
    struct cairn_fault fault;

    CAIRN_ASSERT(cairn_plan_check(answer->plan, problem, &fault) != CAIRN_INVAL);
    CAIRN_ASSERT(cairn_plan_step_ms(answer->plan, problem) <= answer->step_ms * rounding);
    CAIRN_ASSERT(answer->bound_ms <= answer->step_ms * rounding);
}

/* Whether a device is faster than a healthy one. */
static bool
is_faster(const struct cairn_problem *problem)
{
    for (uint32_t i = 0; i < problem->device_count; i++)
        if (problem->devices[i].rate > 0 && problem->devices[i].rate < 1)
            return true;
    return false;
}

cairn_err
cairn_answer_plan_best(const struct cairn_problem *problem, const struct cairn_stop *stop,
                       struct cairn_answer_plan *out)
{
    struct cairn_answer_plan answer = {0};
    cairn_err err = plan_for(problem, stop, &answer);

    answer.healthy_ms = answer.plan ? answer.step_ms : INFINITY;
    answer.current_ms = INFINITY;
    if (!err && answer.plan && problem->current)
        err = migrate(problem, &answer);
    if (!err && answer.plan && problem->slow_link_count > 0)
        err = settle_links(problem, &answer);
    if (!err && answer.plan)
        err = cairn_plan_schedule_ms(answer.plan, problem, &answer.schedule_ms);
    if (!err && answer.plan)
        assert_sound(problem, &answer);
    if (err)
        cairn_answer_plan_fini(&answer);
    else
        *out = answer;
    return err;
}

cairn_err
cairn_answer_plan_make(const struct cairn_problem *problem, const struct cairn_stop *stop,
                       const struct cairn_stop *stop_healthy, struct cairn_answer_plan *out)
{
    struct cairn_answer_plan answer = {0};
    cairn_err err;

    err = cairn_answer_plan_best(problem, stop, &answer);
    if (!err && answer.plan && !is_healthy(problem)) {
        err = plan_healthy(problem, stop_healthy, &answer.healthy_ms);
        /* What slow devices do, healthy devices do as well: a search that was cut short may not
         * have seen it. */
        if (answer.healthy_ms > answer.step_ms && !is_faster(problem))
            answer.healthy_ms = answer.step_ms;
    }
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
