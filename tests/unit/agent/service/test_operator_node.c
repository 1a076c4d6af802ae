/* tests/unit/agent/service/test_operator_node.c - a node's view between agents. */
#include "tests/support/operator_scene.h"

/* A node's view goes through its JSON unchanged, and numbers of a newer version are passed over. */
static void
views_travel(void **state)
{
    struct scene *scene = *state;
    struct operator_node out;
    struct cairn_json_writer writer;
    struct cairn_json_reader reader;
    char *text, *newer;
    size_t len;

    scene->nodes[3].member = UINT32_MAX;
    scene->nodes[3].uptime_ns = UINT64_MAX;
    snprintf(scene->nodes[3].spill_failure, sizeof scene->nodes[3].spill_failure, "/spill: \"a\"");
    snprintf(scene->nodes[3].launcher_note, sizeof scene->nodes[3].launcher_note, "[\"a\", 1]");
    scene->nodes[3].launcher = 1;
    cairn_json_writer_init(&writer);
    operator_node_write(&writer, &scene->nodes[3]);
    assert_int_equal(cairn_json_writer_done(&writer, &text, &len), CAIRN_OK);
    cairn_json_reader_init(&reader, text, len);
    assert_true(operator_node_read(&reader, &out));
    assert_int_equal(cairn_json_reader_done(&reader), CAIRN_OK);
    out.alive = true;
    assert_memory_equal(&out, &scene->nodes[3], sizeof out);
    newer = malloc(len + 64);
    assert_non_null(newer);
    len = (size_t)sprintf(newer, "{\"of_tomorrow\":5,%s", text + 1);
    cairn_json_reader_init(&reader, newer, len);
    assert_true(operator_node_read(&reader, &out));
    assert_int_equal(out.member, UINT32_MAX);
    for (size_t cut = 0; cut < len; cut++) { /* half a view is none */
        cairn_json_reader_init(&reader, newer, cut);
        assert_false(operator_node_read(&reader, &out) &&
                     cairn_json_reader_done(&reader) == CAIRN_OK);
    }
    free(newer);
    free(text);
}

static bool
reads(const char *text, struct operator_node *out)
{
    struct cairn_json_reader reader;

    memset(out, 0, sizeof *out);
    cairn_json_reader_init(&reader, text, strlen(text));
    if (!operator_node_read(&reader, out))
        return false;
    if (cairn_json_reader_done(&reader) == CAIRN_OK)
        return true;
    operator_node_fini(out);
    return false;
}

static void
coverage_travels(void **state)
{
    struct scene *scene = *state;
    struct operator_uncovered moment = thing(CAIRN_OPTIMIZER, 0, "m \"q\"", "\xc3\xbc");
    struct operator_uncovered refusal = thing(0, 0, "", "why");
    struct cairn_json_writer writer;
    struct operator_node out;
    char *text, *cut;
    size_t len;

    cover(scene, 0);
    uncover(scene, 0, &refusal);
    uncover(scene, 0, &moment);
    scene->nodes[0].coverage->uncovered.left_out = 7;
    cairn_json_writer_init(&writer);
    operator_node_write(&writer, &scene->nodes[0]);
    assert_int_equal(cairn_json_writer_done(&writer, &text, &len), CAIRN_OK);
    assert_true(reads(text, &out));
    assert_memory_equal(out.coverage, scene->nodes[0].coverage, sizeof *out.coverage);
    operator_node_fini(&out);
    cut = strdup(text);
    assert_non_null(cut);
    for (size_t at = 0; at < len; at++) { /* half a view is none, and leaves nothing behind */
        memcpy(cut, text, len);
        cut[at] = '\0';
        assert_false(reads(cut, &out));
    }
    free(cut);
    free(text);
    end_coverage(scene);
}

/* A peer that is not what it should be. */
static void
hostile_coverage_is_refused(void **state)
{
    static const char *const hostile[] = {
        "{\"coverage\":{\"ranks\":[[1,2]]}}",
        "{\"coverage\":5}",
        "{\"coverage\":{\"uncovered\":[{\"kind\":5}]}}",
        "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"name\":\"a\\u001b[31m\"}]}}",
        "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"reason\":\"a\\nb\"}]}}",
        "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"reason\":\"\\u009b\"}]}}",
        "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"name\":7}]}}",
        "{\"coverage\":{},\"coverage\":{}}"};
    struct operator_node out;
    char longer[1024];

    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        assert_false(reads(hostile[i], &out));
    snprintf(longer, sizeof longer,
             "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"name\":\"%0300d\"}]}}", 1);
    assert_false(reads(longer, &out));
    assert_true(reads(
        "{\"coverage\":{\"uncovered\":[{\"kind\":1,\"name\":\"a\",\"of_tomorrow\":3}]}}", &out));
    assert_int_equal(out.coverage->uncovered.count, 1);
    operator_node_fini(&out);
}

/* Additions of a newer agent are passed over. */
static void
newer_views_are_read(void **state)
{
    struct operator_node out;

    assert_true(reads(
        "{\"of_tomorrow\":{\"a\":[1,{\"b\":null}],\"c\":\"}\"},\"coverage\":{\"totals\":{\"x\":[1."
        "5,true]},"
        "\"uncovered\":[{\"since\":{\"step\":3},\"kind\":2,\"name\":\"m\",\"why\":\"text\"}]}}",
        &out));
    assert_int_equal(out.coverage->uncovered.count, 1);
    assert_string_equal(out.coverage->uncovered.items[0].name, "m");
    operator_node_fini(&out);
    assert_false(reads("{\"of_tomorrow\":{\"a\":[1,}}", &out));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {SCENE(views_travel), SCENE(coverage_travels),
                                       SCENE(hostile_coverage_is_refused),
                                       SCENE(newer_views_are_read)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
