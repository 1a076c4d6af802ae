/*
 * tests/unit/replan/detect/job.h - a small job whose records go to a detector, in time that the
 * test lets pass.
 */
#ifndef CAIRN_TESTS_DETECT_JOB_H
#define CAIRN_TESTS_DETECT_JOB_H

#include <string.h>

#include "replan/detect/detect.h"
#include "replan/trace/read.h"
#include "tests/support/cmocka.h"

enum { JOB_RANKS_MAX = 16, MS = 1000000 };

struct job {
    struct cairn_topology *topology;
    struct cairn_detector *detector;
    uint64_t now_ns[JOB_RANKS_MAX];
    uint32_t seed;
    bool unnumbered; /* records do not name their steps */
};

static inline void
job_start(struct job *job, const char *header, uint32_t seed)
{
    struct cairn_trace_fault fault;

    *job = (struct job){.seed = seed};
    assert_int_equal(cairn_trace_read_header(header, strlen(header), &job->topology, &fault),
                     CAIRN_OK);
    assert_int_equal(cairn_detector_create(job->topology, 0, &job->detector), CAIRN_OK);
}

static inline void
job_end(struct job *job)
{
    cairn_detector_destroy(job->detector);
    cairn_topology_destroy(job->topology);
}

/* Even between 0 and 1. */
static inline double
job_draw(struct job *job)
{
    job->seed = job->seed * 1664525u + 1013904223u;
    return (double)(job->seed >> 8) / (1 << 24);
}

/* No more records come: there are `count` verdicts. */
static inline const struct cairn_verdicts *
job_finish(struct job *job, uint32_t count)
{
    assert_int_equal(cairn_detector_finish(job->detector), CAIRN_OK);
    assert_int_equal(cairn_detector_verdicts(job->detector)->count, count);
    return cairn_detector_verdicts(job->detector);
}

/* There is one verdict, of this kind. */
static inline const struct cairn_verdict *
job_finish_with(struct job *job, enum cairn_verdict_kind kind)
{
    const struct cairn_verdict *verdict = &job_finish(job, 1)->items[0];

    assert_int_equal(verdict->kind, kind);
    return verdict;
}

static inline void
assert_only(const struct cairn_u32_list *list, uint32_t item)
{
    assert_int_equal(list->count, 1);
    assert_int_equal(list->items[0], item);
}

#endif
