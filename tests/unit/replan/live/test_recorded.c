/*
 * tests/unit/replan/live/test_recorded.c - ranks that report how much they compute, or record their
 * computation: what is normal is kept per unit of work, over changes of plan and restarts.
 */
#include "tests/support/live_job.h"

/*
 * Ranks record their computation. Nobody is slow for doing more of the work, by plan. One that is
 * slow stays so when it is given half of its work, which takes it as long as the others; and its
 * gaps, in which it does other things, do not count.
 */
static void
test_recorded_computation(void **state)
{
    double factors[WORLD] = {1, 1, 1, 1};
    uint32_t found = 0;
    struct job job;

    start(&job);
    for (uint32_t i = 0; i < 120; i++) {
        bool is_slow = i >= 40, is_replanned = i >= 60;

        for (uint32_t rank = 0; rank < WORLD; rank++) {
            uint64_t units = rank == 2 && is_replanned ? 2 : rank == 3 ? 8 : 4;
            struct cairn_timing_record record = {.rank = rank,
                                                 .step = job.step + 1,
                                                 .op = CAIRN_TIMING_COMPUTE,
                                                 .bytes = units / 2,
                                                 .end_ns = job.now_ns};

            factors[rank] = rank == 1 && i % 2 ? 2 : 1; /* gaps */
            record.enter_ns = job.now_ns - (uint64_t)((double)units * MS * noise(&job) *
                                                      (rank == 2 && is_slow ? 2 : 1));
            for (uint32_t part = 0; part < 2; part++) /* forward, backward */
                assert_int_equal(cairn_reduce_take(job.reduces[rank], &record, job.now_ns),
                                 CAIRN_OK);
        }
        steps(&job, 1, factors);
        /* before, the plan is uneven, and that is all */
        for (uint32_t k = 0; !is_slow && k < job.ledger.count; k++)
            assert_int_equal(job.ledger.entries[k].kind, CAIRN_STRUCTURAL);
    }
    for (uint32_t k = 0; k < job.ledger.count; k++) {
        const struct cairn_ledger_entry *entry = &job.ledger.entries[k];

        if (entry->kind == CAIRN_STRUCTURAL)
            continue;
        found++;
        assert_int_equal(entry->kind, CAIRN_SLOW_COMPUTE);
        assert_true(entry->closed_why[0] == 0);
        assert_int_equal(entry->ranks[0], 2);
        assert_in_range(entry->since_step, 40, 43);
        assert_true(entry->rate > 1.9 && entry->rate < 2.1);
    }
    assert_int_equal(found, 1);
    end(&job);
}

/* Ranks whose sequences differ by step, and report it, are not slow for that, also where one says
 * it of two steps in turn, and one not for a while; one that is slow besides is found. */
static void
test_work(void **state)
{
    struct job job;

    start(&job);
    for (uint32_t i = 0; i < 200; i++) {
        double factors[WORLD];

        for (uint32_t rank = 0; rank < WORLD; rank++) {
            struct cairn_timing_record record = {.rank = rank,
                                                 .step = job.step + 1,
                                                 .op = CAIRN_TIMING_WORK,
                                                 .enter_ns = job.now_ns};
            uint64_t tokens = 2000 + (uint64_t)(4000 * (noise(&job) - 0.98) / 0.04);

            factors[rank] = (double)tokens / 4000 * (rank == 1 && i >= 150 ? 1.5 : 1);
            for (uint32_t part = 0; part < 2; part++) { /* micro-batches */
                record.bytes = part ? tokens - tokens / 2 : tokens / 2;
                record.step = job.step + 1;
                if (rank == 3 && i >= 60 && i < 80)
                    continue;
                assert_int_equal(cairn_reduce_take(job.reduces[rank], &record, job.now_ns),
                                 CAIRN_OK);
                record.step++; /* a thread that loads ahead */
                record.bytes = 1;
                if (rank == 2 && i >= 100 && i < 120)
                    assert_int_equal(cairn_reduce_take(job.reduces[rank], &record, job.now_ns),
                                     CAIRN_OK);
            }
        }
        steps(&job, 1, factors);
        /* the plan is uneven, and that is all */
        for (uint32_t k = 0; i < 150 && k < job.ledger.count; k++)
            assert_int_equal(job.ledger.entries[k].kind, CAIRN_STRUCTURAL);
    }
    assert_true(cairn_ledger_suspects(&job.ledger));
    for (uint32_t k = 0; k < job.ledger.count; k++)
        if (job.ledger.entries[k].kind != CAIRN_STRUCTURAL) {
            assert_int_equal(job.ledger.entries[k].kind, CAIRN_SLOW_COMPUTE);
            assert_int_equal(job.ledger.entries[k].ranks[0], 1);
            assert_in_range(job.ledger.entries[k].since_step, 150, 153);
            assert_true(job.ledger.entries[k].rate > 1.4 && job.ledger.entries[k].rate < 1.6);
        }
    end(&job);
}

/* One step in which the ranks record computations of 4 ms, times their factors. */
static void
recorded_step(struct job *job, const double *factors)
{
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        uint64_t ns = (uint64_t)(4.0 * MS * noise(job) * factors[rank]);
        struct cairn_timing_record record = {.rank = rank,
                                             .step = job->step + 1,
                                             .op = CAIRN_TIMING_COMPUTE,
                                             .bytes = 2,
                                             .enter_ns = job->now_ns - ns,
                                             .end_ns = job->now_ns};

        assert_int_equal(cairn_reduce_take(job->reduces[rank], &record, job->now_ns), CAIRN_OK);
    }
    steps(job, 1, NULL);
}

static void
recorded_steps(struct job *job, uint32_t count, const double *factors)
{
    for (uint32_t i = 0; i < count; i++)
        recorded_step(job, factors);
}

static void
restart(struct job *job)
{
    job->attachment++;
    job->comm++;
    for (uint32_t rank = 0; rank < WORLD; rank++)
        attach(job, rank);
}

static bool
is_unsure(const struct job *job, uint32_t rank)
{
    struct cairn_live_view view;

    cairn_live_look(job->live, job->now_ns, &view);
    return cairn_ledger_is_unsure(&job->ledger, rank, view.run, 1);
}

/* Rank 2 has a faster device: when that is slow, its peers show nothing. */
static const double all_well[WORLD] = {1, 1, 0.5, 1}, one_slow[WORLD] = {1, 1, 1, 1};

/* Rank 2 is slow, and all trainers restart. */
static void
begin_slow_and_restart(struct job *job)
{
    start(job);
    recorded_steps(job, 40, all_well);
    recorded_steps(job, 30, one_slow);
    assert_int_equal(cairn_ledger_open_count(&job->ledger), 1);
    restart(job);
    recorded_step(job, one_slow);
    assert_int_equal(cairn_ledger_open_count(&job->ledger), 0);
    assert_true(is_unsure(job, 2));
}

/* A rank that was slow when the trainers were restarted, and still is, is found at once; its end
 * is seen too, and so is the next time, over another restart. */
static void
test_slow_over_a_restart(void **state)
{
    const struct cairn_ledger_entry *entry;
    struct job job;

    begin_slow_and_restart(&job);
    entry = &job.ledger.entries[0];
    for (uint32_t restarts = 0; restarts < 2; restarts++) {
        recorded_steps(&job, 30, one_slow);
        assert_int_equal(job.ledger.count, 1);
        assert_int_equal(cairn_ledger_open_count(&job.ledger), 1);
        assert_int_equal(entry->ranks[0], 2);
        assert_true(entry->rate > 1.9 && entry->rate < 2.1);
        recorded_steps(&job, 40, all_well);
        assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
        assert_string_equal(entry->closed_why, "it is over");
        assert_false(is_unsure(&job, 2));
        recorded_steps(&job, 20, one_slow);
        assert_int_equal(cairn_ledger_open_count(&job.ledger), 1);
        restart(&job);
    }
    assert_int_equal(job.ledger.count, 1);
    end(&job);
}

/* One that is well after the restart is known to be. */
static void
test_well_after_a_restart(void **state)
{
    struct job job;

    begin_slow_and_restart(&job);
    restart(&job); /* a run that learns nothing */
    recorded_steps(&job, 40, all_well);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
    assert_false(is_unsure(&job, 2));
    end(&job);
}

/* All devices compute another model, twice as long: nobody is slow for that. */
static void
test_another_model_after_a_restart(void **state)
{
    const double larger[WORLD] = {2, 2, 1, 2}, larger_slow[WORLD] = {2, 2, 2, 2};
    struct job job;

    begin_slow_and_restart(&job);
    restart(&job);
    recorded_steps(&job, 40, larger_slow);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 1);
    recorded_steps(&job, 40, larger);
    assert_int_equal(cairn_ledger_open_count(&job.ledger), 0);
    end(&job);
}

/* On another device nothing is known of a rank, nor where computation is not recorded. */
static void
test_unsure_after_a_restart(void **state)
{
    struct job job;

    begin_slow_and_restart(&job);
    job.node[2] = WORLD;
    restart(&job);
    recorded_steps(&job, 40, all_well);
    assert_true(is_unsure(&job, 2));
    end(&job);
    begin_slow_and_restart(&job);
    restart(&job);
    steps(&job, 40, NULL);
    assert_true(is_unsure(&job, 2));
    end(&job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_computation),
        cmocka_unit_test(test_work),
        cmocka_unit_test(test_slow_over_a_restart),
        cmocka_unit_test(test_well_after_a_restart),
        cmocka_unit_test(test_another_model_after_a_restart),
        cmocka_unit_test(test_unsure_after_a_restart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
