/* tests/unit/replan/search/test_migrate.c - of plans that are nearly as fast, the one that moves
 * least. */
#include <math.h>
#include <stdlib.h>

#include "replan/search/answer.h"
#include "tests/support/cmocka.h"
#include "tests/support/never.h"

enum { DEVICES = 8, PIPELINES = 4 };

/* Four pipelines of two devices run, each with a layer more on its first stage than would be best:
 * a thousandth. One micro-batch over a multiple of four is the first's. */
static struct cairn_problem
running(uint32_t microbatches)
{
    static const uint32_t layers[] = {501, 499};
    struct cairn_problem problem = {.layers = 1000,
                                    .layer_ms = 1,
                                    .microbatches = microbatches,
                                    .tp = 1,
                                    .sizes = {{1, 1}},
                                    .size_count = 1,
                                    .layer_bytes = 10,
                                    .device_count = DEVICES,
                                    .intra_gbps = 100,
                                    .inter_gbps = 10};
    struct cairn_plan *plan = NULL;

    problem.devices = calloc(DEVICES, sizeof(*problem.devices));
    assert_non_null(problem.devices);
    assert_int_equal(cairn_plan_create(PIPELINES, DEVICES, DEVICES, &plan), CAIRN_OK);
    for (uint32_t i = 0; i < DEVICES; i++) {
        problem.devices[i] = (struct cairn_device){i, 0, 1, 6000};
        plan->devices[plan->device_count++] = i;
        plan->stages[plan->stage_count++] =
            (struct cairn_plan_stage){i, 1, i % 2 * layers[0], layers[i % 2]};
        if (i % 2 == 0)
            plan->pipelines[plan->pipeline_count++] = (struct cairn_plan_pipeline){
                (microbatches + (i == 0 ? PIPELINES - 1 : 0)) / PIPELINES, i, 2};
    }
    problem.current = plan;
    return problem;
}

/* What runs is within half a per cent of the best: it goes on as it is. */
static void
test_what_runs_goes_on(void **state)
{
    const struct cairn_stop stop = {never, NULL};
    struct cairn_problem problem = running(72);
    struct cairn_answer_plan answer = {0};

    assert_int_equal(cairn_answer_plan_best(&problem, &stop, &answer), CAIRN_OK);
    assert_non_null(answer.plan);
    assert_int_equal(answer.migration.moved_bytes, 0);
    assert_memory_equal(answer.plan->stages, problem.current->stages,
                        DEVICES * sizeof(*answer.plan->stages));
    assert_memory_equal(answer.plan->pipelines, problem.current->pipelines,
                        PIPELINES * sizeof(*answer.plan->pipelines));
    cairn_answer_plan_fini(&answer);
    cairn_problem_fini(&problem);
}

/* Both devices of a pipeline are slow: fewer micro-batches for it are nearly the best, and no layer
 * moves. */
static void
test_micro_batches_alone(void **state)
{
    const struct cairn_stop stop = {never, NULL};
    struct cairn_problem problem = running(69);
    struct cairn_answer_plan answer = {0};
    struct cairn_fault fault = {""};

    problem.devices[0].rate = problem.devices[1].rate = 2;
    assert_int_equal(cairn_answer_plan_best(&problem, &stop, &answer), CAIRN_OK);
    assert_non_null(answer.plan);
    assert_int_equal(cairn_plan_check(answer.plan, &problem, &fault), CAIRN_OK);
    assert_int_equal(answer.migration.moved_bytes, 0);
    assert_int_equal(answer.payback_steps, 0);
    assert_true(answer.step_ms < answer.current_ms * 0.7);
    assert_true(answer.step_ms <= cairn_plan_step_ms(answer.plan, &problem) * (1 + 1e-9));
    assert_memory_equal(answer.plan->stages, problem.current->stages,
                        DEVICES * sizeof(*answer.plan->stages));
    assert_int_equal(answer.plan->pipelines[0].microbatches, 9);
    cairn_answer_plan_fini(&answer);
    cairn_problem_fini(&problem);
}

/* A slow device in one pipeline: each plan has its price, and no plan that moves less is as
 * near. */
static void
test_a_move_has_its_price(void **state)
{
    const struct cairn_stop stop = {never, NULL};
    struct cairn_problem problem = running(69);
    struct cairn_answer_plan answer = {0};
    struct cairn_plan *redivided = NULL;
    struct cairn_migration own;
    double redivided_ms;

    problem.devices[3].rate = 1.3;
    assert_int_equal(cairn_answer_plan_best(&problem, &stop, &answer), CAIRN_OK);
    assert_non_null(answer.plan);
    assert_int_equal(cairn_migration_redivide(&problem, problem.current, &redivided, &redivided_ms),
                     CAIRN_OK);
    assert_non_null(redivided);
    assert_int_equal(cairn_migration_of(&problem, problem.current, redivided, &own), CAIRN_OK);
    if (redivided_ms <= answer.step_ms)
        assert_true(answer.migration.moved_bytes <= own.moved_bytes);
    assert_true(answer.step_ms < answer.current_ms);
    assert_true(answer.migration.moved_bytes == 0 || answer.payback_steps > 0);
    cairn_plan_destroy(redivided);
    cairn_answer_plan_fini(&answer);
    cairn_problem_fini(&problem);
}

/* Thirds and sevenths of layers that stay where they are move nothing at all, not even what
 * rounding leaves of a byte. */
static void
test_what_stays_moves_nothing(void **state)
{
    enum { SIZE_MAX_TRIED = 16 };
    struct cairn_problem problem = {
        .layer_bytes = UINT64_C(6) << 30, .device_count = SIZE_MAX_TRIED, .inter_gbps = 400};
    struct cairn_plan *plan = NULL;
    struct cairn_migration migration;

    problem.devices = calloc(SIZE_MAX_TRIED, sizeof(*problem.devices));
    assert_non_null(problem.devices);
    assert_int_equal(cairn_plan_create(1, 1, SIZE_MAX_TRIED, &plan), CAIRN_OK);
    for (uint32_t i = 0; i < SIZE_MAX_TRIED; i++) {
        problem.devices[i] = (struct cairn_device){i, 0, 1, UINT64_C(80) << 30};
        plan->devices[i] = i;
    }
    plan->pipeline_count = plan->stage_count = 1;
    plan->pipelines[0] = (struct cairn_plan_pipeline){1, 0, 1};
    for (uint32_t size = 1; size <= SIZE_MAX_TRIED; size++)
        for (uint32_t layers = 1; layers <= 80; layers++) {
            problem.layers = layers;
            plan->device_count = size;
            plan->stages[0] = (struct cairn_plan_stage){0, size, 0, layers};
            assert_int_equal(cairn_migration_of(&problem, plan, plan, &migration), CAIRN_OK);
            assert_int_equal(migration.moved_bytes, 0);
            assert_true(migration.migrate_ms <= 0);
        }
    cairn_plan_destroy(plan);
    cairn_problem_fini(&problem);
}

/* More bytes than the type holds, and steps: as many as it does. */
static void
test_sums_beyond_the_type(void **state)
{
    enum { MANY = 20000 };
    struct cairn_problem problem = {
        .layers = 1, .layer_bytes = CAIRN_PROBLEM_BYTES_MAX, .device_count = MANY};
    struct cairn_plan *from = NULL, *plan = NULL;
    struct cairn_migration migration;

    problem.devices = calloc(MANY, sizeof(*problem.devices));
    assert_non_null(problem.devices);
    assert_int_equal(cairn_plan_create(MANY, MANY, MANY, &plan), CAIRN_OK);
    assert_int_equal(cairn_plan_create(0, 0, 0, &from), CAIRN_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        problem.devices[i] = (struct cairn_device){i, i, 1, CAIRN_PROBLEM_BYTES_MAX};
        plan->devices[plan->device_count++] = i;
        plan->stages[plan->stage_count++] = (struct cairn_plan_stage){i, 1, 0, 1};
        plan->pipelines[plan->pipeline_count++] = (struct cairn_plan_pipeline){1, i, 1};
    }
    assert_int_equal(cairn_migration_of(&problem, from, plan, &migration), CAIRN_OK);
    assert_true(migration.moved_bytes == UINT64_MAX);
    assert_true(cairn_migration_payback(9e15, 1e-9) == UINT64_MAX);
    assert_int_equal(cairn_migration_payback(10, 4), 3);
    assert_int_equal(cairn_migration_payback(10, -4), 0);
    assert_int_equal(cairn_migration_payback(0, 4), 0);
    assert_int_equal(cairn_migration_payback(10, INFINITY), 0);
    assert_int_equal(cairn_migration_payback(NAN, 4), 0);
    cairn_plan_destroy(from);
    cairn_plan_destroy(plan);
    cairn_problem_fini(&problem);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_runs_goes_on),
        cmocka_unit_test(test_micro_batches_alone),
        cmocka_unit_test(test_a_move_has_its_price),
        cmocka_unit_test(test_what_stays_moves_nothing),
        cmocka_unit_test(test_sums_beyond_the_type),
    };

    return cmocka_run_group_tests_name("replan/migrate", tests, NULL, NULL);
}
