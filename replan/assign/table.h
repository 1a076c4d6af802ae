/*
 * replan/assign/table.h - how many long sequences pipelines have room for, by sorts of cost.
 *
 * The longest sequences are cut into two to four sorts by their cost; each sequence counts with the
 * least of its sort. A table has, for at least so many of each of the first sorts, the most of the
 * last sort that some pipelines hold beside them. docs/PLANNER.md has the proof. For replan/assign/
 * alone.
 */
#ifndef CAIRN_REPLAN_ASSIGN_TABLE_H
#define CAIRN_REPLAN_ASSIGN_TABLE_H

#include "replan/assign/assigner.h"

enum {
    CAIRN_SORTS_MAX = 4,
    CAIRN_TABLE_COUNT_MAX = 60,    /* sequences of one sort */
    CAIRN_TABLE_NO_ROOM = -64,     /* not even for the first sorts; below 0 with as many as there
                                    * can be more */
    CAIRN_TABLE_STATES_MAX = 4096, /* numbers of all sorts but the last */
    CAIRN_TABLE_OPTIONS_MAX = 256  /* of one pipeline; with more, which is allowed, there is no
                                    * result */
};

/* Where the sequences are cut: sort i ends before sequence at[i]. */
struct cairn_cuts {
    uint32_t at[CAIRN_SORTS_MAX];
    uint32_t count;
};

/* So many of the first sorts in one pipeline, and at most so many of the last beside them. */
struct cairn_option {
    uint32_t here[CAIRN_SORTS_MAX - 1];
    int8_t last;
};

/* The sorts that some cuts make. Of all but the last: dimensions of the table, which has one at
 * least of each. */
struct cairn_sorts {
    uint32_t count;
    double cost_ms[CAIRN_SORTS_MAX];  /* the least of each */
    uint64_t tokens[CAIRN_SORTS_MAX]; /* so too */
    uint32_t all[CAIRN_SORTS_MAX];
    uint32_t states;
};

struct cairn_table {
    struct cairn_option options[CAIRN_TABLE_OPTIONS_MAX];
};

struct cairn_sorts cairn_sorts_of(const struct cairn_sequence *sequences,
                                  const struct cairn_cuts *cuts);

/* Lists in table->options what a pipeline may hold within step_ms, only what nothing surpasses. How
 * many ways; 0: too many. */
uint32_t cairn_table_list(struct cairn_table *table, const struct cairn_sorts *sorts,
                          const struct cairn_assign_pipeline *own, double step_ms);

/* The table `to` of the pipelines of `from` and one more that holds what the first `option_count`
 * of table->options say. Both are [sorts->states]. */
void cairn_table_add(const struct cairn_table *table, const struct cairn_sorts *sorts,
                     uint32_t option_count, const int8_t *from, int8_t *to);

#endif
