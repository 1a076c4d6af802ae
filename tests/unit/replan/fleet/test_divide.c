/* tests/unit/replan/fleet/test_divide.c - layers and micro-batches for given groups against all
 * there are. */
#include <math.h>
#include <stdlib.h>

#include "replan/fleet/divide.h"
#include "tests/support/cmocka.h"
#include "tests/unit/replan/small.h"

enum { PROBLEMS = 4000, GROUPS_MAX = 8, MICROBATCHES_MAX = 6 };

struct layout {
    struct cairn_group groups[GROUPS_MAX];
    double layer_ms[GROUPS_MAX];
    uint64_t bytes[GROUPS_MAX];
    uint32_t stage_counts[GROUPS_MAX];
    uint32_t pipelines;
};

static struct layout
random_layout(const struct cairn_problem *problem, uint64_t *state, bool tight)
{
    struct layout layout = {.pipelines = 1 + random_below(state, 3)};
    uint32_t at = 0;

    for (uint32_t i = 0; i < layout.pipelines; i++) {
        layout.stage_counts[i] = 1 + random_below(state, i == 0 ? 4 : 2);
        for (uint32_t j = 0; j < layout.stage_counts[i]; j++, at++) {
            layout.layer_ms[at] = problem->layer_ms * (1 + random_below(state, 5) * 0.35);
            layout.bytes[at] = tight ? 30 + random_below(state, 160) : 1000000;
            layout.groups[at] = (struct cairn_group){layout.layer_ms[at], layout.bytes[at]};
        }
    }
    return layout;
}

/* All ways to hand out the micro-batches. */
static double
exhaustive_ms(const struct cairn_problem *problem, const struct layout *layout)
{
    double times[3][MICROBATCHES_MAX + 1], best = INFINITY;
    uint32_t total = problem->microbatches, at = 0;

    for (uint32_t i = 0; i < layout->pipelines; i++) {
        for (uint32_t m = 1; m <= total; m++)
            times[i][m] = exhaustive_layers_ms(problem, layout->stage_counts[i],
                                               layout->layer_ms + at, layout->bytes + at, m);
        at += layout->stage_counts[i];
    }
    if (layout->pipelines == 1)
        return times[0][total];
    for (uint32_t a = 1; a < total; a++) {
        if (layout->pipelines == 2)
            best = fmin(best, fmax(times[0][a], times[1][total - a]));
        for (uint32_t b = 1; layout->pipelines == 3 && a + b < total; b++)
            best = fmin(best, fmax(times[0][a], fmax(times[1][b], times[2][total - a - b])));
    }
    return best;
}

/* What the division says costs what it says. */
static void
check_answer(const struct cairn_problem *problem, const struct layout *layout,
             const uint32_t *microbatches, const uint32_t *layers, double step_ms)
{
    uint32_t at = 0, given = 0;
    double worst = 0;

    for (uint32_t i = 0; i < layout->pipelines; i++) {
        uint32_t sum = 0;

        for (uint32_t j = 0; j < layout->stage_counts[i]; j++)
            sum += layers[at + j];
        assert_int_equal(sum, problem->layers);
        worst =
            fmax(worst, plain_pipeline_ms(problem, layout->stage_counts[i], layout->layer_ms + at,
                                          layout->bytes + at, layers + at, microbatches[i]));
        given += microbatches[i];
        at += layout->stage_counts[i];
    }
    assert_int_equal(given, problem->microbatches);
    assert_true(fabs(worst - step_ms) <= 1e-9 * step_ms);
}

static void
test_exact(void **test_state)
{
    uint32_t feasible = 0, tight_feasible = 0, several = 0;

    for (uint64_t seed = 0; seed < PROBLEMS; seed++) {
        struct cairn_problem problem = small_problem(seed);
        struct cairn_divider *divider = NULL;
        uint32_t microbatches[GROUPS_MAX], layers[GROUPS_MAX];
        uint64_t state = seed + 99;
        struct layout layout = random_layout(&problem, &state, seed % 2);
        double expected = exhaustive_ms(&problem, &layout), got;

        assert_int_equal(cairn_divider_create(&problem, &divider), CAIRN_OK);
        got = cairn_divide(divider, layout.groups, layout.stage_counts, layout.pipelines,
                           microbatches, layers);
        if (isinf(expected) != isinf(got) ||
            (!isinf(got) && fabs(got - expected) > 1e-9 * expected))
            fail_msg("seed %llu: %g, the least is %g", (unsigned long long)seed, got, expected);
        if (!isinf(got)) {
            check_answer(&problem, &layout, microbatches, layers, got);
            feasible++;
            tight_feasible += seed % 2;
            several += layout.pipelines > 1;
        }
        cairn_divider_destroy(divider);
        cairn_problem_fini(&problem);
    }
    /* The comparison says something only where there is something to divide. */
    assert_true(feasible > PROBLEMS / 4 && tight_feasible > PROBLEMS / 20 &&
                several > PROBLEMS / 10);
}

/* The lines are the pipeline's times for as many micro-batches as it has stages, and for more. */
static void
test_lines(void **test_state)
{
    uint32_t compared = 0;

    for (uint64_t seed = 0; seed < PROBLEMS; seed++) {
        struct cairn_problem problem = small_problem(seed);
        struct cairn_divider *divider = NULL;
        struct cairn_pipeline_lines lines;
        uint64_t state = seed + 99;
        struct layout layout = random_layout(&problem, &state, seed % 2);
        uint32_t stages = layout.stage_counts[0];

        assert_int_equal(cairn_divider_create(&problem, &divider), CAIRN_OK);
        cairn_divide_lines(divider, layout.groups, stages, &lines);
        for (uint32_t m = stages; m < stages + 9; m++) {
            double exact = cairn_divide_layers(divider, layout.groups, stages, m, NULL),
                   least = INFINITY;

            for (uint32_t i = 0; i < lines.line_count; i++)
                least = fmin(least, (m - 1) * lines.slowest_ms[i] + lines.sum_ms[i]);
            assert_true(isinf(exact) ? isinf(least) : fabs(least - exact) <= 1e-9 * exact);
            if (!isinf(exact)) {
                double count = cairn_lines_microbatches(&lines, exact, 1e9);

                assert_true(count > m - 1e-6 && count < m + 1);
                compared++;
            }
        }
        cairn_divider_destroy(divider);
        cairn_problem_fini(&problem);
    }
    assert_true(compared > PROBLEMS);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_lines),
    };

    return cmocka_run_group_tests_name("replan/divide", tests, NULL, NULL);
}
