/* tests/unit/tools/test_tree.c - the tree of a JSON text: what it finds, what it refuses, random
 * bytes. */
#include "tools/tree.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

static const char text[] =
    " {\"schema\":1, \"a\":{\"b\":{\"c\":-5}}, \"list\":[1,[2],{\"x\":\"y\\n\\u00e9\"},null,true],"
    "\"big\":18446744073709551615,\"real\":2.5e3,\"no\":null,\"yes\":true,\"empty\":{},\"ab\":7} ";

static void
finds_values(void **state)
{
    const struct cairn_tree_value *list, *element;
    struct cairn_tree tree;
    char out[32], tiny[3];

    assert_int_equal(cairn_tree_parse(text, strlen(text), &tree), CAIRN_OK);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "schema", 0), 1);
    assert_int_equal(cairn_tree_i64(&tree, NULL, "a.b.c", 0), -5);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "a.b.c", 77), 77); /* negative: not of that kind */
    assert_true(cairn_tree_u64(&tree, NULL, "big", 0) == UINT64_MAX);
    assert_int_equal(cairn_tree_i64(&tree, NULL, "big", 3), 3);
    assert_true(cairn_tree_double(&tree, NULL, "real", 0) == 2500.0);
    assert_int_equal(cairn_tree_u64(&tree, NULL, "real", 9), 9);
    assert_true(cairn_tree_bool(&tree, NULL, "yes", false));
    assert_true(cairn_tree_bool(&tree, NULL, "schema", true)); /* no bool: the fallback */
    assert_null(cairn_tree_find(&tree, NULL, "no"));
    assert_null(cairn_tree_find(&tree, NULL, "a.b.c.d"));
    assert_null(cairn_tree_find(&tree, NULL, "list.x"));
    assert_int_equal(cairn_tree_u64(&tree, NULL, "ab", 0), 7); /* not found by "a" */
    assert_non_null(cairn_tree_find(&tree, NULL, "empty"));
    list = cairn_tree_find(&tree, NULL, "list");
    assert_int_equal(list->count, 5);
    element = cairn_tree_next(&tree, list, NULL);
    assert_int_equal(cairn_tree_u64(&tree, element, "", 0), 1);
    element = cairn_tree_next(&tree, list, element);
    assert_int_equal(element->kind, CAIRN_TREE_ARRAY);
    element = cairn_tree_next(&tree, list, element);
    assert_string_equal(cairn_tree_text(&tree, element, "x", out, sizeof out), "y\n\xc3\xa9");
    assert_string_equal(cairn_tree_text(&tree, element, "x", tiny, sizeof tiny), "y\n");
    element = cairn_tree_next(&tree, list, cairn_tree_next(&tree, list, element));
    assert_true(cairn_tree_bool(&tree, element, "", false));
    assert_null(cairn_tree_next(&tree, list, element));
    assert_null(cairn_tree_next(&tree, NULL, NULL));
    cairn_tree_fini(&tree);
    cairn_tree_fini(&tree);
}

static void
refuses_what_is_no_json(void **state)
{
    static const char *const wrong[] = {
        "",      " ",     "{",   "}",          "[1,]",   "[,1]", "{\"a\"}",   "{\"a\":}",
        "{a:1}", "[1 2]", "01x", "\"",         "\"\\",   "[1]]", "tru",       "nul",
        "-",     "1.",    "1e",  "{\"a\":1,}", "\"\n\"", "[1}",  "{\"a\":1]", "1 2"};
    char deep[64];
    struct cairn_tree tree = {0};

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (cairn_tree_parse(wrong[i], strlen(wrong[i]), &tree) != CAIRN_CORRUPT)
            fail_msg("\"%s\" was taken", wrong[i]);
    assert_null(tree.values); /* untouched */
    memset(deep, '[', 20);
    memset(deep + 20, ']', 20);
    assert_int_equal(cairn_tree_parse(deep, 40, &tree), CAIRN_CORRUPT);
}

/* Every cut and every changed byte of a text: nothing but an answer may result (the sanitizers
 * watch). */
static void
survives_damage(void **state)
{
    size_t len = strlen(text);
    uint64_t random = 1;

    for (size_t cut = 0; cut < len - 1; cut++) { /* the last byte is white space */
        char *copy = malloc(cut ? cut : 1);
        struct cairn_tree tree;

        assert_non_null(copy);
        memcpy(copy, text, cut);
        if (cairn_tree_parse(copy, cut, &tree) == CAIRN_OK)
            fail_msg("a text cut at %zu was taken", cut);
        free(copy);
    }
    for (int i = 0; i < 20000; i++) {
        char *copy = malloc(len), out[8];
        struct cairn_tree tree;

        assert_non_null(copy);
        memcpy(copy, text, len);
        for (int change = 0; change < 2; change++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            copy[(random >> 33) % len] = (char)(random >> 56);
        }
        if (cairn_tree_parse(copy, len, &tree) == CAIRN_OK) {
            (void)cairn_tree_u64(&tree, NULL, "a.b.c", 0);
            (void)cairn_tree_text(
                &tree, cairn_tree_next(&tree, cairn_tree_find(&tree, NULL, "list"), NULL), "x", out,
                sizeof out);
            cairn_tree_fini(&tree);
        }
        free(copy);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_values),
                                       cmocka_unit_test(refuses_what_is_no_json),
                                       cmocka_unit_test(survives_damage)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
