/* tests/unit/base/test_wire.c - the bounded reader and writer, at every length. */
#include "base/wire.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

/* One of everything, as the writer must lay it out. */
static const uint8_t packed[] = {
    0x12,                                           /* u8 */
    0x34, 0x12,                                     /* u16 */
    0x78, 0x56, 0x34, 0x12,                         /* u32 */
    0xf0, 0xde, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, /* u64 */
    3,    0,    0,    0,    'a',  'b',  'c',        /* string */
    0,    0,    0,    0,                            /* empty string */
    9,    8,    7,                                  /* bytes */
};

static void
write_all(struct cairn_writer *writer)
{
    static const uint8_t bytes[] = {9, 8, 7};

    cairn_write_u8(writer, 0x12);
    cairn_write_u16(writer, 0x1234);
    cairn_write_u32(writer, 0x12345678);
    cairn_write_u64(writer, UINT64_C(0x123456789abcdef0));
    cairn_write_string(writer, "abc");
    cairn_write_string(writer, "");
    cairn_write_bytes(writer, bytes, sizeof bytes);
    cairn_write_bytes(writer, NULL, 0);
}

/* A copy whose end the address sanitizer guards. */
static uint8_t *
copy_of(size_t bytes_len)
{
    uint8_t *copy = malloc(bytes_len ? bytes_len : 1);

    assert_non_null(copy);
    memcpy(copy, packed, bytes_len);
    return copy;
}

static void
writer_packs_little_endian(void **state)
{
    uint8_t bytes[sizeof packed + 5];
    struct cairn_writer writer;

    memset(bytes, 0xee, sizeof bytes);
    cairn_writer_init(&writer, bytes, sizeof packed);
    write_all(&writer);
    assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
    assert_int_equal(writer.used_bytes, sizeof packed);
    assert_memory_equal(bytes, packed, sizeof packed);
    assert_int_equal(bytes[sizeof packed], 0xee);
}

static void
writer_without_bytes_measures(void **state)
{
    struct cairn_writer writer;

    cairn_writer_init(&writer, NULL, SIZE_MAX);
    write_all(&writer);
    assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
    assert_int_equal(writer.used_bytes, sizeof packed);
}

static void
writer_never_passes_its_limit(void **state)
{
    for (size_t limit = 0; limit < sizeof packed; limit++) {
        uint8_t *bytes = malloc(limit ? limit : 1);
        struct cairn_writer writer;

        cairn_writer_init(&writer, bytes, limit);
        write_all(&writer);
        assert_int_equal(cairn_writer_done(&writer), CAIRN_FULL);
        assert_true(writer.used_bytes <= limit);
        assert_memory_equal(bytes, packed, writer.used_bytes);
        cairn_write_u8(&writer, 1); /* would fit, but the error sticks */
        assert_int_equal(cairn_writer_done(&writer), CAIRN_FULL);
        free(bytes);
    }
}

/* Reads what write_all has written; the number of fields that were right. */
static int
read_all(struct cairn_reader *reader)
{
    char text[4] = "zzz", empty[1] = "z";
    uint8_t bytes[3] = {1, 1, 1};
    int right = 0;

    right += cairn_read_u8(reader) == 0x12;
    right += cairn_read_u16(reader) == 0x1234;
    right += cairn_read_u32(reader) == 0x12345678;
    right += cairn_read_u64(reader) == UINT64_C(0x123456789abcdef0);
    cairn_read_string(reader, text, sizeof text);
    right += strcmp(text, "abc") == 0;
    cairn_read_string(reader, empty, sizeof empty);
    right += empty[0] == '\0' && !reader->failed;
    cairn_read_bytes(reader, bytes, sizeof bytes);
    right += memcmp(bytes, packed + sizeof packed - 3, 3) == 0;
    if (reader->failed)
        assert_memory_equal(bytes, "\0\0\0", 3); /* never what was on the stack */
    return right;
}

static void
reader_reads_what_the_writer_wrote(void **state)
{
    struct cairn_reader reader;

    cairn_reader_init(&reader, packed, sizeof packed);
    assert_int_equal(cairn_reader_left(&reader), sizeof packed);
    assert_int_equal(read_all(&reader), 7);
    assert_int_equal(cairn_reader_left(&reader), 0);
    assert_int_equal(cairn_reader_done(&reader), CAIRN_OK);
}

static void
every_truncation_is_found_and_sticks(void **state)
{
    for (size_t length = 0; length < sizeof packed; length++) {
        uint8_t *bytes = copy_of(length);
        struct cairn_reader reader;

        cairn_reader_init(&reader, bytes, length);
        assert_true(read_all(&reader) < 7);
        assert_int_equal(cairn_reader_done(&reader), CAIRN_CORRUPT);
        assert_int_equal(cairn_reader_left(&reader), 0);
        assert_int_equal(cairn_read_u8(&reader), 0);
        assert_null(cairn_read_borrow(&reader, 0));
        free(bytes);
    }
}

static void
what_is_left_over_is_corrupt(void **state)
{
    struct cairn_reader reader;

    cairn_reader_init(&reader, packed, sizeof packed);
    assert_int_equal(cairn_read_u8(&reader), 0x12);
    assert_int_equal(cairn_reader_done(&reader), CAIRN_CORRUPT);
    cairn_reader_init(&reader, NULL, 0);
    assert_int_equal(cairn_reader_left(&reader), 0);
    assert_int_equal(cairn_reader_done(&reader), CAIRN_OK);
    assert_int_equal(cairn_read_u64(&reader), 0);
    assert_int_equal(cairn_reader_done(&reader), CAIRN_CORRUPT);
}

static void
borrowing_points_into_the_input(void **state)
{
    struct cairn_reader reader;

    cairn_reader_init(&reader, packed, sizeof packed);
    assert_ptr_equal(cairn_read_borrow(&reader, 3), packed);
    assert_ptr_equal(cairn_read_borrow(&reader, 4), packed + 3);
    assert_null(cairn_read_borrow(&reader, SIZE_MAX));
    assert_true(reader.failed);
}

static void
strings_must_fit_and_hold_no_nul(void **state)
{
    static const uint8_t huge[] = {0xff, 0xff, 0xff, 0xff, 'a'};
    static const uint8_t nul[] = {3, 0, 0, 0, 'a', 0, 'c'};
    static const uint8_t whole[] = {3, 0, 0, 0, 'a', 'b', 'c'};
    struct cairn_reader reader;
    char text[4];

    memset(text, 'z', sizeof text);
    cairn_reader_init(&reader, huge, sizeof huge);
    cairn_read_string(&reader, text, sizeof text);
    assert_true(reader.failed);
    assert_string_equal(text, "");
    memset(text, 'z', sizeof text);
    cairn_reader_init(&reader, nul, sizeof nul);
    cairn_read_string(&reader, text, sizeof text);
    assert_true(reader.failed);
    assert_string_equal(text, "");
    cairn_reader_init(&reader, whole, sizeof whole);
    cairn_read_string(&reader, text, 3); /* its NUL has no room */
    assert_true(reader.failed);
    assert_string_equal(text, "");
    cairn_reader_init(&reader, whole, sizeof whole);
    cairn_read_string(&reader, text, 4);
    assert_int_equal(cairn_reader_done(&reader), CAIRN_OK);
    assert_string_equal(text, "abc");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writer_packs_little_endian),
        cmocka_unit_test(writer_without_bytes_measures),
        cmocka_unit_test(writer_never_passes_its_limit),
        cmocka_unit_test(reader_reads_what_the_writer_wrote),
        cmocka_unit_test(every_truncation_is_found_and_sticks),
        cmocka_unit_test(what_is_left_over_is_corrupt),
        cmocka_unit_test(borrowing_points_into_the_input),
        cmocka_unit_test(strings_must_fit_and_hold_no_nul),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
