/* tests/support/write_archive.h - a planned archive, written into an open file. */
#ifndef CAIRN_TESTS_WRITE_ARCHIVE_H
#define CAIRN_TESTS_WRITE_ARCHIVE_H

#include "base/file.h"
#include "tools/convert/torch/write.h"

struct archive_place {
    int fd;
    uint64_t begin;
};

static inline cairn_err
archive_put(void *context, uint64_t at, const void *bytes, size_t bytes_len)
{
    const struct archive_place *place = context;

    return cairn_file_write_at(place->fd, place->begin + at, bytes, bytes_len);
}

/* All but the data, from `begin` of the file on. */
static inline cairn_err
write_zip_plan(const struct cairn_zip_plan *plan, int fd, uint64_t begin)
{
    struct archive_place place = {fd, begin};

    return cairn_zip_plan_put(plan, archive_put, &place);
}

static inline cairn_err
write_torch_plan(struct cairn_torch_plan *plan, int fd)
{
    struct archive_place place = {fd, 0};

    return cairn_torch_plan_put(plan, archive_put, &place);
}

#endif
