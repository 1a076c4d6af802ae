/*
 * tests/unit/tools/convert/zip/test_zip.c - archives that are laid out, written and found again, at
 * any place of a file and beyond 4 GiB; and every way in which one can contradict itself.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/file.h"
#include "tools/convert/zip/format.h"
#include "tools/convert/zip/read.h"
#include "tools/convert/zip/write.h"
#include "tests/support/cmocka.h"
#include "tests/support/write_archive.h"

enum { ENTRIES = 5, ROOM = 1 << 14 };

static const size_t entry_bytes[ENTRIES] = {10, 0, 1, 64, 1000};
static struct cairn_complaint complaint;

static int
temporary_file(void)
{
    char path[] = "/tmp/cairn-zip-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(unlink(path), 0);
    return fd;
}

/* Byte b of entry i is i + b. */
static void
write_entries(int fd, uint64_t begin, uint64_t *bytes)
{
    struct cairn_zip_plan plan;

    assert_int_equal(cairn_zip_plan_init(&plan, "top"), CAIRN_OK);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        uint8_t data[1000];
        char name[16];
        uint32_t index;

        (void)snprintf(name, sizeof(name), "data/%u", i);
        for (size_t b = 0; b < entry_bytes[i]; b++)
            data[b] = (uint8_t)(i + b);
        assert_int_equal(cairn_zip_plan_add(&plan, name, entry_bytes[i], &index), CAIRN_OK);
        assert_int_equal(index, i);
        assert_int_equal(plan.entries[i].at % CAIRN_ZIP_ALIGN_BYTES, 0);
        assert_int_equal(cairn_file_write_at(fd, begin + plan.entries[i].at, data, entry_bytes[i]),
                         CAIRN_OK);
        plan.entries[i].crc32 = cairn_crc32(0, data, entry_bytes[i]);
    }
    assert_int_equal(write_zip_plan(&plan, fd, begin), CAIRN_OK);
    *bytes = cairn_zip_plan_bytes(&plan);
    cairn_zip_plan_fini(&plan);
}

static void
entries_are_found_where_they_were_put(void **state)
{
    static const uint64_t begins[] = {0, 1, 777, UINT64_C(6) << 30};

    for (size_t n = 0; n < 4; n++) {
        int fd = temporary_file();
        struct cairn_zip zip;
        uint64_t bytes;

        write_entries(fd, begins[n], &bytes);
        assert_int_equal(cairn_file_write_at(fd, begins[n] + bytes, "behind", 6), CAIRN_OK);
        assert_int_equal(cairn_zip_open(fd, "a.zip", begins[n], bytes, &zip, &complaint), CAIRN_OK);
        assert_int_equal(zip.entry_count, ENTRIES);
        assert_string_equal(zip.folder, "top/");
        assert_null(cairn_zip_find(&zip, "data/5"));
        assert_null(cairn_zip_find(&zip, ""));
        for (uint32_t i = 0; i < ENTRIES; i++) {
            const struct cairn_zip_entry *entry;
            uint8_t data[1000];
            char name[16];

            (void)snprintf(name, sizeof(name), "data/%u", i);
            entry = cairn_zip_find(&zip, name);
            assert_non_null(entry);
            assert_int_equal(entry->bytes, entry_bytes[i]);
            assert_int_equal((entry->at - begins[n]) % CAIRN_ZIP_ALIGN_BYTES, 0);
            assert_int_equal(cairn_zip_take(&zip, "a.zip", entry, data, &complaint), CAIRN_OK);
            for (size_t b = 0; b < entry_bytes[i]; b++)
                assert_int_equal(data[b], (uint8_t)(i + b));
        }
        cairn_zip_fini(&zip);
        assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    }
}

static void
damaged_data_has_another_checksum(void **state)
{
    int fd = temporary_file();
    const struct cairn_zip_entry *entry;
    struct cairn_zip zip;
    uint8_t data[1000];
    uint64_t bytes;

    write_entries(fd, 0, &bytes);
    assert_int_equal(cairn_zip_open(fd, "a.zip", 0, bytes, &zip, &complaint), CAIRN_OK);
    entry = cairn_zip_find(&zip, "data/4");
    assert_int_equal(cairn_file_write_at(fd, entry->at + 500, "x", 1), CAIRN_OK);
    cairn_zip_fini(&zip);
    assert_int_equal(cairn_zip_open(fd, "a.zip", 0, bytes, &zip, &complaint), CAIRN_OK);
    entry = cairn_zip_find(&zip, "data/4");
    assert_int_equal(cairn_zip_take(&zip, "a.zip", entry, data, &complaint), CAIRN_CORRUPT);
    assert_non_null(strstr(complaint.text, "a.zip: entry top/data/4 is damaged"));
    cairn_zip_fini(&zip);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
}

/* Three entries; the second is larger, and the third begins later, than 32 bits can say. */
static void
sizes_and_places_beyond_32_bits_are_kept(void **state)
{
    static const uint64_t sizes[3] = {UINT64_C(0xfffffffe), (UINT64_C(5) << 30) + 3, 100};
    int fd = temporary_file();
    struct cairn_zip_plan plan;
    struct cairn_zip zip;
    char names[3][4] = {"a", "b", "c"};

    assert_int_equal(cairn_zip_plan_init(&plan, "large"), CAIRN_OK);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t index;

        assert_int_equal(cairn_zip_plan_add(&plan, names[i], sizes[i], &index), CAIRN_OK);
        plan.entries[i].crc32 = 1 + i;
    }
    assert_int_equal(write_zip_plan(&plan, fd, 0), CAIRN_OK);
    assert_int_equal(
        cairn_zip_open(fd, "large.zip", 0, cairn_zip_plan_bytes(&plan), &zip, &complaint),
        CAIRN_OK);
    for (uint32_t i = 0; i < 3; i++) {
        const struct cairn_zip_entry *entry = cairn_zip_find(&zip, names[i]);

        assert_non_null(entry);
        assert_true(entry->bytes == sizes[i] && entry->at == plan.entries[i].at);
        assert_true(entry->at % CAIRN_ZIP_ALIGN_BYTES == 0 && entry->crc32 == 1 + i);
    }
    cairn_zip_fini(&zip);
    cairn_zip_plan_fini(&plan);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
}

static void
many_entries_are_found(void **state)
{
    enum { MANY = 70000 }; /* more than 16 bits can count */
    int fd = temporary_file();
    struct cairn_zip_plan plan;
    struct cairn_zip zip;
    char name[16];

    assert_int_equal(cairn_zip_plan_init(&plan, "many"), CAIRN_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t index;

        (void)snprintf(name, sizeof(name), "%u", i);
        assert_int_equal(cairn_zip_plan_add(&plan, name, 1, &index), CAIRN_OK);
    }
    assert_int_equal(write_zip_plan(&plan, fd, 0), CAIRN_OK);
    assert_int_equal(
        cairn_zip_open(fd, "many.zip", 0, cairn_zip_plan_bytes(&plan), &zip, &complaint), CAIRN_OK);
    assert_int_equal(zip.entry_count, MANY);
    for (uint32_t i = 0; i < MANY; i += 997) {
        (void)snprintf(name, sizeof(name), "%u", i);
        assert_int_equal(cairn_zip_find(&zip, name)->at, plan.entries[i].at);
    }
    cairn_zip_fini(&zip);
    cairn_zip_plan_fini(&plan);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
}

/* ---- contradictions ---- */

static uint8_t archive[ROOM];
static size_t archive_bytes;

static void
load_archive(void)
{
    int fd = temporary_file();
    uint64_t bytes;
    size_t got;

    write_entries(fd, 0, &bytes);
    assert_true(bytes < ROOM);
    assert_int_equal(cairn_file_read_at(fd, 0, archive, (size_t)bytes, &got), CAIRN_OK);
    archive_bytes = got;
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
}

static cairn_err
open_archive(size_t bytes)
{
    int fd = temporary_file();
    struct cairn_zip zip;
    cairn_err err;

    complaint.text[0] = '\0';
    assert_int_equal(cairn_file_write_at(fd, 0, archive, bytes), CAIRN_OK);
    err = cairn_zip_open(fd, "a.zip", 0, bytes, &zip, &complaint);
    for (uint32_t i = 0; err == CAIRN_OK && i < zip.entry_count; i++)
        assert_true(zip.entries[i].at <= bytes &&
                    zip.entries[i].bytes <= bytes - zip.entries[i].at);
    cairn_zip_fini(&zip);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    return err;
}

static uint8_t *
record(uint32_t signature, int which)
{
    uint8_t bytes[4];

    for (size_t i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(signature >> 8 * i);
    for (size_t at = 0; at + 4 <= archive_bytes; at++)
        if (memcmp(archive + at, bytes, 4) == 0 && which-- == 0)
            return archive + at;
    fail_msg("there is no such record");
    return archive;
}

static void
refused(const char *why)
{
    assert_int_equal(open_archive(archive_bytes), CAIRN_CORRUPT);
    if (!strstr(complaint.text, why) || !strstr(complaint.text, "a.zip"))
        fail_msg("it said: %s, and not: %s", complaint.text, why);
}

static void
contradictions_are_refused(void **state)
{
    /* a record of the good archive, a place in it, what is put there, and the complaint */
    static const struct {
        uint32_t signature;
        int which;
        size_t at, bytes_len;
        const char *bytes, *why;
    } cases[] = {
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 0, 0, 1, "x", "directory is damaged"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 1, 8, 1, "\x01", "top/data/1 is encrypted"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 2, 10, 1, "\x08", "top/data/2 is compressed"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 2, 20, 1, "\x02", "two sizes"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 2, 20, 8, "\xff\xff\xff\xff\xff\xff\xff\xff", "has no sizes"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 4, 20, 8, "\x00\xff\0\0\x00\xff\0\0",
         "longer than the archive"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 2, 20, 8, "\xc8\0\0\0\xc8\0\0\0", "overlaps"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 2, 42, 4, "\0\0\0\0", "another entry"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 2, 42, 4, "\xff\xff\xff\x7f", "outside the archive"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 2, 42, 4, "\1\0\0\0", "no header where"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 0, 46, 10, "../data/00", "illegal name"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 0, 46, 10, "top/a/../b", "illegal name"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 0, 46, 10, "/etc/passw", "illegal name"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 0, 46, 10, "top\\data/0", "illegal name"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 0, 46, 10, "top/dat\0/0", "illegal name"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 0, 46, 10, "top/data\xff\x30", "illegal name"},
        {CAIRN_ZIP_CENTRAL_SIGNATURE, 0, 28, 2, "\xff\xff", "middle of an entry"},
        {CAIRN_ZIP_LOCAL_SIGNATURE, 1, 0, 1, "x", "no header where"},
        {CAIRN_ZIP_LOCAL_SIGNATURE, 1, 8, 1, "\x08", "another entry"},
        {CAIRN_ZIP_LOCAL_SIGNATURE, 4, 28, 2, "\xff\xff", "longer than the archive"},
        {CAIRN_ZIP_END64_SIGNATURE, 0, 32, 1, "\4", "more entries"},
        {CAIRN_ZIP_END64_SIGNATURE, 0, 32, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f", "another size"},
        {CAIRN_ZIP_END64_SIGNATURE, 0, 40, 8, "\0\0\0\0\0\0\0\x80", "wrong bounds"},
        {CAIRN_ZIP_LOCATOR_SIGNATURE, 0, 8, 1, "\0", "not where the locator says"},
        {CAIRN_ZIP_END_SIGNATURE, 0, 0, 1, "x", "end record"},
        {CAIRN_ZIP_END_SIGNATURE, 0, 4, 1, "\1", "split archive"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        load_archive();
        memcpy(record(cases[i].signature, cases[i].which) + cases[i].at, cases[i].bytes,
               cases[i].bytes_len);
        refused(cases[i].why);
    }
    /* the same name twice, in both of its places */
    load_archive();
    memcpy(record(CAIRN_ZIP_CENTRAL_SIGNATURE, 1) + 46, "top/data/0", 10);
    memcpy(record(CAIRN_ZIP_LOCAL_SIGNATURE, 1) + 30, "top/data/0", 10);
    refused("top/data/0 is there twice");
    load_archive();
    assert_int_equal(open_archive(archive_bytes), CAIRN_OK);
}

static void
every_cut_and_every_flipped_bit_is_survived(void **state)
{
    load_archive();
    for (size_t cut = 0; cut < archive_bytes; cut += cut < 200 ? 1 : 7)
        assert_int_equal(open_archive(cut), CAIRN_CORRUPT);
    for (size_t bit = 0; bit < 8 * archive_bytes; bit += 3) {
        archive[bit / 8] ^= (uint8_t)(1 << bit % 8);
        (void)open_archive(archive_bytes); /* checks what it takes */
        archive[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_found_where_they_were_put),
        cmocka_unit_test(damaged_data_has_another_checksum),
        cmocka_unit_test(sizes_and_places_beyond_32_bits_are_kept),
        cmocka_unit_test(many_entries_are_found),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(every_cut_and_every_flipped_bit_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
