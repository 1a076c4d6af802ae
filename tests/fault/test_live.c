/*
 * tests/fault/test_live.c - the analysis of a running job whose n-th allocation fails, for many n
 * until none does: it loses a step or begins later, never crashes or leaks, and names the slow rank
 * all the same.
 */
#include "replan/live/live.h"
#include "replan/live/reduce.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/cmocka.h"
#include "tests/support/failing_calls.h"

enum {
    WORLD = 4,
    STEPS = 90,
    SLOW_STEP = 60,
    SLOW = 2,
    ATTEMPTS_MAX = 20000,
    COUNTED = 40,
    MS = 1000000
};

struct job {
    struct cairn_ledger ledger;
    struct cairn_live *live;
    struct cairn_reduce *reduces[WORLD];
    uint64_t now_ns;
};

static void
take(void *context, const struct cairn_report *report)
{
    struct job *job = context;
    cairn_err err = cairn_live_take(job->live, report->rank / 2, report, job->now_ns, job->now_ns);

    assert_true(err == CAIRN_OK || err == CAIRN_NOMEM);
}

static bool
start(struct job *job)
{
    struct cairn_live_options options = {.ledger = &job->ledger, .first_run = 1};

    memset(job, 0, sizeof *job);
    job->now_ns = 1000 * (uint64_t)MS;
    cairn_ledger_init(&job->ledger);
    if (cairn_live_create(&options, &job->live) != CAIRN_OK)
        return false;
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        struct cairn_reduce_options reduce = {
            .rank = rank, .world = WORLD, .attachment = 3, .emit = take, .context = job};

        if (cairn_reduce_create(&reduce, &job->reduces[rank]) != CAIRN_OK)
            return false;
    }
    return true;
}

static void
step(struct job *job, uint32_t number)
{
    uint64_t enter_ns[WORLD], last_ns = 0;

    for (uint32_t rank = 0; rank < WORLD; rank++) {
        enter_ns[rank] = job->now_ns + 20 * MS + (rank * 7919 + number * 104729) % 300000 +
                         (rank == SLOW && number > SLOW_STEP ? 15 * MS : 0);
        last_ns = enter_ns[rank] > last_ns ? enter_ns[rank] : last_ns;
    }
    job->now_ns = last_ns + MS;
    for (uint32_t rank = 0; rank < WORLD; rank++)
        for (int ended = 0; ended < 2; ended++) {
            struct cairn_timing_record record = {.comm = 5,
                                                 .seq = number,
                                                 .bytes = 64,
                                                 .enter_ns = enter_ns[rank],
                                                 .end_ns = ended ? job->now_ns : 0,
                                                 .rank = rank,
                                                 .peer = CAIRN_PEER_NONE,
                                                 .step = number,
                                                 .ranks = WORLD,
                                                 .op = CAIRN_ALL_REDUCE};
            cairn_err err = cairn_reduce_take(job->reduces[rank], &record, job->now_ns);

            assert_true(err == CAIRN_OK || err == CAIRN_NOMEM);
            if (err)
                cairn_reduce_lose(job->reduces[rank], 1);
        }
}

/* An operation of a job that only NCCL's plugin records; one rank enters only what is before
 * the last. */
static void
enter(struct job *job, uint64_t number)
{
    job->now_ns += 1000 * (uint64_t)MS;
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        struct cairn_timing_record record = {.comm = 5,
                                             .seq = number,
                                             .enter_ns = job->now_ns,
                                             .rank = rank,
                                             .ranks = WORLD,
                                             .peer = number ? CAIRN_PEER_NONE : rank,
                                             .op = number ? CAIRN_ALL_REDUCE : CAIRN_TIMING_MEMBER};

        if (rank != SLOW || number < COUNTED)
            assert_int_equal(cairn_reduce_take(job->reduces[rank], &record, job->now_ns), CAIRN_OK);
    }
}

static void
end(struct job *job)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        cairn_reduce_destroy(job->reduces[rank]);
    cairn_live_destroy(job->live);
}

/* False when a job could not even start. */
static bool
run(struct job *job)
{
    bool started = start(job);

    for (uint32_t number = 1; started && number <= STEPS; number++) {
        cairn_err err;

        step(job, number);
        err = cairn_live_check(job->live, job->now_ns, job->now_ns);
        assert_true(err == CAIRN_OK || err == CAIRN_NOMEM);
    }
    end(job);
    return started;
}

/* The same of a job that names no steps, and hangs. */
static bool
run_hang(struct job *job)
{
    bool started = start(job);

    for (uint64_t number = 0; started && number <= COUNTED; number++)
        enter(job, number);
    for (int look = 0; started && look < 24; look++) {
        cairn_err err;

        job->now_ns += 500 * (uint64_t)MS;
        for (uint32_t rank = 0; rank < WORLD; rank++)
            cairn_reduce_stand(job->reduces[rank], CAIRN_PRESENCE_RUNS, job->now_ns);
        err = cairn_live_check(job->live, job->now_ns, job->now_ns);
        assert_true(err == CAIRN_OK || err == CAIRN_NOMEM);
    }
    end(job);
    return started;
}

/* Where a membership or the counts of a rank were lost no verdict is possible; that nobody else is
 * blamed is the rule. */
static void
test_one_allocation_fails_in_a_hang(void **state)
{
    struct job *job = __real_malloc(sizeof *job);
    uint32_t said = 0;

    assert_non_null(job);
    for (int64_t call = 0; call < ATTEMPTS_MAX; call++) {
        arm(MEMORY, call, false);
        if (run_hang(job) && job->ledger.count > 0) {
            assert_true(job->ledger.count == 1 && job->ledger.entries[0].rank_count == 1);
            assert_int_equal(job->ledger.entries[0].ranks[0], SLOW);
            said++;
        }
        disarm();
        if (calls <= fail_at)
            break;
    }
    assert_true(calls <= fail_at && job->ledger.count == 1 && said > 10);
    free(job);
}

static void
test_one_allocation_fails(void **state)
{
    struct job *job = __real_malloc(sizeof *job);
    uint32_t started = 0;

    assert_non_null(job);
    for (int64_t call = 0; call < ATTEMPTS_MAX; call++) {
        arm(MEMORY, call, false);
        if (run(job)) {
            started++;
            assert_true(job->ledger.count == 1 && job->ledger.entries[0].ranks[0] == SLOW);
        }
        disarm();
        if (calls <= fail_at)
            break;
    }
    assert_true(calls <= fail_at && started > 100);
    free(job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_allocation_fails),
                                       cmocka_unit_test(test_one_allocation_fails_in_a_hang)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
