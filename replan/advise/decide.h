/*
 * replan/advise/decide.h - when to act on devices that became slow, fast again, or died.
 *
 * Two questions, apart. Has a rate changed? Measured rates scatter, so a device keeps the rate that
 * it is planned with until several rounds in a row have clearly left it. Is a change worth its
 * price? Renting skis, one buys them when the rent paid has come to their price: what staying costs
 * is added up step by step, for each action that would help, and an action is taken once that has
 * come to its cost. No rule that cannot see the future is sure to lose less: at most twice what the
 * best would have lost. Devices that flicker raise that price for a while, each time to the double.
 *
 * Pure: rounds and steps come from the caller, time is what it says.
 */
#ifndef CAIRN_REPLAN_ADVISE_DECIDE_H
#define CAIRN_REPLAN_ADVISE_DECIDE_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    CAIRN_DECIDER_ROUNDS = 5
}; /* in a row that must have left a rate before it counts as
                                    * changed */

/* What can be done, the cheapest kind first. */
enum cairn_replan_action {
    CAIRN_REPLAN_MICROBATCHES, /* fewer for a slow pipeline: nothing moves */
    CAIRN_REPLAN_LAYERS,       /* fewer for a slow stage */
    CAIRN_REPLAN_GROUPS,       /* other groups and pipelines, devices left out */
    CAIRN_REPLAN_RESTART,      /* from the last checkpoint, with other devices */
    CAIRN_REPLAN_COUNT,
    CAIRN_REPLAN_NONE = CAIRN_REPLAN_COUNT
};

/* What an action leads to. */
struct cairn_offer {
    double step_ms; /* INFINITY: it cannot be done */
    double cost_ms; /* training stands still for that long */
};

/* Of a step: what gains less is nothing to act for. */
#define CAIRN_DECIDER_WORTH_WHILE 0.01

struct cairn_decider;

/* For devices by index, all of them healthy so far. CAIRN_NOMEM. The caller ends *out. */
CAIRN_MUST_CHECK cairn_err cairn_decider_create(uint32_t device_count, struct cairn_decider **out);
void cairn_decider_destroy(struct cairn_decider *decider); /* NULL is allowed */

/*
 * Takes what one round measured: rates[device_count], 1 healthy, 2 twice as slow, 0 dead (at once),
 * NAN not measured this time. True where a settled rate has changed: the caller then makes new
 * offers from cairn_decider_rates.
 */
bool cairn_decider_measured(struct cairn_decider *decider, const double *rates);

/* The settled rates [device_count]; 0: dead. Valid until the decider ends. */
const double *cairn_decider_rates(const struct cairn_decider *decider);

/*
 * Takes that `steps` steps were made at the present settled rates, each of current_ms (INFINITY:
 * the plan that runs cannot go on), while the actions would have led to offers[CAIRN_REPLAN_COUNT].
 * Returns the action to take now, or CAIRN_REPLAN_NONE. An action that was returned counts as
 * taken.
 */
enum cairn_replan_action cairn_decider_weigh(struct cairn_decider *decider, uint32_t steps,
                                             double current_ms, const struct cairn_offer *offers);

/* How many of the steps until the last action were made after its loss had come to its cost. */
uint32_t cairn_decider_late_steps(const struct cairn_decider *decider);

#endif
