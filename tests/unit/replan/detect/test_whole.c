/*
 * tests/unit/replan/detect/test_whole.c - pipelines whose sequences vary unreported, each on a
 * node of its own: a node that becomes slow is named, one that is not slow is not, and pauses that
 * happen to meet on a rank do not make it slow.
 */
#include <math.h>

#include "tests/unit/replan/detect/job.h"

enum { WORLD = 16, PIPELINES = 4, RANKS = 4 };

static const char header[] = "{\"cairn_trace\":1,\"world\":16,\"nodes\":[0,0,0,0,1,1,1,1,2,2,2,2,3,"
                             "3,3,3],\"comms\":{\"tp0\":[0,1,2,3],"
                             "\"tp1\":[4,5,6,7],\"tp2\":[8,9,10,11],\"tp3\":[12,13,14,15],\"dp0\":["
                             "0,4,8,12],\"dp1\":[1,5,9,13],"
                             "\"dp2\":[2,6,10,14],\"dp3\":[3,7,11,15]}}";

static void
start(struct job *job)
{
    job_start(job, header, 11);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        job->now_ns[rank] = 5000000000ull * (rank + 1); /* clocks are seconds apart */
}

/* Even between -1 and 1. */
static double
even(struct job *job)
{
    return 2 * job_draw(job) - 1;
}

/* All members compute, each for its time, and meet; clocks stay as far apart as they were. */
static void
meet(struct job *job, uint32_t comm, uint32_t step, const double *compute_ms, double transfer_ms)
{
    const struct cairn_comm *members = &job->topology->comms[comm];
    double longest_ms = 0;

    for (uint32_t i = 0; i < members->count; i++)
        longest_ms = fmax(longest_ms, compute_ms[members->ranks[i]]);
    for (uint32_t i = 0; i < members->count; i++) {
        uint32_t rank = members->ranks[i];
        struct cairn_record record = {.rank = rank,
                                      .comm = comm,
                                      .peer = CAIRN_PEER_NONE,
                                      .seq = step,
                                      .step = step,
                                      .op = CAIRN_ALL_REDUCE,
                                      .has_seq = true,
                                      .has_step = true,
                                      .bytes = 1000};

        record.start_ns = job->now_ns[rank] + (uint64_t)(compute_ms[rank] * MS);
        record.end_ns = job->now_ns[rank] + (uint64_t)((longest_ms + transfer_ms) * MS);
        assert_int_equal(cairn_detector_feed(job->detector, &record), CAIRN_OK);
        job->now_ns[rank] = record.end_ns;
    }
}

/* One step: lengths vary by up to `lengths` for a whole pipeline, ranks by 1 %; factor[rank] on
 * top. */
static void
run_step(struct job *job, uint32_t step, double lengths, const double *factor)
{
    double compute_ms[WORLD], nothing_ms[WORLD], length = 1;

    for (uint32_t rank = 0; rank < WORLD; rank++) {
        if (rank % RANKS == 0)
            length = 1 + lengths * even(job);
        compute_ms[rank] = 100 * length * (1 + 0.01 * even(job)) * factor[rank];
        nothing_ms[rank] = 0.01;
    }
    for (uint32_t comm = 0; comm < PIPELINES; comm++)
        meet(job, comm, step, compute_ms, 2 + 0.1 * even(job));
    for (uint32_t comm = PIPELINES; comm < PIPELINES + RANKS; comm++)
        meet(job, comm, step, nothing_ms, 10 + 0.5 * even(job));
}

static void
fill(double *factor, double value, uint32_t first, uint32_t count)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        factor[rank] = rank >= first && rank < first + count ? value : 1;
}

static void
test_whole(void **state)
{
    const struct cairn_verdict *verdict;
    double factor[WORLD];
    struct job job;

    start(&job);
    for (uint32_t step = 0; step < 120; step++) {
        fill(factor, step >= 40 && step < 80 ? 1.4 : 1, 8, 4);
        run_step(&job, step, 0.12, factor);
    }
    assert_int_equal(cairn_detector_finish(job.detector), CAIRN_OK);
    verdict = job_finish_with(&job, CAIRN_SLOW_NODE);
    assert_only(&verdict->nodes, 2);
    assert_int_equal(verdict->ranks.count, RANKS);
    assert_true(verdict->rate > 1.3 && verdict->rate < 1.5);
    assert_in_range(verdict->since_step, 38, 42);
    assert_in_range(verdict->detected_step, 42, 52);
    assert_in_range(verdict->until_step, 76, 84);
    job_end(&job);
}

static void
test_lengths_alone(void **state)
{
    double factor[WORLD];
    struct job job;

    start(&job);
    fill(factor, 1, 0, 0);
    for (uint32_t step = 0; step < 1000; step++)
        run_step(&job, step, 0.12, factor);
    job_finish(&job, 0);
    job_end(&job);
}

/* In every fifth step of a pipeline its sequences are by up to a third longer. A node's steps that
 * are that long by chance are not a slow node, and one that is slow is named all the same. */
static void
test_few_long_sequences(void **state)
{
    for (uint32_t seed = 1; seed < 17; seed++) {
        const struct cairn_verdicts *verdicts;
        uint32_t slow = seed % 2;
        double factor[WORLD];
        struct job job;

        start(&job);
        job.seed = seed;
        for (uint32_t step = 0; step < 600; step++) {
            for (uint32_t rank = 0; rank < WORLD; rank += RANKS) {
                double length =
                    even(&job) > 0.6 ? 1 + 0.33 * fabs(even(&job)) : 1 + 0.02 * even(&job);

                for (uint32_t k = 0; k < RANKS; k++)
                    factor[rank + k] =
                        length * (slow && rank == 8 && step >= 400 && step < 500 ? 1.25 : 1);
            }
            run_step(&job, step, 0, factor);
        }
        verdicts = job_finish(&job, slow);
        if (slow) {
            assert_int_equal(verdicts->items[0].kind, CAIRN_SLOW_NODE);
            assert_int_equal(verdicts->items[0].nodes.items[0], 2);
            assert_in_range(verdicts->items[0].since_step, 397, 403);
            assert_in_range(verdicts->items[0].detected_step, 403, 435);
            assert_in_range(verdicts->items[0].until_step, 490, 510);
        }
        job_end(&job);
    }
}

/*
 * The lengths of each pipeline wander: what one has from step to step is correlated by 0.9. Hardly
 * ever is a node called slow for that.
 */
static void
test_lengths_that_wander(void **state)
{
    uint32_t devices = 0;

    for (uint32_t seed = 1; seed < 17; seed++) {
        double factor[WORLD], kept[PIPELINES] = {0};
        struct job job;

        start(&job);
        job.seed = seed;
        for (uint32_t step = 0; step < 600; step++) {
            for (uint32_t i = 0; i < PIPELINES; i++) {
                double fresh = even(&job) + even(&job) + even(&job); /* of variance 1 */

                kept[i] = step > 0 ? 0.9 * kept[i] + sqrt(1 - 0.81) * fresh : fresh;
                for (uint32_t k = 0; k < RANKS; k++)
                    factor[RANKS * i + k] = exp(0.08 * kept[i]);
            }
            run_step(&job, step, 0, factor);
        }
        assert_int_equal(cairn_detector_finish(job.detector), CAIRN_OK);
        for (uint32_t i = 0; i < cairn_detector_verdicts(job.detector)->count; i++)
            devices += cairn_detector_verdicts(job.detector)->items[i].kind != CAIRN_STRUCTURAL;
        job_end(&job);
    }
    print_message("%u verdicts on devices in 9600 steps\n", devices);
    assert_true(devices <= 2); /* in the first steps too little is known of what lengths do */
}

/* Every other step some rank pauses; twice they meet on rank 5, three of four steps. */
static void
test_pauses_that_meet(void **state)
{
    const struct cairn_verdict *verdict;
    double factor[WORLD];
    struct job job;

    start(&job);
    for (uint32_t step = 0; step < 80; step++) {
        fill(factor, 1.5, step * 7 % WORLD, step % 2);
        if (step == 12 || step == 13 || step == 15 || step == 57 || step == 59 || step == 60)
            factor[5] = 1.5;
        run_step(&job, step, 0, factor);
    }
    assert_int_equal(cairn_detector_finish(job.detector), CAIRN_OK);
    verdict = job_finish_with(&job, CAIRN_STRUCTURAL);
    assert_string_equal(verdict->pattern, "garbage_collection");
    job_end(&job);
}

/* The same pauses, and a rank that is really slow: it is named all the same. */
static void
test_slow_among_pauses(void **state)
{
    const struct cairn_verdicts *verdicts;
    uint32_t slow = 0;
    double factor[WORLD];
    struct job job;

    start(&job);
    for (uint32_t step = 0; step < 80; step++) {
        fill(factor, 1.5, step * 7 % WORLD, step % 2);
        if (step >= 40)
            factor[5] = 1.5;
        run_step(&job, step, 0, factor);
    }
    assert_int_equal(cairn_detector_finish(job.detector), CAIRN_OK);
    verdicts = cairn_detector_verdicts(job.detector);
    for (uint32_t i = 0; i < verdicts->count; i++)
        if (verdicts->items[i].kind == CAIRN_SLOW_COMPUTE) {
            slow++;
            assert_int_equal(verdicts->items[i].ranks.items[0], 5);
            assert_in_range(verdicts->items[i].detected_step, 43, 50);
        }
    assert_int_equal(slow, 1);
    job_end(&job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole),
                                       cmocka_unit_test(test_lengths_alone),
                                       cmocka_unit_test(test_few_long_sequences),
                                       cmocka_unit_test(test_lengths_that_wander),
                                       cmocka_unit_test(test_pauses_that_meet),
                                       cmocka_unit_test(test_slow_among_pauses)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
