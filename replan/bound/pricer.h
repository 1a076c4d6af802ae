/*
 * replan/bound/pricer.h - the parts of prices.h that its two files share: prices of kinds of
 * groups, and one pipeline of them.
 */
#ifndef CAIRN_REPLAN_BOUND_PRICER_H
#define CAIRN_REPLAN_BOUND_PRICER_H

#include "replan/bound/prices.h"

/* Sums are compared with a margin for rounding: it lowers the bound, never raises it. */
#define CAIRN_PRICER_MARGIN 1e-9
enum {
    CAIRN_PRICER_LAYERS_MAX = 512,
    CAIRN_PRICER_VIABLE_MAX = 24,  /* of a pipeline: excesses sum to less than 1 */
    CAIRN_PRICER_TABLES_MAX = 1024 /* by micro-batches and fastest viable group */
};

struct cairn_kind {
    uint32_t size_index;
    double layer_ms;
    double alone; /* x */
    double bytes; /* of the group */
    uint32_t
        layers; /* that it holds at most, with one micro-batch in flight; 0: it is never used */
    double price;
    double excess; /* of the price over x - 1, if x >= 1 */
};

/* For pipelines of so many micro-batches with that fastest viable group: the least price of slow
 * groups that hold n layers, n = 0 … layers. */
struct cairn_slow {
    uint32_t microbatches;
    double fastest_ms;
    double price[CAIRN_PRICER_LAYERS_MAX + 1];
    uint16_t kind[CAIRN_PRICER_LAYERS_MAX + 1]; /* one of them */
    uint32_t most[CAIRN_PRICES_KINDS_MAX];
};

/* Equal viable groups of the pipeline under examination. */
struct cairn_viable {
    const struct cairn_kind *kind;
    uint32_t count;
    double vocabulary; /* on each, in layers */
    uint32_t layers;   /* of each, at most, at the present longest stage */
};

struct cairn_prices {
    const struct cairn_fleet *fleet;
    double work_layers;
    double step_ms;                       /* with the margin */
    double rates[CAIRN_PRICES_RATES_MAX]; /* the least of each range, ascending */
    uint32_t rate_count;
    uint32_t kind_count;
    struct cairn_kind kinds[CAIRN_PRICES_KINDS_MAX];
    uint32_t viable[CAIRN_PRICES_KINDS_MAX]; /* the least excess first */
    uint32_t viable_count;
    double slow_ms; /* per layer of the fastest slow group; INFINITY: there are none */
    uint32_t table_count;
    struct cairn_slow tables[CAIRN_PRICER_TABLES_MAX];
    /* of the pipeline under examination, the fastest first */
    struct cairn_viable parts[CAIRN_PRICER_VIABLE_MAX + 1];
    uint32_t part_count;
    uint32_t holds; /* what its viable groups hold together, at most */
    double microbatches;
    uint32_t work_left;
};

/*
 * The least price of slow groups with which the chosen viable groups (kinds, equal kinds adjacent)
 * do prices->microbatches; INFINITY from `enough` on. *left: the layers on slow groups. False: too
 * much work.
 */
bool cairn_pricer_help(struct cairn_prices *prices, const uint32_t *chosen, uint32_t chosen_count,
                       double enough, double *price, uint32_t *left);

/* Counts the slow groups of that price, by kind. */
void cairn_pricer_count_slow(struct cairn_prices *prices, uint32_t left, uint16_t *count);

#endif
