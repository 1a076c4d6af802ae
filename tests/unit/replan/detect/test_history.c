/*
 * tests/unit/replan/detect/test_history.c - how unlikely a shift is by what stood before it: of
 * normal noise as unlikely as its score says, less so where values far above the others come now
 * and then, or where each value says something of the next.
 */
#include <math.h>

#include "replan/detect/history.h"
#include "tests/support/cmocka.h"

enum { SERIES = 24, STEPS = CAIRN_SHIFT_WINDOW - 4 };

/* Even between 0 and 1. */
static double
unit(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return ((double)(*seed >> 8) + 0.5) / (1 << 24);
}

static double
normal(uint32_t *seed)
{
    double radius = sqrt(-2 * log(unit(seed)));

    return radius * cos(6.283185307179586 * unit(seed));
}

/* Series of noise 0.1, each of whose values is kept of the one before by so much, and a share is
 * 0.6 higher. */
static void
fill(struct cairn_history *history, uint32_t seed, double kept, double share, double reach)
{
    cairn_history_start(history, reach, CAIRN_HISTORY_NODES);
    for (uint32_t i = 0; i < SERIES; i++) {
        struct cairn_shift shift = {.used = 0};
        double value = normal(&seed);

        for (uint32_t step = 0; step < STEPS; step++) {
            double high = unit(&seed) < share ? 0.6 : 0;

            value = kept * value + sqrt(1 - kept * kept) * normal(&seed);
            cairn_shift_push(&shift, step, 5 + 0.1 * value + high);
        }
        for (uint32_t step = STEPS; step < STEPS + 4; step++)
            cairn_shift_push(&shift, step, 50); /* after what is asked about */
        cairn_history_add(history, &shift, 5, STEPS);
    }
}

static void
test_normal(void **state)
{
    for (uint32_t seed = 1; seed < 20; seed++) {
        struct cairn_history history;
        double score;

        fill(&history, seed, 0, 0, 0.6);
        assert_int_equal(history.values, SERIES * STEPS);
        assert_true(cairn_history_kept(&history) == 0);
        score = cairn_history_score(&history, 0.1, 16); /* 4 standard errors */
        assert_true(score > 3.7 && score < 4.3);
        assert_true(cairn_history_score(&history, 0.35, 4) > 6.5);
        assert_true(cairn_history_score(&history, -0.1, 16) == 0);
    }
}

/* A shift as high as what comes by itself has to last. */
static void
test_high_values(void **state)
{
    struct cairn_history history;

    fill(&history, 3, 0, 0.15, 0.5);
    assert_true(cairn_history_score(&history, 0.4, 4) < 4);
    assert_true(cairn_history_score(&history, 0.4, 10) < 5.8);
    assert_true(cairn_history_score(&history, 0.5, 14) > 7);
}

static void
test_wandering(void **state)
{
    for (uint32_t seed = 1; seed < 20; seed++) {
        struct cairn_history history;
        double kept;

        fill(&history, seed, 0.9, 0, 0.6);
        kept = cairn_history_kept(&history);
        assert_true(kept > 0.6);
        assert_true(cairn_history_score(&history, 0.25, 10) < 4.5);
    }
}

/* The score of a series whose last `steps` values are `size` higher: the mean and the standard
 * deviation over many series. */
static void
measure_steps(double kept, double size, uint32_t steps, double *mean, double *deviation)
{
    enum { TRIES = 200 };
    double sum = 0, squares = 0;

    for (uint32_t seed = 1; seed <= TRIES; seed++) {
        uint32_t state = 7919 * seed;
        struct cairn_shift shift = {.used = 0};
        struct cairn_history history;
        double value = normal(&state), score;

        fill(&history, seed, kept, 0, 0.6);
        for (uint32_t step = 0; step < CAIRN_SHIFT_WINDOW; step++) {
            value = kept * value + sqrt(1 - kept * kept) * normal(&state);
            cairn_shift_push(&shift, step,
                             5 + 0.1 * value + (step + steps >= CAIRN_SHIFT_WINDOW ? size : 0));
        }
        score = cairn_history_step_score(&history, &shift, 5, steps);
        sum += score;
        squares += score * score;
    }
    *mean = sum / TRIES;
    *deviation = sqrt(squares / TRIES - *mean * *mean);
}

/* A step's score is its size over the standard error that the noise leaves, whose fit is a little
 * too large: of white noise that of two means; of noise that wanders mostly that of one value given
 * the last. */
static void
test_steps(void **state)
{
    double mean, deviation;

    for (uint32_t i = 0; i < 3; i++) {
        static const double kept[] = {0, 0.5, 0.9};

        measure_steps(kept[i], 0, 12, &mean, &deviation);
        assert_true(fabs(mean) < 0.3 && deviation > 0.8 && deviation < 1.1);
    }
    measure_steps(0, 0.2, 12, &mean, &deviation); /* 2 / sqrt(1 / 12 + 1 / 52) = 6.24 */
    assert_true(mean > 5.3 && mean < 6.3);
    measure_steps(0.9, 0.3, 12, &mean,
                  &deviation); /* 3 / sqrt(1 - 0.81) = 6.88, and what follows */
    assert_true(mean > 6.4 && mean < 8.5);
}

static void
test_little_known(void **state)
{
    struct cairn_shift shift = {.used = 0};
    struct cairn_history history;

    cairn_history_start(&history, 1, CAIRN_HISTORY_CHANNELS);
    assert_true(isinf(cairn_history_score(&history, 0.5, 4)));
    cairn_history_add(&history, &shift, 0, 100);
    assert_true(cairn_history_kept(&history) == 0);
    for (uint32_t step = 0; step < 7; step++)
        cairn_shift_push(&shift, step, 0.1 * step);
    cairn_history_add(&history, &shift, 0, 100);
    assert_true(isinf(cairn_history_score(&history, 0.5, 4)));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normal), cmocka_unit_test(test_high_values),
        cmocka_unit_test(test_wandering), cmocka_unit_test(test_steps),
        cmocka_unit_test(test_little_known)};

    return cmocka_run_group_tests_name("replan/history", tests, NULL, NULL);
}
