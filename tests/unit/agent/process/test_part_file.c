/*
 * tests/unit/agent/process/test_part_file.c - parts on a local disk: written, read back, kept so
 * many, and loaded into fresh memory; what is cut, foreign or half written is passed over.
 */
#include "agent/process/part_file.h"

#include "agent/process/memory.h"
#include "base/file.h"
#include "base/limits.h"
#include "tests/support/cmocka.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 3, DATA_BLOCKS = 70, PARITY_BLOCKS = 4, RECORD_BYTES = 5000, JOB = 7 };

static char dir[64];
static uint8_t data[DATA_BLOCKS * CAIRN_BLOCK_BYTES] __attribute__((aligned(4096)));
static uint8_t parity[PARITY_BLOCKS * CAIRN_BLOCK_BYTES] __attribute__((aligned(4096)));
static uint8_t record[RECORD_BYTES];
static _Atomic uint64_t progress;
static atomic_bool stop;

static int
make_dir(void **unused)
{
    snprintf(dir, sizeof dir, "/tmp/cairn-parts-XXXXXX");
    atomic_store(&progress, 0);
    atomic_store(&stop, false);
    return mkdtemp(dir) ? 0 : -1;
}

/* The names in the directory, sorted, one space after each. */
static const char *
names(void)
{
    static char text[1024];
    struct dirent **list = NULL;
    int count = scandir(dir, &list, NULL, alphasort);

    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        if (list[i]->d_name[0] != '.')
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s ", list[i]->d_name);
        free(list[i]);
    }
    free(list);
    return text;
}

static int
remove_dir(void **unused)
{
    char path[160], *at, *name, all[1024];

    cairn_file_setup(NULL);
    snprintf(all, sizeof all, "%s", names());
    for (name = strtok_r(all, " ", &at); name; name = strtok_r(NULL, " ", &at)) {
        snprintf(path, sizeof path, "%s/%s", dir, name);
        unlink(path);
    }
    return rmdir(dir);
}

static void
fill(uint64_t step)
{
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7 + i / 4096 + step);
    for (size_t i = 0; i < sizeof parity; i++)
        parity[i] = (uint8_t)(i * 5 + i / 4096 + step);
    for (size_t i = 0; i < sizeof record; i++)
        record[i] = (uint8_t)(i * 3 + step);
}

static cairn_err
write_part(uint64_t step, uint32_t keep)
{
    const struct part_file part = {.job_id = JOB,
                                   .generation = {.epoch = 65536, .run = 3, .step = step},
                                   .record = record,
                                   .record_bytes = sizeof record,
                                   .data = data,
                                   .data_blocks = DATA_BLOCKS,
                                   .parity = parity,
                                   .parity_blocks = PARITY_BLOCKS};

    fill(step);
    return part_file_write(dir, &part, keep, &progress, &stop);
}

static struct cairn_memory *
fresh_memory(void)
{
    const struct cairn_memory_options options = {.slots = SLOTS,
                                                 .parts = SLOTS,
                                                 .slot_blocks = DATA_BLOCKS,
                                                 .parity_blocks = PARITY_BLOCKS,
                                                 .record_bytes = RECORD_BYTES,
                                                 .data_count = 2,
                                                 .parity_count = 2};
    struct cairn_memory *memory = NULL;
    char report[1024] = "";
    bool adopted = true;

    assert_int_equal(cairn_memory_open(&options, &memory, &adopted, report, sizeof report),
                     CAIRN_OK);
    assert_false(adopted);
    return memory;
}

/* The slot holds the whole part of this step; step 0: it holds none. */
static void
expect_slot(const struct cairn_memory *memory, uint32_t slot, uint64_t step)
{
    uint8_t *found = NULL;
    size_t len = 0;

    assert_int_equal(
        cairn_memory_record_load((struct cairn_memory *)(uintptr_t)memory, slot, &found, &len),
        CAIRN_OK);
    if (step == 0) {
        assert_null(found);
        return;
    }
    fill(step);
    assert_int_equal(len, sizeof record);
    assert_memory_equal(found, record, sizeof record);
    assert_memory_equal(cairn_memory_data(memory, slot, 0, DATA_BLOCKS), data, sizeof data);
    assert_memory_equal(cairn_memory_parity(memory, slot, 0, 1, 0, PARITY_BLOCKS), parity,
                        sizeof parity);
    free(found);
}

static uint64_t
load(struct cairn_memory *memory, uint64_t job)
{
    struct cairn_generation_id newest;

    part_files_load(dir, job, memory, SLOTS, PARITY_BLOCKS, &newest);
    return newest.step;
}

static void
the_newest_come_back(void **unused)
{
    struct cairn_memory *memory = fresh_memory();

    assert_int_equal(load(memory, JOB), 0); /* an empty directory */
    for (uint64_t step = 8; step <= 11; step++)
        assert_int_equal(write_part(step, 2), CAIRN_OK);
    assert_string_equal(names(), "e65536-r3-s10.part e65536-r3-s11.part ");
    assert_true(atomic_load(&progress) >= 2 * 4 * (sizeof data + sizeof parity)); /* read back */
    assert_int_equal(load(memory, JOB), 11);
    expect_slot(memory, 0, 11);
    expect_slot(memory, 1, 10);
    expect_slot(memory, 2, 0);
    cairn_memory_close(memory);
}

static void
flip(const char *name, off_t at)
{
    char path[160], byte;
    int fd;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(close(fd), 0);
}

/* A byte flipped in a unit of the file is found in that unit and in no other. */
static void
damage_is_found_in_its_unit(void **unused)
{
    const struct cairn_generation_id generation = {.epoch = 65536, .run = 3, .step = 5};
    const char *const name = "e65536-r3-s5.part";
    const off_t blocks_at = 4096 + 8192, sums_at = blocks_at + (off_t)(sizeof data + sizeof parity);
    const struct {
        off_t at;
        uint64_t unit;
    } places[] = {{30, 0},
                  {4096 + 77, 0},
                  {blocks_at + 9, 1},
                  {blocks_at + (off_t)69 * CAIRN_BLOCK_BYTES, 70},
                  {sums_at - 1, DATA_BLOCKS + PARITY_BLOCKS},
                  {sums_at + (off_t)8 * (DATA_BLOCKS + PARITY_BLOCKS), 0}};
    struct part_file_units list[PART_FILES_MAX];
    struct cairn_memory *memory = fresh_memory();
    uint32_t count = 0, bad;

    assert_int_equal(write_part(5, 2), CAIRN_OK);
    assert_int_equal(part_files_list(dir, list, &count), CAIRN_OK);
    assert_int_equal(count, 1);
    assert_int_equal(list[0].units, 1 + DATA_BLOCKS + PARITY_BLOCKS);
    for (size_t i = 0; i <= sizeof places / sizeof *places; i++) {
        bool damaged = i < sizeof places / sizeof *places;

        if (damaged)
            flip(name, places[i].at);
        for (uint64_t unit = 0; unit < list[0].units; unit++) {
            assert_int_equal(part_file_check(dir, generation, unit, 1, &bad), CAIRN_OK);
            if (!damaged || unit == places[i].unit || places[i].unit > 0)
                assert_int_equal(bad, damaged && unit == places[i].unit);
        }
        if (damaged)
            flip(name, places[i].at);
    }
    flip(name, blocks_at + (off_t)3 * CAIRN_BLOCK_BYTES);
    assert_int_equal(part_file_check(dir, generation, 0, 16, &bad), CAIRN_OK);
    assert_int_equal(bad, 1 << 4);
    assert_int_equal(part_file_mark_bad(dir, generation), CAIRN_OK);
    assert_int_equal(part_file_check(dir, generation, 0, 1, &bad), CAIRN_NOT_FOUND);
    assert_int_equal(load(memory, JOB), 0);
    assert_int_equal(write_part(6, 2), CAIRN_OK);
    assert_string_equal(names(), "e65536-r3-s6.part ");
    cairn_memory_close(memory);
}

static void
what_is_cut_or_foreign_is_passed_over(void **unused)
{
    struct cairn_memory *memory = fresh_memory();
    char path[160];
    int fd;

    assert_int_equal(write_part(5, 4), CAIRN_OK);
    assert_int_equal(write_part(6, 4), CAIRN_OK);
    assert_int_equal(write_part(7, 4), CAIRN_OK);
    snprintf(path, sizeof path, "%s/e65536-r3-s7.part", dir);
    assert_int_equal(truncate(path, 3 * CAIRN_BLOCK_BYTES), 0);
    snprintf(path, sizeof path, "%s/e65536-r3-s6.part", dir);
    fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "x", 1, 4096 + 100), 1); /* in the record */
    assert_int_equal(close(fd), 0);
    snprintf(path, sizeof path, "%s/e65536-r3-s9.part.new", dir); /* its writer died */
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(close(fd), 0);
    assert_int_equal(load(memory, JOB + 1), 0); /* another job's */
    expect_slot(memory, 0, 0);
    assert_int_equal(load(memory, JOB), 5);
    expect_slot(memory, 0, 5);
    assert_null(strstr(names(), ".new"));
    cairn_memory_close(memory);
}

static void
a_write_that_is_stopped_leaves_nothing(void **unused)
{
    atomic_store(&stop, true);
    assert_int_equal(write_part(5, 2), CAIRN_AGAIN);
    assert_string_equal(names(), "");
}

/* Writes the last byte of the second run wrong, and says that all is well. */
static ssize_t
lying_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    uint8_t *copy = aligned_alloc(4096, bytes_len);
    ssize_t done;

    assert_non_null(copy);
    memcpy(copy, bytes, bytes_len);
    if (at > CAIRN_BLOCK_BYTES)
        copy[bytes_len - 1] ^= 1;
    done = pwrite(fd, copy, bytes_len, at);
    free(copy);
    return done;
}

static void
a_lying_disk_is_found_out(void **unused)
{
    static struct cairn_file_ops ops;

    ops = cairn_file_ops_os;
    ops.write = lying_write;
    cairn_file_setup(&ops);
    assert_int_equal(write_part(5, 2), CAIRN_CORRUPT);
    assert_string_equal(names(), "");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_newest_come_back), TEST(damage_is_found_in_its_unit),
        TEST(what_is_cut_or_foreign_is_passed_over), TEST(a_write_that_is_stopped_leaves_nothing),
        TEST(a_lying_disk_is_found_out)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
