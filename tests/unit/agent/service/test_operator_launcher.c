/* tests/unit/agent/service/test_operator_launcher.c - notes of launchers, and their list. */
#include "agent/service/operator_launcher.h"

#include "tests/support/operator_scene.h"

/* One session has the note until it ends; the note outlives it. */
static void
a_note_has_one_session(void **state)
{
    struct operator_launcher launcher = {0};

    assert_true(operator_launcher_take(&launcher, 7, "joins"));
    assert_true(operator_launcher_take(&launcher, 7, "trains"));
    assert_false(operator_launcher_take(&launcher, 8, "another"));
    operator_launcher_leave(&launcher, 8);
    assert_false(operator_launcher_take(&launcher, 8, "another"));
    operator_launcher_leave(&launcher, 7);
    assert_int_equal(launcher.serial, 0);
    assert_string_equal(launcher.note, "trains");
    assert_true(operator_launcher_take(&launcher, 8, "another"));
    assert_string_equal(launcher.note, "another");
}

static void
launchers_are_listed(void **state)
{
    struct scene *scene = *state;
    const struct cairn_tree_value *nodes, *node = NULL;
    struct cairn_json_writer writer;
    struct cairn_tree tree;
    char *text, note[64];

    lose(scene, 0);
    scene->nodes[1].launcher = 1;
    snprintf(scene->nodes[1].launcher_note, sizeof scene->nodes[1].launcher_note, "\"x\"");
    scene->nodes[2].member = UINT32_MAX; /* a spare holds nothing, nor who has forgotten it */
    scene->nodes[3].blank = 1;
    look(scene);
    cairn_json_writer_init(&writer);
    operator_write_launchers(&writer, &scene->job, 1);
    tree = parse(&writer, &text);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "node", 9), 1);
    nodes = cairn_tree_find(&tree, NULL, "nodes");
    for (uint32_t i = 0; i < NODES; i++) {
        node = cairn_tree_next(&tree, nodes, node);
        assert_non_null(node);
        assert_int_equal(cairn_tree_u64(&tree, node, "node", 9), i);
        assert_int_equal(cairn_tree_bool(&tree, node, "answered", false), i != 0);
        assert_int_equal(cairn_tree_bool(&tree, node, "holds", false), i == 1 || i > 3);
        assert_int_equal(cairn_tree_bool(&tree, node, "launcher", false), i == 1);
        cairn_tree_text(&tree, node, "note", note, sizeof note);
        assert_string_equal(note, i == 1 ? "\"x\"" : "");
    }
    assert_null(cairn_tree_next(&tree, nodes, node));
    cairn_tree_fini(&tree);
    free(text);
    cairn_json_writer_fini(&writer);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {SCENE(a_note_has_one_session), SCENE(launchers_are_listed)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
