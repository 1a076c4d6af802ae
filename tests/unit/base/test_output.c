/* tests/unit/base/test_output.c - what the filter lets through, whole and cut into pieces. */
#include <string.h>

#include "base/output.h"
#include "tests/support/cmocka.h"

enum { TEXT_BYTES_MAX = 256 };

static const struct {
    const char *text, *expected;
} cases[] = {
    {"", ""},
    {"plain text\n\twith tab", "plain text\n\twith tab"},
    {"\033[2J\a\b\r", "\\u001b[2J\\u0007\\u0008\\u000d"},
    {"delete \x7f", "delete \\u007f"},
    {"C1 \xc2\x9b[31m \xc2\x80 \xc2\x9f", "C1 \\u009b[31m \\u0080 \\u009f"},
    {"\xc2\xa0\xc3\xa9", "\xc2\xa0\xc3\xa9"},
    {"raw \x9b[31m", "raw ?[31m"},
    {"\xe2\x80\xae \xe2\x80\xaa \xe2\x80\xa9", "\\u202e \\u202a \xe2\x80\xa9"},
    {"\xe2\x81\xa6\xe2\x81\xa9\xe2\x81\xa5", "\\u2066\\u2069\xe2\x81\xa5"},
    {"\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\x8d", "\\u200e\\u200f\xe2\x80\x8d"},
    {"\xd8\x9c \xd8\x9b", "\\u061c \xd8\x9b"},
    {"\xe2\x96\x88 \xf0\x9f\x98\x80", "\xe2\x96\x88 \xf0\x9f\x98\x80"},
    {"\xf0\x90\x80\xff.", "???\?."},
    {"\xe2\x80.", "?\?."},
    {"\xf8\xc0\xaf", "???"},
};

/* The text in pieces of `piece` bytes. */
static void
check(const char *text, const char *expected, size_t piece)
{
    struct cairn_output_held held = {"", 0};
    char out[TEXT_BYTES_MAX * CAIRN_OUTPUT_GROWTH] = "";
    size_t used = 0, left = strlen(text);

    for (const char *at = text; left > 0;) {
        size_t bytes = piece < left ? piece : left;

        used += cairn_output_filter(&held, at, bytes, out + used);
        at += bytes;
        left -= bytes;
    }
    out[used] = '\0';
    assert_string_equal(out, expected);
}

static void
test_filter(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece <= TEXT_BYTES_MAX; piece++)
            check(cases[i].text, cases[i].expected, piece);
}

static void
test_begin_is_held(void **state)
{
    struct cairn_output_held held = {"", 0};
    char out[64];

    assert_int_equal(cairn_output_filter(&held, "a\xe2\x80", 3, out), 1);
    assert_int_equal(held.count, 2);
    assert_int_equal(cairn_output_filter(&held, "\xae", 1, out), 6);
    assert_memory_equal(out, "\\u202e", 6);
    assert_int_equal(held.count, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filter),
        cmocka_unit_test(test_begin_is_held),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
