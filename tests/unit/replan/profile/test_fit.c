/* tests/unit/replan/profile/test_fit.c - coefficients are found again from what they lead to, noise
 * and pauses included. */
#include <math.h>
#include <string.h>

#include "replan/profile/fit.h"
#include "tests/support/cmocka.h"
#include "tests/unit/replan/small.h"

enum { SAMPLES = 64 };

/* From 1 - part to 1 + part. */
static double
noise(uint64_t *state, double part)
{
    return 1 + part * (random_below(state, 2000001) * 1e-6 - 1);
}

static bool
near(double value, double expected, double part)
{
    return fabs(value / expected - 1) <= part;
}

static void
test_stages(void **test_state)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        uint64_t state = seed + 9;
        double layer_ms = 1 + random_below(&state, 30);
        double embed = random_below(&state, 3) + 0.5, head = random_below(&state, 9) + 0.5;
        struct cairn_stage_sample samples[SAMPLES];
        struct cairn_problem problem = {0};
        struct cairn_fault fault = {""};
        struct cairn_fit fit;

        for (uint32_t i = 0; i < SAMPLES; i++) {
            struct cairn_stage_sample *sample = &samples[i];

            sample->layers = 4 + random_below(&state, 12);
            sample->first = i % 4 == 0;
            sample->last = i % 4 == 3;
            sample->ms = layer_ms * (sample->layers + sample->first * embed + sample->last * head) *
                         noise(&state, 0.01) * (random_below(&state, 20) == 0 ? 3 : 1); /* pauses */
        }
        assert_int_equal(cairn_fit_stages(samples, SAMPLES, &problem, &fit, &fault), CAIRN_OK);
        if (!near(problem.layer_ms, layer_ms, 0.02) || fabs(problem.embed_layers - embed) > 0.2 ||
            fabs(problem.head_layers - head) > 0.3)
            fail_msg("seed %u: layer %g for %g, embed %g for %g, head %g for %g", (unsigned)seed,
                     problem.layer_ms, layer_ms, problem.embed_layers, embed, problem.head_layers,
                     head);
        assert_true(fit.error_rms < 0.02 && fit.used > SAMPLES * 3 / 4);
    }
}

static void
test_link(void **test_state)
{
    struct cairn_link_sample samples[SAMPLES];
    struct cairn_fault fault = {""};
    struct cairn_fit fit;
    double gbps, latency_ms;
    uint64_t state = 4;

    for (uint32_t i = 0; i < SAMPLES; i++) {
        samples[i].bytes = UINT64_C(1) << (12 + i % 20);
        samples[i].ms = (0.02 + (double)samples[i].bytes * 8 / (400 * 1e6)) * noise(&state, 0.02);
    }
    assert_int_equal(cairn_fit_link(samples, SAMPLES, &gbps, &latency_ms, &fit, &fault), CAIRN_OK);
    assert_true(near(gbps, 400, 0.02) && near(latency_ms, 0.02, 0.03));
    for (uint32_t i = 0; i < SAMPLES; i++)
        samples[i].bytes = 1000;
    assert_int_equal(cairn_fit_link(samples, SAMPLES, &gbps, &latency_ms, &fit, &fault),
                     CAIRN_INVAL);
    assert_non_null(strstr(fault.text, "several sizes"));
}

static uint64_t
held(const struct cairn_memory_sample *sample, uint64_t layer, uint64_t activation,
     uint64_t reserved)
{
    return (sample->layers * layer + sample->layers * (uint64_t)sample->in_flight * activation) /
               sample->group_size +
           reserved;
}

static void
test_memory(void **test_state)
{
    struct cairn_memory_sample samples[SAMPLES];
    struct cairn_memory_told told;
    struct cairn_problem problem = {0};
    struct cairn_fault fault = {""};
    struct cairn_fit fit;

    for (uint32_t i = 0; i < SAMPLES; i++) {
        struct cairn_memory_sample *sample = &samples[i];

        *sample = (struct cairn_memory_sample){5 + i % 7, 1 + i % 5, 1u << i % 4, 0};
        sample->device_bytes = held(sample, 1610612736, 201326592, UINT64_C(4294967296));
    }
    assert_int_equal(cairn_fit_memory(samples, SAMPLES, &problem, &told, &fit, &fault), CAIRN_OK);
    assert_true(told.layer && told.activation && told.reserved);
    assert_true(near((double)problem.layer_bytes, 1610612736, 1e-6));
    assert_true(near((double)problem.activation_bytes, 201326592, 1e-6));
    assert_true(near((double)problem.reserved_bytes, 4294967296, 1e-6));
    assert_true(fit.error_rms < 1e-6 && fit.used == SAMPLES);
}

/* Stages of a kind leave sizes open: those stay, and the others are found as if nothing were
 * open. */
static void
test_memory_open(void **test_state)
{
    struct cairn_memory_sample samples[8];
    struct cairn_memory_told told;
    struct cairn_problem problem;
    struct cairn_fault fault = {""};
    struct cairn_fit fit;

    for (uint32_t open = 0; open < 3; open++) {
        problem =
            (struct cairn_problem){.layer_bytes = 7, .activation_bytes = 8, .reserved_bytes = 9};
        for (uint32_t i = 0; i < 8; i++) {
            /* as many layers everywhere; as many micro-batches everywhere; all alike */
            samples[i] = (struct cairn_memory_sample){open == 1 ? 10 + i % 4 : 10,
                                                      open == 0 ? 1 + i % 4 : 2, 2, 0};
            samples[i].device_bytes = held(&samples[i], 1000000, 200000, 5000000);
        }
        assert_int_equal(cairn_fit_memory(samples, 8, &problem, &told, &fit, &fault), CAIRN_OK);
        assert_false(told.layer);
        assert_int_equal(told.activation, open == 0);
        assert_int_equal(told.reserved, open == 1);
        assert_int_equal(problem.layer_bytes, 7);
        assert_true(open == 0 ? near((double)problem.activation_bytes, 200000, 1e-5)
                              : problem.activation_bytes == 8);
        assert_true(open == 1 ? near((double)problem.reserved_bytes, 5000000, 1e-5)
                              : problem.reserved_bytes == 9);
    }
    /* nothing reserved, and a little less measured here and there: nothing is below nothing */
    for (uint32_t i = 0; i < 8; i++) {
        samples[i] = (struct cairn_memory_sample){10 + i, 1 + i % 3, 1, 0};
        samples[i].device_bytes = held(&samples[i], 1000000, 200000, 0) - (i < 4 ? 100000 : 0);
    }
    assert_int_equal(cairn_fit_memory(samples, 8, &problem, &told, &fit, &fault), CAIRN_OK);
    assert_true(told.layer && told.activation && told.reserved);
    assert_int_equal(problem.reserved_bytes, 0);
    assert_true(near((double)problem.layer_bytes, 1000000, 0.02) &&
                near((double)problem.activation_bytes, 200000, 0.1));
}

static void
test_bad(void **test_state)
{
    const struct cairn_stage_sample ends[] = {
        {8, true, false, 85}, {8, false, true, 130}, {8, true, false, 86}};
    const struct cairn_stage_sample nothing[] = {{8, false, false, NAN}, {4, false, false, 40}};
    struct cairn_memory_sample memory = {4, 1, 0, 100};
    struct cairn_memory_told told;
    struct cairn_problem problem = {0};
    struct cairn_fault fault = {""};
    struct cairn_fit fit;

    assert_int_equal(cairn_fit_stages(NULL, 0, &problem, &fit, &fault), CAIRN_INVAL);
    /* layer or vocabulary? */
    assert_int_equal(cairn_fit_stages(ends, 3, &problem, &fit, &fault), CAIRN_INVAL);
    assert_non_null(strstr(fault.text, "without vocabulary"));
    assert_int_equal(cairn_fit_stages(nothing, 2, &problem, &fit, &fault), CAIRN_INVAL);
    assert_non_null(strstr(fault.text, "above 0 ms"));
    assert_int_equal(cairn_fit_memory(&memory, 1, &problem, &told, &fit, &fault), CAIRN_INVAL);
    assert_int_equal(cairn_fit_memory(NULL, 0, &problem, &told, &fit, &fault), CAIRN_INVAL);
    assert_true(problem.layer_ms <= 0 && problem.layer_bytes == 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages), cmocka_unit_test(test_link),
        cmocka_unit_test(test_memory), cmocka_unit_test(test_memory_open),
        cmocka_unit_test(test_bad),
    };

    return cmocka_run_group_tests_name("replan/fit", tests, NULL, NULL);
}
