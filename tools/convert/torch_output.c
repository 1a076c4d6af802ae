/* tools/convert/torch_output.c - files of torch.save in an output. */
#include "tools/convert/torch_output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/file.h"

/* What torch.save names the archive's folder: the file's name without its last ending. */
static void
folder_of(const char *path, char folder[CAIRN_FILE_PATH_BYTES_MAX])
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    size_t bytes = dot && dot != name ? (size_t)(dot - name) : strlen(name);

    if (bytes == 0 || bytes >= CAIRN_FILE_PATH_BYTES_MAX) {
        name = "archive";
        bytes = strlen(name);
    }
    memcpy(folder, name, bytes);
    folder[bytes] = '\0';
}

static cairn_err
plan_file(const char *path, const struct cairn_torch_fill *fill, struct cairn_torch_output *out)
{
    char folder[CAIRN_FILE_PATH_BYTES_MAX];
    struct cairn_torch_plan_storage *storages;
    char(*keys)[16];
    cairn_err err = CAIRN_NOMEM;

    folder_of(path, folder);
    storages = calloc((size_t)out->storage_count + 1, sizeof(*storages));
    keys = calloc((size_t)out->storage_count + 1, sizeof(*keys));
    if (storages && keys) {
        for (uint32_t i = 0; i < out->storage_count; i++) {
            (void)snprintf(keys[i], sizeof(keys[i]), "%" PRIu32, i);
            storages[i] = (struct cairn_torch_plan_storage){keys[i], out->storages[i].bytes};
        }
        err = cairn_torch_plan_init(&out->plan, folder, fill->tree, fill->root, storages,
                                    out->storage_count);
    }
    free(storages);
    free(keys);
    return err;
}

cairn_err
cairn_torch_output_add(struct cairn_output *output, const char *path,
                       const struct cairn_torch_fill *fill, struct cairn_torch_output *out,
                       struct cairn_complaint *complaint)
{
    cairn_err err;

    memset(out, 0, sizeof(*out));
    err = cairn_torch_carry_fill(fill, &out->storages, &out->storage_count, complaint);
    if (!err)
        err = plan_file(path, fill, out);
    if (!err)
        err = cairn_output_add_file(output, path, &out->file);
    if (err)
        return err;
    out->sums = calloc((size_t)out->storage_count + 1, sizeof(*out->sums));
    if (!out->sums)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < out->storage_count && !err; i++) {
        out->sums[i] = UINT32_MAX;
        if (out->storages[i].bytes > 0)
            err = cairn_output_add_sum(output, out->file, CAIRN_SUM_CRC32,
                                       cairn_torch_output_at(out, i), out->storages[i].bytes,
                                       out->storages[i].bytes, &out->sums[i]);
    }
    cairn_output_set_bytes(output, out->file, cairn_torch_plan_bytes(&out->plan));
    return err;
}

uint64_t
cairn_torch_output_at(const struct cairn_torch_output *added, uint32_t storage)
{
    return added->plan.zip.entries[added->plan.first_storage + storage].at;
}

/* The bytes [begin, end) of the scratch file are a literal. */
static cairn_err
add_literal(struct cairn_output *output, uint32_t file, int fd, uint64_t begin, uint64_t end)
{
    size_t bytes_len = (size_t)(end - begin), got = 0;
    uint8_t *bytes;
    cairn_err err;

    if (bytes_len == 0)
        return CAIRN_OK;
    bytes = malloc(bytes_len);
    if (!bytes)
        return CAIRN_NOMEM;
    err = cairn_file_read_at(fd, begin, bytes, bytes_len, &got);
    if (!err && got != bytes_len)
        err = CAIRN_INTERNAL;
    if (err) {
        free(bytes);
        return err;
    }
    return cairn_output_add_literal(output, file, begin, bytes, bytes_len);
}

/*
 * The plan knows how to write its records into a file at their places. A file in memory takes them,
 * holes where the storages are, and what lies between the holes are the literals.
 */
cairn_err
cairn_torch_output_finish(struct cairn_output *output, struct cairn_torch_output *added)
{
    uint64_t cursor = 0, bytes = cairn_torch_plan_bytes(&added->plan);
    int fd = memfd_create("cairn-literals", MFD_CLOEXEC);
    cairn_err err;

    if (fd < 0)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < added->storage_count; i++)
        if (added->sums[i] != UINT32_MAX)
            cairn_torch_plan_storage_at(&added->plan, i)->crc32 =
                (uint32_t)output->sums[added->sums[i]].values[0];
    err = cairn_torch_plan_write(&added->plan, fd, 0);
    for (uint32_t i = 0; i < added->storage_count && !err; i++) {
        uint64_t at = cairn_torch_output_at(added, i);

        if (added->storages[i].bytes == 0)
            continue;
        err = add_literal(output, added->file, fd, cursor, at);
        cursor = at + added->storages[i].bytes;
    }
    if (!err)
        err = add_literal(output, added->file, fd, cursor, bytes);
    (void)cairn_file_close(fd); /* scratch memory */
    return err;
}

void
cairn_torch_output_fini(struct cairn_torch_output *added)
{
    cairn_torch_plan_fini(&added->plan);
    free(added->storages);
    free(added->sums);
    memset(added, 0, sizeof(*added));
}
