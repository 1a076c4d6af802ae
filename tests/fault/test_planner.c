/*
 * tests/fault/test_planner.c - reading, planning, offers, links and memory measured, assigning and
 * packing with the n-th allocation failing, once and from there on.
 *
 * Every run must end in CAIRN_OK or CAIRN_NOMEM, with nothing allocated that was not before. The
 * linker wraps malloc, calloc and realloc. The allocator counts freed blocks that it keeps for
 * reuse as used, so each case runs until that has settled: what then still grows with each run is a
 * leak.
 */
#include "cairn/client.h"
#include "replan/advise/offers.h"
#include "replan/assign/pack.h"
#include "replan/profile/links.h"
#include "replan/profile/memory.h"
#include "tests/support/cmocka.h"
#include "tests/support/failing_calls.h"
#include "tests/support/never.h"

#include <stdlib.h>

/* Nine devices in two nodes, one of them slow: too many for a search of all plans. */
static const char problem_text[] =
    "{\"layers\": 6, \"layer_ms\": 2, \"head_layers\": 0.5, \"microbatches\": 5, \"tp\": 2, "
    "\"tp_cost\": {\"1\": 2, \"2\": 1},"
    " \"layer_bytes\": 10, \"activation_bytes\": 1, \"link_gbps\": {\"intra\": 100, \"inter\": 10},"
    " \"slow_links\": [{\"nodes\": [0, 1], \"gbps\": 1}], \"devices\": ["
    "{\"id\": 0, \"node\": 0, \"rate\": 3, \"memory_bytes\": 40}, {\"id\": 1, \"node\": 0, "
    "\"rate\": 1, \"memory_bytes\": 40},"
    "{\"id\": 2, \"node\": 0, \"rate\": 1, \"memory_bytes\": 40}, {\"id\": 3, \"node\": 0, "
    "\"rate\": 1, \"memory_bytes\": 40},"
    "{\"id\": 4, \"node\": 1, \"rate\": 1, \"memory_bytes\": 40}, {\"id\": 5, \"node\": 1, "
    "\"rate\": 1, \"memory_bytes\": 40},"
    "{\"id\": 6, \"node\": 1, \"rate\": 1, \"memory_bytes\": 40}, {\"id\": 7, \"node\": 1, "
    "\"rate\": 1, \"memory_bytes\": 40},"
    "{\"id\": 8, \"node\": 1, \"rate\": 1, \"memory_bytes\": 40}],"
    " \"current\": {\"pipelines\": [{\"microbatches\": 5, \"stages\": [{\"devices\": [0, 1], "
    "\"layers\": [0, 3]},"
    " {\"devices\": [2, 3], \"layers\": [3, 6]}]}]}}";

static cairn_err
run_plan(void)
{
    struct cairn_offer_costs costs = {.layers_ms = 10, .pause_ms = 10, .restart_ms = 1000};
    struct cairn_stop stop = {never, NULL};
    struct cairn_problem problem = {0};
    struct cairn_offers offers = {0};
    struct cairn_decider *decider = NULL;
    struct cairn_fault fault = {""};
    cairn_err err;

    err = cairn_problem_read(problem_text, sizeof(problem_text) - 1, &problem, &fault);
    if (err)
        return err;
    err = cairn_offers_make(&problem, &costs, &stop, &offers);
    if (!err && failures == 0)
        assert_true(offers.offers[CAIRN_REPLAN_GROUPS].step_ms < offers.current_ms);
    if (!err)
        err = cairn_decider_create(problem.device_count, &decider);
    cairn_decider_destroy(decider);
    cairn_offers_fini(&offers);
    cairn_problem_fini(&problem);
    return err;
}

/* Transfers of two sizes between any two of the ranks. */
static cairn_err
feed_pairs(struct cairn_transfers *transfers, uint32_t ranks)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t pair = 0; !err && pair < ranks * ranks; pair++) {
            uint32_t source = pair / ranks, target = pair % ranks;
            struct cairn_record send = {.start_ns = 1,
                                        .end_ns = 1000 + 9000 * (i % 2),
                                        .bytes = 1000 + 9000 * (i % 2),
                                        .rank = source,
                                        .peer = target,
                                        .comm = CAIRN_COMM_NONE,
                                        .op = CAIRN_SEND};
            struct cairn_record receive = send;

            receive.rank = target;
            receive.peer = source;
            receive.op = CAIRN_RECV;
            if (source == target)
                continue;
            err = cairn_transfers_feed(transfers, &send);
            if (!err)
                err = cairn_transfers_feed(transfers, &receive);
        }
    return err;
}

static cairn_err
run_profile(void)
{
    static const uint64_t memory_bytes[9] = {30, 31, 20, 21};
    struct cairn_problem problem = {0};
    struct cairn_topology *topology = NULL;
    struct cairn_transfers *transfers = NULL;
    struct cairn_profiled_links links;
    struct cairn_profiled_memory memory;
    struct cairn_fault fault = {""};
    cairn_err err;

    err = cairn_problem_read(problem_text, sizeof(problem_text) - 1, &problem, &fault);
    if (err)
        return err;
    err = cairn_topology_create(problem.device_count, &topology);
    if (!err)
        err = cairn_topology_finish(topology);
    if (!err)
        err = cairn_transfers_create(topology, &transfers);
    if (!err)
        err = feed_pairs(transfers, problem.device_count);
    if (!err)
        err = cairn_profile_links(&problem, topology, transfers, &links);
    if (!err && failures == 0)
        assert_true(links.scopes[CAIRN_LINK_INTRA].told && links.scopes[CAIRN_LINK_INTER].told);
    if (!err)
        err = cairn_profile_memory(&problem, memory_bytes, problem.device_count, &memory);
    cairn_transfers_destroy(transfers);
    cairn_topology_destroy(topology);
    cairn_problem_fini(&problem);
    return err;
}

/* Long sequences decide, so that the search for their places runs as well. */
static const char assign_text[] =
    "{\"sequences\": [900, 800, 800, 700, 640, 600, 510, 90, 80, 70, 60, 50], \"cost\": {\"a\": "
    "0.001, \"b\": 1, \"c\": 0},"
    " \"pipelines\": [{\"time_scale\": 1, \"stages\": 2, \"max_tokens\": 1000},"
    " {\"time_scale\": 1.5, \"stages\": 1, \"max_tokens\": 900},"
    " {\"time_scale\": 1, \"stages\": 4, \"max_tokens\": 700}]}";

static cairn_err
run_assign(void)
{
    struct cairn_assign_problem problem = {0};
    struct cairn_assignment assignment = {0};
    struct cairn_packing packing = {0};
    struct cairn_fault fault = {""};
    cairn_err err;

    err = cairn_assign_problem_read(assign_text, sizeof(assign_text) - 1, &problem, &fault);
    if (err)
        return err;
    err = cairn_assign(&problem, &assignment, &fault);
    if (!err)
        err = cairn_pack(&problem, problem.tokens, problem.sequence_count, 300, &packing);
    cairn_packing_fini(&packing);
    free(assignment.pipelines);
    cairn_assign_problem_fini(&problem);
    return err;
}

static cairn_err
run_sequences(void)
{
    const uint64_t tokens[] = {900, 800, 800, 700, 640, 600, 510, 90, 80, 70, 60, 50};
    const uint32_t shares[] = {8, 4, 8};
    const double cost[3] = {0.001, 1, 0};
    enum { COUNT = sizeof tokens / sizeof *tokens };
    uint32_t replica_of[COUNT], microbatch_of[COUNT];

    return cairn_sequences_assign(tokens, COUNT, shares, 3, 1000, cost, replica_of, microbatch_of);
}

/* Each allocation fails in turn. No failure may leave anything behind. */
static void
fail_each(cairn_err (*run)(void))
{
    int64_t total;

    for (int i = 0; i < 3; i++)
        assert_int_equal(run(), CAIRN_OK); /* until the allocator's own memory has settled */
    arm(MEMORY, -1, false);                /* counts them */
    assert_int_equal(run(), CAIRN_OK);
    total = calls;
    for (int kind = 0; kind < 2; kind++)
        for (int64_t at = 0; at < total; at += 1 + at / 60) {
            size_t before, after;
            cairn_err err = CAIRN_OK;

            for (int again = 0; again < 16; again++) {
                arm(MEMORY, at, kind == 1);
                before = heap_bytes();
                err = run();
                after = heap_bytes();
                if (after <= before)
                    break;
            }
            assert_true(failures > 0);
            if (err != CAIRN_OK && err != CAIRN_NOMEM)
                fail_msg("allocation %u of %u: %d", (unsigned)at, (unsigned)total, err);
            if (after > before)
                fail_msg("allocation %u of %u: %zu bytes are left", (unsigned)at, (unsigned)total,
                         after - before);
        }
    disarm();
    print_message("%u allocations\n", (unsigned)total);
}

static void
test_plan(void **state)
{
    fail_each(run_plan);
}

static void
test_profile(void **state)
{
    fail_each(run_profile);
}

static void
test_assign(void **state)
{
    fail_each(run_assign);
}

static void
test_sequences(void **state)
{
    fail_each(run_sequences);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_assign),
        cmocka_unit_test(test_sequences),
    };

    return cmocka_run_group_tests_name("fault/planner", tests, NULL, NULL);
}
