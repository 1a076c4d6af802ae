/* tests/support/live_job.h - an analysed job that trains: each step is computation and one
 * all_reduce. */
#ifndef CAIRN_TESTS_SUPPORT_LIVE_JOB_H
#define CAIRN_TESTS_SUPPORT_LIVE_JOB_H

#include "tests/support/analysed_job.h"

enum { COMM = 0xc0 };

static void
start(struct job *job)
{
    begin(job, 1);
    job->seed = 5;
    job->comm = COMM;
    job->ranks = WORLD;
}

static double
noise(struct job *job)
{
    job->seed = job->seed * 1103515245 + 12345;
    return 1 + 0.02 * ((double)(job->seed >> 16 & 1023) / 512 - 1);
}

static void
put(struct job *job, uint32_t rank, uint64_t enter_ns, uint64_t end_ns)
{
    struct cairn_timing_record record = {.comm = job->comm,
                                         .seq = job->seq,
                                         .bytes = 4096,
                                         .enter_ns = enter_ns,
                                         .end_ns = end_ns,
                                         .rank = rank,
                                         .peer = CAIRN_PEER_NONE,
                                         .step = job->step,
                                         .ranks = (uint16_t)job->world,
                                         .op = CAIRN_ALL_REDUCE};

    assert_int_equal(cairn_reduce_take(job->reduces[rank], &record, job->now_ns), CAIRN_OK);
}

/* A step: 20 ms of computation (times the rank's factor) and one all_reduce that all leave
 * together. */
static void
step(struct job *job, const double *factors)
{
    uint64_t enter_ns[WORLD], last_ns = 0, begin_ns = job->now_ns;

    job->step++;
    job->seq++;
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        double compute = 20.0 * MS * noise(job) * (factors ? factors[rank] : 1);

        enter_ns[rank] = begin_ns + (uint64_t)compute;
        last_ns = enter_ns[rank] > last_ns ? enter_ns[rank] : last_ns;
    }
    job->now_ns = last_ns + 2 * MS;
    for (uint32_t rank = 0; rank < job->ranks; rank++) {
        put(job, rank, enter_ns[rank], 0);
        put(job, rank, enter_ns[rank], job->now_ns);
    }
}

static void
check(struct job *job)
{
    assert_int_equal(cairn_live_check(job->live, job->now_ns, job->now_ns), CAIRN_OK);
    if (cairn_live_wants_announcements(job->live))
        for (uint32_t rank = 0; rank < job->ranks; rank++)
            cairn_reduce_announce(job->reduces[rank]);
}

static void
steps(struct job *job, uint32_t count, const double *factors)
{
    for (uint32_t i = 0; i < count; i++) {
        step(job, factors);
        check(job);
    }
}

#endif
