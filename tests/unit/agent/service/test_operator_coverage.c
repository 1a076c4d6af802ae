/* tests/unit/agent/service/test_operator_coverage.c - tensors that are not covered. */
#include "agent/service/operator_report.h"

#include "tests/support/operator_scene.h"

static void
what_is_not_covered_warns(void **state)
{
    struct scene *scene = *state;
    struct operator_uncovered buffer = thing(CAIRN_BUFFER, 0, "mask", "it is on the meta device");
    struct operator_uncovered moment = thing(CAIRN_OPTIMIZER, 2, "m.w", "its layout is sparse");

    cover(scene, 0);
    cover(scene, 1);
    assert_int_equal(look(scene)->level, OPERATOR_OK);
    assert_int_equal(scene->health.ranks, 4);
    assert_int_equal(scene->health.tensors[CAIRN_OPTIMIZER], 8);
    assert_int_equal(scene->health.tensor_bytes[CAIRN_PARAM], 400);
    uncover(scene, 0, &buffer);
    assert_int_equal(look(scene)->level, OPERATOR_OK); /* worth knowing, no more */
    assert_int_equal(scene->health.uncovered.count, 1);
    uncover(scene, 1, &moment);
    moment.rank = 1;
    uncover(scene, 0, &moment);
    assert_int_equal(look(scene)->level, OPERATOR_WARN);
    assert_non_null(
        strstr(check_of(&scene->health, "not-covered")->what,
               "1 tensor of model or optimizer is not covered; m.w: its layout is sparse"));
    assert_int_equal(scene->health.uncovered.count, 2); /* two nodes say the same of one tensor */
    assert_int_equal(scene->health.uncovered.items[0].kind, CAIRN_OPTIMIZER);
    assert_int_equal(scene->health.uncovered.items[0].ranks, 2);
    assert_int_equal(scene->health.uncovered.items[0].rank, 1);
    end_coverage(scene);
}

static void
a_refusal_warns(void **state)
{
    struct scene *scene = *state;
    struct operator_uncovered refusal = thing(0, 5, "", "LBFGS keeps one state");

    cover(scene, 2);
    uncover(scene, 2, &refusal);
    assert_int_equal(look(scene)->level, OPERATOR_WARN);
    assert_non_null(strstr(check_of(&scene->health, "snapshots-refused")->what,
                           "1 rank takes no snapshots; rank 5: LBFGS keeps one state"));
    assert_null(check_of(&scene->health, "not-covered"));
    end_coverage(scene);
}

/* More than there is room for: the refusal and the model's tensors are kept, the others counted. */
static void
the_worst_is_kept(void **state)
{
    struct scene *scene = *state;
    char name[32];

    cover(scene, 0);
    cover(scene, 1);
    for (uint32_t i = 0; i < OPERATOR_UNCOVERED_MAX; i++) {
        struct operator_uncovered item;

        snprintf(name, sizeof name, "b%u", i);
        item = thing(CAIRN_BUFFER, 0, name, "x");
        uncover(scene, 0, &item);
    }
    for (uint32_t i = 0; i < 3; i++) {
        struct operator_uncovered item;

        snprintf(name, sizeof name, "p%u", i);
        item = thing(i ? CAIRN_PARAM : 0, 2, name, "x");
        uncover(scene, 1, &item);
    }
    look(scene);
    assert_int_equal(scene->health.uncovered.count, OPERATOR_UNCOVERED_MAX);
    assert_int_equal(scene->health.uncovered.left_out, 3);
    assert_int_equal(scene->health.uncovered.items[0].kind, 0);
    assert_int_equal(scene->health.uncovered.items[2].kind, CAIRN_PARAM);
    assert_int_equal(scene->health.uncovered.items[3].kind, CAIRN_BUFFER);
    end_coverage(scene);
}

static void
status_shows_coverage(void **state)
{
    struct scene *scene = *state;
    struct operator_uncovered buffer = thing(CAIRN_BUFFER, 0, "mask", "it is on the meta device");
    struct operator_uncovered refusal = thing(0, 1, "", "why");
    const struct cairn_tree_value *list, *entry;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, out[64];

    cover(scene, 0);
    uncover(scene, 0, &refusal);
    uncover(scene, 0, &buffer);
    look(scene);
    cairn_json_writer_init(&writer);
    operator_write_status(&writer, &scene->job, &scene->health, 0);
    tree = parse(&writer, &text);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "coverage.ranks_known", 0), 2);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "coverage.ranks_refusing", 0), 1);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "coverage.tensors.optimizer", 0), 4);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "coverage.bytes.parameter", 0), 200);
    list = cairn_tree_find(&tree, NULL, "coverage.uncovered");
    assert_int_equal(list->count, 1);
    entry = cairn_tree_next(&tree, list, NULL);
    assert_string_equal(cairn_tree_text(&tree, entry, "kind", out, sizeof out), "buffer");
    assert_string_equal(cairn_tree_text(&tree, entry, "name", out, sizeof out), "mask");
    assert_string_equal(cairn_tree_text(&tree, entry, "reason", out, sizeof out),
                        "it is on the meta device");
    list = cairn_tree_find(&tree, NULL, "coverage.refusals");
    assert_int_equal(list->count, 1);
    assert_string_equal(
        cairn_tree_text(&tree, cairn_tree_next(&tree, list, NULL), "reason", out, sizeof out),
        "why");
    list = cairn_tree_find(&tree, NULL, "coverage.ranks");
    assert_int_equal(list->count, 2);
    entry = cairn_tree_next(&tree, list, NULL);
    assert_true(cairn_tree_bool(&tree, entry, "refuses", false));
    assert_int_equal(cairn_tree_u64(&tree, entry, "uncovered", 0), 1);
    assert_int_equal(cairn_tree_u64(&tree, entry, "bytes.optimizer", 0), 200);
    cairn_tree_fini(&tree);
    free(text);
    end_coverage(scene);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {SCENE(what_is_not_covered_warns), SCENE(a_refusal_warns),
                                       SCENE(the_worst_is_kept), SCENE(status_shows_coverage)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
