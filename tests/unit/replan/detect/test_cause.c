/*
 * tests/unit/replan/detect/test_cause.c - several slow pairs of ranks between two nodes: one
 * verdict that names the two nodes, or the one whose other channels are late too, though each of
 * those is too noisy to be called slow.
 */
#include <string.h>

#include "tests/unit/replan/detect/pipelines.h"

enum { STEPS = 60, SINCE = 30 };

/* Even between 1 - spread and 1 + spread. */
static double
noise(struct job *job, double spread)
{
    return 1 + spread * (2 * job_draw(job) - 1);
}

/* Transfers between node 0 and node 1 take `pairs` times as long from SINCE on, the gradients of
 * node 1 `gradients` times. */
static void
run(struct job *job, double pairs, double gradients)
{
    job_start(job, header, 5);
    for (uint32_t step = 0; step < STEPS; step++) {
        bool slow = step >= SINCE;

        for (uint32_t rank = 0; rank < WORLD; rank++)
            job->now_ns[rank] += (uint64_t)(50 * MS * noise(job, 0.02));
        for (uint32_t comm = 0; comm < PAIRS; comm++)
            meet(job, comm, step, 4 * noise(job, 0.05) * (slow && comm < 2 ? pairs : 1));
        for (uint32_t comm = PAIRS; comm < COMMS; comm++)
            meet(job, comm, step, 10 * noise(job, 0.4) * (slow && comm >= 6 ? gradients : 1));
    }
}

static void
test_between_nodes(void **state)
{
    const struct cairn_verdict *verdict;
    struct job job;

    run(&job, 1.6, 1);
    verdict = job_finish_with(&job, CAIRN_SLOW_LINK);
    assert_int_equal(verdict->nodes.count, 0);
    assert_int_equal(verdict->links.count, 4);
    assert_non_null(strstr(verdict->evidence, "between node 0 and node 1"));
    assert_true(verdict->rate > 1.5 && verdict->rate < 1.7);
    job_end(&job);
}

static void
test_nic(void **state)
{
    const struct cairn_verdict *verdict;
    struct job job;

    run(&job, 1.6, 1.6);
    verdict = job_finish_with(&job, CAIRN_SLOW_LINK);
    assert_only(&verdict->nodes, 1);
    assert_in_range(verdict->detected_step, SINCE + 3, SINCE + 12);
    job_end(&job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_between_nodes),
                                       cmocka_unit_test(test_nic)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
