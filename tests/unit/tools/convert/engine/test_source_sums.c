/* tests/unit/tools/convert/engine/test_source_sums.c - checksums of a source held against what was
 * read: whole, in parts, twice, and otherwise than it is. */
#include <string.h>

#include "base/crc.h"
#include "tools/convert/engine/source_sums.h"
#include "tests/support/cmocka.h"

/* Three tensors with gaps around them, in blocks that begin anywhere in them. */
enum { BYTES = 1000, BLOCK_BYTES = 64, TENSORS = 3 };
static const uint64_t begins[TENSORS] = {10, 250, 600}, lengths[TENSORS] = {200, 350, 390};

static struct cairn_checkpoint checkpoint;
static struct cairn_handles *handles;
static uint8_t file[BYTES];

static cairn_err
open_nothing(void *context, uint32_t container, int *fd, struct cairn_complaint *complaint)
{
    (void)context;
    (void)container;
    (void)fd;
    (void)complaint;
    return CAIRN_INTERNAL; /* all bytes are in memory */
}

static void
add_sums(enum cairn_crc_kind kind)
{
    uint64_t values[BYTES / BLOCK_BYTES + 1],
        block_bytes = kind == CAIRN_CRC_ZIP ? BYTES : BLOCK_BYTES;

    for (uint64_t at = 0, i = 0; at < BYTES; at += block_bytes, i++) {
        size_t part = BYTES - at < block_bytes ? (size_t)(BYTES - at) : (size_t)block_bytes;

        /* cppcheck-suppress arrayIndexOutOfBounds ; one value per block, BYTES / block_bytes */
        values[i] = kind == CAIRN_CRC_ZIP ? cairn_crc32(0, file + at, part)
                                          : cairn_crc64(0, file + at, part);
    }
    assert_int_equal(cairn_checkpoint_add_sums(&checkpoint, 0, kind, 0, BYTES, block_bytes, values),
                     CAIRN_OK);
}

static void
begin(enum cairn_crc_kind kind)
{
    static const char *const names[TENSORS] = {"a", "b", "c"};
    uint32_t tensor;

    checkpoint = (struct cairn_checkpoint){.place = {.path = strdup("place"), .dir_fd = -1}};
    for (size_t i = 0; i < BYTES; i++)
        file[i] = (uint8_t)(i * i + i / 7);
    assert_int_equal(cairn_layout_create(&checkpoint.layout), CAIRN_OK);
    assert_int_equal(cairn_checkpoint_add_opaque(&checkpoint, "all", file, BYTES), CAIRN_OK);
    cairn_layout_destroy(checkpoint.layout); /* of what lies in its container, the tensors alone are
                                              * known */
    assert_int_equal(cairn_layout_create(&checkpoint.layout), CAIRN_OK);
    for (uint32_t i = 0; i < TENSORS; i++) {
        assert_int_equal(cairn_checkpoint_add_tensor(&checkpoint, names[i], CAIRN_U8, CAIRN_PARAM,
                                                     1, &lengths[i], &tensor),
                         CAIRN_OK);
        assert_int_equal(
            cairn_checkpoint_add_box(&checkpoint, tensor, 0, NULL, NULL, begins[i], NULL),
            CAIRN_OK);
    }
    add_sums(kind);
    assert_int_equal(cairn_handles_create(1, open_nothing, NULL, &handles), CAIRN_OK);
}

static void
end(void)
{
    assert_int_equal(cairn_handles_destroy(handles), CAIRN_OK);
    cairn_checkpoint_close(&checkpoint);
}

/* Reads tensors as the bits of `which` say, in parts of 37 bytes from the last to the first; of
 * tensor `wrong` one byte wrongly. */
static void
read_tensors(struct cairn_source_sums *sums, uint32_t which, uint32_t wrong)
{
    uint8_t tile[BYTES];

    for (uint32_t i = 0; i < TENSORS; i++)
        for (uint64_t left = which >> i & 1 ? lengths[i] : 0, part; left > 0; left -= part) {
            struct cairn_move move = {.run_count = 1};

            part = left % 37 ? left % 37 : 37;
            move.run_bytes = part;
            move.source_offset = begins[i] + left - part;
            memcpy(tile, file + move.source_offset, part);
            if (i == wrong && left == lengths[i])
                tile[part - 1] ^= 1;
            cairn_source_sums_add(sums, &move, 1, tile);
        }
}

static cairn_err
check(struct cairn_source_sums *sums, struct cairn_complaint *complaint)
{
    cairn_err err;

    complaint->text[0] = '\0';
    checkpoint.complaint = complaint;
    err = cairn_source_sums_check(sums, &checkpoint, handles);
    cairn_source_sums_destroy(sums);
    return err;
}

static const enum cairn_crc_kind kinds[] = {CAIRN_CRC_ZIP, CAIRN_CRC_ECMA};

/* Any part is read, any number of times. */
static void
what_is_right_passes(void **state)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t which = 0; which < 1 << 2 * TENSORS; which++) {
            struct cairn_complaint complaint;
            struct cairn_source_sums *sums;

            begin(kinds[k]);
            assert_int_equal(cairn_source_sums_create(&checkpoint, &sums), CAIRN_OK);
            read_tensors(sums, which & 7, TENSORS);
            read_tensors(sums, which >> TENSORS, TENSORS);
            if (check(sums, &complaint))
                fail_msg("%x: %s", which, complaint.text);
            end();
        }
}

/* The file itself, in a tensor or between two in a block that is read. */
static void
damage_is_found(void **state)
{
    static const size_t damaged[] = {10, 209, 400, 599, 989, 212};

    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++) {
            struct cairn_complaint complaint;
            struct cairn_source_sums *sums;

            begin(kinds[k]);
            file[damaged[i]] ^= 4;
            checkpoint.containers[0].literal[damaged[i]] ^= 4;
            assert_int_equal(cairn_source_sums_create(&checkpoint, &sums), CAIRN_OK);
            read_tensors(sums, 7, TENSORS);
            assert_int_equal(check(sums, &complaint), CAIRN_CORRUPT);
            assert_non_null(strstr(complaint.text, "is damaged between byte"));
            end();
        }
}

/* The file is right, and what was read is not: it is in the output. */
static void
what_was_read_decides(void **state)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t wrong = 0; wrong < TENSORS; wrong++) {
            struct cairn_complaint complaint;
            struct cairn_source_sums *sums;

            begin(kinds[k]);
            assert_int_equal(cairn_source_sums_create(&checkpoint, &sums), CAIRN_OK);
            read_tensors(sums, 7, wrong);
            assert_int_equal(check(sums, &complaint), CAIRN_CORRUPT);
            assert_non_null(strstr(complaint.text, "as it was read before, and does now"));
            end();
        }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_right_passes),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(what_was_read_decides),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
