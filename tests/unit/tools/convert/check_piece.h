/* tests/unit/tools/convert/check_piece.h - checks a checkpoint whose elements are their own
 * indices. */
#ifndef CAIRN_TESTS_CONVERT_CHECK_PIECE_H
#define CAIRN_TESTS_CONVERT_CHECK_PIECE_H

#include "tests/support/cmocka.h"
#include "tools/convert/core/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

/* Reads each element of a piece by its own offset, and compares it with its index in the tensor. */
static inline uint64_t
check_piece(const struct cairn_checkpoint *checkpoint, const struct cairn_piece *piece)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, piece->tensor);
    const struct cairn_container *container = &checkpoint->containers[piece->container];
    uint64_t at[CAIRN_DIMS_MAX] = {0}, count = 1, index, offset;
    float value;
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
        if (value != (float)index) /* padding is NaN, which is not equal to anything */
            fail_msg("%s[%llu] is %g", tensor->name, (unsigned long long)index, (double)value);
        for (uint32_t d = tensor->dims; d-- > 0;)
            if (++at[d] < piece->extent[d])
                break;
            else
                at[d] = 0;
    }
    close(fd);
    return count;
}

#endif
