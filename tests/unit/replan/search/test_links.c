/* tests/unit/replan/search/test_links.c - groups change places until the reduction is off slow
 * links, and nothing else changes. */
#include <math.h>
#include <stdlib.h>

#include "replan/search/answer.h"
#include "replan/search/links.h"
#include "tests/support/cmocka.h"
#include "tests/support/never.h"
#include "tests/unit/replan/small.h"

enum { NODES = 6, NODE_DEVICES = 2, PIPELINES = 2, STAGES = 3, RANDOM = 300 };
enum { MANY_DEVICES = 2048, MANY_STAGES = 256 }; /* of a pipeline */

/* Six nodes of one group each, two pipelines of three stages. */
static struct cairn_problem
cluster(uint32_t slow_links)
{
    struct cairn_problem problem = {.layers = 9,
                                    .layer_ms = 5,
                                    .microbatches = 8,
                                    .tp = NODE_DEVICES,
                                    .sizes = {{NODE_DEVICES, 1}},
                                    .size_count = 1,
                                    .layer_bytes = 100,
                                    .device_count = NODES * NODE_DEVICES,
                                    .intra_gbps = 1000,
                                    .inter_gbps = 100,
                                    .slow_link_count = slow_links};

    problem.devices = calloc(problem.device_count, sizeof(*problem.devices));
    problem.slow_links = calloc((size_t)slow_links + 1, sizeof(*problem.slow_links));
    for (uint32_t i = 0; i < problem.device_count; i++)
        /* three layers fit a group */
        problem.devices[i] = (struct cairn_device){i, i / NODE_DEVICES, 1, 170};
    return problem;
}

/* Node i is stage i % STAGES of pipeline i / STAGES. */
static struct cairn_plan *
straight_plan(void)
{
    struct cairn_plan *plan = NULL;

    assert_int_equal(cairn_plan_create(PIPELINES, NODES, NODES * NODE_DEVICES, &plan), CAIRN_OK);
    for (uint32_t i = 0; i < NODES; i++) {
        if (i % STAGES == 0)
            plan->pipelines[plan->pipeline_count++] = (struct cairn_plan_pipeline){4, i, STAGES};
        plan->stages[plan->stage_count++] =
            (struct cairn_plan_stage){plan->device_count, NODE_DEVICES, 3 * (i % STAGES), 3};
        for (uint32_t k = 0; k < NODE_DEVICES; k++, plan->device_count++)
            plan->devices[plan->device_count] = plan->device_count;
    }
    return plan;
}

static void
test_one_pair(void **test_state)
{
    struct cairn_problem problem = cluster(1);
    struct cairn_plan *plan = straight_plan();
    struct cairn_fault fault;
    uint32_t layers;

    problem.slow_links[0] = (struct cairn_slow_link){{1, 4}, 10}; /* both are second stages */
    assert_int_equal(cairn_plan_check(plan, &problem, &fault), CAIRN_OK);
    assert_int_equal(cairn_links_slow_layers(&problem, plan, &layers), CAIRN_OK);
    assert_int_equal(layers, 3);
    assert_int_equal(cairn_links_settle(&problem, plan), CAIRN_OK);
    assert_int_equal(cairn_links_slow_layers(&problem, plan, &layers), CAIRN_OK);
    assert_int_equal(layers, 0);
    assert_int_equal(cairn_plan_check(plan, &problem, &fault), CAIRN_OK);
    cairn_plan_destroy(plan);
    cairn_problem_fini(&problem);
}

/* Layers reduced over slow links, with nodes placed by a permutation. */
static uint32_t
slow_layers(const struct cairn_problem *problem, const uint32_t *node_at)
{
    uint32_t layers = 0;

    for (uint32_t stage = 0; stage < STAGES; stage++)
        for (uint32_t i = 0; i < problem->slow_link_count; i++) {
            uint64_t a = problem->slow_links[i].nodes[0], b = problem->slow_links[i].nodes[1];

            if ((node_at[stage] == a && node_at[STAGES + stage] == b) ||
                (node_at[stage] == b && node_at[STAGES + stage] == a)) {
                layers += 3;
                break;
            }
        }
    return layers;
}

static uint32_t
exhaustive_least(const struct cairn_problem *problem)
{
    uint32_t digits[NODES] = {0}, least = UINT32_MAX, at;

    do {
        uint32_t seen = 0, own;

        for (uint32_t i = 0; i < NODES; i++)
            seen |= 1u << digits[i];
        own = seen == (1u << NODES) - 1 ? slow_layers(problem, digits) : UINT32_MAX;
        least = own < least ? own : least;
        for (at = 0; at < NODES && ++digits[at] == NODES; at++)
            digits[at] = 0;
    } while (at < NODES);
    return least;
}

static void
test_random(void **test_state)
{
    uint32_t best = 0;

    for (uint64_t seed = 0; seed < RANDOM; seed++) {
        uint64_t state = seed + 21;
        uint32_t links = 1 + random_below(&state, 6), before, after;
        struct cairn_problem problem = cluster(links);
        struct cairn_plan *plan = straight_plan();
        struct cairn_fault fault;
        double step_ms;

        for (uint32_t i = 0; i < links; i++) {
            uint32_t a = random_below(&state, NODES),
                     b = (a + 1 + random_below(&state, NODES - 1)) % NODES;

            problem.slow_links[i] = (struct cairn_slow_link){{a, b}, 10};
        }
        step_ms = cairn_plan_step_ms(plan, &problem);
        assert_int_equal(cairn_links_slow_layers(&problem, plan, &before), CAIRN_OK);
        assert_int_equal(cairn_links_settle(&problem, plan), CAIRN_OK);
        assert_int_equal(cairn_links_slow_layers(&problem, plan, &after), CAIRN_OK);
        assert_int_equal(cairn_plan_check(plan, &problem, &fault), CAIRN_OK);
        assert_true(fabs(cairn_plan_step_ms(plan, &problem) - step_ms) < 1e-9);
        assert_true(after <= before);
        if (seed < 30)
            best += after == exhaustive_least(&problem);
        cairn_plan_destroy(plan);
        cairn_problem_fini(&problem);
    }
    print_message("%u of 30 as few layers over slow links as can be\n", best);
    assert_true(best >= 27);
}

/* As many slow links and stages as are looked at: the work is bounded, and what comes out is not
 * worse. */
static void
test_many(void **test_state)
{
    struct cairn_problem problem = {.layers = MANY_STAGES,
                                    .layer_ms = 5,
                                    .microbatches = MANY_DEVICES,
                                    .tp = 1,
                                    .sizes = {{1, 1}},
                                    .size_count = 1,
                                    .layer_bytes = 100,
                                    .device_count = MANY_DEVICES,
                                    .slow_link_count = CAIRN_PROBLEM_SLOW_LINKS_MAX};
    struct cairn_plan *plan = NULL;
    struct cairn_fault fault;
    uint32_t before, after;

    problem.devices = calloc(MANY_DEVICES, sizeof(*problem.devices));
    problem.slow_links = calloc(CAIRN_PROBLEM_SLOW_LINKS_MAX, sizeof(*problem.slow_links));
    assert_true(problem.devices && problem.slow_links);
    assert_int_equal(
        cairn_plan_create(MANY_DEVICES / MANY_STAGES, MANY_DEVICES, MANY_DEVICES, &plan), CAIRN_OK);
    for (uint32_t i = 0; i < MANY_DEVICES; i++) {
        problem.devices[i] = (struct cairn_device){i, i, 1, 1000};
        if (i % MANY_STAGES == 0)
            plan->pipelines[plan->pipeline_count++] =
                (struct cairn_plan_pipeline){MANY_STAGES, i, MANY_STAGES};
        plan->stages[plan->stage_count++] = (struct cairn_plan_stage){i, 1, i % MANY_STAGES, 1};
        plan->devices[plan->device_count++] = i;
    }
    for (uint32_t i = 0; i < CAIRN_PROBLEM_SLOW_LINKS_MAX; i++) /* both hold the same layer */
        problem.slow_links[i] = (struct cairn_slow_link){{i, i + MANY_STAGES}, 10};
    assert_int_equal(cairn_plan_check(plan, &problem, &fault), CAIRN_OK);
    assert_int_equal(cairn_links_slow_layers(&problem, plan, &before), CAIRN_OK);
    assert_int_equal(before, MANY_STAGES);
    assert_int_equal(cairn_links_settle(&problem, plan), CAIRN_OK);
    assert_int_equal(cairn_links_slow_layers(&problem, plan, &after), CAIRN_OK);
    print_message("%u of %u layers are left on slow links\n", after, before);
    assert_true(after < before);
    assert_int_equal(cairn_plan_check(plan, &problem, &fault), CAIRN_OK);
    cairn_plan_destroy(plan);
    cairn_problem_fini(&problem);
}

/* The whole answer: a plan of its own, off the slow link. */
static void
test_answer(void **test_state)
{
    struct cairn_problem problem = cluster(1);
    struct cairn_stop stop = {never, NULL};

    for (uint32_t other = 1; other < NODES; other++) {
        struct cairn_answer_plan answer = {0};
        struct cairn_fault fault;

        problem.slow_links[0] = (struct cairn_slow_link){{0, other}, 10};
        assert_int_equal(cairn_answer_plan_best(&problem, &stop, &answer), CAIRN_OK);
        assert_non_null(answer.plan);
        assert_int_equal(cairn_plan_check(answer.plan, &problem, &fault), CAIRN_OK);
        assert_int_equal(answer.slow_layers, 0);
        cairn_answer_plan_fini(&answer);
    }
    cairn_problem_fini(&problem);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_pair),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_answer),
    };

    return cmocka_run_group_tests_name("replan/links", tests, NULL, NULL);
}
