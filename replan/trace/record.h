/*
 * replan/trace/record.h - one line of a trace as a value: a rank's part in an operation, a sign of
 * life, or what its device held.
 *
 * Times are on the rank's own clock, which is not synchronised with any other; what is compared
 * between ranks is durations alone.
 */
#ifndef CAIRN_REPLAN_TRACE_RECORD_H
#define CAIRN_REPLAN_TRACE_RECORD_H

#include "cairn/timing.h"

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_OPS = CAIRN_RECV + 1 };

struct cairn_record {
    uint64_t start_ns; /* arrival: the stream reached it, or the host called it; of a sign of life:
                        * now */
    uint64_t end_ns;   /* 0: still open */
    uint64_t seq;      /* where has_seq */
    uint64_t bytes;    /* 0 where unknown */
    double work;       /* 0 where unknown */
    double compute_ns; /* where has_compute: of the rank in this step; NaN: it cannot be known */
    uint64_t memory_bytes; /* 0, except for a line that says this alone; judges of times do not get
                            * such */
    uint32_t rank;
    uint32_t comm; /* index in the topology; CAIRN_COMM_NONE for send and recv without one */
    uint32_t peer; /* of send and recv, else CAIRN_PEER_NONE */
    uint32_t step; /* where has_step */
    uint8_t op;    /* enum cairn_collective; 0: a sign of life, or memory */
    bool has_seq, has_step;
    bool has_compute; /* the gaps between the step's operations are not its computation */
    bool is_backward; /* it ends before it starts, as where a clock was set back: not to be used */
};

#endif
