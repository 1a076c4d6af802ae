/*
 * replan/assigner.h - what the parts of assigning sequences share: the sequences, the most costly first.
 * For replan/assign*.c alone.
 */
#ifndef CAIRN_REPLAN_ASSIGNER_H
#define CAIRN_REPLAN_ASSIGNER_H

#include "replan/assign.h"

struct cairn_sequence {
    double cost_ms; /* at time_scale 1; never more for fewer tokens */
    uint64_t tokens; /* that a pipeline must take: all, or the most that any takes where it is cut */
    uint32_t index; /* in the problem */
};

/* The problem's sequences, the most costly first, so the longest first as well. NULL: out of memory. The caller frees them. */
struct cairn_sequence *cairn_sequences_sorted(const struct cairn_assign_problem *problem);

/* A time that no assignment beats; sequences as above, at least one. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_assign_bound_ms(const struct cairn_assign_problem *problem,
                                                 const struct cairn_sequence *sequences,
                                                 double *bound_ms);

/* Raises a bound by the numbers of long sequences that there is room for, until it is enough. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_assign_raise_bound(const struct cairn_assign_problem *problem, const struct cairn_sequence *sequences, double enough_ms,
                              double *bound_ms);

/* How a place is chosen among the pipelines with room, for one sequence after the other. */
enum cairn_fill_rule {
    CAIRN_FILL_TIGHT,    /* the one that is fullest then: for when a few long sequences decide */
    CAIRN_FILL_TOGETHER, /* in the order of loss the first that has a longer one already, else the first */
    CAIRN_FILL_CHEAP,    /* a long one where it loses the least part of what is left, the others as above */
    CAIRN_FILL_EARLY     /* the one that then ends first, whatever the time to keep */
};

struct cairn_filling; /* working memory */
CAIRN_MUST_CHECK cairn_err cairn_filling_create(const struct cairn_assign_problem *problem,
                                                const struct cairn_sequence *sequences,
                                                struct cairn_filling **out); /* both are borrowed */
void cairn_filling_destroy(struct cairn_filling *filling); /* NULL is allowed */

/* Whether all sequences find a place within step_ms: the first `placed` where chosen[sequence_count] has them already, the others by
 * the rule. `chosen` then says where. */
bool cairn_fill(struct cairn_filling *filling, double step_ms, uint32_t placed, enum cairn_fill_rule rule, uint32_t *chosen);

enum cairn_long_answer {
    CAIRN_LONG_PLACED,
    CAIRN_LONG_NONE,   /* there is no way */
    CAIRN_LONG_UNKNOWN /* the work allowed for did not suffice */
};
enum { CAIRN_LONG_MAX = 36 };

struct cairn_long; /* working memory */
CAIRN_MUST_CHECK cairn_err cairn_long_create(const struct cairn_assign_problem *problem,
                                             const struct cairn_sequence *sequences,
                                             struct cairn_long **out); /* both are borrowed */
void cairn_long_destroy(struct cairn_long *longest); /* NULL is allowed */

/*
 * Whether the `count` longest sequences (at most CAIRN_LONG_MAX, and not more than there are) have places that keep
 * step_ms, such that all pipelines together have time left for the work of the others. Tries all ways, at most
 * `*work` steps of them, which it lessens by what it took. places[count]: the pipelines, where it found a way.
 */
enum cairn_long_answer cairn_long_place(struct cairn_long *longest, uint32_t count, double step_ms,
                                        uint64_t *work, uint32_t *places);

#endif
