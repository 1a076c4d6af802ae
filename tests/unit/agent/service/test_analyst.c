/*
 * tests/unit/agent/service/test_analyst.c - the analyst's gates, each by itself.
 * tests/placements runs many schedules of the whole machine.
 */
#include "agent/service/analyst.h"
#include "agent/service/operator_launcher.h"

#include "base/clock.h"
#include "tests/support/cmocka.h"
#include "tests/support/never.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS CAIRN_NS_PER_MS
enum { STAGES = 2, LAYER_BYTES = 1000, ROUND_MS = 500, STEP_MS = 100, BEGUN_STEP = 40 };

/* Two replicas of two stages, each device on its own node. */
static const char problem_format[] =
    "{\"layers\": 8, \"layer_ms\": 4, \"microbatches\": %u, \"tp_cost\": {\"1\": 1}, "
    "\"layer_bytes\": 1000, \"link_gbps\": {\"intra\": 100, \"inter\": 10}, \"devices\": ["
    "{\"id\": 0, \"node\": 0, \"rate\": 1, \"memory_bytes\": 7000},"
    "{\"id\": 1, \"node\": 1, \"rate\": 1, \"memory_bytes\": 7000},"
    "{\"id\": 2, \"node\": 2, \"rate\": 1, \"memory_bytes\": 7000},"
    "{\"id\": 3, \"node\": 3, \"rate\": 1, \"memory_bytes\": 7000}%s],"
    "\"current\": {\"pipelines\": ["
    "{\"microbatches\": %u, \"stages\": [{\"devices\": [0], \"layers\": [0, 4]}, "
    "{\"devices\": [1], \"layers\": [4, 8]}]},"
    "{\"microbatches\": %u, \"stages\": [{\"devices\": [2], \"layers\": [0, 4]}, "
    "{\"devices\": [3], \"layers\": [4, 8]}]}]}}";

/* A device more, of a node that stands by. */
static const char extra_device[] =
    ",{\"id\": 4, \"node\": 4, \"rate\": 1.1, \"memory_bytes\": 7000}";

struct scene {
    struct analyst *analyst;
    uint64_t wall_ns;
    uint32_t steps, stages;
    double rate; /* of rank 3 */
    bool is_silent;
    bool commits; /* snapshots are committed */
    uint64_t committed_step;
    uint32_t due_step;     /* of the newest offer */
    uint64_t held_bytes;   /* of rank 0 */
    uint64_t reads, shape; /* of the launcher */
    struct operator_standby standby;
};

static void
begin_with(struct scene *scene, const char *extra, uint32_t microbatches, double rate,
           uint64_t state_bytes)
{
    struct cairn_problem problem = {0};
    struct cairn_adviser *adviser = NULL;
    struct analyst_actions actions;
    struct cairn_fault fault;
    char text[2048];
    int bytes = snprintf(text, sizeof text, problem_format, microbatches, extra, microbatches / 2,
                         microbatches / 2);

    assert_int_equal(cairn_problem_read(text, (size_t)bytes, &problem, &fault), CAIRN_OK);
    assert_int_equal(cairn_adviser_create(&problem, &adviser, &fault), CAIRN_OK);
    *scene = (struct scene){.wall_ns = 1000 * CAIRN_NS_PER_S,
                            .stages = STAGES,
                            .rate = rate,
                            .commits = true,
                            .held_bytes = 4 * LAYER_BYTES};
    assert_int_equal(
        analyst_create(&(struct analyst_options){.adviser = adviser,
                                                 .offers = true,
                                                 .changes_per_day = 99,
                                                 .standstill_per_day_ns = 1000 * CAIRN_NS_PER_S,
                                                 .snapshot_every_steps = 5,
                                                 .state_bytes = state_bytes},
                       &scene->analyst),
        CAIRN_OK);
    analyst_step(
        scene->analyst,
        &(struct analyst_event){.type = ANALYST_RUNS, .as.runs = &(struct cairn_session_shares){0}},
        &actions);
}

static void
begin(struct scene *scene, uint32_t microbatches, double rate, uint64_t state_bytes)
{
    begin_with(scene, "", microbatches, rate, state_bytes);
}

/* Does what the analyst wants; the trainers take offers at once. */
static void
carry_out(struct scene *scene, const struct analyst_actions *actions)
{
    struct analyst_event event = {.wall_ns = scene->wall_ns};
    const struct cairn_stop stop = {never, NULL};
    struct analyst_actions then;
    struct cairn_offers offers;

    if (actions->what & ANALYST_STORE) {
        event.type = ANALYST_STORED;
        event.as.is_stored = true;
        analyst_step(scene->analyst, &event, &then);
        if (then.what & ANALYST_SAY_OFFER)
            scene->due_step = then.due_step;
        event.type = ANALYST_RUNS;
        event.as.runs = &analyst_book(scene->analyst)->offer.placement;
        analyst_step(scene->analyst, &event, &then);
    }
    if (actions->what & ANALYST_MAKE_PLANS) {
        assert_int_equal(cairn_offers_make(&actions->problem, &actions->costs, &stop, &offers),
                         CAIRN_OK);
        free(actions->problem.devices);
        event.type = ANALYST_PLANS;
        event.as.plans = (struct analyst_plans){actions->plans_number, &offers};
        analyst_step(scene->analyst, &event, &then);
    }
}

static void
run_round(struct scene *scene, uint32_t passed_ms, bool is_early)
{
    static const uint32_t slow_rank = 3, own_rank = 0;
    struct analyst_event event = {.type = ANALYST_ROUND};
    struct analyst_actions actions;

    scene->wall_ns += passed_ms * MS;
    scene->steps += passed_ms / STEP_MS;
    scene->committed_step = scene->commits ? scene->steps : scene->committed_step;
    event.wall_ns = scene->wall_ns;
    event.as.round = (struct analyst_round){.analyses = true,
                                            .is_early = is_early,
                                            .steps = scene->steps,
                                            .last_step = BEGUN_STEP + scene->steps,
                                            .is_calibrated = true,
                                            .is_whole = !scene->is_silent,
                                            .recent_ms = STEP_MS,
                                            .is_asked = true,
                                            .stages = scene->stages,
                                            .slow_count = scene->rate > 1,
                                            .slow_ranks = &slow_rank,
                                            .slow_rates = &scene->rate,
                                            .committed_epoch = 1,
                                            .committed_step = scene->committed_step,
                                            .reads = scene->reads,
                                            .shape = scene->shape,
                                            .standby = scene->standby,
                                            .held_bytes = scene->held_bytes,
                                            .held_count = 1,
                                            .held_ranks = &own_rank};
    analyst_step(scene->analyst, &event, &actions);
    carry_out(scene, &actions);
}

static void
run_rounds(struct scene *scene, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        run_round(scene, ROUND_MS, false);
}

/* The same with an early round after each step; the round of the timer finds no step more. */
static void
run_steps(struct scene *scene, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        for (uint32_t step = 0; step < ROUND_MS / STEP_MS; step++)
            run_round(scene, STEP_MS, true);
        run_round(scene, 0, false);
    }
}

static bool
has_moved(const struct scene *scene)
{
    static const uint32_t home[] = {4, 4, 4, 4};
    const struct cairn_session_shares *offer = &analyst_book(scene->analyst)->offer.placement;

    return offer->count > 0 && memcmp(offer->layers, home, sizeof home) != 0;
}

static enum proposal_gate
refused(const struct scene *scene)
{
    uint64_t since_wall_ns;

    return analyst_refused(scene->analyst, &since_wall_ns);
}

static int
decide(struct scene *scene, enum proposal_word word)
{
    const struct proposal_decision decision = {.word = word, .token = scene->wall_ns};
    struct analyst_event event = {.type = ANALYST_DECISION,
                                  .wall_ns = scene->wall_ns,
                                  .as.decision = {.decision = &decision, .stages = scene->stages}};
    struct analyst_actions actions;

    analyst_step(scene->analyst, &event, &actions);
    carry_out(scene, &actions);
    return actions.answer.exit_code;
}

/* ---- tests ---- */

static void
test_layers_move_if_nothing_refuses(void **state)
{
    struct scene scene;

    begin(&scene, 8, 3, 6000);
    run_rounds(&scene, 200);
    assert_true(has_moved(&scene));
    assert_int_equal(refused(&scene), PROPOSAL_GATE_NONE);
    assert_int_equal(analyst_book(scene.analyst)->offer.refused.gates, 0);
    analyst_destroy(scene.analyst);
}

static void
test_no_layers_move_from_an_old_commit(void **state)
{
    const struct proposal_story *story;
    struct scene scene;

    begin(&scene, 8, 3, 6000);
    scene.commits = false;
    run_rounds(&scene, 200);
    assert_false(has_moved(&scene)); /* shares have, which need no commit */
    assert_int_equal(analyst_book(scene.analyst)->offer.action, CAIRN_REPLAN_MICROBATCHES);
    assert_int_equal(refused(&scene), PROPOSAL_GATE_COMMIT);
    assert_int_equal(decide(&scene, PROPOSAL_NOW), 1);
    assert_false(has_moved(&scene));
    scene.commits = true;
    run_rounds(&scene, 2);
    assert_true(has_moved(&scene));
    assert_int_equal(refused(&scene), PROPOSAL_GATE_NONE);
    story = proposal_story_of(analyst_book(scene.analyst),
                              analyst_book(scene.analyst)->offer.placement.number);
    assert_int_equal(story->refused.gates, 1u << PROPOSAL_GATE_COMMIT);
    assert_in_range(story->refused.ns, 20 * CAIRN_NS_PER_S, 100 * CAIRN_NS_PER_S);
    /* two intervals of 5 steps of 100 ms, and a second in which commits are noticed */
    scene.commits = false;
    run_rounds(&scene, 4);
    scene.wall_ns += 1 * MS;
    assert_int_equal(decide(&scene, PROPOSAL_GO_BACK), 1); /* 2.001 s old */
    scene.wall_ns -= 1 * MS;
    assert_int_equal(decide(&scene, PROPOSAL_GO_BACK), 0);
    analyst_destroy(scene.analyst);
}

static void
test_no_layers_move_into_full_slots(void **state)
{
    struct scene scene;

    begin(&scene, 8, 3, 4999); /* a layer more, and a node has 5000 */
    run_rounds(&scene, 200);
    assert_false(has_moved(&scene));
    assert_int_equal(refused(&scene), PROPOSAL_GATE_SLOTS);
    assert_int_equal(decide(&scene, PROPOSAL_NOW), 1);
    analyst_destroy(scene.analyst);
    begin(&scene, 8, 3, 6999); /* a node would have five layers or more, and 2000 beside them */
    scene.held_bytes += 2000;
    run_rounds(&scene, 200);
    assert_false(has_moved(&scene));
    assert_int_equal(refused(&scene), PROPOSAL_GATE_SLOTS);
    analyst_destroy(scene.analyst);
    begin(&scene, 8, 3, 1200); /* layers are five times smaller than planned */
    scene.held_bytes /= 5;
    run_rounds(&scene, 200);
    assert_true(has_moved(&scene));
    analyst_destroy(scene.analyst);
}

static void
test_a_small_gain_changes_nothing(void **state)
{
    struct scene scene;

    begin(&scene, 20, 1.12, 6000); /* 11 | 9: 1.6 % */
    scene.stages = 0;
    run_rounds(&scene, 400);
    assert_int_equal(analyst_book(scene.analyst)->offer.placement.count, 0);
    assert_int_equal(refused(&scene), PROPOSAL_GATE_GAIN);
    assert_int_equal(decide(&scene, PROPOSAL_NOW), 1);
    analyst_destroy(scene.analyst);
    begin(&scene, 20, 1.5, 6000);
    scene.stages = 0;
    run_rounds(&scene, 400);
    assert_int_equal(analyst_book(scene.analyst)->offer.action, CAIRN_REPLAN_MICROBATCHES);
    assert_int_equal(refused(&scene), PROPOSAL_GATE_NONE);
    analyst_destroy(scene.analyst);
}

static void
test_nothing_changes_while_a_rank_is_silent(void **state)
{
    struct scene scene;

    begin(&scene, 8, 3, 6000);
    scene.is_silent = true;
    run_rounds(&scene, 200);
    assert_int_equal(analyst_book(scene.analyst)->offer.placement.count, 0);
    assert_int_equal(refused(&scene), PROPOSAL_GATE_RANKS);
    analyst_destroy(scene.analyst);
}

/* An offer names the step by which the loss had paid for it, unless it was made for another reason,
 * and however long a gate has refused it. */
static void
test_an_offer_names_the_step_at_which_it_was_due(void **state)
{
    uint32_t round_steps = ROUND_MS / STEP_MS, refused_at;
    struct scene scene;

    begin(&scene, 8, 3, 6000);
    for (uint32_t i = 0; i < 200 && !has_moved(&scene); i++)
        run_rounds(&scene, 1);
    assert_true(has_moved(&scene));
    assert_in_range(scene.due_step, BEGUN_STEP + scene.steps - round_steps + 1,
                    BEGUN_STEP + scene.steps);
    scene.rate = 1;
    run_rounds(&scene, 200);
    assert_true(analyst_book(scene.analyst)->offer.is_home);
    assert_int_equal(scene.due_step, 0);
    analyst_destroy(scene.analyst);

    begin(&scene, 8, 3, 6000);
    scene.commits = false;
    for (uint32_t i = 0; i < 200 && refused(&scene) != PROPOSAL_GATE_COMMIT; i++)
        run_rounds(&scene, 1);
    refused_at = scene.steps;
    run_rounds(&scene, 50);
    scene.commits = true;
    run_rounds(&scene, 2);
    assert_true(has_moved(&scene));
    assert_in_range(scene.due_step, BEGUN_STEP + refused_at - round_steps + 1,
                    BEGUN_STEP + refused_at);
    analyst_destroy(scene.analyst);

    begin(&scene, 8, 3, 6000);
    for (uint32_t i = 0; i < 200 && decide(&scene, PROPOSAL_NOW) != 0; i++)
        run_rounds(&scene, 1);
    assert_int_not_equal(analyst_book(scene.analyst)->offer.placement.count, 0);
    assert_int_equal(scene.due_step, 0);
    analyst_destroy(scene.analyst);
}

/* Steps are weighed as they come, in early rounds; rates settle, and the job is at rest, by rounds
 * of the timer alone. */
static void
test_an_offer_comes_at_the_step_at_which_it_is_due(void **state)
{
    const struct proposal_book *book;
    uint32_t rounds;
    struct scene scene;

    begin(&scene, 8, 3, 6000);
    run_rounds(&scene, CAIRN_DECIDER_ROUNDS); /* the first has measured nothing */
    for (uint32_t i = 0; i < 50; i++)
        run_round(&scene, STEP_MS, true);
    assert_null(cairn_adviser_offers(analyst_adviser(scene.analyst)));
    run_round(&scene, 0, false);
    assert_non_null(cairn_adviser_offers(analyst_adviser(scene.analyst)));
    while (!has_moved(&scene) && scene.steps < 1000)
        run_round(&scene, STEP_MS, true);
    assert_true(has_moved(&scene));
    assert_int_equal(scene.due_step, BEGUN_STEP + scene.steps);
    analyst_destroy(scene.analyst);

    for (int early = 0; early < 2; early++) {
        begin(&scene, 8, 3, 6000);
        book = analyst_book(scene.analyst);
        run_rounds(&scene, 200);
        assert_true(has_moved(&scene));
        scene.rate = 1;
        for (rounds = 0; !book->offer.is_home && rounds < 100; rounds++)
            (early ? run_steps : run_rounds)(&scene, 1);
        assert_int_equal(rounds, CAIRN_DECIDER_ROUNDS + 5); /* six at rest, from the fifth on */
        analyst_destroy(scene.analyst);
    }
}

/* ---- relaunches ---- */

static int
approve_relaunch(struct scene *scene)
{
    const struct proposal *relaunch = &analyst_book(scene->analyst)->relaunch;
    const struct proposal_decision decision = {.word = PROPOSAL_APPROVE,
                                               .number = relaunch->placement.number,
                                               .name = proposal_full_name(relaunch),
                                               .token = scene->wall_ns};
    struct analyst_event event = {.type = ANALYST_DECISION,
                                  .wall_ns = scene->wall_ns,
                                  .as.decision = {.decision = &decision}};
    struct analyst_actions actions;

    analyst_step(scene->analyst, &event, &actions);
    carry_out(scene, &actions);
    return actions.answer.exit_code;
}

/* It waits for an operator also where plan_policy is enforce. */
static void
test_a_relaunch_is_proposed_once_it_pays(void **state)
{
    const struct proposal_book *book;
    const struct proposal *relaunch;
    struct scene scene;
    uint32_t rounds = 0;

    begin(&scene, 8, 20, 6000);
    scene.stages = 0;
    run_rounds(&scene, 300);
    book = analyst_book(scene.analyst);
    relaunch = &book->relaunch;
    assert_int_equal(relaunch->placement.count, 0); /* nobody could carry it out */
    scene.reads =
        OPERATOR_READS_ANY | OPERATOR_READS_NODES | OPERATOR_READS_LAYERS | OPERATOR_READS_STAGES;
    for (; relaunch->placement.count == 0 && rounds < 300; rounds++)
        run_rounds(&scene, 1);
    /* 30 s, of some 0.5 s in each of 5 steps of a round */
    assert_in_range(rounds, 5, 30);
    assert_int_equal(relaunch->shape.tp, 1);
    for (uint32_t i = 0; i < relaunch->shape.node_count; i++)
        assert_int_not_equal(relaunch->shape.nodes[i], 3);
    assert_true(relaunch->step_ms < relaunch->running_ms / 2 && relaunch->bound_ms > 0);
    assert_true(relaunch->cost_ms >= 30e3);
    scene.reads = 0; /* the launcher is gone */
    run_rounds(&scene, 1);
    assert_int_equal(relaunch->placement.count, 0);
    scene.reads = OPERATOR_READS_ANY; /* a command that no other shape can be told */
    run_rounds(&scene, 50);
    assert_int_equal(relaunch->placement.count, 0);
    analyst_destroy(scene.analyst);
}

/* A node that stands by takes the place of a slow one, in the same shape, which no word of the
 * command has to tell. */
static void
test_a_standby_takes_the_place_of_a_slow_node(void **state)
{
    static const uint32_t nodes[] = {0, 1, 2, 4};
    const struct proposal *relaunch;
    struct scene scene;

    begin_with(&scene, extra_device, 8, 20, 6000);
    scene.reads = OPERATOR_READS_ANY;
    relaunch = &analyst_book(scene.analyst)->relaunch;
    run_rounds(&scene, 100);
    assert_int_equal(relaunch->placement.count, 0); /* nobody stands by */
    scene.standby = (struct operator_standby){3, {3, 7, 4}};
    run_rounds(&scene, 100);
    assert_int_equal(relaunch->shape.node_count, 4);
    assert_memory_equal(relaunch->shape.nodes, nodes, sizeof nodes);
    assert_int_equal(relaunch->placement.count, 2);
    assert_int_equal(relaunch->placement.parts[0], 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(relaunch->placement.layers[i], 4);
    assert_true(relaunch->step_ms > 80 && relaunch->step_ms < 90); /* 1.1 of 5 turns of 16 ms */
    scene.standby.count = 2;                                       /* it has gone */
    run_rounds(&scene, 1);
    assert_int_equal(relaunch->placement.count, 0);
    analyst_destroy(scene.analyst);
}

static void
test_a_job_in_another_shape(void **state)
{
    const struct proposal_story *story;
    const struct proposal_book *book;
    struct scene scene;
    uint64_t offered, number;

    begin(&scene, 8, 20, 6000);
    scene.stages = 0;
    scene.reads =
        OPERATOR_READS_ANY | OPERATOR_READS_NODES | OPERATOR_READS_STAGES | OPERATOR_READS_LAYERS;
    run_rounds(&scene, 300);
    book = analyst_book(scene.analyst);
    number = book->relaunch.placement.number;
    assert_int_equal(approve_relaunch(&scene), 0);
    assert_int_equal(book->shape.placement.number, number);
    run_rounds(&scene, 3);
    assert_int_equal(book->relaunch.placement.count, 0); /* the next waits for this one */
    story = proposal_story_of(book, number);
    assert_int_equal(story->fate, PROPOSAL_OFFERED);

    offered = book->offer.placement.number;
    scene.wall_ns += 8 * CAIRN_NS_PER_S;
    scene.shape = number;
    run_rounds(&scene, 1);
    assert_int_equal(story->fate, PROPOSAL_TAKEN);
    assert_in_range(story->standstill_ns, 8 * CAIRN_NS_PER_S, 9 * CAIRN_NS_PER_S);
    scene.rate = 1; /* of another rank 3 than the plan's */
    run_rounds(&scene, 50);
    assert_int_equal(story->fate, PROPOSAL_KEPT);
    assert_int_equal(book->offer.placement.number, offered);
    assert_int_equal(book->waiting.placement.count, 0);

    assert_int_equal(decide(&scene, PROPOSAL_GO_BACK), 0);
    assert_true(book->shape.is_home);
    assert_int_equal(book->shape.shape.node_count, 4);
    number = book->shape.placement.number;
    scene.rate = 20;
    run_rounds(&scene, 2);
    assert_int_equal(decide(&scene, PROPOSAL_GO_BACK), 1); /* the job has not started again yet */
    assert_int_equal(decide(&scene, PROPOSAL_NOW), 1);
    assert_int_equal(book->shape.placement.number, number);
    assert_int_equal(book->offer.placement.number, offered);
    scene.rate = 1;
    scene.shape = number;
    run_rounds(&scene, 1);
    assert_int_equal(proposal_story_of(book, number)->fate, PROPOSAL_TAKEN);
    run_rounds(&scene, 50);
    assert_int_equal(proposal_story_of(book, number)->fate, PROPOSAL_KEPT);
    analyst_destroy(scene.analyst);
}

/* Nobody carries it out: it is withdrawn after ten minutes, and not proposed again at once. */
static void
test_a_relaunch_that_nobody_carries_out(void **state)
{
    const struct proposal_book *book;
    struct scene scene;

    begin(&scene, 8, 20, 6000);
    scene.stages = 0;
    scene.reads =
        OPERATOR_READS_ANY | OPERATOR_READS_NODES | OPERATOR_READS_STAGES | OPERATOR_READS_LAYERS;
    run_rounds(&scene, 300);
    book = analyst_book(scene.analyst);
    assert_int_equal(approve_relaunch(&scene), 0);
    run_rounds(&scene, 1190);
    assert_int_not_equal(book->shape.placement.count, 0);
    run_rounds(&scene, 15);
    assert_int_equal(book->shape.placement.count, 0);
    run_rounds(&scene, 300);
    assert_int_equal(book->relaunch.placement.count, 0);
    run_rounds(&scene, 400);
    assert_int_not_equal(book->relaunch.placement.count, 0);
    analyst_destroy(scene.analyst);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_move_if_nothing_refuses),
        cmocka_unit_test(test_no_layers_move_from_an_old_commit),
        cmocka_unit_test(test_no_layers_move_into_full_slots),
        cmocka_unit_test(test_a_small_gain_changes_nothing),
        cmocka_unit_test(test_nothing_changes_while_a_rank_is_silent),
        cmocka_unit_test(test_an_offer_names_the_step_at_which_it_was_due),
        cmocka_unit_test(test_an_offer_comes_at_the_step_at_which_it_is_due),
        cmocka_unit_test(test_a_relaunch_is_proposed_once_it_pays),
        cmocka_unit_test(test_a_standby_takes_the_place_of_a_slow_node),
        cmocka_unit_test(test_a_job_in_another_shape),
        cmocka_unit_test(test_a_relaunch_that_nobody_carries_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
