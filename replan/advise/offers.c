/* replan/advise/offers.c - what each action would lead to. */
#include "replan/advise/offers.h"

#include <math.h>

/* Takes a plan as what an action leads to; the cost is that of moving state, and a pause. */
static cairn_err
offer(const struct cairn_problem *problem, enum cairn_replan_action action, struct cairn_plan *plan,
      double step_ms, double pause_ms, struct cairn_offers *out)
{
    struct cairn_migration migration = {0};
    cairn_err err = CAIRN_OK;

    if (!plan)
        return CAIRN_OK;
    out->plans[action] = plan;
    if (action != CAIRN_REPLAN_MICROBATCHES)
        err = cairn_migration_of(problem, problem->current, plan, &migration);
    /* Without links the time of a move is not known, and taken as nothing: the pause is
     * measured. */
    out->offers[action] = (struct cairn_offer){
        step_ms, pause_ms + (migration.migrate_ms > 0 ? migration.migrate_ms : 0)};
    return err;
}

static cairn_err
offer_groups(const struct cairn_problem *problem, const struct cairn_offer_costs *costs,
             const struct cairn_stop *stop, struct cairn_offers *out)
{
    struct cairn_answer_plan answer = {0};
    struct cairn_plan *plan;
    double step_ms;
    cairn_err err = cairn_answer_plan_best(problem, stop, &answer);

    if (err)
        return err;
    plan = answer.plan;
    step_ms = answer.step_ms;
    out->bound_ms = answer.bound_ms;
    answer.plan = NULL; /* it is the offer's */
    cairn_answer_plan_fini(&answer);
    if (plan && costs->restart_ms < INFINITY)
        out->offers[CAIRN_REPLAN_RESTART] = (struct cairn_offer){step_ms, costs->restart_ms};
    return offer(problem, CAIRN_REPLAN_GROUPS, plan, step_ms, costs->pause_ms, out);
}

cairn_err
cairn_offers_make(const struct cairn_problem *problem, const struct cairn_offer_costs *costs,
                  const struct cairn_stop *stop, struct cairn_offers *out)
{
    struct cairn_offers made = {.current_ms = INFINITY};
    struct cairn_plan *plan = NULL;
    struct cairn_fault fault;
    double step_ms;
    cairn_err err;

    if (!problem->current)
        return CAIRN_INVAL;
    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++)
        made.offers[i] = (struct cairn_offer){INFINITY, INFINITY};
    err = cairn_plan_check(problem->current, problem, &fault);
    if (err == CAIRN_NOMEM)
        return err;
    if (!err)
        made.current_ms = cairn_plan_step_ms(problem->current, problem);
    err = cairn_migration_shift(problem, problem->current, &plan, &step_ms);
    if (!err)
        err = offer(problem, CAIRN_REPLAN_MICROBATCHES, plan, step_ms, 0, &made);
    if (!err)
        err = cairn_migration_redivide(problem, problem->current, &plan, &step_ms);
    if (!err)
        err = offer(problem, CAIRN_REPLAN_LAYERS, plan, step_ms, costs->layers_ms, &made);
    if (!err && costs->is_layers_whole && made.plans[CAIRN_REPLAN_LAYERS])
        made.offers[CAIRN_REPLAN_LAYERS].cost_ms = costs->layers_ms;
    if (!err)
        err = offer_groups(problem, costs, stop, &made);
    if (err)
        cairn_offers_fini(&made);
    else
        *out = made;
    return err;
}

void
cairn_offers_fini(struct cairn_offers *offers)
{
    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++)
        cairn_plan_destroy(offers->plans[i]);
    *offers = (struct cairn_offers){0};
}
