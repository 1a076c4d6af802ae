/*
 * tests/unit/bindings/nccl/test_hang.c - from the plugin to the verdict: each rank is a process
 * with an NCCL that calls the plugin; what its ring holds is reduced and analysed as the agents do
 * it, with nobody else who writes. Time is made: the records' order is theirs, and their moments
 * are half a second apart.
 */
#include "tests/support/cmocka.h"
#include "tests/support/nccl/fake_nccl.h"

#include "replan/live/live.h"
#include "replan/live/reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { WORLD = 4, OPERATIONS = 100, RECORDS_MAX = 1024, CULPRIT = 2 };
enum ending { ONE_NEVER_ENTERS, NONE_ENDS, ALL_PAUSE };
static const uint64_t S = UINT64_C(1000000000);

/* What the ranks' processes leave. */
static struct {
    uint32_t counts[WORLD];
    struct cairn_timing_record records[WORLD][RECORDS_MAX];
} * left;
static uint32_t rank;
static enum ending ending;

/* ---- a rank ---- */

static void
train(int version)
{
    const struct fake_task task = {
        .func = "AllReduce", .datatype = "ncclFloat32", .count = 1000, .channels = 2, .rank = -1};
    struct fake_nccl nccl;
    struct fake_comm all, pair;
    struct cairn_ring ring;
    char text[16];

    snprintf(text, sizeof text, "%u", rank);
    setenv("RANK", text, 1);
    fake_nccl_open(&nccl, fake_nccl_path("cairn"), version);
    fake_comm_init(&all, &nccl, 0xabc, WORLD, (int)rank);
    fake_comm_init(&pair, &nccl, 0xdef + rank / 2, 2, (int)rank % 2);
    ring = fake_reader();
    for (int i = 0; i < OPERATIONS; i++) {
        bool is_last = i + 1 == OPERATIONS;
        struct fake_operation operation;

        for (int k = 0; k < 3; k++) /* more of them than of the job's */
            fake_enqueue(&pair, &task);
        if (is_last && rank == CULPRIT && ending == ONE_NEVER_ENTERS)
            break;
        operation = fake_enqueue(&all, &task);
        if (!operation.timed)
            continue;
        if (is_last && ending == NONE_ENDS)
            (void)fake_kernel_start(&operation, 0, fake_now_ns());
        else
            fake_kernel(&operation, 2, fake_now_ns() - 1000, fake_now_ns());
    }
    left->counts[rank] = fake_read(&ring, left->records[rank], RECORDS_MAX);
    fake_nccl_close(&nccl);
}

/* ---- the agents ---- */

static struct cairn_live *live;
static uint64_t now_ns;

static void
carry(void *context, const struct cairn_report *report)
{
    assert_int_equal(cairn_live_take(live, report->rank, report, now_ns, now_ns), CAIRN_OK);
}

/* Gives the records of an operation a moment: half a second after the job's one before. */
static void
date(struct cairn_timing_record *records, uint32_t count)
{
    uint64_t at_ns = 100 * S;

    for (uint32_t i = 0; i < count; i++) {
        if (records[i].comm == 0xabc && records[i].op != CAIRN_TIMING_MEMBER &&
            !records[i].start_ns)
            at_ns += S / 2;
        records[i].enter_ns = at_ns;
        records[i].start_ns = records[i].start_ns ? at_ns + 1 : 0;
        records[i].end_ns = records[i].end_ns ? at_ns + 2 : 0;
    }
}

static void
analyse(struct cairn_ledger *ledger)
{
    struct cairn_live_options options = {.ledger = ledger, .first_run = 1};
    struct cairn_reduce *reduces[WORLD];

    cairn_ledger_init(ledger);
    assert_int_equal(cairn_live_create(&options, &live), CAIRN_OK);
    now_ns = (100 + OPERATIONS / 2) * S + 3;
    for (uint32_t i = 0; i < WORLD; i++) {
        struct cairn_reduce_options of = {
            .rank = i, .world = WORLD, .attachment = 1, .emit = carry};

        assert_int_equal(cairn_reduce_create(&of, &reduces[i]), CAIRN_OK);
        date(left->records[i], left->counts[i]);
        for (uint32_t k = 0; k < left->counts[i]; k++)
            assert_int_equal(cairn_reduce_take(reduces[i], &left->records[i][k], now_ns), CAIRN_OK);
    }
    for (int half = 0; half < 24; half++) {
        now_ns += S / 2;
        for (uint32_t i = 0; i < WORLD; i++)
            cairn_reduce_stand(reduces[i], CAIRN_PRESENCE_RUNS, now_ns);
        assert_int_equal(cairn_live_check(live, now_ns, now_ns), CAIRN_OK);
        if (half < 14) /* seven seconds are none yet */
            assert_int_equal(ledger->count, 0);
    }
    for (uint32_t i = 0; i < WORLD; i++) {
        assert_int_equal(cairn_reduce_count(reduces[i]).refused, 0);
        cairn_reduce_destroy(reduces[i]);
    }
    cairn_live_destroy(live);
}

static void
run(enum ending how, const char *percent, struct cairn_ledger *ledger, int version)
{
    ending = how;
    memset(left, 0, sizeof *left);
    for (rank = 0; rank < WORLD; rank++) {
        assert_true(fake_in_child(train, version, percent));
        assert_true(left->counts[rank] > 3 * OPERATIONS && left->counts[rank] < RECORDS_MAX);
    }
    analyse(ledger);
}

/* ---- tests ---- */

static void
test_one_never_enters(void **state)
{
    struct cairn_ledger ledger;

    /* the third does not say who is in a communicator */
    for (int version = 4; version <= 6; version++) {
        run(ONE_NEVER_ENTERS, "0", &ledger, version);
        assert_int_equal(ledger.count, 1);
        assert_int_equal(ledger.entries[0].kind, CAIRN_HANG_COMPUTE);
        assert_int_equal(ledger.entries[0].rank_count, 1);
        assert_int_equal(ledger.entries[0].ranks[0], CULPRIT);
        assert_int_equal(ledger.entries[0].victim_count, WORLD - 1);
        assert_non_null(
            strstr(ledger.entries[0].evidence,
                   "has entered 99 operations all_reduce of a communicator of 4 ranks"));
    }
}

static void
test_none_ends(void **state)
{
    struct cairn_ledger ledger;

    run(NONE_ENDS, "100", &ledger, 5);
    assert_int_equal(ledger.count, 1);
    assert_int_equal(ledger.entries[0].kind, CAIRN_HANG_LINK);
    assert_int_equal(ledger.entries[0].rank_count, WORLD);
}

static void
test_all_pause(void **state)
{
    struct cairn_ledger ledger;

    run(ALL_PAUSE, "0", &ledger, 5);
    assert_int_equal(ledger.count, 0);
    run(ALL_PAUSE, "100", &ledger, 6);
    assert_int_equal(ledger.count, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_never_enters),
                                       cmocka_unit_test(test_none_ends),
                                       cmocka_unit_test(test_all_pause)};

    left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (left == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
