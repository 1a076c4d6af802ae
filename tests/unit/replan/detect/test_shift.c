/* tests/unit/replan/detect/test_shift.c - shifts that last are found with onset and size; noise and
 * pauses are not. */
#include <math.h>

#include "replan/detect/shift.h"
#include "tests/support/cmocka.h"

static const struct cairn_shift_limits limits = {
    .sigma = 0.02, .base = 0, .base_values = 64, .score_min = 7, .size_min = 0.058, .steps_min = 4};
static uint32_t seed = 1;

/* Nearly normal: a sum of twelve even values, standard deviation 1. */
static double
noise(void)
{
    double sum = -6;

    for (int i = 0; i < 12; i++) {
        seed = seed * 1664525u + 1013904223u;
        sum += (double)(seed >> 8) / (1 << 24);
    }
    return sum;
}

static void
test_found(void **state)
{
    struct cairn_shift shift = {.used = 0};
    struct cairn_shift_found found;
    uint32_t step = 0;

    for (; step < 100; step++) {
        cairn_shift_push(&shift, step, 0.02 * noise());
        assert_false(cairn_shift_find(&shift, &limits, &found));
    }
    while (!cairn_shift_find(&shift, &limits, &found) && step < 110)
        cairn_shift_push(&shift, step++, log(1.3) + 0.02 * noise());
    assert_true(step <= 105);
    assert_int_equal(found.since_step, 100);
    assert_true(fabs(exp(found.size) - 1.3) < 0.05);
}

/* Steps that are a little too long, or a few long steps, before a shift beyond the clip do not move
 * its begin. */
static void
test_disturbed_before(void **state)
{
    struct cairn_shift shift = {.used = 0};
    struct cairn_shift_found found = {0};
    bool is_found = false;

    for (uint32_t step = 0; step < 40; step++) {
        double load = step < 19 ? 0 : step < 22 ? log(1.8) : 0.04;

        cairn_shift_push(&shift, step, load + 0.005 * noise());
    }
    for (uint32_t step = 40; step < 46 && !is_found; step++) {
        struct cairn_shift_limits calm = limits;

        calm.sigma = 0.005;
        cairn_shift_push(&shift, step, log(2.7) + 0.005 * noise());
        is_found = cairn_shift_find(&shift, &calm, &found);
    }
    assert_true(is_found);
    assert_int_equal(found.since_step, 40);
    assert_int_equal(found.steps, 4);
    assert_true(fabs(exp(found.size) - 2.7) < 0.1);
}

static void
test_pauses_are_none(void **state)
{
    struct cairn_shift shift = {.used = 0};
    struct cairn_shift_found found;

    for (uint32_t step = 0; step < 500; step++) { /* two long steps in a row, now and then */
        cairn_shift_push(&shift, step, step % 20 < 2 ? 3.0 : 0.02 * noise());
        assert_false(cairn_shift_find(&shift, &limits, &found));
    }
}

static void
test_small_is_none(void **state)
{
    struct cairn_shift shift = {.used = 0};
    struct cairn_shift_found found;

    for (uint32_t step = 0; step < 200; step++) { /* sure, but too small to matter */
        cairn_shift_push(&shift, step, 0.04);
        assert_false(cairn_shift_find(&shift, &limits, &found));
    }
}

static void
test_base(void **state)
{
    struct cairn_shift_limits above = limits;
    struct cairn_shift shift = {.used = 0};
    struct cairn_shift_found found;

    for (uint32_t step = 0; step < 8; step++)
        cairn_shift_push(&shift, step, 0.1);
    assert_true(cairn_shift_find(&shift, &limits, &found));
    above.base = 0.1;
    assert_false(cairn_shift_find(&shift, &above, &found));
    above = limits;
    above.base_values = 0.3; /* a normal known from next to nothing proves nothing */
    assert_false(cairn_shift_find(&shift, &above, &found));
}

/* A normal that is known from a few values alone is known better from what stands before the
 * shift. */
static void
test_base_before(void **state)
{
    struct cairn_shift_limits alone = limits, before;
    struct cairn_shift shift = {.used = 0};
    struct cairn_shift_found found;

    alone.base_values = 2;
    before = alone;
    before.first_values = 4;
    for (uint32_t step = 0; step < 40; step++)
        cairn_shift_push(&shift, step, 0.02 * noise());
    assert_false(cairn_shift_find(&shift, &before, &found));
    for (uint32_t step = 40; step < 60; step++)
        cairn_shift_push(&shift, step, 0.08 + 0.02 * noise());
    assert_false(cairn_shift_find(&shift, &alone, &found));
    assert_true(cairn_shift_find(&shift, &before, &found));
    assert_in_range(found.since_step, 37, 43);
}

static void
test_quantile(void **state)
{
    float values[] = {5, 1, 4, 2, 3};

    assert_true(cairn_quantile(values, 5, 0.5) == 3.0f);
    assert_true(cairn_quantile(values, 5, 0) == 1.0f);
    assert_true(cairn_quantile(values, 5, 1) == 5.0f);
    assert_true(cairn_quantile(values, 5, 0.625) == 3.5f);
}

/* With noise as large as half of the shift its end is told within some steps, and never while it
 * goes on. */
static void
test_tail(void **state)
{
    const double sigma = 0.05, size = 0.1;
    struct cairn_shift shift = {.used = 0};
    uint32_t tail = 0, steps = 0;
    double sure = 0;

    for (; steps < 1000; steps++) {
        cairn_shift_push(&shift, steps, size + sigma * noise());
        (void)cairn_shift_tail(&shift, 0, size, sigma, steps + 1, &sure);
        assert_true(sure < 12);
    }
    for (uint32_t quiet = 0; sure < 12; quiet++) {
        assert_true(quiet < 20);
        cairn_shift_push(&shift, steps++, sigma * noise());
        tail = cairn_shift_tail(&shift, 0, size, sigma, steps, &sure);
    }
    assert_in_range(cairn_shift_step(&shift, tail), 995, 1002); /* the last that is slow */
    assert_true(fabs(cairn_shift_height(&shift, tail, CAIRN_SHIFT_WINDOW, sigma) - size) < 0.02);
}

static void
test_height_of_pauses(void **state)
{
    struct cairn_shift shift = {.used = 0};

    assert_true(cairn_shift_height(&shift, 0, 10, 0.02) == 0);
    for (uint32_t step = 0; step < 40; step++) /* each tenth step pauses, and three steps in front
                                                * are others */
        cairn_shift_push(&shift, step, step < 3 ? -1 : step % 10 == 9 ? 5.0 : 0.3 + 0.02 * noise());
    assert_true(fabs(cairn_shift_height(&shift, 0, 37, 0.02) - 0.3) < 0.02);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_found),
                                       cmocka_unit_test(test_disturbed_before),
                                       cmocka_unit_test(test_pauses_are_none),
                                       cmocka_unit_test(test_small_is_none),
                                       cmocka_unit_test(test_base),
                                       cmocka_unit_test(test_base_before),
                                       cmocka_unit_test(test_tail),
                                       cmocka_unit_test(test_height_of_pauses),
                                       cmocka_unit_test(test_quantile)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
