/* tests/unit/bindings/nccl/test_sampler.c - which kernels are timed: the bound, and that ranks
 * agree. */
#include "bindings/nccl/sampler.h"
#include "tests/support/cmocka.h"

enum { OPERATIONS = 100000, COMMS = 3 };

#define MS UINT64_C(1000000)

static uint32_t
next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Several communicators in any order, at any speed: the share is kept. */
static void
test_bound(void **state)
{
    for (uint32_t seed = 1; seed <= 40; seed++) {
        static struct cairn_sampler sampler;
        uint32_t random = seed, percent = 1 + seed % 40;
        uint64_t number[COMMS] = {0}, now_ns = 1, timed = 0,
                 step_ns = 1 + next_random(&random) % (2 * MS);

        cairn_sampler_init(&sampler, percent, now_ns);
        for (uint32_t i = 0; i < OPERATIONS; i++) {
            uint32_t comm = next_random(&random) % COMMS;

            now_ns += step_ns;
            timed += cairn_sampler_next(&sampler, ++number[comm], now_ns, 0);
        }
        assert_true(timed <= (uint64_t)OPERATIONS * percent / 100 + 512 + 1 +
                                 CAIRN_SAMPLER_PER_SECOND * (now_ns / (1000 * MS) + 1));
        assert_true(timed >= (uint64_t)OPERATIONS * percent / 400);
    }
}

/* Two ranks with a communicator in common, each with others besides: of its windows both see every
 * operation. */
static void
test_ranks_agree(void **state)
{
    static struct cairn_sampler samplers[2];
    static bool timed[2][3 * CAIRN_SAMPLER_PERIOD];
    uint64_t both = 0, other_number = 0;

    for (int rank = 0; rank < 2; rank++) {
        uint64_t now_ns = 1;

        cairn_sampler_init(&samplers[rank], 5, now_ns);
        for (uint64_t number = 0; number < 3 * CAIRN_SAMPLER_PERIOD; number++) {
            bool next = false;

            /* of another communicator, before it */
            for (int others = 0; others < (rank ? 2 : 0); others++)
                (void)cairn_sampler_next(&samplers[rank], 2000 + ++other_number % 2000,
                                         now_ns += MS / 100, 0);
            next = cairn_sampler_next(&samplers[rank], number + 1, now_ns += MS / 100, 0);
            if (number + 1 < 3 * CAIRN_SAMPLER_PERIOD)
                timed[rank][number + 1] = next;
        }
    }
    for (uint64_t number = 1; number < 3 * CAIRN_SAMPLER_PERIOD; number++)
        both += timed[0][number] && timed[1][number];
    assert_true(both >= 3 * (CAIRN_SAMPLER_PERIOD / 40 - 1) - 1);
}

/* A job with few operations is seen whole, in bursts after long computation too. */
static void
test_few_operations(void **state)
{
    struct cairn_sampler sampler;
    uint64_t now_ns = 1, number = 1000;

    cairn_sampler_init(&sampler, 1, now_ns);
    for (int step = 0; step < 50; step++) {
        now_ns += 4000 * MS;
        for (int bucket = 0; bucket < 60; bucket++) {
            now_ns += MS;
            assert_true(cairn_sampler_next(&sampler, ++number, now_ns, 0));
        }
    }
}

static void
test_settings(void **state)
{
    struct cairn_sampler never, always, some;
    uint64_t now_ns = 1, timed = 0;

    cairn_sampler_init(&never, 0, now_ns);
    cairn_sampler_init(&always, 1000, now_ns);
    cairn_sampler_init(&some, 1, now_ns);
    assert_int_equal(always.percent, 100);
    for (uint64_t i = 1; i < 1000; i++) {
        now_ns += MS / 10;
        assert_false(cairn_sampler_next(&never, i % 8, now_ns, now_ns + 1000 * MS));
        assert_true(cairn_sampler_next(&always, 3000, now_ns, 0));
        assert_true(cairn_sampler_next(&some, 3000, now_ns, now_ns + 1));
    }
    now_ns += 1;
    for (uint64_t i = 0; i < 1000; i++) { /* not for ever; a clock that goes back does no harm */
        timed += cairn_sampler_next(&some, 3000, now_ns, UINT64_MAX);
        now_ns -= i % 2;
    }
    assert_true(timed <= 64);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_ranks_agree),
        cmocka_unit_test(test_few_operations),
        cmocka_unit_test(test_settings),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
