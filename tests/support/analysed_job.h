/*
 * tests/support/analysed_job.h - a job of four ranks, from timing records to the ledger: each
 * rank's records go through its reducer, its reports through their bytes, into one analysis.
 */
#ifndef CAIRN_TESTS_SUPPORT_ANALYSED_JOB_H
#define CAIRN_TESTS_SUPPORT_ANALYSED_JOB_H

#include <stdlib.h>
#include <string.h>

#include "replan/live/live.h"
#include "replan/live/reduce.h"
#include "tests/support/cmocka.h"

enum { WORLD = 4, MS = 1000000 };
static const uint64_t S = 1000000000;

struct job {
    struct cairn_ledger ledger;
    struct cairn_live *live; /* NULL: reports are lost */
    struct cairn_reduce *reduces[WORLD];
    uint32_t node[WORLD];
    bool is_mute[WORLD]; /* its node is not heard of */
    uint64_t attachment, now_ns;
    uint32_t world;
    uint32_t opened, returned, closed; /* verdicts */
    uint64_t begun_ns;                 /* when the last of them opened or returned */
    char last[256];                    /* how the last change reads */

    /* live_job.h */
    uint64_t seq, comm;
    uint32_t step, seed;
    uint32_t ranks; /* that report */

    /* counted_job.h */
    enum cairn_presence presence[WORLD];
    uint64_t entered[WORLD][0x100][16]; /* by communicator and operation */
};

static struct job *current;

static inline void
said(void *context, const struct cairn_ledger_entry *entry, enum cairn_ledger_change change)
{
    struct job *job = context;

    job->opened += change == CAIRN_LEDGER_OPENED;
    job->returned += change == CAIRN_LEDGER_RETURNED;
    job->closed += change == CAIRN_LEDGER_CLOSED;
    if (change != CAIRN_LEDGER_CLOSED)
        job->begun_ns = job->now_ns;
    cairn_ledger_describe(entry, job->last, sizeof job->last);
}

/* Packs and unpacks a report on its way, and checks that nothing is left over. */
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
    assert_int_equal(arrived.kind, report->kind);
    assert_int_equal(arrived.rank, report->rank);
    if (!current->live || current->is_mute[report->rank])
        return;
    assert_int_equal(cairn_live_take(current->live, current->node[report->rank], &arrived,
                                     current->now_ns, current->now_ns),
                     CAIRN_OK);
}

static inline void
analyse(struct job *job, uint64_t first_run)
{
    struct cairn_live_options options = {
        .ledger = &job->ledger, .first_run = first_run, .said = said, .context = job};

    assert_int_equal(cairn_live_create(&options, &job->live), CAIRN_OK);
}

static inline void
attach(struct job *job, uint32_t rank)
{
    struct cairn_reduce_options options = {
        .rank = rank, .world = job->world, .attachment = job->attachment, .emit = carry};

    cairn_reduce_destroy(job->reduces[rank]);
    assert_int_equal(cairn_reduce_create(&options, &job->reduces[rank]), CAIRN_OK);
}

/* Each node has that many ranks. */
static inline void
begin(struct job *job, uint32_t ranks_per_node)
{
    memset(job, 0, sizeof *job);
    current = job;
    job->now_ns = 100 * S;
    job->attachment = 1;
    job->world = WORLD;
    cairn_ledger_init(&job->ledger);
    analyse(job, 1000);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        job->node[rank] = rank / ranks_per_node;
        attach(job, rank);
    }
}

static inline void
end(struct job *job)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        cairn_reduce_destroy(job->reduces[rank]);
    cairn_live_destroy(job->live);
}

#endif
