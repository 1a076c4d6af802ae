/* tests/unit/tools/convert/core/test_numbers.c - numbers in names and in notes of files that nobody
 * vouches for. */
#include "tools/convert/formats.h"
#include "tools/convert/core/numbers.h"

#include "tools/convert/safetensors/safetensors.h"

#include "base/file.h"
#include "base/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/folder.h"
#include "tests/support/quiet_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int
set_up(void **state)
{
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    return root_make("numbers");
}

static void
digits_alone_are_a_number(void **state)
{
    static const char *const wrong[] = {"",
                                        "-1",
                                        "+1",
                                        " 1",
                                        "1 ",
                                        "01",
                                        "00",
                                        "0x1",
                                        "1e3",
                                        "1.",
                                        "a",
                                        "101",
                                        "\n1",
                                        "1,",
                                        "١",
                                        "18446744073709551616",
                                        "340282366920938463463374607431768211456"};
    uint64_t number = 7;
    uint32_t rank = 0;
    const char *at = "rank12_3", *other = "rank_1";

    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_false(cairn_number_read(wrong[i], 100, &number));
        assert_int_equal(number, 7);
    }
    assert_true(cairn_number_read("0", 0, &number) && number == 0);
    assert_true(cairn_number_read("100", 100, &number) && number == 100);
    assert_true(cairn_number_read("18446744073709551615", UINT64_MAX, &number) &&
                number == UINT64_MAX);
    assert_true(cairn_number_after(&at, "rank", &rank) && rank == 12 &&
                cairn_number_after(&at, "_", &rank) && rank == 3);
    assert_string_equal(at, "");
    assert_false(cairn_number_after(&other, "rank", &rank));
    assert_string_equal(other, "rank_1");
}

/* A file with one opaque note of these bytes. */
static void
write_note(const char *path, const char *note, size_t note_bytes)
{
    char header[256];
    uint8_t length[8] = {0};
    int fd = -1, bytes = snprintf(header, sizeof(header),
                                  "{\"__metadata__\":{\"cairn_kinds\":\"q1\"},\"a/"
                                  "note\":{\"dtype\":\"U8\",\"shape\":[%zu],"
                                  "\"data_offsets\":[0,%zu]}}",
                                  note_bytes, note_bytes);

    length[0] = (uint8_t)bytes; /* below 256 */
    (void)unlink(path);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_CREATE, &fd), CAIRN_OK);
    assert_int_equal(cairn_file_write_at(fd, 0, length, 8), CAIRN_OK);
    assert_int_equal(cairn_file_write_at(fd, 8, header, (size_t)bytes), CAIRN_OK);
    assert_int_equal(cairn_file_write_at(fd, 8 + (uint64_t)bytes, note, note_bytes), CAIRN_OK);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
}

static void
notes_are_numbers_or_refused_by_name(void **state)
{
    static const struct {
        const char *note;
        size_t count;
        bool good;
    } notes[] = {{"12", 1, true},
                 {"0", 1, true},
                 {"1000", 1, true},
                 {"3 4", 2, true},
                 {"1001", 1, false},
                 {"-1", 1, false},
                 {"12\n", 1, false},
                 {"3 4", 1, false},
                 {"3", 2, false},
                 {"3  4", 2, false},
                 {"3 4 5", 2, false},
                 {" 3", 1, false},
                 {"3.0", 1, false},
                 {"", 1, false},
                 {"0x3", 1, false},
                 {"\x1b[2J", 1, false},
                 {"99999999999999999999", 1, false},
                 {"1000000000000000000000000000000000000000000000000000000000000000000", 1, false}};
    char path[96];

    (void)snprintf(path, sizeof(path), "%s/notes.safetensors", root);
    for (size_t i = 0; i < sizeof(notes) / sizeof(*notes); i++) {
        struct cairn_complaint complaint = {""};
        struct cairn_checkpoint checkpoint;
        uint64_t numbers[2] = {0, 0};
        cairn_err err;

        write_note(path, notes[i].note, strlen(notes[i].note));
        assert_int_equal(cairn_checkpoint_open(path, cairn_format_find("safetensors"), 0,
                                               &checkpoint, &complaint),
                         CAIRN_OK);
        assert_int_equal(cairn_numbers_load(&checkpoint, "no/note", 1000, numbers, 1),
                         CAIRN_NOT_FOUND);
        err = cairn_numbers_load(&checkpoint, "a/note", 1000, numbers, notes[i].count);
        if (err != (notes[i].good ? CAIRN_OK : CAIRN_CORRUPT))
            fail_msg("\"%s\": %s", notes[i].note, complaint.text);
        if (err) {
            assert_non_null(strstr(complaint.text, path));
            assert_non_null(strstr(complaint.text, "a/note"));
            assert_null(strchr(complaint.text, '\x1b'));
        }
        cairn_checkpoint_close(&checkpoint);
    }
}

static void
a_step_is_a_number(void **state)
{
    static const struct {
        const char *step;
        bool good;
    } steps[] = {{"\"12\"", true},
                 {"\"-1\"", false},
                 {"\"12x\"", false},
                 {"\"99999999999999999999\"", false},
                 {"\"\"", false},
                 {"\" 1\"", false},
                 {"12", false},
                 {"\"18446744073709551615\"", false},
                 {"\"000000000000000000000000000001\"", false}};
    char header[256];

    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        struct cairn_complaint complaint = {""};
        struct cairn_safetensors parsed;
        int bytes = snprintf(header, sizeof(header),
                             "{\"__metadata__\":{\"cairn_step\":%s},\"a\":{\"dtype\":\"U8\","
                             "\"shape\":[1],\"data_offsets\":[0,1]}}",
                             steps[i].step);
        cairn_err err = cairn_safetensors_parse("some.safetensors", header, (size_t)bytes, 1,
                                                &parsed, &complaint);

        if (err != (steps[i].good ? CAIRN_OK : CAIRN_CORRUPT))
            fail_msg("%s: %s", steps[i].step, complaint.text);
        if (err) {
            assert_non_null(strstr(complaint.text, "some.safetensors"));
            assert_non_null(strstr(complaint.text, "cairn_step"));
            continue;
        }
        assert_true(parsed.step_known && parsed.step == 12);
        cairn_safetensors_fini(&parsed);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits_alone_are_a_number),
        cmocka_unit_test(notes_are_numbers_or_refused_by_name),
        cmocka_unit_test(a_step_is_a_number),
    };

    return cmocka_run_group_tests(tests, set_up, root_remove);
}
