/*
 * replan/trace/stream.h - how long a rank computes in a job some of whose operations go on behind
 * the computation, as gradients that are reduced during the backward pass do.
 *
 * Operations of two lanes overlap where a rank uses several streams. The lane with the most
 * operations among those that overlap belongs to the stream that computes, and those that overlap
 * with it go on in the background. What is computed lies between the operations of the computing
 * stream; the others hide none. Somewhere in the step, mostly before the optimizer, the rank waits
 * for what went on behind. Where that is, is found for each place in the step: nowhere where
 * something is still under way, and elsewhere where the gap varies clearly less from step to step
 * without the waiting than with it. (Waiting that is independent of the computation adds its
 * variance.) The first steps show that; then it stays, so that what is measured does not change.
 */
#ifndef CAIRN_REPLAN_TRACE_STREAM_H
#define CAIRN_REPLAN_TRACE_STREAM_H

#include "replan/trace/gaps.h"

#include <stdbool.h>

enum {
    CAIRN_STREAM_STEPS_MAX = 10, /* the first steps, which must show that operations overlap */
    CAIRN_STREAM_LANES = 8,
    CAIRN_STREAM_PLACES = 64 /* operations of the computing stream in a step; later operations
                              * count as waiting for everything */
};

/* Gaps by two readings: the rank waits for what goes on behind, or it does not. */
enum { CAIRN_BEHIND_WAITS, CAIRN_BEHIND_IGNORED, CAIRN_BEHIND_READINGS };

struct cairn_stream_lane {
    uint32_t lane, count;
    uint8_t overlaps[CAIRN_STREAM_LANES]; /* with others and itself, how often; up to 255 */
};

/* Sums over the steps with as many operations as the one before: others have lost records. */
struct cairn_stream_place {
    float now_ns[CAIRN_BEHIND_READINGS], before_ns[CAIRN_BEHIND_READINGS]; /* the gap, in this step
                                                                            * and the last */
    float jumps_ns[CAIRN_BEHIND_READINGS]; /* distances from the step before */
    float gaps_ns, waited_ns;              /* gaps, and what may be waiting in them */
    bool open_now, open;                   /* something behind was under way */
};

/* All zero: nothing is known yet. Sends are two readings of their own (replan/trace/intake.h). */
struct cairn_stream {
    struct cairn_stream_lane lanes[CAIRN_STREAM_LANES];
    uint32_t lane_count;
    uint32_t behind;                                  /* a bit for each lane that goes on behind */
    struct cairn_gaps gaps[2][CAIRN_BEHIND_READINGS]; /* with sends, and without */
    double compute_ns[2];
    struct cairn_stream_place places[CAIRN_STREAM_PLACES];
    uint32_t place;                        /* in this step */
    uint32_t operations, operations_known; /* of all lanes in this step, and in the one before */
    uint32_t age;   /* steps so far; overlaps that show later change nothing */
    uint32_t steps; /* that places are compared in */
    bool chosen, waits_somewhere;
};

/* Notes that an operation of one lane began while one of the other was under way. */
void cairn_stream_overlap(struct cairn_stream *stream, uint32_t lane, uint32_t other);
/* Takes an operation that has ended; in the order in which a rank records them. */
void cairn_stream_take(struct cairn_stream *stream, uint32_t lane, bool is_send, uint64_t start_ns,
                       uint64_t end_ns);
/* Ends a step. True where some lane goes on behind the computation; then compute_ns[2] is how long
 * the rank computed, where sends keep it waiting and where they do not, NaN in the first steps. */
bool cairn_stream_end_step(struct cairn_stream *stream, double *compute_ns);
/* Begins with another clock; what is learnt stays. */
void cairn_stream_forget_times(struct cairn_stream *stream);

#endif
