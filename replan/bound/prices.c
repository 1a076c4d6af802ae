/*
 * replan/bound/prices.c - prices checked on all possible pipelines.
 *
 * A viable group's price exceeds x - 1 by its excess. A pipeline does at most 1 + the sum of x - 1
 * over its viable groups. So if it does more than it costs, their excesses sum to less than 1. Few
 * choices of groups are like that. All are examined, each with the least price of slow groups that
 * it needs. Only the largest whole number of micro-batches within that limit can exceed the price.
 */
#include "replan/bound/pricer.h"

#include "replan/fleet/cost.h"

#include <math.h>
#include <stdlib.h>

#define UNNOTICED 1e-6 /* micro-batches over the price that the margin of *times covers */
#define EXCESS_LEAST (1.0 / CAIRN_PRICER_VIABLE_MAX)
#define BAD 1.02 /* ratio of micro-batches to cost of some pipeline */
#define RANGE_PRECISION 1e-3
enum {
    MICROBATCHES_MAX = 64, /* of a pipeline; with more the prices suffice */
    LOOK = 20,             /* the work of examining a choice of groups; of listing it: 1 */
    WORK_MAX = 1200000,    /* of one search for cheap pipelines */
    WORK_ALL = 12000000,   /* of one fleet's prices */
    WORK_ASK = 200,        /* after which `stop` is asked: ten choices, each may fill a table */
    WORK_BAD = 40000       /* after which the search ends if prices are BAD */
};

static int
ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return a < b ? -1 : a > b;
}

/* Ranges of rates, each up to `factor` times its least; the fastest devices, which most are, have
 * one for themselves. How many there are, as far as there is room; one more: there are too many. */
static uint32_t
cut_rates(struct cairn_prices *prices, const double *rates, double factor)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < prices->fleet->device_count; i++) {
        double most = count == 0 ? -1 : prices->rates[count - 1] * (count > 1 ? factor : 1);

        if (rates[i] <= most)
            continue;
        if (count == CAIRN_PRICES_RATES_MAX)
            return count + 1;
        prices->rates[count++] = rates[i];
    }
    return count;
}

/* All rates that there are; of too many, ranges that are as narrow as may be. */
static cairn_err
list_rates(struct cairn_prices *prices)
{
    const struct cairn_fleet *fleet = prices->fleet;
    double *rates = calloc((size_t)fleet->device_count + 1, sizeof(*rates));
    double low = 1, high = 1e12; /* the widest factor there can be */

    if (!rates)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < fleet->device_count; i++)
        rates[i] = fleet->problem->devices[fleet->order[i]].rate;
    qsort(rates, fleet->device_count, sizeof(*rates), ascending);
    prices->rate_count = cut_rates(prices, rates, low);
    if (prices->rate_count > CAIRN_PRICES_RATES_MAX) {
        while (high > low * (1 + RANGE_PRECISION)) {
            double middle = sqrt(low * high);

            if (cut_rates(prices, rates, middle) > CAIRN_PRICES_RATES_MAX)
                low = middle;
            else
                high = middle;
        }
        prices->rate_count = cut_rates(prices, rates, high);
    }
    free(rates);
    return CAIRN_OK;
}

cairn_err
cairn_prices_create(const struct cairn_fleet *fleet, struct cairn_prices **out)
{
    const struct cairn_problem *problem = fleet->problem;
    struct cairn_prices *prices;
    cairn_err err;

    if (problem->layers > CAIRN_PRICER_LAYERS_MAX)
        return CAIRN_NOT_FOUND;
    prices = calloc(1, sizeof(*prices));
    if (!prices)
        return CAIRN_NOMEM;
    prices->fleet = fleet;
    prices->work_layers = cairn_problem_work_layers(problem);
    prices->work_left = WORK_ALL;
    err = list_rates(prices);
    if (err) {
        cairn_prices_destroy(prices);
        return err;
    }
    for (uint32_t size = 0; size < problem->size_count; size++)
        for (uint32_t i = 0; i < prices->rate_count; i++) {
            uint64_t bytes =
                cairn_cost_group_bytes(problem, problem->sizes[size].size, fleet->memory_bytes_max);

            prices->kinds[prices->kind_count++] = (struct cairn_kind){
                .size_index = size,
                .layer_ms = problem->layer_ms * problem->sizes[size].cost * prices->rates[i],
                .bytes = (double)bytes,
                .layers = cairn_cost_layers_max(problem, bytes, 1)};
        }
    *out = prices;
    return CAIRN_OK;
}

void
cairn_prices_destroy(struct cairn_prices *prices)
{
    free(prices);
}

uint32_t
cairn_prices_kind_count(const struct cairn_prices *prices)
{
    return prices->kind_count;
}

uint32_t
cairn_prices_kind_of(const struct cairn_prices *prices, uint32_t size_index, double rate)
{
    uint32_t range = 0;

    while (range + 1 < prices->rate_count && prices->rates[range + 1] <= rate)
        range++;
    return size_index * prices->rate_count + range;
}

double
cairn_prices_alone(const struct cairn_prices *prices, uint32_t kind)
{
    return prices->kinds[kind].layers > 0 ? prices->kinds[kind].alone : 0;
}

void
cairn_prices_set_time(struct cairn_prices *prices, double step_ms)
{
    prices->step_ms = step_ms * (1 + CAIRN_PRICER_MARGIN);
    prices->slow_ms = INFINITY;
    for (uint32_t i = 0; i < prices->kind_count; i++) {
        struct cairn_kind *kind = &prices->kinds[i];

        kind->alone = prices->step_ms / (prices->work_layers * kind->layer_ms);
        if (kind->layers > 0 && kind->alone < 1)
            prices->slow_ms = fmin(prices->slow_ms, kind->layer_ms);
    }
}

double
cairn_prices_least(const struct cairn_prices *prices, uint32_t kind)
{
    const struct cairn_kind *own = &prices->kinds[kind];
    double more = own->alone - 1;

    if (own->layers == 0 || more < 0)
        return 0;
    return more + fmax(EXCESS_LEAST, more / (MICROBATCHES_MAX - 1));
}

bool
cairn_prices_same_size(const struct cairn_prices *prices, uint32_t left, uint32_t right)
{
    return prices->kinds[left].size_index == prices->kinds[right].size_index;
}

void
cairn_prices_set(struct cairn_prices *prices, const double *price)
{
    prices->table_count = 0;
    prices->viable_count = 0;
    for (uint32_t i = prices->kind_count; i-- > 0;) {
        struct cairn_kind *kind = &prices->kinds[i];
        uint32_t at = prices->viable_count;

        kind->price = fmax(cairn_prices_least(prices, i), price[i]);
        if (i + 1 < prices->kind_count && cairn_prices_same_size(prices, i, i + 1))
            kind->price = fmax(kind->price, prices->kinds[i + 1].price);
        if (kind->layers == 0)
            kind->price = 0;
        if (kind->layers == 0 || kind->alone < 1)
            continue;
        kind->excess = kind->price - (kind->alone - 1);
        for (; at > 0 && prices->kinds[prices->viable[at - 1]].excess > kind->excess; at--)
            prices->viable[at] = prices->viable[at - 1];
        prices->viable[at] = i;
        prices->viable_count++;
    }
}

double
cairn_prices_get(const struct cairn_prices *prices, uint32_t kind)
{
    return prices->kinds[kind].price;
}

double
cairn_prices_of_group(const void *context, uint32_t size_index, double rate, uint64_t memory_bytes)
{
    const struct cairn_prices *prices = context;

    (void)memory_bytes; /* every group counts with the largest memory */
    return prices->kinds[cairn_prices_kind_of(prices, size_index, rate)].price;
}

/* ---- all pipelines ---- */

/* Keeps a pipeline among the worst. */
static void
keep(struct cairn_prices *prices, struct cairn_priced_pipeline *found, uint32_t *found_count,
     const uint32_t *chosen, uint32_t chosen_count, double price, uint32_t left)
{
    struct cairn_priced_pipeline own = {.microbatches = prices->microbatches, .price = price};
    uint32_t at = *found_count;

    if (at == CAIRN_PRICES_FOUND_MAX) {
        at--;
        if (found[at].microbatches * price >= own.microbatches * found[at].price)
            return;
    } else {
        ++*found_count;
    }
    for (uint32_t i = 0; i < chosen_count; i++)
        own.count[chosen[i]]++;
    cairn_pricer_count_slow(prices, left, own.count);
    for (; at > 0 && found[at - 1].microbatches * price < own.microbatches * found[at - 1].price;
         at--)
        found[at] = found[at - 1];
    found[at] = own;
}

bool
cairn_prices_find_cheap(struct cairn_prices *prices, const struct cairn_stop *stop,
                        struct cairn_priced_pipeline *found, uint32_t *found_count, double *times)
{
    uint32_t at[CAIRN_PRICER_VIABLE_MAX], chosen[CAIRN_PRICER_VIABLE_MAX], depth = 0, next = 0,
                                                                           work = 0, asked = 0;
    double excess[CAIRN_PRICER_VIABLE_MAX + 1] = {0}, price[CAIRN_PRICER_VIABLE_MAX + 1] = {0};
    bool done = false;

    *found_count = 0;
    *times = 1;
    for (;;) {
        double slow_price = INFINITY;
        uint32_t left = 0;

        if (next == prices->viable_count || depth == CAIRN_PRICER_VIABLE_MAX ||
            excess[depth] + prices->kinds[prices->viable[next]].excess >= 1) {
            /* and all after it */
            done = depth == 0;
            if (done)
                break;
            depth--;
            next = at[depth] + 1;
            continue;
        }
        if (++work >= WORK_MAX || work >= prices->work_left)
            break;
        if (work - asked >= WORK_ASK) {
            asked = work;
            if (stop->over(stop->context))
                break;
        }
        at[depth] = next;
        chosen[depth] = prices->viable[next];
        excess[depth + 1] = excess[depth] + prices->kinds[chosen[depth]].excess;
        price[depth + 1] = price[depth] + prices->kinds[chosen[depth]].price;
        depth++;
        prices->microbatches =
            fmin(floor((1 + price[depth] - excess[depth]) * (1 + CAIRN_PRICER_MARGIN) +
                       CAIRN_PRICER_MARGIN),
                 prices->fleet->problem->microbatches);
        if (price[depth] >= prices->microbatches - UNNOTICED)
            continue;
        work += LOOK;
        if (!cairn_pricer_help(prices, chosen, depth,
                               prices->microbatches - UNNOTICED - price[depth], &slow_price, &left))
            break;
        if (price[depth] + slow_price < prices->microbatches - UNNOTICED)
            keep(prices, found, found_count, chosen, depth, price[depth] + slow_price, left);
        if (work >= WORK_BAD && *found_count == CAIRN_PRICES_FOUND_MAX &&
            found[0].microbatches > BAD * found[0].price)
            break;
    }
    prices->work_left -= work < prices->work_left ? work : prices->work_left;
    if (!done)
        return false;
    if (*found_count > 0)
        *times = found[0].microbatches / found[0].price;
    *times *= 1 + 2 * UNNOTICED;
    return true;
}
