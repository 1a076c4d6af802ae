/*
 * tests/unit/replan/detect/test_spikes.c - every seventh transfer takes up to three times
 * as long, by congestion: no link is called slow for that, and one that is slow is named all the
 * same; so is a NIC that is slow nearly from the first steps, or again.
 */
#include <string.h>

#include "replan/detect/detect.h"
#include "replan/trace/read.h"
#include "tests/support/cmocka.h"

enum { WORLD = 8, PAIRS = 4, COMMS = 8, STEPS = 400, SINCE = 200, SEEDS = 12, MS = 1000000 };

/* Nodes of two. Node 0 sends to node 1, node 2 to node 3; gradients join nodes 0 and 2, and 1 and
 * 3. */
static const char header[] =
    "{\"cairn_trace\":1,\"world\":8,\"nodes\":[0,0,1,1,2,2,3,3],\"comms\":{\"pp0\":[0,2],\"pp1\":["
    "1,3],\"pp2\":[4,6],"
    "\"pp3\":[5,7],\"dp0\":[0,4],\"dp1\":[1,5],\"dp2\":[2,6],\"dp3\":[3,7]}}";

struct job {
    struct cairn_topology *topology;
    struct cairn_detector *detector;
    uint64_t now_ns[WORLD];
    uint32_t seed;
    double spikes, noise; /* of computation */
};

/* Even between 0 and 1. */
static double
unit(struct job *job)
{
    job->seed = job->seed * 1664525u + 1013904223u;
    return (double)(job->seed >> 8) / (1 << 24);
}

static void
feed(struct job *job, uint32_t rank, uint32_t comm, uint8_t op, uint32_t peer, uint32_t step,
     uint64_t start_ns, uint64_t end_ns)
{
    struct cairn_record record = {.rank = rank,
                                  .comm = comm,
                                  .peer = peer,
                                  .step = step,
                                  .op = op,
                                  .bytes = 1000,
                                  .has_step = true,
                                  .start_ns = start_ns + 1000,
                                  .end_ns = end_ns + 1000};

    assert_int_equal(cairn_detector_feed(job->detector, &record), CAIRN_OK);
    job->now_ns[rank] = end_ns;
}

/* Two ranks meet in an operation, or one sends to the other, in transfer_ms after the later has
 * come; now and then in more. */
static void
meet(struct job *job, uint32_t comm, bool pair, uint32_t step, double transfer_ms)
{
    const uint32_t *ranks = job->topology->comms[comm].ranks;
    uint64_t first_ns = job->now_ns[ranks[0]], second_ns = job->now_ns[ranks[1]];
    double factor = (0.9 + 0.2 * unit(job)) * (unit(job) < job->spikes ? 1 + 2 * unit(job) : 1);
    uint64_t end_ns =
        (first_ns > second_ns ? first_ns : second_ns) + (uint64_t)(transfer_ms * factor * MS);

    feed(job, ranks[0], comm, pair ? CAIRN_SEND : CAIRN_ALL_REDUCE,
         pair ? ranks[1] : CAIRN_PEER_NONE, step, first_ns, end_ns);
    feed(job, ranks[1], comm, pair ? CAIRN_RECV : CAIRN_ALL_REDUCE,
         pair ? ranks[0] : CAIRN_PEER_NONE, step, second_ns, end_ns);
}

static void
start(struct job *job, uint32_t seed, double spikes, double noise)
{
    struct cairn_trace_fault fault;

    *job = (struct job){.seed = seed, .spikes = spikes, .noise = noise};
    assert_int_equal(cairn_trace_read_header(header, strlen(header), &job->topology, &fault),
                     CAIRN_OK);
    assert_int_equal(cairn_detector_create(job->topology, 0, &job->detector), CAIRN_OK);
}

/* A step in which the pairs and rings take so many times as long as else. */
static void
run_step(struct job *job, uint32_t step, const double *slow)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        job->now_ns[rank] += (uint64_t)(50 * MS * (1 + job->noise * (2 * unit(job) - 1)));
    for (uint32_t comm = 0; comm < COMMS; comm++)
        meet(job, comm, comm < PAIRS, step, (comm < PAIRS ? 4 : 10) * slow[comm]);
}

/* Sends from rank 0 to rank 2 take `slow` times as long from SINCE on. */
static void
run(struct job *job, uint32_t seed, double slow)
{
    double times[COMMS] = {1, 1, 1, 1, 1, 1, 1, 1};

    start(job, seed, 0.15, 0.02);
    for (uint32_t step = 0; step < STEPS; step++) {
        times[0] = step >= SINCE ? slow : 1;
        run_step(job, step, times);
    }
    assert_int_equal(cairn_detector_finish(job->detector), CAIRN_OK);
}

static void
end(struct job *job)
{
    cairn_detector_destroy(job->detector);
    cairn_topology_destroy(job->topology);
}

static void
test_spikes_alone(void **state)
{
    struct job job;

    (void)state;
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        run(&job, seed, 1);
        assert_int_equal(cairn_detector_verdicts(job.detector)->count, 0);
        end(&job);
    }
}

static void
test_slow_among_spikes(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        const struct cairn_verdicts *verdicts;
        struct job job;

        run(&job, seed, 2);
        verdicts = cairn_detector_verdicts(job.detector);
        assert_int_equal(verdicts->count, 1);
        assert_int_equal(verdicts->items[0].kind, CAIRN_SLOW_LINK);
        assert_int_equal(verdicts->items[0].links.count, 2);
        assert_int_equal(verdicts->items[0].links.items[0], 0);
        assert_int_equal(verdicts->items[0].links.items[1], 2);
        assert_true(verdicts->items[0].rate > 1.8 && verdicts->items[0].rate < 2.2);
        assert_in_range(verdicts->items[0].since_step, SINCE - 3, SINCE + 3);
        assert_in_range(verdicts->items[0].detected_step, SINCE + 3, SINCE + 30);
        end(&job);
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

    (void)state;
    for (uint32_t seed = 1; seed <= SEEDS; seed++)
        for (uint32_t since = 7; since < 12; since++) {
            const struct cairn_verdicts *verdicts;
            struct job job;

            start(&job, 100 * seed, 0, 0.005); /* computation varies less than transfers: no send is
                                                * taken for a part of it */
            for (uint32_t step = 0; step < 80; step++)
                run_step(&job, step, step >= since ? times : normal);
            assert_int_equal(cairn_detector_finish(job.detector), CAIRN_OK);
            verdicts = cairn_detector_verdicts(job.detector);
            assert_int_equal(verdicts->count, 1);
            assert_int_equal(verdicts->items[0].kind, CAIRN_SLOW_LINK);
            assert_int_equal(verdicts->items[0].nodes.count, 1);
            assert_int_equal(verdicts->items[0].nodes.items[0], 0);
            assert_in_range(verdicts->items[0].since_step, since - 2, since + 2);
            assert_in_range(verdicts->items[0].detected_step, 12, 30);
            end(&job);
        }
}

/* It is slow in steps 30 to 49, and again from the 66th on: of what stood before little is left by
 * then. */
static void
test_nic_again(void **state)
{
    static const double times[COMMS] = {2, 2, 1, 1, 2, 2, 1, 1},
                        normal[COMMS] = {1, 1, 1, 1, 1, 1, 1, 1};

    (void)state;
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        const struct cairn_verdicts *verdicts;
        struct job job;

        start(&job, 100 * seed, 0, 0.005);
        for (uint32_t step = 0; step < 150; step++)
            run_step(&job, step, (step >= 30 && step < 50) || step >= 66 ? times : normal);
        assert_int_equal(cairn_detector_finish(job.detector), CAIRN_OK);
        verdicts = cairn_detector_verdicts(job.detector);
        assert_int_equal(verdicts->count, 2);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(verdicts->items[i].kind, CAIRN_SLOW_LINK);
            assert_int_equal(verdicts->items[i].nodes.count, 1);
            assert_int_equal(verdicts->items[i].nodes.items[0], 0);
        }
        assert_in_range(verdicts->items[1].since_step, 64, 68);
        assert_in_range(verdicts->items[1].detected_step, 66, 78);
        end(&job);
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
