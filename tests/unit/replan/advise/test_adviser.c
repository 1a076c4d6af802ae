/* tests/unit/replan/advise/test_adviser.c - what is advised about a plan: from verdicts to offers
 * wanted, to advice, to its end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replan/advise/adviser.h"
#include "tests/support/cmocka.h"
#include "tests/support/never.h"

enum {
    DEVICES = 4,
    ROUNDS = 5
}; /* in a row that change a rate, as replan/advise/decide.c has
                                   * it */

static const char problem_text[] =
    "{\"layers\": 4, \"layer_ms\": 10, \"microbatches\": 16, \"tp_cost\": {\"1\": 1}, "
    "\"layer_bytes\": 1000,\n"
    " \"devices\": [{\"id\": 0, \"node\": 0, \"rate\": 1, \"memory_bytes\": 100000}, {\"id\": 1, "
    "\"node\": 0, \"rate\": 1, \"memory_bytes\": 100000},\n"
    "  {\"id\": 2, \"node\": 1, \"rate\": 1, \"memory_bytes\": 100000}, {\"id\": 3, \"node\": 1, "
    "\"rate\": 1, \"memory_bytes\": 100000}],\n"
    " \"link_gbps\": {\"intra\": 100, \"inter\": 10}, \"current\": ";
/* Each device a pipeline, with a quarter of the micro-batches. */
static const char current_text[] =
    "{\"pipelines\": [{\"microbatches\": 4, \"stages\": [{\"devices\": [0], \"layers\": [0, 4]}]},"
    "{\"microbatches\": 4, \"stages\": [{\"devices\": [1], \"layers\": [0, 4]}]},"
    "{\"microbatches\": 4, \"stages\": [{\"devices\": [2], \"layers\": [0, 4]}]},"
    "{\"microbatches\": 4, \"stages\": [{\"devices\": [3], \"layers\": [0, 4]}]}]}";

static struct cairn_problem
read_problem(const char *current)
{
    struct cairn_problem problem;
    struct cairn_fault fault = {""};
    char text[2048];

    (void)snprintf(text, sizeof text, "%s%s}", problem_text, current);
    if (cairn_problem_read(text, strlen(text), &problem, &fault))
        fail_msg("%s", fault.text);
    return problem;
}

static struct cairn_adviser *
begin(void)
{
    struct cairn_problem problem = read_problem(current_text);
    struct cairn_adviser *adviser = NULL;
    struct cairn_fault fault = {""};

    if (cairn_adviser_create(&problem, &adviser, &fault))
        fail_msg("%s", fault.text);
    assert_int_equal(cairn_adviser_device_count(adviser), DEVICES);
    return adviser;
}

/* Makes the offers that are wanted. Their number. */
static uint64_t
answer(struct cairn_adviser *adviser, double slow_rate)
{
    struct cairn_offer_costs costs = {.layers_ms = 1000, .pause_ms = 1000, .restart_ms = INFINITY};
    struct cairn_stop stop = {never, NULL};
    struct cairn_offers offers;
    struct cairn_problem problem;
    uint64_t number, again;

    assert_true(cairn_adviser_wants(adviser, &number, &problem));
    assert_false(cairn_adviser_wants(adviser, &again, &problem)); /* they are being made */
    assert_true(fabs(problem.devices[2].rate - slow_rate) < 1e-12);
    assert_int_equal(cairn_offers_make(&problem, &costs, &stop, &offers), CAIRN_OK);
    free(problem.devices);
    cairn_adviser_offered(adviser, number, &offers);
    return number;
}

static enum cairn_advice_change
rounds(struct cairn_adviser *adviser, double rate, uint32_t count, uint32_t steps,
       struct cairn_advice *advice)
{
    const double rates[DEVICES] = {1, 1, rate, 1};
    enum cairn_advice_change change = CAIRN_ADVICE_SAME;

    for (uint32_t i = 0; i < count && change == CAIRN_ADVICE_SAME; i++)
        change = cairn_adviser_round(adviser, rates, steps, advice);
    return change;
}

static void
test_life(void **state)
{
    struct cairn_adviser *adviser = begin();
    struct cairn_problem problem;
    struct cairn_advice advice;
    char text[CAIRN_ADVICE_BYTES];
    uint64_t number;

    assert_int_equal(rounds(adviser, 2, ROUNDS - 1, 1, &advice), CAIRN_ADVICE_SAME);
    assert_false(cairn_adviser_wants(adviser, &number, &problem)); /* perhaps it passes */
    assert_int_equal(rounds(adviser, 2, 1, 1, &advice), CAIRN_ADVICE_SAME);
    (void)answer(adviser, 2);
    assert_int_equal(advice.action, CAIRN_REPLAN_NONE);
    /* 16 micro-batches of 40 ms: 4 4 4 4 take 320 ms, 5 5 2 4 no more than 200. What that gains in
     * two steps pays for one. */
    assert_int_equal(rounds(adviser, 2, 3, 1, &advice), CAIRN_ADVICE_GIVEN);
    assert_int_equal(advice.action, CAIRN_REPLAN_MICROBATCHES);
    assert_true(fabs(advice.current_ms - 320) < 1e-9 && fabs(advice.step_ms - 200) < 1e-9 &&
                advice.cost_ms <= 0);
    cairn_advice_describe(&advice, text, sizeof text);
    assert_string_equal(text, "give slow pipelines fewer micro-batches: steps of 200 ms instead of "
                              "320 as planned (37.5 % less), for 0 s of "
                              "standing still, paid back after 0 steps");
    /* not followed, and not said again */
    assert_int_equal(rounds(adviser, 2, 100, 100, &advice), CAIRN_ADVICE_SAME);
    assert_int_equal(advice.action, CAIRN_REPLAN_MICROBATCHES);
    assert_int_equal(rounds(adviser, 1, ROUNDS, 1, &advice), CAIRN_ADVICE_WITHDRAWN);
    assert_int_equal(advice.action, CAIRN_REPLAN_NONE);
    assert_false(cairn_adviser_wants(adviser, &number, &problem));
    cairn_adviser_destroy(adviser);
}

/* Offers for rates that have changed since are not used; those that could not be made are wanted
 * again. */
static void
test_late_offers(void **state)
{
    struct cairn_adviser *adviser = begin();
    struct cairn_offers offers = {0};
    struct cairn_problem problem;
    struct cairn_advice advice;
    uint64_t number;

    (void)rounds(adviser, 2, ROUNDS, 1, &advice);
    assert_true(cairn_adviser_wants(adviser, &number, &problem));
    free(problem.devices);
    assert_int_equal(rounds(adviser, 4, ROUNDS, 1, &advice), CAIRN_ADVICE_SAME);
    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++)
        offers.offers[i] = (struct cairn_offer){1, 0};
    offers.current_ms = 1000;
    cairn_adviser_offered(adviser, number, &offers);
    assert_int_equal(rounds(adviser, 4, 10, 100, &advice), CAIRN_ADVICE_SAME);
    assert_true(cairn_adviser_wants(adviser, &number, &problem));
    free(problem.devices);
    cairn_adviser_offered(adviser, number, NULL);
    assert_true(answer(adviser, 4) == number);
    assert_int_equal(rounds(adviser, 4, 10, 10, &advice), CAIRN_ADVICE_GIVEN);
    cairn_adviser_destroy(adviser);
}

static void
test_noise(void **state)
{
    struct cairn_adviser *adviser = begin();
    struct cairn_problem problem;
    struct cairn_advice advice;
    uint64_t number;

    for (uint32_t i = 0; i < 10000; i++) {
        /* slow now and then, never five times in a row */
        double rate = i % 7 == 0 ? 1.5 : 1 + 0.05 * (i % 3);

        assert_int_equal(rounds(adviser, rate, 1, 10, &advice), CAIRN_ADVICE_SAME);
        assert_false(cairn_adviser_wants(adviser, &number, &problem));
    }
    cairn_adviser_destroy(adviser);
}

/* Takes offers over: what costs nothing and gains some, and what costs 10 s and gains more. */
static void
offer_two(struct cairn_adviser *adviser)
{
    struct cairn_offers offers = {.current_ms = 320};
    struct cairn_problem problem;
    uint64_t number;

    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++)
        offers.offers[i] = (struct cairn_offer){INFINITY, INFINITY};
    offers.offers[CAIRN_REPLAN_MICROBATCHES] = (struct cairn_offer){200, 0};
    offers.offers[CAIRN_REPLAN_GROUPS] = (struct cairn_offer){150, 10000};
    assert_true(cairn_adviser_wants(adviser, &number, &problem));
    free(problem.devices);
    cairn_adviser_offered(adviser, number, &offers);
}

/* Advice that nobody follows neither hides better advice, nor makes what comes later wait for
 * longer. */
static void
test_not_followed(void **state)
{
    struct cairn_adviser *adviser = begin();
    struct cairn_advice advice;

    (void)rounds(adviser, 2, ROUNDS, 1, &advice);
    offer_two(adviser);
    assert_int_equal(rounds(adviser, 2, 3, 1, &advice), CAIRN_ADVICE_GIVEN);
    assert_int_equal(advice.action, CAIRN_REPLAN_MICROBATCHES);
    /* 50 ms a step, twice 10,150 to be lost */
    assert_int_equal(rounds(adviser, 2, 500, 1, &advice), CAIRN_ADVICE_GIVEN);
    assert_int_equal(advice.action, CAIRN_REPLAN_GROUPS);
    assert_int_equal(rounds(adviser, 2, 10000, 1, &advice), CAIRN_ADVICE_SAME);
    assert_int_equal(rounds(adviser, 4, ROUNDS, 1, &advice), CAIRN_ADVICE_SAME);
    offer_two(adviser);
    assert_int_equal(rounds(adviser, 4, 4, 1, &advice), CAIRN_ADVICE_GIVEN);
    cairn_adviser_destroy(adviser);
}

/* What stands has the figures of the rates that are, before it is due once more; what gains nothing
 * at them stands no more. */
static void
test_rates_that_change(void **state)
{
    struct cairn_adviser *adviser = begin();
    struct cairn_offers offers = {.current_ms = 320}, later = {.current_ms = 400},
                        last = {.current_ms = 400};
    struct cairn_problem problem;
    struct cairn_advice advice;
    uint64_t number;

    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++)
        offers.offers[i] = later.offers[i] = last.offers[i] =
            (struct cairn_offer){INFINITY, INFINITY};
    offers.offers[CAIRN_REPLAN_LAYERS] = (struct cairn_offer){220, 1000};
    later.offers[CAIRN_REPLAN_LAYERS] = (struct cairn_offer){300, 2000};
    last.offers[CAIRN_REPLAN_GROUPS] = (struct cairn_offer){300, 1e9};
    (void)rounds(adviser, 2, ROUNDS, 1, &advice);
    assert_true(cairn_adviser_wants(adviser, &number, &problem));
    free(problem.devices);
    cairn_adviser_offered(adviser, number, &offers);
    assert_int_equal(rounds(adviser, 2, 100, 1, &advice), CAIRN_ADVICE_GIVEN);
    assert_true(fabs(advice.current_ms - 320) < 1e-9 && advice.payback_steps == 10);
    (void)rounds(adviser, 3, ROUNDS, 1, &advice);
    assert_true(cairn_adviser_wants(adviser, &number, &problem));
    free(problem.devices);
    cairn_adviser_offered(adviser, number, &later);
    assert_int_equal(rounds(adviser, 3, 1, 1, &advice), CAIRN_ADVICE_SAME);
    assert_int_equal(advice.action, CAIRN_REPLAN_LAYERS);
    assert_true(fabs(advice.current_ms - 400) < 1e-9 && fabs(advice.step_ms - 300) < 1e-9 &&
                fabs(advice.cost_ms - 2000) < 1e-9);
    assert_int_equal(advice.payback_steps, 20);
    /* due once more, and said with these figures */
    assert_int_equal(rounds(adviser, 3, 200, 1, &advice), CAIRN_ADVICE_GIVEN);
    (void)rounds(adviser, 4, ROUNDS, 1, &advice);
    assert_true(cairn_adviser_wants(adviser, &number, &problem));
    free(problem.devices);
    cairn_adviser_offered(adviser, number, &last);
    /* other layers gain nothing, and groups are not due */
    assert_int_equal(rounds(adviser, 4, 1, 1, &advice), CAIRN_ADVICE_WITHDRAWN);
    assert_int_equal(advice.action, CAIRN_REPLAN_NONE);
    cairn_adviser_destroy(adviser);
}

/* What an earlier adviser said stands until rates have settled: then it ends, or has the figures of
 * now. */
static void
test_resumed(void **state)
{
    const struct cairn_advice_kept kept = {
        7, 8, {CAIRN_REPLAN_MICROBATCHES, INFINITY, 190, 5, 3, 0}};
    struct cairn_advice_kept again = {.advice = {.action = CAIRN_REPLAN_NONE}};
    uint8_t bytes[CAIRN_ADVICE_KEPT_BYTES];
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_advice_pack(&kept, &writer);
    assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
    for (size_t cut = 0; cut < writer.used_bytes; cut++)
        assert_int_equal(cairn_advice_unpack(bytes, cut, &again), CAIRN_CORRUPT);
    assert_int_equal(cairn_advice_unpack(bytes, writer.used_bytes, &again), CAIRN_OK);
    assert_true(again.fingerprint == 7 && again.given_wall_ns == 8 &&
                isinf(again.advice.current_ms) && again.advice.payback_steps == 3);
    for (int slow = 0; slow < 2; slow++) {
        struct cairn_adviser *adviser = begin(), *same = begin();
        struct cairn_advice advice;

        assert_true(cairn_adviser_fingerprint(adviser) != 0 &&
                    cairn_adviser_fingerprint(adviser) == cairn_adviser_fingerprint(same));
        cairn_adviser_resume(adviser, &again.advice);
        assert_int_equal(rounds(adviser, 1 + slow, ROUNDS, 1, &advice), CAIRN_ADVICE_SAME);
        assert_int_equal(advice.action, CAIRN_REPLAN_MICROBATCHES);
        assert_true(advice.step_ms <= 190);
        if (slow) {
            (void)answer(adviser, 2);
            assert_int_equal(rounds(adviser, 2, 1, 0, &advice), CAIRN_ADVICE_SAME);
            assert_true(fabs(advice.current_ms - 320) < 1e-9 && fabs(advice.step_ms - 200) < 1e-9);
        } else {
            assert_int_equal(rounds(adviser, 1, 1, 1, &advice), CAIRN_ADVICE_WITHDRAWN);
        }
        cairn_adviser_destroy(same);
        cairn_adviser_destroy(adviser);
    }
}

/* What was lost before all was normal again is over. */
static void
test_rest_between(void **state)
{
    struct cairn_adviser *adviser = begin();
    struct cairn_offers offers = {.current_ms = 320};
    struct cairn_problem problem;
    struct cairn_advice advice;
    uint64_t number;

    for (int i = 0; i < CAIRN_REPLAN_COUNT; i++)
        offers.offers[i] = (struct cairn_offer){i == CAIRN_REPLAN_GROUPS ? 220 : INFINITY, 10000};
    for (uint32_t i = 0; i < 10; i++) { /* 102 steps pay, each time there are 65 */
        struct cairn_offers own = offers;

        assert_int_equal(rounds(adviser, 2, ROUNDS, 1, &advice), CAIRN_ADVICE_SAME);
        assert_true(cairn_adviser_wants(adviser, &number, &problem));
        free(problem.devices);
        cairn_adviser_offered(adviser, number, &own);
        assert_int_equal(rounds(adviser, 2, 60, 1, &advice), CAIRN_ADVICE_SAME);
        assert_int_equal(rounds(adviser, 1, 100, 1, &advice), CAIRN_ADVICE_SAME);
    }
    cairn_adviser_destroy(adviser);
}

static void
test_rates(void **state)
{
    static const uint32_t slow_ranks[] = {3, 9, 2, 3};
    static const double slow_rates[] = {1.5, 7, 2.5, 2};
    struct cairn_adviser *adviser = begin();
    double rates[DEVICES];

    assert_int_equal(cairn_adviser_rates(adviser, NULL, NULL, 0, rates), 0);
    for (uint32_t i = 0; i < DEVICES; i++)
        assert_true(rates[i] <= 1 && rates[i] >= 1);
    /* rank 9 is not a device; rank 3 has the larger of its two rates */
    assert_int_equal(cairn_adviser_rates(adviser, slow_ranks, slow_rates, 4, rates), 1);
    assert_true(fabs(rates[0] - 1) + fabs(rates[1] - 1) + fabs(rates[2] - 2.5) +
                    fabs(rates[3] - 2) <
                1e-12);
    cairn_adviser_destroy(adviser);
}

static void
test_problems(void **state)
{
    static const char *const currents[] = {"null",
                                           "{\"pipelines\": [{\"microbatches\": 16, \"stages\": "
                                           "[{\"devices\": [7], \"layers\": [0, 4]}]}]}"};
    static const char *const whys[] = {"it has no \"current\"", "device 7"};

    for (uint32_t i = 0; i < 2; i++) {
        struct cairn_problem problem = read_problem(currents[i]);
        struct cairn_adviser *adviser = NULL;
        struct cairn_fault fault = {""};

        assert_int_equal(cairn_adviser_create(&problem, &adviser, &fault), CAIRN_INVAL);
        if (!strstr(fault.text, whys[i]))
            fail_msg("%s", fault.text);
        assert_int_equal(problem.device_count, DEVICES); /* still ours */
        cairn_problem_fini(&problem);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_late_offers),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_problems),
        cmocka_unit_test(test_not_followed),
        cmocka_unit_test(test_rates_that_change),
        cmocka_unit_test(test_rest_between),
        cmocka_unit_test(test_resumed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
