/* tests/unit/base/test_err.c - texts of errors and data types, and the log. */
#include "base/log.h"
#include "cairn/err.h"
#include "cairn/types.h"
#include "tests/support/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    cairn_err err;
    int value;
    const char *name;
} errors[] = {
    {CAIRN_OK, 0, "CAIRN_OK"},
    {CAIRN_AGAIN, 1, "CAIRN_AGAIN"},
    {CAIRN_INVAL, 2, "CAIRN_INVAL"},
    {CAIRN_NOMEM, 3, "CAIRN_NOMEM"},
    {CAIRN_IO, 4, "CAIRN_IO"},
    {CAIRN_FULL, 5, "CAIRN_FULL"},
    {CAIRN_CORRUPT, 6, "CAIRN_CORRUPT"},
    {CAIRN_LOST, 7, "CAIRN_LOST"},
    {CAIRN_NOT_FOUND, 8, "CAIRN_NOT_FOUND"},
    {CAIRN_PEER, 9, "CAIRN_PEER"},
    {CAIRN_TIMEOUT, 10, "CAIRN_TIMEOUT"},
    {CAIRN_STALE, 11, "CAIRN_STALE"},
    {CAIRN_DENIED, 12, "CAIRN_DENIED"},
    {CAIRN_VERSION, 13, "CAIRN_VERSION"},
    {CAIRN_DEVICE, 14, "CAIRN_DEVICE"},
    {CAIRN_CONFIG, 15, "CAIRN_CONFIG"},
    {CAIRN_INTERNAL, 16, "CAIRN_INTERNAL"},
};

enum { ERRORS = sizeof errors / sizeof errors[0] };

/* The numbers are the C API and cross process boundaries: they never change. */
static void
errors_keep_their_numbers_and_have_texts(void **state)
{
    for (size_t i = 0; i < ERRORS; i++) {
        const char *text = cairn_err_text(errors[i].err);

        assert_int_equal(errors[i].err, errors[i].value);
        assert_string_equal(cairn_err_name(errors[i].err), errors[i].name);
        assert_true(strlen(text) > 3);
        assert_true(text[strlen(text) - 1] != '.');
        assert_null(strchr(text, '\n'));
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(text, cairn_err_text(errors[j].err));
    }
    assert_string_equal(cairn_err_text((cairn_err)ERRORS), "an unknown error");
    assert_string_equal(cairn_err_name((cairn_err)ERRORS), "CAIRN_?");
    assert_string_equal(cairn_err_name((cairn_err)-1), "CAIRN_?");
}

static void
dtypes_are_found_by_name_and_value(void **state)
{
    static const struct {
        enum cairn_dtype dtype;
        const char *name;
        size_t bytes;
    } dtypes[] = {
        {CAIRN_BOOL, "BOOL", 1},       {CAIRN_U8, "U8", 1},           {CAIRN_I8, "I8", 1},
        {CAIRN_F8_E5M2, "F8_E5M2", 1}, {CAIRN_F8_E4M3, "F8_E4M3", 1}, {CAIRN_I16, "I16", 2},
        {CAIRN_U16, "U16", 2},         {CAIRN_F16, "F16", 2},         {CAIRN_BF16, "BF16", 2},
        {CAIRN_I32, "I32", 4},         {CAIRN_U32, "U32", 4},         {CAIRN_F32, "F32", 4},
        {CAIRN_I64, "I64", 8},         {CAIRN_U64, "U64", 8},         {CAIRN_F64, "F64", 8},
        {CAIRN_C64, "C64", 8},
    };

    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        assert_int_equal(dtypes[i].dtype, i + 1);
        assert_int_equal(cairn_dtype_bytes(dtypes[i].dtype), dtypes[i].bytes);
        assert_string_equal(cairn_dtype_name(dtypes[i].dtype), dtypes[i].name);
        assert_int_equal(cairn_dtype_from_name(dtypes[i].name), dtypes[i].dtype);
    }
    assert_int_equal(cairn_dtype_bytes((enum cairn_dtype)0), 0);
    assert_int_equal(cairn_dtype_bytes((enum cairn_dtype)17), 0);
    assert_string_equal(cairn_dtype_name((enum cairn_dtype)17), "?");
    assert_int_equal(cairn_dtype_from_name("f32"), 0);
    assert_int_equal(cairn_dtype_from_name(""), 0);
}

static void
generations_are_ordered_by_epoch_then_step(void **state)
{
    struct cairn_generation a = {.epoch = 1, .step = 9}, b = {.epoch = 2, .step = 3};

    assert_int_equal(cairn_generation_compare(a, b), -1);
    assert_int_equal(cairn_generation_compare(b, a), 1);
    b.epoch = 1;
    assert_int_equal(cairn_generation_compare(a, b), 1);
    assert_int_equal(cairn_generation_compare(b, a), -1);
    b.step = 9;
    assert_int_equal(cairn_generation_compare(a, b), 0);
}

struct sink {
    int lines;
    enum cairn_log_level level;
    char line[2048];
};

static void
take_line(void *context, enum cairn_log_level level, const char *line)
{
    struct sink *sink = context;

    sink->lines++;
    sink->level = level;
    snprintf(sink->line, sizeof sink->line, "%s", line);
    errno = 99; /* a sink may do anything to it */
}

static void
log_keeps_levels_errno_and_its_bounds(void **state)
{
    struct sink sink = {0};
    char big[4096];

    cairn_log_setup(CAIRN_LOG_WARN, take_line, &sink);
    errno = ENOENT;
    CAIRN_LOG_AT(INFO, "test: not said");
    assert_int_equal(sink.lines, 0);
    CAIRN_LOG_AT(ERROR, "test: said key=%d: %m", 7);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(sink.lines, 1);
    assert_int_equal(sink.level, CAIRN_LOG_ERROR);
    assert_string_equal(sink.line, "test: said key=7: No such file or directory");
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\0';
    CAIRN_LOG_AT(WARN, "%s", big);
    assert_int_equal(sink.lines, 2);
    assert_int_equal(strlen(sink.line), 1023);
    CAIRN_LOG_AT(WARN, "test: name=%s", "a\nerror b\033[2J\x7f\xc3\xa4");
    assert_string_equal(sink.line, "test: name=a?error b?[2J?\xc3\xa4");
    cairn_log_setup(CAIRN_LOG_INFO, NULL, NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_keep_their_numbers_and_have_texts),
        cmocka_unit_test(dtypes_are_found_by_name_and_value),
        cmocka_unit_test(generations_are_ordered_by_epoch_then_step),
        cmocka_unit_test(log_keeps_levels_errno_and_its_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
