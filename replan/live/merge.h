/*
 * replan/live/merge.h - the recordings of all nodes (replan/live/recording.h) become one trace: a
 * topology, and records in the order of steps.
 *
 * Recordings come from other nodes and are checked to their last byte before anything is taken from
 * them. Communicators get names as the live analysis gives them. Where a node is missing, so are
 * its ranks, and communicators hold only the ranks that are known. Operations that cannot be placed
 * (a communicator of unknown size, an unknown peer) are left out and counted.
 *
 * Pure: no clock, no I/O.
 */
#ifndef CAIRN_REPLAN_LIVE_MERGE_H
#define CAIRN_REPLAN_LIVE_MERGE_H

#include "cairn/err.h"
#include "replan/trace/record.h"
#include "replan/trace/topology.h"

#include <stddef.h>
#include <stdint.h>

struct cairn_merge;

struct cairn_merge_summary {
    uint32_t world;
    uint32_t ranks;      /* whose recordings are here */
    uint32_t first_step; /* 0: there are no steps */
    uint32_t last_step;
    uint64_t operations;
    uint64_t left_out; /* operations, so far */
};

/* CAIRN_NOMEM. The caller ends *out with cairn_merge_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_merge_create(struct cairn_merge **out);
void cairn_merge_destroy(struct cairn_merge *merge); /* NULL is allowed */

/* Takes the recordings of a node (copied). CAIRN_CORRUPT: they are malformed, and nothing of them
 * was taken; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_merge_add(struct cairn_merge *merge, uint32_t node,
                                           const void *bytes, size_t bytes_len);

/* The newest step of what was added; 0: none. */
uint32_t cairn_merge_newest(const struct cairn_merge *merge);

/* Makes the topology; once, after the last node. CAIRN_NOT_FOUND: no rank was recorded;
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_merge_finish(struct cairn_merge *merge);

/* Borrowed until the end of the merge. After finish. */
const struct cairn_topology *cairn_merge_topology(const struct cairn_merge *merge);

/* The next record: step by step, in each by rank, then a sign of life of each rank that runs.
 * False at the end. After finish. */
bool cairn_merge_next(struct cairn_merge *merge, struct cairn_record *out);

/* After finish; whole once cairn_merge_next is false. */
struct cairn_merge_summary cairn_merge_summarize(const struct cairn_merge *merge);

#endif
