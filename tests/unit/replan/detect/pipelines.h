/* tests/unit/replan/detect/pipelines.h - four pipelines of two ranks, whose links may be slow. */
#ifndef CAIRN_TESTS_DETECT_PIPELINES_H
#define CAIRN_TESTS_DETECT_PIPELINES_H

#include "tests/unit/replan/detect/job.h"

enum { WORLD = 8, PAIRS = 4, COMMS = 8 };

/* Nodes of two. Node 0 sends to node 1, node 2 to node 3; gradients join nodes 0 and 2, and 1 and
 * 3. */
static const char header[] =
    "{\"cairn_trace\":1,\"world\":8,\"nodes\":[0,0,1,1,2,2,3,3],\"comms\":{\"pp0\":[0,2],\"pp1\":["
    "1,3],\"pp2\":[4,6],"
    "\"pp3\":[5,7],\"dp0\":[0,4],\"dp1\":[1,5],\"dp2\":[2,6],\"dp3\":[3,7]}}";

static inline void
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

/* The first rank of a pair sends to the second, or the two of a ring meet: in transfer_ms after the
 * later has come. */
static inline void
meet(struct job *job, uint32_t comm, uint32_t step, double transfer_ms)
{
    const uint32_t *ranks = job->topology->comms[comm].ranks;
    uint64_t first_ns = job->now_ns[ranks[0]], second_ns = job->now_ns[ranks[1]];
    uint64_t end_ns = (first_ns > second_ns ? first_ns : second_ns) + (uint64_t)(transfer_ms * MS);
    bool pair = comm < PAIRS;

    feed(job, ranks[0], comm, pair ? CAIRN_SEND : CAIRN_ALL_REDUCE,
         pair ? ranks[1] : CAIRN_PEER_NONE, step, first_ns, end_ns);
    feed(job, ranks[1], comm, pair ? CAIRN_RECV : CAIRN_ALL_REDUCE,
         pair ? ranks[0] : CAIRN_PEER_NONE, step, second_ns, end_ns);
}

#endif
