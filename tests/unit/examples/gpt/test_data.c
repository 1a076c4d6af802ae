/*
 * tests/unit/examples/gpt/test_data.c - the text, and which of its bytes a micro-batch gets.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/gpt/data.h"
#include "tests/support/cmocka.h"

enum { CONTEXT = 16, SEQUENCES = 5, TEXT = 300 };

static char path[64];

static void
write_text(size_t count)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    for (size_t i = 0; i < count; i++)
        assert_int_not_equal(fputc((int)(i % 251), file), EOF); /* a byte tells its place */
    assert_int_equal(fclose(file), 0);
}

static int
set_up(void **state)
{
    int fd;

    snprintf(path, sizeof path, "/tmp/gpt-data-XXXXXX");
    fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int
tear_down(void **state)
{
    return unlink(path);
}

static void
test_windows_are_of_the_text_and_repeat(void **state)
{
    struct gpt_data data;
    uint8_t tokens[SEQUENCES * (CONTEXT + 1)];
    uint8_t again[sizeof tokens];
    bool first = false;
    bool last = false;

    write_text(TEXT);
    assert_int_equal(gpt_data_init(path, CONTEXT, &data), CAIRN_OK);
    for (uint64_t step = 0; step < 400; step++) {
        gpt_data_draw(&data, 7, step, 3, SEQUENCES, CONTEXT, tokens);
        for (size_t s = 0; s < SEQUENCES; s++) {
            const uint8_t *window = tokens + s * (CONTEXT + 1);

            for (size_t t = 1; t <= CONTEXT; t++)
                assert_int_equal(window[t], (window[t - 1] + 1) % 251);
            first = first || memcmp(window, data.bytes, CONTEXT + 1) == 0;
            last = last || window[CONTEXT] == data.bytes[TEXT - 1];
        }
    }
    assert_true(first && last); /* the ends are drawn too */
    gpt_data_draw(&data, 7, 9, 1, SEQUENCES, CONTEXT, tokens);
    gpt_data_draw(&data, 7, 9, 1, SEQUENCES, CONTEXT, again);
    assert_memory_equal(tokens, again, sizeof tokens);
    gpt_data_draw(&data, 8, 9, 1, SEQUENCES, CONTEXT, again);
    assert_memory_not_equal(tokens, again, sizeof tokens);
    gpt_data_draw(&data, 7, 10, 1, SEQUENCES, CONTEXT, again);
    assert_memory_not_equal(tokens, again, sizeof tokens);
    gpt_data_draw(&data, 7, 9, 2, SEQUENCES, CONTEXT, again);
    assert_memory_not_equal(tokens, again, sizeof tokens);
    gpt_data_fini(&data);
}

static void
test_shortest_text(void **state)
{
    struct gpt_data data;
    uint8_t tokens[CONTEXT + 1];

    write_text(CONTEXT);
    assert_int_equal(gpt_data_init(path, CONTEXT, &data), CAIRN_CORRUPT);
    write_text(CONTEXT + 1);
    assert_int_equal(gpt_data_init(path, CONTEXT, &data), CAIRN_OK);
    gpt_data_draw(&data, 1, 1, 0, 1, CONTEXT, tokens);
    assert_memory_equal(tokens, data.bytes, sizeof tokens);
    gpt_data_fini(&data);
}

static void
test_unusable_texts(void **state)
{
    struct gpt_data data;

    write_text(0);
    assert_int_equal(gpt_data_init(path, CONTEXT, &data), CAIRN_CORRUPT);
    assert_int_equal(gpt_data_init("/tmp", CONTEXT, &data), CAIRN_CORRUPT);
    assert_int_equal(gpt_data_init("/nowhere/at/all", CONTEXT, &data), CAIRN_IO);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gpt_data_init(path, CONTEXT, &data), CAIRN_CORRUPT); /* and does not hang */
}

static void
test_fingerprint_is_of_the_bytes(void **state)
{
    struct gpt_data one;
    struct gpt_data other;

    write_text(TEXT);
    assert_int_equal(gpt_data_init(path, CONTEXT, &one), CAIRN_OK);
    assert_int_equal(gpt_data_init(path, CONTEXT, &other), CAIRN_OK);
    assert_true(one.fingerprint == other.fingerprint);
    gpt_data_fini(&other);
    write_text(TEXT + 1);
    assert_int_equal(gpt_data_init(path, CONTEXT, &other), CAIRN_OK);
    assert_true(one.fingerprint != other.fingerprint);
    gpt_data_fini(&other);
    gpt_data_fini(&one);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_windows_are_of_the_text_and_repeat, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shortest_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_unusable_texts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fingerprint_is_of_the_bytes, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
