/* tests/unit/tools/test_relaunch_words.c - placeholders: which there are, what they become. */
#include "tools/relaunch_words.h"

#include "tests/support/cmocka.h"

#include <string.h>

static const struct cairn_word known[] = {
    {"nodes", true, "3"}, {"node_rank", false, "1"}, {"missing", false, NULL}};
enum { KNOWN = sizeof known / sizeof *known };

static char *
first_of(const char *word, char ***all)
{
    char *const words[] = {(char *)word, NULL};

    assert_int_equal(cairn_words_fill(words, known, KNOWN, all), CAIRN_OK);
    return (*all)[0];
}

static void
test_what_becomes_of_a_word(void **state)
{
    static const char *const cases[][2] = {
        {"{nodes}", "3"},
        {"--nnodes={nodes}:{nodes}", "--nnodes=3:3"},
        {"{node_rank}{nodes}", "13"},
        {"", ""},
        {"plain", "plain"},
        {"{{nodes}}", "{nodes}"},
        {"{{{nodes}}}", "{{nodes}}"},
        {"${nodes}", "${nodes}"},
        {"{\"nodes\": 1}", "{\"nodes\": 1}"},
        {"{NODES}", "{NODES}"},
        {"{nodes", "{nodes"},
        {"nodes}", "nodes}"},
        {"{}", "{}"},
        {"{a b}", "{a b}"},
        {"{", "{"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char **all;

        assert_string_equal(first_of(cases[i][0], &all), cases[i][1]);
        assert_null(all[1]);
        cairn_words_free(all);
    }
    cairn_words_free(NULL);
}

static void
test_what_is_not_known_is_named(void **state)
{
    char *const fine[] = {(char *)"--n={node_rank}", (char *)"{{nods}}", NULL};
    char *const shaped[] = {(char *)"a", (char *)"{nodes}", (char *)"{nodes}", NULL};
    char *const wrong[] = {(char *)"{nodes}", (char *)"x{nods}", NULL};
    char *const empty[] = {(char *)"{missing}", NULL};
    char longest[128] = "{", *const too_long[] = {longest, NULL};
    char unknown[CAIRN_WORD_NAME_BYTES], **all;
    bool is_shape = true;
    size_t count = 7;

    assert_int_equal(cairn_words_check(fine, known, KNOWN, &count, &is_shape, unknown), CAIRN_OK);
    assert_int_equal(count, 1);
    assert_false(is_shape);
    assert_int_equal(cairn_words_check(shaped, known, KNOWN, &count, &is_shape, unknown), CAIRN_OK);
    assert_int_equal(count, 2);
    assert_true(is_shape);
    assert_int_equal(cairn_words_check(wrong, known, KNOWN, &count, &is_shape, unknown),
                     CAIRN_NOT_FOUND);
    assert_string_equal(unknown, "nods");
    memset(longest + 1, 'a', 100);
    longest[101] = '}';
    assert_int_equal(cairn_words_check(too_long, known, KNOWN, &count, &is_shape, unknown),
                     CAIRN_NOT_FOUND);
    assert_int_equal(strlen(unknown), CAIRN_WORD_NAME_BYTES - 1);
    assert_int_equal(cairn_words_fill(wrong, known, KNOWN, &all), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_words_fill(empty, known, KNOWN, &all), CAIRN_NOT_FOUND);
}

static void
test_a_word_is_used(void **state)
{
    char *const words[] = {"--pp={pp}", "{{dp}}", "${tp}", "x", NULL};

    assert_true(cairn_words_use(words, "pp"));
    assert_false(cairn_words_use(words, "p"));
    assert_false(cairn_words_use(words, "dp")); /* the word itself */
    assert_false(cairn_words_use(words, "tp")); /* a shell's */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_becomes_of_a_word),
        cmocka_unit_test(test_what_is_not_known_is_named),
        cmocka_unit_test(test_a_word_is_used),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
