/*
 * replan/trace/period.h - the steps of a rank whose records name none, from the sequence of its
 * operations.
 *
 * The first records are kept back until the sequence has repeated three times. The shortest
 * distance at which it repeats, for rare operations as for frequent operations, is a step; or
 * several times that, if only then its durations repeat too. Steps then end with the last operation
 * that is rarest in the sequence, counted by its sequence number where it has one, so that a lost
 * record does not move them. Steps are numbered from 0.
 */
#ifndef CAIRN_REPLAN_TRACE_PERIOD_H
#define CAIRN_REPLAN_TRACE_PERIOD_H

#include "replan/trace/record.h"

#include "cairn/err.h"

/* The micro-batches of a step repeat too: enough records that its end is among them. All ranks of a
 * job together keep at most CAIRN_PERIOD_RECORDS_TOTAL (2 GiB), but four times the least each. */
enum {
    CAIRN_PERIOD_RECORDS_MIN = 512,
    CAIRN_PERIOD_RECORDS_MAX = 8192,
    CAIRN_PERIOD_RECORDS_TOTAL = 1 << 25
};

struct cairn_period {
    struct cairn_record *kept;
    uint32_t kept_count, tried_count;
    uint32_t kept_max;
    uint32_t period;       /* operations of a step; 0 while unknown */
    uint64_t anchor;       /* the operation that ends a step */
    uint32_t anchor_count; /* how many there are in a step */
    uint64_t anchor_seq;   /* of its first */
    uint64_t anchors;      /* seen so far, where it has no number */
    bool anchor_numbered;
    uint32_t step;
};

/* Makes periods[rank_count] for the ranks of a job. NULL: no memory. */
struct cairn_period *cairn_periods_create(uint32_t rank_count);
void cairn_period_fini(struct cairn_period *period);

/* Keeps a record back while the period is unknown. *known once it is: the kept records, this one
 * included, are then to be numbered and used in order. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_period_keep(struct cairn_period *period,
                                             const struct cairn_record *record, bool *known);
/* At the end of the records: looks once more, and takes what is kept as one step if nothing
 * repeats. */
void cairn_period_settle(struct cairn_period *period);
/* Lets go of the kept records. */
void cairn_period_release(struct cairn_period *period);
/* Gives a record its step. Once the period is known; in order. */
void cairn_period_number(struct cairn_period *period, struct cairn_record *record);

#endif
