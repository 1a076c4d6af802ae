/* tests/unit/client/test_sequences.c - the sequences of a step: each in one micro-batch, none over
 * the cap, the same from the same arguments, near the bound for machines of different speed. */
#include <math.h>
#include <string.h>

#include "cairn/client.h"
#include "tests/support/cases.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

enum { STEPS = 300, COUNT_MAX = 4096, REPLICAS_MAX = 64, CAP = 8192 };

struct step {
    uint64_t tokens[COUNT_MAX];
    uint32_t count;
    uint32_t shares[REPLICAS_MAX];
    uint32_t replicas;
    double cost[3];
    uint32_t replica_of[COUNT_MAX];
    uint32_t microbatch_of[COUNT_MAX];
};

/* Lengths with a long tail, and shares that differ up to four times. */
static void
draw(uint64_t *seed, struct step *step)
{
    step->count = 1 + (uint32_t)lcg_below(seed, COUNT_MAX);
    step->replicas = 1 + (uint32_t)lcg_below(seed, REPLICAS_MAX);
    for (uint32_t i = 0; i < step->count; i++)
        step->tokens[i] =
            1 + (uint32_t)lcg_below(seed, (uint32_t)lcg_below(seed, 20) == 0 ? CAP : 400);
    for (uint32_t i = 0; i < step->replicas; i++)
        step->shares[i] = 8 + (uint32_t)lcg_below(seed, 24);
    step->cost[0] = (uint32_t)lcg_below(seed, 2) ? 1e-4 : 0;
    step->cost[1] = 1;
    step->cost[2] = (uint32_t)lcg_below(seed, 20);
}

static cairn_err
assign(struct step *step)
{
    memset(step->replica_of, 0xff, sizeof step->replica_of);
    memset(step->microbatch_of, 0xff, sizeof step->microbatch_of);
    return cairn_sequences_assign(step->tokens, step->count, step->shares, step->replicas, CAP,
                                  step->cost, step->replica_of, step->microbatch_of);
}

/* The time of the replica that takes longest, over that of a division without whole sequences or of
 * the longest sequence alone. */
static double
check(const struct step *step)
{
    static uint64_t held[REPLICAS_MAX][COUNT_MAX];
    double times[REPLICAS_MAX] = {0}, all = 0, longest = 0, speed = 0, fastest = 0, most = 0;

    memset(held, 0, sizeof held);
    for (uint32_t i = 0; i < step->count; i++) {
        double s = (double)step->tokens[i];
        double cost = step->cost[0] * s * s + step->cost[1] * s + step->cost[2];

        assert_true(step->replica_of[i] < step->replicas && step->microbatch_of[i] < step->count);
        held[step->replica_of[i]][step->microbatch_of[i]] += step->tokens[i];
        times[step->replica_of[i]] += cost / step->shares[step->replica_of[i]];
        all += cost;
        longest = fmax(longest, cost);
    }
    for (uint32_t r = 0; r < step->replicas; r++) {
        uint32_t count = 0;

        while (count < step->count && held[r][count] > 0)
            assert_true(held[r][count++] <= CAP);
        for (; count < step->count; count++)
            assert_true(held[r][count] == 0);
        speed += step->shares[r];
        fastest = fmax(fastest, step->shares[r]);
        most = fmax(most, times[r]);
    }
    return most / fmax(all / speed, longest / fastest);
}

static void
test_each_sequence_once(void **state)
{
    static struct step step, again;
    uint64_t seed = 1;

    for (uint32_t i = 0; i < STEPS; i += CASE_STRIDE) {
        double over;

        draw(&seed, &step);
        assert_int_equal(assign(&step), CAIRN_OK);
        over = check(&step);
        /* with few sequences for each replica the longest decide */
        if (step.count >= 32 * step.replicas)
            assert_true(over < 1.01);
        again = step;
        assert_int_equal(assign(&again), CAIRN_OK);
        assert_memory_equal(again.replica_of, step.replica_of, sizeof step.replica_of);
        assert_memory_equal(again.microbatch_of, step.microbatch_of, sizeof step.microbatch_of);
    }
}

static void
test_a_slow_replica_gets_less(void **state)
{
    static struct step step = {.count = 70, .replicas = 4, .cost = {0, 1, 0}};
    uint32_t slow = 0;

    for (uint32_t i = 0; i < step.count; i++)
        step.tokens[i] = 100;
    for (uint32_t i = 0; i < step.replicas; i++)
        step.shares[i] = i == 2 ? 10 : 20;
    assert_int_equal(assign(&step), CAIRN_OK);
    assert_true(check(&step) < 1 + 1e-12);
    for (uint32_t i = 0; i < step.count; i++)
        slow += step.replica_of[i] == 2;
    assert_int_equal(slow, 10);
}

static void
test_bad_arguments(void **state)
{
    static const double nothing[3] = {0, 0, 0}, negative[3] = {0, -1, 2}, vast[3] = {1e308, 0, 0},
                        unknown[3] = {0, NAN, 1}, linear[3] = {0, 1, 0};
    uint64_t tokens[3] = {5, 8, 1}, none[3] = {5, 0, 1};
    uint32_t shares[2] = {1, 1}, no_share[2] = {1, 0}, replica_of[3] = {7, 7, 7},
             microbatch_of[3] = {7, 7, 7};
    const struct {
        const uint64_t *tokens;
        uint32_t count;
        const uint32_t *shares;
        uint32_t replicas;
        uint64_t cap;
        const double *cost;
    } bad[] = {
        {NULL, 3, shares, 2, 8, linear},         {tokens, 0, shares, 2, 8, linear},
        {tokens, 1000001, shares, 2, 8, linear}, {tokens, 3, NULL, 2, 8, linear},
        {tokens, 3, shares, 0, 8, linear},       {tokens, 3, shares, 1025, 8, linear},
        {tokens, 3, no_share, 2, 8, linear},     {tokens, 3, shares, 2, 7, linear},
        {tokens, 3, shares, 2, 0, linear},       {none, 3, shares, 2, 8, linear},
        {tokens, 3, shares, 2, 8, NULL},         {tokens, 3, shares, 2, 8, nothing},
        {tokens, 3, shares, 2, 8, negative},     {tokens, 3, shares, 2, 8, vast},
        {tokens, 3, shares, 2, 8, unknown},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cairn_sequences_assign(bad[i].tokens, bad[i].count, bad[i].shares,
                                                bad[i].replicas, bad[i].cap, bad[i].cost,
                                                replica_of, microbatch_of),
                         CAIRN_INVAL);
    assert_int_equal(cairn_sequences_assign(tokens, 3, shares, 2, 8, linear, NULL, microbatch_of),
                     CAIRN_INVAL);
    assert_int_equal(cairn_sequences_assign(tokens, 3, shares, 2, 8, linear, replica_of, NULL),
                     CAIRN_INVAL);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(replica_of[i] == 7 && microbatch_of[i] == 7);
    assert_int_equal(
        cairn_sequences_assign(tokens, 3, shares, 2, 8, linear, replica_of, microbatch_of),
        CAIRN_OK);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_sequence_once),
        cmocka_unit_test(test_a_slow_replica_gets_less),
        cmocka_unit_test(test_bad_arguments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
