/*
 * tests/unit/examples/gpt/test_adamw.c - AdamW against the algorithm's text, in double precision.
 */
#include <math.h>

#include "examples/gpt/adamw.h"
#include "tests/support/cmocka.h"

enum { COUNT = 37, STEPS = 40 };

static const struct gpt_adamw settings = {
    .learning_rate = 0.01f,
    .beta1 = 0.9f,
    .beta2 = 0.95f,
    .epsilon = 1e-8f,
    .weight_decay = 0.1f,
    .warmup_steps = 8,
};

static float
gradient(size_t i, uint64_t step)
{
    return sinf((float)i * 1.7f + (float)step * 0.3f) * (i % 5 == 0 ? 10.0f : 0.1f);
}

/* Algorithm 2 of Loshchilov and Hutter, line by line. */
static double
reference(size_t i, double theta, double scale, int decay)
{
    double m = 0.0;
    double v = 0.0;

    for (uint64_t t = 1; t <= STEPS; t++) {
        double rate = 0.01 * (t < 8 ? (double)t / 8.0 : 1.0);
        double g = (double)gradient(i, t) * scale;

        m = 0.9 * m + 0.1 * g;
        v = 0.95 * v + 0.05 * g * g;
        theta = theta - rate * ((m / (1.0 - pow(0.9, (double)t))) /
                                    (sqrt(v / (1.0 - pow(0.95, (double)t))) + 1e-8) +
                                (decay ? 0.1 * theta : 0.0));
    }
    return theta;
}

static void
run(float *param, float scale, int decay)
{
    float exp_avg[COUNT] = {0};
    float exp_avg_sq[COUNT] = {0};
    float grad[COUNT];

    for (size_t i = 0; i < COUNT; i++)
        param[i] = (float)i / 10.0f - 1.0f;
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct gpt_adamw_step now = gpt_adamw_prepare(&settings, step);

        for (size_t i = 0; i < COUNT; i++)
            grad[i] = gradient(i, step);
        gpt_adamw_update(&settings, &now, param, exp_avg, exp_avg_sq, grad, scale, decay, COUNT);
    }
}

static void
test_equals_the_algorithm(void **state)
{
    for (int decay = 0; decay < 2; decay++) {
        float param[COUNT];

        run(param, 0.5f, decay);
        for (size_t i = 0; i < COUNT; i++) {
            double want = reference(i, (double)((float)i / 10.0f - 1.0f), 0.5, decay);

            assert_true(fabs((double)param[i] - want) < 2e-5 * fmax(1.0, fabs(want)));
        }
    }
}

/* The tolerance above is of use: one step more of warm-up, or no decay, is far outside it. */
static void
test_the_tolerance_sees_a_wrong_rule(void **state)
{
    float with[COUNT];
    float without[COUNT];
    double away = 0.0;

    run(with, 0.5f, 1);
    run(without, 0.5f, 0);
    for (size_t i = 0; i < COUNT; i++)
        away = fmax(away, fabs((double)with[i] - (double)without[i]));
    assert_true(away > 1e-2);
}

static void
test_same_bytes_twice_and_in_parts(void **state)
{
    float once[COUNT];
    float again[COUNT];
    float exp_avg[COUNT] = {0};
    float exp_avg_sq[COUNT] = {0};
    float grad[COUNT];

    run(once, 1.0f, 1);
    for (size_t i = 0; i < COUNT; i++)
        again[i] = (float)i / 10.0f - 1.0f;
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct gpt_adamw_step now = gpt_adamw_prepare(&settings, step);

        for (size_t i = 0; i < COUNT; i++)
            grad[i] = gradient(i, step);
        for (size_t i = 0; i < COUNT; i += 5) {
            size_t part = COUNT - i < 5 ? COUNT - i : 5;

            gpt_adamw_update(&settings, &now, again + i, exp_avg + i, exp_avg_sq + i, grad + i,
                             1.0f, 1, part);
        }
    }
    assert_memory_equal(once, again, sizeof once);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_algorithm),
        cmocka_unit_test(test_the_tolerance_sees_a_wrong_rule),
        cmocka_unit_test(test_same_bytes_twice_and_in_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
