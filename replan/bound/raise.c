/*
 * replan/bound/raise.c - prices on groups that refuse as much time as they can.
 *
 * For a time, a linear program over the pipelines and the groupings of nodes that are known has
 * prices for kinds of groups, and those tell which pipelines and groupings it lacks (column
 * generation). Whether its prices are good decides how high the bound gets, never whether it holds:
 * that is checked on all pipelines (prices.h), and on all groupings (replan/fleet/group.h).
 */
#include "replan/bound/raise.h"

#include "replan/bound/prices.h"
#include "replan/bound/lp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN 1e-9
#define PRECISION 2e-4 /* of the time, that the bound is left below what might be proved */
#define NEARNESS 0.5   /* of prices to the best that are known: the program's own leap about */
#define UNEVEN                                                                                     \
    1e-7 /* of a group, that each kind is given, each another part, so that steps of the program
          * lead on */
enum {
    ROUNDS_MAX = 60,  /* for one time */
    STEPS_MAX = 2000, /* of the linear program, in a round */
    POOL_MAX = 4000,
    ROWS_MAX = 700
};

/* A pipeline that keeps a refused time keeps every later one too. */
struct pool {
    struct cairn_priced_pipeline *pipelines;
    uint32_t count;
};

struct raise {
    const struct cairn_fleet *fleet;
    const struct cairn_stop *stop;
    struct cairn_prices *prices;
    struct pool pool;
    struct cairn_lp *lp;
    double *rhs; /* right-hand sides: groups formed of each kind, nodes of each sort */
    uint32_t row_count;
    uint32_t *node_row; /* [node_count]: the row of a sort, for its first node; 0: other nodes */
    struct cairn_group_place *places;
    struct cairn_priced_pipeline *found;
    double price[CAIRN_PRICES_KINDS_MAX]; /* the best valid prices for this time */
    double best;                          /* the price of the best groupings at these */
};

static cairn_err
add_pipeline(struct raise *raise, const struct cairn_priced_pipeline *pipeline)
{
    struct cairn_lp_entry entries[CAIRN_PRICES_KINDS_MAX];
    uint32_t count = 0;

    for (uint32_t i = 0; i < cairn_prices_kind_count(raise->prices); i++)
        if (pipeline->count[i] > 0)
            entries[count++] = (struct cairn_lp_entry){i, pipeline->count[i]};
    return cairn_lp_add(raise->lp, pipeline->microbatches, entries, count);
}

/* The groupings of nodes of the highest gain. */
static cairn_err
add_groupings(struct raise *raise, uint32_t place_count)
{
    const struct cairn_fleet *fleet = raise->fleet;
    const struct cairn_problem *problem = fleet->problem;
    uint32_t kinds = cairn_prices_kind_count(raise->prices), at = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t node = 0; !err && node < fleet->node_count; node++) {
        struct cairn_lp_entry entries[CAIRN_PRICES_KINDS_MAX + 1];
        double formed[CAIRN_PRICES_KINDS_MAX] = {0};
        uint32_t count = 0;

        for (; at < place_count && raise->places[at].first < fleet->node_first[node + 1]; at++) {
            const struct cairn_group_place *place = &raise->places[at];
            uint32_t size_index = 0;

            while (problem->sizes[size_index].size != place->size)
                size_index++;
            formed[cairn_prices_kind_of(
                raise->prices, size_index,
                problem->devices[fleet->order[place->first + place->size - 1]].rate)]++;
        }
        if (raise->node_row[node] == 0)
            continue;
        for (uint32_t i = 0; i < kinds; i++)
            if (formed[i] > 0)
                entries[count++] = (struct cairn_lp_entry){i, -formed[i]};
        entries[count++] = (struct cairn_lp_entry){raise->node_row[node], 1};
        if (count > 1)
            err = cairn_lp_add(raise->lp, 0, entries, count);
    }
    return err;
}

/* What prices must be for any pipelines. */
static cairn_err
add_rules(struct raise *raise)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < cairn_prices_kind_count(raise->prices); i++) {
        const struct cairn_lp_entry one = {i, 1}, slower[] = {{i - 1, 1}, {i, -1}};

        if (cairn_prices_least(raise->prices, i) > 0)
            err = cairn_lp_add(raise->lp, cairn_prices_least(raise->prices, i), &one, 1);
        if (!err && i > 0 && cairn_prices_same_size(raise->prices, i - 1, i))
            err = cairn_lp_add(raise->lp, 0, slower, 2);
    }
    return err;
}

/* The kinds of a node's devices, as a number. Where two nodes had the same by chance, prices would
 * be worse, and hold all the same. */
static uint64_t
name_of(const struct raise *raise, uint32_t node)
{
    const struct cairn_fleet *fleet = raise->fleet;
    uint64_t name = UINT64_C(14695981039346656037);

    for (uint32_t i = fleet->node_first[node]; i < fleet->node_first[node + 1]; i++)
        name = (name ^ cairn_prices_kind_of(raise->prices, 0,
                                            fleet->problem->devices[fleet->order[i]].rate)) *
               UINT64_C(1099511628211);
    return name;
}

/* Makes a row for each kind and each sort of nodes. CAIRN_NOT_FOUND: too many for the time. */
static cairn_err
list_rows(struct raise *raise)
{
    const struct cairn_fleet *fleet = raise->fleet;
    uint32_t kinds = cairn_prices_kind_count(raise->prices);
    uint64_t names[ROWS_MAX] = {0};

    for (uint32_t i = 0; i < kinds; i++)
        raise->rhs[i] = UNEVEN * (1 + fmod(i * 0.6180339887, 1));
    raise->row_count = kinds;
    for (uint32_t node = 0; node < fleet->node_count; node++) {
        uint64_t name = name_of(raise, node);
        uint32_t row = kinds;

        while (row < raise->row_count && names[row] != name)
            row++;
        if (row == ROWS_MAX)
            return CAIRN_NOT_FOUND;
        if (row == raise->row_count) {
            raise->node_row[node] = row;
            names[raise->row_count++] = name;
        }
        raise->rhs[row]++;
    }
    return CAIRN_OK;
}

/* A program for a time, with the pipelines of the pool. */
static cairn_err
begin(struct raise *raise)
{
    cairn_err err;

    cairn_lp_destroy(raise->lp);
    raise->lp = NULL;
    err = cairn_lp_create(raise->rhs, raise->row_count, &raise->lp);
    if (!err)
        err = add_rules(raise);
    for (uint32_t i = 0; !err && i < raise->pool.count; i++)
        err = add_pipeline(raise, &raise->pool.pipelines[i]);
    return err;
}

/* Looks at prices between those of the program and the best that are known. *refused: they say that
 * the time cannot be kept. *on: they were better than those that are known, or pipelines were
 * found. */
static cairn_err
look(struct raise *raise, double needed, double nearness, bool *refused, bool *on)
{
    uint32_t kinds = cairn_prices_kind_count(raise->prices), place_count = 0, found_count = 0;
    uint32_t all = (1u << raise->fleet->problem->size_count) - 1;
    double price[CAIRN_PRICES_KINDS_MAX], total, times;
    cairn_err err;

    for (uint32_t i = 0; i < kinds; i++)
        price[i] = nearness * raise->price[i] + (1 - nearness) * cairn_lp_price(raise->lp, i);
    cairn_prices_set(raise->prices, price);
    err = cairn_group_best(raise->fleet, all, cairn_prices_of_group, raise->prices, &total,
                           raise->places, &place_count);
    if (!err)
        err = add_groupings(raise, place_count);
    if (err)
        return err;
    if (!cairn_prices_find_cheap(raise->prices, raise->stop, raise->found, &found_count, &times))
        times = INFINITY;
    *refused = total * times < needed;
    *on = found_count > 0 || total * times < raise->best;
    if (total * times < raise->best) {
        raise->best = total * times;
        for (uint32_t i = 0; i < kinds; i++)
            raise->price[i] = times * cairn_prices_get(raise->prices, i);
    }
    for (uint32_t i = 0; !err && i < found_count && raise->pool.count < POOL_MAX; i++) {
        raise->pool.pipelines[raise->pool.count++] = raise->found[i];
        err = add_pipeline(raise, &raise->found[i]);
    }
    return err;
}

/* Whether prices are found that say that no plan is as fast. */
static cairn_err
is_infeasible(struct raise *raise, double step_ms, bool *out)
{
    double needed = raise->fleet->problem->microbatches * (1 - MARGIN);
    bool on = true;
    cairn_err err;

    *out = false;
    cairn_prices_set_time(raise->prices, step_ms);
    raise->best = INFINITY;
    for (uint32_t i = 0; i < cairn_prices_kind_count(raise->prices); i++)
        raise->price[i] = floor(cairn_prices_alone(raise->prices, i));
    err = begin(raise);
    for (uint32_t i = 0; !err && on && i < ROUNDS_MAX && !raise->stop->over(raise->stop->context);
         i++) {
        /* pipelines that are known do as much: no prices refuse that */
        if (cairn_lp_solve(raise->lp, STEPS_MAX, raise->stop) >= needed)
            break;
        err = look(raise, needed, i == 0 ? 1 : NEARNESS, out, &on);
        if (!err && !on)
            err = look(raise, needed, 0, out, &on);
        on = on && !*out && raise->pool.count < POOL_MAX;
    }
    return err;
}

/* Halves what is between the bound and the plan. */
static cairn_err
search(struct raise *raise, double plan_ms, double *bound_ms)
{
    double high_ms = plan_ms;
    cairn_err err = CAIRN_OK;

    while (!err && high_ms > *bound_ms * (1 + PRECISION) &&
           !raise->stop->over(raise->stop->context)) {
        double middle_ms = *bound_ms + (high_ms - *bound_ms) / 2;
        uint32_t known = raise->pool.count;
        bool infeasible;

        err = is_infeasible(raise, middle_ms, &infeasible);
        if (infeasible) {
            *bound_ms = middle_ms;
        } else {
            high_ms = middle_ms;
            raise->pool.count = known;
        }
    }
    return err;
}

cairn_err
cairn_bound_raise(const struct cairn_fleet *fleet, double plan_ms, const struct cairn_stop *stop,
                  double *bound_ms)
{
    struct raise *raise;
    cairn_err err;

    if (plan_ms <= *bound_ms * (1 + PRECISION) || stop->over(stop->context))
        return CAIRN_OK;
    raise = calloc(1, sizeof(*raise));
    if (!raise)
        return CAIRN_NOMEM;
    raise->fleet = fleet;
    raise->stop = stop;
    raise->pool.pipelines = calloc(POOL_MAX, sizeof(*raise->pool.pipelines));
    raise->rhs = calloc(ROWS_MAX, sizeof(*raise->rhs));
    raise->node_row = calloc((size_t)fleet->node_count + 1, sizeof(*raise->node_row));
    raise->places = calloc((size_t)fleet->device_count + 1, sizeof(*raise->places));
    raise->found = calloc(CAIRN_PRICES_FOUND_MAX, sizeof(*raise->found));
    err = raise->pool.pipelines && raise->rhs && raise->node_row && raise->places && raise->found
              ? CAIRN_OK
              : CAIRN_NOMEM;
    if (!err)
        err = cairn_prices_create(fleet, &raise->prices);
    if (!err)
        err = list_rows(raise);
    if (!err)
        err = search(raise, plan_ms, bound_ms);
    cairn_lp_destroy(raise->lp);
    cairn_prices_destroy(raise->prices);
    free(raise->found);
    free(raise->places);
    free(raise->node_row);
    free(raise->rhs);
    free(raise->pool.pipelines);
    free(raise);
    return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
}
