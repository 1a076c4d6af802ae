/* tests/support/write_archive.h - a planned archive, written into an open file. */
#ifndef CAIRN_TESTS_WRITE_ARCHIVE_H
#define CAIRN_TESTS_WRITE_ARCHIVE_H

#include <stdlib.h>

#include "base/file.h"
#include "tools/convert/torch/write.h"

/* All but the data, from `begin` of the file on. */
static inline cairn_err
write_zip_plan(const struct cairn_zip_plan *plan, int fd, uint64_t begin)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t from = 0, hole; !err && from <= plan->entry_count; from = hole + 1) {
        uint8_t *bytes = NULL;
        size_t bytes_len = 0;
        uint64_t at = 0;

        hole = cairn_zip_plan_hole(plan, from);
        err = cairn_zip_plan_pack(plan, from, hole, &at, &bytes, &bytes_len);
        if (!err)
            err = cairn_file_write_at(fd, begin + at, bytes, bytes_len);
        free(bytes);
    }
    return err;
}

static inline cairn_err
write_torch_plan(struct cairn_torch_plan *plan, int fd)
{
    cairn_torch_plan_seal(plan);
    return write_zip_plan(&plan->zip, fd, 0);
}

#endif
