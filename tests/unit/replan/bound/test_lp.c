/* tests/unit/replan/bound/test_lp.c - linear programs with known solutions, and random programs
 * that prove theirs by their prices. */
#include <math.h>

#include "replan/bound/lp.h"
#include "tests/support/cmocka.h"
#include "tests/unit/replan/small.h"

/* True once it has been asked that often. */
static bool
after(void *context)
{
    uint32_t *left = context;

    *left -= *left > 0;
    return *left == 0;
}

static uint32_t plenty = UINT32_MAX;
static const struct cairn_stop unhurried = {after, &plenty};

/* 3 x + 5 y with x <= 4, 2 y <= 12, 3 x + 2 y <= 18 is 36 at most, at x = 2, y = 6. */
static void
test_known(void **test_state)
{
    const double rhs[] = {4, 12, 18};
    const struct cairn_lp_entry x[] = {{0, 1}, {2, 3}}, y[] = {{1, 2}, {2, 2}};
    struct cairn_lp *lp = NULL;

    assert_int_equal(cairn_lp_create(rhs, 3, &lp), CAIRN_OK);
    assert_true(fabs(cairn_lp_solve(lp, 100, &unhurried) - 0) <= 1e-9);
    assert_int_equal(cairn_lp_add(lp, 3, x, 2), CAIRN_OK);
    assert_true(fabs(cairn_lp_solve(lp, 100, &unhurried) - 12) <= 1e-9);
    assert_int_equal(cairn_lp_add(lp, 5, y, 2), CAIRN_OK); /* it goes on */
    assert_true(fabs(cairn_lp_solve(lp, 100, &unhurried) - 36) <= 1e-9);
    assert_true(fabs(cairn_lp_price(lp, 0) - 0) <= 1e-9);
    assert_true(fabs(cairn_lp_price(lp, 1) - 1.5) <= 1e-9);
    assert_true(fabs(cairn_lp_price(lp, 2) - 1) <= 1e-9);
    cairn_lp_destroy(lp);
}

/* Nothing rhs an activity: it ends all the same. */
static void
test_without_end(void **test_state)
{
    const double rhs[] = {1};
    const struct cairn_lp_entry gives = {0, -1};
    struct cairn_lp *lp = NULL;

    assert_int_equal(cairn_lp_create(rhs, 1, &lp), CAIRN_OK);
    assert_int_equal(cairn_lp_add(lp, 1, &gives, 1), CAIRN_OK);
    assert_true(cairn_lp_solve(lp, 100, &unhurried) >= 0);
    cairn_lp_destroy(lp);
}

/* It is asked before each step, and what has been gained until then stays. */
static void
test_stopped(void **test_state)
{
    const double rhs[] = {4, 12, 18}, gained[] = {0, 30, 36};
    const struct cairn_lp_entry x[] = {{0, 1}, {2, 3}}, y[] = {{1, 2}, {2, 2}};

    for (uint32_t steps = 0; steps < 3; steps++) {
        uint32_t left = steps + 1;
        const struct cairn_stop stop = {after, &left};
        struct cairn_lp *lp = NULL;

        assert_int_equal(cairn_lp_create(rhs, 3, &lp), CAIRN_OK);
        assert_int_equal(cairn_lp_add(lp, 3, x, 2), CAIRN_OK);
        assert_int_equal(cairn_lp_add(lp, 5, y, 2), CAIRN_OK);
        assert_true(fabs(cairn_lp_solve(lp, 100, &stop) - gained[steps]) <= 1e-9);
        assert_int_equal(left, 0);
        assert_true(fabs(cairn_lp_solve(lp, 100, &unhurried) - 36) <= 1e-9); /* it goes on */
        cairn_lp_destroy(lp);
    }
}

/* No column has a positive reduced cost, and prices times right-hand sides are the objective: by
 * duality no solution is better. */
static void
test_random(void **test_state)
{
    enum { ROWS = 12, COLUMNS = 60 };

    for (uint64_t seed = 0; seed < 300; seed++) {
        uint64_t state = seed;
        double rhs[ROWS], gain[COLUMNS], gained, priced = 0;
        struct cairn_lp_entry entries[COLUMNS][3];
        struct cairn_lp *lp = NULL;

        for (uint32_t i = 0; i < ROWS; i++)
            rhs[i] = random_below(&state, 4) * 0.5 + 1e-6 * i;
        assert_int_equal(cairn_lp_create(rhs, ROWS, &lp), CAIRN_OK);
        for (uint32_t i = 0; i < COLUMNS; i++) {
            uint32_t first = random_below(&state, ROWS);

            gain[i] = random_below(&state, 100);
            for (uint32_t j = 0; j < 3; j++) /* one of them may give, less than another uses */
                entries[i][j] = (struct cairn_lp_entry){(first + 1 + j * 4) % ROWS,
                                                        j == 2 ? 0 - (double)random_below(&state, 2)
                                                               : 2 + random_below(&state, 5)};
            assert_int_equal(cairn_lp_add(lp, gain[i], entries[i], 3), CAIRN_OK);
            if (i % 10 == 0)
                (void)cairn_lp_solve(lp, 1000, &unhurried);
        }
        gained = cairn_lp_solve(lp, 1000, &unhurried);
        for (uint32_t i = 0; i < ROWS; i++) {
            assert_true(cairn_lp_price(lp, i) >= -1e-7);
            priced += cairn_lp_price(lp, i) * rhs[i];
        }
        for (uint32_t i = 0; i < COLUMNS; i++) {
            double cost = 0;

            for (uint32_t j = 0; j < 3; j++)
                cost += cairn_lp_price(lp, entries[i][j].row) * entries[i][j].value;
            assert_true(gain[i] <= cost + 1e-6);
        }
        assert_true(fabs(gained - priced) <= 1e-6 * (1 + priced));
        cairn_lp_destroy(lp);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_without_end),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests_name("replan/lp", tests, NULL, NULL);
}
