/* tests/unit/tools/convert/check_piece.h - checks a checkpoint whose elements tell where they
 * belong, and one whose files have changed bytes. */
#ifndef CAIRN_TESTS_CONVERT_CHECK_PIECE_H
#define CAIRN_TESTS_CONVERT_CHECK_PIECE_H

#include "tests/support/cmocka.h"
#include "tests/support/random.h"
#include "snapshot/box.h"
#include "tools/convert/engine/conversion.h"
#include "tools/convert/formats.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What element `index` of a tensor is; false for a tensor whose elements are not known. */
typedef bool expected_element(const char *name, uint64_t index, float *value);

/* Reads each element of a piece by its own offset, and compares it with what `expected` tells, or
 * with its index in the tensor where that is NULL. `seen`, unless NULL, counts them by index. */
static inline uint64_t
check_piece(const struct cairn_checkpoint *checkpoint, const struct cairn_piece *piece,
            expected_element *expected, uint8_t *seen)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, piece->tensor);
    const struct cairn_container *container = &checkpoint->containers[piece->container];
    uint64_t at[CAIRN_DIMS_MAX] = {0}, count = 1, index, offset;
    float value, wanted;
    int fd = openat(checkpoint->place.dir_fd, container->path, O_RDONLY);

    assert_true(fd >= 0);
    for (uint32_t d = 0; d < tensor->dims; d++)
        count *= piece->extent[d];
    for (uint64_t i = 0; i < count; i++) {
        index = 0;
        offset = piece->offset_bytes;
        for (uint32_t d = 0; d < tensor->dims; d++) {
            index = index * tensor->shape[d] + piece->start[d] + at[d];
            offset += at[d] * piece->stride_bytes[d];
        }
        assert_int_equal(pread(fd, &value, sizeof(value), (off_t)offset), sizeof(value));
        wanted = (float)index;
        assert_true(!expected || expected(tensor->name, index, &wanted));
        if (value != wanted) /* padding is NaN, which is not equal to anything */
            fail_msg("%s[%llu] is %g and not %g", tensor->name, (unsigned long long)index,
                     (double)value, (double)wanted);
        if (seen)
            seen[index]++;
        for (uint32_t d = tensor->dims; d-- > 0;)
            if (++at[d] < piece->extent[d])
                break;
            else
                at[d] = 0;
    }
    close(fd);
    return count;
}

/* Checks each element of tensor `t` against `expected`; the pieces must hold each, and
 * with `once` only once. */
__attribute__((unused)) static void
check_elements(const struct cairn_checkpoint *checkpoint, uint32_t t, expected_element *expected,
               bool once)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, t);
    uint64_t elements = cairn_tensor_bytes(tensor) / sizeof(float);
    uint8_t seen[512] = {0};

    assert_true(elements <= sizeof(seen));
    for (size_t p = 0; p < cairn_layout_piece_count(checkpoint->layout); p++)
        if (cairn_layout_piece(checkpoint->layout, p)->tensor == t)
            (void)check_piece(checkpoint, cairn_layout_piece(checkpoint->layout, p), expected,
                              seen);
    for (uint64_t i = 0; i < elements; i++)
        assert_in_range(seen[i], 1, once ? 1 : UINT8_MAX);
}

/* Changes one byte of the named files in `folder` at a time: opening gives an error with a
 * complaint, or a checkpoint. */
__attribute__((unused)) static void
check_changed_bytes(const char *folder, const char *const names[], uint32_t name_count,
                    const char *format, int changes)
{
    uint64_t seed = 42;

    for (int i = 0; i < changes; i++) {
        struct cairn_complaint complaint = {""};
        struct cairn_checkpoint checkpoint;
        struct stat found;
        char path[1024];
        uint8_t old, new;
        off_t at;
        int fd;

        (void)snprintf(path, sizeof(path), "%s/%s", folder, names[xorshift(&seed) % name_count]);
        fd = open(path, O_RDWR);
        assert_true(fd >= 0 && fstat(fd, &found) == 0);
        at = (off_t)(xorshift(&seed) % (uint64_t)found.st_size);
        assert_int_equal(pread(fd, &old, 1, at), 1);
        new = (uint8_t)xorshift(&seed);
        assert_int_equal(pwrite(fd, &new, 1, at), 1);
        if (cairn_checkpoint_open(folder, cairn_format_find(format), 0, &checkpoint, &complaint) ==
            CAIRN_OK)
            cairn_checkpoint_close(&checkpoint);
        else
            assert_true(complaint.text[0] != '\0');
        assert_int_equal(pwrite(fd, &old, 1, at), 1);
        (void)close(fd);
    }
}

/* Opening gives an error whose complaint says this. */
__attribute__((unused)) static void
expect_refusal(const char *path, const char *format, cairn_err wanted, const char *said)
{
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint;
    cairn_err err =
        cairn_checkpoint_open(path, cairn_format_find(format), 0, &checkpoint, &complaint);

    if (err == CAIRN_OK)
        cairn_checkpoint_close(&checkpoint);
    if (err != wanted || !strstr(complaint.text, said))
        fail_msg("%d: \"%s\" does not say \"%s\"", (int)err, complaint.text, said);
}

/* Converts to a format of that name, on two threads. */
__attribute__((unused)) static cairn_err
convert_to(struct cairn_conversion_options options, const char *format,
           struct cairn_complaint *complaint)
{
    struct cairn_conversion conversion;
    cairn_err err;

    options.formats = cairn_formats;
    options.to = cairn_format_find(format);
    options.thread_count = 2;
    options.memory_limit_bytes = 1 << 30;
    complaint->text[0] = '\0';
    err = cairn_conversion_open(&options, &conversion, complaint);
    if (!err)
        err = cairn_conversion_run(&conversion, complaint);
    cairn_conversion_close(&conversion);
    return err;
}

#endif
