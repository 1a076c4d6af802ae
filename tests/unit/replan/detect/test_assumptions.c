/*
 * tests/unit/replan/detect/test_assumptions.c - what the detector assumes of a trace, broken: no
 * healthy rank is named (docs/DETECTION.md, What it assumes).
 */
#include "tests/unit/replan/detect/pipelines.h"

enum { STEPS = 160, SINCE = 80, SEEDS = 6, SLOW_RANK = 3 };

/* The job of pipelines.h, whose communicators do not tell their roles. */
static const char other_names[] =
    "{\"cairn_trace\":1,\"world\":8,\"nodes\":[0,0,1,1,2,2,3,3],\"comms\":{\"c0\":[0,2],\"c1\":["
    "1,3],\"c2\":[4,6],"
    "\"c3\":[5,7],\"c4\":[0,4],\"c5\":[1,5],\"c6\":[2,6],\"c7\":[3,7]}}";

static double
jitter(struct job *job)
{
    return 0.98 + 0.04 * job_draw(job);
}

/* Every rank computes, one of them for `slow` times as long from SINCE on; the first ranks of the
 * pairs compute for `longer` times as long as the second, always. */
static void
compute(struct job *job, uint32_t step, double slow, double longer)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        job->now_ns[rank] += (uint64_t)(50 * MS * jitter(job) * (rank % 4 < 2 ? longer : 1) *
                                        (rank == SLOW_RANK && step >= SINCE ? slow : 1));
}

/* A ring's operation that goes on for transfer_ms while its ranks compute. It begins when the
 * ring's last one, which ended at *ring_ns, has ended on both. */
static void
meet_aside(struct job *job, uint32_t comm, uint32_t step, double transfer_ms, uint64_t *ring_ns)
{
    const uint32_t *ranks = job->topology->comms[comm].ranks;
    uint64_t begin_ns[2], last_ns = 0, end_ns;

    for (uint32_t i = 0; i < 2; i++) {
        begin_ns[i] = job->now_ns[ranks[i]] > *ring_ns ? job->now_ns[ranks[i]] : *ring_ns;
        last_ns = begin_ns[i] > last_ns ? begin_ns[i] : last_ns;
    }
    end_ns = last_ns + (uint64_t)(transfer_ms * MS);
    for (uint32_t i = 0; i < 2; i++) {
        feed(job, ranks[i], comm, CAIRN_ALL_REDUCE, CAIRN_PEER_NONE, step, begin_ns[i], end_ns);
        job->now_ns[ranks[i]] = begin_ns[i];
    }
    *ring_ns = end_ns;
}

static void
assert_slow_rank(const struct cairn_verdict *verdict)
{
    assert_int_equal(verdict->kind, CAIRN_SLOW_COMPUTE);
    assert_only(&verdict->ranks, SLOW_RANK);
    assert_in_range(verdict->since_step, SINCE - 1, SINCE + 1);
}

static void
test_other_names(void **state)
{
    static const double longer[] = {1, 1.3};

    for (uint32_t seed = 1; seed <= SEEDS; seed++)
        for (uint32_t uneven = 0; uneven < 2; uneven++)
            for (uint32_t wrong = 0; wrong < 2; wrong++) {
                const struct cairn_verdicts *verdicts;
                struct job job;

                job_start(&job, other_names, seed);
                for (uint32_t step = 0; step < STEPS; step++) {
                    compute(&job, step, wrong ? 1.4 : 1, longer[uneven]);
                    for (uint32_t comm = 0; comm < COMMS; comm++)
                        meet(&job, comm, step, (comm < PAIRS ? 4 : 10) * jitter(&job));
                }
                verdicts = job_finish(&job, wrong);
                if (wrong)
                    assert_slow_rank(&verdicts->items[0]);
                job_end(&job);
            }
}

/* A step's gradients are reduced while the next step computes already, and hide a part of that. How
 * much varies, so lengths may look uneven. Beside the culprit a victim may be named, whose
 * operations hide less then. No rank of a healthy job is. */
static void
test_operations_into_the_next_step(void **state)
{
    for (uint32_t seed = 1; seed <= SEEDS; seed++)
        for (int wrong = 0; wrong < 2; wrong++) {
            const struct cairn_verdicts *verdicts;
            uint64_t rings_ns[COMMS] = {0};
            bool found = false;
            struct job job;

            job_start(&job, header, seed);
            for (uint32_t step = 0; step < STEPS; step++) {
                compute(&job, step, wrong ? 1.4 : 1, 1);
                for (uint32_t comm = 0; comm < PAIRS; comm++)
                    meet(&job, comm, step, 4 * jitter(&job));
                for (uint32_t comm = PAIRS; comm < COMMS; comm++)
                    meet_aside(&job, comm, step, 30 * jitter(&job), &rings_ns[comm]);
            }
            assert_int_equal(cairn_detector_finish(job.detector), CAIRN_OK);
            verdicts = cairn_detector_verdicts(job.detector);
            for (uint32_t i = 0; i < verdicts->count; i++) {
                if (verdicts->items[i].kind == CAIRN_STRUCTURAL)
                    continue;
                assert_true(wrong);
                found |= verdicts->items[i].ranks.items[0] == SLOW_RANK;
            }
            assert_int_equal(found, wrong);
            job_end(&job);
        }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_names),
        cmocka_unit_test(test_operations_into_the_next_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
