/*
 * replan/live/report.h - what a node says of one of its ranks to the job's analyst: one report is a
 * value, and a run of bytes.
 *
 * Four kinds. MEMBER: the rank takes part in a communicator. STEP: what it did in a step
 * (replan/trace/intake.h), its operations by lane. STANDING: what it waits in, and how its process
 * fares. COUNTS: how many operations it has entered (replan/live/tally.h), sent when it falls
 * quiet, before the STANDING that tells it. Times are on the clock of the rank's node and are
 * compared with nothing but each other. Communicators go by their hashes, since no node knows all
 * of them.
 *
 * Packed by base/wire.h: u8 kind, u32 rank, u32 world, u64 attachment, then the kind's fields in
 * the order of the struct; doubles and floats as their bits, the two flags of a STEP in one byte.
 */
#ifndef CAIRN_REPLAN_LIVE_REPORT_H
#define CAIRN_REPLAN_LIVE_REPORT_H

#include "base/wire.h"
#include "replan/trace/intake.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    CAIRN_REPORT_LANES_MAX = 64,
    CAIRN_REPORT_LANE_SAMPLES_MAX = 16, /* of a lane, in one step: the first operations, the same on
                                         * all ranks */
    CAIRN_REPORT_SAMPLES_MAX = CAIRN_REPORT_LANES_MAX * CAIRN_REPORT_LANE_SAMPLES_MAX,
    CAIRN_REPORT_COUNTS_MAX = 64,     /* lanes: those that were used last */
    CAIRN_REPORT_BYTES_MAX = 24 << 10 /* of one that is packed */
};
#define CAIRN_PLACE_NONE UINT32_MAX

enum cairn_report_kind {
    CAIRN_REPORT_MEMBER = 1,
    CAIRN_REPORT_STEP = 2,
    CAIRN_REPORT_STANDING = 3,
    CAIRN_REPORT_COUNTS = 4
};

/* How a rank's process fares, as its node sees it. */
enum cairn_presence {
    CAIRN_PRESENCE_RUNS = 1,
    CAIRN_PRESENCE_STOPPED = 2, /* by a signal or a debugger */
    CAIRN_PRESENCE_GONE = 3
};

/* A communicator and operation, or a transfer with a peer. */
struct cairn_report_lane {
    uint64_t comm;
    uint32_t peer; /* of send and recv, else CAIRN_PEER_NONE */
    uint8_t op;    /* enum cairn_collective */
    bool is_place; /* the peer is a place in the communicator, not a global rank */
};

struct cairn_report_sample {
    uint32_t lane; /* index in `lanes` */
    uint32_t seq;  /* low 32 bits; CAIRN_SEQ_NONE */
    float duration_ns;
    float bytes;
};

struct cairn_report_open {
    struct cairn_report_lane lane;
    uint64_t seq, start_ns;
};

/* How far a rank has come in a lane; its peers are places. Ages are counted back from the rank's
 * last record of any kind. */
struct cairn_report_count {
    struct cairn_report_lane lane;
    bool is_known;        /* else the count is not to be relied on */
    uint64_t count;       /* entered */
    uint64_t age_ns;      /* of the lane's last record */
    uint64_t running_seq; /* the operation that was seen to begin on the device and not to end, 0:
                           * none */
    uint64_t running_age_ns;
};

/* A plain value; the fields of other kinds than its own are not looked at. */
struct cairn_report {
    enum cairn_report_kind kind;
    uint32_t rank, world;
    uint64_t attachment; /* tells one process of a rank from the next */

    /* MEMBER */
    uint64_t comm;
    uint32_t comm_ranks; /* 1 or more */
    uint32_t place;      /* of the rank in the communicator, CAIRN_PLACE_NONE */

    /* STEP and STANDING */
    uint32_t step;
    uint64_t end_ns; /* the last end of an operation, 0: none */

    /* STEP: as struct cairn_rank_step */
    double compute_ns[CAIRN_GAPS]; /* NaN where it cannot be known */
    double span_ns;                /* NaN */
    double work;
    bool sends_aside, is_measured;
    uint32_t lane_count, sample_count;
    struct cairn_report_lane lanes[CAIRN_REPORT_LANES_MAX];
    struct cairn_report_sample samples[CAIRN_REPORT_SAMPLES_MAX];

    /* STANDING */
    enum cairn_presence presence;
    bool has_died;     /* it is gone, and has not said that it would be: it cannot have finished */
    uint64_t life_ns;  /* the last sign of life */
    uint64_t quiet_ns; /* for how long nothing has begun or ended, 0: less than two seconds */
    uint32_t open_count;
    struct cairn_report_open open[CAIRN_INTAKE_OPEN];

    /* STANDING and COUNTS */
    uint64_t entered; /* operations: counts hold as long as it is the same */

    /* COUNTS */
    uint64_t active_ns; /* from the first record to the last */
    uint64_t gap_ns;    /* the longest time between records in the last minutes */
    bool counts_whole;  /* what is in no lane below was never entered */
    uint32_t count_count;
    struct cairn_report_count counts[CAIRN_REPORT_COUNTS_MAX];
};

/* Packs; what does not fit is the writer's failure. */
void cairn_report_pack(const struct cairn_report *report, struct cairn_writer *writer);

/* Unpacks the next report into *out. Counts, ranks, operations and numbers out of bounds are the
 * reader's failure, and *out is then of no use. */
void cairn_report_unpack(struct cairn_reader *reader, struct cairn_report *out);

#endif
