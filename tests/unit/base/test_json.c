/* tests/unit/base/test_json.c - the JSON writer, and the reader on good and on hostile text. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tests/support/cmocka.h"

static void
expect(struct cairn_json_writer *writer, const char *expected)
{
    char *text = NULL;
    size_t bytes = 0;

    assert_int_equal(cairn_json_writer_done(writer, &text, &bytes), CAIRN_OK);
    assert_string_equal(text, expected);
    assert_int_equal(bytes, strlen(expected));
    free(text);
}

static void
test_writer(void **state)
{
    static const uint64_t values[] = {0, 0x0123456789abcdefull};
    struct cairn_json_writer writer;

    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "a\"b", UINT64_MAX);
    cairn_json_put_array(&writer, "list");
    cairn_json_write_i64(&writer, INT64_MIN);
    cairn_json_write_bool(&writer, true);
    cairn_json_write_bool(&writer, false);
    cairn_json_write_null(&writer);
    cairn_json_write_array_begin(&writer);
    cairn_json_write_array_end(&writer);
    cairn_json_write_line(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_write_object_end(&writer);
    cairn_json_write_array_end(&writer);
    cairn_json_write_key(&writer, "crc");
    cairn_json_write_hex64(&writer, values, 2);
    cairn_json_write_object_end(&writer);
    expect(&writer,
           "{\"a\\\"b\":18446744073709551615,\"list\":[-9223372036854775808,true,false,null,[],\n"
           "{}],\"crc\":\"00000000000000000123456789abcdef\"}");
    cairn_json_write_string(
        &writer, "\x01\n\t\\ \xc3\xa4 \xf0\x9f\x98\x80 \x7f \xff \xc0\xaf \xed\xa0\x80 \xe2\x82");
    expect(&writer, "\"\\u0001\\u000a\\u0009\\\\ \xc3\xa4 \xf0\x9f\x98\x80 \\u007f \xef\xbf\xbd "
                    "\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd "
                    "\xef\xbf\xbd\xef\xbf\xbd\"");
}

static void
test_doubles(void **state)
{
    static const double values[] = {
        0.0, -0.0, 1.0, 0.1, 1.0 / 3, 1e300, DBL_MIN, DBL_MAX, 5e-324, 123456789012345678.0, 2.5};

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        struct cairn_json_writer writer;
        char *text = NULL;
        size_t bytes;
        double back;

        cairn_json_writer_init(&writer);
        cairn_json_write_double(&writer, values[i]);
        assert_int_equal(cairn_json_writer_done(&writer, &text, &bytes), CAIRN_OK);
        back = strtod(text, NULL);
        assert_memory_equal(&back, &values[i], sizeof(back));
        free(text);
        cairn_json_write_double(&writer, NAN);
        expect(&writer, "null");
        cairn_json_write_double(&writer, -HUGE_VAL);
        expect(&writer, "null");
        cairn_json_write_double(&writer, 0.1);
        expect(&writer, "0.1");
    }
}

static void
test_writer_misuse(void **state)
{
    struct cairn_json_writer writer;
    char *text = NULL;
    size_t bytes = 0;

    cairn_json_writer_init(&writer);
    assert_int_equal(cairn_json_writer_done(&writer, &text, &bytes), CAIRN_INTERNAL);
    cairn_json_write_object_begin(&writer);
    assert_int_equal(cairn_json_writer_done(&writer, &text, &bytes), CAIRN_INTERNAL);
    cairn_json_write_array_end(&writer);
    assert_int_equal(cairn_json_writer_done(&writer, &text, &bytes), CAIRN_INTERNAL);
    assert_null(text);
    cairn_json_writer_fini(&writer);
}

static void
test_reader(void **state)
{
    static const char text[] = " {\"n\" : 18446744073709551615 , "
                               "\"s\":\"\\u00e4\\ud83d\\ude00\\\"\\/\\n\",\"a\":[ 1,2 ,3],"
                               "\"e\":[],\"o\":{},\"h\":\"00000000000000ff0123456789abcdef\"}\n";
    struct cairn_json_reader reader;
    char key[8], string[32];
    uint64_t sum = 0, values[2] = {0};
    int keys = 0;

    cairn_json_reader_init(&reader, text, sizeof(text) - 1);
    cairn_json_object_begin(&reader);
    while (cairn_json_object_next(&reader, key, sizeof(key))) {
        keys++;
        if (strcmp(key, "n") == 0) {
            assert_true(cairn_json_read_u64(&reader, UINT64_MAX) == UINT64_MAX);
        } else if (strcmp(key, "s") == 0) {
            cairn_json_read_string(&reader, string, sizeof(string));
            assert_string_equal(string, "\xc3\xa4\xf0\x9f\x98\x80\"/\n");
        } else if (strcmp(key, "a") == 0 || strcmp(key, "e") == 0) {
            cairn_json_array_begin(&reader);
            while (cairn_json_array_next(&reader))
                sum = sum * 10 + cairn_json_read_u64(&reader, 9);
        } else if (strcmp(key, "o") == 0) {
            cairn_json_object_begin(&reader);
            assert_false(cairn_json_object_next(&reader, key, sizeof(key)));
        } else {
            assert_int_equal(cairn_json_peek_string_bytes(&reader), 32);
            cairn_json_read_hex64(&reader, values, 2);
        }
    }
    assert_int_equal(cairn_json_reader_done(&reader), CAIRN_OK);
    assert_int_equal(keys, 6);
    assert_int_equal(sum, 123);
    assert_int_equal(values[0], 255);
    assert_true(values[1] == 0x0123456789abcdefull);
}

/* Reads {"k": [numbers]} and nothing else. */
static cairn_err
read_numbers(const char *text)
{
    size_t bytes = strlen(text);
    char *copy = malloc(bytes + 1),
         key[4]; /* exactly as long, so that a read past the end is seen */
    struct cairn_json_reader reader;
    cairn_err err;

    memcpy(copy, text, bytes);
    cairn_json_reader_init(&reader, copy, bytes);
    cairn_json_object_begin(&reader);
    while (cairn_json_object_next(&reader, key, sizeof(key))) {
        cairn_json_array_begin(&reader);
        while (cairn_json_array_next(&reader))
            (void)cairn_json_read_u64(&reader, 1000);
    }
    err = cairn_json_reader_done(&reader);
    assert_true((err != CAIRN_OK) == (reader.why != NULL));
    free(copy);
    return err;
}

static void
test_reader_refuses(void **state)
{
    static const char *const wrong[] = {"",
                                        " ",
                                        "{",
                                        "}",
                                        "{\"k\"",
                                        "{\"k\":",
                                        "{\"k\":[",
                                        "{\"k\":[1",
                                        "{\"k\":[1]",
                                        "{\"k\":[1]}x",
                                        "{\"k\":[1]}{}",
                                        "{\"k\":[1,]}",
                                        "{\"k\":[,1]}",
                                        "{\"k\":[1 2]}",
                                        "{\"k\":[01]}",
                                        "{\"k\":[-1]}",
                                        "{\"k\":[+1]}",
                                        "{\"k\":[1.0]}",
                                        "{\"k\":[1e2]}",
                                        "{\"k\":[1001]}",
                                        "{\"k\":[18446744073709551616]}",
                                        "{\"k\":[99999999999999999999999]}",
                                        "{\"k\":[\"1\"]}",
                                        "{\"k\":[true]}",
                                        "{\"k\":[1],}",
                                        "{,\"k\":[1]}",
                                        "{k:[1]}",
                                        "{\"k\" [1]}",
                                        "{\"k\":[1]]",
                                        "{\"k\":[1}",
                                        "{\"long\":[1]}",
                                        "{\"\\u0000\":[1]}",
                                        "{\"\\x\":[1]}",
                                        "{\"\\u12\":[1]}",
                                        "{\"\\ud800\":[1]}",
                                        "{\"\\ud800\\u0041\":[1]}",
                                        "{\"\\udc00\":[1]}",
                                        "{\"\xff\":[1]}",
                                        "{\"\n\":[1]}",
                                        "[]",
                                        "nul",
                                        "{\"k\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[1"};

    assert_int_equal(read_numbers("{\"k\":[1]}"), CAIRN_OK);
    assert_int_equal(read_numbers("{}"), CAIRN_OK);
    assert_int_equal(read_numbers("{\"k\":[0,1000],\"j\":[]}"), CAIRN_OK);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (read_numbers(wrong[i]) != CAIRN_CORRUPT)
            fail_msg("accepted: %s", wrong[i]);
    }
}

static void
test_depth(void **state)
{
    static const char text[] = "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[";
    struct cairn_json_reader reader;
    int depth = 0;

    cairn_json_reader_init(&reader, text, sizeof(text) - 1);
    while (!cairn_json_reader_failed(&reader) && depth < 100) {
        cairn_json_array_begin(&reader);
        depth += cairn_json_array_next(&reader);
    }
    assert_int_equal(depth, CAIRN_JSON_DEPTH_MAX);
    assert_int_equal(cairn_json_reader_done(&reader), CAIRN_CORRUPT);
    assert_string_equal(reader.why, "nested too deep");
}

/* Any byte string that the writer writes, the reader reads back as valid UTF-8, equal where it
 * was valid. */
static void
test_round_trip(void **state)
{
    unsigned random = 7;

    for (int round = 0; round < 5000; round++) {
        struct cairn_json_writer writer;
        struct cairn_json_reader reader;
        char string[16], back[64], *text = NULL;
        size_t bytes = 0, length = (size_t)(round % 12);

        for (size_t i = 0; i < length; i++) {
            random = random * 1664525u + 1013904223u;
            string[i] = (char)((random >> 16 & 0xff) ? (random >> 16 & 0xff) : 1);
        }
        string[length] = '\0';
        cairn_json_writer_init(&writer);
        cairn_json_write_string(&writer, string);
        assert_int_equal(cairn_json_writer_done(&writer, &text, &bytes), CAIRN_OK);
        cairn_json_reader_init(&reader, text, bytes);
        cairn_json_read_string(&reader, back, sizeof(back));
        assert_int_equal(cairn_json_reader_done(&reader), CAIRN_OK);
        if (cairn_utf8_valid(string, length))
            assert_string_equal(back, string);
        free(text);
    }
}

/* Numbers as JSON writes them, and nothing else that strtod would take. */
static void
test_numbers(void **state)
{
    static const char *const bad[] = {"",      "-",   "+1",   ".5",    "1.",  "01",
                                      "1e",    "1e+", "0x10", "nan",   "NaN", "inf",
                                      "1e999", "-01", "true", "\"1\"", "1,"};
    static const char good[] = "[0, -0.5, 1e3, 2.5E-1, 123456789, null, nul]";
    struct cairn_json_reader reader;

    cairn_json_reader_init(&reader, good, sizeof(good) - 1);
    cairn_json_array_begin(&reader);
    for (int i = 0; i < 5; i++) {
        static const double expected[] = {0, -0.5, 1000, 0.25, 123456789};
        double got;

        assert_true(cairn_json_array_next(&reader));
        assert_false(cairn_json_read_null(&reader));
        got = cairn_json_read_double(&reader);
        assert_true(got >= expected[i] && got <= expected[i]);
    }
    assert_true(cairn_json_array_next(&reader) && cairn_json_read_null(&reader));
    assert_true(cairn_json_array_next(&reader) && !cairn_json_read_null(&reader));
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        cairn_json_reader_init(&reader, bad[i], strlen(bad[i]));
        (void)cairn_json_read_double(&reader);
        if (cairn_json_reader_done(&reader) != CAIRN_CORRUPT)
            fail_msg("accepted: %s", bad[i]);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_writer),
        cmocka_unit_test(test_doubles), cmocka_unit_test(test_writer_misuse),
        cmocka_unit_test(test_reader),  cmocka_unit_test(test_reader_refuses),
        cmocka_unit_test(test_depth),   cmocka_unit_test(test_round_trip),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
