/*
 * agent/history/report.h - where a job's time went, and how often it should take snapshots. Pure.
 *
 * Time is cut into training and the rest, which is `down`: training is where any node's TRAINING
 * covers it. The steps that an earlier life of the job had done already are `redone`. The rest of
 * training is divided: waiting for snapshots, as much as the slowest node's ranks waited; waiting
 * for stragglers, while verdicts said so, 1 - 1 / rate; `productive`. So the five parts add up to
 * the wall time. Times of one node are its wall clock's: clocks that differ by d seconds misplace
 * at most d per life of the job.
 *
 * The best interval between snapshots is Daly's higher-order estimate (Future Generation Computer
 * Systems 22(3), 2006, equation 37), which refines Young's sqrt(2 C M) (Communications of the ACM
 * 17(9), 1974): C is what one snapshot makes training wait, M the training time between faults. A
 * generation that takes longer to protect than the interval is not taken, so that time is the least
 * interval.
 */
#ifndef CAIRN_AGENT_HISTORY_REPORT_H
#define CAIRN_AGENT_HISTORY_REPORT_H

#include "agent/history/merge.h"

struct history_report {
    uint64_t from_wall_ns, until_wall_ns; /* the same: nothing was trained */
    uint64_t productive_ns, redone_ns, snapshots_ns, stragglers_ns, down_ns;
    uint64_t steps; /* trained, redone steps included */
    uint64_t redone_steps;
    uint32_t lives;  /* of the job: uninterrupted training */
    uint32_t faults; /* lives that did not end in good order */
    bool is_running;
    uint64_t step_ns;    /* mean; 0: unknown, as the next four */
    uint64_t captures;   /* snapshots that the slowest node copied */
    uint64_t cost_ns;    /* of one to training */
    uint64_t protect_ns; /* mean, from the first copy to the commit */
    uint64_t between_faults_ns;
    bool is_bound;    /* no fault was seen: `between_faults_ns` is a lower bound */
    uint64_t best_ns; /* interval between snapshots; with best_steps 0: unknown */
    uint64_t best_steps;
};

/* Reports on the time from since_wall_ns (0: the first training) until now_wall_ns, or until the
 * job ended in good order. `merge` is that of the lists. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err history_report(const struct history_list *lists, uint32_t list_count,
                                          const struct history_merge *merge, uint64_t since_wall_ns,
                                          uint64_t now_wall_ns, struct history_report *out);

/* Daly's interval for a cost and a time between faults, both above 0. */
uint64_t history_best_interval_ns(uint64_t cost_ns, uint64_t between_faults_ns);

#endif
