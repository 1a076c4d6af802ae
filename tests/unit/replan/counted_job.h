/*
 * tests/unit/replan/counted_job.h - an analysed job that only NCCL's plugin records: operations are
 * entered, none is seen to end, no step is named.
 */
#ifndef CAIRN_TESTS_REPLAN_COUNTED_JOB_H
#define CAIRN_TESTS_REPLAN_COUNTED_JOB_H

#include "tests/support/analysed_job.h"

enum { ALL = 0xa0, TENSOR = 0xb0, DATA = 0xd0, ONCE = 0xe0, ALL_RANKS = 0xf };

/* ---- the ranks ---- */

static inline void
take(struct job *job, uint32_t rank, struct cairn_timing_record record)
{
    record.rank = rank;
    record.enter_ns = record.enter_ns ? record.enter_ns : job->now_ns;
    assert_int_equal(cairn_reduce_take(job->reduces[rank], &record, job->now_ns), CAIRN_OK);
}

static inline void
join(struct job *job, uint32_t rank, uint64_t comm, uint32_t place, uint16_t ranks)
{
    take(job, rank,
         (struct cairn_timing_record){
             .comm = comm, .peer = place, .ranks = ranks, .op = CAIRN_TIMING_MEMBER});
}

static inline uint16_t
ranks_of(uint64_t comm)
{
    return (comm & 0xf0) == ALL || (comm & 0xf0) == ONCE ? WORLD : 2;
}

static inline void
enter(struct job *job, uint32_t rank, uint64_t comm, uint16_t op)
{
    take(job, rank,
         (struct cairn_timing_record){.comm = comm,
                                      .seq = ++job->entered[rank][comm & 0xff][op],
                                      .bytes = 64,
                                      .peer = CAIRN_PEER_NONE,
                                      .ranks = ranks_of(comm),
                                      .op = op});
}

/* A transfer with the other rank of a communicator of two. */
static inline void
transfer(struct job *job, uint32_t rank, uint64_t comm, uint16_t op, uint32_t place)
{
    take(job, rank,
         (struct cairn_timing_record){
             .comm = comm, .bytes = 64, .peer = place, .ranks = 2, .op = op});
}

/* The device is seen to begin an operation that was entered last, or to end it. */
static inline void
run(struct job *job, uint32_t rank, uint64_t comm, uint16_t op, bool ends)
{
    take(job, rank,
         (struct cairn_timing_record){.comm = comm,
                                      .seq = job->entered[rank][comm & 0xff][op],
                                      .bytes = 64,
                                      .enter_ns = job->now_ns - 2 * MS,
                                      .start_ns = job->now_ns - MS,
                                      .end_ns = ends ? job->now_ns : 0,
                                      .peer = CAIRN_PEER_NONE,
                                      .ranks = ranks_of(comm),
                                      .op = op});
}

static inline void
start(struct job *job)
{
    begin(job, 2);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        job->presence[rank] = CAIRN_PRESENCE_RUNS;
        join(job, rank, ALL, rank, WORLD);
        join(job, rank, TENSOR + rank / 2, rank % 2, 2);
        join(job, rank, DATA + rank % 2, rank / 2, 2);
    }
}

/* A rank's agent is another now, which reads on where the one before has ended. */
static inline void
begin_anew(struct job *job, uint32_t rank)
{
    attach(job, rank);
    cairn_reduce_begin_late(job->reduces[rank]);
}

/* Time passes; the agents look twice a second. */
static inline void
pass(struct job *job, uint64_t for_ns)
{
    for (uint64_t until_ns = job->now_ns + for_ns; job->now_ns < until_ns;) {
        job->now_ns += until_ns - job->now_ns < S / 2 ? until_ns - job->now_ns : S / 2;
        for (uint32_t rank = 0; rank < WORLD; rank++)
            cairn_reduce_stand(job->reduces[rank], job->presence[rank], job->now_ns);
        assert_int_equal(cairn_live_check(job->live, job->now_ns, job->now_ns), CAIRN_OK);
    }
}

/* What a step enters on a rank, up to the operation number `until`, before which it hangs; -1: all
 * of the operation. The numbers of operations differ by communicator. */
static inline void
step_of(struct job *job, uint32_t rank, int until)
{
    int number = 0;

    for (int layer = 0; layer < 3; layer++)
        if (until < 0 || number++ < until)
            enter(job, rank, TENSOR + rank / 2, CAIRN_ALL_REDUCE);
    if (until < 0 || number++ < until)
        enter(job, rank, DATA + rank % 2, CAIRN_REDUCE_SCATTER);
    if (until < 0 || number++ < until)
        enter(job, rank, DATA + rank % 2, CAIRN_ALL_GATHER);
    if (until < 0 || number++ < until)
        enter(job, rank, ALL, CAIRN_ALL_REDUCE);
}

static inline void
steps(struct job *job, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t rank = 0; rank < WORLD; rank++)
            step_of(job, rank, -1);
        pass(job, S / 2);
    }
}

/* A step in which one rank hangs before its operation `until`; what its peers can enter they
 * enter. */
static inline void
hang(struct job *job, uint32_t culprit, int until)
{
    uint32_t partner = culprit ^ 1, opposite = culprit ^ 2, other = culprit ^ 3;

    step_of(job, culprit, until);
    step_of(job, partner, until < 3 ? until + 1 : 6);
    step_of(job, opposite, until < 4 ? 4 : until + 1);
    step_of(job, other, until < 3 ? 4 : 6);
}

/* All enter what is left of a step. */
static inline void
catch_up(struct job *job, uint64_t steps_begun)
{
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        while (job->entered[rank][TENSOR + rank / 2][CAIRN_ALL_REDUCE] < 3 * steps_begun)
            enter(job, rank, TENSOR + rank / 2, CAIRN_ALL_REDUCE);
        while (job->entered[rank][DATA + rank % 2][CAIRN_REDUCE_SCATTER] < steps_begun)
            enter(job, rank, DATA + rank % 2, CAIRN_REDUCE_SCATTER);
        while (job->entered[rank][DATA + rank % 2][CAIRN_ALL_GATHER] < steps_begun)
            enter(job, rank, DATA + rank % 2, CAIRN_ALL_GATHER);
        while (job->entered[rank][ALL][CAIRN_ALL_REDUCE] < steps_begun)
            enter(job, rank, ALL, CAIRN_ALL_REDUCE);
    }
}

static inline const struct cairn_ledger_entry *
only_entry(const struct job *job)
{
    assert_int_equal(job->ledger.count, 1);
    return &job->ledger.entries[0];
}

#endif
