/*
 * tests/unit/replan/advise/test_shapes.c - the shape of a job on some of its nodes: all layers and
 * micro-batches, by the formula of plans, within what the command can be told.
 */
#include "replan/advise/shapes.h"

#include "tests/support/cmocka.h"

#include <stdio.h>
#include <string.h>

enum { LAYERS = 12, MICROBATCHES = 12 };

/* Six nodes of one device; `order` has the devices of the two pipelines of three stages. */
static void
make_problem(struct cairn_problem *out, double rate_of_4, uint32_t room, const uint32_t order[6])
{
    char text[4096];
    int used = snprintf(text, sizeof text,
                        "{\"layers\": %d, \"layer_ms\": 8, \"microbatches\": %d, \"tp_cost\": "
                        "{\"1\": 1}, \"layer_bytes\": 1000, \"link_gbps\": {\"intra\": 100, "
                        "\"inter\": 10}, \"devices\": [",
                        LAYERS, MICROBATCHES);
    struct cairn_fault fault;

    for (int i = 0; i < 6; i++)
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "%s{\"id\": %d, \"node\": %d, \"rate\": %g, \"memory_bytes\": %u}",
                         i ? "," : "", i, 10 + i, i == 4 ? rate_of_4 : 1.0, room * 1000);
    used += snprintf(text + used, sizeof text - (size_t)used, "], \"current\": {\"pipelines\": [");
    for (int r = 0; r < 2; r++)
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "%s{\"microbatches\": 6, \"stages\": [{\"devices\": [%u], \"layers\": "
                         "[0, 4]}, {\"devices\": [%u], \"layers\": [4, 8]}, {\"devices\": [%u], "
                         "\"layers\": [8, 12]}]}",
                         r ? "," : "", order[3 * r], order[3 * r + 1], order[3 * r + 2]);
    used += snprintf(text + used, sizeof text - (size_t)used, "]}}");
    assert_int_equal(cairn_problem_read(text, (size_t)used, out, &fault), CAIRN_OK);
}

static const uint32_t by_pipeline[6] = {0, 1, 2, 3, 4, 5};
static const uint64_t all[6] = {10, 11, 12, 13, 14, 15};
static const uint64_t without_4[5] = {10, 11, 12, 13, 15};

static void
check_sums(const struct cairn_shape *shape)
{
    uint32_t layers = 0, shares = 0;

    for (uint32_t i = 0; i < shape->pp; i++)
        layers += shape->layers[i];
    for (uint32_t i = 0; i < shape->dp; i++)
        shares += shape->shares[i];
    assert_int_equal(layers, LAYERS);
    assert_int_equal(shares, MICROBATCHES);
}

static void
test_the_current_plan_is_a_shape(void **state)
{
    struct cairn_problem problem;
    struct cairn_shape shape;
    uint64_t nodes[CAIRN_SHAPE_NODES_MAX];

    make_problem(&problem, 1, 9, by_pipeline);
    assert_true(cairn_shape_current(&problem, &shape));
    assert_int_equal(shape.dp, 2);
    assert_int_equal(shape.pp, 3);
    assert_int_equal(shape.tp, 1);
    check_sums(&shape);
    assert_true(shape.step_ms > 255.9 && shape.step_ms < 256.1);
    assert_int_equal(cairn_shape_nodes(&problem, nodes), 6);
    assert_memory_equal(nodes, all, sizeof all);
    cairn_problem_fini(&problem);
}

/* A command that names stages alone keeps equal layers and shares. */
static void
test_rules_hold(void **state)
{
    struct cairn_shape_rules rules = {.has_stages = true};
    struct cairn_problem problem;
    struct cairn_shape shape;

    make_problem(&problem, 1, 99, by_pipeline);
    for (uint32_t count = 1; count <= 6; count++) {
        if (count == 5) { /* neither 12 layers nor 12 micro-batches are 5 equal parts */
            assert_int_equal(cairn_shape_find(&problem, all, count, &rules, &shape),
                             CAIRN_NOT_FOUND);
            continue;
        }
        assert_int_equal(cairn_shape_find(&problem, all, count, &rules, &shape), CAIRN_OK);
        assert_int_equal(shape.dp * shape.pp, count);
        check_sums(&shape);
        for (uint32_t i = 1; i < shape.pp; i++)
            assert_int_equal(shape.layers[i], shape.layers[0]);
        for (uint32_t i = 1; i < shape.dp; i++)
            assert_int_equal(shape.shares[i], shape.shares[0]);
    }
    rules.has_stages = false; /* three stages: whole pipelines only */
    assert_int_equal(cairn_shape_find(&problem, all, 4, &rules, &shape), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_shape_find(&problem, all, 3, &rules, &shape), CAIRN_OK);
    assert_int_equal(shape.pp, 3);
    rules.has_shares = true;
    rules.has_layers = rules.has_stages = true;
    assert_int_equal(cairn_shape_find(&problem, all, 5, &rules, &shape), CAIRN_OK);
    check_sums(&shape);
    cairn_problem_fini(&problem);
}

/* Five devices cannot share 12 micro-batches equally: each keeps its 6, if the batch may change. */
static void
test_the_batch_may_change(void **state)
{
    struct cairn_shape_rules rules = {.has_stages = true};
    struct cairn_problem problem;
    struct cairn_shape shape;

    make_problem(&problem, 1, 99, by_pipeline);
    problem.layers = 11; /* one stage, or eleven */
    assert_int_equal(cairn_shape_find(&problem, all, 5, &rules, &shape), CAIRN_NOT_FOUND);
    rules.batch_may_change = true;
    assert_int_equal(cairn_shape_find(&problem, all, 5, &rules, &shape), CAIRN_OK);
    assert_int_equal(shape.dp, 5);
    assert_int_equal(shape.pp, 1);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(shape.shares[i], problem.current->pipelines[0].microbatches);
    assert_int_equal(cairn_shape_find(&problem, all, 4, &rules, &shape), CAIRN_OK);
    assert_int_equal(shape.dp * shape.shares[0], MICROBATCHES); /* where it can stay, it does */
    cairn_problem_fini(&problem);
}

/* The slow device gets fewer layers if the command can be told, and memory is kept. */
static void
test_slow_devices_and_memory(void **state)
{
    const struct cairn_shape_rules none = {.has_stages = false}, every = {true, true, true, false};
    struct cairn_shape equal, fit, left;
    struct cairn_problem problem;

    make_problem(&problem, 2, 5, by_pipeline);
    assert_int_equal(cairn_shape_find(&problem, all, 6, &none, &equal), CAIRN_OK);
    assert_int_equal(cairn_shape_find(&problem, all, 6, &every, &fit), CAIRN_OK);
    check_sums(&fit);
    assert_true(fit.step_ms < equal.step_ms);
    for (uint32_t i = 0; i < fit.pp; i++)
        assert_true(fit.layers[i] <= 5);
    assert_int_equal(cairn_shape_find(&problem, without_4, 5, &every, &left), CAIRN_OK);
    assert_int_equal(left.pp, 5); /* one pipeline: two would need room for 6 layers */
    assert_int_equal(cairn_shape_find(&problem, without_4, 2, &every, &left), CAIRN_NOT_FOUND);
    problem.devices[4].rate = 0;
    assert_int_equal(cairn_shape_find(&problem, all, 6, &every, &left), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_shape_find(&problem, without_4, 5, &every, &left), CAIRN_OK);
    cairn_problem_fini(&problem);
}

/* Ranks of a stage follow one another, as Megatron-LM numbers them: the slow device, rank 4, is in
 * the last stage of the first pipeline. */
static void
test_the_order_of_ranks_is_kept(void **state)
{
    static const uint32_t by_stage[6] = {0, 2, 4, 1, 3, 5};
    const struct cairn_shape_rules rules = {.has_layers = true};
    struct cairn_shape one, other;
    struct cairn_problem problem;

    make_problem(&problem, 2, 9, by_stage);
    assert_int_equal(cairn_shape_find(&problem, all, 6, &rules, &one), CAIRN_OK);
    cairn_problem_fini(&problem);
    make_problem(&problem, 2, 9, by_pipeline);
    assert_int_equal(cairn_shape_find(&problem, all, 6, &rules, &other), CAIRN_OK);
    cairn_problem_fini(&problem);
    assert_true(one.layers[2] < one.layers[1]);
    assert_true(other.layers[1] < other.layers[2]);
}

static void
test_no_current_plan(void **state)
{
    const struct cairn_shape_rules rules = {.has_stages = true};
    struct cairn_problem problem = {.layers = 1};
    struct cairn_shape shape;
    uint64_t nodes[CAIRN_SHAPE_NODES_MAX];

    assert_int_equal(cairn_shape_find(&problem, all, 1, &rules, &shape), CAIRN_INVAL);
    assert_false(cairn_shape_current(&problem, &shape));
    assert_int_equal(cairn_shape_nodes(&problem, nodes), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_current_plan_is_a_shape),
        cmocka_unit_test(test_rules_hold),
        cmocka_unit_test(test_the_batch_may_change),
        cmocka_unit_test(test_slow_devices_and_memory),
        cmocka_unit_test(test_the_order_of_ranks_is_kept),
        cmocka_unit_test(test_no_current_plan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
