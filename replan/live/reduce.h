/*
 * replan/live/reduce.h - one rank's timing records, as its rings give them, become reports
 * (replan/live/report.h).
 *
 * What a ring holds was written by a trainer and is believed no more than that: records of another
 * rank, with times to come, with unknown operations or steps that cannot be, are counted and left
 * out, and so is what is beyond the bounds below.
 *
 * An operation counts as open only where its end would be seen. On a device that is where the
 * record of its start there has come; on the host where its lane has shown an end before. So the
 * records of a source that never sees an end (or now and then looks at the device) neither hang a
 * job nor make its steps wrong: of a step in which an end is missing, and of the one after it,
 * computation is unknown. It is so too where some operations of a communicator are seen to end and
 * others never are, or sends and receives never are: the rank may have waited in those, and must
 * not be called slow for it. A record without a step belongs to the last step that any of the
 * rank's rings named.
 *
 * Operations that name no step are counted all the same (replan/live/tally.h), so that a hang is
 * found even if NCCL's plugin alone writes.
 *
 * Pure: no clock, no I/O. About 180 KiB per rank, the recording of the last steps, and 16 bytes per
 * operation of the step under way.
 */
#ifndef CAIRN_REPLAN_LIVE_REDUCE_H
#define CAIRN_REPLAN_LIVE_REDUCE_H

#include "cairn/timing.h"
#include "replan/live/report.h"

enum {
    CAIRN_REDUCE_COMMS_MAX = 256,
    CAIRN_REDUCE_PAIRS_MAX = 1024,
    CAIRN_REDUCE_STEP_RECORDS_MAX = 1 << 15 /* ends of operations in one step; the rest is lost */
};

struct cairn_reduce;

typedef void cairn_report_fn(void *context, const struct cairn_report *report);

struct cairn_reduce_options {
    uint32_t rank, world;
    uint64_t attachment;
    uint64_t recording_bytes; /* for the last steps (replan/live/recording.h); 0: none are kept */
    cairn_report_fn *emit;    /* the report is borrowed for the call */
    void *context;
};

struct cairn_reduce_counts {
    uint64_t records; /* taken */
    uint64_t refused; /* that cannot be, or are another rank's */
    uint64_t lost;    /* dropped by a full ring, or beyond the bounds */
    uint32_t step;    /* the last that was named, 0: none */
};

/* CAIRN_NOMEM; CAIRN_INVAL: the recording has no room. The caller ends *out with
 * cairn_reduce_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_reduce_create(const struct cairn_reduce_options *options,
                                               struct cairn_reduce **out);
void cairn_reduce_destroy(struct cairn_reduce *reduce); /* NULL is allowed */

/* Takes a record that was read at now_ns, on the clock of the records. What it completes is
 * emitted. CAIRN_NOMEM: it is lost. */
CAIRN_MUST_CHECK cairn_err cairn_reduce_take(struct cairn_reduce *reduce,
                                             const struct cairn_timing_record *record,
                                             uint64_t now_ns);

/* Records were lost: the step under way says nothing of computation. */
void cairn_reduce_lose(struct cairn_reduce *reduce, uint64_t count);

/* Records from before this moment were read by somebody else: what is counted from here on is not
 * all. */
void cairn_reduce_begin_late(struct cairn_reduce *reduce);

/* Says what the rank waits in, when that is worth saying: it has been quiet for two seconds, its
 * process does not run, or the opposite was reported before; and when it is busy and was not
 * reported for two seconds, since it is in a long step and nobody else could tell that from an end;
 * so it is where this reader began late and the rank has done nothing since. */
void cairn_reduce_stand(struct cairn_reduce *reduce, enum cairn_presence presence, uint64_t now_ns);

/* The rank's process ends, or has ended, without having announced it: standings tell once it is
 * gone. */
void cairn_reduce_die(struct cairn_reduce *reduce);

/* Emits MEMBER of every communicator, and forgets the reports of the rank's standing: for somebody
 * who has heard nothing yet. */
void cairn_reduce_announce(struct cairn_reduce *reduce);

struct cairn_reduce_counts cairn_reduce_count(const struct cairn_reduce *reduce);

/*
 * Packs the rank's last `steps` steps up to `until` (0: all), and what it is in, as
 * replan/live/recording.h has it. now_ns is a sign of life, on the clock of the records.
 */
void cairn_reduce_pack_recording(const struct cairn_reduce *reduce, uint32_t steps, uint32_t until,
                                 enum cairn_presence presence, uint64_t now_ns,
                                 struct cairn_writer *writer);

#endif
