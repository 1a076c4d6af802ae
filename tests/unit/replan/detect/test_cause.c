/*
 * tests/unit/replan/detect/test_cause.c - several slow pairs of ranks between two nodes: one
 * verdict that names the two nodes, or the one whose other channels are late too, though each of
 * those is too noisy to be called slow.
 */
#include <string.h>

#include "replan/detect/detect.h"
#include "replan/trace/read.h"
#include "tests/support/cmocka.h"

enum { WORLD = 8, STEPS = 60, SINCE = 30, MS = 1000000 };

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
};

/* Even between 1 - spread and 1 + spread. */
static double
noise(struct job *job, double spread)
{
    job->seed = job->seed * 1664525u + 1013904223u;
    return 1 + spread * (2 * (double)(job->seed >> 8) / (1 << 24) - 1);
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
 * come. */
static void
meet(struct job *job, uint32_t comm, bool pair, uint32_t step, double transfer_ms)
{
    const uint32_t *ranks = job->topology->comms[comm].ranks;
    uint64_t first_ns = job->now_ns[ranks[0]], second_ns = job->now_ns[ranks[1]];
    uint64_t end_ns = (first_ns > second_ns ? first_ns : second_ns) + (uint64_t)(transfer_ms * MS);

    feed(job, ranks[0], comm, pair ? CAIRN_SEND : CAIRN_ALL_REDUCE,
         pair ? ranks[1] : CAIRN_PEER_NONE, step, first_ns, end_ns);
    feed(job, ranks[1], comm, pair ? CAIRN_RECV : CAIRN_ALL_REDUCE,
         pair ? ranks[0] : CAIRN_PEER_NONE, step, second_ns, end_ns);
}

/* Transfers between node 0 and node 1 take `pairs` times as long from SINCE on, the gradients of
 * node 1 `gradients` times. */
static void
run(struct job *job, double pairs, double gradients)
{
    struct cairn_trace_fault fault;

    *job = (struct job){.seed = 5};
    assert_int_equal(cairn_trace_read_header(header, strlen(header), &job->topology, &fault),
                     CAIRN_OK);
    assert_int_equal(cairn_detector_create(job->topology, 0, &job->detector), CAIRN_OK);
    for (uint32_t step = 0; step < STEPS; step++) {
        bool slow = step >= SINCE;

        for (uint32_t rank = 0; rank < WORLD; rank++)
            job->now_ns[rank] += (uint64_t)(50 * MS * noise(job, 0.02));
        for (uint32_t comm = 0; comm < 4; comm++)
            meet(job, comm, true, step, 4 * noise(job, 0.05) * (slow && comm < 2 ? pairs : 1));
        for (uint32_t comm = 4; comm < 8; comm++)
            meet(job, comm, false, step,
                 10 * noise(job, 0.4) * (slow && comm >= 6 ? gradients : 1));
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
test_between_nodes(void **state)
{
    const struct cairn_verdicts *verdicts;
    struct job job;

    (void)state;
    run(&job, 1.6, 1);
    verdicts = cairn_detector_verdicts(job.detector);
    assert_int_equal(verdicts->count, 1);
    assert_int_equal(verdicts->items[0].kind, CAIRN_SLOW_LINK);
    assert_int_equal(verdicts->items[0].nodes.count, 0);
    assert_int_equal(verdicts->items[0].links.count, 4);
    assert_non_null(strstr(verdicts->items[0].evidence, "between node 0 and node 1"));
    assert_true(verdicts->items[0].rate > 1.5 && verdicts->items[0].rate < 1.7);
    end(&job);
}

static void
test_nic(void **state)
{
    const struct cairn_verdicts *verdicts;
    struct job job;

    (void)state;
    run(&job, 1.6, 1.6);
    verdicts = cairn_detector_verdicts(job.detector);
    assert_int_equal(verdicts->count, 1);
    assert_int_equal(verdicts->items[0].kind, CAIRN_SLOW_LINK);
    assert_int_equal(verdicts->items[0].nodes.count, 1);
    assert_int_equal(verdicts->items[0].nodes.items[0], 1);
    assert_in_range(verdicts->items[0].detected_step, SINCE + 3, SINCE + 12);
    end(&job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_between_nodes),
                                       cmocka_unit_test(test_nic)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
