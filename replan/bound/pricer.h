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
    CAIRN_PRICER_MAINS_MAX = 24,   /* of a pipeline: excesses sum to less than 1 */
    CAIRN_PRICER_TABLES_MAX = 1024 /* of helpers: numbers of micro-batches, and fastest mains */
};

struct cairn_kind {
    uint32_t size_index;
    double layer_ms;
    double alone;    /* x */
    double bytes;    /* of the group */
    uint32_t layers; /* that it holds at most, with one micro-batch in flight; 0: such groups are in
                      * no pipeline */
    double price;
    double excess; /* of a main */
};

/* For pipelines of so many micro-batches with that fastest main: the least price of helpers that
 * hold n layers, n = 0 … layers. */
struct cairn_helpers {
    uint32_t microbatches;
    double fastest_ms;
    double price[CAIRN_PRICER_LAYERS_MAX + 1];
    uint16_t kind[CAIRN_PRICER_LAYERS_MAX + 1]; /* one of them */
    uint32_t most[CAIRN_PRICES_KINDS_MAX];
};

/* Equal mains of the pipeline that is looked at. */
struct cairn_mains {
    const struct cairn_kind *kind;
    uint32_t count;
    double vocabulary; /* layers' worth, on each */
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
    uint32_t mains[CAIRN_PRICES_KINDS_MAX]; /* the least excess first */
    uint32_t main_count;
    double helper_ms; /* per layer of the fastest helper; INFINITY: there are none */
    uint32_t table_count;
    struct cairn_helpers tables[CAIRN_PRICER_TABLES_MAX];
    /* of the pipeline that is looked at, the fastest first */
    struct cairn_mains parts[CAIRN_PRICER_MAINS_MAX + 1];
    uint32_t part_count;
    uint32_t holds; /* what its mains hold together, at most */
    double microbatches;
    uint32_t work_left;
};

/*
 * The least price of helpers with which the mains that were chosen (kinds, equal kinds beside each
 * other) do prices->microbatches; INFINITY from `enough` on. *left: the layers on helpers. False
 * where there was too much to look at.
 */
bool cairn_pricer_help(struct cairn_prices *prices, const uint32_t *chosen, uint32_t chosen_count,
                       double enough, double *price, uint32_t *left);

/* Counts the helpers that are meant by that, by kind. */
void cairn_pricer_count_helpers(struct cairn_prices *prices, uint32_t left, uint16_t *count);

#endif
