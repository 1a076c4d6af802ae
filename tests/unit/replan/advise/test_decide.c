/* tests/unit/replan/advise/test_decide.c - decisions over time: noise never moves a plan, a real
 * change moves it once, and waiting costs no more than acting. */
#include <math.h>
#include <stdlib.h>

#include "replan/advise/decide.h"
#include "replan/advise/offers.h"
#include "tests/support/cases.h"
#include "tests/support/cmocka.h"
#include "tests/support/never.h"
#include "tests/unit/replan/small.h"

enum { DEVICES = 16, ROUNDS = 10000 / CASE_STRIDE, STEPS_PER_ROUND = 5 };
#define PAUSE_MS 2000.0

/* Roughly a normal number: the sum of twelve uniform draws. */
static double
random_normal(uint64_t *state)
{
    double sum = -6;

    for (int i = 0; i < 12; i++)
        sum += random_below(state, 1000000) * 1e-6;
    return sum;
}

/* Two nodes of eight, groups of 1 to 4. */
static struct cairn_problem
cluster(void)
{
    struct cairn_problem problem = {.layers = 24,
                                    .layer_ms = 5,
                                    .microbatches = 64,
                                    .tp = 4,
                                    .sizes = {{1, 4}, {2, 2}, {4, 1}},
                                    .size_count = 3,
                                    .layer_bytes = 1000000,
                                    .device_count = DEVICES,
                                    .intra_gbps = 1000,
                                    .inter_gbps = 100};

    problem.devices = calloc(DEVICES, sizeof(*problem.devices));
    for (uint32_t i = 0; i < DEVICES; i++)
        problem.devices[i] = (struct cairn_device){i, i / 8, 1, 16000000};
    return problem;
}

/* A job that does what the decider says. */
struct job {
    struct cairn_problem problem;
    struct cairn_decider *decider;
    struct cairn_offers offers;
    uint32_t actions;
    uint32_t plans_made;
};

static void
make_offers(struct job *job)
{
    struct cairn_offer_costs costs = {
        .layers_ms = PAUSE_MS, .pause_ms = PAUSE_MS, .restart_ms = INFINITY};
    struct cairn_stop stop = {never, NULL};

    cairn_offers_fini(&job->offers);
    assert_int_equal(cairn_offers_make(&job->problem, &costs, &stop, &job->offers), CAIRN_OK);
    job->plans_made++;
}

static void
begin(struct job *job)
{
    struct cairn_stop stop = {never, NULL};
    struct cairn_answer_plan answer = {0};

    *job = (struct job){.problem = cluster()};
    assert_int_equal(cairn_decider_create(DEVICES, &job->decider), CAIRN_OK);
    assert_int_equal(cairn_answer_plan_best(&job->problem, &stop, &answer), CAIRN_OK);
    job->problem.current = answer.plan;
    answer.plan = NULL;
    cairn_answer_plan_fini(&answer);
    make_offers(job);
}

static void
end(struct job *job)
{
    cairn_decider_destroy(job->decider);
    cairn_offers_fini(&job->offers);
    cairn_problem_fini(&job->problem);
}

/* One round: what is measured, and what is done about it. */
static void
play(struct job *job, const double *measured)
{
    enum cairn_replan_action action;

    if (cairn_decider_measured(job->decider, measured)) {
        for (uint32_t i = 0; i < DEVICES; i++)
            job->problem.devices[i].rate = cairn_decider_rates(job->decider)[i];
        make_offers(job);
    }
    action = cairn_decider_weigh(job->decider, STEPS_PER_ROUND, job->offers.current_ms,
                                 job->offers.offers);
    if (action == CAIRN_REPLAN_NONE)
        return;
    job->actions++;
    cairn_plan_destroy(job->problem.current);
    job->problem.current = job->offers.plans[action];
    job->offers.plans[action] = NULL;
    assert_non_null(job->problem.current);
    make_offers(job);
}

static void
noisy(uint64_t *state, double *measured, uint32_t slow, double rate)
{
    for (uint32_t i = 0; i < DEVICES; i++)
        measured[i] = (i == slow ? rate : 1) * (1 + 0.03 * random_normal(state));
}

static void
test_noise_alone(void **test_state)
{
    double measured[DEVICES];
    uint64_t state = 11;
    struct job job;

    begin(&job);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        noisy(&state, measured, DEVICES, 1);
        play(&job, measured);
    }
    assert_int_equal(job.actions, 0);
    assert_int_equal(job.plans_made, 1);
    end(&job);
}

static void
test_one_change(void **test_state)
{
    double measured[DEVICES], before_ms;
    uint64_t state = 12;
    struct job job;

    begin(&job);
    before_ms = job.offers.current_ms;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        noisy(&state, measured, 5, round < 300 ? 1 : round == 300 ? 1.6 : 3);
        play(&job, measured);
        if (round == 300 + 3)
            assert_int_equal(job.plans_made, 1); /* not sure yet */
    }
    print_message("%u actions, %u times planned; %.0f ms a step before, %.0f after\n", job.actions,
                  job.plans_made, before_ms, job.offers.current_ms);
    assert_int_equal(job.actions, 1);
    /* a device of rate 3 left where it was makes it 2 or more */
    assert_true(job.offers.current_ms < before_ms * 1.5);
    end(&job);
}

static void
test_flicker(void **test_state)
{
    double measured[DEVICES];
    uint64_t state = 13;
    struct job job;

    begin(&job);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        noisy(&state, measured, 5, round / 40 % 2 ? 3 : 1);
        play(&job, measured);
    }
    print_message("%u actions on 250 changes\n", job.actions);
    assert_true(job.actions <= 50); /* of 250 changes */
    end(&job);
}

/* Rate 3 in every third round alone does not count as a change. */
static void
test_spikes(void **test_state)
{
    double measured[DEVICES];
    uint64_t state = 14;
    struct job job;

    begin(&job);
    for (uint32_t round = 0; round < 1000; round++) {
        noisy(&state, measured, 5, round % 3 ? 1 : 3);
        play(&job, measured);
    }
    assert_int_equal(job.plans_made, 1);
    end(&job);
}

static void
test_death(void **test_state)
{
    double measured[DEVICES];
    uint64_t state = 15;
    struct job job;

    begin(&job);
    noisy(&state, measured, DEVICES, 1);
    measured[3] = 0;
    play(&job, measured); /* nothing can go on: at once */
    assert_int_equal(job.actions, 1);
    for (uint32_t i = 0; i < job.problem.current->device_count; i++)
        assert_true(job.problem.current->devices[i] != 3);
    for (uint32_t round = 0; round < 20; round++) {
        noisy(&state, measured, DEVICES, 1);
        measured[3] = NAN; /* nobody measures what is not there */
        play(&job, measured);
    }
    assert_int_equal(job.actions, 1);
    assert_true(cairn_decider_rates(job.decider)[3] <= 0);
    end(&job);
}

/* For slowdowns of any length, what is lost is at most twice what the best would have lost who knew
 * the length, and a little. */
static void
test_twice_the_best(void **test_state)
{
    static const struct cairn_offer offers[CAIRN_REPLAN_COUNT] = {
        {INFINITY, INFINITY}, {INFINITY, INFINITY}, {100, 5000}, {INFINITY, INFINITY}};

    for (uint32_t length = 1; length < 1000; length++) {
        double lost_ms = 0, best_ms = fmin(length * 30.0, 5000);
        struct cairn_decider *decider;
        bool acted = false;

        assert_int_equal(cairn_decider_create(1, &decider), CAIRN_OK);
        for (uint32_t step = 0; step < length && !acted; step++) {
            lost_ms += 30;
            acted = cairn_decider_weigh(decider, 1, 130, offers) == CAIRN_REPLAN_GROUPS;
        }
        lost_ms += acted ? 5000 : 0;
        /* a round, and the step that any action costs */
        assert_true(lost_ms <= 2 * best_ms + 30 + 100);
        cairn_decider_destroy(decider);
    }
}

/* Of actions that are due at once the cheapest of those that are good enough. */
static void
test_cheapest_adequate(void **test_state)
{
    struct cairn_offer offers[CAIRN_REPLAN_COUNT] = {
        {120, 0}, {101, 2000}, {100, 9000}, {100, 600000}};
    struct cairn_decider *decider;

    assert_int_equal(cairn_decider_create(1, &decider), CAIRN_OK);
    assert_int_equal(cairn_decider_weigh(decider, 3, 150, offers), CAIRN_REPLAN_NONE);
    assert_int_equal(cairn_decider_weigh(decider, 1, 150, offers), CAIRN_REPLAN_MICROBATCHES);
    assert_int_equal(cairn_decider_weigh(decider, 100, 120, offers), CAIRN_REPLAN_NONE);
    /* 230 steps of 19 ms; 111 of them pay for the second action */
    assert_int_equal(cairn_decider_weigh(decider, 130, 120, offers), CAIRN_REPLAN_LAYERS);
    offers[CAIRN_REPLAN_LAYERS].step_ms = INFINITY;
    assert_int_equal(cairn_decider_weigh(decider, 1, INFINITY, offers), CAIRN_REPLAN_GROUPS);
    cairn_decider_destroy(decider);
}

/* However many steps a round has, it is known at which of them an action was due. */
static void
test_late_steps(void **test_state)
{
    struct cairn_offer offers[CAIRN_REPLAN_COUNT] = {
        {120, 0}, {101, 2000}, {INFINITY, 0}, {INFINITY, 0}};

    for (uint32_t more = 0; more < 9; more++) {
        struct cairn_decider *decider;

        assert_int_equal(cairn_decider_create(1, &decider), CAIRN_OK);
        assert_int_equal(cairn_decider_weigh(decider, 3, 150, offers), CAIRN_REPLAN_NONE);
        /* due after 4 steps that lose 30 ms each: 120 ms */
        assert_int_equal(cairn_decider_weigh(decider, 1 + more, 150, offers),
                         CAIRN_REPLAN_MICROBATCHES);
        assert_int_equal(cairn_decider_late_steps(decider), more);
        /* due after 111 steps that lose 19 ms each: 2,101 ms */
        assert_int_equal(cairn_decider_weigh(decider, 110, 120, offers), CAIRN_REPLAN_NONE);
        assert_int_equal(cairn_decider_weigh(decider, 1 + more, 120, offers), CAIRN_REPLAN_LAYERS);
        assert_int_equal(cairn_decider_late_steps(decider), more);
        offers[CAIRN_REPLAN_GROUPS] = (struct cairn_offer){50, 9000};
        assert_int_equal(cairn_decider_weigh(decider, 5, INFINITY, offers), CAIRN_REPLAN_GROUPS);
        assert_int_equal(cairn_decider_late_steps(decider), 0);
        offers[CAIRN_REPLAN_GROUPS].step_ms = INFINITY;
        cairn_decider_destroy(decider);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_noise_alone),
        cmocka_unit_test(test_one_change),
        cmocka_unit_test(test_flicker),
        cmocka_unit_test(test_spikes),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_twice_the_best),
        cmocka_unit_test(test_cheapest_adequate),
        cmocka_unit_test(test_late_steps),
    };

    return cmocka_run_group_tests_name("replan/decide", tests, NULL, NULL);
}
