/*
 * replan/trace/intake.h - what one rank reports, reduced to one summary per step, on that rank's
 * clock alone.
 *
 * A summary holds the time that the rank computed in the step and the duration of each operation.
 * Computation is the sum of the gaps before operations: from the last moment at which something is
 * known to have begun or ended up to the start of the operation. An operation that another one
 * starts inside of (a send that goes on by itself, gradients reduced behind the backward pass) did
 * not keep the rank from computing, and hides no gap; replan/trace/stream.h finds what such a rank
 * computes. Whether a send keeps its rank
 * waiting depends on the job, so both sums are kept: with sends that do, and with sends that do
 * not.
 */
#ifndef CAIRN_REPLAN_TRACE_INTAKE_H
#define CAIRN_REPLAN_TRACE_INTAKE_H

#include "replan/trace/gaps.h"
#include "replan/trace/record.h"
#include "replan/trace/stream.h"

#include <stddef.h>

enum {
    CAIRN_INTAKE_OPEN = 8,
    CAIRN_INTAKE_PLACES = 64, /* operations of a step whose gaps are compared with the last step */
    CAIRN_INTAKE_BEHIND = 8,  /* lanes whose operations go on behind computation */
    CAIRN_INTAKE_RECENT = 4,
    CAIRN_SENDS_ASIDE = 2
};

/* An operation: what it was in (cairn_lane_*), its number there, and how long it took. */
struct cairn_sample {
    uint32_t lane;
    uint32_t seq; /* low 32 bits; CAIRN_SEQ_NONE */
    float duration_ns;
    float bytes;
    uint32_t end_us; /* low 32 bits, on the rank's clock; 0 where unknown */
};
#define CAIRN_SEQ_NONE UINT32_MAX

/* Lanes: a communicator and operation, or a direction and peer. */
#define CAIRN_LANE_PAIR 0x80000000u
#define CAIRN_LANE_SEND 0x40000000u
#define CAIRN_LANE_PEER 0x3fffffffu

/* Sums of gaps: where sends keep their rank waiting, and where they go on by themselves. */
enum { CAIRN_GAPS_SENDS_WAIT, CAIRN_GAPS_SENDS_ASIDE, CAIRN_GAPS };

/* A rank's step. */
struct cairn_rank_step {
    uint32_t step;
    uint32_t sample_count;
    double compute_ns[CAIRN_GAPS]; /* NaN where it cannot be known: the first step seen */
    /* By how much gaps differ from the step before, in the same place of the step, where the two
     * readings do: the wrong one is the noisier. 0 where unknown. */
    double jumps_ns[CAIRN_GAPS];
    /* The most that may have been computed: with the time in operations that go on behind
     * computation. 0 where unknown. */
    double most_ns;
    double first_ns;  /* the gap before the first operation: what no operation hides */
    double hidden_ns; /* time in operations that the rank may have computed in up to the next start,
                       * where that came behind a gap: if more is computed, it shows */
    double gap_jumps_ns, interval_jumps_ns; /* struct cairn_intake's */
    bool all_behind;                        /* all operations seem to go on behind computation */
    bool by_stream;   /* a computing stream has told compute_ns (replan/trace/stream.h) */
    bool sends_aside; /* operations began inside of sends: nobody waits in one */
    bool is_measured; /* the rank has recorded its computation: no gaps are in it */
    double span_ns;   /* from the end of the step before to this one's */
    double work;      /* 0 where unknown */
    struct cairn_sample samples[];
};

struct cairn_open {
    uint64_t seq, start_ns;
    uint32_t comm, peer, step;
    uint8_t op;
};

/* The gaps of the step under way, by one reading. */
struct cairn_reading {
    struct cairn_gaps gaps;
    double compute_ns;
    double jumps_ns;
    float before_ns[CAIRN_INTAKE_PLACES]; /* each operation's gap, in the last step */
};

struct cairn_sent {
    uint64_t start_ns, end_ns;
};

struct cairn_recent {
    uint64_t start_ns, end_ns;
    uint32_t lane;
};

struct cairn_intake {
    struct cairn_reading readings[CAIRN_GAPS];
    struct cairn_stream *stream; /* NULL until operations overlap */
    struct cairn_gaps most;
    double most_ns, first_ns, hidden_ns; /* struct cairn_rank_step's */
    uint64_t seen_ns; /* until when gaps have shown all that is computed, or the rank waited */
    struct cairn_recent recent[CAIRN_INTAKE_RECENT]; /* the last operations but sends */
    uint32_t recent_count;
    uint32_t behind[CAIRN_INTAKE_BEHIND], behind_seen[CAIRN_INTAKE_BEHIND]; /* lanes, how often */
    uint32_t behind_count;
    double gap_jumps_ns, interval_jumps_ns; /* by what gaps, and intervals between starts, differ
                                             * from those in the same place of the step before */
    float interval_ns[CAIRN_INTAKE_PLACES];
    uint64_t start_ns;     /* the last */
    uint32_t steps_judged; /* that these are of */
    bool all_behind;
    uint64_t end_ns;      /* the last end */
    uint64_t step_end_ns; /* the last end of the step before; 0: none */
    uint64_t span_ns;     /* of the last whole step */
    uint64_t life_ns;     /* the last sign of life, of any kind */
    uint64_t life_marks;  /* signs of life that were not operations */
    struct cairn_open open[CAIRN_INTAKE_OPEN];
    uint32_t open_count;
    uint32_t step;
    bool is_stopped, is_gone; /* the rank's process is known to be */
    bool any;
    uint64_t records, ignored;
    uint64_t send_start_ns, send_end_ns; /* the last send */
    uint32_t sends_aside; /* operations that began inside a send: nobody waits in one */
    struct cairn_sent last_send, last_send_before; /* the last to end; before this step */
    double work;
    double told_ns; /* where is_told: the step's computation, as a record has it */
    bool is_told;
    struct cairn_sample *samples;
    uint32_t sample_count, sample_room;
    uint32_t places_known; /* operations of the step before, as far as their gaps are kept */
};

void cairn_intake_fini(struct cairn_intake *intake);

/*
 * Takes a record whose step is known. When it begins a new step, the summary of the one before is
 * handed over in *done (the caller frees it), else *done is NULL. A record of a step that is over
 * is counted and left out. CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_intake_take(struct cairn_intake *intake,
                                             const struct cairn_record *record,
                                             struct cairn_rank_step **done);

/* Hands over the step under way, NULL without any. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_intake_flush(struct cairn_intake *intake,
                                              struct cairn_rank_step **done);

#endif
