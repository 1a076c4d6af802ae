/* tests/unit/replan/profile/test_profile.c - times and rates are found again from what ranks of a
 * plan computed. */
#include <math.h>
#include <string.h>

#include "replan/fleet/plan.h"
#include "replan/profile/profile.h"
#include "tests/support/cmocka.h"
#include "tests/unit/replan/small.h"

enum { STAGES = 4, PIPELINES = 2, SIZE = 2, RANKS = STAGES * PIPELINES * SIZE, MICROBATCHES = 8 };

/* Two pipelines of four stages of two devices each, which are their ranks in order. */
struct job {
    struct cairn_problem problem;
    struct cairn_plan plan;
    struct cairn_plan_pipeline pipelines[PIPELINES];
    struct cairn_plan_stage stages[PIPELINES * STAGES];
    uint64_t ids[RANKS];
    struct cairn_device devices[RANKS];
    struct cairn_load loads[RANKS];
};

static void
set_up(struct job *job, double layer_ms, double embed_layers, double head_layers)
{
    uint64_t state = 3;

    *job = (struct job){.problem = {.layers = 40,
                                    .layer_ms = 1,
                                    .microbatches = PIPELINES * MICROBATCHES,
                                    .tp = SIZE,
                                    .sizes = {{SIZE, 1}},
                                    .size_count = 1,
                                    .layer_bytes = 1,
                                    .device_count = RANKS}};
    for (uint32_t i = 0; i < RANKS; i++) {
        uint32_t stage = i / SIZE % STAGES;
        double layers =
            10 + (stage == 0 ? embed_layers : 0) + (stage + 1 == STAGES ? head_layers : 0);

        job->ids[i] = i;
        job->devices[i] = (struct cairn_device){i, i / 8, 1, 1000};
        job->loads[i] = (struct cairn_load){layers * layer_ms * MICROBATCHES * 1e6 *
                                                (1 + 0.01 * (random_below(&state, 201) * 0.01 - 1)),
                                            1e4};
    }
    for (uint32_t i = 0; i < PIPELINES * STAGES; i++)
        job->stages[i] = (struct cairn_plan_stage){i * SIZE, SIZE, i % STAGES * 10, 10};
    for (uint32_t i = 0; i < PIPELINES; i++)
        job->pipelines[i] = (struct cairn_plan_pipeline){MICROBATCHES, i * STAGES, STAGES};
    job->plan = (struct cairn_plan){job->pipelines, job->stages,        job->ids,
                                    PIPELINES,      PIPELINES * STAGES, RANKS};
    job->problem.devices = job->devices;
    job->problem.current = &job->plan;
}

static void
test_found_again(void **state)
{
    struct cairn_profiled profiled;
    struct cairn_fault fault = {""};
    struct job job;

    set_up(&job, 7.5, 0.5, 3);
    job.loads[5].compute_ns *= 2.6; /* one of its stage's two: the other one says what is normal */
    job.loads[9].compute_ns = (double)NAN;
    job.devices[9].rate = 1.7;
    job.devices[12].rate = 0; /* dead since */
    assert_int_equal(cairn_profile_take(&job.problem, job.loads, RANKS, &profiled, &fault),
                     CAIRN_OK);
    assert_true(fabs(job.problem.layer_ms / 7.5 - 1) < 0.02);
    assert_true(fabs(job.problem.embed_layers - 0.5) < 0.25);
    assert_true(fabs(job.problem.head_layers - 3) < 0.25);
    assert_false(profiled.vocabulary_kept);
    assert_int_equal(profiled.stages, PIPELINES * STAGES);
    assert_int_equal(profiled.slow_devices, 1);
    for (uint32_t i = 0; i < RANKS; i++) /* what was not measured keeps its rate */
        assert_true(fabs(job.devices[i].rate - (i == 5    ? 2.6
                                                : i == 9  ? 1.7
                                                : i == 12 ? 0
                                                          : 1)) < 0.08);
}

/* One stage per pipeline: what of its time is the vocabulary's cannot be told. */
static void
test_vocabulary_kept(void **state)
{
    struct cairn_profiled profiled;
    struct cairn_fault fault = {""};
    struct job job;

    set_up(&job, 7.5, 0, 0);
    for (uint32_t i = 0; i < PIPELINES; i++)
        job.pipelines[i].stage_count = 1;
    job.plan.stage_count = PIPELINES;
    job.plan.device_count = PIPELINES * SIZE;
    job.pipelines[1].first_stage = 1;
    job.stages[1].first_layer = 0;
    job.problem.head_layers = 2;
    assert_int_equal(cairn_profile_take(&job.problem, job.loads, RANKS, &profiled, &fault),
                     CAIRN_OK);
    assert_true(profiled.vocabulary_kept);
    assert_true(job.problem.head_layers >= 2 && job.problem.head_layers <= 2);
    assert_true(fabs(job.problem.layer_ms / (7.5 * 10 / 12) - 1) < 0.02);
}

/* One pipeline of single devices. With three stages any times fit, so the vocabulary is not taken
 * from them; with four it is, but the ends may as well be slow. */
static void
test_single_devices(void **state)
{
    struct cairn_profiled profiled;
    struct cairn_fault fault = {""};
    struct job job;

    for (uint32_t stages = 3; stages <= STAGES; stages++) {
        set_up(&job, 7.5, 0, 0);
        job.problem.head_layers = 1;
        for (uint32_t i = 0; i < stages; i++)
            job.stages[i] = (struct cairn_plan_stage){i, 1, i * 10, 10};
        for (uint32_t i = 0; i < RANKS; i++)
            job.loads[i].compute_ns = 10 * 7.5 * MICROBATCHES * 1e6 * (i + 1 == stages ? 1.3 : 1);
        job.pipelines[0].stage_count = stages;
        job.problem.sizes[0].size = 1;
        job.plan = (struct cairn_plan){job.pipelines, job.stages, job.ids, 1, stages, stages};
        assert_int_equal(cairn_profile_take(&job.problem, job.loads, RANKS, &profiled, &fault),
                         CAIRN_OK);
        assert_true(fabs(job.problem.layer_ms / 7.5 - 1) < 0.01);
        assert_int_equal(profiled.kept_devices, RANKS - stages);
        assert_int_equal(profiled.vocabulary_kept, stages == 3);
        assert_int_equal(profiled.first_open, stages == STAGES);
        assert_int_equal(profiled.last_open, stages == STAGES);
        /* either the last device is slow, the vocabulary being as given, or the vocabulary
         * weighs 3 layers */
        assert_true(fabs(job.problem.head_layers - (stages == 3 ? 1 : 3)) < 0.1);
        assert_true(fabs(job.devices[stages - 1].rate - (stages == 3 ? 1.18 : 1)) < 0.01);
    }
}

/* Each stage takes something else: that is not layers and a few slow devices. */
static void
test_scattered(void **state)
{
    static const double times[STAGES] = {1, 2.2, 0.6, 3.5};
    struct cairn_profiled profiled;
    struct cairn_fault fault = {""};
    struct job job;

    set_up(&job, 7.5, 0, 0);
    for (uint32_t i = 0; i < RANKS; i++)
        job.loads[i].compute_ns *= times[(i / SIZE + i / SIZE / STAGES) % STAGES];
    assert_int_equal(cairn_profile_take(&job.problem, job.loads, RANKS, &profiled, &fault),
                     CAIRN_INVAL);
    assert_non_null(strstr(fault.text, "off any fit"));
}

static void
test_refused(void **state)
{
    struct cairn_profiled profiled;
    struct cairn_fault fault = {""};
    struct job job;

    set_up(&job, 7.5, 0, 0);
    assert_int_equal(cairn_profile_take(&job.problem, job.loads, RANKS - 1, &profiled, &fault),
                     CAIRN_INVAL);
    assert_non_null(strstr(fault.text, "device 15"));
    for (uint32_t i = 0; i < RANKS; i++)
        job.loads[i].compute_ns = (double)NAN;
    assert_int_equal(cairn_profile_take(&job.problem, job.loads, RANKS, &profiled, &fault),
                     CAIRN_INVAL);
    assert_non_null(strstr(fault.text, "more steps"));
    job.problem.current = NULL;
    assert_int_equal(cairn_profile_take(&job.problem, job.loads, RANKS, &profiled, &fault),
                     CAIRN_INVAL);
    assert_non_null(strstr(fault.text, "\"current\""));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found_again),    cmocka_unit_test(test_vocabulary_kept),
        cmocka_unit_test(test_single_devices), cmocka_unit_test(test_scattered),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests_name("replan/profile", tests, NULL, NULL);
}
