/* tests/unit/replan/fleet/test_simulate.c - the replayed schedule by hand, and against the
 * formula. */
#include <math.h>
#include <stdlib.h>

#include "replan/search/answer.h"
#include "replan/fleet/schedule.h"
#include "replan/fleet/simulate.h"
#include "tests/support/cases.h"
#include "tests/support/cmocka.h"
#include "tests/support/never.h"
#include "tests/unit/replan/small.h"

enum { PLANS = 600 / CASE_STRIDE };

/* Two stages of 3 ms (a forward 1, a backward 2), three micro-batches:
 *   stage 0: F0 F1 .  B0 . F2 . B1 ...   the last backward of stage 0 ends at (3 - 1) * 3 + 6 =
 *   12. */
static void
test_by_hand(void **state)
{
    struct cairn_device devices[2] = {{0, 0, 1, 1000}, {1, 0, 1, 1000}};
    struct cairn_problem problem = {.layers = 2,
                                    .layer_ms = 3,
                                    .microbatches = 3,
                                    .tp = 1,
                                    .sizes = {{1, 1}},
                                    .size_count = 1,
                                    .layer_bytes = 100,
                                    .activation_bytes = 10,
                                    .reserved_bytes = 1,
                                    .devices = devices,
                                    .device_count = 2};
    struct cairn_plan_pipeline pipeline = {3, 0, 2};
    struct cairn_plan_stage stages[2] = {{0, 1, 0, 1}, {1, 1, 1, 1}};
    uint64_t ids[2] = {0, 1};
    struct cairn_plan plan = {&pipeline, stages, ids, 1, 2, 2};
    struct cairn_simulated simulated = {0};

    assert_int_equal(cairn_simulate(&plan, &problem, &simulated), CAIRN_OK);
    assert_true(fabs(simulated.step_ms - 12) < 1e-9);
    assert_true(fabs(simulated.stages[0].busy_ms - 9) < 1e-9);
    assert_int_equal(simulated.stages[0].in_flight, 2);
    assert_int_equal(simulated.stages[1].in_flight, 1);
    assert_int_equal(simulated.stages[0].device_bytes, 100 + 2 * 10 + 1);
    assert_int_equal(simulated.stages[1].device_bytes, 100 + 10 + 1);
    cairn_simulated_fini(&simulated);
    devices[1].rate = 4; /* the slow stage is last: it waits for one forward, and one backward
                          * follows */
    assert_int_equal(cairn_simulate(&plan, &problem, &simulated), CAIRN_OK);
    assert_true(fabs(simulated.step_ms - (1 + 3 * 12 + 2)) < 1e-9);
    cairn_simulated_fini(&simulated);
}

/* The formula of the schedule says what the replay does, the simpler one never less; and what a
 * stage holds is what the formula of memory says. Half of the plans are of a few micro-batches,
 * where the two differ most. */
static void
test_against_formula(void **test_state)
{
    const struct cairn_stop stop = {never, NULL};
    uint32_t plans = 0, near = 0, staged = 0;
    double most = 0, worst = 0;

    for (uint64_t seed = 0; plans < PLANS; seed++) {
        struct cairn_problem problem = small_problem(seed);
        struct cairn_answer_plan answer = {0};
        struct cairn_simulated simulated = {0};
        double under, schedule_ms;

        problem.layers *= 3;
        problem.microbatches *= seed % 2 ? 5 : 1;
        if (problem.device_count > 5)
            problem.device_count = 5;
        for (uint32_t i = 0; i < problem.device_count; i++)
            problem.devices[i].memory_bytes *= 2;
        assert_int_equal(cairn_answer_plan_make(&problem, &stop, &stop, &answer), CAIRN_OK);
        if (answer.plan) {
            assert_int_equal(cairn_simulate(answer.plan, &problem, &simulated), CAIRN_OK);
            assert_int_equal(cairn_plan_schedule_ms(answer.plan, &problem, &schedule_ms), CAIRN_OK);
            assert_true(fabs(schedule_ms - answer.schedule_ms) <= 1e-9 * schedule_ms);
            worst = fmax(worst, fabs(schedule_ms / simulated.step_ms - 1));
            under = 1 - simulated.step_ms / answer.step_ms;
            assert_true(under > -1e-9);
            plans++;
            near += under <= 0.02;
            most = fmax(most, under);
            for (uint32_t i = 0; i < answer.plan->pipeline_count; i++)
                for (uint32_t j = 0; j < answer.plan->pipelines[i].stage_count; j++) {
                    uint32_t left = answer.plan->pipelines[i].stage_count - j;
                    uint32_t given = answer.plan->pipelines[i].microbatches;

                    assert_int_equal(
                        simulated.stages[answer.plan->pipelines[i].first_stage + j].in_flight,
                        left < given ? left : given);
                    staged += j > 0;
                }
        }
        cairn_simulated_fini(&simulated);
        cairn_answer_plan_fini(&answer);
        cairn_problem_fini(&problem);
    }
    print_message("%u plans, %u stages behind another; %u within 2 %% of the simpler formula, at "
                  "most %.1f %% under it; %.2g off "
                  "that of the schedule\n",
                  plans, staged, near, most * 100, worst);
    assert_true(worst < 1e-9);
    assert_true(near < PLANS && staged > PLANS / 4);
}

/* Beyond the micro-batches that are looked at one by one, each takes as long as the slowest
 * stage. */
static void
test_many_microbatches(void **state)
{
    static const double rates[] = {1, 2.6, 1.3, 1};
    struct cairn_device devices[4];
    struct cairn_problem problem = {.layers = 8,
                                    .layer_ms = 3,
                                    .microbatches = 2000,
                                    .tp = 1,
                                    .sizes = {{1, 1}},
                                    .size_count = 1,
                                    .layer_bytes = 1,
                                    .devices = devices,
                                    .device_count = 4};
    struct cairn_plan_pipeline pipeline = {2000, 0, 4};
    struct cairn_plan_stage stages[4];
    uint64_t ids[4];
    struct cairn_plan plan = {&pipeline, stages, ids, 1, 4, 4};
    struct cairn_simulated simulated = {0};
    double schedule_ms;

    for (uint32_t i = 0; i < 4; i++) {
        devices[i] = (struct cairn_device){i, i, rates[i], 1000};
        stages[i] = (struct cairn_plan_stage){i, 1, 2 * i, 2};
        ids[i] = i;
    }
    assert_int_equal(cairn_simulate(&plan, &problem, &simulated), CAIRN_OK);
    assert_int_equal(cairn_plan_schedule_ms(&plan, &problem, &schedule_ms), CAIRN_OK);
    assert_true(fabs(schedule_ms - simulated.step_ms) <= 1e-9 * schedule_ms);
    cairn_simulated_fini(&simulated);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_against_formula),
        cmocka_unit_test(test_many_microbatches),
    };

    return cmocka_run_group_tests_name("replan/simulate", tests, NULL, NULL);
}
