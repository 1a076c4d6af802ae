/*
 * tests/unit/replan/detect/test_spikes.c - every seventh transfer takes up to three times
 * as long, by congestion: no link is called slow for that, and one that is slow is named all the
 * same; so is a NIC that is slow nearly from the first steps, or again.
 */
#include "tests/unit/replan/detect/pipelines.h"

enum { STEPS = 400, SINCE = 200, SEEDS = 12 };

/* A step in which the pairs and rings take so many times as long as else, computation varies by
 * `noise`, and a share `spikes` of the transfers takes up to three times as long. */
static void
run_step(struct job *job, uint32_t step, const double *slow, double spikes, double noise)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        job->now_ns[rank] += (uint64_t)(50 * MS * (1 + noise * (2 * job_draw(job) - 1)));
    for (uint32_t comm = 0; comm < COMMS; comm++) {
        double factor =
            (0.9 + 0.2 * job_draw(job)) * (job_draw(job) < spikes ? 1 + 2 * job_draw(job) : 1);

        meet(job, comm, step, (comm < PAIRS ? 4 : 10) * slow[comm] * factor);
    }
}

/* Sends from rank 0 to rank 2 take `slow` times as long from SINCE on. */
static void
run(struct job *job, uint32_t seed, double slow)
{
    double times[COMMS] = {1, 1, 1, 1, 1, 1, 1, 1};

    job_start(job, header, seed);
    for (uint32_t step = 0; step < STEPS; step++) {
        times[0] = step >= SINCE ? slow : 1;
        run_step(job, step, times, 0.15, 0.02);
    }
}

static void
test_spikes_alone(void **state)
{
    struct job job;

    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        run(&job, seed, 1);
        job_finish(&job, 0);
        job_end(&job);
    }
}

static void
test_slow_among_spikes(void **state)
{
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        const struct cairn_verdict *verdict;
        struct job job;

        run(&job, seed, 2);
        verdict = job_finish_with(&job, CAIRN_SLOW_LINK);
        assert_int_equal(verdict->links.count, 2);
        assert_int_equal(verdict->links.items[0], 0);
        assert_int_equal(verdict->links.items[1], 2);
        assert_true(verdict->rate > 1.8 && verdict->rate < 2.2);
        assert_in_range(verdict->since_step, SINCE - 3, SINCE + 3);
        assert_in_range(verdict->detected_step, SINCE + 3, SINCE + 30);
        job_end(&job);
    }
}

/* All that goes over node 0's NIC becomes slow before twelve steps have shown what is normal, or
 * hardly after: what is slow with a channel tells nothing of what chance does to it. (Of one after
 * the sixth step the first twelve show no normal.) */
static void
test_nic_in_first_steps(void **state)
{
    static const double times[COMMS] = {2, 2, 1, 1, 2, 2, 1, 1},
                        normal[COMMS] = {1, 1, 1, 1, 1, 1, 1, 1};

    for (uint32_t seed = 1; seed <= SEEDS; seed++)
        for (uint32_t since = 7; since < 12; since++) {
            const struct cairn_verdict *verdict;
            struct job job;

            job_start(&job, header,
                      100 * seed); /* computation varies less than transfers: no send is
                                                * taken for a part of it */
            for (uint32_t step = 0; step < 80; step++)
                run_step(&job, step, step >= since ? times : normal, 0, 0.005);
            verdict = job_finish_with(&job, CAIRN_SLOW_LINK);
            assert_only(&verdict->nodes, 0);
            assert_in_range(verdict->since_step, since - 2, since + 2);
            assert_in_range(verdict->detected_step, 12, 30);
            job_end(&job);
        }
}

/* It is slow in steps 30 to 49, and again from the 66th on: of what stood before little is left by
 * then. */
static void
test_nic_again(void **state)
{
    static const double times[COMMS] = {2, 2, 1, 1, 2, 2, 1, 1},
                        normal[COMMS] = {1, 1, 1, 1, 1, 1, 1, 1};

    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        const struct cairn_verdicts *verdicts;
        struct job job;

        job_start(&job, header, 100 * seed);
        for (uint32_t step = 0; step < 150; step++)
            run_step(&job, step, (step >= 30 && step < 50) || step >= 66 ? times : normal, 0,
                     0.005);
        verdicts = job_finish(&job, 2);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(verdicts->items[i].kind, CAIRN_SLOW_LINK);
            assert_only(&verdicts->items[i].nodes, 0);
        }
        assert_in_range(verdicts->items[1].since_step, 64, 68);
        assert_in_range(verdicts->items[1].detected_step, 66, 78);
        job_end(&job);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spikes_alone), cmocka_unit_test(test_slow_among_spikes),
        cmocka_unit_test(test_nic_in_first_steps), cmocka_unit_test(test_nic_again)};

    return cmocka_run_group_tests_name("replan/spikes", tests, NULL, NULL);
}
