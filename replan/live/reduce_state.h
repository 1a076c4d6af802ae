/*
 * replan/live/reduce_state.h - what the files of a rank's reduction share.
 *
 *   reduce.c         records in: which are believed, and what each of them says
 *   reduce_report.c  reports out: communicators, steps, standings, counts
 *   reduce_record.c  the last steps out: operations, as they were taken
 */
#ifndef CAIRN_REPLAN_LIVE_REDUCE_STATE_H
#define CAIRN_REPLAN_LIVE_REDUCE_STATE_H

#include "replan/live/recording.h"
#include "replan/live/reduce.h"
#include "replan/live/tally.h"

enum {
    REDUCE_COLLECTIVE_LANES = CAIRN_REDUCE_COMMS_MAX * 16,
    REDUCE_LANES = REDUCE_COLLECTIVE_LANES + 2 * CAIRN_REDUCE_PAIRS_MAX,
    REDUCE_WORK_STEPS = 4
};
_Static_assert(REDUCE_LANES <= UINT16_MAX, "a lane's number is short");

struct reduce_comm {
    uint64_t hash;
    uint32_t ranks;
    uint32_t place;
    bool shows_ends; /* of some operation */
};

struct reduce_pair {
    uint32_t comm;
    uint32_t peer;
    bool is_place;
};

/* What a rank has to compute in a step, and what it has recorded of doing so. */
struct reduce_work {
    uint32_t step;
    double amount;
    double compute_ns, units; /* 0: nothing was recorded; the amount is unknown */
};

/* What is known of a lane of operations. */
struct reduce_lane {
    uint32_t outstanding;            /* entered since the last end */
    uint32_t step_begun, step_ended; /* in the step under way */
    uint32_t next_begun;             /* in the one after it, which is empty yet */
    bool is_used, shows_ends, on_device;
};

struct cairn_reduce {
    struct cairn_reduce_options options;
    struct cairn_reduce_counts counts;
    struct cairn_intake intake;
    struct reduce_comm comms[CAIRN_REDUCE_COMMS_MAX];
    uint32_t comm_count;
    struct reduce_pair pairs[CAIRN_REDUCE_PAIRS_MAX];
    uint32_t pair_count;
    bool pairs_show_ends; /* some do */
    struct reduce_lane lanes[REDUCE_LANES];
    uint16_t used_lanes[REDUCE_LANES]; /* [used_count] those that a record has named */
    uint32_t used_count;
    bool lossy;               /* the step under way has lost records */
    bool done_lossy;          /* the last one that is over had */
    bool before_whole;        /* the step before it had not */
    uint64_t last_ns;         /* when something was last done */
    enum cairn_presence said; /* in the last standing, 0: none was worth it */
    bool has_said, has_taken; /* a report was made, a record taken, since it was last looked at what
                               * the rank does */
    uint64_t said_ns;         /* when that was seen of a report */
    uint64_t gone_ns;
    bool has_died;
    struct reduce_work work[REDUCE_WORK_STEPS]; /* by step modulo the size: threads may speak of
                                                 * several in turn */
    bool has_work;                              /* it was reported */
    struct cairn_tally tally;
    bool said_counts;                  /* nothing was taken since */
    struct cairn_recording *recording; /* NULL: no steps are kept */
    struct cairn_report report;        /* room to make one */
};

/* ---- reduce_report.c ---- */
/* Says that the rank takes part in a communicator, where it is known how many do. */
void reduce_emit_member(struct cairn_reduce *reduce, const struct reduce_comm *comm);
/* `known`: its computation can be told; end_ns is that of its last operation. */
void reduce_emit_step(struct cairn_reduce *reduce, const struct cairn_rank_step *done, bool known,
                      uint64_t end_ns);

/* ---- reduce_record.c ---- */
/* Keeps an operation that has ended, for the recording. */
void reduce_record(struct cairn_reduce *reduce, const struct cairn_record *record);

#endif
