/* tests/unit/agent/service/test_operator_replan.c - advice, offers and proposals. */
#include "agent/service/operator_replan.h"
#include "agent/service/operator_report.h"

#include "tests/support/operator_scene.h"

#include <math.h>

/* What the analyst advises about the plan; numbers of another version that mean nothing here are
 * not advice. */
static void
advice_is_shown(void **state)
{
    static const char *const actions[] = {
        [0] = NULL, [1] = "microbatches", [3] = "groups", [9] = NULL};
    struct scene *scene = *state;
    struct operator_node *analyst = &scene->nodes[2];

    analyst->analyses = 1;
    analyst->advice_current_ns = OPERATOR_UNKNOWN; /* the plan that runs cannot go on */
    analyst->advice_step_ns = 200000000;
    analyst->advice_cost_ns = 10000000000;
    for (uint64_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        struct cairn_json_writer writer;
        struct cairn_tree tree;
        char *text, out[512];

        if (i != 0 && i != 9 && !actions[i])
            continue;
        analyst->advice_action = i;
        look(scene);
        cairn_json_writer_init(&writer);
        operator_write_status(&writer, &scene->job, &scene->health, 0);
        tree = parse(&writer, &text);
        if (!actions[i]) {
            assert_null(cairn_tree_find(&tree, NULL, "replan.advice.action"));
        } else {
            assert_string_equal(
                cairn_tree_text(&tree, NULL, "replan.advice.action", out, sizeof out), actions[i]);
            assert_non_null(
                strstr(cairn_tree_text(&tree, NULL, "replan.advice.what", out, sizeof out),
                       "the plan that runs cannot go on; steps of 200 ms then, for 10 s of "
                       "standing still"));
            assert_true(fabs(cairn_tree_double(&tree, NULL, "replan.advice.cost_ms", 0) - 10000) <
                        1e-6);
            assert_true(isnan(cairn_tree_double(&tree, NULL, "replan.advice.current_ms", NAN)));
        }
        assert_false(cairn_tree_bool(&tree, NULL, "replan.enforced", true));
        cairn_tree_fini(&tree);
        free(text);
    }
}

static void
offered_shares_are_reported(void **state)
{
    struct scene *scene = *state;
    static const struct proposal_book book = {
        .offer.placement = {
            .number = 7, .count = 2, .parts = {8, 4}, .stages = 2, .layers = {4, 4, 1, 7}}};
    const struct cairn_tree_value *parts, *part = NULL, *layers;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    uint64_t sum = 0;
    char *text;

    scene->nodes[0].offer_number = scene->nodes[2].offer_number = 7;
    scene->nodes[1].offer_number = 6; /* does not know the offer yet */
    for (uint32_t i = 0; i < 3; i++)
        scene->nodes[i].offer_askers = scene->nodes[i].offer_takers = 2;
    scene->nodes[2].offer_takers = 1;
    scene->nodes[0].offer_changes = scene->nodes[2].offer_changes = 3;
    scene->nodes[1].offer_changes = 2;
    look(scene);
    scene->job.book = &book;
    cairn_json_writer_init(&writer);
    operator_write_status(&writer, &scene->job, &scene->health, 0);
    tree = parse(&writer, &text);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "replan.offer.number", 0), 7);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "replan.offer.ranks_asking", 0), 6);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "replan.offer.ranks_taken", 0), 3);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "replan.offer.changes_today", 0), 3);
    parts = cairn_tree_find(&tree, NULL, "replan.offer.micro_batches");
    while ((part = cairn_tree_next(&tree, parts, part)) != NULL)
        sum += cairn_tree_u64(&tree, part, "", 0);
    assert_int_equal(sum, 12);
    sum = 0;
    parts = cairn_tree_find(&tree, NULL, "replan.offer.layers");
    while ((part = cairn_tree_next(&tree, parts, part)) != NULL)
        for (layers = NULL; (layers = cairn_tree_next(&tree, part, layers)) != NULL;)
            sum = sum * 10 + cairn_tree_u64(&tree, layers, "", 0);
    assert_int_equal(sum, 4417);
    cairn_tree_fini(&tree);
    free(text);
}

static struct cairn_tree
write_replan(struct scene *scene, char **text, int exit_code)
{
    struct cairn_json_writer writer;

    cairn_json_writer_init(&writer);
    assert_int_equal(operator_replan_write(&writer, &scene->job), exit_code);
    return parse(&writer, text);
}

static void
a_proposal_is_shown_with_its_reasons(void **state)
{
    static struct proposal_book book;
    static struct cairn_ledger ledger;
    const struct proposal home = {.placement = {.count = 2, .parts = {6, 6}}, .is_home = true};
    struct scene *scene = *state;
    const struct cairn_tree_value *slow;
    struct cairn_tree tree;
    char *text, out[256];

    look(scene);
    cairn_ledger_init(&ledger);
    /* it has come back with step 20; its link, slow since before, is another matter */
    ledger.entries[ledger.count++] = (struct cairn_ledger_entry){.kind = CAIRN_SLOW_COMPUTE,
                                                                 .rank_count = 1,
                                                                 .ranks = {4},
                                                                 .since_step = 9,
                                                                 .run_since_step = 20,
                                                                 .returns = 1,
                                                                 .until_step = CAIRN_STEP_NONE};
    ledger.entries[ledger.count++] = (struct cairn_ledger_entry){.kind = CAIRN_SLOW_LINK,
                                                                 .rank_count = 2,
                                                                 .ranks = {4, 5},
                                                                 .since_step = 10,
                                                                 .run_since_step = 10,
                                                                 .until_step = CAIRN_STEP_NONE};
    book = (struct proposal_book){.offer = {.placement = {.number = 2, .count = 2, .parts = {8, 4}},
                                            .action = CAIRN_REPLAN_MICROBATCHES,
                                            .step_ms = 320,
                                            .decided = PROPOSAL_APPROVED,
                                            .node = 1,
                                            .slow = {.count = 1, .ranks = {4}, .rates = {2}}},
                                  .waiting = {.placement = {.number = 3,
                                                            .count = 2,
                                                            .parts = {7, 5},
                                                            .stages = 2,
                                                            .layers = {4, 4, 5, 3}},
                                              .action = CAIRN_REPLAN_LAYERS,
                                              .current_ms = 448,
                                              .step_ms = 288,
                                              .bound_ms = 288,
                                              .cost_ms = 1000,
                                              .payback_steps = 7,
                                              .moved_layers = 1,
                                              .moved_bytes = 1 << 20,
                                              .made_wall_ns = 5,
                                              .slow = {.count = 1, .ranks = {4}, .rates = {2.1}}},
                                  .ended_count = 1,
                                  .ended = {{2, PROPOSAL_APPROVED, 1, 77, 4}},
                                  .is_all_denied = true};
    scene->config.plan_policy = CAIRN_PLAN_APPROVE;
    scene->job.book = &book;
    scene->job.home = &home;
    scene->job.ledger = &ledger;
    scene->job.wall_ns = 9;
    scene->nodes[2].analyses = 1;
    scene->nodes[2].analysis_step_ns = 325000000;
    tree = write_replan(scene, &text, 0);
    assert_string_equal(cairn_tree_text(&tree, NULL, "policy", out, sizeof out), "approve");
    assert_int_equal(cairn_tree_u64(&tree, NULL, "proposal.number", 0), 3);
    assert_string_equal(cairn_tree_text(&tree, NULL, "proposal.action", out, sizeof out), "layers");
    assert_true(fabs(cairn_tree_double(&tree, NULL, "proposal.step_ms", 0) - 288) < 1e-9);
    assert_true(fabs(cairn_tree_double(&tree, NULL, "proposal.running_ms", 0) - 320) < 1e-9);
    assert_true(fabs(cairn_tree_double(&tree, NULL, "proposal.price_ms", 0) - 1000) < 1e-9);
    assert_true(fabs(cairn_tree_double(&tree, NULL, "measured_ms", 0) - 325) < 1e-9);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "proposal.moved_layers", 0), 1);
    slow = cairn_tree_next(&tree, cairn_tree_find(&tree, NULL, "proposal.slow"), NULL);
    assert_int_equal(cairn_tree_u64(&tree, slow, "rank", 0), 4);
    assert_int_equal(cairn_tree_u64(&tree, slow, "since_step", 0), 20);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "offer.number", 0), 2);
    assert_string_equal(cairn_tree_text(&tree, NULL, "offer.decided", out, sizeof out), "approved");
    assert_int_equal(cairn_tree_u64(&tree, NULL, "offer.decided_node", 0), 1);
    assert_true(cairn_tree_bool(&tree, NULL, "denied.all", false));
    assert_int_equal(cairn_tree_find(&tree, NULL, "ended")->count, 1);
    assert_int_equal(cairn_tree_find(&tree, NULL, "home.micro_batches")->count, 2);
    assert_null(cairn_tree_find(&tree, NULL, "nothing"));
    cairn_tree_fini(&tree);
    free(text);
    /* under other evidence what was offered cannot be compared, and nobody knows since when */
    book.offer.slow.rates[0] = 4;
    ledger.entries[0].closed_wall_ns = 1;
    tree = write_replan(scene, &text, 0);
    assert_null(cairn_tree_find(&tree, NULL, "proposal.running_ms"));
    slow = cairn_tree_next(&tree, cairn_tree_find(&tree, NULL, "proposal.slow"), NULL);
    assert_null(cairn_tree_find(&tree, slow, "since_step"));
    cairn_tree_fini(&tree);
    free(text);
    /* what is away from home is worth a look */
    book.waiting.placement.count = 0;
    tree = write_replan(scene, &text, 0);
    assert_null(cairn_tree_find(&tree, NULL, "proposal"));
    cairn_tree_fini(&tree);
    free(text);
    book.offer.is_home = true;
    tree = write_replan(scene, &text, 4);
    cairn_tree_fini(&tree);
    free(text);
}

static void
nothing_is_proposed_for_a_reason(void **state)
{
    static struct proposal_book book;
    static const char *const reasons[] = {
        "set `problem`",        "plan_policy is advise",   "no trainer asks",
        "the job is not timed", "the normal is being",     "no other plan gains enough",
        "advised plan runs",    "advised plan was denied",
    };
    struct scene *scene = *state;
    struct operator_node *analyst = &scene->nodes[2];
    char *text, out[256];

    memset(&book, 0, sizeof book);
    look(scene);
    scene->job.book = &book;
    for (uint32_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        struct cairn_tree tree;

        if (i == 1) {
            snprintf(scene->config.problem, sizeof scene->config.problem, "/p.json");
            scene->config.plan_policy = CAIRN_PLAN_ADVISE;
        }
        scene->config.plan_policy = i >= 2 ? CAIRN_PLAN_APPROVE : scene->config.plan_policy;
        scene->nodes[4].offer_askers = i >= 3;
        analyst->analyses = analyst->analysis_ranks = i >= 4;
        analyst->analysis_calibrated = i >= 5;
        analyst->advice_action = i >= 6;
        book.denied_count = i >= 7;
        tree = write_replan(scene, &text, 4);
        cairn_tree_text(&tree, NULL, "nothing", out, sizeof out);
        if (!strstr(out, reasons[i]))
            fail_msg("\"%s\" does not say \"%s\"", out, reasons[i]);
        cairn_tree_fini(&tree);
        free(text);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {SCENE(advice_is_shown), SCENE(offered_shares_are_reported),
                                       SCENE(a_proposal_is_shown_with_its_reasons),
                                       SCENE(nothing_is_proposed_for_a_reason)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
