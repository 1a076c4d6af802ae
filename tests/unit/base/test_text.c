/* tests/unit/base/test_text.c - what is plain text, and what becomes of what is not. */
#include "base/text.h"

#include "base/json.h"
#include "tests/support/cmocka.h"

#include <string.h>

static void
test_plain(void **state)
{
    static const char *const plain[] = {
        "", "layer.0.weight", "\xc3\xbc", "\xe2\x82\xac", "\xf0\x9f\x9a\x80", "\xc2\xa0"};
    static const char *const not_plain[] = {
        "\n",   "a\x1b[31m", "\x7f",         "\xc2\x9b",         "\xc2\x80", "\xff",
        "\xc3", "\xc0\x80",  "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\xe2\x82"};

    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        assert_true(cairn_text_plain(plain[i], strlen(plain[i])));
    for (size_t i = 0; i < sizeof not_plain / sizeof *not_plain; i++)
        assert_false(cairn_text_plain(not_plain[i], strlen(not_plain[i])));
    assert_false(cairn_text_plain("a\0b", 3));
}

static void
test_clean(void **state)
{
    char out[8];

    cairn_text_clean(out, sizeof out, NULL);
    assert_string_equal(out, "");
    cairn_text_clean(out, sizeof out, "\x1b[2J\n");
    assert_string_equal(out, "?[2J?");
    cairn_text_clean(out, sizeof out, "\xff\xc3\xbc\xc2\x9b");
    assert_string_equal(out, "?\xc3\xbc??");
    cairn_text_clean(out, sizeof out, "1234567");
    assert_string_equal(out, "1234567");
    cairn_text_clean(out, sizeof out, "12345678");
    assert_string_equal(out, "1234567");
    cairn_text_clean(out, sizeof out, "123456\xc3\xbc"); /* half a character is none */
    assert_string_equal(out, "123456");
    cairn_text_clean(out, 1, "x");
    assert_string_equal(out, "");
}

/* Any two bytes are plain once cleaned, and what was plain stays as it is. */
static void
test_every_pair(void **state)
{
    for (int first = 1; first < 256; first++)
        for (int second = 1; second < 256; second++) {
            char text[3] = {(char)first, (char)second, 0}, out[3];

            cairn_text_clean(out, sizeof out, text);
            assert_true(cairn_text_plain(out, strlen(out)));
            if (cairn_text_plain(text, 2))
                assert_string_equal(out, text);
            assert_true(cairn_utf8_valid(out, strlen(out)));
        }
}

static void
shows_bytes(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *shown;
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1.00 KiB"},
                 {1024 * 1024 - 1, "1.00 MiB"}, /* never "1024 KiB" */
                 {UINT64_C(12) << 20, "12.0 MiB"},
                 {UINT64_C(640) << 10, "640 KiB"},
                 {UINT64_C(3) << 30, "3.00 GiB"},
                 {UINT64_C(5) << 40, "5.00 TiB"},
                 {UINT64_MAX, "16384 PiB"}};
    char out[CAIRN_SHOWN_BYTES];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(cairn_show_bytes(cases[i].bytes, out), cases[i].shown);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_every_pair),
        cmocka_unit_test(shows_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
