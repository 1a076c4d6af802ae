/*
 * tests/unit/replan/detect/test_normal.c - pipelines whose lengths nobody reports: what all ranks
 * of a pipeline compute more or less in a step says nothing of one of them.
 */
#include <stdio.h>
#include <stdlib.h>

#include "replan/detect/detector.h"
#include "tests/traces/job.h"
#include "tests/unit/replan/detect/trace.h"

/* Two pipelines of four stages, pairs of ranks each, whose steps have no name. */
static const struct job healthy = {.tp = 2,
                                   .pp = 4,
                                   .dp = 2,
                                   .world = 16,
                                   .ranks_per_node = 4,
                                   .steps = 100,
                                   .microbatches = 4,
                                   .tree = true,
                                   .forward_ns = 20e6,
                                   .optimizer_ns = 4.6e6,
                                   .tp_ns = 1e6,
                                   .pair_ns = 2e6,
                                   .dp_ns = 8e6,
                                   .noise = 0.0064,
                                   .noise_near = 0.035,
                                   .noise_far = 0.056,
                                   .length_spread = 0.09};

/* The pipeline with the short sequences waits for the other one in the gradients. Its ranks were
 * taken to compute behind these, some of them and others not; and where time in sends may be
 * computation, the smaller of both readings was compared before what is common was taken out. */
static void
test_short_sequences(void **state)
{
    for (uint64_t seed = 4; seed <= 14; seed += 10) {
        struct random random = {seed}, spikes = {seed + 1};
        struct cairn_topology *topology = NULL;
        struct cairn_detector *detector;
        char *trace = NULL;
        size_t trace_bytes;
        FILE *out = open_memstream(&trace, &trace_bytes);

        job_simulate(&healthy, &random, &spikes, out);
        assert_int_equal(fclose(out), 0);
        detector = trace_detect(trace, &topology);
        assert_true(detector->by_pipeline);
        for (uint32_t rank = 0; rank < topology->world; rank++)
            for (uint32_t back = 0; back < detector->ranks[rank].shift.used; back++) {
                double late = cairn_shift_value(&detector->ranks[rank].shift, back);

                if (late > 0.05)
                    fail_msg("seed %u: rank %u is %.0f %% late, %u steps before the end",
                             (uint32_t)seed, rank, 100 * late, back);
            }
        cairn_detector_destroy(detector);
        cairn_topology_destroy(topology);
        free(trace);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_short_sequences)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
