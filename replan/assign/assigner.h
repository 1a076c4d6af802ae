/*
 * replan/assign/assigner.h - what the parts of assigning sequences share: the sequences, the most
 * costly first. For replan/assign/ alone.
 */
#ifndef CAIRN_REPLAN_ASSIGN_ASSIGNER_H
#define CAIRN_REPLAN_ASSIGN_ASSIGNER_H

#include "replan/assign/assign.h"

struct cairn_sequence {
    double cost_ms;  /* at time_scale 1; never more for fewer tokens */
    uint64_t tokens; /* that a pipeline must take: all, or the most that any takes where it is
                      * cut */
    uint32_t index;  /* in the problem */
};

/* The problem's sequences, the most costly first, so the longest first as well. NULL: out of
 * memory. The caller frees them. */
struct cairn_sequence *cairn_sequences_sorted(const struct cairn_assign_problem *problem);

/* A time that no assignment beats; sequences as above, at least one. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_assign_bound_ms(const struct cairn_assign_problem *problem,
                                                 const struct cairn_sequence *sequences,
                                                 double *bound_ms);

/* How a place is chosen among the pipelines with room, for one sequence after the other. */
enum cairn_fill_rule {
    CAIRN_FILL_TIGHT,    /* the one that is fullest then: for when a few long sequences decide */
    CAIRN_FILL_TOGETHER, /* in the order of loss the first that has a longer one already, else the
                          * first */
    CAIRN_FILL_CHEAP,    /* a long one where it loses the least part of what is left, the others as
                          * above */
    CAIRN_FILL_EARLY     /* the one that then ends first, for any time to keep */
};

struct cairn_filling; /* working memory */
CAIRN_MUST_CHECK cairn_err cairn_filling_create(const struct cairn_assign_problem *problem,
                                                const struct cairn_sequence *sequences,
                                                struct cairn_filling **out); /* both are borrowed */
void cairn_filling_destroy(struct cairn_filling *filling);                   /* NULL is allowed */

/* Whether all sequences find a place within step_ms: the first `placed` where
 * chosen[sequence_count] has them already, the others by the rule. `chosen` then says where. */
bool cairn_fill(struct cairn_filling *filling, double step_ms, uint32_t placed,
                enum cairn_fill_rule rule, uint32_t *chosen);

enum cairn_slots_answer {
    CAIRN_SLOTS_PLACED,
    CAIRN_SLOTS_NONE,   /* there is no way: no assignment keeps the time */
    CAIRN_SLOTS_UNKNOWN /* the work allowed for did not suffice, or a sequence is longer than it was
                         * counted */
};
enum { CAIRN_SLOTS_SEQUENCES_MAX = 48, CAIRN_SLOTS_KINDS_MAX = 16 };

struct cairn_slots; /* working memory */
CAIRN_MUST_CHECK cairn_err cairn_slots_create(const struct cairn_assign_problem *problem,
                                              const struct cairn_sequence *sequences,
                                              struct cairn_slots **out); /* both are borrowed */
void cairn_slots_destroy(struct cairn_slots *slots);                     /* NULL is allowed */

/* Cuts the `count` longest sequences (1 to CAIRN_SLOTS_SEQUENCES_MAX, and not more than there are)
 * into at most `kinds` (1 to CAIRN_SLOTS_KINDS_MAX). False: some cost nothing, and cannot be. */
bool cairn_slots_cut(struct cairn_slots *slots, uint32_t count, uint32_t kinds);

/*
 * Whether the sequences that were cut have places that keep step_ms, each counted with the least of
 * its kind, so that all pipelines together have time left for the work of the others. Takes at most
 * about `*work` steps, which it lessens by what it took. places[count]: the pipelines, where it
 * found a way; they take step_ms or somewhat more.
 */
enum cairn_slots_answer cairn_slots_place(struct cairn_slots *slots, double step_ms, uint64_t *work,
                                          uint32_t *places);

enum { CAIRN_TRADE_PIPELINES_MAX = 512 }; /* with more nothing is traded */

/* Moves and trades the first `count` sequences between pipelines until the one that takes longest
 * takes no less. How many trades there were. */
uint32_t cairn_trade(const struct cairn_assign_problem *problem,
                     const struct cairn_sequence *sequences, uint32_t count, uint32_t *places);

#endif
