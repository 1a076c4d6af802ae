/*
 * replan/bound/prices.h - prices of groups so that no pipeline within a time does more
 * micro-batches than its groups cost, checked on all possible pipelines: docs/PLANNER.md, (F).
 *
 * A kind of groups is a size and a range of rates; all count as the fastest of the kind. Groups
 * with x >= 1 (docs/PLANNER.md) are viable. The others are slow, and only hold layers.
 */
#ifndef CAIRN_REPLAN_BOUND_PRICES_H
#define CAIRN_REPLAN_BOUND_PRICES_H

#include "replan/fleet/group.h"
#include "replan/fleet/stop.h"

#include <stdbool.h>

enum {
    CAIRN_PRICES_RATES_MAX = 10, /* ranges of rates */
    CAIRN_PRICES_KINDS_MAX = CAIRN_PRICES_RATES_MAX * CAIRN_PROBLEM_SIZES_MAX,
    CAIRN_PRICES_FOUND_MAX = 64
};

struct cairn_prices; /* for one fleet; one thread at a time */

/* A pipeline, as far as its price goes. */
struct cairn_priced_pipeline {
    double microbatches;
    double price;
    uint16_t count[CAIRN_PRICES_KINDS_MAX]; /* of groups */
};

/* The fleet is borrowed. CAIRN_NOMEM. CAIRN_NOT_FOUND: too many layers. */
CAIRN_MUST_CHECK cairn_err cairn_prices_create(const struct cairn_fleet *fleet,
                                               struct cairn_prices **out);
void cairn_prices_destroy(struct cairn_prices *prices); /* NULL is allowed */

uint32_t cairn_prices_kind_count(const struct cairn_prices *prices);
uint32_t cairn_prices_kind_of(const struct cairn_prices *prices, uint32_t size_index, double rate);

/* What a kind could do by itself in that time; 0: it holds no layer. */
double cairn_prices_alone(const struct cairn_prices *prices, uint32_t kind);

void cairn_prices_set_time(struct cairn_prices *prices, double step_ms);

/* The least price of a kind. Within a size, faster kinds come first and never cost less than slower
 * kinds. */
double cairn_prices_least(const struct cairn_prices *prices, uint32_t kind);
bool cairn_prices_same_size(const struct cairn_prices *prices, uint32_t left, uint32_t right);

/* Sets a price for each kind, raised to the least valid one. */
void cairn_prices_set(struct cairn_prices *prices, const double *price);
double cairn_prices_get(const struct cairn_prices *prices, uint32_t kind);

/*
 * Finds the worst pipelines that do more than they cost. *times: the largest ratio of micro-batches
 * to cost, at least 1; prices times that are valid. False: too much work, or `stop` ended it.
 */
bool cairn_prices_find_cheap(struct cairn_prices *prices, const struct cairn_stop *stop,
                             struct cairn_priced_pipeline *found, uint32_t *found_count,
                             double *times);

/* The price of a group, for cairn_group_best with the prices as its context. */
double cairn_prices_of_group(const void *prices, uint32_t size_index, double rate,
                             uint64_t memory_bytes);

#endif
