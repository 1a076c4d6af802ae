/*
 * replan/trace/progress.h - how far ranks are in the operations of their communicators, from what
 * others already keep: counts only.
 *
 * Two sources, for jobs that were started without preparation. NCCL's RAS answers on a TCP port of
 * every node for the whole job, with launch counters; PyTorch's Flight Recorder dumps what one rank
 * has enqueued, started and completed. Neither has times that could be compared: RAS has none, and
 * the recorder's are those of a watchdog that looks ten times a second. They show who hangs (a
 * count that stands still while others' are higher) and never who is slow.
 *
 * Pure: text in, counts out to a sink, one call for each. Text is from outside and not trusted.
 */
#ifndef CAIRN_REPLAN_TRACE_PROGRESS_H
#define CAIRN_REPLAN_TRACE_PROGRESS_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAIRN_PROGRESS_COMM_BYTES = 64 };
#define CAIRN_PROGRESS_UNKNOWN UINT64_MAX

enum cairn_answering {
    CAIRN_PRESENT,
    CAIRN_UNRESPONSIVE, /* it did not answer in time */
    CAIRN_CONSIDERED_DEAD
};

struct cairn_op_count {
    char comm[CAIRN_PROGRESS_COMM_BYTES]; /* the communicator as the source names it: RAS's hash,
                                           * the recorder's group */
    uint32_t rank;                        /* in the communicator; UINT32_MAX where the source does
                                           * not say: the recorder's own */
    uint32_t ranks;                       /* of the communicator; 0 where the source does not say */
    uint16_t op;                          /* enum cairn_collective; 0: all of them together */
    enum cairn_answering presence;        /* without CAIRN_PRESENT the counts are not known */
    uint64_t entered, started, completed; /* operations; CAIRN_PROGRESS_UNKNOWN */
};

/* Gets a value that lives for the call; false ends the reading, with CAIRN_OK. */
typedef bool cairn_progress_sink(void *context, const struct cairn_op_count *progress);

/* What is wrong with a text, and where. */
struct cairn_progress_fault {
    const char *why; /* static */
    size_t at;       /* bytes from its beginning */
};

/*
 * NCCL's answer to "STATUS" or "VERBOSE STATUS" in format json (NCCL 2.28.7 and newer),
 * text[text_bytes]. It is mended in place where NCCL 2.28 leaves a comma out. For each rank one
 * value per operation that NCCL counts, with `entered`; for each missing rank one without counts.
 * CAIRN_CORRUPT with *fault for anything else, after values that may have gone out.
 */
CAIRN_MUST_CHECK cairn_err cairn_progress_read_ras(char *text, size_t text_bytes,
                                                   cairn_progress_sink *sink, void *context,
                                                   struct cairn_progress_fault *fault);

/*
 * A Flight Recorder's dump as JSON (torch._C._distributed_c10d._dump_fr_trace_json,
 * _dump_nccl_trace_json; PyTorch 2.6 and newer), text[text_bytes]. For each process group one
 * value, of the rank that wrote the dump. Errors as above.
 */
CAIRN_MUST_CHECK cairn_err cairn_progress_read_flight_recorder(const char *text, size_t text_bytes,
                                                               cairn_progress_sink *sink,
                                                               void *context,
                                                               struct cairn_progress_fault *fault);

#endif
