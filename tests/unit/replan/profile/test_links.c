/*
 * tests/unit/replan/profile/test_links.c - link speeds are found again: those of made transfers,
 * and those that simulated jobs of tests/traces/ were given.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replan/profile/links.h"
#include "replan/trace/read.h"
#include "tests/support/cases.h"
#include "tests/support/cmocka.h"
#include "tests/traces/job.h"

/* A problem of so many devices, on nodes numbered from 100. Nothing is known of its links, but for
 * slow links that are added. */
static struct cairn_problem
problem_of(uint32_t devices, uint32_t per_node)
{
    struct cairn_problem problem = {.device_count = devices,
                                    .devices = calloc(devices, sizeof(struct cairn_device))};

    for (uint32_t i = 0; i < devices; i++)
        problem.devices[i] = (struct cairn_device){i, 100 + i / per_node, 1, 1};
    return problem;
}

/* The links that a simulated job's trace shows. */
static struct cairn_profiled_links
links_of(const struct job *job, uint64_t seed, struct cairn_problem *problem)
{
    struct random random = {seed}, spikes = {seed + 1};
    struct cairn_topology *topology = NULL;
    struct cairn_transfers *transfers = NULL;
    struct cairn_profiled_links links;
    struct cairn_trace_fault fault;
    struct cairn_record record;
    char *trace = NULL, *at;
    size_t trace_bytes;
    FILE *out = open_memstream(&trace, &trace_bytes);

    job_simulate(job, &random, &spikes, out);
    fclose(out);
    for (at = trace; *at; at += strcspn(at, "\n") + 1) {
        size_t line_bytes = strcspn(at, "\n");

        if (!topology) {
            assert_int_equal(cairn_trace_read_header(at, line_bytes, &topology, &fault), CAIRN_OK);
            assert_int_equal(cairn_transfers_create(topology, &transfers), CAIRN_OK);
            continue;
        }
        assert_int_equal(cairn_trace_read_line(topology, at, line_bytes, &record, &fault),
                         CAIRN_OK);
        assert_int_equal(cairn_transfers_feed(transfers, &record), CAIRN_OK);
    }
    assert_int_equal(cairn_profile_links(problem, topology, transfers, &links), CAIRN_OK);
    cairn_transfers_destroy(transfers);
    cairn_topology_destroy(topology);
    free(trace);
    return links;
}

/* Of ranks in nodes of four: stages on one node each where tp is 4, so that the gradients' rings
 * are within nodes. */
static struct job
job_of(struct random *random, uint32_t tp, uint32_t pp, uint32_t dp)
{
    return (struct job){.tp = tp,
                        .pp = pp,
                        .dp = dp,
                        .world = tp * pp * dp,
                        .ranks_per_node = 4,
                        .steps = 40,
                        .microbatches = pp + 1,
                        .steps_named = true,
                        .forward_ns = random_between(random, 5e6, 20e6),
                        .optimizer_ns = 4e6,
                        .tp_ns = random_between(random, 0.3e6, 1e6),
                        .pair_ns = random_between(random, 0.5e6, 2e6),
                        .dp_ns = random_between(random, 5e6, 20e6),
                        .noise = random_between(random, 0.005, 0.05),
                        .noise_near = random_between(random, 0.02, 0.09),
                        .noise_far = random_between(random, 0.05, 0.29)};
}

static double
gbps_of(double mebibytes, double ns)
{
    return mebibytes * 8 * 1048576 / ns;
}

static bool
near(double value, double expected, double part)
{
    return fabs(value / expected - 1) <= part;
}

/* Within nodes rings of four say it; between them rings of the gradients, one rank per node, whose
 * bytes are the most. */
static void
test_generated(void **state)
{
    double worst = 0;

    for (uint64_t seed = 1; seed <= 40; seed += CASE_STRIDE) {
        struct random random = {seed};
        struct job job = job_of(&random, 4, 2, 4);
        struct cairn_problem problem = problem_of(job.world, 4);
        struct cairn_profiled_links links = links_of(&job, seed, &problem);
        double intra = gbps_of(16, job.tp_ns), inter = gbps_of(256, job.dp_ns);

        assert_true(links.scopes[CAIRN_LINK_INTRA].told && links.scopes[CAIRN_LINK_INTER].told);
        assert_int_equal(links.scopes[CAIRN_LINK_INTER].op, CAIRN_ALL_REDUCE);
        worst = fmax(worst, fmax(fabs(problem.intra_gbps / intra - 1),
                                 fabs(problem.inter_gbps / inter - 1)));
        if (!near(problem.intra_gbps, intra, 0.1) || !near(problem.inter_gbps, inter, 0.1))
            fail_msg("seed %u: within %g for %g, between %g for %g", (unsigned)seed,
                     problem.intra_gbps, intra, problem.inter_gbps, inter);
        assert_int_equal(links.slow_links, 0);
        assert_int_equal(problem.slow_link_count, 0);
        cairn_problem_fini(&problem);
    }
    print_message("at most %.1f %% off\n", 100 * worst);
}

/* Only sends and receives leave nodes, or rings as well that say the bytes of the whole buffer in
 * all_gather, which is found out. */
static void
test_generated_pairs(void **state)
{
    double worst = 0;

    for (uint64_t seed = 1; seed <= 40; seed += CASE_STRIDE) {
        struct random random = {seed};
        struct job job = job_of(&random, 4, 4, 1 + seed % 2);
        struct cairn_problem problem = problem_of(job.world, 4);
        struct cairn_profiled_links links;
        double inter = gbps_of(4, job.pair_ns);

        job.sharded = true;
        links = links_of(&job, seed, &problem);
        assert_int_equal(links.scopes[CAIRN_LINK_INTER].at_odds, seed % 2);
        assert_int_equal(links.scopes[CAIRN_LINK_INTER].op, CAIRN_SEND);
        worst = fmax(worst, fabs(problem.inter_gbps / inter - 1));
        if (!near(problem.inter_gbps, inter, 0.1))
            fail_msg("seed %u: between %g for %g", (unsigned)seed, problem.inter_gbps, inter);
        assert_int_equal(links.node_pairs, seed % 2 ? 10 : 3);
        assert_int_equal(links.slow_links, 0);
        cairn_problem_fini(&problem);
    }
    print_message("at most %.1f %% off\n", 100 * worst);
}

/* A slow adapter makes its pairs of nodes slow, and nothing else; what the problem says of pairs
 * that were compared is over. */
static void
test_generated_slow(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed += CASE_STRIDE) {
        struct random random = {seed};
        struct job job = job_of(&random, 4, 6, 1);
        struct cairn_problem problem = problem_of(job.world, 4);
        struct cairn_profiled_links links;
        double factor = random_between(&random, 1.7, 4);

        problem.slow_link_count = 2;
        problem.slow_links = calloc(2, sizeof *problem.slow_links);
        problem.slow_links[0] = (struct cairn_slow_link){{101, 100}, 7}; /* is well again */
        problem.slow_links[1] = (struct cairn_slow_link){{100, 105}, 9}; /* is not seen */
        job.faults[0] = (struct fault){
            .kind = FAULT_SLOW_NIC, .node = 3, .until = UINT32_MAX, .factor = factor};
        job.fault_count = 1;
        links = links_of(&job, seed, &problem);
        assert_true(near(problem.inter_gbps, gbps_of(4, job.pair_ns), 0.1));
        assert_int_equal(links.node_pairs, 5);
        assert_int_equal(links.slow_links, 2);
        assert_int_equal(links.kept_links, 1);
        assert_int_equal(problem.slow_link_count, 3);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(problem.slow_links[i].nodes[0], 102 + i);
            assert_int_equal(problem.slow_links[i].nodes[1], 103 + i);
            if (!near(problem.slow_links[i].gbps, gbps_of(4, job.pair_ns) / factor, 0.15))
                fail_msg("seed %u: %g for %g", (unsigned)seed, problem.slow_links[i].gbps,
                         gbps_of(4, job.pair_ns) / factor);
        }
        assert_int_equal(problem.slow_links[2].nodes[1], 105);
        cairn_problem_fini(&problem);
    }
}

/* ---- made transfers ---- */

struct made {
    struct cairn_topology *topology;
    struct cairn_transfers *transfers;
};

static struct made
make(uint32_t world, const uint32_t *ring, uint32_t ring_ranks)
{
    struct made made;

    assert_int_equal(cairn_topology_create(world, &made.topology), CAIRN_OK);
    assert_int_equal(cairn_topology_add(made.topology, "dp0", ring, ring_ranks), CAIRN_OK);
    assert_int_equal(cairn_topology_finish(made.topology), CAIRN_OK);
    assert_int_equal(cairn_transfers_create(made.topology, &made.transfers), CAIRN_OK);
    return made;
}

static void
unmake(struct made *made)
{
    cairn_transfers_destroy(made->transfers);
    cairn_topology_destroy(made->topology);
}

/* One operation of the ring: its last rank arrives last, the others have waited for it. */
static void
add_ring(struct made *made, uint8_t op, uint64_t seq, uint64_t bytes, double ms)
{
    const struct cairn_comm *comm = &made->topology->comms[0];

    for (uint32_t i = 0; i < comm->count; i++) {
        uint64_t ns = (uint64_t)(ms * 1e6) + (comm->count - 1 - i) * 5000000u;
        struct cairn_record record = {.start_ns = 1000,
                                      .end_ns = 1000 + ns,
                                      .seq = seq,
                                      .has_seq = true,
                                      .bytes = bytes,
                                      .rank = comm->ranks[i],
                                      .comm = 0,
                                      .peer = CAIRN_PEER_NONE,
                                      .op = op};

        assert_int_equal(cairn_transfers_feed(made->transfers, &record), CAIRN_OK);
    }
}

/* Of several sizes both latency and bandwidth; what comes into a device depends on the operation,
 * and on ranks that share a node. */
static void
test_sizes(void **state)
{
    static const struct {
        uint8_t op;
        double into; /* a device that has a node for itself */
    } ways[] = {{CAIRN_ALL_REDUCE, 1.5},
                {CAIRN_ALL_GATHER, 3},
                {CAIRN_REDUCE_SCATTER, 0.75},
                {CAIRN_BROADCAST, 1}};
    const uint32_t ring[] = {0, 1, 2, 3};

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (uint32_t per_node = 1; per_node <= 4; per_node *= 2) {
            struct made made = make(4, ring, 4);
            struct cairn_problem problem = problem_of(4, per_node);
            struct cairn_profiled_links links;
            double shared = per_node < 4 ? per_node : 1, gbps;

            problem.intra_gbps = problem.inter_gbps = 5;
            for (uint32_t seq = 0; seq < 24; seq++) {
                uint64_t bytes = seq % 2 ? 1 << 20 : 64 << 20;

                add_ring(&made, ways[i].op, seq, bytes,
                         0.2 + (double)bytes * ways[i].into * 8e-6 / 100);
            }
            assert_int_equal(cairn_profile_links(&problem, made.topology, made.transfers, &links),
                             CAIRN_OK);
            gbps = per_node < 4 ? problem.inter_gbps : problem.intra_gbps;
            assert_true(near(gbps, 100 / shared, 0.001));
            assert_true(near(links.scopes[per_node < 4].latency_ms, 0.2, 0.01));
            assert_int_equal(links.scopes[per_node < 4].transfers, 24);
            assert_false(links.scopes[per_node == 4].told); /* and is as the problem said */
            assert_true(near(per_node < 4 ? problem.intra_gbps : problem.inter_gbps, 5, 1e-9));
            assert_int_equal(links.node_pairs, 0);
            unmake(&made);
            cairn_problem_fini(&problem);
        }
}

/* A trace may give one rank after the other, and a line twice: the last operations of each are put
 * together all the same. So they are where the communicator does something else in between, which
 * has numbers as well. */
static void
test_one_rank_after_the_other(void **state)
{
    static const uint64_t apart[] = {0, 1, 8, 12, 32, 64}; /* 0: without numbers */
    const uint32_t ring[] = {0, 1};

    for (size_t k = 0; k < sizeof apart / sizeof *apart; k++) {
        bool numbered = apart[k] > 0;
        struct made made = make(2, ring, 2);
        struct cairn_transfer_channel channel;
        struct cairn_transfer list[CAIRN_TRANSFERS_KEPT];

        for (uint32_t rank = 0; rank < 2; rank++)
            for (uint32_t i = 0; i < 50; i++) {
                struct cairn_record record = {.start_ns = 1,
                                              .end_ns = 1001 + (rank == i % 2 ? 1000 : 0),
                                              .seq = i * apart[k],
                                              .has_seq = numbered,
                                              .bytes = 1000 + i,
                                              .rank = rank,
                                              .op = CAIRN_ALL_REDUCE};

                assert_int_equal(cairn_transfers_feed(made.transfers, &record), CAIRN_OK);
                if (numbered)
                    assert_int_equal(cairn_transfers_feed(made.transfers, &record), CAIRN_OK);
            }
        assert_int_equal(cairn_transfers_channel_count(made.transfers), 1);
        assert_int_equal(cairn_transfers_of(made.transfers, 0, &channel, list),
                         CAIRN_TRANSFERS_KEPT);
        for (uint32_t i = 0; i < CAIRN_TRANSFERS_KEPT; i++)
            assert_true(list[i].ns == 1000 && list[i].bytes >= 1000 + 50 - CAIRN_TRANSFERS_KEPT);
        unmake(&made);
    }
}

/* all_gather and reduce_scatter of one buffer agree; with the bytes of the whole buffer in both
 * they do not, and neither counts. */
static void
test_contradiction(void **state)
{
    const uint32_t ring[] = {0, 1, 2, 3};

    for (uint32_t whole = 0; whole < 2; whole++) {
        struct made made = make(4, ring, 4);
        struct cairn_problem problem = problem_of(4, 1);
        struct cairn_profiled_links links;

        for (uint32_t seq = 0; seq < 32; seq += 2) {
            add_ring(&made, CAIRN_ALL_GATHER, seq, whole ? 4 << 20 : 1 << 20, 1);
            add_ring(&made, CAIRN_REDUCE_SCATTER, seq + 1, 4 << 20, 1.1);
        }
        assert_int_equal(cairn_profile_links(&problem, made.topology, made.transfers, &links),
                         CAIRN_OK);
        assert_int_equal(links.scopes[CAIRN_LINK_INTER].at_odds, whole);
        assert_int_equal(links.scopes[CAIRN_LINK_INTER].told, !whole);
        unmake(&made);
        cairn_problem_fini(&problem);
    }
}

/* Too few, parts that are missing or do not say the same, ranks that the problem lacks, operations
 * whose way is not known. */
static void
test_not_told(void **state)
{
    const uint32_t ring[] = {0, 1};
    struct cairn_profiled_links links;

    for (uint32_t what = 0; what < 6; what++) {
        struct made made = make(2, ring, 2);
        struct cairn_problem problem = problem_of(what == 3 ? 1 : 2, 1);

        for (uint32_t i = 0; i < (what == 0 ? 7 : 30); i++) {
            struct cairn_record send = {.start_ns = 1,
                                        .end_ns = 1000001,
                                        .bytes = 1 << 20,
                                        .comm = CAIRN_COMM_NONE,
                                        .rank = 0,
                                        .peer = 1,
                                        .op = CAIRN_SEND};
            struct cairn_record receive = {.start_ns = 1,
                                           .end_ns = 900001,
                                           .bytes = 1 << 20,
                                           .comm = CAIRN_COMM_NONE,
                                           .rank = 1,
                                           .peer = 0,
                                           .op = CAIRN_RECV};

            receive.bytes += what == 2;
            send.end_ns = what == 1 ? 0 : send.end_ns; /* its end was not seen */
            if (what == 4) {
                add_ring(&made, CAIRN_ALL_TO_ALL, i, 1 << 20, 1);
                continue;
            }
            assert_int_equal(cairn_transfers_feed(made.transfers, &send), CAIRN_OK);
            assert_int_equal(cairn_transfers_feed(made.transfers, &receive), CAIRN_OK);
        }
        assert_int_equal(cairn_profile_links(&problem, made.topology, made.transfers, &links),
                         CAIRN_OK);
        assert_false(links.scopes[CAIRN_LINK_INTRA].told);
        assert_int_equal(links.scopes[CAIRN_LINK_INTER].told, what == 5);
        assert_int_equal(links.unpaired, what == 5); /* the file says both or neither */
        assert_true(problem.inter_gbps <= 0);
        if (what == 5)
            assert_true(near(links.scopes[CAIRN_LINK_INTER].gbps, 8 * 1.048576 / 0.9, 1e-6));
        unmake(&made);
        cairn_problem_fini(&problem);
    }
}

/* One send of 1 MiB from a rank to the next. */
static void
add_pair(struct made *made, uint32_t rank, double ms)
{
    struct cairn_record send = {.start_ns = 1,
                                .end_ns = 1 + (uint64_t)(ms * 1e6),
                                .bytes = 1 << 20,
                                .comm = CAIRN_COMM_NONE,
                                .rank = rank,
                                .peer = rank + 1,
                                .op = CAIRN_SEND};
    struct cairn_record receive = send;

    receive.rank = rank + 1;
    receive.peer = rank;
    receive.op = CAIRN_RECV;
    assert_int_equal(cairn_transfers_feed(made->transfers, &send), CAIRN_OK);
    assert_int_equal(cairn_transfers_feed(made->transfers, &receive), CAIRN_OK);
}

/* Two of three pairs of nodes are slow, and what is left is too little to know what a link should
 * carry: no bandwidth is made up for the slow links, and what the problem says of them stays. With
 * a bandwidth in the problem, that shows which links are slow. */
static void
test_slow_by_an_unknown_factor(void **state)
{
    static const double ms[] = {1, 3, 3};
    const uint32_t ring[] = {0, 1};

    for (uint32_t known = 0; known < 2; known++) {
        struct made made = make(4, ring, 2);
        struct cairn_problem problem = problem_of(4, 1);
        struct cairn_profiled_links links;

        problem.intra_gbps = problem.inter_gbps = known ? 30 : 0;
        problem.slow_link_count = 1;
        problem.slow_links = calloc(1, sizeof *problem.slow_links);
        problem.slow_links[0] = (struct cairn_slow_link){{102, 101}, 7};
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t rank = 0; rank < 3; rank++)
                add_pair(&made, rank, ms[rank]);
        assert_int_equal(cairn_profile_links(&problem, made.topology, made.transfers, &links),
                         CAIRN_OK);
        assert_false(links.scopes[CAIRN_LINK_INTER].told);
        assert_int_equal(links.node_pairs, 3);
        assert_int_equal(links.slow_links, known ? 2 : 0);
        assert_int_equal(links.unknown_links, known ? 0 : 2);
        assert_int_equal(links.kept_links, known ? 0 : 1);
        assert_int_equal(problem.slow_link_count, known ? 2 : 1);
        for (uint32_t i = 0; i < problem.slow_link_count; i++)
            assert_true(near(problem.slow_links[i].gbps, known ? 10 : 7, 1e-6));
        unmake(&made);
        cairn_problem_fini(&problem);
    }
}

/* Bytes that nothing can have carried: no link is taken from them, and what other operations say
 * counts. */
static void
test_too_many_bytes(void **state)
{
    const uint32_t ring[] = {0, 1, 2, 3};

    for (uint32_t others = 0; others < 2; others++) {
        struct made made = make(4, ring, 4);
        struct cairn_problem problem = problem_of(4, 1);
        struct cairn_profiled_links links;

        problem.intra_gbps = problem.inter_gbps = 5;
        for (uint32_t seq = 0; seq < 32; seq += 2) {
            add_ring(&made, CAIRN_ALL_GATHER, seq, UINT64_MAX, 1);
            if (others)
                add_ring(&made, CAIRN_ALL_REDUCE, seq + 1, 1 << 20, 1);
        }
        assert_int_equal(cairn_profile_links(&problem, made.topology, made.transfers, &links),
                         CAIRN_OK);
        assert_int_equal(links.scopes[CAIRN_LINK_INTER].told, others);
        assert_true(near(problem.inter_gbps, others ? 1.5 * gbps_of(1, 1e6) : 5, 1e-6));
        unmake(&made);
        cairn_problem_fini(&problem);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated),
        cmocka_unit_test(test_generated_pairs),
        cmocka_unit_test(test_generated_slow),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_one_rank_after_the_other),
        cmocka_unit_test(test_contradiction),
        cmocka_unit_test(test_not_told),
        cmocka_unit_test(test_slow_by_an_unknown_factor),
        cmocka_unit_test(test_too_many_bytes),
    };

    return cmocka_run_group_tests_name("replan/profile_links", tests, NULL, NULL);
}
