/* tests/unit/replan/profile/test_memory.c - what layers hold is found again from what the devices
 * of a plan held. */
#include <math.h>

#include "replan/fleet/cost.h"
#include "replan/fleet/plan.h"
#include "replan/profile/memory.h"
#include "tests/support/cmocka.h"
#include "tests/unit/replan/small.h"

enum { STAGES = 4, PIPELINES = 2, SIZE = 2, RANKS = STAGES * PIPELINES * SIZE, MICROBATCHES = 8 };
#define LAYER UINT64_C(1610612736)
#define ACTIVATION UINT64_C(201326592)
#define RESERVED UINT64_C(4294967296)

/* Two pipelines of four stages of two devices each, which are their ranks in order; layers[STAGES]
 * of each pipeline. */
struct job {
    struct cairn_problem problem;
    struct cairn_plan plan;
    struct cairn_plan_pipeline pipelines[PIPELINES];
    struct cairn_plan_stage stages[PIPELINES * STAGES];
    uint64_t ids[RANKS];
    uint64_t memory_bytes[RANKS + 1]; /* the last is in no stage */
};

static void
set_up(struct job *job, const uint32_t *layers, uint64_t layer, uint64_t activation,
       uint64_t reserved)
{
    struct cairn_problem truth = {
        .layer_bytes = layer, .activation_bytes = activation, .reserved_bytes = reserved};
    uint64_t state = 5;

    *job = (struct job){
        .problem = {.layers = 40, .layer_bytes = 1, .activation_bytes = 2, .reserved_bytes = 3}};
    for (uint32_t i = 0; i < PIPELINES * STAGES; i++)
        /* cppcheck-suppress constStatement ; it takes the initializer for a statement */
        job->stages[i] = (struct cairn_plan_stage){i * SIZE, SIZE, 0, layers[i % STAGES]};
    for (uint32_t i = 0; i < RANKS; i++) {
        uint32_t stage = i / SIZE % STAGES;

        job->ids[i] = i;
        job->memory_bytes[i] = (uint64_t)((double)cairn_cost_device_bytes(
                                              &truth, SIZE, layers[stage],
                                              cairn_cost_in_flight(stage, STAGES, MICROBATCHES)) *
                                          (1 + 0.002 * (random_below(&state, 201) * 0.01 - 1)));
    }
    for (uint32_t i = 0; i < PIPELINES; i++)
        job->pipelines[i] = (struct cairn_plan_pipeline){MICROBATCHES, i * STAGES, STAGES};
    job->plan = (struct cairn_plan){job->pipelines, job->stages,        job->ids,
                                    PIPELINES,      PIPELINES * STAGES, RANKS};
    job->problem.current = &job->plan;
}

static bool
near(uint64_t value, uint64_t expected)
{
    return fabs((double)value / (double)expected - 1) < 0.02;
}

static void
test_found_again(void **state)
{
    static const uint32_t layers[STAGES] = {4, 12, 16, 8};
    struct cairn_profiled_memory profiled;
    struct job job;

    set_up(&job, layers, LAYER, ACTIVATION, RESERVED);
    job.memory_bytes[5] *= 2; /* something else ran there as well */
    job.memory_bytes[9] = 0;
    job.memory_bytes[RANKS] = 77;
    assert_int_equal(cairn_profile_memory(&job.problem, job.memory_bytes, RANKS + 1, &profiled),
                     CAIRN_OK);
    assert_true(profiled.told.layer && profiled.told.activation && profiled.told.reserved);
    assert_true(near(job.problem.layer_bytes, LAYER) &&
                near(job.problem.activation_bytes, ACTIVATION) &&
                near(job.problem.reserved_bytes, RESERVED));
    assert_int_equal(profiled.devices, RANKS - 1);
    assert_int_equal(profiled.fit.used, RANKS - 2);
    assert_int_equal(profiled.outside, 1);
    assert_true(fabs(profiled.off_worst + 0.5) < 0.01); /* that one device's */
}

/* As many layers in all stages: what each micro-batch takes is told, and what is not stays. */
static void
test_alike(void **state)
{
    static const uint32_t layers[STAGES] = {10, 10, 10, 10};
    struct cairn_profiled_memory profiled;
    struct job job;

    set_up(&job, layers, LAYER, 4 * ACTIVATION, RESERVED);
    assert_int_equal(cairn_profile_memory(&job.problem, job.memory_bytes, RANKS, &profiled),
                     CAIRN_OK);
    assert_true(!profiled.told.layer && profiled.told.activation && !profiled.told.reserved);
    assert_true(near(job.problem.activation_bytes, 4 * ACTIVATION));
    assert_int_equal(job.problem.layer_bytes, 1);
    assert_int_equal(job.problem.reserved_bytes, 3);
    assert_true(profiled.off_worst < -0.3);
}

static void
test_nothing_told(void **state)
{
    static const uint32_t layers[STAGES] = {4, 12, 16, 8};
    struct cairn_profiled_memory profiled;
    struct job job;

    for (uint32_t what = 0; what < 3; what++) {
        /* layers hold nothing */
        set_up(&job, layers, what == 0 ? 0 : LAYER, what == 0 ? 0 : ACTIVATION, RESERVED);
        for (uint32_t i = what == 1 ? 1 : 0; i < RANKS; i++)
            job.memory_bytes[i] = what > 0 ? 0 : RESERVED - 1000 * layers[i / SIZE % STAGES];
        assert_int_equal(cairn_profile_memory(&job.problem, job.memory_bytes, RANKS, &profiled),
                         CAIRN_OK);
        assert_int_equal(profiled.devices, what == 0 ? RANKS : what == 1);
        assert_int_equal(profiled.contradicts, what == 0);
        assert_false(profiled.told.layer || profiled.told.activation || profiled.told.reserved);
        assert_true(job.problem.layer_bytes == 1 && job.problem.activation_bytes == 2 &&
                    job.problem.reserved_bytes == 3);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found_again),
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_nothing_told),
    };

    return cmocka_run_group_tests_name("replan/profile_memory", tests, NULL, NULL);
}
