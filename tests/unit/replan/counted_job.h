/*
 * tests/unit/replan/counted_job.h - a job that only NCCL's plugin records: operations are
 * entered, none is seen to end, no step is named. Records go through each rank's reducer, its
 * reports through their bytes, into one analysis.
 */
#ifndef CAIRN_TESTS_REPLAN_COUNTED_JOB_H
#define CAIRN_TESTS_REPLAN_COUNTED_JOB_H

#include <stdlib.h>
#include <string.h>

#include "replan/live/live.h"
#include "replan/live/reduce.h"
#include "tests/support/cmocka.h"

enum {
    WORLD = 4,
    MS = 1000000,
    ALL = 0xa0,
    TENSOR = 0xb0,
    DATA = 0xd0,
    ONCE = 0xe0,
    ALL_RANKS = 0xf
};
static const uint64_t S = 1000000000;

struct job {
    struct cairn_ledger ledger;
    struct cairn_live *live;
    struct cairn_reduce *reduces[WORLD];
    enum cairn_presence presence[WORLD];
    bool is_mute[WORLD]; /* its node is not heard of */
    uint64_t now_ns;
    uint64_t entered[WORLD][0x100][16]; /* by communicator and operation */
    uint64_t begun_ns;                  /* when the last reported verdict was opened */
    uint32_t opened, closed;
};

static struct job *current;

static inline void
said(void *context, const struct cairn_ledger_entry *entry, enum cairn_ledger_change change)
{
    struct job *job = context;

    job->opened += change != CAIRN_LEDGER_CLOSED;
    job->closed += change == CAIRN_LEDGER_CLOSED;
    if (change != CAIRN_LEDGER_CLOSED)
        job->begun_ns = job->now_ns;
}

static inline void
carry(void *context, const struct cairn_report *report)
{
    static uint8_t bytes[CAIRN_REPORT_BYTES_MAX];
    static struct cairn_report arrived;
    struct cairn_writer writer;
    struct cairn_reader reader;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_report_pack(report, &writer);
    assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
    cairn_reader_init(&reader, bytes, writer.used_bytes);
    cairn_report_unpack(&reader, &arrived);
    assert_int_equal(cairn_reader_done(&reader), CAIRN_OK);
    if (!current->is_mute[report->rank])
        assert_int_equal(cairn_live_take(current->live, report->rank / 2, &arrived, current->now_ns,
                                         current->now_ns),
                         CAIRN_OK);
}

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
    struct cairn_live_options options = {
        .ledger = &job->ledger, .first_run = 1000, .said = said, .context = job};

    memset(job, 0, sizeof *job);
    current = job;
    job->now_ns = 100 * S;
    cairn_ledger_init(&job->ledger);
    assert_int_equal(cairn_live_create(&options, &job->live), CAIRN_OK);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        struct cairn_reduce_options of = {
            .rank = rank, .world = WORLD, .attachment = 1, .emit = carry};

        assert_int_equal(cairn_reduce_create(&of, &job->reduces[rank]), CAIRN_OK);
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
    struct cairn_reduce_options options = {
        .rank = rank, .world = WORLD, .attachment = 1, .emit = carry};

    cairn_reduce_destroy(job->reduces[rank]);
    assert_int_equal(cairn_reduce_create(&options, &job->reduces[rank]), CAIRN_OK);
    cairn_reduce_begin_late(job->reduces[rank]);
}

static inline void
end(struct job *job)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        cairn_reduce_destroy(job->reduces[rank]);
    cairn_live_destroy(job->live);
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
