/*
 * replan/views/timeline.h - the last steps of all ranks on one clock, and beside them the steps as
 * they would be with nothing slow: for the eye. No verdict rests on it.
 *
 * Clocks of ranks are apart by seconds. They are aligned by what ends together: the members of a
 * collective, and the two sides of a pair. The ideal is the same operations replayed: each
 * computation takes the median of those in the same place of a step over the stage's ranks, each
 * transfer the median of its kind, and everybody waits only for those.
 *
 * Memory: about 300 bytes per operation of the steps that are kept, at the most.
 */
#ifndef CAIRN_REPLAN_VIEWS_TIMELINE_H
#define CAIRN_REPLAN_VIEWS_TIMELINE_H

#include "replan/trace/record.h"
#include "replan/trace/topology.h"

#include <stddef.h>

enum { CAIRN_TIMELINE_STEPS_MAX = 64 };

/* One rank's part in an operation. Times in ns since the first that is kept, on the common
 * clock. */
struct cairn_span {
    double start_ns, end_ns;
    double gap_ns;                       /* of computation before it */
    double ideal_start_ns, ideal_end_ns; /* NaN where the replay did not come to it */
    double ideal_gap_ns;
    uint64_t seq, bytes;
    uint32_t rank, comm, peer, step;
    uint32_t operation; /* equal for the parts of one operation: 0 … operation_count - 1 */
    uint32_t before;    /* the span of the same rank that the gap follows; UINT32_MAX: none */
    uint8_t op;
    bool has_seq, open; /* open: it had not ended; end_ns is the rank's last sign of life */
    bool after_start;   /* the gap follows the start of `before`, not its end */
};

struct cairn_timeline;

/* steps: how many of the last to keep, 1 … CAIRN_TIMELINE_STEPS_MAX. The topology is borrowed until
 * the destroy. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_timeline_create(const struct cairn_topology *topology,
                                                 uint32_t steps, struct cairn_timeline **out);
void cairn_timeline_destroy(struct cairn_timeline *timeline); /* NULL is allowed */

/* Takes a record; as cairn_detector_feed. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_timeline_feed(struct cairn_timeline *timeline,
                                               const struct cairn_record *record);

/* Aligns the clocks and replays the steps; nothing may be fed afterwards. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_timeline_finish(struct cairn_timeline *timeline);

/* The spans of all ranks, rank by rank, each rank's in the order of their starts. After finish. */
const struct cairn_span *cairn_timeline_spans(const struct cairn_timeline *timeline, size_t *count);
uint32_t cairn_timeline_operation_count(const struct cairn_timeline *timeline);
/* True where operations begin inside of sends: nobody waits in one. */
bool cairn_timeline_sends_aside(const struct cairn_timeline *timeline);

/* replan/views/align.c: numbers the operations of spans[count] and returns how many there are;
 * order[count] is then the spans, operation by operation. */
uint32_t cairn_spans_match(struct cairn_span *spans, size_t count, struct cairn_span **order);
/* Brings all times to the clock of the first rank that each is connected with, and the first of
 * them to 0. After the match. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_spans_align(uint32_t world, struct cairn_span *spans,
                                             size_t span_count, struct cairn_span *const *order);
/* replan/views/ideal.c: the replay; spans as above with operations matched. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_ideal_replay(const struct cairn_topology *topology,
                                              struct cairn_span *spans, size_t count,
                                              uint32_t operation_count);

#endif
