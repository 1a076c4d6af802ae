/*
 * tests/unit/replan/test_live_hang.c - a job of which NCCL's plugin alone writes: operations are entered, none is seen to end, no step is
 * named. Who hangs is told from counts; and what is no hang is not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "replan/live.h"
#include "replan/reduce.h"

enum { WORLD = 4, MS = 1000000, ALL = 0xa0, TENSOR = 0xb0, DATA = 0xd0, ONCE = 0xe0, ALL_RANKS = 0xf };
static const uint64_t S = 1000000000;

struct job {
    struct cairn_ledger ledger;
    struct cairn_live *live;
    struct cairn_reduce *reduces[WORLD];
    enum cairn_presence presence[WORLD];
    bool is_mute[WORLD]; /* its node is not heard of */
    uint64_t now_ns;
    uint64_t entered[WORLD][0x100][16]; /* by communicator and operation */
    uint64_t begun_ns;                  /* when the verdict that was said last was opened */
    uint32_t opened, closed;
};

static struct job *current;

static void
said(void *context, const struct cairn_ledger_entry *entry, enum cairn_ledger_change change)
{
    struct job *job = context;

    (void)entry;
    job->opened += change != CAIRN_LEDGER_CLOSED;
    job->closed += change == CAIRN_LEDGER_CLOSED;
    if (change != CAIRN_LEDGER_CLOSED)
        job->begun_ns = job->now_ns;
}

static void
carry(void *context, const struct cairn_report *report)
{
    static uint8_t bytes[CAIRN_REPORT_BYTES_MAX];
    static struct cairn_report arrived;
    struct cairn_writer writer;
    struct cairn_reader reader;

    (void)context;
    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_report_pack(report, &writer);
    assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
    cairn_reader_init(&reader, bytes, writer.used_bytes);
    cairn_report_unpack(&reader, &arrived);
    assert_int_equal(cairn_reader_done(&reader), CAIRN_OK);
    if (!current->is_mute[report->rank])
        assert_int_equal(cairn_live_take(current->live, report->rank / 2, &arrived, current->now_ns, current->now_ns), CAIRN_OK);
}

/* ---- the ranks ---- */

static void
take(struct job *job, uint32_t rank, struct cairn_timing_record record)
{
    record.rank = rank;
    record.enter_ns = record.enter_ns ? record.enter_ns : job->now_ns;
    assert_int_equal(cairn_reduce_take(job->reduces[rank], &record, job->now_ns), CAIRN_OK);
}

static void
join(struct job *job, uint32_t rank, uint64_t comm, uint32_t place, uint16_t ranks)
{
    take(job, rank, (struct cairn_timing_record){.comm = comm, .peer = place, .ranks = ranks, .op = CAIRN_TIMING_MEMBER});
}

static uint16_t
ranks_of(uint64_t comm)
{
    return (comm & 0xf0) == ALL || (comm & 0xf0) == ONCE ? WORLD : 2;
}

static void
enter(struct job *job, uint32_t rank, uint64_t comm, uint16_t op)
{
    take(job, rank, (struct cairn_timing_record){.comm = comm, .seq = ++job->entered[rank][comm & 0xff][op], .bytes = 64,
                                                 .peer = CAIRN_PEER_NONE, .ranks = ranks_of(comm), .op = op});
}

/* A transfer with the other rank of a communicator of two. */
static void
transfer(struct job *job, uint32_t rank, uint64_t comm, uint16_t op, uint32_t place)
{
    take(job, rank, (struct cairn_timing_record){.comm = comm, .bytes = 64, .peer = place, .ranks = 2, .op = op});
}

/* The device is seen to begin an operation that was entered last, or to end it. */
static void
run(struct job *job, uint32_t rank, uint64_t comm, uint16_t op, bool ends)
{
    take(job, rank, (struct cairn_timing_record){.comm = comm, .seq = job->entered[rank][comm & 0xff][op], .bytes = 64,
                                                 .enter_ns = job->now_ns - 2 * MS, .start_ns = job->now_ns - MS,
                                                 .end_ns = ends ? job->now_ns : 0, .peer = CAIRN_PEER_NONE,
                                                 .ranks = ranks_of(comm), .op = op});
}

static void
start(struct job *job)
{
    struct cairn_live_options options = {.ledger = &job->ledger, .first_run = 1000, .said = said, .context = job};

    memset(job, 0, sizeof *job);
    current = job;
    job->now_ns = 100 * S;
    cairn_ledger_init(&job->ledger);
    assert_int_equal(cairn_live_create(&options, &job->live), CAIRN_OK);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        struct cairn_reduce_options of = {.rank = rank, .world = WORLD, .attachment = 1, .emit = carry};

        assert_int_equal(cairn_reduce_create(&of, &job->reduces[rank]), CAIRN_OK);
        job->presence[rank] = CAIRN_PRESENCE_RUNS;
        join(job, rank, ALL, rank, WORLD);
        join(job, rank, TENSOR + rank / 2, rank % 2, 2);
        join(job, rank, DATA + rank % 2, rank / 2, 2);
    }
}

static void
end(struct job *job)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        cairn_reduce_destroy(job->reduces[rank]);
    cairn_live_destroy(job->live);
}

/* Time passes; the agents look twice a second. */
static void
pass(struct job *job, uint64_t for_ns)
{
    for (uint64_t until_ns = job->now_ns + for_ns; job->now_ns < until_ns;) {
        job->now_ns += until_ns - job->now_ns < S / 2 ? until_ns - job->now_ns : S / 2;
        for (uint32_t rank = 0; rank < WORLD; rank++)
            cairn_reduce_stand(job->reduces[rank], job->presence[rank], job->now_ns);
        assert_int_equal(cairn_live_check(job->live, job->now_ns, job->now_ns), CAIRN_OK);
    }
}

/* What a step enters on a rank, up to the operation number `until`, before which it hangs; -1: all of it. The numbers of
 * operations differ by communicator. */
static void
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

static void
steps(struct job *job, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t rank = 0; rank < WORLD; rank++)
            step_of(job, rank, -1);
        pass(job, S / 2);
    }
}

/* A step in which one rank hangs before its operation `until`; what its peers can enter they enter. */
static void
hang(struct job *job, uint32_t culprit, int until)
{
    uint32_t partner = culprit ^ 1, opposite = culprit ^ 2, other = culprit ^ 3;

    step_of(job, culprit, until);
    step_of(job, partner, until < 3 ? until + 1 : 6);
    step_of(job, opposite, until < 4 ? 4 : until + 1);
    step_of(job, other, until < 3 ? 4 : 6);
}

/* All enter what is left of a step. */
static void
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

static const struct cairn_ledger_entry *
only_entry(const struct job *job)
{
    assert_int_equal(job->ledger.count, 1);
    return &job->ledger.entries[0];
}

/* ---- hangs ---- */

static void
test_never_arrives(void **state)
{
    (void)state;
    for (int until = 0; until < 6; until++)
        for (uint32_t culprit = 0; culprit < WORLD; culprit += 3) {
            const struct cairn_ledger_entry *entry;
            struct job job;
            uint64_t hung_ns;

            start(&job);
            steps(&job, 80);
            assert_int_equal(job.ledger.count, 0);
            hang(&job, culprit, until);
            hung_ns = job.now_ns;
            pass(&job, 12 * S);
            entry = only_entry(&job);
            assert_int_equal(entry->kind, CAIRN_HANG_COMPUTE);
            assert_int_equal(entry->rank_count, 1);
            assert_int_equal(entry->ranks[0], culprit);
            assert_true(entry->victim_count > 0);
            assert_true(job.begun_ns - hung_ns <= 10 * S);
            assert_non_null(strstr(entry->evidence, " operations "));
            pass(&job, 60 * S);
            assert_int_equal(job.opened, 1);
            catch_up(&job, 81); /* it comes back */
            steps(&job, 4);
            assert_int_equal(job.closed, 1);
            assert_int_not_equal(only_entry(&job)->closed_wall_ns, 0);
            end(&job);
        }
}

/* Of sends and receives, which have no numbers. */
static void
test_transfers(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    (void)state;
    start(&job);
    for (int i = 0; i < 80; i++) {
        transfer(&job, 0, DATA, CAIRN_SEND, 1);
        transfer(&job, 2, DATA, CAIRN_RECV, 0);
        transfer(&job, 2, DATA, CAIRN_SEND, 0);
        transfer(&job, 0, DATA, CAIRN_RECV, 1);
        pass(&job, S / 2);
    }
    transfer(&job, 0, DATA, CAIRN_SEND, 1);
    transfer(&job, 2, DATA, CAIRN_RECV, 0);
    transfer(&job, 0, DATA, CAIRN_RECV, 1); /* what the other computes in between does not end */
    pass(&job, 12 * S);
    entry = only_entry(&job);
    assert_int_equal(entry->kind, CAIRN_HANG_COMPUTE);
    assert_int_equal(entry->rank_count, 1);
    assert_int_equal(entry->ranks[0], 2);
    end(&job);
}

/* All have entered it, and where the device was looked at it has begun and does not end: nobody is missing. */
static void
test_transfer_stopped(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    (void)state;
    for (int hosts_go_on = 0; hosts_go_on < 2; hosts_go_on++) {
        start(&job);
        for (int i = 0; i < 80; i++) {
            for (uint32_t rank = 0; rank < WORLD; rank++) {
                enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
                run(&job, rank, ALL, CAIRN_ALL_REDUCE, false);
                run(&job, rank, ALL, CAIRN_ALL_REDUCE, true);
            }
            pass(&job, S / 2);
        }
        for (uint32_t rank = 0; rank < WORLD; rank++) {
            enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
            run(&job, rank, ALL, CAIRN_ALL_REDUCE, false);
            for (uint32_t ahead = 0; hosts_go_on && ahead < rank; ahead++) /* as far as each one's queue has room */
                enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
        }
        pass(&job, 12 * S);
        entry = only_entry(&job);
        assert_int_equal(entry->kind, CAIRN_HANG_LINK);
        assert_int_equal(entry->rank_count, WORLD);
        assert_int_equal(entry->link_count, WORLD);
        assert_non_null(strstr(entry->evidence, "all_reduce number 81"));
        end(&job);
    }
}

/* Where the device was not looked at: those that others wait for have all entered the same operation. */
static void
test_transfer_stopped_in_a_part(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    (void)state;
    start(&job);
    steps(&job, 80);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        step_of(&job, rank, rank < 2 ? 2 : 4);
    pass(&job, 12 * S);
    entry = only_entry(&job);
    assert_int_equal(entry->kind, CAIRN_HANG_LINK);
    assert_int_equal(entry->rank_count, 2);
    assert_int_equal(entry->ranks[0], 0);
    assert_int_equal(entry->ranks[1], 1);
    assert_int_equal(entry->victim_count, 2);
    end(&job);
}

static void
test_gone_stopped_silent(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        const struct cairn_ledger_entry *entry;
        struct job job;

        start(&job);
        steps(&job, 80);
        hang(&job, 1, 4);
        if (how == 2)
            job.is_mute[1] = true;
        else
            job.presence[1] = how == 0 ? CAIRN_PRESENCE_GONE : CAIRN_PRESENCE_STOPPED;
        pass(&job, 13 * S);
        entry = only_entry(&job);
        assert_int_equal(entry->kind, how == 1 ? CAIRN_HANG_COMPUTE : CAIRN_CRASH);
        assert_int_equal(entry->rank_count, 1);
        assert_int_equal(entry->ranks[0], 1);
        assert_int_equal((entry->evidence_kinds & CAIRN_EVIDENCE_PROCESS) != 0, how < 2);
        end(&job);
    }
}

/* Two that wait for each other, having called two communicators in different orders. */
static void
test_circle(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    (void)state;
    start(&job);
    steps(&job, 80);
    enter(&job, 0, TENSOR, CAIRN_BROADCAST);
    enter(&job, 1, TENSOR, CAIRN_ALL_GATHER);
    pass(&job, 12 * S);
    entry = only_entry(&job);
    assert_int_equal(entry->rank_count, 2);
    assert_true(entry->confidence < 0.6);
    assert_non_null(strstr(entry->evidence, "different orders"));
    end(&job);
}

/* ---- no hangs ---- */

static void
test_pauses(void **state)
{
    struct job job;

    (void)state;
    start(&job);
    hang(&job, 2, 1); /* it compiles for half a minute, and the others wait */
    pass(&job, 30 * S);
    catch_up(&job, 1);
    assert_int_equal(job.ledger.count, 0);
    steps(&job, 80);
    hang(&job, 0, 5);
    pass(&job, 5 * S);
    catch_up(&job, 82);
    steps(&job, 10);
    assert_int_equal(job.ledger.count, 0);
    pass(&job, 600 * S); /* all of them do something else: their counts are equal */
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* Steps that take ten seconds, named by nobody. */
static void
test_long_steps(void **state)
{
    struct job job;

    (void)state;
    start(&job);
    for (int i = 0; i < 12; i++) {
        for (uint32_t rank = 0; rank < WORLD; rank++)
            if (rank != 1)
                enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
        pass(&job, (i % 3 ? 2 : 3) * S);
        enter(&job, 1, ALL, CAIRN_ALL_REDUCE);
        pass(&job, 10 * S);
    }
    assert_int_equal(job.ledger.count, 0);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        if (rank != 1)
            enter(&job, rank, ALL, CAIRN_ALL_REDUCE);
    pass(&job, 15 * S);
    assert_int_equal(job.ledger.count, 0);
    pass(&job, 15 * S);
    assert_int_equal(only_entry(&job)->ranks[0], 1);
    end(&job);
}

/* A communicator that some gave up in the middle is no reason to wait; neither are others of other lengths. */
static void
test_given_up(void **state)
{
    struct job job;

    (void)state;
    start(&job);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        join(&job, rank, ONCE, rank, WORLD);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        for (uint32_t i = 0; i <= rank; i++)
            enter(&job, rank, ONCE, CAIRN_BROADCAST);
    steps(&job, 80);
    pass(&job, 60 * S);
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* Somebody who does something else meanwhile is not the cause, and whoever waits for him neither. */
static void
test_busy_elsewhere(void **state)
{
    struct job job;

    (void)state;
    start(&job);
    steps(&job, 80);
    for (uint32_t rank = 2; rank < WORLD; rank++)
        step_of(&job, rank, 6);
    for (int i = 0; i < 60; i++) {
        enter(&job, 0, TENSOR, CAIRN_ALL_GATHER);
        enter(&job, 1, TENSOR, CAIRN_ALL_GATHER);
        pass(&job, S / 2);
    }
    assert_int_equal(job.ledger.count, 0);
    end(&job);
}

/* Records that were lost, or read by somebody else, do not make a rank late; nor do numbers that cannot be make others so. */
static void
test_not_to_be_relied_on(void **state)
{
    (void)state;
    for (int why = 0; why < 3; why++) {
        struct job job;

        start(&job);
        if (why == 1)
            for (uint32_t rank = 0; rank < WORLD; rank++)
                cairn_reduce_begin_late(job.reduces[rank]);
        steps(&job, 80);
        if (why == 0) {
            hang(&job, 3, 5);
            cairn_reduce_lose(job.reduces[3], 1);
        } else if (why == 1) {
            for (uint32_t rank = 0; rank < 3; rank++)
                enter(&job, rank, ALL, CAIRN_BROADCAST); /* nobody knows whether the fourth did long ago */
        } else {
            job.entered[3][ALL][CAIRN_ALL_REDUCE] = UINT64_C(1) << 63;
            enter(&job, 3, ALL, CAIRN_ALL_REDUCE);
        }
        pass(&job, 60 * S);
        assert_int_equal(job.ledger.count, 0);
        end(&job);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_arrives),    cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_transfer_stopped), cmocka_unit_test(test_transfer_stopped_in_a_part),
        cmocka_unit_test(test_gone_stopped_silent), cmocka_unit_test(test_circle),
        cmocka_unit_test(test_pauses),           cmocka_unit_test(test_long_steps),
        cmocka_unit_test(test_given_up),         cmocka_unit_test(test_busy_elsewhere),
        cmocka_unit_test(test_not_to_be_relied_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
