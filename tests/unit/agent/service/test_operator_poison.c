/* tests/unit/agent/service/test_operator_poison.c - poisoned steps: the checks, and the list of
 * snapshots. */
#include "agent/service/operator_report.h"

#include "tests/support/operator_scene.h"

static void
poison(struct operator_node *node, uint64_t step, uint64_t first_step)
{
    node->poison_epoch = newest.epoch;
    node->poison_step = step;
    node->poison_first_step = first_step;
    node->poison_rank = 7;
    node->poison_tensors = 2;
    snprintf(node->poison_name, sizeof node->poison_name, "layer.weight");
}

/* What was not kept is critical until a later generation is committed; it names rank, tensor, step.
 */
static void
poison_that_was_not_kept_is_critical(void **state)
{
    struct scene *scene = *state;
    const struct operator_check *check;

    poison(&scene->nodes[1], 29, 28);
    assert_null(check_of(look(scene), "poisoned")); /* 30 is committed */
    poison(&scene->nodes[1], 31, 31);
    check = check_of(look(scene), "poisoned");
    assert_non_null(check);
    assert_int_equal(scene->health.level, OPERATOR_CRITICAL);
    assert_non_null(strstr(check->what, "step 31 is"));
    assert_non_null(strstr(check->what, "rank 7"));
    assert_non_null(strstr(check->what, "layer.weight and 1 more"));
    assert_non_null(strstr(check->fix, "step 30"));
    poison(&scene->nodes[1], 33, 32); /* of two that know the last, who knows the first */
    poison(&scene->nodes[2], 33, 31);
    poison(&scene->nodes[3], 32, 31);
    scene->nodes[2].poison_rank = 8;
    check = check_of(look(scene), "poisoned");
    assert_non_null(strstr(check->what, "steps 31 to 33 are"));
    assert_non_null(strstr(check->what, "rank 8"));
    scene->nodes[2].poison_tensors = 0;
    snprintf(scene->nodes[2].poison_reason, sizeof scene->nodes[2].poison_reason, "loss spike");
    assert_non_null(strstr(check_of(look(scene), "poisoned")->what, "rejected it: loss spike"));
    scene->nodes[0].committed_step = 34;
    assert_null(check_of(look(scene), "poisoned"));
}

/* What was kept is a warning while it is the newest. */
static void
poison_that_was_kept_warns(void **state)
{
    struct scene *scene = *state;

    poison(&scene->nodes[1], newest.step, newest.step);
    scene->nodes[1].poison_kept = 1;
    assert_non_null(check_of(look(scene), "poisoned-kept"));
    assert_null(check_of(&scene->health, "poisoned"));
    assert_int_equal(scene->health.level, OPERATOR_WARN);
    scene->nodes[0].committed_step = newest.step + 1;
    assert_null(check_of(look(scene), "poisoned-kept"));
}

static void
what_never_was_finite_warns(void **state)
{
    struct scene *scene = *state;
    const struct operator_check *check;

    scene->nodes[4].unwatched_tensors = 3;
    scene->nodes[4].unwatched_rank = 9;
    snprintf(scene->nodes[4].unwatched_name, sizeof scene->nodes[4].unwatched_name, "head.bias");
    check = check_of(look(scene), "never-finite");
    assert_non_null(check);
    assert_int_equal(scene->health.level, OPERATOR_WARN);
    assert_non_null(strstr(check->what, "rank 9: 3 tensors"));
    assert_non_null(strstr(check->what, "head.bias"));
}

static void
poisoned_generations_are_listed(void **state)
{
    struct scene *scene = *state;
    const struct cairn_tree_value *list, *entry;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, out[512];

    for (int kept = 0; kept < 2; kept++) {
        poison(&scene->nodes[1], newest.step + 1 - (uint64_t)kept, newest.step);
        scene->nodes[1].poison_kept = (uint64_t)kept;
        look(scene);
        cairn_json_writer_init(&writer);
        operator_write_snapshots(&writer, &scene->job);
        tree = parse(&writer, &text);
        list = cairn_tree_find(&tree, NULL, "generations");
        assert_int_equal(list->count, 2 - kept);
        entry = cairn_tree_next(&tree, list, NULL);
        assert_string_equal(cairn_tree_text(&tree, entry, "state", out, sizeof out),
                            kept ? "committed" : "poisoned");
        assert_non_null(
            strstr(cairn_tree_text(&tree, entry, "why", out, sizeof out), "layer.weight"));
        cairn_tree_fini(&tree);
        free(text);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE(poison_that_was_not_kept_is_critical), SCENE(poison_that_was_kept_warns),
        SCENE(what_never_was_finite_warns), SCENE(poisoned_generations_are_listed)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
