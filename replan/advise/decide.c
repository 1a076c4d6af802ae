/* replan/advise/decide.c - whether rates have changed, and whether it is worth to act. */
#include "replan/advise/decide.h"

#include <math.h>
#include <stdlib.h>

enum {
    ROUNDS = CAIRN_DECIDER_ROUNDS,
    QUIET_STEPS = 2000, /* after an action, until another one is as cheap as the first was */
    PATIENCE_MAX = 64
};
#define CHANGED                                                                                    \
    0.1 /* of a rate: below that it is noise. Five rounds in a row that scatter by 3 % leave it once
         * in 10^17 */
#define NEARLY 1.02 /* actions that lead to steps this near to the best are as good */

struct device {
    double last[ROUNDS]; /* a ring */
    uint32_t count;      /* rounds measured; the next goes to count % ROUNDS */
};

struct cairn_decider {
    struct device *devices; /* [device_count] */
    double *settled;        /* [device_count] */
    uint32_t device_count;
    double lost_ms[CAIRN_REPLAN_COUNT]; /* by not having taken the action */
    double patience;                    /* times the cost, before acting */
    uint64_t steps_since_action;
    bool has_acted;
    uint32_t late_steps; /* of the last action */
};

cairn_err
cairn_decider_create(uint32_t device_count, struct cairn_decider **out)
{
    struct cairn_decider *decider = calloc(1, sizeof(*decider));

    if (!decider)
        return CAIRN_NOMEM;
    decider->device_count = device_count;
    decider->patience = 1;
    decider->devices = calloc((size_t)device_count + 1, sizeof(*decider->devices));
    decider->settled = calloc((size_t)device_count + 1, sizeof(*decider->settled));
    if (!decider->devices || !decider->settled) {
        cairn_decider_destroy(decider);
        return CAIRN_NOMEM;
    }
    for (uint32_t i = 0; i < device_count; i++)
        decider->settled[i] = 1;
    *out = decider;
    return CAIRN_OK;
}

void
cairn_decider_destroy(struct cairn_decider *decider)
{
    if (!decider)
        return;
    free(decider->devices);
    free(decider->settled);
    free(decider);
}

const double *
cairn_decider_rates(const struct cairn_decider *decider)
{
    return decider->settled;
}

static double
median_of(const struct device *device)
{
    double sorted[ROUNDS] = {0};

    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t at = i;

        for (; at > 0 && sorted[at - 1] > device->last[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = device->last[i];
    }
    return sorted[ROUNDS / 2];
}

/* Whether all rounds are above, or all below, what is near to a rate. */
static bool
have_left(const struct device *device, double settled)
{
    uint32_t above = 0, below = 0;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        above += device->last[i] > settled * (1 + CHANGED);
        below += device->last[i] < settled * (1 - CHANGED);
    }
    return above == ROUNDS || below == ROUNDS;
}

/* The rate that a device is settled at after another round. The first of the rounds may have been
 * slow in part: hence the median. */
static double
settle(struct device *device, double settled, double rate)
{
    if (isnan(rate) || rate < 0)
        return settled;
    if (rate <= 0) { /* dead; one that comes back is measured again */
        device->count = 0;
        return 0;
    }
    device->last[device->count % ROUNDS] = rate;
    if (++device->count == 2 * ROUNDS)
        device->count = ROUNDS; /* the ring's place stays, and it does not overflow */
    return device->count >= ROUNDS && have_left(device, settled) ? median_of(device) : settled;
}

bool
cairn_decider_measured(struct cairn_decider *decider, const double *rates)
{
    bool changed = false;

    for (uint32_t i = 0; i < decider->device_count; i++) {
        double settled = settle(&decider->devices[i], decider->settled[i], rates[i]);

        changed = changed || settled > decider->settled[i] || settled < decider->settled[i];
        decider->settled[i] = settled;
    }
    return changed;
}

/* The cheapest of the actions that lead to nearly the best step. */
static enum cairn_replan_action
cheapest(const struct cairn_offer *offers, const bool *considered)
{
    enum cairn_replan_action best = CAIRN_REPLAN_NONE;
    double least_ms = INFINITY;

    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++)
        if (considered[i] && offers[i].step_ms < least_ms)
            least_ms = offers[i].step_ms;
    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++)
        if (considered[i] && offers[i].step_ms <= least_ms * NEARLY &&
            (best == CAIRN_REPLAN_NONE || offers[i].cost_ms < offers[best].cost_ms))
            best = (enum cairn_replan_action)i;
    return best;
}

/* Flickering devices: each action soon after another doubles what has to be lost before the next;
 * quiet takes it back. */
static void
count_action(struct cairn_decider *decider)
{
    if (decider->has_acted && decider->steps_since_action < QUIET_STEPS &&
        decider->patience < PATIENCE_MAX)
        decider->patience *= 2;
    decider->has_acted = true;
    decider->steps_since_action = 0;
    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++)
        decider->lost_ms[i] = 0;
}

uint32_t
cairn_decider_late_steps(const struct cairn_decider *decider)
{
    return decider->late_steps;
}

/* What has to be lost before an action. What costs nothing by itself costs a step: it has to reach
 * all ranks, and is undone as often as it is done. */
static double
threshold_ms(const struct cairn_decider *decider, const struct cairn_offer *offer)
{
    return (offer->cost_ms + offer->step_ms) * decider->patience;
}

/* Whole steps whose loss came on top of the threshold; 0 where nothing could go on. */
static uint32_t
count_late(const struct cairn_decider *decider, double current_ms, const struct cairn_offer *offer,
           enum cairn_replan_action action)
{
    double over_ms = decider->lost_ms[action] - threshold_ms(decider, offer);
    double steps = floor(over_ms / (current_ms - offer->step_ms));

    return steps < UINT32_MAX ? (uint32_t)steps : 0;
}

enum cairn_replan_action
cairn_decider_weigh(struct cairn_decider *decider, uint32_t steps, double current_ms,
                    const struct cairn_offer *offers)
{
    bool considered[CAIRN_REPLAN_COUNT] = {false};
    enum cairn_replan_action action;

    decider->steps_since_action += steps;
    for (; decider->steps_since_action >= QUIET_STEPS && decider->patience > 1;
         decider->patience /= 2)
        decider->steps_since_action -= QUIET_STEPS;
    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++) {
        double gained_ms = current_ms - offers[i].step_ms;

        if (!(offers[i].step_ms < INFINITY) || !(offers[i].cost_ms < INFINITY))
            continue;
        if (!(gained_ms > CAIRN_DECIDER_WORTH_WHILE * offers[i].step_ms)) {
            decider->lost_ms[i] = 0; /* what was lost before is over */
            continue;
        }
        decider->lost_ms[i] += steps * gained_ms; /* INFINITY where nothing can go on */
        considered[i] = decider->lost_ms[i] >= threshold_ms(decider, &offers[i]);
    }
    action = cheapest(offers, considered);
    if (action == CAIRN_REPLAN_NONE)
        return action;
    decider->late_steps = count_late(decider, current_ms, &offers[action], action);
    count_action(decider);
    return action;
}
