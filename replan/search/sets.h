/*
 * replan/search/sets.h - sets of groups that a search begins with: those of the highest gain for
 * several aims, at several times near the bound. For replan/search/ alone.
 */
#ifndef CAIRN_REPLAN_SEARCH_SETS_H
#define CAIRN_REPLAN_SEARCH_SETS_H

#include "replan/fleet/group.h"
#include "replan/search/pipelines.h"

struct cairn_unit_set {
    struct cairn_unit *units;
    uint32_t unit_count;
    double speed; /* sum of 1 / layer_ms */
};

enum {
    CAIRN_UNIT_SETS_MAX = 640
}; /* 14 for each size of groups and order of devices, and as many
                                     * again of one pipeline */

struct cairn_unit_sets {
    const struct cairn_fleet *fleet; /* these five are given, and borrowed: what the next sets are
                                      * found in may be another fleet of the same devices */
    const struct cairn_problem *problem;
    const struct cairn_stop *stop;
    double bound_ms;
    double work_layers;
    struct cairn_unit_set sets[CAIRN_UNIT_SETS_MAX]; /* those to try first are first */
    uint32_t count;
};

/* Adds the sets of a fleet. With one to go on with, the time limit counts. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_unit_sets_find(struct cairn_unit_sets *sets);

/* Sorts a set, names kinds, and takes it in unless it is empty or known. Owns its units. */
void cairn_unit_sets_take(struct cairn_unit_sets *sets, struct cairn_unit_set set);

void cairn_unit_sets_fini(struct cairn_unit_sets *sets);

/* For qsort: units, the fastest first, of those that are as fast those with most memory. */
int cairn_unit_by_speed_and_memory(const void *left, const void *right);

#endif
