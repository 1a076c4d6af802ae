/* tests/unit/replan/assign/test_assign.c - assignments against all there are, and of many
 * sequences. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replan/assign/assigner.h"
#include "tests/support/cases.h"
#include "tests/support/cmocka.h"
#include "tests/unit/replan/small.h"

enum { SMALL = 100000, SEQUENCES_MAX = 7, PIPELINES_MAX = 3 };

/* The formula, written again. */
static double
plain_ms(const struct cairn_assign_problem *problem, const uint32_t *chosen)
{
    double worst = 0;

    for (uint32_t i = 0; i < problem->pipeline_count; i++) {
        double sum = 0, largest = 0;

        for (uint32_t j = 0; j < problem->sequence_count; j++) {
            double s = (double)problem->tokens[j];
            double cost = problem->square * s * s + problem->linear * s + problem->constant;

            if (chosen[j] != i)
                continue;
            if (problem->tokens[j] > problem->pipelines[i].max_tokens)
                return INFINITY;
            sum += cost;
            largest = fmax(largest, cost);
        }
        worst = fmax(worst, (sum + (problem->pipelines[i].stages - 1) * largest) *
                                problem->pipelines[i].time_scale);
    }
    return worst;
}

static double
exhaustive_ms(const struct cairn_assign_problem *problem)
{
    uint32_t chosen[SEQUENCES_MAX] = {0}, at = 0;
    double best = INFINITY;

    do {
        best = fmin(best, plain_ms(problem, chosen));
        for (at = 0; at < problem->sequence_count && ++chosen[at] == problem->pipeline_count; at++)
            chosen[at] = 0;
    } while (at < problem->sequence_count);
    return best;
}

/* Where the longest sequences, cut into kinds, are refused a time, no assignment keeps it; where
 * they are placed, they are where they may be. With a kind for each of all sequences both are
 * exact. How many times of two were refused. */
static uint32_t
check_slots(const struct cairn_assign_problem *problem, double best_ms, uint64_t *state)
{
    struct cairn_sequence *sequences = cairn_sequences_sorted(problem);
    struct cairn_slots *slots;
    uint32_t refused = 0;

    assert_non_null(sequences);
    assert_int_equal(cairn_slots_create(problem, sequences, &slots), CAIRN_OK);
    for (uint32_t exact = 0; exact < 2; exact++) {
        uint32_t count =
            exact ? problem->sequence_count : 1 + random_below(state, problem->sequence_count);
        uint32_t kinds = exact ? SEQUENCES_MAX : 1 + random_below(state, 4);
        double step_ms = best_ms * (0.8 + 0.025 * random_below(state, 11)) * (1 + 1e-7);
        uint32_t places[SEQUENCES_MAX], by_index[SEQUENCES_MAX];
        uint64_t work = UINT64_MAX;
        enum cairn_slots_answer answer;

        assert_true(cairn_slots_cut(slots, count, kinds));
        answer = cairn_slots_place(slots, step_ms, &work, places);
        if (answer == CAIRN_SLOTS_NONE && step_ms > best_ms)
            fail_msg("%u sequences in %u kinds are refused %g, the best is %g", count, kinds,
                     step_ms, best_ms);
        for (uint32_t i = 0; answer == CAIRN_SLOTS_PLACED && i < count; i++) {
            assert_true(sequences[i].tokens <= problem->pipelines[places[i]].max_tokens);
            by_index[sequences[i].index] = places[i];
        }
        if (exact)
            assert_int_equal(answer, step_ms > best_ms ? CAIRN_SLOTS_PLACED : CAIRN_SLOTS_NONE);
        if (exact && answer == CAIRN_SLOTS_PLACED)
            assert_true(plain_ms(problem, by_index) <= step_ms * (1 + 1e-7));
        refused += answer == CAIRN_SLOTS_NONE;
    }
    cairn_slots_destroy(slots);
    free(sequences);
    return refused;
}

static void
test_small(void **test_state)
{
    uint32_t tried = 0, solved = 0, best = 0, refused = 0;
    double sum = 0, worst = 1;

    for (uint64_t seed = 0; seed < SMALL; seed += CASE_STRIDE, tried++) {
        static const double scales[] = {1, 1, 1.4, 2.6, 0.5};
        uint64_t state = seed + 5, tokens[SEQUENCES_MAX];
        struct cairn_assign_pipeline pipelines[PIPELINES_MAX];
        struct cairn_assign_problem problem = {
            .tokens = tokens,
            .sequence_count = 1 + random_below(&state, SEQUENCES_MAX),
            .square = random_below(&state, 3) * 1e-3,
            .linear = 1,
            .constant = random_below(&state, 3),
            .pipelines = pipelines,
            .pipeline_count = 1 + random_below(&state, PIPELINES_MAX)};
        struct cairn_assignment assignment = {0};
        struct cairn_fault fault = {""};
        double expected, again;
        cairn_err err;

        for (uint32_t i = 0; i < problem.sequence_count; i++)
            tokens[i] = 1 + (random_below(&state, 4) == 0 ? random_below(&state, 2000)
                                                          : random_below(&state, 90));
        for (uint32_t i = 0; i < problem.pipeline_count; i++)
            pipelines[i] = (struct cairn_assign_pipeline){scales[random_below(&state, 5)],
                                                          1 + random_below(&state, 4),
                                                          random_below(&state, 3) ? 2000 : 60};
        expected = exhaustive_ms(&problem);
        err = cairn_assign(&problem, &assignment, &fault);
        assert_int_equal(err, isinf(expected) ? CAIRN_NOT_FOUND : CAIRN_OK);
        if (err) {
            assert_non_null(strstr(fault.text, "no pipeline takes more than"));
            continue;
        }
        if (assignment.bound_ms > expected * (1 + 1e-9))
            fail_msg("seed %llu: the bound is %g, the best %g", (unsigned long long)seed,
                     assignment.bound_ms, expected);
        refused += check_slots(&problem, expected, &state);
        assert_true(fabs(plain_ms(&problem, assignment.pipelines) - assignment.step_ms) <=
                    1e-9 * assignment.step_ms);
        assert_true(assignment.step_ms >= expected * (1 - 1e-9));
        assert_int_equal(cairn_assign_step_ms(&problem, assignment.pipelines, &again), CAIRN_OK);
        assert_true(fabs(again - assignment.step_ms) <= 1e-9 * again);
        solved++;
        best += assignment.step_ms <= expected * (1 + 1e-3);
        sum += assignment.step_ms / expected;
        worst = fmax(worst, assignment.step_ms / expected);
        free(assignment.pipelines);
    }
    print_message(
        "%u solved, %u within 0.1 %% of the best; mean %.4f, worst %.3f; %u times refused\n",
        solved, best, sum / solved, worst, refused);
    assert_true(refused > tried / 4);
    assert_true(solved > tried / 2 && sum / solved < 1.001 && worst < 1.01);
}

/* What a step asks for: thousands of sequences, most of them short. */
static void
test_many(void **test_state)
{
    enum { MANY = 4096, PIPELINES = 64 };
    static uint64_t tokens[MANY];
    struct cairn_assign_pipeline pipelines[PIPELINES];
    struct cairn_assign_problem problem = {tokens, MANY, 1e-7, 0.18, 0, pipelines, PIPELINES, 0};
    struct cairn_assignment assignment = {0};
    struct cairn_fault fault = {""};
    uint64_t state = 1;

    for (uint32_t i = 0; i < MANY; i++)
        tokens[i] = 512 + (uint64_t)(512 / (0.004 + random_below(&state, 1000000) * 1e-6));
    for (uint32_t i = 0; i < PIPELINES; i++)
        pipelines[i] = (struct cairn_assign_pipeline){1 + 0.1 * random_below(&state, 8), 4, 262144};
    assert_int_equal(cairn_assign(&problem, &assignment, &fault), CAIRN_OK);
    print_message("%g ms, bound %g ms\n", assignment.step_ms, assignment.bound_ms);
    assert_true(assignment.step_ms < assignment.bound_ms * 1.03);
    free(assignment.pipelines);
}

/* Sequences anywhere, then moved and traded: nothing is where it may not be, and neither a move nor
 * a trade of the longest pipeline's helps. */
static void
test_trade(void **test_state)
{
    uint32_t trades = 0;

    for (uint64_t seed = 0; seed < 3000; seed++) {
        uint64_t state = seed + 17, tokens[SEQUENCES_MAX];
        struct cairn_assign_pipeline pipelines[PIPELINES_MAX];
        struct cairn_assign_problem problem = {
            tokens, 1 + random_below(&state, SEQUENCES_MAX), 1e-3, 1, 0, pipelines, PIPELINES_MAX,
            0};
        uint32_t places[SEQUENCES_MAX], by_index[SEQUENCES_MAX], count = problem.sequence_count;
        struct cairn_sequence *sequences;
        double before_ms, after_ms;

        for (uint32_t i = 0; i < count; i++)
            tokens[i] = 10 + random_below(&state, 90);
        for (uint32_t i = 0; i < PIPELINES_MAX; i++)
            pipelines[i] = (struct cairn_assign_pipeline){
                1 + 0.5 * random_below(&state, 2), 1 + random_below(&state, 4), i ? 60 : 100};
        sequences = cairn_sequences_sorted(&problem);
        assert_non_null(sequences);
        for (uint32_t i = 0; i < count; i++) {
            places[i] = sequences[i].tokens > 60 ? 0 : random_below(&state, PIPELINES_MAX);
            by_index[sequences[i].index] = places[i];
        }
        before_ms = plain_ms(&problem, by_index);
        trades += cairn_trade(&problem, sequences, count, places);
        for (uint32_t i = 0; i < count; i++)
            by_index[sequences[i].index] = places[i];
        after_ms = plain_ms(&problem, by_index);
        assert_true(after_ms <= before_ms * (1 + 1e-9));
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t p = 0; p < PIPELINES_MAX; p++) {
                uint32_t was = by_index[i];

                by_index[i] = p;
                assert_true(plain_ms(&problem, by_index) >= after_ms * (1 - 1e-8));
                by_index[i] = was;
            }
        free(sequences);
    }
    assert_true(trades > 1000);
}

/* Too long for all: refused, unless it may be cut; then it goes where the longest are taken. */
static void
test_cut(void **test_state)
{
    uint64_t tokens[] = {5000, 10, 20, 7000};
    struct cairn_assign_pipeline pipelines[] = {{1, 1, 100}, {1, 2, 400}};
    struct cairn_assign_problem problem = {tokens, 4, 1e-3, 1, 0, pipelines, 2, 0};
    struct cairn_assignment assignment = {0};
    struct cairn_fault fault = {""};

    assert_int_equal(cairn_assign(&problem, &assignment, &fault), CAIRN_NOT_FOUND);
    problem.microbatch_tokens = 300;
    assert_int_equal(cairn_assign(&problem, &assignment, &fault), CAIRN_OK);
    assert_int_equal(assignment.pipelines[0], 1);
    assert_int_equal(assignment.pipelines[3], 1);
    assert_int_equal(assignment.pipelines[1], 0);
    assert_true(assignment.bound_ms <= assignment.step_ms * (1 + 1e-9));
    free(assignment.pipelines);
    problem.microbatch_tokens = 500;
    assert_int_equal(cairn_assign(&problem, &assignment, &fault), CAIRN_INVAL);
    assert_non_null(strstr(fault.text, "microbatch_tokens is 500"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_trade),
        cmocka_unit_test(test_cut),
    };

    return cmocka_run_group_tests_name("replan/assign", tests, NULL, NULL);
}
