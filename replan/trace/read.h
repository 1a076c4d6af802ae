/*
 * replan/trace/read.h - the lines of a timing trace (JSON Lines), read strictly and without trust.
 *
 * The first line is a header:
 *     {"cairn_trace": 1, "world": 4, "nodes": [0,0,1,1], "comms": {"dp0": [0,1,2,3]}, "roles": {…}}
 * each other line a rank's part in an operation, or a sign of life {"rank": 3, "now_ns": T}, or the
 * most that its device held {"rank": 3, "memory_bytes": B}:
 *     {"rank": 3, "comm": "dp0", "seq": 17, "op": "all_reduce", "bytes": 8, "step": 12,
 *      "enter_ns": 1, "start_ns": 2, "end_ns": 9, "work": 1.0, "compute_ns": 7}
 * Keys that are not known are passed over; a key given twice takes its last value. Names of
 * operations are those of cairn/timing.h, in any case, with or without "_" and a leading "nccl".
 */
#ifndef CAIRN_REPLAN_TRACE_READ_H
#define CAIRN_REPLAN_TRACE_READ_H

#include "replan/trace/record.h"
#include "replan/trace/topology.h"

#include <stddef.h>

enum { CAIRN_TRACE_LINE_BYTES_MAX = 16384 }; /* of any line but the header */
/* Times above this many nanoseconds (146 years) are refused: differences stay in range. */
#define CAIRN_TRACE_NS_MAX ((uint64_t)1 << 62)
#define CAIRN_TRACE_MEMORY_BYTES_MAX ((uint64_t)1 << 50)

/* What is wrong with a line, and where. */
struct cairn_trace_fault {
    const char *why; /* static */
    size_t column;   /* bytes from the line's begin */
};

/* Reads a header line[line_bytes] (without its newline). The caller owns *out. CAIRN_CORRUPT with
 * *fault filled, CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_trace_read_header(const char *line, size_t line_bytes,
                                                   struct cairn_topology **out,
                                                   struct cairn_trace_fault *fault);

/* Reads any other line into *out. CAIRN_CORRUPT with *fault filled. Allocates nothing. An operation
 * that ends before it starts is read (is_backward): its clock was set back, not a fault of
 * the file. */
CAIRN_MUST_CHECK cairn_err cairn_trace_read_line(const struct cairn_topology *topology,
                                                 const char *line, size_t line_bytes,
                                                 struct cairn_record *out,
                                                 struct cairn_trace_fault *fault);

#endif
