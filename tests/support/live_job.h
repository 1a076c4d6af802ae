/*
 * tests/support/live_job.h - a job of four ranks that trains, from timing records to the ledger:
 * each rank's records go through its reducer, its reports through their bytes, into one analysis.
 */
#ifndef CAIRN_TESTS_SUPPORT_LIVE_JOB_H
#define CAIRN_TESTS_SUPPORT_LIVE_JOB_H

#include <stdlib.h>
#include <string.h>

#include "replan/live/live.h"
#include "replan/live/reduce.h"
#include "tests/support/cmocka.h"

enum { WORLD = 4, MS = 1000000, COMM = 0xc0 };
static const uint64_t S = 1000000000;

struct job {
    struct cairn_ledger ledger;
    struct cairn_live *live;
    struct cairn_reduce *reduces[WORLD];
    uint32_t node[WORLD];
    uint64_t attachment;
    uint64_t now_ns, seq, comm;
    uint32_t step, seed;
    uint32_t world;
    uint32_t ranks; /* that report */
    uint32_t opened, returned, closed;
    char last[256]; /* how the last change reads */
};

static struct job *current;

static void
said(void *context, const struct cairn_ledger_entry *entry, enum cairn_ledger_change change)
{
    struct job *job = context;

    job->opened += change == CAIRN_LEDGER_OPENED;
    job->returned += change == CAIRN_LEDGER_RETURNED;
    job->closed += change == CAIRN_LEDGER_CLOSED;
    cairn_ledger_describe(entry, job->last, sizeof job->last);
}

/* Packs and unpacks a report on its way, and checks that nothing is left over. */
static void
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
    assert_int_equal(arrived.kind, report->kind);
    assert_int_equal(arrived.rank, report->rank);
    if (!current->live)
        return;
    assert_int_equal(cairn_live_take(current->live, current->node[report->rank], &arrived,
                                     current->now_ns, current->now_ns),
                     CAIRN_OK);
}

static void
analyse(struct job *job, uint64_t first_run)
{
    struct cairn_live_options options = {
        .ledger = &job->ledger, .first_run = first_run, .said = said, .context = job};

    assert_int_equal(cairn_live_create(&options, &job->live), CAIRN_OK);
}

static void
attach(struct job *job, uint32_t rank)
{
    struct cairn_reduce_options options = {
        .rank = rank, .world = job->world, .attachment = job->attachment, .emit = carry};

    cairn_reduce_destroy(job->reduces[rank]);
    assert_int_equal(cairn_reduce_create(&options, &job->reduces[rank]), CAIRN_OK);
}

static void
start(struct job *job)
{
    memset(job, 0, sizeof *job);
    current = job;
    job->now_ns = 100 * S;
    job->seed = 5;
    job->comm = COMM;
    job->attachment = 1;
    job->world = job->ranks = WORLD;
    cairn_ledger_init(&job->ledger);
    analyse(job, 1000);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        job->node[rank] = rank;
        attach(job, rank);
    }
}

static void
end(struct job *job)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        cairn_reduce_destroy(job->reduces[rank]);
    cairn_live_destroy(job->live);
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
