/*
 * replan/live/tally.h - how many operations one rank has entered, by communicator and operation:
 * what tells who never came when a job stands still.
 *
 * Only operations of a source that numbers each operation of a communicator for itself are counted,
 * as NCCL's plugin does: of collectives the last number is the count, even if some were lost. Sends
 * and receives have no number and are counted here, per peer, so that their counts hold as long as
 * no record was lost. A number that is higher than what came can explain is not believed.
 *
 * Pure: times are those of the records. A plain value of fixed size; all of it zero is an empty
 * one.
 */
#ifndef CAIRN_REPLAN_LIVE_TALLY_H
#define CAIRN_REPLAN_LIVE_TALLY_H

#include "cairn/timing.h"
#include "replan/live/report.h"

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_TALLY_LANES_MAX = 256 }; /* beyond, the one that was used longest ago is forgotten */

struct cairn_tally_lane {
    uint64_t comm;                   /* 0: unused */
    uint64_t count, entered, before; /* the last number; entered here; what had been entered before
                                      * that */
    uint64_t used_ns;
    uint64_t running_seq, running_ns; /* the last that has begun on the device and not ended, 0:
                                       * none; since when */
    uint32_t peer;
    uint16_t op;
    bool is_stale; /* records were lost since it was last entered */
    bool is_anew;  /* a lane was forgotten before it: it may have been that */
    bool repeats;  /* numbers came again, as of a CUDA graph in NCCL up to 2.27: they do not count
                    * what is entered */
};

struct cairn_tally {
    struct cairn_tally_lane lanes[CAIRN_TALLY_LANES_MAX];
    uint64_t entered, lost;
    uint64_t first_ns, last_ns;        /* the first and the last record */
    uint64_t gap_ns[2], gaps_begin_ns; /* the longest time between records, in the present span of
                                         * time and the one before */
    bool is_late;                      /* what came before was read by somebody else */
    bool has_forgotten;                /* a lane */
};

/* Takes a record of an operation, of a communicator in which the rank's place is known. */
void cairn_tally_take(struct cairn_tally *tally, const struct cairn_timing_record *record);

/* Records of any operation may be missing. */
void cairn_tally_lose(struct cairn_tally *tally, uint64_t count);

/* Fills in what a report of counts says; its head is the caller's. */
void cairn_tally_fill(const struct cairn_tally *tally, struct cairn_report *report);

#endif
