/* tests/unit/tools/test_common.c - times, generations, paths, exit codes, colour and
 * progress. */
#include "tools/common.h"

#include "base/clock.h"
#include "tools/verb.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
shows_durations(void **state)
{
    static const struct {
        uint64_t ns;
        const char *shown;
    } cases[] = {{0, "0 ns"},
                 {850, "850 ns"},
                 {12500, "12.5 us"},
                 {3200000, "3.20 ms"},
                 {250 * CAIRN_NS_PER_MS, "250.0 ms"},
                 {4100 * CAIRN_NS_PER_MS, "4.1 s"},
                 {125 * CAIRN_NS_PER_S, "2 min 5 s"},
                 {(3 * 3600 + 240) * CAIRN_NS_PER_S, "3 h 4 min"},
                 {(2 * 86400 + 3 * 3600) * CAIRN_NS_PER_S, "2 d 3 h"}};
    char out[CAIRN_SHOWN_BYTES];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(cairn_show_duration(cases[i].ns, out), cases[i].shown);
    assert_true(strlen(cairn_show_duration(UINT64_MAX, out)) < CAIRN_SHOWN_BYTES);
}

static void
parses_generations(void **state)
{
    static const char *const wrong[] = {"",      "1",    "1:",    ":1",
                                        "1:2:3", "1:2 ", " 1:2",  "-1:2",
                                        "1:-2",  "a:b",  "1:0x2", "99999999999999999999:1"};
    struct cairn_generation_id out = {.epoch = 7, .step = 7};

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(cairn_generation_parse(wrong[i], &out));
    assert_int_equal(out.epoch, 7); /* untouched */
    assert_true(cairn_generation_parse("3:18446744073709551615", &out));
    assert_int_equal(out.epoch, 3);
    assert_true(out.step == UINT64_MAX);
}

static void
parses_output(void **state)
{
    bool json;

    assert_true(cairn_output_parse(NULL, &json) && !json);
    assert_true(cairn_output_parse("table", &json) && !json);
    assert_true(cairn_output_parse("json", &json) && json);
    assert_false(cairn_output_parse("JSON", &json));
    assert_false(cairn_output_parse("", &json));
}

static void
maps_every_error(void **state)
{
    static const struct {
        cairn_err err;
        int exit_code;
    } cases[] = {{CAIRN_OK, 0},       {CAIRN_AGAIN, 75},   {CAIRN_STALE, 75},  {CAIRN_LOST, 4},
                 {CAIRN_PEER, 69},    {CAIRN_TIMEOUT, 69}, {CAIRN_IO, 74},     {CAIRN_FULL, 74},
                 {CAIRN_CORRUPT, 65}, {CAIRN_DENIED, 77},  {CAIRN_CONFIG, 78}, {CAIRN_NOMEM, 1},
                 {CAIRN_INTERNAL, 1}, {(cairn_err)99, 1}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(cairn_exit_code(cases[i].err), cases[i].exit_code);
}

static void
makes_paths_absolute(void **state)
{
    char here[4096], out[4200], small[8];

    assert_non_null(getcwd(here, sizeof here));
    assert_true(cairn_absolute_path("/a/b", out, sizeof out));
    assert_string_equal(out, "/a/b");
    assert_true(cairn_absolute_path("x", out, sizeof out));
    assert_int_equal(strncmp(out, here, strlen(here)), 0);
    assert_string_equal(out + strlen(here), "/x");
    assert_false(cairn_absolute_path("", out, sizeof out));
    assert_false(cairn_absolute_path("/longer/than/that", small, sizeof small));
}

static void
keeps_colour_from_files(void **state)
{
    FILE *file = tmpfile();
    char text[16] = "";

    assert_non_null(file);
    cairn_print_coloured(file, "31", "red");
    rewind(file);
    assert_non_null(fgets(text, sizeof text, file));
    assert_string_equal(text, "red");
    fclose(file);
}

static void
says_each_tenth_once(void **state)
{
    struct cairn_progress progress;
    FILE *file = tmpfile();
    int keep = dup(2), lines = 0;
    char text[128];

    assert_non_null(file);
    dup2(fileno(file), 2);
    cairn_progress_start(&progress, "copy", 1000, 0);
    for (uint64_t done = 0; done <= 1100; done += 10) /* past the end too */
        cairn_progress_show(&progress, done, done * CAIRN_NS_PER_MS);
    cairn_progress_stop(&progress);
    dup2(keep, 2);
    close(keep);
    rewind(file);
    while (fgets(text, sizeof text, file))
        if (lines++ == 0)
            assert_string_equal(text, "copy: 10 % after 100.0 ms\n");
    assert_int_equal(lines, 10);
    assert_string_equal(text, "copy: 100 % after 1.0 s\n");
    fclose(file);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shows_durations),      cmocka_unit_test(parses_generations),
        cmocka_unit_test(parses_output),        cmocka_unit_test(maps_every_error),
        cmocka_unit_test(makes_paths_absolute), cmocka_unit_test(keeps_colour_from_files),
        cmocka_unit_test(says_each_tenth_once)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
