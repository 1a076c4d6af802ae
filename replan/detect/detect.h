/*
 * replan/detect/detect.h - the detector: fed one record after the other, it says who is slow, who
 * hangs, and why.
 *
 * Pure: no clock, no I/O, no threads; the same records give the same verdicts. Records of one rank
 * come in that rank's order, those of different ranks in any. Clocks are never compared between
 * ranks.
 *
 * A step is analysed when every rank of the job has gone past it, or when some rank is
 * steps_in_flight_max ahead, and then forgotten. Memory: 2.2 KiB per rank and 16 bytes per
 * operation that it does in a step; 0.8 KiB per channel (a communicator and operation, or a pair of
 * ranks) and 12 bytes per operation in a step; 16 bytes per operation of the steps in flight. Of
 * records without steps see replan/trace/period.h.
 */
#ifndef CAIRN_REPLAN_DETECT_DETECT_H
#define CAIRN_REPLAN_DETECT_DETECT_H

#include "replan/trace/intake.h"
#include "replan/trace/load.h"
#include "replan/trace/record.h"
#include "replan/trace/topology.h"
#include "replan/detect/verdict.h"

enum { CAIRN_RECENT_STEPS = 12 };

struct cairn_detector;

struct cairn_detector_summary {
    uint64_t records;   /* operations */
    uint64_t ignored;   /* that came after their step was over */
    uint32_t steps;     /* analysed */
    uint32_t last_step; /* the newest of them */
    uint32_t ranks_seen;
    double period_ms;   /* median time of the last steps; 0 where unknown */
    double recent_ms;   /* the same of the last CAIRN_RECENT_STEPS */
    bool is_calibrated; /* each rank's normal is known */
};

/* Makes a detector for a job; the topology is borrowed until cairn_detector_destroy. A
 * steps_in_flight_max of 0 stands for no limit. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_detector_create(const struct cairn_topology *topology,
                                                 uint32_t steps_in_flight_max,
                                                 struct cairn_detector **out);
void cairn_detector_destroy(struct cairn_detector *detector); /* NULL is allowed */

/* Takes a record (its rank and communicator are the topology's). CAIRN_NOMEM: the record may be
 * lost, the detector is whole. */
CAIRN_MUST_CHECK cairn_err cairn_detector_feed(struct cairn_detector *detector,
                                               const struct cairn_record *record);

/*
 * The same for records that were reduced elsewhere: a rank's whole step, which is taken over in
 * every case, and where it stands. A detector takes either records or these. CAIRN_NOMEM: the step
 * is lost.
 */
struct cairn_standing {
    uint64_t life_ns;              /* the last sign of life, on the rank's clock as the next two */
    uint64_t end_ns;               /* the last end of an operation */
    const struct cairn_open *open; /* [open_count], at most CAIRN_INTAKE_OPEN */
    uint32_t open_count;
    uint32_t step;
    bool is_stopped, is_gone; /* its process is: it counts as in no operation */
};
CAIRN_MUST_CHECK cairn_err cairn_detector_take_step(struct cairn_detector *detector, uint32_t rank,
                                                    struct cairn_rank_step *summary,
                                                    uint64_t end_ns);
void cairn_detector_take_standing(struct cairn_detector *detector, uint32_t rank,
                                  const struct cairn_standing *standing);

/*
 * What an earlier run of this job on the same devices has shown of a rank: ln of the ns that it
 * normally computes per unit of work, and whether it was slow at the end. A rank that was slow is
 * not taken to be normal as it is then. Before the first step.
 */
struct cairn_earlier {
    double normal; /* NaN: it reports no work, or there were too few steps */
    bool was_slow;
};
void cairn_detector_recall(struct cairn_detector *detector, uint32_t rank,
                           const struct cairn_earlier *earlier);
/* The same of this run, by now. */
struct cairn_earlier cairn_detector_earlier(const struct cairn_detector *detector, uint32_t rank);
/* Whether a rank that was slow was compared with the normal that it had before. */
bool cairn_detector_has_recalled(const struct cairn_detector *detector, uint32_t rank);

/* A rank that sends nothing (any more) is not waited for, until one of its steps comes. */
void cairn_detector_leave_out(struct cairn_detector *detector, uint32_t rank);

/* Says what hangs as of what was fed so far, and ends the verdicts of a hang that is over.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_detector_check_hangs(struct cairn_detector *detector);

/* Analyses what is still in flight and looks for hangs; nothing may be fed afterwards.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_detector_finish(struct cairn_detector *detector);

/* What a rank computed in the last steps in which it was compared, 16 at most. */
void cairn_detector_load(const struct cairn_detector *detector, uint32_t rank,
                         struct cairn_load *out);

/* The verdicts so far, those that ended included; borrowed until the next call. */
const struct cairn_verdicts *cairn_detector_verdicts(const struct cairn_detector *detector);
void cairn_detector_summarize(const struct cairn_detector *detector,
                              struct cairn_detector_summary *out);

#endif
